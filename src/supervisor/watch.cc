#include "supervisor/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/median.h"

namespace orrery {
namespace {

constexpr std::size_t kRecent = 64;
constexpr std::size_t kEarly = 32;   // steps that say what is usual for an attempt
constexpr std::int64_t kLooks = 60;  // before a rank is called slow
constexpr double kPauseFactor = 2;   // of the longest pause it came out of
constexpr double kStart_s = 1800;    // to the first step, where nothing else is said
constexpr double kStartFactor = 3;   // of the longest start seen
constexpr double kSaveFactor = 3;    // of the longest save seen

double seconds(Ns d) { return static_cast<double>(d) * 1e-9; }

double median_of(const std::deque<double>& v) { return median(std::vector<double>(v.begin(), v.end())); }

void keep(std::deque<double>& v, double x, std::size_t most) {
  v.push_back(x);
  if (v.size() > most) v.pop_front();
}

}  // namespace

void Watch::begin_attempt(Ns now, std::int64_t skip_from, std::int64_t skip_to, std::int64_t base) {
  Watch fresh(p_);
  fresh.step_s_ = std::move(step_s_);
  fresh.longest_pause_s_ = longest_pause_s_;
  fresh.longest_save_s_ = longest_save_s_;
  fresh.longest_start_s_ = longest_start_s_;
  fresh.steps_known_ = steps_known_;
  fresh.began_ = fresh.last_move_ = now;
  fresh.skip_from_ = skip_from;
  fresh.skip_to_ = skip_to;
  fresh.base_ = base;
  *this = std::move(fresh);
}

void Watch::moved(Ns now) {
  if (steps_seen_ == 0) {
    longest_start_s_ = std::max(longest_start_s_, seconds(now - began_));
  } else {
    const double pause = seconds(now - last_move_);
    if (saving_since_ != 0) {
      longest_save_s_ = std::max(longest_save_s_, pause);
    } else {
      longest_pause_s_ = std::max(longest_pause_s_, pause);
    }
  }
  saving_since_ = 0;
  failed_at_ = 0;  // training went on after whatever its logs told
  last_move_ = std::max(now, last_move_);
  hang_told_ = false;
}

void Watch::step(Ns now, const StepSample& s) {
  const bool further = s.step > last_log_step_ || s.step < 0;
  std::int64_t& before = logged_.try_emplace(s.rank, -1).first->second;
  // Steps that begin anew move, too: another epoch, or ranks that went back to a checkpoint by themselves.
  if (further || s.step != before) moved(now);
  before = s.step;
  if (further) {
    // By the clock where it says nothing itself; several steps may have come since the last look.
    const std::int64_t many = s.step >= 0 && last_log_step_ >= 0 ? s.step - last_log_step_ : 1;
    double each = s.seconds;
    if (each < 0 && last_step_at_ != 0 && now > last_step_at_)
      each = seconds(now - last_step_at_) / static_cast<double>(std::max<std::int64_t>(many, 1));
    last_step_at_ = now;
    steps_seen_ = std::max(steps_seen_, ++log_steps_);
    steps_known_ = true;
    last_log_step_ = std::max(last_log_step_, s.step);
    // Heartbeats may have been heard first: the logs know of the steps before.
    if (s.step >= 0 && (first_step_ < 0 || s.step < first_step_)) first_step_ = s.step;
    last_step_ = std::max(last_step_, s.step);
    const bool left_out = s.step > skip_from_ && s.step <= skip_to_;  // and so quick
    if (each >= 0 && !left_out) took(each);
  }
  if (s.loss) loss(s.rank, s.step, *s.loss);
}

void Watch::took(double each) {
  if (steps_seen_ <= p_.first_steps) return;
  keep(step_s_, each, kRecent);
  if (early_s_.size() < kEarly) early_s_.push_back(each);
  keep(recent_s_, each, static_cast<std::size_t>(p_.straggler_steps));
}

// A step is judged once, by the mean of what its ranks logged; those that are not finite count only where all are.
void Watch::loss(std::int32_t rank, std::int64_t step, double value) {
  if (step > skip_from_ && step <= skip_to_) return;  // its batch was left out: no loss of the model
  // Where lines do not say their step, each rank tells one a step.
  const bool same = loss_step_ == step && (step >= 0 || (rank != -1 && loss_ranks_.count(rank) == 0));
  if (same) {
    losses_ = losses_before_;
  } else {
    losses_before_ = losses_;
    loss_step_ = step;
    loss_ranks_.clear();
    loss_sum_ = 0;
    loss_count_ = 0;
  }
  loss_ranks_.insert(rank);
  if (std::isfinite(value)) {
    loss_sum_ += value;
    ++loss_count_;
  }
  judge(step, loss_count_ > 0 ? loss_sum_ / static_cast<double>(loss_count_) : value);
}

void Watch::judge(std::int64_t step, double value) {
  Losses& l = losses_;
  if (!std::isfinite(value)) {
    if (l.bad_count == 0 || std::isfinite(l.worst)) {
      l.bad_count = 0;
      l.first_bad = step;
    }
    ++l.bad_count;
    l.worst = value;
    return;
  }
  const auto window = static_cast<std::size_t>(p_.spike_window);
  if (l.bad_count > 0 && !std::isfinite(l.worst)) l.bad_count = 0;  // it came back to numbers
  if (l.bad_count == 0 && l.usual.size() >= window) {
    const double usual = median_of(l.usual);
    std::deque<double> off;
    for (const double u : l.usual) off.push_back(std::fabs(u - usual));
    l.spike_limit = usual + std::max({p_.spike_deviations * median_of(off), (p_.spike_factor - 1) * std::fabs(usual),
                                      p_.spike_floor});
    if (value > l.spike_limit) l.first_bad = step;
  }
  if (l.usual.size() >= window && value > l.spike_limit) {
    l.worst = l.bad_count == 0 ? value : std::max(l.worst, value);
    ++l.bad_count;
    return;
  }
  l.bad_count = 0;
  keep(l.usual, value, window);
}

void Watch::beats(Ns now, const std::vector<Beat>& all) {
  bool any_moved = false, alive = false, saves = false;
  std::int64_t furthest = -1, done = -1;
  for (const Beat& b : all) {
    const auto it = beats_.find(b.rank);
    if (it == beats_.end() || it->second.step != b.step || it->second.phase != b.phase) {
      any_moved = true;
    } else {
      alive = alive || it->second.time != b.time;
    }
    saves = saves || b.phase == "save";
    furthest = std::max(furthest, b.step);
    if (b.phase != "start") done = std::max(done, b.step);  // while it loads it does not know yet where it is
    beats_[b.rank] = b;
  }
  steps_known_ = steps_known_ || !all.empty();
  if (any_moved) moved(now);
  // Below its checkpoint it has not loaded it yet; one that goes on from there does without it.
  if (first_step_ < 0 && done >= 0 && done < base_ && (loaded_ < 0 || done <= loaded_)) {
    loaded_ = done;
    done = -1;
  }
  if (any_moved && done > last_step_) {
    steps_seen_ = std::max(steps_seen_, ++beat_steps_);
    // Jobs whose logs tell of no steps.
    if (log_steps_ == 0 && last_step_ >= 0 && last_step_at_ != 0 && now > last_step_at_)
      took(seconds(now - last_step_at_) / static_cast<double>(done - last_step_));
    if (log_steps_ == 0) last_step_at_ = now;
    if (first_step_ < 0) first_step_ = (loaded_ >= 0 && done < base_ ? loaded_ : done) + 1;  // that it is at
    last_step_ = done;
  }
  if (alive) last_output_ = now;
  if (saves && saving_since_ == 0) saving_since_ = now;
  // Who is waited for?
  if (all.size() < 2) return;
  std::size_t waiting = 0;
  std::int32_t late = -1;
  for (const Beat& b : all) {
    if (b.step != furthest) return;
    if (b.phase == "all_reduce") {
      ++waiting;
    } else {
      late = b.rank;
    }
  }
  ++looks_;
  if (waiting + 1 == all.size()) ++waited_[late];
}

void Watch::saving(Ns now) {
  if (saving_since_ == 0) saving_since_ = now;
}

void Watch::failed(Ns now, bool ended) {
  if (failed_at_ == 0 || ended != ended_by_log_) failed_at_ = now;
  ended_by_log_ = ended;
}

void Watch::nodes_lost(Ns now, const std::vector<std::string>& nodes) {
  if (nodes.empty()) {
    lost_since_ = 0;
    lost_told_.clear();
  } else if (lost_since_ == 0) {
    lost_since_ = now;
  }
  lost_ = nodes;
}

double Watch::usual_step_s() const { return step_s_.empty() ? 0 : median_of(step_s_); }
double Watch::silent_s(Ns now) const { return seconds(now - last_move_); }

std::string Watch::node_of(std::int32_t rank) const {
  const auto it = beats_.find(rank);
  return it == beats_.end() ? "" : it->second.node;
}

double Watch::limit_s() const {
  const double start = p_.start_grace_s >= 0 ? p_.start_grace_s : std::max(kStart_s, kStartFactor * longest_start_s_);
  if (steps_seen_ == 0) return std::max(start, p_.hang_floor_s);
  double limit = std::max({p_.hang_floor_s, p_.hang_factor * usual_step_s(), kPauseFactor * longest_pause_s_});
  // One that logs every hundredth step: what is usual is not known yet.
  if (steps_seen_ < p_.first_steps) limit = std::max({limit * p_.first_factor, start, kStartFactor * longest_start_s_});
  if (saving_since_ != 0) limit = std::max({limit, p_.save_grace_s, kSaveFactor * longest_save_s_});
  return limit;
}

std::optional<GuardEvent> Watch::hang(Ns now) const {
  const double silent = silent_s(now);
  const double limit = limit_s();
  GuardEvent e;
  e.kind = EventKind::no_progress;
  e.at = now;
  e.step = last_step_;
  e.seconds = silent;
  // Some of it failed, and what is left of it neither goes on nor ends.
  if (failed_at_ != 0 && ended_by_log_) {
    // While it writes to its logs it may have survived that error.
    const double linger = std::max({p_.linger_s, 3 * usual_step_s(), kPauseFactor * longest_pause_s_});
    const double quiet = last_output_ == 0 ? silent : seconds(now - last_output_);
    if (std::min({silent, quiet, seconds(now - failed_at_)}) >= linger && saving_since_ == 0) {
      e.limit = linger;
      e.text = fmt::format("an error in its logs {:.1f} s ago, no progress since {:.1f} s, and it does not end",
                           seconds(now - failed_at_), silent);
      return e;
    }
  }
  if (silent < limit) return std::nullopt;
  const bool talks = last_output_ != 0 && seconds(now - last_output_) < limit;
  if (talks && silent < p_.chatter_factor * limit) return std::nullopt;
  e.limit = talks ? p_.chatter_factor * limit : limit;
  if (!steps_known_ && p_.start_grace_s < 0) {
    e.first = true;
    e.text = fmt::format(
        "no step was seen in its logs for {:.0f} s, and there are no heartbeats (--heartbeat): it is "
        "left alone",
        silent);
    return e;
  }
  e.text = fmt::format("no rank moved for {:.1f} s (limit {:.1f} s: {}; usual step {:.3f} s)", silent, e.limit,
                       steps_seen_ == 0     ? "no step yet"
                       : saving_since_ != 0 ? "it saves"
                       : talks              ? "it still writes to its logs"
                                            : "steps were seen",
                       usual_step_s());
  return e;
}

std::optional<GuardEvent> Watch::slower() const {
  if (early_s_.size() < kEarly || recent_s_.size() < static_cast<std::size_t>(p_.straggler_steps)) return std::nullopt;
  const double before = median_of(early_s_);
  const double fastest = *std::min_element(recent_s_.begin(), recent_s_.end());
  if (before <= 0 || fastest < p_.slower_factor * before) return std::nullopt;
  GuardEvent e;
  e.kind = EventKind::straggler;
  e.step = last_step_;
  e.text = fmt::format("each of the last {} steps took at least {:.3f} s, usual were {:.3f} s", recent_s_.size(),
                       fastest, before);
  return e;
}

std::optional<GuardEvent> Watch::slow_rank() const {
  if (looks_ < kLooks) return std::nullopt;
  for (const auto& [rank, looks] : waited_) {
    const double share = static_cast<double>(looks) / static_cast<double>(looks_);
    if (share < p_.straggler_share || std::find(slow_told_.begin(), slow_told_.end(), rank) != slow_told_.end())
      continue;
    GuardEvent e;
    e.kind = EventKind::straggler;
    e.rank = rank;
    e.node = node_of(rank);
    e.step = last_step_;
    e.text = fmt::format("rank {}{}: all others waited for it at {} of {} looks", rank,
                         e.node.empty() ? "" : " on " + e.node, looks, looks_);
    return e;
  }
  return std::nullopt;
}

std::optional<GuardEvent> Watch::bad_loss(std::int64_t enough) {
  if (bad_told_ || losses_.bad_count < enough) return std::nullopt;
  bad_told_ = true;
  GuardEvent e;
  e.kind = EventKind::bad_loss;
  e.step = losses_.first_bad;
  e.loss = losses_.worst;
  const std::string since = losses_.first_bad >= 0 ? fmt::format(" since iteration {}", losses_.first_bad) : "";
  e.text = std::isfinite(losses_.worst)
               ? fmt::format("the loss is above {:.4g}{} and does not come down in {} steps (up to {:.4g})",
                             losses_.spike_limit, since, losses_.bad_count, losses_.worst)
               : fmt::format("the loss is not finite{}, {} steps in a row", since, losses_.bad_count);
  return e;
}

std::vector<GuardEvent> Watch::at_end(Ns now) {
  std::vector<GuardEvent> out;
  if (auto e = bad_loss(std::isfinite(losses_.worst) ? p_.spike_steps : 1)) out.push_back(std::move(*e));
  for (GuardEvent& e : out) e.at = now;
  return out;
}

std::vector<GuardEvent> Watch::look(Ns now) {
  std::vector<GuardEvent> out;
  if (auto e = bad_loss(std::isfinite(losses_.worst) ? p_.spike_steps : p_.nan_steps)) out.push_back(std::move(*e));
  if (lost_since_ != 0 && lost_ != lost_told_ && std::min(silent_s(now), seconds(now - lost_since_)) >= p_.lost_s) {
    GuardEvent e;
    e.kind = EventKind::lost;
    e.step = last_step_;
    for (const std::string& n : lost_) {
      e.nodes.push_back({n, "bad", "does not answer"});
      e.text += (e.text.empty() ? "" : ", ") + n;
    }
    e.text +=
        fmt::format(": no answer for {:.1f} s, no progress for {:.1f} s", seconds(now - lost_since_), silent_s(now));
    lost_told_ = lost_;
    out.push_back(std::move(e));
  }
  if (!hang_told_) {
    if (auto e = hang(now)) {
      hang_told_ = true;
      out.push_back(std::move(*e));
    }
  }
  if (!slower_told_) {
    if (auto e = slower()) {
      slower_told_ = true;
      out.push_back(std::move(*e));
    }
  }
  if (auto e = slow_rank()) {
    slow_told_.push_back(e->rank);
    out.push_back(std::move(*e));
  }
  for (GuardEvent& e : out) e.at = now;
  return out;
}

}  // namespace orrery
