// --layers: a deeper or shallower model.
//
// In a forward or backward pass the layers of a stage are the longest stretch of launches that repeats itself. The
// stretch is found in one pass (the shortest period that covers most of it, at least twice), then in all others by the
// same period. Each layer is a slice; the new number of layers takes its slices evenly from the old ones, so that what
// comes every few layers (a gradient bucket) keeps its share. What is not in the stretch (embedding, head, loss,
// optimizer) stays, but for the kernels of the optimizer and collectives of whole parameter sets, which grow with the
// parameters: as the gradients that are reduced do where the trace shows them layer by layer, else as the layers.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <unordered_map>

#include "whatif/layout.h"
#include "whatif/optimizer.h"
#include "whatif/resequence.h"

namespace orrery {
namespace {

struct Launch {
  Ns at;               // begin of the call
  std::uint32_t lane;  // thread
  std::uint32_t name;  // of the kernel
  Ns duration;         // of the kernel
};

struct Run {
  std::size_t first = 0, layers = 0;  // of a pass: row of its first layer's first launch, and how many
  std::size_t length = 0;             // launches of the stretch
};

// The longest stretch of names[from, to) with this period, at least `least` of it; layers = 0 when there is none.
Run longest(const std::vector<Launch>& l, std::size_t from, std::size_t to, std::size_t period, std::size_t least) {
  Run best;
  std::size_t best_length = 0, start = from;
  for (std::size_t i = from; i + period <= to; ++i) {
    const bool same = i + period < to && l[i].name == l[i + period].name;
    if (same) continue;
    const std::size_t length = i - start + period;  // of the periodic stretch that ends here
    if (i > start && length > best_length) best_length = length, best = {start, length / period, length};
    start = i + 1;
  }
  return best.layers >= 2 && best_length >= least ? best : Run{};
}

// A stretch may take in kernels of the embedding or head that have the names of a layer's. Where in it the layers begin
// is told by durations: layers are alike, the head's products are not.
std::size_t shift_in(const std::vector<Launch>& l, const Run& run, std::size_t period) {
  const std::size_t slack = run.length - run.layers * period;
  std::vector<double> cost;
  for (std::size_t s = 0; s <= slack; ++s) {
    double sum = 0;
    for (std::size_t i = run.first + s; i + period < run.first + s + run.layers * period; ++i)
      sum += std::abs(static_cast<double>(l[i].duration - l[i + period].duration));
    cost.push_back(sum);
  }
  const double least = *std::min_element(cost.begin(), cost.end());
  if (least > 0.7 * cost.front()) return 0;
  std::size_t s = 0;
  while (cost[s] > 1.1 * least) ++s;
  return s;
}

std::size_t find_period(const std::vector<Launch>& l, std::size_t from, std::size_t to) {
  std::size_t best = 0, best_length = 0;
  const std::size_t n = to - from;
  // a pass of tens of thousands of launches is looked at for short periods only: each takes a walk over all of it
  const std::size_t longest_period = std::min(n / 2, 40'000'000 / std::max<std::size_t>(1, n));
  for (std::size_t period = 4; period <= longest_period; ++period) {
    const Run run = longest(l, from, to, period, n / 3);
    const std::size_t length = run.layers * period;
    if (run.layers >= 2 && length > best_length + best_length / 20) best_length = length, best = period;
  }
  return best;
}

}  // namespace

Result<std::int64_t> count_layers(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout,
                                  LayerRuns& out) {
  const ExecGraph& g = build.graph;
  const Communication& c = build.communication;
  std::vector<std::uint8_t> skip(g.size(), 0);  // not part of a layer: gradients, exchanges between stages
  for (const CommRow& row : c.rows) {
    const GroupRole role = row.parts != 0       ? GroupRole::pipeline
                           : row.group == kNone ? GroupRole::other
                                                : layout.role[row.group];
    if (role != GroupRole::tensor) skip[row.node] = skip[row.last] = role == GroupRole::pipeline ? 2 : 1;
  }
  std::unordered_map<std::string_view, std::uint32_t> names;
  std::vector<std::vector<Launch>> launches(g.ranks.size());
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.lane[n] == kNone || g.kind[n] == NodeKind::host || g.kind[n] == NodeKind::stall || skip[n] == 1) continue;
    if (g.kind[n] != NodeKind::kernel && g.kind[n] != NodeKind::comm) continue;
    for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
      if (g.pred_kind[e] != EdgeKind::launch) continue;
      const std::uint32_t call = raw(g.pred[e]);
      const RankTrace& t = traces.ranks[g.ranks[g.rank[n]].trace];
      const std::uint32_t name =
          names.try_emplace(t.name_of(g.source[n]), static_cast<std::uint32_t>(names.size())).first->second;
      const Ns at = g.observed_start[call] + g.duration[call];
      // an exchange between stages ends a pass
      launches[g.rank[n]].push_back({at, skip[n] == 2 ? kNone : g.lane[call], name, g.duration[n]});
      break;
    }
  }
  std::int64_t total = 0;
  std::map<std::int64_t, std::int64_t> by_stage;  // rank row of the first rank with that structure
  out.cuts.assign(g.ranks.size(), {});
  out.places.assign(g.ranks.size(), {});
  for (std::uint32_t r = 0; r < g.ranks.size(); ++r) {
    auto& l = launches[r];
    std::sort(l.begin(), l.end(), [](const Launch& a, const Launch& b) { return a.at < b.at; });
    // passes: launches of one thread without another thread's in between, and without a pause for a stage's exchange
    std::vector<std::pair<std::size_t, std::size_t>> passes;
    for (std::size_t i = 0; i < l.size();) {
      std::size_t j = i + 1;
      while (j < l.size() && l[j].lane == l[i].lane) ++j;
      if (j - i >= 8 && l[i].lane != kNone) passes.emplace_back(i, j);
      i = j;
    }
    // one period for each thread, from the pass in the middle that has one
    std::map<std::uint32_t, std::pair<std::size_t, std::size_t>> period;  // thread -> period, layers
    struct Model {
      std::size_t from = 0, to = 0;  // the pass
      std::size_t shift = 0;         // of the layers in the stretch
      Run run;
    };
    std::map<std::uint32_t, Model> model;  // thread -> the pass that told its period
    for (std::size_t k = 0; k < passes.size(); ++k) {
      const auto& [from, to] = passes[(k + passes.size() / 2) % passes.size()];
      if (period.contains(l[from].lane)) continue;
      const std::size_t p = find_period(l, from, to);
      if (p == 0) continue;
      Run run = longest(l, from, to, p, 0);
      const std::size_t shift = shift_in(l, run, p);
      run.first += shift;
      period[l[from].lane] = {p, run.layers};
      model[l[from].lane] = {from, to, shift, run};
    }
    if (period.size() < 2)
      return fail("the layers cannot be told: no stretch of launches repeats itself on rank " +
                  std::to_string(g.ranks[r].rank));
    std::vector<std::size_t> counts;
    for (const auto& [lane, p] : period) counts.push_back(p.second);
    if (counts.front() != counts.back())
      return fail("the layers cannot be told: forward and backward of rank " + std::to_string(g.ranks[r].rank) +
                  " repeat " + std::to_string(counts.front()) + " and " + std::to_string(counts.back()) + " times");
    const std::size_t layers = counts.front();
    by_stage[g.ranks[r].rank] = static_cast<std::int64_t>(layers);
    // every pass: all stretches of that period and length (the first pass of a pipeline may hold several)
    struct Piece {
      Ns from, to;
      std::uint32_t run, index;
    };
    std::vector<Piece> pieces;
    std::uint32_t run_number = 0;
    for (const auto& [from, to] : passes) {
      const auto it = period.find(l[from].lane);
      if (it == period.end()) continue;
      const std::size_t p = it->second.first;
      const std::uint32_t runs_before = run_number;
      for (std::size_t at = from; at + 2 * p <= to;) {
        // the first stretch from here on that is long enough
        std::size_t begin = at, i = at;
        std::size_t found = SIZE_MAX;
        for (; i + p < to; ++i) {
          if (l[i].name != l[i + p].name) begin = i + 1;
          if (i + 1 - begin + p >= layers * p) {
            found = begin;
            break;
          }
        }
        if (found == SIZE_MAX) break;
        const std::size_t shift = model.at(l[from].lane).shift;
        const std::size_t shifted = found + shift + layers * p;
        bool goes_on = shifted <= to;
        for (std::size_t k = found + layers * p; goes_on && k < shifted; ++k) goes_on = l[k].name == l[k - p].name;
        if (goes_on) found += shift;
        for (std::size_t k = 0; k < layers; ++k) {
          const std::size_t a = found + k * p, b = a + p;
          pieces.push_back(
              {l[a].at - 1, b < to ? l[b].at - 1 : l[b - 1].at, run_number, static_cast<std::uint32_t>(k)});
        }
        ++run_number;
        at = found + layers * p;
      }
      if (run_number != runs_before) continue;
      // The pass that also packs gradients into buckets has more launches than the model: its layers begin where the
      // model's do, found in order with what is strange passed over.
      const Model& m = model.at(l[from].lane);
      std::vector<Ns> starts;
      std::size_t j = from;
      bool alike = true;
      const std::size_t end = m.run.first + layers * p;
      for (std::size_t i = m.from; i <= end && i < m.to && alike; ++i) {
        while (j < to && l[j].name != l[i].name) ++j;
        if (j == to) {
          alike = i == end;
          break;
        }
        if (i >= m.run.first && (i - m.run.first) % p == 0) starts.push_back(l[j].at - 1);
        ++j;
      }
      if (starts.size() == layers) starts.push_back(l[to - 1].at);
      if (!alike || starts.size() != layers + 1) continue;
      for (std::size_t k = 0; k < layers; ++k)
        pieces.push_back({starts[k], starts[k + 1], run_number, static_cast<std::uint32_t>(k)});
      ++run_number;
    }
    // cuts at both ends of every piece
    auto& cuts = out.cuts[r];
    auto& places = out.places[r];
    Ns last = INT64_MIN;
    for (const Piece& piece : pieces) {
      if (piece.from > last) {
        cuts.push_back({piece.from});
        places.push_back({});  // what lies before
      }
      cuts.push_back({piece.to});
      places.push_back({piece.run, piece.index});
      last = piece.to;
    }
    places.push_back({});
  }
  // layers of the model: of one pipeline, stage by stage
  const std::int64_t stride = layout.pipeline_outermost ? layout.tp * layout.dp : layout.tp;
  for (std::int64_t s = 0; s < layout.pp; ++s) {
    const auto it = by_stage.find(s * stride);
    if (it == by_stage.end())
      return fail("the layers cannot be told: no trace of rank " + std::to_string(s * stride) + ", stage " +
                  std::to_string(s));
    total += it->second;
  }
  return total;
}

