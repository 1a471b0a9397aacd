// The module that each GPU task works for. Forward: nn.Module frames, then operators, then the place of its linear
// layer between attentions (whatif/operators.h), ranges, the kernel's name, the order of kernels. Backward: the module
// of the forward operator with the same autograd sequence number, then what its own names say. Communication is a
// module of its own, by operation and group.
#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>
#include <unordered_map>

#include "base/text_match.h"
#include "reports/dissect.h"

namespace orrery {
namespace {

using F = NameFlags;

constexpr std::string_view kModule = "nn.Module: ";
bool is_module(std::string_view frame) { return frame.substr(0, kModule.size()) == kModule; }
// "nn.Module: Qwen2MLP_17" -> "Qwen2MLP"
std::string_view class_of(std::string_view frame) {
  frame.remove_prefix(kModule.size());
  const auto at = frame.rfind('_');
  if (at == std::string_view::npos || at + 1 == frame.size()) return frame;
  for (std::size_t i = at + 1; i < frame.size(); ++i)
    if (std::isdigit(static_cast<unsigned char>(frame[i])) == 0) return frame;
  return frame.substr(0, at);
}
bool is_linear_class(std::string_view c) { return has(c, "Linear") || c == "Conv1D"; }

std::string_view name_of_place(Place p, bool product) {
  switch (p) {
    case Place::qkv:
    case Place::q:
    case Place::kv:
      return "qkv";
    case Place::attention:
      return product ? "attention products" : "attention";
    case Place::proj:
      return "output projection";
    case Place::fc1:
      return "mlp up";
    case Place::fc2:
      return "mlp down";
    case Place::head:
      return "lm head";
    case Place::router:
      return "router";
    case Place::expert_in:
    case Place::expert_out:
      return "experts";
    case Place::none:
      break;
  }
  return {};
}

class ModuleFinder {
 public:
  ModuleFinder(Dissection& d, std::span<const CommLabel> labels)
      : d_(d),
        t_(*d.trace),
        o_(d.operators),
        parents_(d.frame_parent),
        labels_(labels),
        word_of_(t_.strings.size()),
        asked_(t_.strings.size(), 0) {}

  void run() {
    d_.modules = {"unattributed"};
    numbers_.emplace("unattributed", 0);
    if (!parents_.empty()) find_linears();
    find_sequences();
    task_of_launch_.assign(o_.launches.size(), kNone);
    for (std::uint32_t i = 0; i < d_.tasks.size(); ++i)
      if (d_.tasks[i].launch != kNone) task_of_launch_[d_.tasks[i].launch] = i;
    find_transformer();
    for (const bool backward : {false, true}) {
      if (backward) find_backward_products();
      for (std::uint32_t i = 0; i < d_.tasks.size(); ++i)
        if ((d_.tasks[i].phase == Phase::backward) == backward) d_.tasks[i].module = number(module_of(i));
    }
    adopt_unlaunched();
    count_visits();
  }

 private:
  std::uint32_t number(const std::string& name) {
    if (name.empty()) return 0;
    const auto [it, fresh] = numbers_.emplace(name, static_cast<std::uint32_t>(d_.modules.size()));
    if (fresh) d_.modules.push_back(name);
    return it->second;
  }

  // module_of_name() of a row's name, asked once a name.
  std::string_view word(std::uint32_t row) {
    const std::uint32_t n = raw(t_.ops.name[row]);
    if (asked_[n] == 0) {
      asked_[n] = 1;
      word_of_[n] = module_of_name(t_.name_of(OpId{row}));
    }
    return word_of_[n];
  }

  // The word of a task's kernel.
  std::string_view kernel_word(const DissectedTask& task) {
    return task.kind == KernelClass::attention ? "attention" : word(task.row);
  }

  // Places between attentions mean something where there is attention: fused, or with a softmax between its products.
  // A batch of matrix products alone is none.
  void find_transformer() {
    for (const DissectedTask& task : d_.tasks) {
      transformer_ = transformer_ || task.kind == KernelClass::attention || task.kind == KernelClass::softmax;
      for (std::uint32_t p = task.near; p != kNone && !transformer_; p = o_.parent[p])
        transformer_ = (o_.flags(p) & F::attention) != 0 || word(p) == "softmax";
      if (transformer_) return;
    }
  }

