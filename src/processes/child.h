// Programs that are started, watched and ended: arguments as arrays, never through a shell.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace orrery {

struct ChildTerms {
  std::vector<std::string> argv = {};                                 // argv[0] is looked for on PATH
  std::vector<std::pair<std::string, std::string>> environment = {};  // beside and before this process's own
  std::string directory = {};                                         // "" = this process's own
  // Files, appended to, made with mode 0600; "" = /dev/null; errors "=": where output goes, "&": this process's own.
  std::string output = {}, errors = {};
  bool dies_with_parent = false;  // killed when the thread that started it ends
};

// A process, also one that another process started. Process ids come again, start times do not.
struct Child {
  pid_t pid = 0;              // also its session and process group
  std::uint64_t started = 0;  // clock ticks since boot (/proc/PID/stat, field 22)
};

struct Exit {
  int status = 0;  // where no signal ended it
  int signal = 0;  // 0 = it exited
  // The most memory that it or one that it had waited for ever held, by the kernel's count, which begins with the image
  // of this process that it was forked as; 0 = not known.
  std::int64_t peak_bytes = 0;
  bool good() const { return status == 0 && signal == 0; }
};
std::string describe(Exit exit);  // "exit status 1", "signal 9 (Killed)"

// In a session and process group of its own, with standard input from /dev/null and no descriptor of ours beyond the
// three. Errors: no such program or directory, a file that cannot be opened: told before anything runs.
Result<Child> start_child(const ChildTerms& terms);

// Of a child of this process: its exit once, nothing while it runs. A process of others, or one asked about before: an
// exit with status -1 once it is gone.
std::optional<Exit> poll_child(const Child& child);
std::optional<Exit> wait_child(const Child& child, double timeout_s);  // nothing: still running then

bool is_alive(const Child& child);       // zombies are not
std::uint64_t start_time_of(pid_t pid);  // 0 = no such process
// Of this machine those that began then (Child::started) or later, ascending; zombies are left out.
std::vector<pid_t> live_processes(std::uint64_t since);
std::vector<pid_t> session_members(pid_t session);  // as well
std::vector<pid_t> descendants_of(pid_t ancestor);  // as well; those whose parent died are their new parent's

std::optional<std::int64_t> kernel_oom_kills();  // since boot: processes of this machine, anybody's

void signal_group(const Child& child, int signal);  // every process of its session, if the session is still its own

// SIGTERM, `grace_s` later SIGKILL, until no process of the session lives. False: some were still there `limit_s` after
// the kill (waiting for a disk or a device). Whoever wants the exit polls before: it is taken here.
bool stop_session(const Child& child, double grace_s, double limit_s = 30);

struct Captured {
  Exit exit;
  std::string output, errors;
  bool timed_out = false;  // it was killed with all it had started
  bool cut = false;        // said more than `most_bytes`, which was read and dropped
};
struct CaptureTerms {
  double timeout_s = 30;
  std::string input = {};  // to its standard input
  std::size_t most_bytes = 64u << 20;
  std::vector<std::pair<std::string, std::string>> environment = {};
};
// Errors: it cannot be started. That it failed is in `exit`.
Result<Captured> run_captured(const std::vector<std::string>& argv, const CaptureTerms& terms = {});

// A program that is talked to: pipes to its standard input and from its output, errors among it. The descriptors are
// the caller's to close; `from` does not block.
struct PipedChild {
  Child child;
  int to = -1, from = -1;
};
Result<PipedChild> start_piped(const std::vector<std::string>& argv,
                               const std::vector<std::pair<std::string, std::string>>& environment = {});

}  // namespace orrery
