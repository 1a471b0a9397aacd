#include "serving/instance.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

double d(std::int64_t x) { return static_cast<double>(x); }

// Of a copy between GPU and host, pinned (costs/operators.h).
double swap_ns(const ServeJob& job, std::int64_t blocks) {
  const double bytes = d(blocks * job.engine.block_size) * kv_bytes_per_token(job) / d(job.tp * job.pp);
  return host_copy(bytes, std::max(job.platform.pcie_gb_per_s, 1.0), true).ns;
}

}  // namespace

PrefixPieces pieces_of(const Workload& w, std::int64_t block_size) {
  PrefixPieces p;
  p.first.reserve(w.requests.size() + 1);
  p.first.push_back(0);
  const std::int64_t group = std::max<std::int64_t>(1, (block_size + w.prefix_piece - 1) / w.prefix_piece);
  p.tokens = group * w.prefix_piece / block_size * block_size;
  p.blocks = p.tokens / block_size;
  for (const Request& r : w.requests) {
    // Of a group the last identity stands for all: identities tell what came before them, too.
    for (std::int64_t k = group; k <= r.prefixes; k += group)
      p.ids.push_back(w.prefixes[r.first_prefix + static_cast<std::uint32_t>(k - 1)]);
    p.first.push_back(static_cast<std::uint32_t>(p.ids.size()));
  }
  return p;
}

Instance::Instance(const StepCosts& costs, std::int64_t blocks, const PrefixPieces& prefixes,
                   const ServeOptions& options, std::uint32_t number, bool prefill_only, Simulation& out)
    : costs_(costs),
      job_(costs.job()),
      engine_(job_.engine),
      prefixes_(prefixes),
      options_(options),
      number_(number),
      prefill_only_(prefill_only),
      out_(out),
      cache_(blocks, prefixes.blocks),
      random_(options.seed + number),
      block_size_(engine_.block_size),
      stage_free_(static_cast<std::size_t>(job_.pp), 0.0) {}

void Instance::arrive(std::uint32_t request, double now, bool filled) {
  const RequestRecord& r = out_.requests[request];
  Sequence s;
  s.request = request;
  s.output = prefill_only_ ? 1 : r.output;
  s.target = r.input;
  s.filled = filled;
  s.generated = filled ? 1 : 0;
  s.last_token = filled ? r.first_token : -1;
  waiting_.push_back(s);
  if (next_ == kNever) {
    next_ = std::max(now, stage_free_.front());
    out_.time.idle += next_ - idle_since_;
  }
}

bool Instance::grow(Sequence& s, std::int64_t tokens) {
  const std::int64_t more = blocks_for(tokens) - s.blocks - static_cast<std::int64_t>(s.pieces) * prefixes_.blocks;
  if (more <= 0) return true;
  if (cache_.available() < more) return false;
  cache_.take(more);
  s.blocks += more;
  return true;
}

void Instance::release(Sequence& s) {
  cache_.give(s.blocks);
  s.blocks = 0;
  cache_.drop(prefixes_.of(s.request).first(s.pieces));
  s.pieces = 0;
}

void Instance::preempt(std::size_t place) {
  const Slot slot = running_[place];
  Sequence s = slots_[slot];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(place));
  free_.push_back(slot);
  ++out_.preemptions;
  ++out_.requests[s.request].preemptions;
  if (engine_.preemption == "swap" && s.decodes()) {
    swap_ns_ += swap_ns(job_, s.blocks);
    s.swapped = true;
  } else {
    s.target = out_.requests[s.request].input + s.generated;
    s.computed = 0;
    s.filled = false;
  }
  release(s);
  waiting_.push_front(s);
}

