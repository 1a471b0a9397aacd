#include "whatif/anatomy.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <unordered_map>

#include "whatif/periods.h"

namespace orrery {
namespace {

// model: kernels, and the collectives that layers have
enum class Use : std::uint8_t { model, gradients, expert_gradients, exchange, other };
bool reduces(Use u) { return u == Use::gradients || u == Use::expert_gradients; }

struct Call {           // one launch
  Ns at;                // begin of the call
  std::uint32_t begin;  // host node that leads up to it
  std::uint32_t task;   // of several (a graph) the first
  std::uint32_t lane;   // thread
  std::uint32_t name;   // of the kernel
  Ns duration;
  Use use;
  bool counts;  // a kernel or collective: one of the stretch that repeats itself
};

struct Pass {
  bool backward = false;
  std::size_t from = 0, to = 0;     // calls
  std::vector<std::size_t> starts;  // calls that begin a layer, and the one after the last
};

struct Window {  // one step of the rank
  std::int64_t number = 0;
  Ns begin = 0, end = 0;
  std::uint32_t before = 0;  // rows of the step's thread that come before it
  std::uint32_t past = 0;    // and the one after its last
};

struct Element {  // of a step, in time order
  bool exchange = false;
  std::size_t pass = 0;          // row of passes
  std::size_t from = 0, to = 0;  // calls of an exchange
};

using Names = std::vector<std::string_view>;  // of kernels, in the order of their launches

// The one layer that every pass has, where no pass has two that would show how they repeat.
struct SingleLayer {
  Names forward, backward;
};

class RankDissector {
 public:
  RankDissector(const TraceSet& all, const GraphBuild& b, const std::vector<std::uint8_t>* p, std::uint32_t r)
      : traces(all), build(b), g(b.graph), packs(p), rank(r) {}

  // `single`: the layer, where each pass has one; nullptr = told from what repeats itself.
  Status run(Anatomy& out, const std::vector<std::uint32_t>& nodes_of_rank, const std::vector<Use>& use_of,
             const SingleLayer* single) {
    if (Status s = prepare(nodes_of_rank, use_of); !s) return s;
    if (Status s = single != nullptr ? find_passes_of(*single) : find_passes(); !s) return s;
    RankAnatomy& a = out.ranks[rank];
    a.main_lane = main_lane;
    a.layers = static_cast<std::int32_t>(layers);
    if (Status s = lay_out(a, out.piece); !s) return s;
    return {};
  }

  // What the passes launch, without telling their layers.
  Status list_passes(const std::vector<std::uint32_t>& nodes_of_rank, const std::vector<Use>& use_of,
                     std::vector<Names>& forward, std::vector<Names>& backward) {
    if (Status s = prepare(nodes_of_rank, use_of); !s) return s;
    for (const std::vector<std::size_t>& stretch : list_stretches())
      (calls[stretch.front()].lane == main_lane ? forward : backward).push_back(names_of(stretch));
    return {};
  }

 private:
  Status prepare(const std::vector<std::uint32_t>& nodes_of_rank, const std::vector<Use>& use_of) {
    nodes = &nodes_of_rank;
    use = &use_of;
    list_lanes();
    list_calls();
    return find_steps();
  }

  Names names_of(const std::vector<std::size_t>& stretch) const {
    Names out;
    for (const std::size_t i : stretch)
      out.push_back(traces.ranks[g.ranks[rank].trace].name_of(g.source[calls[i].task]));
    return out;
  }

  std::string who() const { return "rank " + std::to_string(g.ranks[rank].rank); }

  // Host nodes by thread, with the depth of open operators after each.
  struct Thread {
    std::vector<std::uint32_t> node;
    std::vector<std::int32_t> depth;
  };

  void list_lanes() {
    const GraphRank& k = g.ranks[rank];
    threads.resize(k.lanes);
    row_on_thread.resize(nodes->size());
    for (std::size_t i = 0; i < nodes->size(); ++i) {
      const std::uint32_t n = (*nodes)[i];
      if (g.kind[n] != NodeKind::host) continue;
      Thread& t = threads[g.lane[n] - k.first_lane];
      local.emplace(n, static_cast<std::uint32_t>(t.node.size()));
      const std::int32_t before = t.depth.empty() ? 0 : t.depth.back();
      t.node.push_back(n);
      t.depth.push_back(before + (g.at_begin[n] ? 1 : -1));
    }
  }

  // ---- steps ----

  Status find_steps() {
    for (const Step& s : g.steps) {
      if (s.rank != rank) continue;
      if (g.kind[raw(s.begin_node)] != NodeKind::host) return find_steps_without_markers(s);
      const std::uint32_t lane = g.lane[raw(s.begin_node)];
      if (main_lane == kNone) main_lane = lane;
      if (lane != main_lane || g.lane[raw(s.end_node)] != main_lane) continue;
      steps.push_back({s.number, s.begin, s.end, main_row(raw(s.begin_node)), main_row(raw(s.end_node)) + 1});
    }
    if (main_lane == kNone) return fail("no step of " + who() + " is in the trace");
    return {};
  }