  // One node of a compiled graph is a whole backward pass: its matrix products are told by their sizes, which are those
  // of a forward layer: [tokens, out] x [out, in] is the gradient of its input, and over the tokens that of its weight.
  // Of two layers with turned extents (MLP up and down) the latter is told by the former, beside it.
  void find_backward_products() {
    product_.assign(d_.tasks.size(), {});
    std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::string, std::size_t>> votes;  // in, out
    std::map<std::pair<std::int64_t, std::int64_t>, std::string> layers;
    std::map<std::int64_t, bool> tokens;
    for (const DissectedTask& task : d_.tasks) {
      if (!is_forward(task.phase) || task.kind != KernelClass::gemm || task.op == kNone) continue;
      const Gemm g = o_.gemm(task.op);
      if (g.m <= 0 || g.batch > 1 || d_.modules[task.module] == "linear") continue;
      ++votes[{g.k, g.n}][d_.modules[task.module]];
      tokens[g.m] = true;
    }
    for (const auto& [sizes, names] : votes) {
      std::size_t all = 0;
      for (const auto& [name, n] : names) all += n;
      for (const auto& [name, n] : names)
        if (n * 5 >= all * 4) layers[sizes] = name;
    }
    if (layers.empty() || !transformer_) return;
    const auto find = [&](std::int64_t in, std::int64_t out) {
      const auto it = layers.find({in, out});
      return it == layers.end() ? std::string() : it->second;
    };
    struct Open {
      std::uint32_t task;
      std::pair<std::int64_t, std::int64_t> sizes;
      std::string name;
    };
    std::vector<Open> products;
    for (std::uint32_t i = 0; i < d_.tasks.size(); ++i) {
      const DissectedTask& task = d_.tasks[i];
      if (task.phase != Phase::backward || task.kind != KernelClass::gemm || task.op == kNone) continue;
      const Gemm g = o_.gemm(task.op);
      if (g.m <= 0 || g.batch > 1) continue;
      if (tokens.count(g.k) == 0 || tokens.count(g.m) != 0) {
        products.push_back({i, std::minmax(g.n, g.k), find(g.n, g.k)});
        continue;
      }
      const std::string one = find(g.m, g.n), other = find(g.n, g.m);
      products.push_back({i, std::minmax(g.m, g.n),
                          one == other || other.empty() ? one
                          : one.empty()                 ? other
                                                        : std::string()});
    }
    // In a run of products of the same two extents the two of a layer follow each other; which of them comes first, the
    // first of the run tells.
    for (std::size_t begin = 0; begin < products.size();) {
      std::size_t end = begin;
      while (end < products.size() && products[end].sizes == products[begin].sizes) ++end;
      const bool next = products[begin].name.empty();
      for (std::size_t k = begin; k < end; ++k) {
        std::string name = products[k].name;
        if (name.empty() && next && k + 1 < end) name = products[k + 1].name;
        if (name.empty() && !next) name = products[k - 1].name;
        product_[products[k].task] = name;
      }
      begin = end;
    }
  }

  std::string module_of(std::uint32_t i) {
    const DissectedTask& task = d_.tasks[i];
    if (task.communicates) {
      const auto l = std::lower_bound(labels_.begin(), labels_.end(), task.row,
                                      [](const CommLabel& c, std::uint32_t row) { return c.row < row; });
      return l != labels_.end() && l->row == task.row ? l->label : "communication";
    }
    switch (task.phase) {
      case Phase::optimizer:
        return "optimizer";
      case Phase::data:
        return "inputs";
      case Phase::backward:
        return of_backward(i);
      case Phase::unattributed:
        if (task.kind == KernelClass::memory) return "copies";
        return task.kind == KernelClass::gemm ? "" : std::string(kernel_word(task));
      case Phase::host: {
        const std::string_view w = chain_word(task);
        return w.empty() ? "between phases" : std::string(w);
      }
      default:
        return of_forward(i);
    }
  }

  // What the operators round the launch say, from the innermost outwards, up to `last`.
  std::string_view chain_word(const DissectedTask& task, std::uint32_t last = kNone) {
    for (std::uint32_t p = task.near; p != kNone; p = o_.parent[p]) {
      if (t_.ops.kind[p] != OpKind::cpu_op) continue;
      if ((o_.flags(p) & F::checkpoint) == 0)
        if (const std::string_view w = word(p); !w.empty()) return w;
      if (p == last) break;
    }
    return {};
  }

  std::string_view anchor_word(const DissectedTask& task) const {
    if (task.launch == kNone || o_.launches[task.launch].anchor == kNone || !transformer_) return {};
    // without sizes the order alone is a guess, and a range that names the part says better
    const Anchor& a = o_.anchors[o_.launches[task.launch].anchor];
    if (a.in <= 0 && task.kind == KernelClass::gemm && !range_name(task).empty()) return {};
    return name_of_place(o_.anchors[o_.launches[task.launch].anchor].place, task.kind == KernelClass::gemm);
  }

