#include "cluster/scheduler.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>

namespace orrery {
namespace {

// What is free from a time on, until the next step.
struct Step {
  std::int64_t at = 0, total = 0, other = 0;
};

class Profile {
 public:
  std::vector<Step> steps;

  static bool fits(const Step& s, const SimJob& j) {
    return s.total >= j.gpu_milli && (j.favoured || s.other >= j.gpu_milli);
  }

  // The earliest time from which the job fits for `length`.
  std::int64_t earliest(const SimJob& j, std::int64_t length) const {
    std::size_t from = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (i > from && steps[i].at >= steps[from].at + length) break;
      if (!fits(steps[i], j)) from = i + 1;
    }
    return from < steps.size() ? steps[from].at : kNever;
  }
  bool fits_now(const SimJob& j, std::int64_t length) const {
    for (const Step& s : steps) {
      if (s.at >= steps[0].at + length) return true;
      if (!fits(s, j)) return false;
    }
    return true;
  }
  void take(const SimJob& j, std::int64_t at, std::int64_t length) {
    const std::size_t begin = cut(at), end = cut(at + length);
    for (std::size_t i = begin; i < end; ++i) {
      steps[i].total -= j.gpu_milli;
      if (!j.favoured) steps[i].other -= j.gpu_milli;
      steps[i].other = std::min(steps[i].other, steps[i].total);
    }
  }

  // Forgets what lies before `now`.
  void advance(std::int64_t now) {
    const auto after =
        std::upper_bound(steps.begin(), steps.end(), now, [](std::int64_t t, const Step& s) { return t < s.at; });
    steps.erase(steps.begin(), after - 1);
    steps.front().at = now;
  }

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

