#include "slurm/command.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/text_match.h"

extern char** environ;

namespace orrery::slurm {
namespace {

using Clock = std::chrono::steady_clock;

// A user's own filters and formats (SQUEUE_STATES, SINFO_FORMAT ...) would hide what is asked for: env takes them away.
std::vector<std::string> without_filters(const std::vector<std::string>& argv) {
  std::vector<std::string> words = {"env"};
  for (char** v = environ; v && *v; ++v) {
    const std::string_view line = *v;
    const std::string_view name = line.substr(0, line.find('='));
    for (const std::string_view family : {"SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_"})
      if (name.substr(0, family.size()) == family) words.insert(words.end(), {"-u", std::string(name)});
  }
  if (words.size() == 1) return argv;
  words.insert(words.end(), argv.begin(), argv.end());
  return words;
}

}  // namespace

bool is_unreachable(std::string_view errors) {
  return has_any(errors,
                 {"Unable to contact slurm controller", "Socket timed out", "Connection refused", "Connection reset",
                  "Connection timed out", "Zero Bytes were transmitted", "Transport endpoint is not connected",
                  "communication failure", "Communication connection", "Protocol authentication error",
                  "Unspecified error", "in standby mode", "Resource temporarily unavailable", "slurmdbd: Unable",
                  "Problem talking to the database", "Message receive failure", "Unexpected message received"});
}

Result<Captured> ask_once(const std::vector<std::string>& argv, const Terms& terms) {
  auto said = run_captured(without_filters(argv), {.timeout_s = terms.timeout_s,
                                                   .environment = {{"SLURM_TIME_FORMAT", "%s"}, {"LC_ALL", "C"}}});
  if (!said)
    return fail(said.error().what, said.error().where, "Slurm's commands must be on PATH where --slurm is given");
  return said;
}

Error refused(const std::vector<std::string>& argv, const Captured& said) {
  std::string_view text = said.errors.empty() ? std::string_view(said.output) : std::string_view(said.errors);
  std::string_view line;
  for (std::size_t i = 0; i < text.size() && line.empty();) {  // the first line that is not empty
    const std::size_t end = std::min(text.find('\n', i), text.size());
    line = text.substr(i, end - i);
    i = end + 1;
  }
  for (const std::string& front : {argv.front() + ": ", std::string("error: "), std::string("fatal: ")})
    if (line.substr(0, front.size()) == front) line.remove_prefix(front.size());
  std::string where = argv.front();
  for (std::size_t i = 1; i < argv.size() && i < 4; ++i) where += " " + argv[i];
  if (said.timed_out) return {"did not end", where, "is slurmctld well? scontrol ping tells"};
  const std::string what = line.empty() ? describe(said.exit) : std::string(line);
  return {what, where, is_unreachable(said.errors) ? "is slurmctld running? scontrol ping tells" : ""};
}

Result<Captured> ask(const std::vector<std::string>& argv, const Terms& terms) {
  const auto end = Clock::now() + std::chrono::duration<double>(terms.patience_s);
  for (double pause_s = 0.2;; pause_s = std::min(2 * pause_s, 10.0)) {
    auto said = ask_once(argv, terms);
    if (!said) return said;
    if (said->exit.good() || (!said->timed_out && !is_unreachable(said->errors))) return said;
    if (Clock::now() + std::chrono::duration<double>(pause_s) > end) return tl::unexpected(refused(argv, *said));
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
  }
}

Status tell(const std::vector<std::string>& argv, const Terms& terms) {
  const auto said = ask(argv, terms);
  if (!said) return tl::unexpected(said.error());
  if (!said->exit.good()) return tl::unexpected(refused(argv, *said));
  return {};
}

}  // namespace orrery::slurm
