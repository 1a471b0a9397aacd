#include <fcntl.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/output.h"
#include "cli/command.h"

namespace orrery {
namespace {

// A closed standard stream must not give its number to the next file that is opened. Nothing can be written to what
// takes its place, so that output into a closed stream is an error as it should be.
void reserve_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    if (::open("/dev/null", O_RDONLY) < 0) return;
  }
}

int report(const Error& error) {
  std::string line = "orrery: " + error.line();
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  (void)write_all(STDERR_FILENO, line + "\n", "standard error");  // nowhere left to complain
  return kUnusable;
}

Result<int> run(const std::vector<std::string>& words) {
  if (words.empty()) return fail("no command", {}, "orrery help lists them");
  const std::string& name = words[0];
  if (name == "--version" || name == "-V") {
    if (auto ok = write_all(STDOUT_FILENO, "orrery " ORRERY_VERSION "\n", "standard output"); !ok) {
      return tl::unexpected(ok.error());
    }
    return kDone;
  }
  if (name == "--help" || name == "-h") return run_help({});
  const Command* command = find_command(name);
  if (!command && name[0] == '-') {
    return fail("unknown option " + name + " before a command", {}, "orrery COMMAND [OPTION...]; see orrery help");
  }
  if (!command)
    return run_help({.positional = {name}, .options = {}}).map_error([](Error e) {
      e.where.clear();
      return e;
    });
  const auto args = parse(*command, {words.begin() + 1, words.end()});
  if (!args) return tl::unexpected(args.error());
  if (args->has("--help")) return run_help({.positional = {name}, .options = {}});
  return command->run(*args);
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  orrery::reserve_standard_streams();
#ifdef __GLIBC__
  // Rows and graphs come and go in pieces of megabytes: keep them, giving pages back and taking them anew costs more.
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit as well
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a write error like any other
  try {
    const auto status = orrery::run({argv + std::min(argc, 1), argv + argc});
    return status ? *status : orrery::report(status.error());
  } catch (const std::bad_alloc&) {
    return orrery::report({"out of memory", {}, "read fewer files at once, or on a larger machine"});
  } catch (const std::exception& e) {
    return orrery::report({std::string("internal error: ") + e.what(), {}, "please report it with the command line"});
  }
}
