#include "cluster/job_stats.h"

#include <bit>
#include <cmath>
#include <numeric>

#include "cluster/by_name.h"

namespace orrery {
namespace {

struct Tally {
  std::uint64_t count = 0;
  GpuTime time = 0;
};

struct TypeRow : Tally {
  std::array<std::uint64_t, kDurationSteps + 1> duration_steps{};
  std::array<std::uint64_t, kQueueSteps + 1> queue_steps{};
  std::vector<Tally> states;  // by place among the states
};

std::string shown(const JobTable& jobs, StrId name) {
  const std::string_view v = jobs.names.view(name);
  return std::string(v.empty() ? kNameless : v);
}

std::vector<Share> shares_of(const JobTable& jobs, const ByName<Tally>& tallies, bool by_count) {
  std::vector<Share> out;
  for (std::size_t i = 0; i < tallies.size(); ++i)
    out.push_back({shown(jobs, tallies.name(i)), tallies.at(i).count, tallies.at(i).time});
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
  ByName<TypeRow> types(names);
  ByName<Tally> states(names), users(names), groups(names), all_states(names), all_users(names);
  std::vector<Outcome> outcomes;  // by place in all_states
  std::array<SizeClass, 34> sizes{};
  std::vector<std::int64_t> values;  // the one buffer of all quantiles

  for (std::size_t r = 0; r < rows; ++r) {
    const StrId state = jobs.state[r];
    ++all_states[state].count;
    if (all_states.size() > outcomes.size()) outcomes.push_back(outcome_of(jobs.names.view(state)));
    ++all_users[jobs.user[r]].count;
    const std::int64_t gpus = jobs.gpu_milli[r];
    if (gpus == 0) {
      ++s.cpu_jobs;
      continue;
    }
    ++s.gpu_jobs;
    TypeRow& type = types[jobs.type[r]];
    const std::int64_t duration = duration_of(jobs, r, kind), queue = jobs.queue_ms[r];
    GpuTime time = 0;
    if (duration != kNoTime && duration >= 0) {
      time = static_cast<GpuTime>(duration) * gpus;
      ++type.duration_steps[std::min(step_of(duration), kDurationSteps)];
    } else {
      ++s.without_duration;
    }
    const auto whole = static_cast<std::size_t>((gpus + 999) / 1000);
    SizeClass& size = sizes[gpus < 1000 ? 0 : 1 + static_cast<std::size_t>(std::bit_width(whole - 1))];
    ++size.count;
    size.time += time;
    size.stated += raw(state) != 0;
    size.failed += outcomes[all_states.place(state)] == Outcome::failed;
    if (queue != kNoTime) {
      ++type.queue_steps[std::min(step_of(queue), kQueueSteps)];
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
    add(type);
    add(states[state]);
    add(users[jobs.user[r]]);
    add(groups[jobs.group[r]]);
    const std::uint32_t place = states.place(state);
    if (place >= type.states.size()) type.states.resize(place + 1);
    add(type.states[place]);
    s.gpu_time += time;
  }
  s.states = shares_of(jobs, states, false);
  s.users = shares_of(jobs, users, false);
  s.groups = shares_of(jobs, groups, false);
  s.all_states = shares_of(jobs, all_states, true);
  s.all_users = shares_of(jobs, all_users, true);

  // By type: values side by side, a type after the other; then ALL over the whole.
  std::vector<TypeStats> by_place(types.size());
  std::vector<std::size_t> begin(types.size() + 1);
  TypeStats all;
  all.name = "ALL";
  const auto spread = [&](auto value, double unit, Spread TypeStats::*to) {
    std::fill(begin.begin(), begin.end(), 0);
    for (std::size_t r = 0; r < rows; ++r)
      if (jobs.gpu_milli[r] != 0 && value(r) != kNoTime) ++begin[types.place(jobs.type[r]) + 1];
    for (std::size_t k = 1; k < begin.size(); ++k) begin[k] += begin[k - 1];
    values.resize(begin.back());
    std::vector<std::size_t> next(begin.begin(), begin.end() - 1);
    for (std::size_t r = 0; r < rows; ++r)
      if (jobs.gpu_milli[r] != 0)
        if (const std::int64_t v = value(r); v != kNoTime) values[next[types.place(jobs.type[r])]++] = v;
    for (std::size_t k = 0; k < by_place.size(); ++k)
      by_place[k].*to = spread_of(values.begin() + static_cast<std::ptrdiff_t>(begin[k]),
                                  values.begin() + static_cast<std::ptrdiff_t>(begin[k + 1]), unit);
    all.*to = spread_of(values, unit);
  };
  const auto duration = [&](std::size_t r) { return duration_of(jobs, r, kind); };
  spread(duration, 1000, &TypeStats::duration_s);
  spread([&](std::size_t r) { return jobs.queue_ms[r]; }, 1000, &TypeStats::queue_s);
  spread([&](std::size_t r) { return std::int64_t{jobs.gpu_milli[r]}; }, 1000, &TypeStats::gpus);
  std::vector<std::size_t> order(types.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t k = 0; k < by_place.size(); ++k) {
    TypeStats& t = by_place[k];
    t.name = shown(jobs, types.name(k));
    std::copy_n(types.at(k).duration_steps.begin(), kDurationSteps, t.duration_counts.begin());
    std::copy_n(types.at(k).queue_steps.begin(), kQueueSteps, t.queue_counts.begin());
    accumulate(t.duration_counts);
    accumulate(t.queue_counts);
    for (std::size_t i = 0; i < kDurationSteps; ++i) all.duration_counts[i] += t.duration_counts[i];
    for (std::size_t i = 0; i < kQueueSteps; ++i) all.queue_counts[i] += t.queue_counts[i];
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (types.at(a).time != types.at(b).time) return types.at(a).time > types.at(b).time;
    if (types.at(a).count != types.at(b).count) return types.at(a).count > types.at(b).count;
    return by_place[a].name < by_place[b].name;
  });
  s.by_type.push_back(std::move(all));
  for (const std::size_t k : order) {
    const TypeRow& row = types.at(k);
    s.types.push_back({by_place[k].name, row.count, row.time});
    if (s.by_type.size() > kMostTypes) continue;
    for (std::size_t c = 0; c < row.states.size(); ++c)
      if (row.states[c].count != 0)
        s.type_states.push_back(
            {by_place[k].name, shown(jobs, states.name(c)), row.states[c].count, row.states[c].time});
    s.by_type.push_back(std::move(by_place[k]));
  }
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