void Instance::add_prefill(Slot slot, std::int64_t tokens, Batch& batch) {
  Sequence& s = slots_[slot];
  StepShape& shape = batch.shape;
  ++shape.prefill_sequences;
  shape.prefill_tokens += tokens;
  const std::int64_t before = s.computed + s.ahead;
  shape.prefill_pairs += attention_pairs(d(tokens), d(before + tokens), true);
  if (before + tokens >= s.target) ++shape.finishing;
  s.ahead += tokens;
  s.in_flight = true;
  batch.parts.push_back({slot, tokens});
}

void Instance::add_decode(Slot slot, Batch& batch) {
  Sequence& s = slots_[slot];
  ++batch.shape.decode_sequences;
  batch.shape.decode_context += d(s.computed);
  s.in_flight = true;
  batch.parts.push_back({slot, 0});
}

// One more token of each running sequence, in the order of admission; those that came last give their blocks up.
void Instance::decode_running(std::int64_t most, Batch& batch) {
  const std::int64_t each = 1 + job_.draft_tokens;
  for (std::size_t k = 0; k < running_.size(); ++k) {
    if (batch.shape.decode_sequences >= most) break;
    const Slot slot = running_[k];
    if (slots_[slot].in_flight || !slots_[slot].decodes()) continue;
    bool there = grow(slots_[slot], slots_[slot].computed + each);
    while (!there) {
      std::size_t last = running_.size();
      while (last > k + 1 && slots_[running_[last - 1]].in_flight) --last;
      if (last == k + 1) break;
      preempt(last - 1);
      there = grow(slots_[slot], slots_[slot].computed + each);
    }
    if (there) {
      add_decode(slot, batch);
    } else {
      blocked_ = Blocked::blocks;
      if (running_.size() == 1) break;  // checked before: one sequence alone fits
      preempt(k--);
    }
  }
}

void Instance::prefill_running(std::int64_t budget, Batch& batch) {
  budget -= batch.shape.decode_sequences + batch.shape.prefill_tokens;
  for (const Slot slot : running_) {
    if (budget <= 0) break;
    Sequence& s = slots_[slot];
    const std::int64_t done = s.computed + s.ahead;
    if (done >= s.target) continue;
    const std::int64_t tokens = std::min(s.target - done, budget);
    if (!grow(s, done + tokens)) {
      blocked_ = Blocked::blocks;
      break;
    }
    add_prefill(slot, tokens, batch);
    budget -= tokens;
  }
}

// Waiting requests, first come first served, while there are places, blocks and tokens left in the step.
void Instance::admit(std::int64_t budget, std::int64_t most, Batch& batch) {
  const bool pieces = engine_.scheduling == "chunked", reserved = engine_.kv_growth == "reserved";
  budget -= batch.shape.decode_sequences * (1 + job_.draft_tokens) + batch.shape.prefill_tokens;
  while (!waiting_.empty()) {
    if (static_cast<std::int64_t>(running_.size()) >= engine_.max_num_seqs) {
      blocked_ = Blocked::places;
      break;
    }
    if (static_cast<std::int64_t>(batch.parts.size()) >= most) break;
    Sequence s = waiting_.front();
    const bool ready = s.filled || s.swapped;  // its keys and values are somewhere already
    const std::span<const std::uint64_t> prefix = prefixes_.of(s.request);
    std::size_t found = 0;
    if (job_.prefix_caching && !ready) {
      found = cache_.match(prefix);
      // The last token is always computed: it tells the next one.
      while (found > 0 && static_cast<std::int64_t>(found) * prefixes_.tokens >= s.target) --found;
    }
    const std::int64_t cached = static_cast<std::int64_t>(found) * prefixes_.tokens;
    const std::int64_t tokens = ready ? 0 : s.target - std::max(s.computed, cached);
    if (!ready && budget <= 0) break;
    if (!pieces && !ready && tokens > budget && batch.shape.prefill_tokens > 0) break;
    cache_.use(prefix.first(found));
    s.pieces = found;
    const std::int64_t now = s.swapped ? s.computed + 1 : s.target + (ready ? 1 : 0);
    const std::int64_t whole = reserved ? out_.requests[s.request].input + s.output : now;
    if (cache_.available() < blocks_for(whole) - static_cast<std::int64_t>(found) * prefixes_.blocks) {
      cache_.drop(prefix.first(found));
      blocked_ = Blocked::blocks;
      break;
    }
    waiting_.pop_front();
    grow(s, whole);
    if (s.swapped) swap_ns_ += swap_ns(job_, s.blocks);
    s.swapped = false;
    s.computed = ready ? std::max(s.computed, s.target) : cached;
    if (!ready) {
      out_.requests[s.request].cached += cached;
      out_.cached_tokens += cached;
    }
    Slot slot = 0;
    if (free_.empty()) {
      slot = static_cast<Slot>(slots_.size());
      slots_.push_back(s);
    } else {
      slot = free_.back();
      free_.pop_back();
      slots_[slot] = s;
    }
    running_.push_back(slot);
    if (ready) {
      if (pieces || batch.shape.prefill_tokens == 0) add_decode(slot, batch);
      continue;
    }
    const std::int64_t chunk = pieces ? std::min(tokens, budget) : tokens;
    add_prefill(slot, chunk, batch);
    budget -= chunk;
  }
}