  std::string range_name(const DissectedTask& task) const {
    for (std::uint32_t p = task.near; p != kNone; p = o_.parent[p]) {
      if (t_.ops.kind[p] != OpKind::user_annotation) continue;
      if (std::string n = name_if_module(p); !n.empty()) return n;
    }
    return task.cover == kNone ? std::string() : name_if_module(task.cover);
  }
  // "" where the range names a phase, not a part of the model.
  std::string name_if_module(std::uint32_t row) const {
    const std::string_view full = t_.name_of(OpId{row});
    if (is_neutral_range(full)) return {};
    std::string name = name_of_range(full);
    const std::string low = lower(name);
    for (const std::string_view plain : {"forward", "backward", "forward_step", "backward_step", "forward_backward",
                                         "optimizer", "1f1b", "distributeddataparallel.forward", "train_step", "step"})
      if (low == plain) return {};
    if (has(low, "execute_") || has(low, "step[")) return {};
    return name;
  }

  std::string by_class(const DissectedTask& task) const {
    switch (task.kind) {
      case KernelClass::gemm:
        for (std::uint32_t p = task.near; p != kNone; p = o_.parent[p])
          if ((o_.flags(p) & F::batched) != 0) return "batched products";
        return "linear";
      case KernelClass::elementwise:
        return "elementwise";
      case KernelClass::memory:
        return "copies";
      case KernelClass::other:
        if (has(t_.name_of(OpId{task.row}), "reduce_kernel") || has(t_.name_of(OpId{task.row}), "triton_red"))
          return "reductions";
        return task.op == kNone ? "" : "other operators";
      default:
        return std::string(name_of(task.kind));
    }
  }

  std::string of_forward(std::uint32_t i) {
    const DissectedTask& task = d_.tasks[i];
    if (task.kind == KernelClass::attention) return "attention";
    const std::uint32_t module = nearest_module(task.frame);
    std::string_view said = frame_word(task.frame, module);
    const std::string_view inner = chain_word(task);
    if (said == "attention" || said == "embedding" || said == "experts") {
      if (!inner.empty() && said != "experts") said = inner;
      if (said == "attention" && task.kind == KernelClass::gemm && anchor_word(task) == "attention products")
        said = "attention products";
    }
    if (!said.empty()) return std::string(said);
    if (!inner.empty()) return std::string(inner);
    if (const std::string_view place = anchor_word(task); !place.empty()) return std::string(place);
    if (module != kNone) {
      if (task.kind == KernelClass::gemm) return "linear";
      if (task.kind == KernelClass::elementwise) return "elementwise";
      return std::string(class_of(t_.name_of(OpId{module})));
    }
    if (task.kind == KernelClass::gemm && !sequence_[i].empty()) return std::string(sequence_[i]);
    if (const std::string_view w = kernel_word(task); !w.empty()) return std::string(w);
    if (!sequence_[i].empty()) return std::string(sequence_[i]);
    if (std::string range = range_name(task); !range.empty()) return range;
    return by_class(task);
  }

  std::string of_backward(std::uint32_t i) {
    const DissectedTask& task = d_.tasks[i];
    if (task.kind == KernelClass::attention) return "attention";
    const std::uint32_t node = task.launch == kNone ? kNone : o_.launches[task.launch].node;
    for (std::uint32_t p = task.near; p != kNone; p = o_.parent[p])
      if ((o_.flags(p) & F::accumulate) != 0) return "gradient accumulation";
    // One node of a compiled graph is the whole backward pass.
    if (node != kNone && !has(o_.name(node), "Compiled")) {
      if (const std::uint32_t f = o_.forward_launch(node, task.at); f != kNone && task_of_launch_[f] != kNone) {
        const DissectedTask& forward = d_.tasks[task_of_launch_[f]];
        if (!forward.communicates && forward.module != 0) return d_.modules[forward.module];
      }
    }
    if (const std::string_view place = anchor_word(task); !place.empty()) return std::string(place);
    if (!product_[i].empty()) return product_[i];
    if (const std::string_view w = chain_word(task, node); !w.empty()) return std::string(w);
    if (const std::string_view w = kernel_word(task); !w.empty()) return std::string(w);
    if (std::string range = range_name(task); !range.empty()) return range;
    return by_class(task);
  }

  // ---- nn.Module frames ----

