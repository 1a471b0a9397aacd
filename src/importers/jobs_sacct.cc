// Slurm: sacct --parsable2 or --parsable, any choice of columns that has resources and times.
#include <fmt/format.h>

#include <algorithm>

#include "base/json_text.h"
#include "base/number_text.h"
#include "importers/jobs_rows.h"

namespace orrery {
namespace {

enum Own { kAlloc = 0, kRequested = 1, kClockLimit = 2, kRawLimit = 3, kClockElapsed = 4 };

bool same_start(std::string_view text, std::string_view lower_case) {
  return text.size() >= lower_case.size() &&
         std::equal(lower_case.begin(), lower_case.end(), text.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b + 32) : b); });
}
bool same(std::string_view text, std::string_view lower_case) {
  return text.size() == lower_case.size() && same_start(text, lower_case);
}
bool cut_prefix(std::string_view& text, std::string_view lower_case) {
  if (!same_start(text, lower_case)) return false;
  text.remove_prefix(lower_case.size());
  return true;
}

// Commas between parentheses ("gpu:4(IDX:0-1,3)") separate nothing.
std::size_t end_of_item(std::string_view list, std::size_t i) {
  for (int depth = 0; i < list.size(); ++i) {
    if (list[i] == '(') ++depth;
    if (list[i] == ')') --depth;
    if (list[i] == ',' && depth <= 0) break;
  }
  return i;
}

// Resources that are known to be no GPUs; with `gres`, those named after "gres/".
bool is_other_resource(std::string_view name, bool gres) {
  for (const std::string_view n : {"gpumem", "gpuutil", "mps", "shard", "nic", "mic", "craynetwork", "bandwidth"})
    if (same(name, n)) return true;
  if (gres) return false;
  for (const std::string_view n : {"cpu", "mem", "energy", "node", "billing", "vmem", "pages"})
    if (same(name, n)) return true;
  for (const std::string_view n : {"fs/", "ic/", "bb/", "license/"})
    if (same_start(name, n)) return true;
  return false;
}

// "4" or "2K": Slurm's K is 1,024.
bool read_quantity(std::string_view text, std::int64_t& n) {
  std::int64_t unit = 1;
  if (text.size() > 1 && (text.back() == 'K' || text.back() == 'k')) {
    unit = 1024;
    text.remove_suffix(1);
  }
  if (read_int(text, n) != NumberState::ok || n < 0 || n > 1'000'000) return false;
  n *= unit;
  return true;
}

struct GpuItem {
  std::int64_t count = 1;
  bool typed = false;
};

// What follows "gpu": "", "=4", ":a100=4", ":4", ":a100", ":a100:4".
bool read_gpu_item(std::string_view rest, GpuItem& out) {
  const std::size_t last = rest.find_last_of("=:");
  if (last == std::string_view::npos) return rest.empty();
  const std::string_view value = rest.substr(last + 1);
  std::string_view type = rest.substr(0, last);
  if (!type.empty()) {
    if (type.front() != ':' || type.size() == 1 || type.find_first_of("=:", 1) != std::string_view::npos) return false;
    out.typed = true;
    return read_quantity(value, out.count);
  }
  if (read_quantity(value, out.count)) return true;
  if (rest[last] == '=' || value.empty()) return false;
  // One of a type: "gpu:a100", "gpu:1g.5gb". What begins with a figure and is no slice is a count not understood.
  out.count = 1;
  out.typed = true;
  return value.front() < '0' || value.front() > '9' || value.find("g.") != std::string_view::npos;
}

// Tasks in an id as "102_[1-5,7%2]": 6; 0 = it names none or not in a way that is known.
std::uint64_t tasks_of(std::string_view id) {
  const std::size_t open = id.find("_[");
  if (open == std::string_view::npos || id.back() != ']') return 0;
  std::string_view list = id.substr(open + 2, id.size() - open - 3);
  list = list.substr(0, list.find('%'));
  std::uint64_t tasks = 0;
  for (std::size_t i = 0; i < list.size();) {
    const std::size_t end = std::min(list.find(',', i), list.size());
    const std::string_view range = list.substr(i, end - i);
    i = end + 1;
    const std::size_t dash = range.find('-'), colon = range.find(':');
    std::int64_t from = 0, to = 0, step = 1;
    if (read_int(range.substr(0, std::min(dash, range.size())), from) != NumberState::ok || from < 0) continue;
    to = from;
    if (dash != std::string_view::npos &&
        read_int(range.substr(dash + 1, colon == std::string_view::npos ? colon : colon - dash - 1), to) !=
            NumberState::ok)
      continue;
    if (colon != std::string_view::npos && (read_int(range.substr(colon + 1), step) != NumberState::ok || step < 1))
      continue;
    if (to >= from && to < 10'000'000) tasks += static_cast<std::uint64_t>((to - from) / step + 1);
  }
  return tasks;
}

