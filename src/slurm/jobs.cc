#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/text_match.h"
#include "slurm/command.h"
#include "slurm/rows.h"
#include "slurm/slurm.h"

namespace orrery::slurm {
namespace {

using Clock = std::chrono::steady_clock;

std::string text_of(JobId id) { return std::to_string(static_cast<std::int64_t>(id)); }

std::string text_of(const std::vector<JobId>& ids) {
  std::string list;
  for (const JobId id : ids) list += (list.empty() ? "" : ",") + text_of(id);
  return list;
}

// "Invalid job id specified": nothing of that number is known, which is an answer.
bool is_unknown_job(const Captured& said) { return has(said.errors, "Invalid job id"); }

Result<std::vector<Job>> from_squeue(const std::vector<std::string>& which, const Terms& terms) {
  std::vector<std::string> argv = {"squeue", "-h", "-t", "all", "-o", kJobFormat};
  argv.insert(argv.end(), which.begin(), which.end());
  const auto said = ask(argv, terms);
  if (!said) return tl::unexpected(said.error());
  if (is_unknown_job(*said)) return std::vector<Job>();
  if (!said->exit.good()) return tl::unexpected(refused(argv, *said));
  return read_squeue(said->output);
}

// Accounts lag: a job that has just ended may be missing or still run there; they are asked again for `settle_s` where
// `expect_rows`. Without accounts: no rows.
Result<std::vector<Job>> from_sacct(const std::vector<std::string>& which, bool expect_rows, const Terms& terms) {
  std::vector<std::string> argv = {"sacct", "-n", "-P", "-X", "-D", "-o", kAccountFormat};
  argv.insert(argv.end(), which.begin(), which.end());
  const auto end = Clock::now() + std::chrono::duration<double>(terms.settle_s);
  for (;;) {
    const auto said = ask(argv, terms);
    if (!said) return tl::unexpected(said.error());
    if (has_any(said->errors, {"accounting storage is disabled", "Slurm accounting storage"}))
      return std::vector<Job>();
    if (!said->exit.good()) return tl::unexpected(refused(argv, *said));
    auto rows = read_sacct(said->output);
    const bool settled =
        !rows.empty() && std::all_of(rows.begin(), rows.end(), [](const Job& j) { return is_over(j.state); });
    if (!expect_rows || settled || Clock::now() > end) return rows;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
}

}  // namespace

Result<Job> job(JobId id, const Terms& terms) {
  auto known = jobs({id}, terms);
  if (!known) return tl::unexpected(known.error());
  Job& j = known->front();
  if (j.state != State::unknown && j.restarts >= 0) return j;  // as accounts have it
  const std::vector<std::string> argv = {"scontrol", "show", "job", text_of(id)};
  const auto said = ask(argv, terms);
  if (!said) return tl::unexpected(said.error());
  if (said->exit.good()) {
    read_job_details(said->output, j);
  } else if (!is_unknown_job(*said)) {
    return tl::unexpected(refused(argv, *said));
  }
  return j;
}

Result<std::vector<Job>> jobs(const std::vector<JobId>& ids, const Terms& terms) {
  std::vector<Job> all;
  if (ids.empty()) return all;
  for (const JobId id : ids) all.emplace_back().id = id;
  const auto fill = [&](const std::vector<Job>& rows) {
    for (Job& j : all)
      for (const Job& row : rows)
        if (row.id == j.id && j.state == State::unknown) j = row;
  };
  auto rows = from_squeue({"-j", text_of(ids)}, terms);
  if (!rows) return tl::unexpected(rows.error());
  fill(*rows);
  std::vector<JobId> forgotten;
  for (const Job& j : all)
    if (j.state == State::unknown) forgotten.push_back(j.id);
  if (forgotten.empty()) return all;
  rows = from_sacct({"-j", text_of(forgotten)}, true, terms);
  if (!rows) return tl::unexpected(rows.error());
  fill(*rows);
  return all;
}

Result<std::vector<Job>> jobs_named(const std::string& name, const Terms& terms) {
  const std::string user = std::to_string(::geteuid());
  const auto other = [&](const Job& j) { return j.name != name; };
  auto all = from_squeue({"-u", user, "--name=" + name}, terms);
  if (!all) return all;
  std::erase_if(*all, other);
  // Accounts are slower, and asking them again and again is a load on all users.
  if (all->empty()) all = from_sacct({"-u", user, "--name=" + name, "-S", "now-30days"}, false, terms);
  if (!all) return all;
  std::erase_if(*all, other);
  std::sort(all->begin(), all->end(), [](const Job& a, const Job& b) { return a.id < b.id; });
  return all;
}

Result<std::vector<Step>> steps(JobId id, const Terms& terms) {
  const std::vector<std::string> argv = {"squeue", "-h", "-s", "-o", kStepFormat, "-j", text_of(id)};
  const auto said = ask(argv, terms);
  if (!said) return tl::unexpected(said.error());
  if (is_unknown_job(*said)) return std::vector<Step>();
  if (!said->exit.good()) return tl::unexpected(refused(argv, *said));
  return read_steps(said->output);
}

Status cancel(JobId id, const Terms& terms) {
  const std::vector<std::string> argv = {"scancel", text_of(id)};
  const auto said = ask(argv, terms);
  if (!said) return tl::unexpected(said.error());
  if (said->exit.good() || has_any(said->errors, {"Invalid job id", "already completing", "already completed"}))
    return {};
  return tl::unexpected(refused(argv, *said));
}

Status signal_job(JobId id, const std::string& signal, bool script_alone, const Terms& terms) {
  return tell({"scancel", "--signal=" + signal, script_alone ? "--batch" : "--full", text_of(id)}, terms);
}

Status requeue(JobId id, const Terms& terms) { return tell({"scontrol", "requeue", text_of(id)}, terms); }

Status update_job(JobId id, const std::vector<std::pair<std::string, std::string>>& settings, const Terms& terms) {
  std::vector<std::string> argv = {"scontrol", "update", "jobid=" + text_of(id)};
  for (const auto& [key, value] : settings) argv.push_back(fmt::format("{}={}", key, value));
  return tell(argv, terms);
}

}  // namespace orrery::slurm