 private:
  // The index of the step that begins at `at`.
  std::size_t cut(std::int64_t at) {
    const auto after =
        std::lower_bound(steps.begin(), steps.end(), at, [](const Step& s, std::int64_t t) { return s.at < t; });
    const auto i = static_cast<std::size_t>(after - steps.begin());
    if (after != steps.end() && after->at == at) return i;
    Step s = steps[i - 1];
    s.at = at;
    steps.insert(after, s);
    return i;
  }
};

struct Running {
  std::int64_t end_ms = 0;  // when it will really end
  std::int64_t expected_ms = 0, start_ms = 0;
  bool on = false;
};

class Engine {
 public:
  Engine(const std::vector<SimJob>& jobs, const SimPolicy& policy) : jobs_(jobs), p_(policy) {
    const std::size_t n = jobs.size();
    r_.first_start_ms.assign(n, SimResult::kNever);
    r_.end_ms.assign(n, SimResult::kNever);
    r_.stops.assign(n, 0);
    left_.resize(n);
    running_.resize(n);
    order_.resize(n);
    place_.resize(n);
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return jobs[a].submit_ms < jobs[b].submit_ms; });
    for (std::uint32_t i = 0; i < n; ++i) place_[order_[i]] = i;
  }

  SimResult run(const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    std::size_t next = 0;
    bool first = true;
    while (next < order_.size() || !ends_.empty()) {
      std::int64_t now = Profile::kNever;
      if (next < order_.size()) now = jobs_[order_[next]].submit_ms;
      if (!ends_.empty()) now = std::min(now, ends_.begin()->first);
      while (!ends_.empty() && ends_.begin()->first <= now) finish(ends_.begin()->second);
      for (; next < order_.size() && jobs_[order_[next]].submit_ms <= now; ++next) {
        const std::uint32_t j = order_[next];
        if (first) r_.first_ms = r_.last_ms = now;
        first = false;
        if (jobs_[j].gpu_milli > most(jobs_[j])) {
          ++r_.too_large;
          continue;
        }
        left_[j] = jobs_[j].run_ms;
        queue(jobs_[j]).insert(next);
      }
      r_.longest_queue = std::max(r_.longest_queue, queues_[0].size() + queues_[1].size());
      if (!queues_[0].empty() || !queues_[1].empty()) can_keep_plan() ? pass_on(now) : pass(now);
      if ((++r_.passes & 0xfff) == 0 && progress) progress(next, order_.size());
    }
    return std::move(r_);
  }

 private:
  using Queue = std::set<std::size_t>;  // places in order_

  bool two_classes() const { return p_.reserved_milli > 0; }
  std::int64_t shared() const { return p_.gpu_milli - p_.reserved_milli; }
  // The most GPUs that a job may ever have.
  std::int64_t most(const SimJob& j) const {
    return j.favoured || !two_classes() || p_.preempt ? p_.gpu_milli : shared();
  }
  Queue& queue(const SimJob& j) { return queues_[j.favoured && two_classes() ? 0 : 1]; }
  std::int64_t expected_length(std::uint32_t j) const {
    const std::int64_t done = jobs_[j].run_ms - left_[j];
    return jobs_[j].limit_ms > 0 ? std::max<std::int64_t>(1, jobs_[j].limit_ms - done)
                                 : std::max<std::int64_t>(1, left_[j]);
  }

  Step free_now(std::int64_t now) const {
    Step s{now, p_.gpu_milli - used_, 0};
    s.other = p_.preempt || !two_classes() ? s.total : std::min(s.total, shared() - used_other_);
    return s;
  }

  void start(std::uint32_t j, std::int64_t now) {
    const SimJob& job = jobs_[j];
    if (r_.first_start_ms[j] == SimResult::kNever) r_.first_start_ms[j] = now;
    Running& run = running_[j];
    run = {now + left_[j], now + expected_length(j), now, true};
    used_ += job.gpu_milli;
    if (!job.favoured) {
      used_other_ += job.gpu_milli;
      started_.insert({now, j});
    } else {
      used_favoured_ += job.gpu_milli;
    }
    ends_.insert({run.end_ms, j});
    expected_.insert({run.expected_ms, j});
    queue(job).erase(place_[j]);
  }

  void leave(std::uint32_t j) {
    Running& run = running_[j];
    ends_.erase({run.end_ms, j});
    expected_.erase({run.expected_ms, j});
    used_ -= jobs_[j].gpu_milli;
    if (!jobs_[j].favoured) {
      used_other_ -= jobs_[j].gpu_milli;
      started_.erase({run.start_ms, j});
    } else {
      used_favoured_ -= jobs_[j].gpu_milli;
    }
    run.on = false;
  }

  void finish(std::uint32_t j) {
    if (running_[j].end_ms != running_[j].expected_ms) kept_ = false;
    r_.end_ms[j] = running_[j].end_ms;
    r_.last_ms = std::max(r_.last_ms, r_.end_ms[j]);
    r_.work_ms += static_cast<double>(jobs_[j].gpu_milli) / 1000 * static_cast<double>(jobs_[j].run_ms);
    leave(j);
  }

  // Stops `j` for another: it waits again at its old place.
  void stop(std::uint32_t j, std::int64_t now) {
    const std::int64_t worked = now - running_[j].start_ms;
    leave(j);
    const std::int64_t done = jobs_[j].run_ms - left_[j] + worked;
    const std::int64_t kept = p_.checkpoint_ms > 0 ? done / p_.checkpoint_ms * p_.checkpoint_ms : 0;
    r_.lost_ms += static_cast<double>(jobs_[j].gpu_milli) / 1000 * static_cast<double>(done - kept);
    left_[j] = jobs_[j].run_ms - kept;
    ++r_.stops[j];
    ++r_.preemptions;
    queue(jobs_[j]).insert(place_[j]);
  }

  // Whether a favoured job may have GPUs of its reservation that others hold; takes them then.
  bool reclaim(const SimJob& job, std::int64_t now) {
    if (!p_.preempt || !job.favoured || used_favoured_ + job.gpu_milli > p_.reserved_milli) return false;
    while (p_.gpu_milli - used_ < job.gpu_milli) stop(started_.rbegin()->second, now);
    return true;
  }

  // Reservations of everyone in one class stay what they are as long as all jobs end when they are expected to: made
  // anew in the same order each would find its place again. Then only who came since needs one.
  bool can_keep_plan() const { return p_.order == SimPolicy::Order::conservative && !two_classes(); }

  // The pass of that case, from the plan of the last one.
  void pass_on(std::int64_t now) {
    Queue& q = queues_[1];
    // Who runs longer than expected may end at any time.
    if (!expected_.empty() && expected_.begin()->first <= now) kept_ = false;
    std::size_t looked = 0;
    if (kept_) {
      plan_.advance(now);
      looked = due_.size();
      while (!due_.empty() && due_.begin()->first <= now) {
        start(due_.begin()->second, now);
        due_.erase(due_.begin());
      }
    } else {
      for (auto it = q.begin(); it != q.end() && looked < p_.depth; ++looked) {
        const std::uint32_t j = order_[*it];
        if (!Profile::fits(free_now(now), jobs_[j])) break;
        ++it;  // start() takes it out
        start(j, now);
      }
      due_.clear();
      unplanned_ = 0;
      if (looked >= p_.depth || q.empty()) return;
      plan(now, plan_);
      kept_ = true;
    }
    for (auto it = q.lower_bound(unplanned_); it != q.end() && looked < p_.depth; ++looked) {
      unplanned_ = *it + 1;
      const std::uint32_t j = order_[*it];
      ++it;
      const std::int64_t length = expected_length(j), at = plan_.earliest(jobs_[j], length);
      plan_.take(jobs_[j], at, length);
      if (at == now)
        start(j, now);
      else
        due_.insert({at, j});
    }
  }

  void pass(std::int64_t now) {
    Profile profile;
    std::vector<std::uint32_t> reserved;
    bool built = false;
    const auto reserve = [&](std::uint32_t j) {
      const std::int64_t at = profile.earliest(jobs_[j], expected_length(j));
      if (at != Profile::kNever) profile.take(jobs_[j], at, expected_length(j));
    };
    for (int c = 0; c < 2; ++c) {
      Queue& q = queues_[c];
      bool blocked = false;
      std::size_t looked = 0;
      for (auto it = q.begin(); it != q.end() && looked < p_.depth; ++looked) {
        const std::uint32_t j = order_[*it];
        const SimJob& job = jobs_[j];
        ++it;  // start() takes it out
        if (!blocked && !built && (Profile::fits(free_now(now), job) || reclaim(job, now))) {
          start(j, now);
          continue;
        }
        if (built && reclaim(job, now)) {  // others were stopped: the plan is void
          start(j, now);
          plan(now, profile);
          for (const std::uint32_t waiting : reserved) reserve(waiting);
          continue;
        }
        if (p_.order == SimPolicy::Order::fifo) break;
        if (p_.gpu_milli == used_ && blocked && p_.order == SimPolicy::Order::easy) break;  // nothing is free
        if (!built) plan(now, profile);
        built = true;
        const std::int64_t length = expected_length(j);
        if (profile.fits_now(job, length)) {
          profile.take(job, now, length);
          start(j, now);
          continue;
        }
        // A reservation: of the first alone, or of everyone.
        if (!blocked || p_.order == SimPolicy::Order::conservative) {
          reserve(j);
          reserved.push_back(j);
        }
        blocked = true;
      }
    }
  }

  // What is free from now on, as the running jobs are expected to end.
  void plan(std::int64_t now, Profile& profile) const {
    profile.steps.clear();
    Step s = free_now(now);
    profile.steps.push_back(s);
    std::int64_t used_other = used_other_;
    for (const auto& [expected, j] : expected_) {
      // Who runs longer than expected may end at any time.
      const std::int64_t at = std::max(expected, now + 1);
      s.at = at;
      s.total += jobs_[j].gpu_milli;
      if (!jobs_[j].favoured) used_other -= jobs_[j].gpu_milli;
      s.other = p_.preempt || !two_classes() ? s.total : std::min(s.total, shared() - used_other);
      if (profile.steps.back().at == at)
        profile.steps.back() = s;
      else
        profile.steps.push_back(s);
    }
  }

  const std::vector<SimJob>& jobs_;
  const SimPolicy& p_;
  SimResult r_;
  std::vector<std::uint32_t> order_;  // by submission
  std::vector<std::uint32_t> place_;  // of a job in order_
  std::vector<std::int64_t> left_;    // of its run
  std::vector<Running> running_;
  std::array<Queue, 2> queues_;
  using Moments = std::set<std::pair<std::int64_t, std::uint32_t>>;
  Moments ends_, expected_, started_;  // of running jobs; started_: others only
  std::int64_t used_ = 0, used_other_ = 0, used_favoured_ = 0;
  // Of pass_on(): what is free, who has a reservation, and the first place in order_ that none was made for.
  Profile plan_;
  bool kept_ = false;
  Moments due_;
  std::size_t unplanned_ = 0;
};

}  // namespace

SimResult simulate(const std::vector<SimJob>& jobs, const SimPolicy& policy,
                   const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  return Engine(jobs, policy).run(progress);
}

}  // namespace orrery