Instance::Batch Instance::plan() {
  Batch batch;
  blocked_ = Blocked::no;
  // Stages take turns: each batch is a share of the sequences.
  const std::int64_t all = static_cast<std::int64_t>(running_.size() + waiting_.size());
  const std::int64_t most = job_.pp > 1 ? std::max<std::int64_t>(1, (all + job_.pp - 1) / job_.pp) : all;
  const std::int64_t budget = engine_.max_batched_tokens;
  if (engine_.scheduling == "chunked") {
    decode_running(most, batch);
    if (blocked_ == Blocked::no) {
      prefill_running(budget, batch);
      admit(budget, most, batch);
    }
    return batch;
  }
  if (engine_.scheduling == "prefill-first" || running_.empty()) admit(budget, most, batch);
  if (batch.shape.prefill_tokens == 0) decode_running(most, batch);
  return batch;
}

std::int64_t Instance::steps_together(const Batch& batch, double now, double horizon) const {
  if (job_.pp > 1 || job_.draft_tokens > 0 || batch.shape.prefill_tokens > 0 || batch.parts.size() != running_.size() ||
      swap_ns_ > 0)
    return 1;
  if (!waiting_.empty() && blocked_ == Blocked::no && engine_.scheduling != "static") return 1;
  std::int64_t k = options_.most_steps_together;
  for (const Slot slot : running_) k = std::min(k, slots_[slot].output - slots_[slot].generated);
  const auto blocks_of_steps = [&](std::int64_t n) {
    std::int64_t more = 0;
    for (const Slot slot : running_) {
      const Sequence& s = slots_[slot];
      more += std::max<std::int64_t>(
          0, blocks_for(s.computed + n) - s.blocks - static_cast<std::int64_t>(s.pieces) * prefixes_.blocks);
    }
    return more;
  };
  while (k > 1 && blocks_of_steps(k) > cache_.available()) k /= 2;
  // Steps that begin before the next arrival cannot know of it; somebody who waits already comes first anyhow.
  if (waiting_.empty() && k > 1 && horizon < kNever) {
    const double step = time_of(batch.shape, 1).total();
    k = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil((horizon - now) / step)), 1, k);
    while (k > 1 && d(k - 1) * time_of(batch.shape, k - 1).total() >= horizon - now) --k;
  }
  return k;
}

