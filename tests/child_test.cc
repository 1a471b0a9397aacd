#include "processes/child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "processes/orphans.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

class ChildTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "orrery-child-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory = name;
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(directory, ignored);
  }
  std::string file(const std::string& name) const { return (directory / name).string(); }
  static std::string bytes_of(const std::string& path) {
    std::ostringstream s;
    s << std::ifstream(path).rdbuf();
    return s.str();
  }
  // The number that a program writes into a file when it has come so far.
  static pid_t number_in(const std::string& path) {
    for (int i = 0; i < 3000; ++i) {
      const std::string text = bytes_of(path);
      if (text.find('\n') != std::string::npos) return static_cast<pid_t>(std::stol(text));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return 0;
  }
  fs::path directory;
};

TEST_F(ChildTest, ArgumentsArePassedAsTheyAre) {
  const auto run = run_captured({"printf", "[%s]", "$(id); `id` 'a\"b", "", "*"});
  ASSERT_TRUE(run.has_value());
  EXPECT_TRUE(run->exit.good());
  EXPECT_EQ(run->output, "[$(id); `id` 'a\"b][][*]");
}

TEST_F(ChildTest, OutputGoesToFilesThatOnlyTheOwnerReads) {
  const auto child = start_child(
      {.argv = {"sh", "-c", "echo out; echo err >&2; exit 7"}, .output = file("out"), .errors = file("err")});
  ASSERT_TRUE(child.has_value());
  const auto exit = wait_child(*child, 30);
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->status, 7);
  EXPECT_EQ(describe(*exit), "exit status 7");
  EXPECT_EQ(bytes_of(file("out")), "out\n");
  EXPECT_EQ(bytes_of(file("err")), "err\n");
  struct stat s {};
  ASSERT_EQ(::stat(file("out").c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777u, 0600u);
}

TEST_F(ChildTest, EnvironmentAndDirectoryAreItsOwn) {
  const auto child = start_child({.argv = {"sh", "-c", "echo $A; pwd; echo ${PATH:+path}"},
                                  .environment = {{"A", "1 2=3"}},
                                  .directory = directory.string(),
                                  .output = file("out"),
                                  .errors = "="});
  ASSERT_TRUE(child.has_value());
  ASSERT_TRUE(wait_child(*child, 30).has_value());
  EXPECT_EQ(bytes_of(file("out")), "1 2=3\n" + fs::canonical(directory).string() + "\npath\n");
}

TEST_F(ChildTest, WhatCannotStartIsToldBeforeAnythingRuns) {
  EXPECT_FALSE(start_child({.argv = {"/no/such/program"}}).has_value());
  EXPECT_FALSE(start_child({.argv = {}}).has_value());
  EXPECT_FALSE(start_child({.argv = {"true"}, .directory = "/no/such/place"}).has_value());
  EXPECT_FALSE(start_child({.argv = {"true"}, .output = "/no/such/place/out"}).has_value());
  const auto run = run_captured({"no-such-program-anywhere"});
  ASSERT_FALSE(run.has_value());
  EXPECT_NE(run.error().line().find("no-such-program-anywhere"), std::string::npos);
}

TEST_F(ChildTest, NoDescriptorOfOursIsInherited) {
  const int open_on_purpose = ::open("/dev/null", O_RDONLY);  // without close-on-exec
  ASSERT_GE(open_on_purpose, 0);
  const auto run = run_captured({"sh", "-c", "ls /proc/$$/fd | wc -l"});
  ::close(open_on_purpose);
  ASSERT_TRUE(run.has_value());
  EXPECT_LE(std::stoi(run->output), 4) << "0, 1, 2 and a shell's own";
}

TEST_F(ChildTest, StoppingASessionEndsWhatTheChildStarted) {
  const auto child =
      start_child({.argv = {"sh", "-c", "(trap '' TERM; echo $$ >" + file("pid") + "; sleep 600) & sleep 600"}});
  ASSERT_TRUE(child.has_value());
  ASSERT_NE(number_in(file("pid")), 0);
  EXPECT_TRUE(is_alive(*child));
  EXPECT_GE(session_members(child->pid).size(), 2u);
  EXPECT_TRUE(stop_session(*child, 0.1));
  EXPECT_TRUE(session_members(child->pid).empty());
  EXPECT_FALSE(is_alive(*child));
}

TEST_F(ChildTest, AStoppedProcessIsEndedToo) {
  const auto child = start_child({.argv = {"sleep", "600"}});
  ASSERT_TRUE(child.has_value());
  ::kill(child->pid, SIGSTOP);
  EXPECT_TRUE(stop_session(*child, 30)) << "SIGTERM suffices once it goes on";
}