  std::uint32_t nearest_module(std::uint32_t frame) const {
    while (frame != kNone && !is_module(t_.name_of(OpId{frame}))) frame = parents_[frame];
    return frame;
  }

  // What the functions up to the innermost module, or that module, say.
  std::string_view frame_word(std::uint32_t frame, std::uint32_t module) {
    for (std::uint32_t f = frame; f != kNone && f != module; f = parents_[f]) {
      std::string_view name = t_.name_of(OpId{f});
      const auto at = name.rfind("): ");
      if (at == std::string_view::npos) continue;
      const std::string_view w = module_of_name(name.substr(at + 3));
      for (const std::string_view trusted : {"rotary", "loss", "kv cache", "sampling", "attention"})
        if (w == trusted) return w;
      if (module == kNone && f == frame && !w.empty()) return w;
    }
    if (module == kNone) return {};
    const std::string_view c = class_of(t_.name_of(OpId{module}));
    if (is_linear_class(c)) return linear_word(module, c);
    return module_of_name(c);
  }

  void find_linears() {
    std::vector<std::uint32_t> rows;
    for (std::uint32_t i = 0; i < t_.ops.size(); ++i)
      if (t_.ops.kind[i] == OpKind::python && is_module(t_.name_of(OpId{i}))) rows.push_back(i);
    std::sort(rows.begin(), rows.end(),
              [&](std::uint32_t a, std::uint32_t b) { return t_.ops.start[a] < t_.ops.start[b]; });
    for (const std::uint32_t row : rows) {
      const std::uint32_t parent = nearest_module(parents_[row]);
      if (parent == kNone) continue;
      const std::string_view c = class_of(t_.name_of(OpId{row}));
      if (is_linear_class(c)) linears_[parent].push_back(row);
      if (const std::string_view w = module_of_name(c); w == "experts" || has(lower(c), "moe"))
        has_experts_[parent] = true;
    }
  }

  std::string_view linear_word(std::uint32_t row, std::string_view c) {
    if (const std::string_view w = module_of_name(c); !w.empty()) return w;
    const std::uint32_t parent = nearest_module(parents_[row]);
    if (parent == kNone) return {};
    const std::string p = lower(class_of(t_.name_of(OpId{parent})));
    const std::vector<std::uint32_t>& all = linears_[parent];
    const bool last = !all.empty() && all.back() == row;
    if (has(p, "selfoutput")) return "output projection";
    if (has(p, "attention") || has(p, "attn")) {
      if (has(c, "RowParallel")) return "output projection";
      if (has(c, "ColumnParallel")) return "qkv";
      return last && (all.size() == 2 || all.size() >= 4) ? "output projection" : "qkv";
    }
    if (has(p, "intermediate")) return "mlp up";
    if (has_experts_.count(parent) != 0) return "router";
    if (has(p, "mlp") || has(p, "feedforward") || has(p, "feed_forward") || has(p, "ffn")) {
      if (has(c, "RowParallel")) return "mlp down";
      if (has(c, "ColumnParallel")) return "mlp up";
      return last && all.size() > 1 ? "mlp down" : "mlp up";
    }
    if (p.size() > 6 && p.substr(p.size() - 6) == "output" && !has(p, "pool")) return "mlp down";
    if (has(p, "lmhead") || has(p, "forcausallm") || has(p, "predictionhead")) return "lm head";
    return {};
  }

  // ---- the order of kernels ----

  // One sequence: what one graph launch ran, or the forward launches of one thread up to another phase.
  void find_sequences() {
    sequence_.assign(d_.tasks.size(), {});
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> open;  // by lane and graph call
    const auto close = [&](std::vector<std::uint32_t>& members) {
      std::vector<SequenceItem> items;
      for (const std::uint32_t i : members)
        items.push_back(
            {d_.tasks[i].kind, d_.tasks[i].communicates, t_.name_of(OpId{d_.tasks[i].row}), word(d_.tasks[i].row)});
      const std::vector<std::string_view> words = modules_of_sequence(items);
      for (std::size_t k = 0; k < members.size(); ++k) sequence_[members[k]] = words[k];
      members.clear();
    };
    std::map<std::uint32_t, Phase> phase_of_lane;
    for (std::uint32_t i = 0; i < d_.tasks.size(); ++i) {
      const DissectedTask& task = d_.tasks[i];
      if (task.call == kNone) continue;
      const std::uint32_t lane = raw(task.lane);
      if (!task.communicates) {
        const auto [it, fresh] = phase_of_lane.emplace(lane, task.phase);
        if (!fresh && it->second != task.phase) {
          for (auto& [key, members] : open)
            if (key.first == lane) close(members);
          it->second = task.phase;
        }
        if (!is_forward(task.phase)) continue;
      }
      open[{lane, task.graph ? task.call : kNone}].push_back(i);
    }
    for (auto& [key, members] : open) close(members);
  }

