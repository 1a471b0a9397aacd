#include "cluster/job_stats.h"

#include <bit>
#include <cmath>
#include <map>

namespace orrery {
namespace {

constexpr std::string_view kNameless = "(none)";

struct Tally {
  std::uint64_t count = 0;
  GpuTime time = 0;
};

std::string shown(const JobTable& jobs, std::size_t name) {
  const std::string_view v = jobs.names.view(StrId{static_cast<std::uint32_t>(name)});
  return std::string(v.empty() ? kNameless : v);
}

std::vector<Share> shares_of(const JobTable& jobs, const std::vector<Tally>& tallies, bool by_count) {
  std::vector<Share> out;
  for (std::size_t i = 0; i < tallies.size(); ++i)
    if (tallies[i].count != 0) out.push_back({shown(jobs, i), tallies[i].count, tallies[i].time});
  std::sort(out.begin(), out.end(), [&](const Share& a, const Share& b) {
    if (!by_count && a.time != b.time) return a.time > b.time;
    if (a.count != b.count) return a.count > b.count;
    return a.name < b.name;
  });
  return out;
}

// The k with value <= 2^k seconds, for the least such k.
std::size_t step_of(std::int64_t ms) {
  const std::int64_t s = ms <= 1000 ? 1 : (ms + 999) / 1000;
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(s - 1)));
}

template <std::size_t N>
void accumulate(std::array<std::uint64_t, N>& counts) {
  for (std::size_t k = 1; k < N; ++k) counts[k] += counts[k - 1];
}

void describe_arrivals(const JobTable& jobs, JobStats& s) {
  std::vector<std::int64_t> at;
  at.reserve(jobs.size());
  for (const std::int64_t t : jobs.submit_ms)
    if (t != kNoTime) at.push_back(t);
  if (at.size() < 2) return;
  if (!std::is_sorted(at.begin(), at.end())) std::sort(at.begin(), at.end());
  const auto second = [](std::int64_t ms) { return ms >= 0 ? ms / 1000 : (ms - 999) / 1000; };
  std::uint64_t same = 0;
  long double squares = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const bool before = i > 0 && second(at[i - 1]) == second(at[i]);
    const bool after = i + 1 < at.size() && second(at[i + 1]) == second(at[i]);
    same += before || after;
    if (i > 0) {
      const auto gap = static_cast<long double>(at[i] - at[i - 1]);
      squares += gap * gap;
    }
  }
  const auto n = static_cast<long double>(at.size() - 1);
  const long double mean = static_cast<long double>(at.back() - at.front()) / n;
  s.same_second_pct = 100.0 * static_cast<double>(same) / static_cast<double>(at.size());
  if (mean > 0) {
    const auto ratio = static_cast<double>(squares / n / mean / mean);
    s.interarrival_cv = std::sqrt(std::max(0.0, ratio - 1));
  }
}

}  // namespace

double gpu_seconds(GpuTime t) { return static_cast<double>(static_cast<long double>(t) / 1e6L); }

