#include "cluster/failures.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "cluster/by_name.h"

namespace orrery {
namespace {

bool is_failure(Outcome o) { return o == Outcome::failed || o == Outcome::node_fail; }
bool loses_work(Outcome o) { return is_failure(o) || o == Outcome::preempted; }

// The moment a job was gone: its end, else its start and what it ran.
std::int64_t gone_at(const JobTable& t, std::size_t r, std::int64_t run) {
  if (t.end_ms[r] != kNoTime) return t.end_ms[r];
  return t.start_ms[r] != kNoTime && run != kNoTime ? t.start_ms[r] + run : kNoTime;
}

// A job is started again when the same user submits a job of the same type and size.
class Restarts {
 public:
  Restarts(const JobTable& t, double within_s)
      : t_(t), within_ms_(static_cast<std::int64_t>(within_s * 1000)), group_(t.size(), kNone) {
    std::unordered_map<std::uint64_t, std::uint32_t> groups;
    begin_.push_back(0);
    for (std::uint32_t r = 0; r < t.size(); ++r) {
      if (t.gpu_milli[r] == 0 || t.submit_ms[r] == kNoTime || t.start_ms[r] == kNoTime) continue;
      std::uint64_t key = (std::uint64_t{raw(t.user[r])} << 32) ^ raw(t.type[r]);
      key = key * 0x9e3779b97f4a7c15ull ^ static_cast<std::uint64_t>(t.gpu_milli[r]);
      const auto [it, made] = groups.emplace(key, static_cast<std::uint32_t>(groups.size()));
      if (made) begin_.push_back(0);
      group_[r] = it->second;
      ++begin_[it->second + 1];
    }
    for (std::size_t g = 1; g < begin_.size(); ++g) begin_[g] += begin_[g - 1];
    rows_.resize(begin_.back());
    std::vector<std::uint32_t> next(begin_.begin(), begin_.end() - 1);
    for (std::uint32_t r = 0; r < t.size(); ++r)
      if (group_[r] != kNone) rows_[next[group_[r]]++] = r;
    const auto earlier = [&](std::uint32_t a, std::uint32_t b) { return t.submit_ms[a] < t.submit_ms[b]; };
    for (std::size_t g = 0; g + 1 < begin_.size(); ++g) {
      const auto from = rows_.begin() + begin_[g], to = rows_.begin() + begin_[g + 1];
      if (!std::is_sorted(from, to, earlier)) std::stable_sort(from, to, earlier);
    }
  }
  // From the failure to the start of the next; kNoTime = none.
  std::int64_t after(std::uint32_t row, std::int64_t gone) const {
    const std::uint32_t g = group_[row];
    if (g == kNone) return kNoTime;
    const auto to = rows_.begin() + begin_[g + 1];
    auto it = std::lower_bound(rows_.begin() + begin_[g], to, gone,
                               [&](std::uint32_t r, std::int64_t at) { return t_.submit_ms[r] < at; });
    if (it != to && *it == row) ++it;
    return it != to && t_.submit_ms[*it] - gone <= within_ms_ ? t_.start_ms[*it] - gone : kNoTime;
  }

 private:
  const JobTable& t_;
  std::int64_t within_ms_;
  std::vector<std::uint32_t> group_, begin_, rows_;  // of a row; where a group's rows begin; by group and submission
};

struct Reason {
  std::vector<std::int64_t> gpus, to_failure, to_restart;
  GpuTime lost = 0;
};

}  // namespace

double gini(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  double sum = 0, weighted = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    sum += v[i];
    weighted += static_cast<double>(i + 1) * v[i];
  }
  const auto n = static_cast<double>(v.size());
  return sum > 0 ? 2 * weighted / (n * sum) - (n + 1) / n : 0;
}

double jain(const std::vector<double>& v) {
  double sum = 0, squares = 0;
  for (const double x : v) {
    sum += x;
    squares += x * x;
  }
  return squares > 0 ? sum * sum / (static_cast<double>(v.size()) * squares) : 1;
}

