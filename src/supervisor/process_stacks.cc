#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>

#include "base/byte_source.h"
#include "processes/find.h"
#include "supervisor/local_runner.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostText = std::size_t{64} << 10;  // of one process

std::string text_of(const std::string& path) {
  std::string text = read_at_most(path, kMostText).value_or("");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// What the kernel says of each thread: its state, where it waits, the system call it is in.
std::string kernel_view(pid_t pid) {
  std::string out;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    const std::string at = task.path().string();
    std::string state;
    std::istringstream status(text_of(at + "/status"));
    for (std::string line; std::getline(status, line);)
      if (line.rfind("State:", 0) == 0) state = line.substr(6);
    out += fmt::format("  thread {} ({}):{} in {}; call {}\n", task.path().filename().string(), text_of(at + "/comm"),
                       state, text_of(at + "/wchan"), text_of(at + "/syscall"));
    std::istringstream frames(text_of(at + "/stack"));  // of the kernel's, for those who may read it
    for (std::string line; std::getline(frames, line);) out += "    " + line + "\n";
  }
  return out;
}

}  // namespace

std::string process_stacks(const std::vector<pid_t>& processes, double timeout_s) {
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  const bool spy = !find_program("py-spy").empty(), gdb = !find_program("gdb").empty();
  std::string out;
  for (const pid_t pid : processes) {
    std::string command = text_of(fmt::format("/proc/{}/cmdline", pid));
    std::replace(command.begin(), command.end(), '\0', ' ');
    out += fmt::format("process {}: {}\n", pid, command.substr(0, 200));
    out += kernel_view(pid);  // first: a debugger stops the threads
    const double left = std::chrono::duration<double>(end - Clock::now()).count();
    if (left < 0.5) continue;
    const bool python = command.find("python") != std::string::npos;
    std::vector<std::string> argv;
    if (spy && python) argv = {"py-spy", "dump", "--nonblocking", "--pid", std::to_string(pid)};
    if (argv.empty() && gdb)
      argv = {"gdb",
              "-p",
              std::to_string(pid),
              "-nx",
              "-batch",
              "-ex",
              "set pagination off",
              "-ex",
              "thread apply all bt 40"};
    if (argv.empty()) continue;
    CaptureTerms terms;
    terms.timeout_s = std::min(left, 10.0);
    terms.most_bytes = kMostText;
    const auto said = run_captured(argv, terms);
    if (!said) continue;
    out += said->output;
    if (said->timed_out) out += "  (" + argv[0] + " took too long)\n";
  }
  return out;
}

}  // namespace orrery
