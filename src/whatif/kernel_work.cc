// What each GPU task computes: matrix products by the place of their layer, attention by the model, all else by the
// number of elements and the place that the last layer ahead of it gives.
#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "base/text_match.h"
#include "graph/build.h"
#include "whatif/operators.h"
#include "whatif/optimizer.h"
#include "whatif/work.h"
#include "whatif/work_sizes.h"

namespace orrery {
namespace {

using F = NameFlags;

Work memory(const Term& m) {
  Work w;
  w.kind = WorkKind::memory;
  w.m = m;
  return w;
}
Work fixed() {
  Work w;
  w.kind = WorkKind::fixed;
  return w;
}
Work parameters(double elements) {
  Work w = memory(constant(std::max(1.0, elements)));
  w.parameters = true;
  return w;
}

struct KernelName {
  enum : std::uint32_t {
    asked = 1,
    gemm = 2,
    split_reduction = 4,
    attention = 8,
    optimizer = 16,
    communication = 32,
    sort = 64
  };
  std::uint32_t flags = 0;
  Grid grid;  // without its blocks
};

KernelName read_kernel_name(std::string_view name) {
  using K = KernelName;
  K k;
  k.flags = K::asked;
  if (is_communication_name(name)) k.flags |= K::communication;
  if (is_gemm_kernel(name)) k.flags |= K::gemm;
  if (is_split_reduction(name)) k.flags |= K::split_reduction;
  if (is_attention_kernel(name)) k.flags |= K::attention;
  if (is_optimizer_kernel(name)) k.flags |= K::optimizer;
  if (has(name, "RadixSort") || has(name, "DeviceScan") || has(name, "thrust") || has(name, "krn_partial"))
    k.flags |= K::sort;
  k.grid = grid_of_kernel(name);
  return k;
}

// Kernels of fused attention that only prepare or finish: one pass over its activations.
bool is_attention_pass(std::string_view name) {
  for (const std::string_view part : {"dot_do_o", "convert_dq", "convert_dkv", "Preprocess", "Postprocess",
                                      "preprocess", "postprocess", "combine", "Combine"})
    if (has(name, part)) return true;
  return false;
}

class Recogniser {
 public:
  Recogniser(const RankTrace& t, const ModelShape& m) : t_(t), m_(m), z_(m), o_(read_operators(t)) {}
  TaskWork run();

 private:
  struct Site {
    const Launch* l = nullptr;
    std::uint32_t kernel = 0;  // flags of its name
    std::uint32_t chain = 0;   // flags of all operators round it
    Grid grid;
    Spot spot;
  };

  Work work_of(std::uint32_t launch);
  Work linear_work(const Launch& l, const Anchor& a);
  Work expert_work(const Launch& l, const Anchor& a);
  Work router_work(const Launch& l, const Anchor& a);
  Work routed_work(const Site& s);
  Work attention_work(const Launch& l, bool backward);
  Work batched_work(const Launch& l, const Gemm& g);
  Work copy_work(const Site& s, double bytes);
  Work memory_work(const Site& s, std::uint32_t launch);
  Work without_launch(std::uint32_t task);

  Spot& spot(const Launch& l) { return spots_[raw(l.lane) * 2 + (l.backward ? 1 : 0)]; }
  const KernelName& kernel_name(std::uint32_t task);
  void enter(const Launch& l, Place p);