FailureStats failure_stats(const JobTable& t, const FailureTerms& terms, const Categories& categories) {
  FailureStats s;
  s.cluster = t.cluster;
  const std::size_t names = t.names.size();
  struct State {
    bool looked = false;
    Outcome outcome = Outcome::other;
  };
  struct User {
    std::uint64_t jobs = 0;
    double gpu_hours = 0, slowdown = 0;
  };
  ByName<State> states(names);
  ByName<Reason> reasons(names);
  ByName<ReliabilityRow> types(names);
  ByName<User> users(names);
  std::array<ReliabilityRow, 34> sizes{};
  ReliabilityRow all;
  all.name = "ALL";
  const Restarts restarts(t, terms.restart_within_s);
  std::int64_t first = kNoTime, last = kNoTime;
  for (std::uint32_t r = 0; r < t.size(); ++r) {
    if (t.gpu_milli[r] == 0) continue;
    State& state = states[t.state[r]];
    if (!state.looked) state = {true, outcome_of(t.names.view(t.state[r]))};
    const Outcome o = state.outcome;
    const std::int64_t run = duration_of(t, r, DurationKind::run);
    if (run == kNoTime || run < 0) continue;
    const std::int64_t gone = gone_at(t, r, run), wait = t.queue_ms[r] == kNoTime ? 0 : t.queue_ms[r];
    if (t.start_ms[r] != kNoTime && (first == kNoTime || t.start_ms[r] < first)) first = t.start_ms[r];
    if (gone != kNoTime && (last == kNoTime || gone > last)) last = gone;
    const double gpus = t.gpu_milli[r] / 1000.0, hours = static_cast<double>(run) / 3.6e6;
    const double nodes = t.nodes[r] > 0 ? t.nodes[r] : gpus / terms.gpus_per_node;
    const std::string_view reason = t.names.view(t.reason[r]);
    const auto known = categories.find(reason);
    const bool failure = is_failure(o);
    const bool hardware =
        failure && (o == Outcome::node_fail || (known != categories.end() && known->second == "Infrastructure"));
    double lost = loses_work(o) ? hours : 0;
    if (terms.checkpoint_s > 0) lost = std::min(lost, terms.checkpoint_s / 2 / 3600);
    const double productive = std::max(0.0, hours - lost - terms.restart_s / 3600);
    const auto whole = static_cast<std::uint64_t>((t.gpu_milli[r] + 999) / 1000);
    ReliabilityRow& size = sizes[t.gpu_milli[r] < 1000 ? 0 : 1 + static_cast<std::size_t>(std::bit_width(whole - 1))];
    for (ReliabilityRow* row : {&all, &types[t.type[r]], &size}) {
      ++row->runs;
      row->stated += raw(t.state[r]) != 0;
      row->failures += failure;
      row->infrastructure += hardware;
      row->run_hours += hours;
      row->wait_hours += static_cast<double>(wait) / 3.6e6;
      row->node_hours += nodes * hours;
      row->gpu_hours += gpus * hours;
      row->lost_gpu_hours += gpus * lost;
      row->productive_hours += productive;
    }
    User& user = users[t.user[r]];
    ++user.jobs;
    user.gpu_hours += gpus * hours;
    s.waits |= t.queue_ms[r] != kNoTime;
    user.slowdown +=
        std::max(1.0, static_cast<double>(wait + run) / static_cast<double>(std::max<std::int64_t>(run, 10'000)));
    if (!failure) continue;
    Reason& why = reasons[t.reason[r]];
    why.gpus.push_back(t.gpu_milli[r]);
    why.to_failure.push_back(run);
    why.lost += static_cast<GpuTime>(run) * t.gpu_milli[r];
    if (gone != kNoTime)
      if (const std::int64_t again = restarts.after(r, gone); again != kNoTime) why.to_restart.push_back(again);
  }
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    Reason& why = reasons.at(i);
    ReasonRow row;
    row.reason = t.names.view(reasons.name(i));
    if (const auto it = categories.find(row.reason); it != categories.end()) row.category = it->second;
    row.count = why.gpus.size();
    row.restarts = why.to_restart.size();
    row.gpus = spread_of(why.gpus, 1000);
    row.to_failure_s = spread_of(why.to_failure, 1000);
    row.to_restart_s = spread_of(why.to_restart, 1000);
    row.lost = why.lost;
    s.reasons.push_back(std::move(row));
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    types.at(i).name = t.names.view(types.name(i));
    if (types.at(i).name.empty()) types.at(i).name = "(none)";
    s.types.push_back(types.at(i));
  }
  std::sort(s.reasons.begin(), s.reasons.end(), [](const ReasonRow& a, const ReasonRow& b) {
    return a.lost != b.lost ? a.lost > b.lost : a.reason < b.reason;
  });
  std::sort(s.types.begin(), s.types.end(), [](const ReliabilityRow& a, const ReliabilityRow& b) {
    return a.gpu_hours != b.gpu_hours ? a.gpu_hours > b.gpu_hours : a.name < b.name;
  });
  s.types.insert(s.types.begin(), all);
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k].runs == 0) continue;
    const std::int64_t from = k <= 1 ? static_cast<std::int64_t>(k) : (std::int64_t{1} << (k - 2)) + 1;
    const std::int64_t to = k == 0 ? 0 : std::int64_t{1} << (k - 1);
    sizes[k].name = to == 0      ? "under 1"
                    : from == to ? std::to_string(to)
                                 : std::to_string(from) + "-" + std::to_string(to);
    s.sizes.push_back(sizes[k]);
  }
  s.failures = all.failures;
  s.infrastructure = all.infrastructure;
  if (first != kNoTime && last > first) s.span_h = static_cast<double>(last - first) / 3.6e6;
  std::vector<double> times, slowdowns;
  for (std::size_t i = 0; i < users.size(); ++i) {
    times.push_back(users.at(i).gpu_hours);
    slowdowns.push_back(users.at(i).slowdown / static_cast<double>(users.at(i).jobs));
  }
  s.users = users.size() == 1 && t.names.view(users.name(0)).empty() ? 0 : times.size();
  s.stated = all.stated != 0;
  s.gini_gpu_time = gini(times);
  s.jain_gpu_time = jain(times);
  s.jain_slowdown = jain(slowdowns);
  return s;
}