void Instance::account(const Batch& batch, const StepTime& t, double extra) {
  const double n = d(batch.steps), host = t.before_ns + t.after_ns, gpu = t.total() - host;
  ServedTime& time = out_.time;
  const double whole = batch.end - batch.begin;
  // A mixed step is shared by what prompts and tokens would take alone.
  double prefill = batch.shape.prefill_tokens > 0 ? 1 : 0;
  if (prefill > 0 && batch.shape.decode_sequences > 0) {
    StepShape decode = batch.shape;
    decode.prefill_sequences = decode.prefill_tokens = decode.finishing = 0, decode.prefill_pairs = 0;
    prefill = std::clamp(1 - costs_.step(decode).total() / t.total(), 0.0, 1.0);
  }
  time.prefill += n * gpu * prefill;
  time.decode += n * gpu * (1 - prefill);
  time.comm += n * t.comm_ns;
  time.host += n * host;
  time.swap += extra;
  time.gpu += n * gpu;
  time.doubt += n * t.doubt_ns;
  time.flops += n * t.flops;
  if (!waiting_.empty() && blocked_ == Blocked::blocks) time.kv_blocked += whole;
  if (!waiting_.empty() && blocked_ == Blocked::places) time.sequences_blocked += whole;
  out_.steps += batch.steps;
  out_.prefill_tokens += batch.shape.prefill_tokens;
  out_.max_batch = std::max(out_.max_batch, batch.shape.sequences());
}

// Of one of so many steps: it grows evenly in between.
StepTime Instance::time_of(const StepShape& shape, std::int64_t steps) const {
  StepTime t = costs_.step(shape);
  if (steps < 2) return t;
  StepShape last = shape;
  last.decode_context += d((steps - 1) * last.decode_sequences);
  const StepTime at_end = costs_.step(last);
  const auto middle = [](double& a, double b) { a = (a + b) / 2; };
  for (std::size_t k = 0; k < t.stage_ns.size(); ++k) middle(t.stage_ns[k], at_end.stage_ns[k]);
  middle(t.before_ns, at_end.before_ns), middle(t.after_ns, at_end.after_ns);
  middle(t.comm_ns, at_end.comm_ns), middle(t.doubt_ns, at_end.doubt_ns), middle(t.flops, at_end.flops);
  return t;
}

// `step_ns`: what peers make a step last at least.
void Instance::run(Batch batch, double now, double step_ns) {
  batch.begin = now;
  const StepTime t = time_of(batch.shape, batch.steps);
  if (batch.steps > 1)
    for (const Slot slot : running_) grow(slots_[slot], slots_[slot].computed + batch.steps);
  const double extra = swap_ns_;
  swap_ns_ = 0;
  if (job_.pp == 1) {
    const double own = t.total(), waits = std::max(0.0, step_ns - own);
    out_.time.idle += d(batch.steps) * waits;
    batch.end = now + extra + d(batch.steps) * (own + waits);
    stage_free_.front() = batch.end;
  } else {
    double at = now + extra + t.before_ns;
    for (std::size_t k = 0; k < t.stage_ns.size(); ++k) {
      at = std::max(at, stage_free_[k]) + t.stage_ns[k];
      stage_free_[k] = at;
    }
    batch.end = at + t.after_ns;
  }
  for (const Part& p : batch.parts) {
    RequestRecord& r = out_.requests[slots_[p.slot].request];
    if (r.started < 0) r.started = now, r.instance = number_;
  }
  account(batch, t, extra);
  flying_.push_back(std::move(batch));
}

// `tokens` of one sequence in `steps` steps that have just ended.
void Instance::told(Sequence& s, std::int64_t tokens, std::int64_t steps, const Batch& batch) {
  RequestRecord& r = out_.requests[s.request];
  const double step = (batch.end - batch.begin) / d(steps);
  if (s.last_token >= 0) {
    const double first = batch.begin + step - s.last_token;  // since its last token
    out_.itl.add(first, 1);
    if (steps > 1) out_.itl.add(step, d(steps - 1));
    if (steps == 1 && tokens > 1) out_.itl.add(0, d(tokens - 1));  // accepted drafts come together
  } else if (r.first_token < 0) {
    r.first_token = batch.end;
  }
  s.last_token = batch.end;
  s.generated += tokens;
}