  // Launched before the recording began: as the launched tasks of that kernel between the same neighbours of the
  // stream, where these agree; the more neighbours the better. The first of a stream have none before them.
  void adopt_unlaunched() {
    if (std::none_of(d_.tasks.begin(), d_.tasks.end(), [](const DissectedTask& task) { return task.call == kNone; }))
      return;
    std::vector<std::uint32_t> order(d_.tasks.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const std::uint32_t x = d_.tasks[a].row, y = d_.tasks[b].row;
      return std::tuple{t_.ops.lane[x], t_.ops.start[x], a} < std::tuple{t_.ops.lane[y], t_.ops.start[y], b};
    });
    struct Around {
      std::size_t before, after;
    };
    const auto key = [&](std::size_t at, Around n) {
      std::uint64_t h = 0x9e3779b97f4a7c15ull;
      for (std::size_t k = 0; k <= n.before + n.after; ++k) {
        std::uint64_t name = 0;  // there is none: before the first of the stream, behind the last
        if (at + k >= n.before && at + k - n.before < order.size()) {
          const std::uint32_t row = d_.tasks[order[at + k - n.before]].row;
          if (t_.ops.lane[row] == t_.ops.lane[d_.tasks[order[at]].row]) name = raw(t_.ops.name[row]) + 1;
        }
        h = (h ^ name) * 0xbf58476d1ce4e5b9ull + (h >> 31);
      }
      return h;
    };
    std::vector<char> done(d_.tasks.size(), 0);
    constexpr Around kAround[] = {{3, 3}, {2, 2}, {0, 4}, {4, 0}, {1, 1}, {0, 2}, {2, 0}, {0, 1}, {1, 0}, {0, 0}};
    for (const Around n : kAround) {
      std::unordered_map<std::uint64_t, std::uint32_t> alike;  // a task; kNone = they differ
      for (std::size_t at = 0; at < order.size(); ++at) {
        const DissectedTask& task = d_.tasks[order[at]];
        if (task.call == kNone || task.communicates) continue;
        const auto [it, fresh] = alike.emplace(key(at, n), order[at]);
        if (fresh || it->second == kNone) continue;
        const DissectedTask& other = d_.tasks[it->second];
        if (other.module != task.module || other.phase != task.phase) it->second = kNone;
      }
      for (std::size_t at = 0; at < order.size(); ++at) {
        DissectedTask& task = d_.tasks[order[at]];
        if (task.call != kNone || task.communicates || done[order[at]] != 0 || task.phase == Phase::optimizer) continue;
        const auto it = alike.find(key(at, n));
        if (it == alike.end() || it->second == kNone) continue;
        task.phase = d_.tasks[it->second].phase;
        task.module = d_.tasks[it->second].module;
        done[order[at]] = 1;
      }
    }
  }

  void count_visits() {
    struct Last {
      std::uint32_t module = kNone, visit = 0;
      Phase phase = Phase::unattributed;
    };
    std::unordered_map<std::uint32_t, Last> last;  // by lane
    std::uint32_t next = 0;
    const auto found = numbers_.find("gradient accumulation");
    const std::uint32_t accumulation = found == numbers_.end() ? kNone : found->second;
    for (DissectedTask& task : d_.tasks) {
      if (task.communicates || task.module == accumulation) {  // in between, they end no visit
        task.visit = next++;
        continue;
      }
      Last& l = last[raw(task.lane)];
      if (l.module != task.module || l.phase != task.phase) l = {task.module, next++, task.phase};
      task.visit = l.visit;
    }
  }

  Dissection& d_;
  const RankTrace& t_;
  const Operators& o_;
  const std::vector<std::uint32_t>& parents_;  // of frames
  std::span<const CommLabel> labels_;
  std::vector<std::string_view> word_of_;  // by StrId
  std::vector<char> asked_;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> linears_;  // by module frame: linear layers in it
  std::unordered_map<std::uint32_t, bool> has_experts_;
  std::vector<std::string_view> sequence_;  // by task
  std::vector<std::string> product_;        // by task: of matrix products of a backward pass
  bool transformer_ = false;
  std::vector<std::uint32_t> task_of_launch_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

}  // namespace

void find_modules(Dissection& d, std::span<const CommLabel> labels) { ModuleFinder(d, labels).run(); }

}  // namespace orrery