  const RankTrace& t_;
  const ModelShape& m_;
  Sizes z_;
  Operators o_;
  std::vector<KernelName> kernels_;
  std::vector<Spot> spots_;  // by thread and pass
  std::vector<Work> done_;   // by launch
};

const KernelName& Recogniser::kernel_name(std::uint32_t task) {
  KernelName& k = kernels_[raw(t_.ops.name[task])];
  if (k.flags == 0) k = read_kernel_name(t_.name_of(OpId{task}));
  return k;
}

Work Recogniser::linear_work(const Launch& l, const Anchor& a) {
  const Gemm g = o_.gemm(l.op);
  Work w;
  w.kind = WorkKind::gemm;
  // The second product of a backward pass is the weight's gradient, unless only that was wanted.
  const bool weight_first = a.backward && a.gemms == 1 && has(t_.name_of(OpId{l.task}), "_nt");
  const bool weight = a.backward && (l.nth_gemm > 0 || weight_first);
  auto shape = [&](const Term& in, const Term& out, const Term& tokens, bool of_weight) {
    w.m = of_weight ? out : tokens;
    w.n = of_weight || a.backward ? in : out;
    w.k = of_weight ? tokens : a.backward ? out : in;
  };
  auto agrees = [&] {
    if (g.m == 0) return z_.known(w.m) && z_.known(w.n) && z_.known(w.k);
    const auto m = static_cast<double>(g.m), n = static_cast<double>(g.n), k = static_cast<double>(g.k);
    if (!z_.is(w.k, k)) return false;
    if (z_.is(w.m, m) && z_.is(w.n, n)) return true;
    if (!z_.is(w.m, n) || !z_.is(w.n, m)) return false;
    std::swap(w.m, w.n);  // weights may lie the other way round
    return true;
  };
  auto attempt = [&](Place p, const Term& out) {
    for (const Term& tokens : {z_.tokens, z_.split_tokens}) {
      for (const bool of_weight : {weight, !weight}) {
        if (of_weight && !a.backward) continue;
        if (of_weight != weight && g.m == 0) continue;
        shape(z_.width(p, false), out, tokens, of_weight);
        if (agrees()) return true;
      }
    }
    return false;
  };
  // k and v in one product, and a gate that is or is not in one
  auto with_place = [&](Place p) {
    if (attempt(p, z_.width(p, true))) return true;
    if (g.m == 0) return false;
    if (p == Place::kv && attempt(p, constant(2) * z_.kv)) return true;
    return p == Place::fc1 && m_.gated_mlp && attempt(p, m_.fused_gate ? z_.ffn : z_.gates);
  };
  if (a.place != Place::none && with_place(a.place)) return w;
  // Sizes that fit another place alone: the order was broken, the sizes are not.
  if (g.m > 0 && a.place == Place::none) {
    for (const Place p : {Place::fc1, Place::fc2, Place::qkv, Place::head, Place::proj, Place::q, Place::kv})
      if (with_place(p)) return w;
  }
  return {};
}

// The rows are those that were sent to the rank, dealt to its experts: in each pass others, on average those of
// ModelShape::routed. One kernel for all experts, or one each.
Work Recogniser::expert_work(const Launch& l, const Anchor& a) {
  if (!z_.known(z_.routed) || z_.local_experts < 1 || !z_.known(z_.expert_width) || !z_.known(z_.hidden)) return {};
  const std::uint32_t kinds = a.backward ? 2 : 1;  // gradients of the input, then of the weight
  const bool single = a.experts == 0;              // each expert's product is an operator of its own
  const bool one_kernel = !single && a.gemms <= kinds;
  const bool weight = a.backward && l.nth_gemm >= (a.gemms + 1) / 2;
  const Term rows = constant(single ? 1 : 1 / z_.local_experts) * z_.routed;
  const Term in = z_.width(a.place, false), out = z_.width(a.place, true);
  Work w;
  w.kind = WorkKind::gemm;
  w.m = weight ? out : rows;
  w.n = weight || a.backward ? in : out;
  w.k = weight ? rows : a.backward ? out : in;
  if (one_kernel) w.batch = constant(z_.local_experts);
  w.experts = true;
  return w;
}

Work Recogniser::router_work(const Launch& l, const Anchor& a) {
  const auto experts = static_cast<double>(m_.router_width);
  if (experts < 1 || !z_.known(z_.hidden)) return {};
  const bool weight = a.backward && l.nth_gemm > 0;
  Work w;
  w.kind = WorkKind::gemm;
  const Term rows = z_.split_tokens, out = constant(experts);
  w.m = weight ? out : rows;
  w.n = weight || a.backward ? z_.hidden : out;
  w.k = weight ? rows : a.backward ? out : z_.hidden;
  return w;
}

// What lies between the router and the next dense layer, by the rows of the tensors round it: as many as tokens are
// sent, on average.
Work Recogniser::routed_work(const Site& s) {
  if (!z_.known(z_.routed)) return {};
  const double mean = z_.value(z_.routed);
  for (std::uint32_t p = s.l->op; p != kNone; p = o_.parent[p]) {
    for (const Tensor& t : o_.tensors(p)) {
      if (t.size() != 2 || t[1] < 1) continue;
      const auto rows = static_cast<double>(t[0]), columns = static_cast<double>(t[1]);
      const Term width = z_.is(z_.hidden, columns) ? z_.hidden : constant(columns);
      if (z_.is(z_.split_tokens, rows)) return memory(z_.split_tokens * width);
      // each pass has its own number; several experts, or parts of them, may have a tensor each
      if (rows > mean / 4 && rows < 4 * mean) return memory(z_.routed * width);
    }
    if (p == s.l->node) break;
  }
  return {};
}

Work Recogniser::attention_work(const Launch& l, bool backward) {
  const std::string_view name = t_.name_of(OpId{l.task});
  if (!z_.known(z_.attn) || !z_.known(z_.tokens)) return {};
  if (is_attention_pass(name)) return memory(z_.tokens * z_.attn);
  // recorded sizes must be the model's
  for (std::uint32_t p = l.op; p != kNone && p != l.node; p = o_.parent[p]) {
    if ((o_.flags(p) & F::attention) == 0) continue;
    const std::vector<Tensor>& t = o_.tensors(p);
    if (t.empty() || t[0].size() < 3) continue;
    const double n = elements_of(t[0]);
    const double q = z_.value(z_.tokens * z_.attn);
    if (std::none_of(t.begin(), t.end(), [&](const Tensor& x) { return std::abs(elements_of(x) - q) < 0.5; }) &&
        std::abs(n - 3 * q) > 0.5)
      return {};
    break;
  }
  Work w;
  w.kind = backward ? WorkKind::attention_backward : WorkKind::attention;
  w.batch = z_.heads;
  w.m = w.n = z_.seq;
  w.k = z_.head_dim;
  return w;
}

// Scores and context of unfused attention, and their gradients: every extent is the sequence or the head dimension.
Work Recogniser::batched_work(const Launch& l, const Gemm& g) {
  Work w;
  w.kind = WorkKind::gemm;
  w.batch = z_.heads;
  Spot& r = spot(l);
  if (g.batch == 0) {
    // The first product forward makes scores, the second uses them; backward, the gradient of the scores comes first.
    if (!z_.known(z_.scores)) return {};
    r.scores = !r.scores && (!l.backward || l.nth_gemm == 0);
    w.m = z_.seq;
    w.n = r.scores ? z_.seq : z_.head_dim;
    w.k = r.scores ? z_.head_dim : z_.seq;
    return w;
  }
  if (!z_.is(w.batch, static_cast<double>(g.batch))) return {};
  auto extent = [&](std::int64_t x, Term& into) {
    for (const Term& t : {z_.seq, z_.head_dim}) {
      into = t;
      if (z_.is(t, static_cast<double>(x))) return true;
    }
    return false;
  };
  if (!extent(g.m, w.m) || !extent(g.n, w.n) || !extent(g.k, w.k)) return {};
  r.scores = w.m == z_.seq && w.n == z_.seq;
  return w;
}

Work Recogniser::copy_work(const Site& s, double bytes) {
  if (bytes >= 0 && bytes <= 64) return fixed();
  if (bytes < 0) return {};
  // Outside of autograd, what is as long as a buffer of gradients is one: its size equals others only by chance.
  const bool buffer = t_.ops.kind[s.l->task] == OpKind::memset && s.l->node == kNone && bytes >= 1 << 20;
  // The operators round it have the tensor, the bytes its element.
  const std::array<double, 4> sizes = {2, 4, 8, 1};
  bool flat = false;
  for (std::uint32_t p = s.l->op; p != kNone && p != s.l->node; p = o_.parent[p]) {
    for (const Tensor& t : o_.tensors(p)) {
      const double n = elements_of(t);
      if (std::none_of(sizes.begin(), sizes.end(), [&](double e) { return n * e == bytes; })) continue;
      if (buffer && t.size() == 1) return parameters(bytes / 4);
      if (const auto x = z_.of_tensor(t, s.spot, s.grid)) return memory(*x);
      flat = flat || t.size() == 1;
    }
  }
  if (buffer) return parameters(bytes / 4);
  const auto known = static_cast<double>(m_.dtype_bytes);
  if (known > 0)
    if (const auto x = z_.of_count(bytes / known, s.spot, s.grid)) return memory(*x);
  for (const double e : sizes)
    if (const auto x = z_.of_count(bytes / e, s.spot, s.grid)) return memory(*x);
  if (flat && bytes >= 1 << 18) return parameters(bytes / 4);
  return {};
}

Work Recogniser::memory_work(const Site& s, std::uint32_t launch) {
  const Launch& l = *s.l;
  const bool single = s.grid.blocks == 1;
  if ((s.chain & F::optimizer) != 0 && s.spot.parameter) {
    if (single) return fixed();
    double most = 1;
    for (std::uint32_t p = l.op; p != kNone; p = o_.parent[p])
      for (const Tensor& t : o_.tensors(p)) most = std::max(most, elements_of(t));
    return parameters(most);
  }
  // Embedding: its largest input is the table, of which it reads as many rows as there are tokens.
  if ((s.chain & F::embedding) != 0) {
    if ((s.kernel & KernelName::sort) != 0) return z_.known(z_.tokens) ? memory(z_.tokens) : Work{};
    if (s.grid.per_thread == 0) {
      for (const Term& lead : {z_.tokens, z_.split_tokens}) {
        for (std::uint32_t p = l.op; p != kNone; p = o_.parent[p]) {
          const std::vector<Tensor>& t = o_.tensors(p);
          if ((o_.flags(p) & F::embedding) == 0 || t.size() < 2) continue;
          const double width = static_cast<double>(t[0].empty() ? 0 : t[0].back());
          const double ids = elements_of(t[1]);
          if (z_.is(z_.hidden, width) && z_.is(lead, ids)) return memory(lead * z_.hidden);
        }
      }
      if (z_.known(z_.tokens * z_.hidden) && !single) return memory(z_.tokens * z_.hidden);
    }
  }
  // The largest tensor of the innermost operator that has shapes.
  bool shaped = false;
  double flat = 0;
  for (std::uint32_t p = l.op; p != kNone; p = o_.parent[p]) {
    const std::vector<Tensor>& t = o_.tensors(p);
    double most = 0;
    const Tensor* largest = nullptr;
    for (const Tensor& x : t)
      if (const double n = elements_of(x); !x.empty() && n > most) most = n, largest = &x;
    if (largest != nullptr) {
      if (const std::string_view name = o_.name(p); name == "aten::cat" || name == "aten::stack") {
        double all = 0;
        for (const Tensor& x : t)
          if (!x.empty()) all += elements_of(x);
        if (const auto x = z_.of_count(all, s.spot, s.grid)) return memory(*x);
      }
      const bool scaling = has(o_.name(p), "mul_") || has(o_.name(p), "div_");
      if (s.spot.parameter && scaling && largest->size() == 1 && most >= 1 << 16) return parameters(most);
      if (const auto x = z_.of_tensor(*largest, s.spot, s.grid)) return memory(*x);
      if (!shaped && largest->size() == 1) flat = most;
      if (!shaped && most <= 64) return fixed();
      // operators inside of an autograd function have their own tensors: look for these by the grid
      shaped = true;
      if (p == l.op) {
        if (flat >= 1 << 16) return parameters(flat);
        if (s.grid.told()) break;
        return {};
      }
    }
    if (p == l.node) break;
  }
  if (flat >= 1 << 16) return parameters(flat);
  const std::string_view innermost = l.op == kNone ? std::string_view() : o_.name(l.op);
  const bool scaled = has(innermost, "mul_") || has(innermost, "div_");
  if (s.spot.parameter && scaled && !shaped && s.grid.blocks * s.grid.threads >= 1 << 16) return parameters(1);
  // A backward operator handles what its forward operator did.
  const std::uint32_t forward =
      l.backward && l.node != kNone && !s.spot.parameter ? o_.forward_launch(l.node, l.at) : kNone;
  const bool done = forward != kNone && forward < launch && done_[forward].kind == WorkKind::memory;
  if (done && s.grid.told() && z_.covers(s.grid, done_[forward].m)) return done_[forward];
  if (const auto x = z_.of_grid(s.spot, s.grid)) return memory(*x);
  if (single) return fixed();
  if (shaped) return {};
  if (l.op == kNone) return {};
  if (done) return done_[forward];
  if (s.grid.told()) {
    const auto x = z_.near_grid(s.spot, s.grid);
    return x ? memory(*x) : Work{};
  }
  // Else by its place alone.
  Term x = z_.widths(s.spot).front();
  if ((s.chain & F::norm) != 0) x = z_.hidden;
  if ((s.chain & F::loss) != 0) x = z_.vocab;
  if (!s.spot.parameter) {
    const bool softmax = has(innermost, "softmax") || has(innermost, "Softmax");
    x = s.spot.scores || (softmax && (s.chain & F::loss) == 0) ? z_.scores : z_.rows(x)[0] * x;
  }
  return z_.known(x) ? memory(x) : Work{};
}

void Recogniser::enter(const Launch& l, Place p) {
  if (p == Place::none) return;
  Spot& s = spot(l);
  s.last = p;
  s.scores = s.scores && p == Place::attention;
  s.table = false;
}

Work Recogniser::work_of(std::uint32_t n) {
  const Launch& l = o_.launches[n];
  const OpTable& ops = t_.ops;
  const KernelName& k = kernel_name(l.task);
  if ((k.flags & KernelName::communication) != 0) return {};
  if (ops.kind[l.task] == OpKind::kernel && ops.extra[l.task] != kNone && is_communication(t_, OpId{l.task})) return {};
  if ((k.flags & KernelName::optimizer) != 0) return parameters(1);
  Site s;
  s.l = &l;
  s.kernel = k.flags;
  s.grid = k.grid;
  if (ops.kind[l.task] == OpKind::kernel && ops.extra[l.task] != kNone) {
    s.grid.blocks = t_.kernel_args.grid_blocks[ops.extra[l.task]];
    s.grid.threads = t_.kernel_args.block_threads[ops.extra[l.task]];
  }
  for (std::uint32_t p = l.op; p != kNone; p = o_.parent[p]) s.chain |= o_.flags(p);
  if ((s.chain & F::embedding) != 0) {
    if (!l.backward) spot(l).last = Place::none;
    spot(l).table = true;
  }
  s.spot = spot(l);
  s.spot.backward = l.backward;
  s.spot.parameter = (s.chain & (F::accumulate | F::optimizer)) != 0;
  if (ops.kind[l.task] != OpKind::kernel) {
    const double bytes = ops.extra[l.task] == kNone ? -1 : static_cast<double>(t_.copy_args.bytes[ops.extra[l.task]]);
    s.spot.parameter = s.spot.parameter || (l.backward && (s.chain & F::embedding) != 0);
    return copy_work(s, bytes);
  }
  if (l.anchor != kNone) {
    const Anchor& a = o_.anchors[l.anchor];
    enter(l, a.place);
    s.spot.last = spot(l).last, s.spot.scores = spot(l).scores, s.spot.table = spot(l).table;
    if ((k.flags & KernelName::gemm) != 0 && of_experts(a.place)) return expert_work(l, a);
    if ((k.flags & KernelName::gemm) != 0 && a.place == Place::router) return router_work(l, a);
    if (a.attention && (k.flags & KernelName::attention) != 0) return attention_work(l, a.backward);
    const bool product = (k.flags & KernelName::gemm) != 0;
    if (a.attention && product) return batched_work(l, o_.gemm(l.op));
    if (product) return linear_work(l, a);
  }
  if ((k.flags & KernelName::split_reduction) != 0 && n > 0) {
    const Work& product = done_[n - 1];
    if (product.kind == WorkKind::gemm) return memory(product.batch * product.m * product.n);
    return {};
  }
  if ((k.flags & (KernelName::gemm | KernelName::attention)) != 0) {
    if ((s.chain & F::optimizer) != 0) return parameters(1);
    return {};
  }
  const bool routed = of_experts(s.spot.last) || s.spot.last == Place::router;
  if (routed && !s.spot.parameter && s.grid.blocks != 1)
    if (const Work w = routed_work(s); w.kind != WorkKind::unknown) return w;
  return memory_work(s, n);
}

// Launched ahead of the window, or by a graph: only the name is left.
Work Recogniser::without_launch(std::uint32_t task) {
  const KernelName& k = kernel_name(task);
  if ((k.flags & KernelName::communication) != 0) return {};
  if ((k.flags & KernelName::optimizer) != 0) return parameters(1);
  if (t_.ops.kind[task] != OpKind::kernel && t_.ops.extra[task] != kNone) {
    const std::int64_t bytes = t_.copy_args.bytes[t_.ops.extra[task]];
    if (bytes >= 0 && bytes <= 64) return fixed();
  }
  return {};
}

struct WorkHash {
  std::size_t operator()(const Work& w) const {
    std::uint64_t h = static_cast<std::uint64_t>(w.kind) * 2 + (w.parameters ? 1 : 0);
    auto mix = [&](std::uint64_t x) { h = (h ^ x) * 0x9e3779b97f4a7c15ull + (h >> 29); };
    for (const Term* t : {&w.m, &w.n, &w.k, &w.batch}) {
      mix(std::hash<double>{}(t->factor));
      for (const std::int8_t e :
           {t->seq, t->mbs, t->hidden, t->ffn, t->attn, t->qkv, t->heads, t->head_dim, t->vocab, t->tp, t->split})
        mix(static_cast<std::uint64_t>(static_cast<std::uint8_t>(e)));
    }
    return h;
  }
};

TaskWork Recogniser::run() {
  const OpTable& ops = t_.ops;
  kernels_.assign(t_.strings.size(), {});
  spots_.assign(t_.lanes.size() * 2, {});
  done_.resize(o_.launches.size());
  TaskWork out;
  out.of_op.assign(ops.size(), kNone);
  std::unordered_map<Work, std::uint32_t, WorkHash> row_of;
  auto put = [&](std::uint32_t task, const Work& w) {
    const auto [it, fresh] = row_of.emplace(w, static_cast<std::uint32_t>(out.kinds.size()));
    if (fresh) out.kinds.push_back(w);
    out.of_op[task] = it->second;
  };
  for (std::uint32_t n = 0; n < o_.launches.size(); ++n) {
    done_[n] = work_of(n);
    put(o_.launches[n].task, done_[n]);
  }
  // Without a launch: as all other tasks of that kernel and grid, where these agree.
  auto key = [&](std::uint32_t i) {
    const std::uint64_t grid = ops.extra[i] == kNone ? 0 : t_.kernel_args.grid_blocks[ops.extra[i]];
    return std::uint64_t{raw(ops.name[i])} << 32 | grid;
  };
  std::unordered_map<std::uint64_t, std::uint32_t> alike;
  for (const Launch& l : o_.launches) {
    if (ops.kind[l.task] != OpKind::kernel) continue;
    const auto [it, fresh] = alike.emplace(key(l.task), out.of_op[l.task]);
    if (!fresh && it->second != out.of_op[l.task]) it->second = kNone;
  }
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    if (!is_gpu_task(ops.kind[i]) || out.of_op[i] != kNone) continue;
    const auto it = ops.kind[i] == OpKind::kernel ? alike.find(key(i)) : alike.end();
    if (it != alike.end() && it->second != kNone)
      out.of_op[i] = it->second;
    else
      put(i, without_launch(i));
  }
  return out;
}

}  // namespace

TaskWork recognise_work(const RankTrace& trace, const ModelShape& model) { return Recogniser(trace, model).run(); }

}  // namespace orrery
