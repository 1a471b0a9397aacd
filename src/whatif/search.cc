#include "whatif/search.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "base/parallel.h"
#include "whatif/target.h"

namespace orrery {
namespace {

Result<std::vector<std::int64_t>> numbers(std::string_view text, std::string_view key) {
  std::vector<std::int64_t> out;
  while (true) {
    const std::size_t colon = std::min(text.find(':'), text.size());
    std::int64_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + colon, n);
    if (error != std::errc{} || end != text.data() + colon || n < 1 || n > 10'000'000)
      return fail("not a whole number from 1: " + std::string(text.substr(0, colon)), "--search " + std::string(key));
    if (std::find(out.begin(), out.end(), n) == out.end()) out.push_back(n);  // each is tried once
    if (out.size() > 64) return fail("more than 64 values", "--search " + std::string(key));
    if (colon == text.size()) return out;
    text.remove_prefix(colon + 1);
  }
}

// What differs, as options say it: for the doubts that each of them brings.
std::map<std::string, std::string> differences(const JobShape& a, const JobShape& b) {
  std::map<std::string, std::string> out;
  const auto differ = [&](const char* name, double x, double y) {
    if (x != y) out[name] = std::to_string(static_cast<std::int64_t>(y));
  };
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  differ("--tp", d(a.layout.tp), d(b.layout.tp));
  differ("--pp", d(a.layout.pp), d(b.layout.pp));
  differ("--dp", d(a.layout.dp), d(b.layout.dp));
  differ("--layers", d(a.layout.layers), d(b.layout.layers));
  differ("--num-microbatches", d(a.layout.num_microbatches), d(b.layout.num_microbatches));
  differ("--micro-batch-size", a.dims.mbs, b.dims.mbs);
  differ("--hidden", a.dims.hidden, b.dims.hidden);
  differ("--ffn", a.dims.ffn, b.dims.ffn);
  differ("--heads", a.dims.heads, b.dims.heads);
  differ("--head-dim", a.dims.head_dim, b.dims.head_dim);
  differ("--seq-length", a.dims.seq, b.dims.seq);
  if (schedule_text(a) != schedule_text(b)) out["--schedule"] = schedule_text(b);
  return out;
}

std::vector<JobShape> feasible(const JobModel& job, const JobShape& from, const SearchSpace& space) {
  std::vector<JobShape> out;
  const std::int64_t batch =
      space.global_batch > 0 ? space.global_batch
                             : static_cast<std::int64_t>(from.dims.mbs) * from.layout.num_microbatches * from.layout.dp;
  const std::int64_t max_tp = space.max_tp > 0 ? space.max_tp : from.layout.gpus_per_node;
  std::vector<std::int64_t> sizes = space.micro_batch_sizes;
  if (sizes.empty()) sizes.push_back(static_cast<std::int64_t>(from.dims.mbs));
  std::vector<std::int32_t> chunks = space.chunks;
  if (chunks.empty()) chunks = {1, 2, 4};
  for (std::int64_t tp = 1; tp <= std::min(max_tp, space.gpus); ++tp) {
    if (space.gpus % tp != 0 || (space.tp > 0 && tp != space.tp)) continue;
    for (std::int64_t pp = 1; tp * pp <= space.gpus; ++pp) {
      if (space.gpus % (tp * pp) != 0 || (space.max_pp > 0 && pp > space.max_pp)) continue;
      if (space.pp > 0 && pp != space.pp) continue;
      const std::int64_t dp = space.gpus / (tp * pp);
      if ((space.max_dp > 0 && dp > space.max_dp) || (space.dp > 0 && dp != space.dp)) continue;
      for (const std::int64_t size : sizes) {
        if (batch % (size * dp) != 0) continue;
        for (const std::int32_t chunk : chunks) {
          JobShape shape = from;
          shape.layout.tp = tp, shape.layout.pp = pp, shape.layout.dp = dp;
          shape.layout.world = space.gpus;
          shape.layout.num_microbatches = batch / (size * dp);
          shape.dims.mbs = static_cast<double>(size);
          shape.dims.tp = static_cast<double>(tp);
          shape.dims.dp = static_cast<double>(dp);
          auto scheduled = with_schedule(shape, chunk > 1 ? "interleaved:" + std::to_string(chunk) : "1f1b");
          if (!scheduled) continue;
          shape = std::move(*scheduled);
          shape.dims.vocab = padded_vocabulary(job.base, shape.dims.vocab, shape.dims.tp);
          if (tp == 1) shape.dims.sequence_parallel = false;
          if (check_shape(shape)) out.push_back(std::move(shape));
        }
      }
    }
  }
  return out;
}

// Length of the union of intervals, which are sorted.
Ns covered(std::vector<std::pair<Ns, Ns>>& spans) {
  std::sort(spans.begin(), spans.end());
  Ns sum = 0, to = std::numeric_limits<Ns>::min();
  for (const auto& [begin, end] : spans) {
    sum += std::max<Ns>(0, end - std::max(begin, to));
    to = std::max(to, end);
  }
  return sum;
}

TimeShares shares_of(const ExecGraph& g, const Replay& r, const JobShape& shape) {
  std::vector<std::vector<std::pair<Ns, Ns>>> compute(g.ranks.size()), both(g.ranks.size());
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    const bool transfers = g.kind[n] == NodeKind::comm;
    const bool computes =
        g.kind[n] == NodeKind::kernel || g.kind[n] == NodeKind::memcpy || g.kind[n] == NodeKind::memset;
    if ((!transfers && !computes) || g.duration[n] <= 0) continue;
    if (computes) compute[g.rank[n]].emplace_back(r.end[n] - g.duration[n], r.end[n]);
    both[g.rank[n]].emplace_back(r.end[n] - g.duration[n], r.end[n]);
  }
  double whole = 0, busy = 0, any = 0;
  for (const Step& s : g.steps) whole += static_cast<double>(r.end[raw(s.end_node)] - r.end[raw(s.begin_node)]);
  for (std::size_t k = 0; k < compute.size(); ++k) {
    busy += static_cast<double>(covered(compute[k]));
    any += static_cast<double>(covered(both[k]));
  }
  if (whole <= 0) return {};
  any = std::min(any, whole);  // the last step's kernels may outlast it
  busy = std::min(busy, any);
  const auto stages = static_cast<double>(shape.layout.pp - 1);
  const double empty =
      stages / (stages + static_cast<double>(shape.chunks) * static_cast<double>(shape.layout.num_microbatches));
  TimeShares t;
  t.compute = 100 * busy / whole;
  t.communication = 100 * (any - busy) / whole;
  const double idle = std::max(0.0, 100 - t.compute - t.communication);
  if (shape.schedule != ScheduleKind::zero_bubble) t.bubble = std::min(idle, 100 * empty);
  t.other = idle - t.bubble;
  return t;
}

}  // namespace

