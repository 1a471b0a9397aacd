#include "serving/simulate.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "serving/instance.h"

namespace orrery {
namespace {

constexpr double kClass = 0.005;  // width of a class, relative
constexpr std::size_t kMostPoints = 4'000;

double d(std::int64_t x) { return static_cast<double>(x); }

// From a GPU that prefilled to one that decodes: over NVLink or PCIe in a server, over the network beyond it.
double handoff_ns(const ServeJob& job, const NetworkModel& net, std::int64_t tokens, double& bytes) {
  bytes = d(tokens) * kv_bytes_per_token(job);
  const bool one_server = job.gpus() <= job.platform.gpus_per_node;
  const double each = bytes / d(job.tp * job.pp);  // every GPU sends its share
  const double ns = transfer_ns(net, Pattern::point_to_point, each, {2, one_server ? 2 : 1});
  return ns > 0 ? ns : each / std::max(job.platform.pcie_gb_per_s, 1.0);
}

struct Arrival {
  double ns;
  std::uint32_t request;
  bool filled;
  bool operator>(const Arrival& o) const { return ns != o.ns ? ns > o.ns : request > o.request; }
};

// Which instance gets the next request.
class Router {
 public:
  Router(Routing how, std::size_t first, std::size_t end) : how_(how), first_(first), end_(end), turn_(first) {}
  std::size_t choose(const std::vector<Instance>& instances) {
    if (how_ == Routing::round_robin) {
      const std::size_t chosen = turn_;
      turn_ = turn_ + 1 < end_ ? turn_ + 1 : first_;
      return chosen;
    }
    std::size_t best = first_;
    for (std::size_t k = first_; k < end_; ++k)
      if (instances[k].load() < instances[best].load()) best = k;
    return best;
  }

 private:
  Routing how_;
  std::size_t first_, end_, turn_;
};

// One step of all replicas that share experts, as long as the slowest of them.
void step_together(std::vector<Instance>& instances, const StepCosts& costs, double now, double horizon,
                   std::vector<Handoff>& handoffs) {
  std::vector<Instance::Planned> plans;
  std::int64_t tokens = 0, steps = 1 << 20;
  for (Instance& i : instances) {
    plans.push_back(i.settle_and_plan(now, horizon, handoffs));
    if (!plans.back().any) continue;
    tokens += costs.tokens_of(plans.back().shape);
    steps = std::min(steps, plans.back().steps);
  }
  if (tokens == 0) steps = 1;
  double slowest = 0;
  for (std::size_t k = 0; k < plans.size(); ++k) {
    if (!plans[k].any) continue;
    StepShape shape = plans[k].shape;
    shape.other_tokens = tokens - costs.tokens_of(shape);
    slowest = std::max(slowest, instances[k].duration(shape, steps));
  }
  for (std::size_t k = 0; k < plans.size(); ++k)
    instances[k].go(now, tokens - costs.tokens_of(plans[k].shape), steps, slowest);
}

class Timeline {
 public:
  explicit Timeline(Simulation& out) : out_(out) {}
  void look(double now, const std::vector<Instance>& instances) {
    std::int64_t used = 0, running = 0, waiting = 0;
    for (const Instance& i : instances) used += i.used_blocks(), running += i.running(), waiting += i.waiting();
    const double share = out_.kv_blocks > 0 ? d(used) / d(out_.kv_blocks) : 0;
    out_.kv_peak = std::max(out_.kv_peak, share);
    if (now < next_) return;
    out_.timeline.push_back({now, running, waiting, share});
    next_ = now + every_;
    if (out_.timeline.size() < kMostPoints) return;
    std::size_t kept = 0;  // every second one
    for (std::size_t k = 0; k < out_.timeline.size(); k += 2) out_.timeline[kept++] = out_.timeline[k];
    out_.timeline.resize(kept);
    every_ = 2 * (out_.timeline.back().ns - out_.timeline.front().ns) / static_cast<double>(kMostPoints);
  }

