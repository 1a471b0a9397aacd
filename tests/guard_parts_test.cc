// The supervisor's smaller parts: heartbeats, settings, placeholders, processes found by their token.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "supervisor/guard_options.h"
#include "supervisor/heartbeats.h"
#include "supervisor/keeper.h"
#include "supervisor/local_runner.h"

namespace orrery {
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

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

TEST(GuardHeartbeats, LinesOfRanks) {
  Beat b;
  EXPECT_TRUE(read_beat("        17  1796081234567890123 all_reduce   node3\n", false, b));
  EXPECT_EQ(b.step, 17);
  EXPECT_EQ(b.phase, "all_reduce");
  EXPECT_EQ(b.node, "node3");
  EXPECT_TRUE(read_beat("4 17 99 compute", true, b));
  EXPECT_EQ(b.rank, 4);
  EXPECT_EQ(b.node, "");
  for (const char* bad : {"", "17", "17 99", "x 99 compute", "17 9x compute", "\xff\xfe"})
    EXPECT_FALSE(read_beat(bad, false, b)) << bad;
  EXPECT_FALSE(read_beat("-1 17 99 compute", true, b));
  EXPECT_FALSE(read_beat("9223372036854775807 99 compute", false, b)) << "no step to count on from";
}

TEST(GuardHeartbeats, FilesOfThisAttemptAlone) {
  const TempDir dir;
  write_text(dir / "rank-00007", "5 1 compute\n");
  auto h = Heartbeats::open(dir.path.string(), "");
  ASSERT_TRUE(h);
  EXPECT_EQ(h->read().size(), 1u);
  const Ns later =
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count() + 1'000'000'000;
  h->begin_attempt(later);
  EXPECT_TRUE(h->read().empty()) << "of a rank that is dead";
  h->begin_attempt(0);
  write_text(dir / "rank-00001", "6 1 compute\n");
  write_text(dir / "rank-x", "6 1 compute\n");
  write_text(dir / "rank-00002", "half");
  fs::create_symlink("/etc/hostname", dir / "rank-00003");
  const auto beats = h->read();
  ASSERT_EQ(beats.size(), 2u);
  EXPECT_EQ(beats[0].rank, 1);
  EXPECT_EQ(beats[1].rank, 7);
}

TEST(GuardHeartbeats, ASocketOfTheOwnersAlone) {
  const TempDir dir;
  const std::string path = dir / "socket";
  auto h = Heartbeats::open("", path);
  ASSERT_TRUE(h) << h.error().line();
  struct stat s {};
  ASSERT_EQ(::stat(path.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  for (const char* line : {"0 5 1 compute n0", "1 5 1 all_reduce n1", "garbage", "1 6 2 compute n1"})
    ASSERT_GT(::sendto(fd, line, std::strlen(line), 0, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(fd);
  const auto beats = h->read();
  ASSERT_EQ(beats.size(), 2u);
  EXPECT_EQ(beats[1].step, 6);
  write_text(dir / "file", "precious");
  EXPECT_FALSE(Heartbeats::open("", dir / "file")) << "nothing is removed that is no socket";
  EXPECT_TRUE(fs::exists(dir / "file"));
}

TEST(GuardOptions, PlaceholdersAndOtherBraces) {
  const Placeholders values{{"checkpoint", "step-5"}, {"attempt", "2"}};
  EXPECT_EQ(replaced("--load={checkpoint}", values), "--load=step-5");
  EXPECT_EQ(replaced("{\"a\": {attempt}}", values), "{\"a\": 2}");
  EXPECT_EQ(replaced("{nothing} {attempt {checkpoint}", values), "{nothing} {attempt step-5");
  EXPECT_EQ(replaced("{checkpoint}", {{"checkpoint", "{attempt}"}, {"attempt", "2"}}), "{attempt}")
      << "what was put in is not looked at again";
}

// Every key that docs/guard.md names with a default is one, and that is its default.
TEST(GuardOptions, TheDocumentedSettingsAreTheDefaults) {
  std::ifstream in(ORRERY_SOURCE_DIR "/docs/guard.md");
  int keys = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("| `[", 0) != 0) continue;
    const std::string table = line.substr(3, line.find('`', 3) - 3);
    for (std::size_t at = line.find('`', line.find("| ", 2) + 2); at != std::string::npos;
         at = line.find('`', at + 1)) {
      const std::size_t end = line.find('`', at + 1);
      const std::string code = line.substr(at + 1, end - at - 1);
      at = end;
      if (code.find(" = ") == std::string::npos) continue;
      GuardOptions o, defaults;
      o.state = "changed";
      const Status ok = read_guard_options(table + "\n" + code + "\n", "doc", o);
      EXPECT_TRUE(ok) << code << ": " << ok.error().line();
      if (code.rfind("state", 0) != 0) o.state = defaults.state;
      EXPECT_EQ(o.state, defaults.state);
      const auto numbers = [](const GuardOptions& g) {
        const WatchPolicy& w = g.watch;
        const GuardPolicy& p = g.policy;
        return std::vector<double>{g.poll_s,
                                   g.progress_s,
                                   g.settle_s,
                                   g.time_limit_s,
                                   g.time_limit_margin_s,
                                   g.check_timeout_s,
                                   g.webhook_timeout_s,
                                   w.start_grace_s,
                                   w.hang_floor_s,
                                   w.hang_factor,
                                   double(w.first_steps),
                                   w.first_factor,
                                   w.save_grace_s,
                                   w.chatter_factor,
                                   w.linger_s,
                                   w.lost_s,
                                   double(w.nan_steps),
                                   w.spike_factor,
                                   w.spike_deviations,
                                   double(w.spike_steps),
                                   double(w.spike_window),
                                   w.straggler_share,
                                   w.slower_factor,
                                   double(w.straggler_steps),
                                   double(p.most_restarts),
                                   double(p.most_in_window),
                                   double(p.most_without_progress),
                                   p.window_s,
                                   p.backoff_first_s,
                                   p.backoff_factor,
                                   p.backoff_most_s,
                                   double(p.same_failure),
                                   double(p.unknown),
                                   double(p.bad_loss),
                                   double(p.straggler),
                                   double(p.rollback_margin),
                                   double(p.skip_extra),
                                   double(p.most_rollbacks),
                                   double(p.needed_nodes),
                                   p.wait_nodes_s,
                                   p.save_wait_s,
                                   p.dump_s,
                                   double(p.stop_signal),
                                   double(p.check_nodes),
                                   double(p.dry_run),
                                   double(g.verify)};
      };
      EXPECT_EQ(numbers(o), numbers(defaults)) << table << " " << code;
      ++keys;
    }
  }
  EXPECT_GT(keys, 40);
}

TEST(GuardProcesses, FoundByWhatTheyWereStartedWith) {
  const std::string start = "og-" + std::to_string(::getpid()), token = start + ".7";
  const auto child = start_child({.argv = {"sleep", "60"}, .environment = {{"ORRERY_TEST_TOKEN", token}}});
  ASSERT_TRUE(child);
  // The kernel may not have told its environment yet.
  for (int i = 0; i < 1000 && processes_with("ORRERY_TEST_TOKEN", token).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(processes_with("ORRERY_TEST_TOKEN", token), std::vector<pid_t>{child->pid});
  EXPECT_TRUE(processes_with("ORRERY_TEST_TOKEN", start).empty()) << "of the whole value";
  const std::string stacks = process_stacks({child->pid}, 5);
  EXPECT_NE(stacks.find("sleep 60"), std::string::npos) << stacks;
  EXPECT_NE(stacks.find("thread "), std::string::npos) << stacks;
  EXPECT_TRUE(stop_session(*child, 0));
  EXPECT_TRUE(processes_with("ORRERY_TEST_TOKEN", token).empty());
}

TEST(GuardKeeper, AVoidAttemptIsNeverStarted) {
  const TempDir dir;
  const AttemptFiles files(dir.path.string(), 3);
  AttemptSpec spec;
  spec.number = 3;
  spec.token = "og1-3";
  spec.argv = {"touch", dir / "ran"};
  spec.out = dir / "out";
  spec.err = dir / "err";
  ASSERT_TRUE(write_spec(files, spec));
  EXPECT_EQ(read_spec(files)->argv, spec.argv);
  EXPECT_TRUE(*void_attempt(files));
  EXPECT_TRUE(*void_attempt(files)) << "again";
  EXPECT_NE(run_keeper(dir.path.string(), 3), 0);
  EXPECT_FALSE(fs::exists(dir.path / "ran"));
}

TEST(GuardKeeper, WritesDownHowItEnded) {
  const TempDir dir;
  const auto keep = [&](int number, std::vector<std::string> argv) {
    const AttemptFiles files(dir.path.string(), number);
    AttemptSpec spec;
    spec.number = number;
    spec.token = "og1-" + std::to_string(number);
    spec.argv = std::move(argv);
    spec.out = dir / ("out" + std::to_string(number));
    spec.err = dir / ("err" + std::to_string(number));
    EXPECT_TRUE(write_spec(files, spec));
    const pid_t keeper = ::fork();
    if (keeper == 0) ::_exit(run_keeper(dir.path.string(), number));
    int status = 0;
    ::waitpid(keeper, &status, 0);
    return read_exit(files);
  };
  const auto well = keep(1, {"sh", "-c", "echo said; exit 3"});
  ASSERT_TRUE(well);
  EXPECT_EQ(well->status, 3);
  const auto killed = keep(2, {"sh", "-c", "kill -9 $$"});
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->signal, 9);
  EXPECT_FALSE(killed->out_of_memory) << "the kernel had no part in it";
  const AttemptFiles hungry(dir.path.string(), 4);
  write_text(hungry.exit, "signal 9 out-of-memory\n");
  EXPECT_TRUE(read_exit(hungry)->out_of_memory);
  EXPECT_EQ(read_exit(hungry)->signal, 9);
  const auto none = keep(3, {"/nonexistent/program"});
  ASSERT_TRUE(none);
  EXPECT_NE(none->failed.find("/nonexistent/program"), std::string::npos) << none->failed;
  EXPECT_TRUE(read_job(AttemptFiles(dir.path.string(), 1))->this_boot);
  EXPECT_FALSE(*void_attempt(AttemptFiles(dir.path.string(), 1))) << "it has run";
}

}  // namespace
}  // namespace orrery