// "0", "00:00:00", "0-00:00:00".
bool is_zero(std::string_view span) {
  return span.find_first_not_of("0:-.") == std::string_view::npos && !span.empty();
}

RecordUse sacct_row(const std::vector<std::string_view>& fields, const JobForm& form, JobRecord& r, JobScratch& s) {
  const auto own = [&](Own which) {
    const int c = form.own[which];
    return c < 0 ? std::string_view() : without_blanks(fields[static_cast<std::size_t>(c)]);
  };
  // Steps (123.batch, 123.0) are parts of the job above them.
  if (r[JobField::id].find('.') != std::string_view::npos) {
    if (s.skipped++ == 0) s.first_skipped = quote_for_people(r[JobField::id], 60);
    return RecordUse::skip;
  }
  if (const std::uint64_t tasks = tasks_of(r[JobField::id]); tasks > 1) {
    if (s.array_tasks == 0) s.first_array = quote_for_people(r[JobField::id], 60);
    s.array_tasks += tasks - 1;
  }
  // What was allocated; of a job that still waits, what it asks for.
  const std::string_view tres = !is_missing(own(kAlloc)) ? own(kAlloc) : own(kRequested);
  std::int64_t nodes = 0;
  if (read_int(r[JobField::nodes], nodes) != NumberState::ok) nodes = 0;
  std::string_view other;
  const std::int64_t gpus = gpus_of_tres(tres, nodes, &other);
  if (!other.empty() && s.other_resources++ == 0) s.first_other = quote_for_people(other, 60);
  s.gpus = fmt::format("{}", gpus);
  r[JobField::gpus] = gpus < 0 ? tres : std::string_view(s.gpus);
  if (r[JobField::duration].empty()) r[JobField::duration] = own(kClockElapsed);
  // Elapsed 0 of a job that has not started is no duration.
  if (is_missing(r[JobField::start]) && is_zero(r[JobField::duration]) &&
      (form[JobField::start] >= 0 || (form.own[kAlloc] >= 0 && is_missing(own(kAlloc))) ||
       outcome_of(r[JobField::state]) == Outcome::active))
    r[JobField::duration] = {};
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

std::int64_t gpus_of_tres(std::string_view tres, std::int64_t nodes, std::string_view* other) {
  std::int64_t untyped = -1, typed = 0;
  for (std::size_t i = 0; i < tres.size();) {
    const std::size_t end = end_of_item(tres, i);
    std::string_view item = tres.substr(i, end - i);
    i = end + 1;
    item = item.substr(0, item.find('('));  // "gpu:a100:4(S:0-1)": where they are
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    if (item.empty() || is_missing(item)) continue;
    std::int64_t each = 1;
    if (cut_prefix(item, "per_node:")) {
      if (nodes <= 0) return -1;
      each = nodes;
    } else if (!cut_prefix(item, "per_job:") && same_start(item, "per_")) {
      return -1;  // PER_TASK, PER_SOCKET: how many of those is not told
    }
    const bool gres = cut_prefix(item, "gres/") || cut_prefix(item, "gres:");
    const std::size_t name_end = std::min(item.find_first_of(":="), item.size());
    const std::string_view name = item.substr(0, name_end);
    std::int64_t number = 0;
    if (name.empty()) return -1;
    if (read_int(name, number) == NumberState::ok) {
      // "1=8" are CPUs; from 1001 on each site numbers its resources itself, and old records have hashes ("7696487:4").
      if (name_end < item.size() && item[name_end] == '=' && number > 0 && number <= 1000) continue;
      return -1;
    }
    if (!same(name, "gpu")) {
      if (is_other_resource(name, gres)) continue;
      if (name_end == item.size()) return -1;  // a word that says nothing
      if (other != nullptr && other->empty()) *other = item;
      continue;
    }
    GpuItem found;
    if (!read_gpu_item(item.substr(name_end), found) || found.count > 1'000'000 / each) return -1;
    if (found.typed) {
      typed += found.count * each;
    } else {
      untyped = std::max<std::int64_t>(untyped, 0) + found.count * each;
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
