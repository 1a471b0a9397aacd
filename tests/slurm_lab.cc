#include "slurm_lab.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "processes/child.h"
#include "slurm/slurm.h"

extern char** environ;

namespace orrery::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

bool on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::string all = (path == nullptr ? "" : path) + std::string(":/usr/sbin:/sbin");
  for (std::size_t i = 0; i <= all.size();) {
    const std::size_t end = std::min(all.find(':', i), all.size());
    if (::access((all.substr(i, end - i) + "/" + program).c_str(), X_OK) == 0) return true;
    i = end + 1;
  }
  return false;
}

}  // namespace

bool SlurmLab::installed() {
  for (const char* program : {"slurmctld", "slurmd", "munged", "sbatch", "srun"})
    if (!on_path(program)) return false;
  return true;
}

SlurmLab* SlurmLab::shared() {
  static const std::unique_ptr<SlurmLab> lab = [] {
    std::unique_ptr<SlurmLab> made;
    if (!installed()) return made;
    made = std::make_unique<SlurmLab>(std::vector<std::string>{"--nodes", std::to_string(kNodes)});
    ::setenv("SLURM_CONF", made->conf().c_str(), 1);
    return made;
  }();
  return lab.get();
}

SlurmLab::SlurmLab(const std::vector<std::string>& options) {
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) {
    trouble_ = "no pipe";
    return;
  }
  std::vector<std::string> words = {SLURM_LAB_BINARY};
  words.insert(words.end(), options.begin(), options.end());
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, in[0], 0);
  ::posix_spawn_file_actions_adddup2(&files, out[1], 1);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);  // a signal to the test's group is not for the lab
  if (::posix_spawn(&pid_, SLURM_LAB_BINARY, &files, &attributes, argv.data(), environ) != 0) pid_ = -1;
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  ::close(in[0]);
  ::close(out[1]);
  to_ = in[1];
  from_ = out[0];
  const std::string said = pid_ < 0 ? "error cannot be started: " SLURM_LAB_BINARY : answer(240);
  if (said.rfind("ready ", 0) == 0) {
    conf_ = said.substr(6);
  } else {
    trouble_ = said.empty() ? "the lab said nothing" : said;
  }
}

SlurmLab::~SlurmLab() {
  if (to_ >= 0) ::close(to_);
  if (pid_ > 0)
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  if (from_ >= 0) ::close(from_);
}

std::string SlurmLab::answer(double timeout_s) {
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  for (;;) {
    if (const std::size_t at = pending_.find('\n'); at != std::string::npos) {
      const std::string line = pending_.substr(0, at);
      pending_.erase(0, at + 1);
      return line;
    }
    pollfd p{from_, POLLIN, 0};
    if (Clock::now() > end) return "";
    if (::poll(&p, 1, 100) <= 0) continue;
    char buffer[512];
    const ssize_t n = ::read(from_, buffer, sizeof buffer);
    if (n <= 0) return "";
    pending_.append(buffer, static_cast<std::size_t>(n));
  }
}

std::string SlurmLab::command(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(to_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) return "the lab has ended";
  const std::string said = answer(120);
  return said == "ok" ? "" : "lab: " + (said.empty() ? "no answer" : said);
}

std::string SlurmLab::reset() {
  (void)command("start controller");  // says so where it runs
  const slurm::Terms terms{.patience_s = 30};
  const auto end = Clock::now() + std::chrono::seconds(90);
  std::string last = "not tried";
  while (Clock::now() < end) {
    const CaptureTerms once{.environment = {{"SLURM_CONF", conf_}}};
    const std::string user = std::to_string(::geteuid());
    (void)run_captured({"scancel", "--quiet", "-u", user}, once);
    const auto left = run_captured({"squeue", "-h", "-o", "%A %T"}, once);
    const auto nodes = slurm::nodes({}, terms);
    if (!left || !nodes || nodes->empty()) return "the controller does not answer";
    last = left->output;
    for (const slurm::Node& n : *nodes) {
      if (n.state == "idle" && n.responding && !n.drained && !n.completing) continue;
      last += n.name + " " + n.state + "\n";
      (void)command("thaw " + n.name);
      (void)command("start " + n.name);
      if (n.drained || n.state == "down")
        (void)run_captured({"scontrol", "update", "nodename=" + n.name, "state=resume"}, once);
    }
    if (last.empty()) return "";
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  return "still there: " + last;
}

void SlurmTest::SetUp() {
  lab_ = SlurmLab::shared();
  if (lab_ == nullptr)
    GTEST_SKIP() << "Slurm is not installed (slurm-wlm and munge): script/setup installs it where the release has it";
  ASSERT_EQ(lab_->trouble(), "");
  ASSERT_EQ(lab_->reset(), "");
}

}  // namespace orrery::test