void Instance::complete(const Batch& batch, std::vector<Handoff>& handoffs) {
  bool ended = false;
  for (const Part& p : batch.parts) {
    Sequence& s = slots_[p.slot];
    s.ahead -= p.tokens;
    s.in_flight = s.ahead > 0;
    if (p.tokens > 0) {
      s.computed += p.tokens;
      if (!s.decodes()) continue;
      if (job_.prefix_caching) {  // its prompt's pieces can be found from now on
        const std::span<const std::uint64_t> prefix = prefixes_.of(s.request);
        const auto whole =
            std::min(prefix.size(), static_cast<std::size_t>(s.target / std::max<std::int64_t>(1, prefixes_.tokens)));
        if (whole > s.pieces) {
          const auto more = prefix.subspan(s.pieces, whole - s.pieces);
          cache_.keep(more);
          s.blocks -= static_cast<std::int64_t>(more.size()) * prefixes_.blocks;
          s.pieces = whole;
        }
      }
      told(s, 1, 1, batch);
    } else {
      std::int64_t tokens = batch.steps;
      if (job_.draft_tokens > 0) {
        std::int64_t accepted = 0;
        while (accepted < job_.draft_tokens && random_.uniform() < job_.acceptance) ++accepted;
        out_.drafted += job_.draft_tokens;
        out_.accepted += accepted;
        tokens = std::min(1 + accepted, s.output - s.generated);
      }
      told(s, tokens, batch.steps, batch);
      s.computed += tokens;
    }
    ended |= s.generated >= s.output;
  }
  if (!ended) return;
  std::erase_if(running_, [&](Slot slot) {
    Sequence& s = slots_[slot];
    if (s.in_flight || s.generated < s.output) return false;
    RequestRecord& r = out_.requests[s.request];
    release(s);
    free_.push_back(slot);
    if (prefill_only_ && r.output > 1) {
      handoffs.push_back({s.request, batch.end});
    } else {
      r.end = batch.end;
      out_.end = std::max(out_.end, batch.end);
    }
    return true;
  });
}

Instance::Planned Instance::settle_and_plan(double now, double horizon, std::vector<Handoff>& handoffs) {
  while (!flying_.empty() && flying_.front().end <= now) {
    const Batch batch = std::move(flying_.front());
    flying_.pop_front();
    complete(batch, handoffs);
  }
  planned_ = {};
  if (flying_.size() < static_cast<std::size_t>(job_.pp) && stage_free_.front() <= now) planned_ = plan();
  if (planned_.parts.empty()) return {};
  planned_.steps = steps_together(planned_, now, horizon);
  return {planned_.shape, planned_.steps, true};
}

double Instance::duration(const StepShape& shape, std::int64_t steps) const { return time_of(shape, steps).total(); }

void Instance::go(double now, std::int64_t other_tokens, std::int64_t steps, double step_ns) {
  if (!planned_.parts.empty()) {
    planned_.shape.other_tokens = other_tokens;
    planned_.steps = steps;
    run(std::move(planned_), now, step_ns);
    planned_ = {};
  } else if (step_ns > 0 && flying_.empty()) {  // empty steps beside the others'
    stage_free_.front() = now + d(steps) * step_ns;
    out_.time.idle += d(steps) * step_ns;
  }
  const auto most = static_cast<std::size_t>(job_.pp);
  next_ = kNever;
  if (!flying_.empty()) {
    next_ = flying_.front().end;
    // Another batch can enter as soon as the first stage is free.
    if (flying_.size() < most && stage_free_.front() > now) next_ = std::min(next_, stage_free_.front());
  } else if (!waiting_.empty() || !running_.empty()) {
    next_ = std::max(now, stage_free_.front());
  } else {
    idle_since_ = std::max(now, stage_free_.front());
  }
}

void Instance::act(double now, double horizon, std::vector<Handoff>& handoffs) {
  const Planned p = settle_and_plan(now, horizon, handoffs);
  go(now, 0, p.steps, 0);
}

}  // namespace orrery