  // The whole trace is one step then; taken apart it has as many as there are runs of the optimizer after backward
  // work.
  Status find_steps_without_markers(const Step& whole) {
    whole_trace = true;
    const RankTrace& t = traces.ranks[g.ranks[rank].trace];
    std::map<std::uint32_t, std::size_t> launches;
    std::vector<std::uint8_t> backward(threads.size(), 0);
    for (const Call& c : calls)
      if (c.counts) ++launches[c.lane];
    for (std::size_t l = 0; l < threads.size(); ++l)
      for (const std::uint32_t n : threads[l].node)
        if (t.name_of(g.source[n]).find("autograd::engine") != std::string_view::npos) {
          backward[l] = 1;
          break;
        }
    // forward is launched by the thread that launches most and runs no autograd; failing names, by the first that
    // launches anything of the model
    const auto is_backward = [&](std::uint32_t lane) { return backward[lane - g.ranks[rank].first_lane] != 0; };
    const bool named =
        std::any_of(launches.begin(), launches.end(), [&](const auto& x) { return is_backward(x.first); });
    std::size_t most = 0;
    for (const Call& c : calls) {
      if (!c.counts || (named && is_backward(c.lane)) || launches[c.lane] <= most) continue;
      main_lane = c.lane;
      most = named ? launches[c.lane] : SIZE_MAX;
    }
    if (main_lane == kNone || thread(main_lane).node.empty())
      return fail("the steps cannot be told: no markers, and no thread of " + who() + " launches forward work");
    const Thread& main = thread(main_lane);
    const auto rows = static_cast<std::uint32_t>(main.node.size());
    Window now{0, whole.begin - 2, whole.end, 0, rows};
    bool worked = false;          // backward since the step's begin
    std::size_t last = SIZE_MAX;  // call of the optimizer
    std::size_t since = 0;        // launches of the model after it
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Call& c = calls[i];
      if (c.counts && c.lane != main_lane) worked = true;
      if (c.lane == main_lane && worked && optimizes(c, t)) last = i, since = 0;
      if (last == SIZE_MAX || last == i) continue;
      since += c.counts ? 1 : 0;
      if (since < 8 && c.use != Use::exchange) continue;
      std::size_t next = last + 1;
      while (next < calls.size() && calls[next].lane != main_lane) ++next;
      if (next == calls.size()) break;
      now.past = cut_between(end_of_call(calls[last]), local.at(calls[next].begin));
      now.end = end_of(main.node[now.past - 1]);
      steps.push_back(now);
      now = {now.number + 1, now.end + 1, whole.end, now.past, rows};
      worked = false;
      last = SIZE_MAX;
    }
    steps.push_back(now);
    return {};
  }

  bool optimizes(const Call& c, const RankTrace& t) const {
    if (!packing(c.task)) return false;
    const std::string_view name = t.name_of(g.source[c.task]);
    for (const std::string_view part : {"multi_tensor", "adam", "Adam", "optim", "Optim", "sgd", "SGD", "lamb", "Lamb"})
      if (name.find(part) != std::string_view::npos) return true;
    return false;
  }

  Thread& thread(std::uint32_t lane) { return threads[lane - g.ranks[rank].first_lane]; }
  Ns end_of(std::uint32_t n) const { return g.observed_start[n] + g.duration[n]; }

  void list_calls() {
    const RankTrace& t = traces.ranks[g.ranks[rank].trace];
    std::unordered_map<std::string_view, std::uint32_t> names;
    for (const std::uint32_t n : *nodes) {
      const NodeKind kind = g.kind[n];
      if (kind == NodeKind::host || kind == NodeKind::rendezvous || kind == NodeKind::stall) continue;
      // a pause of the device before a task has the task's launch
      std::uint32_t launched = n;
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e)
        if (g.pred_kind[e] == EdgeKind::stall && g.pred[e] != kNoNode) launched = raw(g.pred[e]);
      for (std::uint32_t e = g.first_pred[launched]; e < g.first_pred[launched + 1]; ++e) {
        if (g.pred_kind[e] != EdgeKind::launch || g.pred[e] == kNoNode) continue;
        const std::uint32_t call = raw(g.pred[e]);
        const std::uint32_t name =
            names.try_emplace(t.name_of(g.source[n]), static_cast<std::uint32_t>(names.size())).first->second;
        const Use u = (*use)[n];
        calls.push_back({end_of(call), call, n, g.lane[call], name, g.duration[n], u,
                         (kind == NodeKind::kernel || kind == NodeKind::comm) && u == Use::model && !packing(n)});
        break;
      }
    }
    std::stable_sort(calls.begin(), calls.end(), [&](const Call& a, const Call& b) {
      if (a.at != b.at) return a.at < b.at;
      return a.begin < b.begin;
    });
  }

  bool packing(std::uint32_t n) const { return packs != nullptr && (*packs)[n] != 0; }

  // ---- passes ----