double iteration_ms(const ExecGraph& g, const Replay& r) {
  std::map<std::int64_t, Ns> longest;
  for (const Step& s : g.steps) {
    Ns& t = longest[s.number];
    t = std::max(t, r.end[raw(s.end_node)] - r.end[raw(s.begin_node)]);
  }
  double sum = 0;
  for (const auto& [number, t] : longest) sum += static_cast<double>(t) / 1e6;
  return longest.empty() ? 0 : sum / static_cast<double>(longest.size());
}

Result<SearchSpace> parse_search(const std::string& text) {
  SearchSpace space;
  std::vector<std::string_view> seen;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    rest.remove_prefix(std::min(rest.size(), comma + 1));
    const std::size_t at = item.find('=');
    const std::string_view key = item.substr(0, at);
    if (at == std::string_view::npos) return fail("no value: " + std::string(item), "--search", "gpus=64,max-tp=8");
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      return fail("given twice: " + std::string(key), "--search", "give it once");
    seen.push_back(key);
    const auto values = numbers(item.substr(at + 1), key);
    if (!values) return tl::unexpected(values.error());
    const bool list = key == "micro-batch-size" || key == "chunks";
    if (!list && values->size() > 1) return fail("one number, not several: " + std::string(item), "--search");
    if (key == "gpus") {
      space.gpus = values->front();
    } else if (key == "max-tp") {
      space.max_tp = values->front();
    } else if (key == "max-pp") {
      space.max_pp = values->front();
    } else if (key == "max-dp") {
      space.max_dp = values->front();
    } else if (key == "global-batch-size") {
      space.global_batch = values->front();
    } else if (key == "micro-batch-size") {
      space.micro_batch_sizes = *values;
    } else if (key == "chunks") {
      for (const std::int64_t n : *values) space.chunks.push_back(static_cast<std::int32_t>(n));
    } else {
      return fail("not a key: " + std::string(key), "--search",
                  "gpus, max-tp, max-pp, max-dp, global-batch-size, micro-batch-size (1:2:4), chunks (1:2)");
    }
  }
  if (space.gpus < 1) return fail("no number of GPUs", "--search", "gpus=64");
  return space;
}