TEST_F(ChildTest, AnotherProcessUnderTheSameNumberIsLeftAlone) {
  const auto child = start_child({.argv = {"sleep", "600"}});
  ASSERT_TRUE(child.has_value());
  const Child earlier{child->pid, child->started - 1};
  EXPECT_FALSE(is_alive(earlier));
  EXPECT_TRUE(stop_session(earlier, 0));
  signal_group(earlier, SIGKILL);
  EXPECT_TRUE(is_alive(*child));
  EXPECT_TRUE(stop_session(*child, 5));
}

TEST_F(ChildTest, NeverSignalsTheFirstProcess) {
  EXPECT_TRUE(stop_session({0, 0}, 0));
  EXPECT_TRUE(stop_session({1, start_time_of(1)}, 0));
}

TEST_F(ChildTest, CapturedSignalsAndTimeouts) {
  const auto killed = run_captured({"sh", "-c", "kill -9 $$"});
  ASSERT_TRUE(killed.has_value());
  EXPECT_EQ(killed->exit.signal, SIGKILL);
  const auto late = run_captured({"sh", "-c", "echo first; sleep 600 & echo $! >" + file("pid") + "; sleep 600"},
                                 {.timeout_s = 4, .input = {}});
  ASSERT_TRUE(late.has_value());
  EXPECT_TRUE(late->timed_out);
  EXPECT_FALSE(late->exit.good());
  EXPECT_EQ(late->output, "first\n");
  const pid_t left = number_in(file("pid"));
  EXPECT_FALSE(is_alive({left, start_time_of(left)})) << "what it started is gone too";
}

TEST_F(ChildTest, APipeLeftOpenByABackgroundProcessDoesNotHang) {
  const auto run = run_captured({"sh", "-c", "sleep 600 & echo $! >" + file("pid") + "; echo done"});
  ASSERT_TRUE(run.has_value());
  EXPECT_FALSE(run->timed_out);
  EXPECT_EQ(run->output, "done\n");
  ::kill(number_in(file("pid")), SIGKILL);
}

TEST_F(ChildTest, LargeInputAndOutputFlowAtOnce) {
  const std::string much(3u << 20, 'x');
  const auto all = run_captured({"cat"}, {.input = much});
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->output, much);
  const auto part = run_captured({"cat"}, {.input = much, .most_bytes = 1000});
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->output.size(), 1000u);
  EXPECT_TRUE(part->cut);
  const auto unread = run_captured({"true"}, {.input = much});
  ASSERT_TRUE(unread.has_value()) << "a broken pipe is no end of ours";
  EXPECT_TRUE(unread->exit.good());
}

TEST_F(ChildTest, DiesWithItsParent) {
  const pid_t parent = ::fork();
  if (parent == 0) {
    const auto child = start_child({.argv = {"sleep", "600"}, .output = {}, .errors = {}, .dies_with_parent = true});
    std::ofstream(file("pid")) << (child ? child->pid : 0) << std::endl;
    ::_exit(0);
  }
  const pid_t child = number_in(file("pid"));
  ASSERT_GT(child, 1);
  for (int i = 0; i < 3000 && !session_members(child).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(session_members(child).empty());
  EXPECT_TRUE(wait_child({parent, start_time_of(parent)}, 30).has_value());
}

// In a process of its own, which nobody else has given children.
TEST_F(ChildTest, WhatLeftSessionAndEnvironmentIsFoundAndReaped) {
  const std::string leaves = "env -i setsid sh -c 'echo $$ >" + file("pid") + "; exec sleep 600' & while [ ! -s " +
                             file("pid") + " ]; do sleep 0.01; done; (exit 3) &";
  const pid_t self = ::fork();
  if (self == 0) {
    int wrong = 0;
    {
      Orphans orphans;
      const auto child = start_child({.argv = {"sh", "-c", leaves}});
      if (!child || !wait_child(*child, 60)) ::_exit(100);
      const pid_t left = number_in(file("pid"));
      const std::vector<pid_t> alive = orphans.left();
      if (std::find(alive.begin(), alive.end(), left) == alive.end()) wrong |= 1;
      if (!orphans.end()) wrong |= 2;
      if (!session_members(left).empty()) wrong |= 4;
      if (::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD) wrong |= 8;  // no zombie either
      if (orphans.peak_bytes() <= 0) wrong |= 16;
    }
    int on = 1;
    if (::prctl(PR_GET_CHILD_SUBREAPER, &on) != 0 || on != 0) wrong |= 32;
    // Beside another child it is not known whose an orphan is.
    const auto other = start_child({.argv = {"sleep", "600"}});
    Orphans none;
    if (!other || !none.left().empty() || !none.end() || !is_alive(*other)) wrong |= 64;
    if (other) stop_session(*other, 0);
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(self, &status, 0), self);
  EXPECT_EQ(status, 0);  // nor killed
}

}  // namespace
}  // namespace orrery
