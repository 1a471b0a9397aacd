#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/number_text.h"
#include "base/text_match.h"
#include "slurm/command.h"
#include "slurm/host_list.h"
#include "slurm/slurm.h"

namespace orrery::slurm {
namespace {

using Clock = std::chrono::steady_clock;

Status write_script(const std::string& path, const std::string& text) {
  const auto trouble = [&](const char* what) {
    return fail(fmt::format("{}: {}", what, std::strerror(errno)), path, "a directory that this user may write");
  };
  // Anew, so that neither another's file nor its rights are taken over.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return trouble("cannot be replaced");
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0700);
  if (fd < 0) return trouble("cannot be written");
  bool ok = ::fchmod(fd, 0700) == 0;
  for (std::size_t at = 0; ok && at < text.size();) {
    const ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n > 0) at += static_cast<std::size_t>(n);
    ok = n > 0 || errno == EINTR;
  }
  const int error = errno;
  ok = ::close(fd) == 0 && ok;
  if (ok) return {};
  errno = error;
  return trouble("cannot be written");
}

Status check(const Batch& batch) {
  if (batch.argv.empty()) return fail("no program to run", batch.token, "name one");
  const bool plain = is_host_name(batch.token) && batch.token.find(':') == std::string::npos;
  if (!plain) return fail("not a token: " + batch.token, "job name", "letters, digits, and . - _");
  for (const std::string& option : batch.options)
    if (option.size() < 2 || option.front() != '-')
      return fail("not an option of sbatch in one word: " + option, "sbatch", "as in --nodes=4");
  for (const std::string& word : batch.argv)
    if (word.find('\0') != std::string::npos) return fail("an argument with a zero byte", batch.argv.front());
  return {};
}

}  // namespace

// Within '...' sh reads all bytes as they are, save ' itself. sbatch refuses scripts with a carriage return before a
// newline: those are made when it runs. #SBATCH lines after the first command are no directives.
std::string script_of(const std::vector<std::string>& argv) {
  std::string text = "#!/bin/sh\nexec";
  for (const std::string& word : argv) {
    text += " '";
    for (const char c : word) {
      if (c == '\'') {
        text += "'\\''";
      } else if (c == '\r') {
        text += "'\"$(printf '\\r')\"'";
      } else {
        text += c;
      }
    }
    text += '\'';
  }
  return text + "\n";
}

Result<JobId> submit(const Batch& batch, const Terms& terms) {
  if (const Status ok = check(batch); !ok) return tl::unexpected(ok.error());
  if (const Status ok = write_script(batch.script, script_of(batch.argv)); !ok) return tl::unexpected(ok.error());
  std::vector<std::string> argv = {"sbatch", "--parsable", "--job-name=" + batch.token};
  argv.push_back("--output=" + (batch.output.empty() ? "/dev/null" : batch.output));
  if (!batch.directory.empty()) argv.push_back("--chdir=" + batch.directory);
  if (!batch.comment.empty()) argv.push_back("--comment=" + batch.comment);
  argv.insert(argv.end(), batch.options.begin(), batch.options.end());
  argv.push_back(batch.script);
  const auto end = Clock::now() + std::chrono::duration<double>(terms.patience_s);
  for (double pause_s = 0.2;; pause_s = std::min(2 * pause_s, 10.0)) {
    // Before each try: an answer that was lost does not mean that nothing was submitted.
    const auto there = jobs_named(batch.token, terms);
    if (!there) return tl::unexpected(there.error());
    if (!there->empty()) return there->back().id;
    const auto said = ask_once(argv, terms);
    if (!said) return tl::unexpected(said.error());
    if (said->exit.good()) {
      std::int64_t id = 0;
      const std::string_view answer = said->output;
      if (read_int(answer.substr(0, answer.find_first_of(";\n")), id) == NumberState::ok && id > 0) return JobId{id};
      return fail("no id of a job in its answer: " + said->output.substr(0, 80), "sbatch");
    }
    if (!said->timed_out && !is_unreachable(said->errors)) return tl::unexpected(refused(argv, *said));
    if (Clock::now() + std::chrono::duration<double>(pause_s) > end) return tl::unexpected(refused(argv, *said));
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
  }
}

}  // namespace orrery::slurm