JobStats job_stats(const JobTable& jobs, DurationKind kind) {
  JobStats s;
  s.cluster = jobs.cluster;
  s.jobs = jobs.size();
  const std::size_t names = jobs.names.size(), rows = jobs.size();
  std::vector<Tally> types(names), states(names), users(names), groups(names), all_states(names), all_users(names);
  std::vector<std::array<std::uint64_t, kDurationSteps + 1>> duration_steps;
  std::vector<std::array<std::uint64_t, kQueueSteps + 1>> queue_steps;
  std::vector<std::uint32_t> type_rank(names, kNone);  // of type names: dense, in order of appearance
  std::vector<std::uint32_t> type_names, state_rank(names, kNone), state_names;
  std::vector<std::vector<Tally>> crossed;  // [type rank][state rank]
  std::array<SizeClass, 34> sizes{};
  std::vector<std::int64_t> values;  // the one buffer of all quantiles

  const auto rank = [](std::vector<std::uint32_t>& ranks, std::vector<std::uint32_t>& list, std::uint32_t name) {
    std::uint32_t& r = ranks[name];
    if (r == kNone) {
      r = static_cast<std::uint32_t>(list.size());
      list.push_back(name);
    }
    return r;
  };
  std::vector<Outcome> outcome(names, Outcome::other);
  for (std::size_t r = 0; r < rows; ++r) {
    const std::uint32_t state = raw(jobs.state[r]), user = raw(jobs.user[r]);
    if (all_states[state].count++ == 0) outcome[state] = outcome_of(jobs.names.view(jobs.state[r]));
    ++all_users[user].count;
    const std::int64_t gpus = jobs.gpu_milli[r];
    if (gpus == 0) {
      ++s.cpu_jobs;
      continue;
    }
    ++s.gpu_jobs;
    const std::uint32_t type = raw(jobs.type[r]);
    const std::uint32_t t = rank(type_rank, type_names, type), st = rank(state_rank, state_names, state);
    if (t >= crossed.size()) {
      crossed.resize(t + 1);
      duration_steps.resize(t + 1);
      queue_steps.resize(t + 1);
    }
    const std::int64_t duration = duration_of(jobs, r, kind), queue = jobs.queue_ms[r];
    GpuTime time = 0;
    if (duration != kNoTime && duration >= 0) {
      time = static_cast<GpuTime>(duration) * gpus;
      ++duration_steps[t][std::min(step_of(duration), kDurationSteps)];
    } else {
      ++s.without_duration;
    }
    const auto whole = static_cast<std::size_t>((gpus + 999) / 1000);
    SizeClass& size = sizes[gpus < 1000 ? 0 : 1 + static_cast<std::size_t>(std::bit_width(whole - 1))];
    ++size.count;
    size.time += time;
    size.stated += raw(jobs.state[r]) != 0;
    size.failed += outcome[state] == Outcome::failed;
    if (queue != kNoTime) {
      ++queue_steps[t][std::min(step_of(queue), kQueueSteps)];
      ++size.queued;
      size.queue_sum_s += static_cast<double>(queue) / 1000;
      size.over_hour += queue > 3'600'000;
    }
    if (whole >= s.by_gpus.size()) s.by_gpus.resize(whole + 1);
    const auto add = [&](auto& tally) {
      ++tally.count;
      tally.time += time;
    };
    add(s.by_gpus[whole]);
    add(types[type]);
    add(states[state]);
    add(users[user]);
    add(groups[raw(jobs.group[r])]);
    if (st >= crossed[t].size()) crossed[t].resize(st + 1);
    add(crossed[t][st]);
    s.gpu_time += time;
  }
  s.types = shares_of(jobs, types, false);
  s.states = shares_of(jobs, states, false);
  s.users = shares_of(jobs, users, false);
  s.groups = shares_of(jobs, groups, false);
  s.all_states = shares_of(jobs, all_states, true);
  s.all_users = shares_of(jobs, all_users, true);

  // By type: values side by side, a type after the other; then ALL over the whole.
  std::vector<TypeStats> by_rank(type_names.size());
  std::vector<std::size_t> begin(type_names.size() + 1);
  TypeStats all;
  all.name = "ALL";
  const auto spread = [&](auto value, double unit, Spread TypeStats::*to) {
    std::fill(begin.begin(), begin.end(), 0);
    for (std::size_t r = 0; r < rows; ++r)
      if (jobs.gpu_milli[r] != 0 && value(r) != kNoTime) ++begin[type_rank[raw(jobs.type[r])] + 1];
    for (std::size_t k = 1; k < begin.size(); ++k) begin[k] += begin[k - 1];
    values.resize(begin.back());
    std::vector<std::size_t> next(begin.begin(), begin.end() - 1);
    for (std::size_t r = 0; r < rows; ++r)
      if (jobs.gpu_milli[r] != 0)
        if (const std::int64_t v = value(r); v != kNoTime) values[next[type_rank[raw(jobs.type[r])]]++] = v;
    for (std::size_t k = 0; k < by_rank.size(); ++k)
      by_rank[k].*to = spread_of(values.begin() + static_cast<std::ptrdiff_t>(begin[k]),
                                 values.begin() + static_cast<std::ptrdiff_t>(begin[k + 1]), unit);
    all.*to = spread_of(values, unit);
  };
  const auto duration = [&](std::size_t r) { return duration_of(jobs, r, kind); };
  spread(duration, 1000, &TypeStats::duration_s);
  spread([&](std::size_t r) { return jobs.queue_ms[r]; }, 1000, &TypeStats::queue_s);
  spread([&](std::size_t r) { return std::int64_t{jobs.gpu_milli[r]}; }, 1000, &TypeStats::gpus);
  for (std::size_t k = 0; k < by_rank.size(); ++k) {
    TypeStats& t = by_rank[k];
    t.name = shown(jobs, type_names[k]);
    std::copy_n(duration_steps[k].begin(), kDurationSteps, t.duration_counts.begin());
    std::copy_n(queue_steps[k].begin(), kQueueSteps, t.queue_counts.begin());
    accumulate(t.duration_counts);
    accumulate(t.queue_counts);
    for (std::size_t i = 0; i < kDurationSteps; ++i) all.duration_counts[i] += t.duration_counts[i];
    for (std::size_t i = 0; i < kQueueSteps; ++i) all.queue_counts[i] += t.queue_counts[i];
    for (std::size_t c = 0; c < crossed[k].size(); ++c)
      if (crossed[k][c].count != 0)
        s.type_states.push_back({t.name, shown(jobs, state_names[c]), crossed[k][c].count, crossed[k][c].time});
  }
  s.by_type.push_back(std::move(all));
  for (const Share& share : s.types)
    for (TypeStats& t : by_rank)
      if (t.name == share.name) s.by_type.push_back(std::move(t)), t.name.clear();
  std::stable_sort(s.type_states.begin(), s.type_states.end(), [](const TypeState& a, const TypeState& b) {
    return a.type != b.type ? a.type < b.type : a.count > b.count;
  });

  for (std::size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k].count == 0) continue;
    sizes[k].from = k == 0 ? 0 : k == 1 ? 1 : (std::int64_t{1} << (k - 2)) + 1;
    sizes[k].to = k == 0 ? 0 : std::int64_t{1} << (k - 1);
    s.sizes.push_back(sizes[k]);
  }

  // All jobs, and CPU jobs alone.
  const auto over = [&](auto value, auto which, double unit) {
    values.clear();
    for (std::size_t r = 0; r < rows; ++r)
      if (which(r))
        if (const std::int64_t v = value(r); v != kNoTime) values.push_back(v);
    return spread_of(values, unit);
  };
  const auto every = [](std::size_t) { return true; };
  const auto cpu = [&](std::size_t r) { return jobs.gpu_milli[r] == 0; };
  const auto queue = [&](std::size_t r) { return jobs.queue_ms[r]; };
  s.all_duration_s = over(duration, every, 1000);
  s.all_queue_s = over(queue, every, 1000);
  s.all_gpus = over([&](std::size_t r) { return std::int64_t{jobs.gpu_milli[r]}; }, every, 1000);
  s.all_cpus = over([&](std::size_t r) { return std::int64_t{jobs.cpu_milli[r]}; }, every, 1000);
  s.all_nodes = over([&](std::size_t r) { return std::int64_t{jobs.nodes[r]}; }, every, 1);
  s.cpu_duration_s = over(duration, cpu, 1000);
  s.cpu_queue_s = over(queue, cpu, 1000);
  s.gpu_time_s = over(
      [&](std::size_t r) {
        const std::int64_t d = duration(r);
        if (d == kNoTime || d < 0) return kNoTime;
        const GpuTime t = static_cast<GpuTime>(d) * jobs.gpu_milli[r] / 1000;
        return static_cast<std::int64_t>(std::min<GpuTime>(t, std::numeric_limits<std::int64_t>::max()));
      },
      [&](std::size_t r) { return jobs.gpu_milli[r] != 0; }, 1000);
  describe_arrivals(jobs, s);
  std::uint64_t top = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(5, s.all_users.size()); ++i) top += s.all_users[i].count;
  if (s.jobs != 0) s.top5_users_pct = 100.0 * static_cast<double>(top) / static_cast<double>(s.jobs);
  return s;
}

}  // namespace orrery