  // Stretches of one thread's launches without another thread's in between, and without an exchange between stages.
  std::vector<std::vector<std::size_t>> list_stretches() const {
    std::vector<std::vector<std::size_t>> stretches;
    std::vector<std::size_t> now;
    std::uint32_t lane = kNone;
    const auto flush = [&] {
      if (now.size() >= 8) stretches.push_back(now);
      now.clear();
    };
    std::size_t step = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Call& c = calls[i];
      while (step < steps.size() && c.at > steps[step].end) {
        flush();
        ++step;
      }
      if (step == steps.size()) break;
      if (c.at < steps[step].begin) continue;
      if (c.use == Use::exchange) {
        flush();
        lane = kNone;
        continue;
      }
      if (!c.counts) continue;
      if (c.lane != lane) flush();
      lane = c.lane;
      now.push_back(i);
    }
    flush();
    return stretches;
  }

  Status find_passes_of(const SingleLayer& layer) {
    layers = 1;
    for (const std::vector<std::size_t>& stretch : list_stretches()) {
      Pass p;
      p.backward = calls[stretch.front()].lane != main_lane;
      const Names& wanted = p.backward ? layer.backward : layer.forward;
      const Names all = names_of(stretch);
      const auto at = std::search(all.begin(), all.end(), wanted.begin(), wanted.end());
      if (at == all.end()) continue;
      p.from = stretch.front();
      p.to = stretch.back() + 1;
      const auto first = static_cast<std::size_t>(at - all.begin()), last = first + wanted.size();
      p.starts = {stretch[first], last < stretch.size() ? stretch[last] : p.to};
      passes.push_back(std::move(p));
    }
    return {};
  }

  Status find_passes() {
    const std::vector<std::vector<std::size_t>> stretches = list_stretches();
    // one period for each thread, told by a stretch in the middle
    struct Model {
      std::vector<NamedCost> calls;
      std::size_t period = 0, layers = 0, first = 0, shift = 0;
    };
    std::map<std::uint32_t, Model> models;
    std::vector<std::vector<NamedCost>> named(stretches.size());
    for (std::size_t k = 0; k < stretches.size(); ++k)
      for (const std::size_t i : stretches[k]) named[k].push_back({calls[i].name, calls[i].duration});
    for (std::size_t k = 0; k < stretches.size(); ++k) {
      const std::size_t at = (k + stretches.size() / 2) % stretches.size();
      const std::uint32_t of = calls[stretches[at].front()].lane;
      const std::size_t period = models.contains(of) ? 0 : find_period(named[at]);
      if (period == 0) continue;
      const Stretch found = longest_stretch(named[at], period, 0);
      const std::size_t shift = shift_of_layers(named[at], found, period);
      models[of] = {named[at], period, found.layers, found.first + shift, shift};
    }
    std::map<std::uint32_t, std::size_t> counts;
    for (const auto& [l, m] : models) counts[l] = m.layers;
    if (!models.contains(main_lane) || models.size() < 2) {
      const char* const missing = models.contains(main_lane) ? "backward" : models.empty() ? "any" : "forward";
      return fail("the layers cannot be told: no stretch of launches repeats itself in " + std::string(missing) +
                      " work of " + who(),
                  "", "a base needs training steps of equal layers, with their launches (ProfilerActivity.CPU)");
    }
    layers = models.at(main_lane).layers;
    std::uint32_t backward_lane = kNone;
    for (const auto& [l, m] : models)
      if (l != main_lane && m.layers == layers) backward_lane = l;
    if (backward_lane == kNone)
      return fail(
          "the layers cannot be told: forward and backward of " + who() + " repeat " + std::to_string(layers) +
          " and " +
          std::to_string(counts.begin()->first == main_lane ? counts.rbegin()->second : counts.begin()->second) +
          " times");
    // Chunks of an interleaved pipeline differ in what is before and after their layers, and with it in where those
    // begin: each sequence of launches that most micro-batches have tells by one of its own.
    std::map<std::vector<std::uint32_t>, std::vector<std::size_t>> alike;  // thread and names -> stretches
    for (std::size_t k = 0; k < stretches.size(); ++k) {
      std::vector<std::uint32_t> key{calls[stretches[k].front()].lane};
      for (const NamedCost& c : named[k]) key.push_back(c.name);
      alike[std::move(key)].push_back(k);
    }
    std::vector<Model> own(stretches.size());
    for (const auto& [key, group] : alike) {
      const auto model = models.find(key.front());
      if (model == models.end() || group.size() < 2 * steps.size()) continue;
      const std::size_t middle = group[group.size() / 2], period = model->second.period;
      const Stretch found = longest_stretch(named[middle], period, 0);
      const auto same = [](const NamedCost& x, const NamedCost& y) { return x.name == y.name; };
      if (found.layers != model->second.layers ||
          std::equal(named[middle].begin(), named[middle].end(), model->second.calls.begin(), model->second.calls.end(),
                     same))
        continue;
      const std::size_t shift = shift_of_layers(named[middle], found, period);
      for (const std::size_t k : group) own[k] = {named[middle], period, found.layers, found.first + shift, shift};
    }
    for (std::size_t k = 0; k < stretches.size(); ++k) {
      const std::uint32_t of = calls[stretches[k].front()].lane;
      if (of != main_lane && of != backward_lane) continue;
      const Model& m = own[k].period != 0 ? own[k] : models.at(of);
      const std::vector<std::size_t> starts = layer_starts(named[k], m.calls, m.period, m.layers, m.first, m.shift);
      if (starts.empty()) continue;
      Pass p;
      p.backward = of != main_lane;
      p.from = stretches[k].front();
      p.to = stretches[k].back() + 1;
      for (std::size_t i = 0; i < layers; ++i) p.starts.push_back(stretches[k][starts[i]]);
      const std::size_t last = starts[layers];
      p.starts.push_back(last < stretches[k].size() ? stretches[k][last] : p.to);
      passes.push_back(std::move(p));
      // a second run of layers in the same stretch is another pass with nothing between
      if (last < stretches[k].size()) {
        const std::vector<NamedCost> rest(named[k].begin() + static_cast<std::ptrdiff_t>(last), named[k].end());
        if (rest.size() >= m.period * m.layers &&
            !layer_starts(rest, m.calls, m.period, m.layers, m.first, m.shift).empty())
          return fail("the passes cannot be told: two follow each other on " + who() + " with nothing between");
      }
    }
    return {};
  }

  // ---- pieces ----

  // Of the boundaries of the step's thread from row `from` on and before row `to`, the last where the fewest operators
  // are open: the row after it begins something new.
  std::uint32_t cut_between(std::uint32_t from, std::uint32_t to) {
    const Thread& t = thread(main_lane);
    if (from >= to) return to;
    std::uint32_t best = from;
    for (std::uint32_t k = from; k < to; ++k)
      if (t.depth[k] <= t.depth[best]) best = k;
    return best + 1;
  }

  std::uint32_t main_row(std::uint32_t n) const { return local.at(n); }
  // Of a call that may be another thread's: what the step's thread was at when it was made.
  std::uint32_t main_row(const Call& c) {
    if (c.lane == main_lane) return local.at(c.begin);
    const auto& main = thread(main_lane).node;
    return static_cast<std::uint32_t>(
        std::partition_point(main.begin(), main.end(), [&](std::uint32_t n) { return end_of(n) <= c.at; }) -
        main.begin());
  }
  std::uint32_t end_of_call(const Call& c) const {  // row on its thread of the node after the call's begin
    return local.at(c.begin) + 1;
  }

  // Rows of the step's thread: where a pass of another thread leaves it, and where it comes back.
  void borders_of_burst(const Pass& p, std::uint32_t& leaves, std::uint32_t& returns) {
    const std::uint32_t lane = calls[p.from].lane;
    const Thread& own = thread(lane);
    const Thread& main = thread(main_lane);
    // by the hand-offs; failing those, by time
    const Ns first = calls[p.from].at, last = calls[p.to - 1].at;
    leaves = returns = kNone;
    for (std::uint32_t row = local.at(calls[p.from].begin) + 1; row-- > 0;) {
      const std::uint32_t n = own.node[row];
      bool found = false;
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e)
        if (g.pred_kind[e] == EdgeKind::handoff && g.pred[e] != kNoNode && g.lane[raw(g.pred[e])] == main_lane)
          leaves = main_row(raw(g.pred[e])), found = true;
      if (found) break;
    }
    const auto after =
        std::partition_point(main.node.begin(), main.node.end(), [&](std::uint32_t n) { return end_of(n) <= first; });
    const auto by_time = static_cast<std::uint32_t>(after - main.node.begin());
    if (leaves == kNone || leaves > by_time) leaves = by_time == 0 ? 0 : by_time - 1;
    const auto back =
        std::partition_point(main.node.begin(), main.node.end(), [&](std::uint32_t n) { return end_of(n) <= last; });
    returns = static_cast<std::uint32_t>(back - main.node.begin());
    for (std::uint32_t row = leaves + 1; row < main.node.size(); ++row) {
      const std::uint32_t n = main.node[row];
      bool found = false;
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e)
        found |= g.pred_kind[e] == EdgeKind::handoff && g.pred[e] != kNoNode && g.lane[raw(g.pred[e])] == lane &&
                 end_of(raw(g.pred[e])) >= last;
      if (found) {
        returns = row;
        break;
      }
      if (row > returns + 4) break;
    }
  }

  // Do a whole operator that waits lie between two launches? Then they were not issued together.
  bool waits_between(const Call& a, const Call& b) {
    const Thread& t = thread(main_lane);
    if (a.lane != main_lane || b.lane != main_lane) return true;
    const RankTrace& trace = traces.ranks[g.ranks[rank].trace];
    const std::uint32_t from = end_of_call(a), to = local.at(b.begin);
    // operators that open after `a` has closed its own and close before b's opens
    std::int32_t least = INT32_MAX;
    for (std::uint32_t k = from; k < to; ++k) least = std::min(least, t.depth[k]);
    bool lowest = false;
    bool waited = false, open_waits = false;
    for (std::uint32_t k = from; k < to; ++k) {
      const std::uint32_t n = t.node[k];
      if (t.depth[k] == least) {
        if (lowest && open_waits) waited = true;
        lowest = true;
        open_waits = false;
      }
      const std::string_view name = trace.name_of(g.source[n]);
      if (lowest &&
          (name.find("WaitEvent") != std::string_view::npos || name.find("Synchronize") != std::string_view::npos))
        open_waits = true;
    }
    return waited;
  }

  Status lay_out(RankAnatomy& a, std::vector<std::uint32_t>& piece_of) {
    const GraphRank& k = g.ranks[rank];
    const Thread& main = thread(main_lane);
    // owner of every host row of the rank, by thread
    std::vector<std::vector<std::uint32_t>> owner(threads.size());
    for (std::size_t t = 0; t < threads.size(); ++t) owner[t].assign(threads[t].node.size(), kNone);
    a.pieces.push_back({PieceKind::outside, -1, -1, -1});
    const auto add = [&](PieceKind kind, std::int32_t step, std::int32_t pass, std::int32_t layer) {
      a.pieces.push_back({kind, step, pass, layer});
      return static_cast<std::uint32_t>(a.pieces.size() - 1);
    };
    auto& main_owner = owner[main_lane - k.first_lane];
    std::uint32_t at_row = 0;  // of the step's thread, owned up to here
    const auto own_main = [&](std::uint32_t to, std::uint32_t piece) {
      for (; at_row < to && at_row < main_owner.size(); ++at_row) main_owner[at_row] = piece;
    };
    std::vector<std::pair<Ns, std::uint32_t>> marks;  // time from which other threads belong to a piece
    marks.emplace_back(INT64_MIN, 0);
    std::vector<std::uint32_t> launches;  // rows of the step's thread that begin a launch call, ascending
    for (const Call& c : calls)
      if (c.lane == main_lane) launches.push_back(local.at(c.begin));
    std::sort(launches.begin(), launches.end());
    // The row behind the last launch of those from `from` on and before `to`; `from` where there is none.
    const auto behind_launches = [&](std::uint32_t from, std::uint32_t to) {
      const auto end = std::lower_bound(launches.begin(), launches.end(), to);
      return end != launches.begin() && *std::prev(end) >= from ? *std::prev(end) + 1 : from;
    };

    for (std::size_t s = 0; s < steps.size(); ++s) {
      const auto step = static_cast<std::int32_t>(s);
      // elements in time order
      std::vector<Element> elements;
      std::size_t first = SIZE_MAX, last = 0;
      for (std::size_t i = 0; i < calls.size(); ++i)
        if (calls[i].at >= steps[s].begin && calls[i].at <= steps[s].end) first = std::min(first, i), last = i + 1;
      if (first == SIZE_MAX) return fail("no work in step " + std::to_string(steps[s].number) + " of " + who());
      std::size_t next_pass = 0;
      while (next_pass < passes.size() && passes[next_pass].from < first) ++next_pass;
      const std::size_t first_pass = next_pass;
      for (std::size_t i = first; i < last; ++i) {
        if (next_pass < passes.size() && passes[next_pass].from == i) {
          elements.push_back({false, next_pass, 0, 0});
          i = passes[next_pass++].to - 1;
          continue;
        }
        if (calls[i].use != Use::exchange) continue;
        if (!elements.empty() && elements.back().exchange && elements.back().to == last_exchange(i) &&
            !waits_between(calls[elements.back().to - 1], calls[i])) {
          elements.back().to = i + 1;
          continue;
        }
        elements.push_back({true, 0, i, i + 1});
      }
      std::int32_t forward = 0, backward = 0, exchanges = 0;
      for (const Element& e : elements)
        if (!e.exchange) ++(passes[e.pass].backward ? backward : forward);
      if (forward != backward || forward == 0)
        return fail("the passes cannot be told: step " + std::to_string(steps[s].number) + " of " + who() + " has " +
                    std::to_string(forward) + " forward and " + std::to_string(backward) + " backward passes");
      if (s == 0) {
        a.passes = forward;
        for (const Element& e : elements)
          if (!e.exchange) a.order.push_back(passes[e.pass].backward ? 1 : 0);
      } else if (forward != a.passes) {
        return fail("the passes cannot be told: steps of " + who() + " have " + std::to_string(a.passes) + " and " +
                    std::to_string(forward));
      }
      // launches of the forward passes before their first layer, all kinds: the first of a step may have more before it
      std::size_t lead = SIZE_MAX;
      for (std::size_t p = first_pass; p < next_pass; ++p) {
        if (passes[p].backward) continue;
        std::size_t n = 0;
        for (std::size_t i = passes[p].starts.front(); i-- > first && calls[i].lane == main_lane;) {
          if (calls[i].use == Use::exchange) break;
          ++n;
        }
        lead = std::min(lead, n);
      }

      // the begin of the step
      own_main(steps[s].before, static_cast<std::uint32_t>(s == 0 ? 0 : a.pieces.size() - 1));
      std::uint32_t current = add(PieceKind::step_begin, step, -1, -1);
      marks.emplace_back(steps[s].begin, current);
      std::uint32_t from_row = steps[s].before + (whole_trace ? 0 : 1);  // rows from which the next cut is sought
      forward = backward = 0;
      for (std::size_t e = 0; e <= elements.size(); ++e) {
        // where the element begins on the step's thread
        const bool end = e == elements.size();
        std::uint32_t to_row = static_cast<std::uint32_t>(main.node.size());
        std::uint32_t leaves = kNone, returns = kNone;
        if (end) {
          const std::uint32_t step_end = std::max(from_row, steps[s].past) - (whole_trace ? 0 : 1);
          to_row = step_end;
          const auto next = std::lower_bound(launches.begin(), launches.end(), from_row);
          if (next != launches.end() && *next < step_end) to_row = *next;
        } else if (elements[e].exchange) {
          to_row = main_row(calls[elements[e].from]);
        } else if (const Pass& p = passes[elements[e].pass]; p.backward) {
          borders_of_burst(p, leaves, returns);
          to_row = leaves;
        } else {
          // the first launch of any kind after what came before; of the first element the usual number before the
          // layers
          std::size_t i = p.starts.front();
          std::size_t n = 0;
          while (n < lead && i > first && calls[i - 1].lane == main_lane && local.at(calls[i - 1].begin) >= from_row &&
                 calls[i - 1].use != Use::exchange)
            --i, ++n;
          to_row = local.at(calls[i].begin);
          // work of the element before that was launched on this thread since
          from_row = behind_launches(from_row, to_row);
        }
        if (!end && (elements[e].exchange || passes[elements[e].pass].backward)) {
          // launches of any kind before it belong to what came before
          from_row = behind_launches(from_row, to_row);
        }
        const std::uint32_t cut = cut_between(from_row, to_row);
        own_main(cut, current);
        const Ns cut_time = cut < main.node.size() ? end_of(main.node[cut > 0 ? cut - 1 : 0]) : INT64_MAX;
        if (end) {
          current = add(PieceKind::step_end, step, -1, -1);
          marks.emplace_back(cut_time, current);
          own_main(steps[s].past, current);
          break;
        }
        if (elements[e].exchange) {
          current = add(PieceKind::exchange, step, exchanges++, -1);
          marks.emplace_back(cut_time, current);
          const Call& last_call = calls[elements[e].to - 1];
          from_row = main_row(last_call) + (last_call.lane == main_lane ? 1 : 0);
          continue;
        }
        const Pass& p = passes[elements[e].pass];
        const std::int32_t number = p.backward ? backward++ : forward++;
        const std::uint32_t lane = calls[p.from].lane;
        auto& own = owner[lane - k.first_lane];
        const std::uint32_t begin =
            add(p.backward ? PieceKind::backward_begin : PieceKind::forward_begin, step, number, -1);
        marks.emplace_back(cut_time, begin);
        const auto n = static_cast<std::int32_t>(layers);
        std::uint32_t row = p.backward ? first_row_of_burst(lane, main.node[leaves]) : cut;
        const auto give = [&](std::uint32_t to, std::uint32_t piece) {
          for (; row < to && row < own.size(); ++row) own[row] = piece;
        };
        give(local.at(calls[p.starts.front()].begin), begin);
        for (std::int32_t l = 0; l < n; ++l) {
          const std::uint32_t piece =
              add(p.backward ? PieceKind::backward_layer : PieceKind::forward_layer, step, number, l);
          const std::size_t next = p.starts[static_cast<std::size_t>(l) + 1];
          give(next < p.to ? local.at(calls[next].begin) : end_of_call(calls[p.to - 1]) + 1, piece);
        }
        current = add(p.backward ? PieceKind::backward_end : PieceKind::forward_end, step, number, -1);
        if (p.backward) {
          give(last_row_of_burst(lane, p), current);
          own_main(leaves + 1, begin);
          from_row = std::min<std::uint32_t>(returns + 1, static_cast<std::uint32_t>(main.node.size()));
          cut_buckets(a, p, own, step, number, begin);
          marks.emplace_back(returns < main.node.size() ? end_of(main.node[returns]) - 1 : INT64_MAX, current);
        } else {
          at_row = row;
          from_row = row;
        }
      }
    }
    own_main(static_cast<std::uint32_t>(main.node.size()), add(PieceKind::outside, -1, -1, -1));
    // other threads, and what is left: by time
    std::stable_sort(marks.begin(), marks.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    for (std::size_t t = 0; t < threads.size(); ++t)
      for (std::size_t row = 0; row < owner[t].size(); ++row) {
        const std::uint32_t n = threads[t].node[row];
        if (owner[t][row] == kNone) {
          const auto it = std::upper_bound(marks.begin(), marks.end(), end_of(n) - 1,
                                           [](Ns x, const auto& m) { return x < m.first; });
          owner[t][row] = std::prev(it)->second;
        }
        piece_of[n] = owner[t][row];
      }
    give_tasks(piece_of);
    return {};
  }

  std::size_t last_exchange(
      std::size_t i) const {  // one past the exchange before call i, if no model launch lies between
    for (std::size_t j = i; j-- > 0;) {
      if (calls[j].use == Use::exchange) return j + 1;
      if (calls[j].counts) return SIZE_MAX;
    }
    return SIZE_MAX;
  }

  std::uint32_t first_row_of_burst(std::uint32_t lane, std::uint32_t leaving) {
    const Thread& t = thread(lane);
    const Ns from = end_of(leaving);
    const auto it =
        std::partition_point(t.node.begin(), t.node.end(), [&](std::uint32_t n) { return end_of(n) <= from; });
    return static_cast<std::uint32_t>(it - t.node.begin());
  }

  // The burst goes on until the thread pauses for the next: the next pass's first row, or the end.
  std::uint32_t last_row_of_burst(std::uint32_t lane, const Pass& p) {
    const Thread& t = thread(lane);
    for (const Pass& q : passes) {
      if (!q.backward || q.from < p.to) continue;
      std::uint32_t leaves = 0, returns = 0;
      borders_of_burst(q, leaves, returns);
      return first_row_of_burst(lane, thread(main_lane).node[leaves]);
    }
    return static_cast<std::uint32_t>(t.node.size());
  }

  // Reductions launched within the backward pass, with what packs their gradients, are pieces of their own.
  void cut_buckets(RankAnatomy& a, const Pass& p, std::vector<std::uint32_t>& own, std::int32_t step,
                   std::int32_t number, std::uint32_t begin) {
    const std::uint32_t lane = calls[p.from].lane;
    const Thread& t = thread(lane);
    const std::uint32_t last_row = last_row_of_burst(lane, p);
    std::vector<std::size_t> mine;
    for (std::size_t i = p.from; i < calls.size(); ++i) {
      if (calls[i].lane != lane) continue;
      if (local.at(calls[i].begin) >= last_row) break;
      mine.push_back(i);
    }
    for (std::size_t k = 0; k < mine.size(); ++k) {
      if (!reduces(calls[mine[k]].use)) continue;
      std::size_t from = k;
      while (from > 0 && packing(calls[mine[from - 1]].task)) --from;
      std::size_t to = k;
      while (to + 1 < mine.size() && calls[mine[to + 1]].use == calls[mine[k]].use) ++to;
      const std::uint32_t low = from == 0 ? 0 : end_of_call(calls[mine[from - 1]]);
      const std::uint32_t high = local.at(calls[mine[from]].begin);
      std::uint32_t first = low;
      for (std::uint32_t r = low; r < high; ++r)
        if (t.depth[r] <= t.depth[first]) first = r;
      if (first < high) ++first;
      const std::int32_t depth = first > 0 ? t.depth[first - 1] : 0;
      std::uint32_t end = std::min(end_of_call(calls[mine[to]]) + 1, static_cast<std::uint32_t>(own.size()));
      const std::uint32_t stop = to + 1 < mine.size() ? local.at(calls[mine[to + 1]].begin) : last_row;
      while (end < stop && t.depth[end - 1] > depth) ++end;
      std::int32_t layer = -1;
      if (own[first] != kNone && own[first] >= begin) layer = a.pieces[own[first]].layer;
      if (own[first] != kNone && a.pieces[own[first]].kind == PieceKind::backward_end)
        layer = static_cast<std::int32_t>(layers);
      a.pieces.push_back({PieceKind::bucket, step, number, layer});
      for (std::uint32_t r = first; r < end; ++r) own[r] = static_cast<std::uint32_t>(a.pieces.size() - 1);
      k = to;
    }
  }

  // Tasks go with their launch; what has none with the task before it on its stream.
  void give_tasks(std::vector<std::uint32_t>& piece_of) {
    std::unordered_map<std::uint32_t, std::uint32_t> last;  // stream -> piece
    for (const std::uint32_t n : *nodes) {
      if (g.kind[n] == NodeKind::host || g.kind[n] == NodeKind::rendezvous) continue;
      std::uint32_t piece = kNone;
      for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1] && piece == kNone; ++e)
        if (g.pred_kind[e] == EdgeKind::launch && g.pred[e] != kNoNode) piece = piece_of[raw(g.pred[e])];
      if (piece == kNone) {
        const auto it = last.find(g.lane[n]);
        piece = it == last.end() ? (whole_trace ? 1 : 0) : it->second;
      }
      piece_of[n] = piece;
      last[g.lane[n]] = piece;
    }
    for (const CommRow& row : build.communication.rows)
      if (row.rank == rank) piece_of[row.last] = piece_of[row.node];
  }

  const TraceSet& traces;
  const GraphBuild& build;
  const ExecGraph& g;
  const std::vector<std::uint8_t>* packs;
  std::uint32_t rank;
  const std::vector<std::uint32_t>* nodes = nullptr;
  const std::vector<Use>* use = nullptr;
  std::vector<Thread> threads;
  std::vector<std::uint32_t> row_on_thread;
  std::unordered_map<std::uint32_t, std::uint32_t> local;  // host node -> row on its thread
  std::vector<Window> steps;
  bool whole_trace = false;  // there are no markers
  std::uint32_t main_lane = kNone;
  std::vector<Call> calls;
  std::vector<Pass> passes;
  std::size_t layers = 0;
};

}  // namespace