Result<Changed> change_layers(const TraceSet& traces, GraphBuild& build, JobLayout& layout, std::int64_t layers) {
  const std::string where = "--layers " + std::to_string(layers);
  LayerRuns found;
  const auto base = count_layers(traces, build, layout, found);
  if (!base) return fail(base.error().what, where, base.error().advice);
  layout.layers = *base;
  if (layers == *base) return Changed{};
  if (layers % layout.pp != 0)
    return fail(std::to_string(layers) + " layers are not divisible by " + std::to_string(layout.pp) + " stages",
                where);
  Slices slices = slice(build, found.cuts);
  slices.runs = found.places;
  std::vector<std::vector<std::uint32_t>> sequence(slices.count.size());
  for (std::size_t r = 0; r < sequence.size(); ++r) {
    for (std::uint32_t s = 0; s < slices.count[r];) {
      if (slices.runs[r][s].run == kNone) {
        sequence[r].push_back(s++);
        continue;
      }
      std::uint32_t last = s;
      while (last < slices.count[r] && slices.runs[r][last].run == slices.runs[r][s].run) ++last;
      const std::int64_t own = last - s;
      const std::int64_t after = std::max<std::int64_t>(1, own * layers / *base);
      for (std::int64_t k = 0; k < after; ++k) sequence[r].push_back(s + static_cast<std::uint32_t>(k * own / after));
      s = last;
    }
  }
  // gradients reduced before and after, and how much of it layer by layer
  const auto gradient_bytes = [&](const GraphBuild& b) {
    double sum = 0;
    for (const CommRow& row : b.communication.rows)
      if (row.group != kNone && row.parts == 0 && layout.role[row.group] == GroupRole::data && row.bytes > 0 &&
          (row.op == CommOp::all_reduce || row.op == CommOp::reduce_scatter))
        sum += static_cast<double>(row.bytes);
    return sum;
  };
  const double before = gradient_bytes(build);
  bool gathered_in_layers = false;
  for (const CommRow& row : build.communication.rows)
    gathered_in_layers |= row.group != kNone && row.op == CommOp::all_gather &&
                          layout.role[row.group] == GroupRole::data &&
                          slices.runs[row.rank][slices.of_node[row.node]].run != kNone;
  const std::uint32_t nodes = build.graph.size();
  std::uint64_t unlike = 0;
  if (Status s = resequence(build, slices, sequence, unlike); !s)
    return fail(s.error().what, where, "the layers of the traced job are too different from each other");
  const double after = gradient_bytes(build);
  double growth = before > 0 ? after / before : 1;
  if (growth == 1) growth = static_cast<double>(layers) / static_cast<double>(*base);
  scale_kernels(build.graph, traces, is_optimizer_kernel, growth);
  // parameters that are gathered at once, not layer by layer
  ExecGraph& g = build.graph;
  const Communication& c = build.communication;
  for (const Meeting& m : c.meetings) {
    const bool gather = m.op == CommOp::all_gather && role_of(layout, c, m) == GroupRole::data;
    if (!gather || gathered_in_layers) continue;
    for (std::uint32_t k = 0; k < m.members; ++k) {
      Ns& t = g.duration[c.rows[c.members[m.first + k].row].last];
      t = std::llround(static_cast<double>(t) * growth);
    }
  }
  refresh_queue_lags(g);
  layout.layers = layers;
  Changed changed;
  changed.nodes = build.graph.size() > nodes ? build.graph.size() - nodes : nodes - build.graph.size();
  changed.edges = unlike;
  return changed;
}

}  // namespace orrery
