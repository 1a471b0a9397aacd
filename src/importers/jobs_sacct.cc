// Slurm: sacct --parsable2 or --parsable, any choice of columns that has resources and times.
#include <fmt/format.h>

#include "base/json_text.h"
#include "base/number_text.h"
#include "importers/jobs_rows.h"

namespace orrery {
namespace {

enum Own { kAlloc = 0, kRequested = 1, kClockLimit = 2, kRawLimit = 3, kClockElapsed = 4 };

RecordUse sacct_row(const std::vector<std::string_view>& fields, const JobForm& form, JobRecord& r, JobScratch& s) {
  const auto own = [&](Own which) {
    const int c = form.own[which];
    return c < 0 ? std::string_view() : fields[static_cast<std::size_t>(c)];
  };
  // Steps (123.batch, 123.0) are parts of the job above them.
  if (r[JobField::id].find('.') != std::string_view::npos) {
    if (s.skipped++ == 0) s.first_skipped = quote_for_people(r[JobField::id], 60);
    return RecordUse::skip;
  }
  std::string_view& state = r[JobField::state];
  if (const auto by = state.find(" by "); by != std::string_view::npos) state = state.substr(0, by);
  // What was allocated; of a job that still waits, what it asks for.
  const std::string_view tres = !own(kAlloc).empty() ? own(kAlloc) : own(kRequested);
  const std::int64_t gpus = gpus_of_tres(tres);
  s.gpus = fmt::format("{}", gpus);
  r[JobField::gpus] = gpus < 0 ? tres : std::string_view(s.gpus);
  if (r[JobField::duration].empty()) r[JobField::duration] = own(kClockElapsed);
  // Elapsed 0 of a job that has not started is no duration.
  if (is_missing(r[JobField::start])) r[JobField::duration] = {};
  std::int64_t limit = 0;
  s.limit.clear();
  if (read_int(own(kRawLimit), limit) == NumberState::ok && limit < 1'000'000'000) {
    s.limit = fmt::format("{}", limit * 60);
  } else if (read_clock(own(kClockLimit), limit)) {
    s.limit = fmt::format("{}", limit / 1000);
  }
  r[JobField::limit] = s.limit;
  return RecordUse::row;
}

}  // namespace

std::int64_t gpus_of_tres(std::string_view tres) {
  std::int64_t untyped = -1, typed = 0;
  for (std::size_t i = 0; i < tres.size();) {
    const std::size_t end = std::min(tres.find(',', i), tres.size());
    std::string_view item = tres.substr(i, end - i);
    i = end + 1;
    item = item.substr(0, item.find('('));  // "gpu:a100:4(S:0-1)": where they are
    if (item.starts_with("gres/")) item.remove_prefix(5);
    if (!item.starts_with("gpu") || (item.size() > 3 && item[3] != ':' && item[3] != '=')) continue;
    const std::size_t last = item.find_last_of("=:");
    std::int64_t n = 1;
    bool has_type = false;
    if (last != std::string_view::npos) {
      has_type = item.substr(0, last).find(':') != std::string_view::npos;
      if (read_int(item.substr(last + 1), n) != NumberState::ok) {
        if (item[last] == '=') return -1;
        n = 1;  // "gpu:a100": one of a type
        has_type = true;
      }
      if (n < 0 || n > 1'000'000) return -1;
    }
    if (has_type) {
      typed += n;
    } else {
      untyped = std::max<std::int64_t>(untyped, 0) + n;
    }
  }
  // "gres/gpu" is the sum of its types where both are there.
  return untyped >= 0 ? untyped : typed;
}

std::optional<JobForm> sacct_form(const JobHeader& h) {
  const int tres = h.find({"alloctres", "reqtres", "allocgres", "reqgres", "tresallocstr", "tresreqstr"});
  if (h.find({"jobid", "jobidraw"}) < 0 || tres < 0) return std::nullopt;
  JobForm form;
  using F = JobField;
  form[F::id] = h.find({"jobid", "jobidraw"});
  form[F::user] = h.find({"user"});
  form[F::group] = h.find({"account"});
  form[F::type] = h.find({"partition"});
  form[F::state] = h.find({"state"});
  form[F::submit] = h.find({"submit"});
  form[F::start] = h.find({"start"});
  form[F::end] = h.find({"end"});
  form[F::duration] = h.find({"elapsedraw"});
  form[F::cpus] = h.find({"alloccpus", "ncpus", "reqcpus"});
  form[F::nodes] = h.find({"nnodes", "allocnodes", "reqnodes"});
  form[F::reason] = h.find({"failurereason"});
  form.own[kAlloc] = h.find({"alloctres", "allocgres", "tresallocstr"});
  form.own[kRequested] = h.find({"reqtres", "reqgres", "tresreqstr"});
  form.own[kClockLimit] = h.find({"timelimit"});
  form.own[kRawLimit] = h.find({"timelimitraw"});
  form.own[kClockElapsed] = h.find({"elapsed"});
  form.adjust = sacct_row;
  return form;
}

}  // namespace orrery