std::string_view binds(const Candidate& c) {
  constexpr double kMatters = 10;  // % of the step
  if (!c.fits) return "memory";
  const TimeShares& t = c.shares;
  const double most = std::max({t.communication, t.bubble, t.other});
  if (most < kMatters) return "compute";
  return most == t.communication ? "communication" : most == t.bubble ? "bubble" : "host and waiting";
}

Result<SearchResult> search(const TraceSet& traces, const GraphBuild& build, const GraphBuild& edited,
                            const JobModel& job, const JobShape& from, const SearchSpace& space, const CostTable* table,
                            const Overlap& overlap, double whole_ms, unsigned threads,
                            const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  if (from.dims.mbs <= 0)
    return fail("the traces do not tell the micro-batch size", "--search", "--layout micro-batch-size=N");
  std::vector<JobShape> shapes = feasible(job, from, space);
  if (shapes.empty())
    return fail("no layout of " + std::to_string(space.gpus) + " GPUs is feasible", "--search",
                "layers, heads and the batch have to be divisible by it");
  SearchResult result;
  if (std::ssize(shapes) > space.most) {
    result.left_out = shapes.size() - static_cast<std::size_t>(space.most);
    shapes.resize(static_cast<std::size_t>(space.most));
  }
  const unsigned workers = worker_count(threads);
  const RebuildOptions one{.max_replicas = 1, .max_tensor = 1, .names = false, .max_nodes = space.most_nodes / workers};
  const auto time_of = [&](const GraphBuild& pieces, const JobShape& shape, RatesError& error,
                           TimeShares& shares) -> Result<double> {
    auto made = rebuild_as(traces, pieces, job, shape, table, one, error);
    if (!made) return tl::unexpected(made.error());
    Replay r;
    replay_with_contention(made->build.graph, overlap_for(*made, overlap, traces), r);
    shares = shares_of(made->build.graph, r, shape);
    return iteration_ms(made->build.graph, r);
  };
  // one pipeline alone waits for no slower replica: the traced job tells how much that is
  RatesError none;
  TimeShares unused;
  const auto alone = time_of(build, job.base, none, unused);
  if (!alone) return tl::unexpected(alone.error());
  const double whole = *alone > 0 ? whole_ms / *alone : 1;

  result.candidates.resize(shapes.size());
  std::atomic<std::uint64_t> done = 0;
  for_each_row(shapes.size(), workers, [&](std::size_t k, unsigned) {
    Candidate& c = result.candidates[k];
    c.shape = shapes[k];
    RatesError error;
    const auto ms = time_of(edited, c.shape, error, c.shares);
    if (ms) {
      c.iteration_ms = *ms * whole;
      double sum = 0.01 * 0.01;  // one pipeline for all
      for (const AppliedEdit& e :
           describe_shape_edits(job, c.shape, differences(job.base, c.shape), error, Changed{1, 0}))
        sum += std::pow(e.floor.total(), 2);
      c.half_ms = std::max(0.005, std::sqrt(sum)) * c.iteration_ms;
    } else {
      c.why_not = ms.error().what;
    }
    c.memory = with_activations_scaled(memory_of_job(memory_job(job, c.shape)), job.activation_scale);
    c.fits = job.capacity_gib <= 0 || c.memory.total <= job.capacity_gib;
    if (progress) progress(++done, shapes.size());
  });
  std::stable_sort(result.candidates.begin(), result.candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.why_not.empty() != b.why_not.empty()) return a.why_not.empty();
    if (a.fits != b.fits) return a.fits;
    return a.iteration_ms < b.iteration_ms;
  });
  return result;
}

}  // namespace orrery
