#include "processes/find.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "base/byte_source.h"
#include "processes/child.h"

namespace orrery {
namespace {

constexpr std::size_t kMostEnvironment = std::size_t{1} << 24;

bool can_be_run(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(const std::string& name, const std::string& directory) {
  if (name.empty()) return "";
  if (name.find('/') != std::string::npos) {
    const std::string path = name.front() == '/' || directory.empty() ? name : directory + "/" + name;
    return can_be_run(path) ? path : "";
  }
  const char* const set = std::getenv("PATH");  // NOLINT: nobody changes it
  const std::string_view folders = set != nullptr ? set : "/bin:/usr/bin";
  for (std::size_t i = 0; i <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', i), folders.size());
    std::string folder(folders.substr(i, end - i));
    if (folder.empty()) folder = ".";  // as exec has it
    if (folder.front() != '/' && !directory.empty()) folder = directory + "/" + folder;
    if (const std::string path = folder + "/" + name; can_be_run(path)) return path;
    i = end + 1;
  }
  return "";
}

std::vector<pid_t> processes_with(const std::string& name, const std::string& value, std::uint64_t since) {
  std::vector<pid_t> found;
  const std::string wanted = std::string(1, '\0') + name + "=" + value + std::string(1, '\0');
  for (const pid_t pid : live_processes(since)) {
    const std::string all = read_at_most(fmt::format("/proc/{}/environ", pid), kMostEnvironment).value_or("");
    if ((std::string(1, '\0') + all + std::string(1, '\0')).find(wanted) != std::string::npos) found.push_back(pid);
  }
  return found;
}

bool kill_processes_with(const std::string& name, const std::string& value, double limit_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  for (;;) {
    std::vector<pid_t> found = processes_with(name, value);
    std::erase(found, ::getpid());
    if (found.empty()) return true;
    for (const pid_t pid : found) ::kill(pid, SIGKILL);
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace orrery