 private:
  Simulation& out_;
  double next_ = 0, every_ = 0;
};

}  // namespace

void LogHistogram::add(double value, double count) {
  const double x = std::max(value, 1.0);
  const auto at = static_cast<std::size_t>(std::log(x) / std::log1p(kClass));
  if (at >= classes_.size()) classes_.resize(at + 1, 0.0);
  classes_[at] += count;
  count_ += count;
  sum_ += count * value;
  largest_ = std::max(largest_, value);
}

double LogHistogram::quantile(double q) const {
  double before = 0;
  for (std::size_t k = 0; k < classes_.size(); ++k) {
    before += classes_[k];
    if (before >= q * count_ && before > 0)
      return std::min(largest_, std::pow(1 + kClass, static_cast<double>(k) + 0.5));
  }
  return largest_;
}

Simulation simulate(const StepCosts& costs, const ServeMemory& memory, const Workload& workload,
                    const ServeOptions& options) {
  const ServeJob& job = costs.job();
  Simulation out;
  const double request_ns = 1'000 * job.engine.request_us;
  const std::int64_t most_tokens = memory.kv_blocks * job.engine.block_size;
  const PrefixPieces prefixes = pieces_of(workload, job.engine.block_size);
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> handed;
  out.requests.reserve(workload.requests.size());
  std::vector<std::uint32_t> order;
  for (const Request& r : workload.requests) {
    RequestRecord record;
    record.arrival = r.arrival_ns, record.input = r.input, record.output = r.output;
    if (job.max_model_len > 0) {  // an answer ends where the model's context does; one token is told in any case
      record.refused = r.input > job.max_model_len;
      record.output = std::clamp<std::int64_t>(job.max_model_len - r.input, 1, r.output);
      out.cut += record.output < r.output && !record.refused;
    }
    record.refused |= r.input + record.output + job.draft_tokens > most_tokens;
    if (record.refused)
      ++out.refused;
    else
      order.push_back(static_cast<std::uint32_t>(out.requests.size()));
    out.requests.push_back(record);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return out.requests[a].arrival < out.requests[b].arrival; });

  const bool apart = job.prefill_replicas > 0, in_step = job.ep > job.tp;
  std::vector<Instance> instances;
  instances.reserve(static_cast<std::size_t>(job.replicas));
  for (std::int64_t k = 0; k < job.replicas; ++k)
    instances.emplace_back(costs, memory.kv_blocks, prefixes, options, static_cast<std::uint32_t>(k),
                           apart && k < job.prefill_replicas, out);
  out.kv_blocks = memory.kv_blocks * job.replicas;
  const auto all = instances.size(), prefills = apart ? static_cast<std::size_t>(job.prefill_replicas) : all;
  Router first(options.routing, 0, prefills), second(options.routing, apart ? prefills : 0, all);
  const NetworkModel net = network_of(job.platform, job.platform.gpus_per_node);
  std::vector<Handoff> handoffs;
  Timeline timeline(out);

  for (std::size_t at = 0;;) {
    std::size_t who = 0;
    for (std::size_t k = 1; k < all; ++k)
      if (instances[k].next() < instances[who].next()) who = k;
    const double step = instances[who].next();
    const double arrival = at < order.size() ? out.requests[order[at]].arrival + request_ns : kNever;
    const double handoff = handed.empty() ? kNever : handed.top().ns;
    if (arrival == kNever && handoff == kNever && step == kNever) break;
    if (arrival <= step && arrival <= handoff) {
      instances[first.choose(instances)].arrive(order[at++], arrival, false);
      continue;
    }
    if (handoff <= step) {
      const Arrival a = handed.top();
      handed.pop();
      instances[second.choose(instances)].arrive(a.request, a.ns, true);
      continue;
    }
    // Requests that are being prefilled elsewhere may come at any time.
    const bool more_may_come = apart && who >= prefills && (at < order.size() || !handed.empty() || [&] {
                                 for (std::size_t k = 0; k < prefills; ++k)
                                   if (instances[k].next() < kNever) return true;
                                 return false;
                               }());
    const double horizon = more_may_come ? step : std::min(arrival, handoff);
    handoffs.clear();
    if (in_step)
      step_together(instances, costs, step, horizon, handoffs);
    else
      instances[who].act(step, horizon, handoffs);
    for (const Handoff& h : handoffs) {
      double bytes = 0;
      const double ns = handoff_ns(job, net, out.requests[h.request].input, bytes);
      out.transferred_bytes += bytes;
      handed.push({h.ns + ns, h.request, true});
    }
    timeline.look(step, instances);
  }
  for (const RequestRecord& r : out.requests)
    if (!r.refused) out.end = std::max(out.end, r.end);
  const ServedTime& t = out.time;
  out.time.total = t.gpu + t.host + t.swap + t.idle;
  return out;
}

}  // namespace orrery