std::string_view name_of(PieceKind k) {
  constexpr std::string_view kNames[] = {"outside",       "step begin",  "exchange",       "forward begin",
                                         "forward layer", "forward end", "backward begin", "backward layer",
                                         "backward end",  "bucket",      "step end"};
  return kNames[static_cast<std::size_t>(k)];
}

namespace {

// Middle stages run nothing but the layer, and all others run it too: the shortest pass that is part of every other. Of
// two stages the first ends with what the last begins with.
Names common_layer(const std::vector<Names>& passes, const std::vector<Names>& before,
                   const std::vector<Names>& after) {
  if (passes.empty()) return {};
  const Names& least = *std::min_element(passes.begin(), passes.end(),
                                         [](const Names& a, const Names& b) { return a.size() < b.size(); });
  const bool in_all = std::all_of(passes.begin(), passes.end(), [&](const Names& p) {
    return std::search(p.begin(), p.end(), least.begin(), least.end()) != p.end();
  });
  if (in_all) return before.empty() && after.empty() ? Names{} : least;
  if (before.empty() || after.empty()) return {};
  const Names &a = before[before.size() / 2], &b = after[after.size() / 2];
  for (std::size_t n = std::min(a.size(), b.size()); n >= 8; --n)
    if (std::equal(b.begin(), b.begin() + static_cast<std::ptrdiff_t>(n), a.end() - static_cast<std::ptrdiff_t>(n)))
      return Names(b.begin(), b.begin() + static_cast<std::ptrdiff_t>(n));
  return {};
}

// Empty: there is none.
SingleLayer find_single_layer(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout,
                              const std::vector<std::uint8_t>* packs,
                              const std::vector<std::vector<std::uint32_t>>& nodes, const std::vector<Use>& use) {
  std::vector<Names> forward, backward, first_forward, first_backward, last_forward, last_backward;
  const std::int64_t stride = layout.stage_stride();
  if (layout.pp < 2) return {};
  for (std::uint32_t r = 0; r < build.graph.ranks.size(); ++r) {
    std::vector<Names> f, b;
    if (!RankDissector(traces, build, packs, r).list_passes(nodes[r], use, f, b)) return {};
    const std::int64_t stage = build.graph.ranks[r].rank / stride % layout.pp;
    const auto add = [](std::vector<Names>& to, const std::vector<Names>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    add(forward, f);
    add(backward, b);
    if (stage == 0) add(first_forward, f), add(first_backward, b);
    if (stage == layout.pp - 1) add(last_forward, f), add(last_backward, b);
  }
  return {common_layer(forward, first_forward, last_forward), common_layer(backward, last_backward, first_backward)};
}

}  // namespace

Result<Anatomy> dissect_job(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout,
                            const std::vector<std::uint8_t>* packs) {
  const ExecGraph& g = build.graph;
  Anatomy out;
  out.ranks.resize(g.ranks.size());
  out.piece.assign(g.size(), kNone);
  std::vector<Use> use(g.size(), Use::model);
  for (const CommRow& row : build.communication.rows) {
    const GroupRole role = row.parts != 0 || is_point_to_point(row.op) ? GroupRole::pipeline
                           : row.group == kNone                        ? GroupRole::other
                                                                       : layout.role[row.group];
    Use u = Use::other;
    if (role == GroupRole::tensor || role == GroupRole::expert || role == GroupRole::expert_tensor ||
        role == GroupRole::expert_model)
      u = Use::model;
    if (role == GroupRole::data) u = Use::gradients;
    if (role == GroupRole::expert_data) u = Use::expert_gradients;
    if (role == GroupRole::pipeline) u = Use::exchange;
    use[row.node] = use[row.last] = u;
  }
  std::vector<std::vector<std::uint32_t>> nodes(g.ranks.size());
  for (std::uint32_t n = 0; n < g.size(); ++n)
    if (g.kind[n] != NodeKind::rendezvous) nodes[g.rank[n]].push_back(n);
  const auto dissect = [&](const SingleLayer* single) -> Status {
    for (std::uint32_t r = 0; r < g.ranks.size(); ++r)
      if (Status s = RankDissector(traces, build, packs, r).run(out, nodes[r], use, single); !s) return s;
    return {};
  };
  const Status repeating = dissect(nullptr);
  if (repeating) return out;
  const SingleLayer single = find_single_layer(traces, build, layout, packs, nodes, use);
  if (single.forward.empty() || single.backward.empty()) return tl::unexpected(repeating.error());
  for (RankAnatomy& a : out.ranks) a = {};
  out.piece.assign(g.size(), kNone);
  if (!dissect(&single)) return tl::unexpected(repeating.error());
  return out;
}

}  // namespace orrery
