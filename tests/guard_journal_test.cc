// The journal: what was written is what is read, a torn end is dropped, anything else that was altered is told.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "supervisor/decide.h"
#include "supervisor/guard_json.h"
#include "supervisor/journal.h"

namespace orrery::test {
namespace {

namespace fs = std::filesystem;

struct TempDir {
  fs::path path;
  TempDir() {
    std::string name = (fs::temp_directory_path() / "orrery-guard-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code ignored;  // what still writes there
    fs::remove_all(path, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

GuardEvent event(EventKind kind, Ns at, std::int64_t attempt = 1) {
  GuardEvent e;
  e.kind = kind;
  e.at = at;
  e.attempt = attempt;
  return e;
}

// A life of a job with every field that an event may have.
std::vector<GuardEvent> life() {
  std::vector<GuardEvent> all;
  GuardEvent e = event(EventKind::begin, 10, 0);
  e.text = "og1";
  e.node = "train";
  e.policy.emplace();
  e.policy->most_restarts = 7;
  e.policy->straggler = OnStraggler::replace;
  e.policy->same_failure = OnSameFailure::stop;
  e.policy->backoff_first_s = 0.1;
  e.policy->knows_checkpoints = true;
  all.push_back(e);
  e = event(EventKind::checkpoints, 11, 0);
  e.checkpoints = {{"step-30", 30, 7}, {"step-20", 20, 6}};
  all.push_back(e);
  e = event(EventKind::started, 12);
  e.handle = "1";
  e.state.emplace();
  e.state->nodes = {"a", "b"};
  all.push_back(e);
  e = event(EventKind::progress, 13);
  e.step = 33;
  e.loss = 2.25;
  all.push_back(e);
  e = event(EventKind::finding, 14);
  e.finding.emplace();
  e.finding->verdict = "failed";
  e.finding->reason = "ECC Error";
  e.finding->restart = "auto-exclude";
  e.finding->node = "b";
  e.finding->text = "a line with \"quotes\", a tab\t and bytes \xff\xfe";
  e.finding->confidence = 0.9;
  all.push_back(e);
  e = event(EventKind::bad_loss, 15);
  e.step = 31;
  e.loss = NAN;
  all.push_back(e);
  e = event(EventKind::ended, 16);
  e.state.emplace();
  e.state->signal = 9;
  e.state->reason = EndReason::node_fail;
  e.state->time_left = 5.5;
  all.push_back(e);
  all.push_back(event(EventKind::fenced, 17));
  e = event(EventKind::nodes, 18, 0);
  e.nodes = {{"a", "good", ""}, {"b", "bad", "why"}};
  all.push_back(e);
  all.push_back(event(EventKind::tick, 4'000'000'000'000, 0));
  return all;
}

GuardState write(const std::string& path, const std::vector<GuardEvent>& events) {
  GuardState state;
  auto known = read_journal(path);
  EXPECT_TRUE(known) << known.error().line();
  state = replay(known->entries);
  auto journal = Journal::open(path, *known);
  EXPECT_TRUE(journal);
  for (const GuardEvent& e : events) {
    Decision d = decide(state, e);
    EXPECT_TRUE(journal->append(e, d));
    state = std::move(d.next);
  }
  return state;
}

// Everything that decide() can depend on.
std::string shown(const GuardState& s) {
  std::string out = std::string(name_of(s.phase)) + " " + std::to_string(s.attempt) + " " + s.token + " " + s.handle +
                    " " + std::to_string(s.step) + " " + std::to_string(s.until) + " " +
                    std::to_string(s.without_gain) + " " + s.last_reason + " " + s.rollback.checkpoint + " " +
                    std::to_string(s.rollback.to) + " " + std::to_string(s.attempts.size()) + " " +
                    std::to_string(s.restarts);
  for (const ExcludedNode& n : s.excluded) out += " -" + n.node;
  for (const Action& a : pending(s)) out += " " + std::string(name_of(a.kind)) + " " + std::to_string(a.step);
  return out;
}

TEST(GuardJournal, EventsComeBackAsTheyWere) {
  for (const GuardEvent& e : life()) {
    const auto json = to_json_value(e);
    const auto back = event_of(json);
    ASSERT_TRUE(back) << back.error().line();
    EXPECT_EQ(to_json_value(*back), json);
  }
  EXPECT_TRUE(std::isnan(event_of(to_json_value(life()[5]))->loss));
}

TEST(GuardJournal, ReplayingGivesTheSameState) {
  const TempDir dir;
  const std::string path = dir / "journal";
  const GuardState state = write(path, life());
  const auto read = read_journal(path);
  ASSERT_TRUE(read) << read.error().line();
  EXPECT_FALSE(read->torn);
  EXPECT_EQ(read->entries.size(), life().size());
  EXPECT_EQ(shown(replay(read->entries)), shown(state));
  EXPECT_EQ(read->entries.front().kind, "begin");
}

TEST(GuardJournal, ATornLastLineIsDroppedWhereverItWasTorn) {
  const TempDir dir;
  const std::string path = dir / "journal";
  const auto events = life();
  write(path, {events.begin(), events.end() - 1});
  const std::string before = read_file(path);
  const GuardState state_before = replay(read_journal(path)->entries);
  write(path, {events.back()});
  const std::string whole = read_file(path);
  for (std::size_t size = before.size(); size < whole.size(); ++size) {
    write_text(path, whole.substr(0, size));
    const auto read = read_journal(path);
    ASSERT_TRUE(read) << size << ": " << read.error().line();
    EXPECT_EQ(read->torn, size > before.size());
    EXPECT_EQ(shown(replay(read->entries)), shown(state_before));
    // and goes on from there
    if (size % 37 != 0) continue;
    write(path, {events.back()});
    EXPECT_EQ(read_file(path), whole);
  }
  // A power cut may leave the length and not the bytes.
  write_text(path, before + std::string(whole.size() - before.size() - 1, '\0') + "\n");
  EXPECT_TRUE(read_journal(path)->torn);
}

TEST(GuardJournal, WhateverElseWasAlteredIsTold) {
  const TempDir dir;
  const std::string path = dir / "journal";
  write(path, life());
  const std::string whole = read_file(path);
  for (std::size_t at = 0; at + 1 < whole.size(); at += 13) {
    std::string altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    if (altered[at] == '\n' || whole[at] == '\n') continue;
    write_text(path, altered);
    const auto read = read_journal(path);
    ASSERT_FALSE(read) << "byte " << at;
    EXPECT_NE(read.error().line().find("journal:"), std::string::npos) << "which line";
  }
  // A whole line that is gone, or comes twice
  const std::size_t first = whole.find('\n') + 1, second = whole.find('\n', first) + 1;
  write_text(path, whole.substr(0, first) + whole.substr(second));
  EXPECT_FALSE(read_journal(path));
  write_text(path, whole.substr(0, second) + whole.substr(first));
  EXPECT_FALSE(read_journal(path));
}

// A disk that is full for a while: what was half written is not read, and what comes then stands where it belongs.
TEST(GuardJournal, WhatCouldNotBeWrittenIsWrittenLater) {
  const TempDir dir;
  const std::string path = dir / "journal";
  const auto events = life();
  GuardState state = write(path, {events.begin(), events.begin() + 3});
  const std::string before = read_file(path);
  auto known = read_journal(path);
  auto journal = Journal::open(path, *known);
  ASSERT_TRUE(journal);
  const Decision d = decide(state, events[3]);
  struct rlimit limit {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto old = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = limit;
  small.rlim_cur = before.size() + 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const bool first = journal->append(events[3], d).has_value(), second = journal->append(events[3], d).has_value();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, old);
  EXPECT_FALSE(first || second);
  EXPECT_EQ(read_file(path), before);
  std::ofstream(path, std::ios::app | std::ios::binary) << "{\"crc\":\"torn";  // as where it could not be cut off
  EXPECT_TRUE(journal->append(events[3], d));
  const auto read = read_journal(path);
  ASSERT_TRUE(read) << read.error().line();
  EXPECT_EQ(read->entries.size(), 4u);
}

TEST(GuardJournal, OneSupervisorADirectory) {
  const TempDir dir;
  const std::string state = dir / "state";
  {
    const auto lock = StateLock::take(state);
    ASSERT_TRUE(lock) << lock.error().line();
    EXPECT_TRUE(is_locked(state));
    const auto second = StateLock::take(state);
    ASSERT_FALSE(second);
    EXPECT_NE(second.error().line().find("another guard has it (process " + std::to_string(::getpid()) + ")"),
              std::string::npos)
        << second.error().line();
  }
  EXPECT_FALSE(is_locked(state));
  EXPECT_TRUE(StateLock::take(state));
  EXPECT_EQ(fs::status(state).permissions() & fs::perms::others_all, fs::perms::none);
  EXPECT_EQ(fs::status(state).permissions() & fs::perms::group_all, fs::perms::none);
}

}  // namespace
}  // namespace orrery::test