std::uint64_t join_reasons(JobTable& jobs, const ReasonFile& file, std::vector<bool>* used) {
  std::uint64_t joined = 0;
  std::unordered_map<std::string_view, std::size_t> reason_of;  // place in the file's list
  // Of names of log files every run of letters and digits may be the job's id: "train-1234.out", "slurm_1234_0.log".
  for (std::size_t k = 0; k < file.reason_of.size(); ++k) {
    const std::string& name = file.reason_of[k].first;
    if (!file.by_file) {
      reason_of[name] = k;
      continue;
    }
    const std::string_view text = std::string_view(name).substr(name.find_last_of('/') + 1);
    const auto in_word = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    };
    for (std::size_t i = 0; i < text.size();) {
      std::size_t end = i;
      while (end < text.size() && in_word(text[end])) ++end;
      if (end > i) reason_of.emplace(text.substr(i, end - i), k);
      i = end + 1;
    }
  }
  for (std::size_t r = 0; r < jobs.size(); ++r) {
    if (jobs.id(r).empty()) continue;
    const auto it = reason_of.find(jobs.id(r));
    if (it == reason_of.end()) continue;
    jobs.reason[r] = jobs.names.intern(file.reason_of[it->second].second);
    ++joined;
    if (used != nullptr) (*used)[it->second] = true;
  }
  return joined;
}

}  // namespace orrery
