// What each GPU task computes: matrix products by the place of their layer, attention by the model, all else by the
// number of elements and the place that the last layer ahead of it gives.
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "graph/build.h"
#include "whatif/operators.h"
#include "whatif/optimizer.h"
#include "whatif/work.h"

namespace orrery {
namespace {

using F = NameFlags;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

Term operator*(const Term& a, const Term& b) {
  Term t;
  t.factor = a.factor * b.factor;
  auto add = [](std::int8_t x, std::int8_t y) { return static_cast<std::int8_t>(x + y); };
  t.seq = add(a.seq, b.seq), t.mbs = add(a.mbs, b.mbs), t.hidden = add(a.hidden, b.hidden), t.ffn = add(a.ffn, b.ffn);
  t.attn = add(a.attn, b.attn), t.qkv = add(a.qkv, b.qkv), t.heads = add(a.heads, b.heads);
  t.head_dim = add(a.head_dim, b.head_dim), t.vocab = add(a.vocab, b.vocab), t.tp = add(a.tp, b.tp);
  t.split = add(a.split, b.split);
  return t;
}

Term constant(double x) {
  Term t;
  t.factor = x;
  return t;
}

// The widths and sizes that tensors of this model have on one rank.
struct Sizes {
  Dims dims;
  Term one, hidden, qkv, attn, kv, ffn, gates, vocab;  // widths; `gates`: both projections of a gated MLP
  Term tokens, split_tokens, seq, head_dim;
  Term scores;  // of unfused attention
  bool split = false;

  explicit Sizes(const ModelShape& m) : dims(m.dims) {
    hidden.hidden = 1;
    qkv.qkv = attn.attn = ffn.ffn = vocab.vocab = 1;
    qkv.tp = attn.tp = ffn.tp = vocab.tp = -1;
    kv = attn;
    if (dims.kv_heads != dims.heads) {  // groups: does not go with the heads
      kv = constant(dims.kv_heads);
      kv.head_dim = 1, kv.tp = -1;
    }
    gates = ffn;
    gates.factor = 2;
    seq.seq = head_dim.head_dim = 1;
    tokens.seq = tokens.mbs = 1;
    split = dims.sequence_parallel && dims.tp > 1;
    split_tokens = tokens;
    if (split) split_tokens.split = -1;
    scores.mbs = scores.heads = 1;
    scores.seq = 2, scores.tp = -1;
  }
  // Rows of an activation of width `x`, the likelier first: outside of tensor-parallel regions, where the width is
  // whole, they may be split by sequence.
  std::array<Term, 2> rows(const Term& x) const {
    return x == hidden ? std::array<Term, 2>{split_tokens, tokens} : std::array<Term, 2>{tokens, split_tokens};
  }
  double value(const Term& t) const { return t.value(dims); }
  bool is(const Term& t, double x) const { return std::abs(t.value(dims) - x) < 0.5 && x >= 1; }
};

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

// Elements that a grid of an elementwise kernel covers, by PyTorch's CUDALoops.cuh and Loops.cuh: a block does its
// threads times so many. 0 = the kernel's name does not tell. Newer versions give a thread twice as many.
int work_of_thread(std::string_view name) {
  const auto at = name.find("elementwise_kernel");
  if (at == std::string_view::npos) return 0;
  if (has(name, "elementwise_kernel_with_index")) return 1;
  if (has(name, "vectorized_elementwise_kernel<8")) return 8;
  if (has(name, "vectorized_elementwise_kernel") || has(name, "unrolled_elementwise_kernel")) return 4;
  // elementwise_kernel<128, 4, ...>, index_elementwise_kernel<128, 4, ...>
  std::string_view rest = name.substr(at + 18);
  const auto comma = rest.find(", ");
  if (rest.empty() || rest[0] != '<' || comma == std::string_view::npos || comma + 2 >= rest.size()) return 0;
  const char c = rest[comma + 2];
  return c >= '1' && c <= '9' ? c - '0' : 0;
}

struct KernelName {
  enum : std::uint32_t {
    asked = 1,
    gemm = 2,
    split_reduction = 4,
    attention = 8,
    optimizer = 16,
    communication = 32,
    sort = 64,
    reduce = 128,
    flexible = 256  // a thread may do twice as many
  };
  std::uint32_t flags = 0;
  int per_thread = 0;
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
  if (has(name, "reduce_kernel")) k.flags |= K::reduce;
  k.per_thread = work_of_thread(name);
  if (has(name, "vectorized_elementwise_kernel<4") || has(name, "unrolled_elementwise_kernel")) k.flags |= K::flexible;
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
  struct Region {  // what the last linear layer or attention ahead of a task leaves
    Place last = Place::none;
    bool scores = false;  // of unfused attention: the last product made scores
    bool table = false;  // an embedding's backward pass: what follows is its table's gradient
  };
  struct Site {
    const Launch* l = nullptr;
    KernelName kernel;
    double grid = 0, threads = 0;
    std::uint32_t chain = 0;  // flags of all operators round it
    bool parameter = false;   // what goes on is about parameters, not activations
  };

  Work work_of(std::uint32_t launch);
  Work linear_work(const Launch& l, const Anchor& a);
  Work attention_work(const Launch& l, bool backward);
  Work batched_work(const Launch& l, const Gemm& g);
  Work copy_work(const Site& s, double bytes);
  Work memory_work(const Site& s, std::uint32_t launch);
  Work without_launch(std::uint32_t task);

  std::vector<Term> widths(const Region& r, bool backward) const;
  std::optional<Term> of_tensor(const Tensor& t, const Site& s) const;
  std::optional<Term> of_count(double n, const Site& s) const;
  std::optional<Term> of_grid(const Site& s) const;
  std::vector<Term> weights(const Region& r) const;
  std::optional<Term> weight(const Tensor& t, const Region& r) const;
  Term table_of_positions() const;
  bool covers(const Site& s, const Term& t) const;
  std::optional<Term> near_grid(const Site& s) const;
  Region& region(const Launch& l) { return regions_[raw(l.lane) * 2 + (l.backward ? 1 : 0)]; }
  const Region& region(const Launch& l) const { return regions_[raw(l.lane) * 2 + (l.backward ? 1 : 0)]; }
  const KernelName& kernel_name(std::uint32_t task);
  Term width_of(Place p, bool out) const;
  void enter(const Launch& l, Place p);

  const RankTrace& t_;
  const ModelShape& m_;
  Sizes z_;
  Operators o_;
  std::vector<KernelName> kernels_;
  std::vector<Region> regions_;
  std::vector<Work> done_;  // by launch
};

const KernelName& Recogniser::kernel_name(std::uint32_t task) {
  KernelName& k = kernels_[raw(t_.ops.name[task])];
  if (k.flags == 0) k = read_kernel_name(t_.name_of(OpId{task}));
  return k;
}

// Width of a linear layer's output or input, on one rank.
Term Recogniser::width_of(Place p, bool out) const {
  switch (p) {
    case Place::qkv:
      return out ? z_.qkv : z_.hidden;
    case Place::q:
      return out ? z_.attn : z_.hidden;
    case Place::kv:
      return out ? z_.kv : z_.hidden;
    case Place::proj:
      return out ? z_.hidden : z_.attn;
    case Place::fc1:
      return out ? (m_.fused_gate ? z_.gates : z_.ffn) : z_.hidden;
    case Place::fc2:
      return out ? z_.hidden : z_.ffn;
    case Place::head:
      return out ? z_.vocab : z_.hidden;
    default:
      return z_.one;
  }
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
    if (g.m == 0) return z_.value(w.m) >= 1 && z_.value(w.n) >= 1 && z_.value(w.k) >= 1;
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
        shape(width_of(p, false), out, tokens, of_weight);
        if (agrees()) return true;
      }
    }
    return false;
  };
  // k and v in one product, and a gate that is or is not in one
  auto with_place = [&](Place p) {
    if (attempt(p, width_of(p, true))) return true;
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

Work Recogniser::attention_work(const Launch& l, bool backward) {
  const std::string_view name = t_.name_of(OpId{l.task});
  if (z_.value(z_.attn) < 1 || z_.value(z_.tokens) < 1) return {};
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
  w.batch.mbs = w.batch.heads = 1;
  w.batch.tp = -1;
  w.m = w.n = z_.seq;
  w.k = z_.head_dim;
  return w;
}

// Scores and context of unfused attention, and their gradients: every extent is the sequence or the head dimension.
Work Recogniser::batched_work(const Launch& l, const Gemm& g) {
  Work w;
  w.kind = WorkKind::gemm;
  w.batch.mbs = w.batch.heads = 1;
  w.batch.tp = -1;
  Region& r = region(l);
  if (g.batch == 0) {
    // The first product forward makes scores, the second uses them; backward, the gradient of the scores comes first.
    if (z_.value(z_.scores) < 1) return {};
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

// Widths of activations, the likeliest at this place first.
std::vector<Term> Recogniser::widths(const Region& r, bool backward) const {
  const Term &h = z_.hidden, &q = z_.qkv, &a = z_.attn, &kv = z_.kv, &f = z_.ffn, &f2 = z_.gates, &v = z_.vocab,
             &one = z_.one;
  if (!backward) {
    switch (r.last) {
      case Place::qkv:
      case Place::q:
      case Place::kv:
        return {r.last == Place::kv ? kv : r.last == Place::q ? a : q, q, a, kv, h, one, f, f2, v};
      case Place::attention:
        return {a, kv, q, h, one, f, f2, v};
      case Place::fc1:
        return m_.fused_gate ? std::vector<Term>{f2, f, one, h, q, a, kv, v}
                             : std::vector<Term>{f, f2, one, h, q, a, kv, v};
      case Place::head:
        return {v, one, h, f, f2, q, a, kv};
      default:
        return {h, one, v, f, f2, q, a, kv};
    }
  }
  switch (r.last) {
    case Place::none:
      return {v, one, h, f, f2, q, a, kv};
    case Place::fc2:
      return m_.gated_mlp ? std::vector<Term>{f, f2, one, h, q, a, kv, v}
                          : std::vector<Term>{f, one, h, f2, q, a, kv, v};
    case Place::proj:
      return {a, h, kv, q, one, f, f2, v};
    case Place::attention:
      return {q, a, kv, h, one, f, f2, v};
    default:
      return {h, one, q, a, kv, f, f2, v};
  }
}

bool Recogniser::covers(const Site& s, const Term& t) const {
  const double n = z_.value(t);
  if (s.kernel.per_thread == 0 || s.threads <= 0 || s.grid <= 0) return true;
  auto blocks = [&](int per_thread) { return std::ceil(n / (s.threads * per_thread)) == s.grid; };
  return blocks(s.kernel.per_thread) || ((s.kernel.flags & KernelName::flexible) != 0 && blocks(8));
}

Term Recogniser::table_of_positions() const {
  const auto rows = static_cast<double>(m_.positions);
  return (z_.is(z_.seq, rows) ? z_.seq : constant(rows)) * z_.hidden;
}

// Elements of weights, the likeliest at this place first.
std::vector<Term> Recogniser::weights(const Region& r) const {
  std::vector<Term> out;
  if (r.table && m_.positions > 0) out.push_back(table_of_positions());
  if (r.table) out.push_back(z_.vocab * z_.hidden);
  for (const Place p : {r.last, Place::fc1, Place::fc2, Place::qkv, Place::proj, Place::head, Place::q, Place::kv}) {
    if (p != Place::none && p != Place::attention) out.push_back(width_of(p, true) * width_of(p, false));
  }
  if (!r.table && m_.positions > 0) out.push_back(table_of_positions());
  return out;
}

// [out, in] of a weight, or of its gradient.
std::optional<Term> Recogniser::weight(const Tensor& t, const Region& r) const {
  if (t.size() != 2) return {};
  const auto rows = static_cast<double>(t[0]), columns = static_cast<double>(t[1]);
  const bool positions = m_.positions == t[0] && z_.is(z_.hidden, columns);
  if (r.table && positions) return table_of_positions();
  for (const Place p : {r.last, Place::fc1, Place::fc2, Place::qkv, Place::proj, Place::head, Place::q, Place::kv}) {
    if (p == Place::none || p == Place::attention) continue;
    const Term in = width_of(p, false), out = width_of(p, true);
    if ((z_.is(out, rows) && z_.is(in, columns)) || (z_.is(in, rows) && z_.is(out, columns))) return out * in;
  }
  if (positions) return table_of_positions();
  return {};
}

std::optional<Term> Recogniser::of_tensor(const Tensor& t, const Site& s) const {
  const Launch& l = *s.l;
  const double n = elements_of(t);
  if (n <= 1) return {};
  const std::vector<Term> w = widths(region(l), l.backward);
  auto ok = [&](const Term& x) { return z_.is(x, n) && covers(s, x); };
  std::vector<Term> found;
  auto add = [&](const Term& x) {
    if (ok(x)) found.push_back(x);
  };
  const std::array<Term, 2> leads = z_.rows(z_.one);
  if (t.size() == 1) {
    if (s.parameter)
      for (const Term& x : w) add(x);
    for (const Term& lead : leads) add(lead);
    for (const Term& x : w) add(x);
  } else {
    if (s.parameter)
      if (const auto x = weight(t, region(l))) add(*x);
    if (t.size() >= 3 && t[t.size() - 1] == t[t.size() - 2] && z_.is(z_.seq, static_cast<double>(t.back()))) {
      if (n == z_.value(z_.scores)) add(z_.scores);
      if (t.size() == 4 && t[1] == 1) {
        if (t[0] > 1) add(z_.tokens * z_.seq);
        add(z_.seq * z_.seq);  // a mask
      }
    }
    // ids and losses: [batch, seq]
    if (t.size() == 2 || t.back() == 1)
      for (const Term& lead : leads) add(lead);
    // [..., width], then [..., heads, dim]
    for (const double last : {static_cast<double>(t.back()), static_cast<double>(t.back() * t[t.size() - 2])})
      for (const Term& x : w)
        if (z_.is(x, last))
          for (const Term& lead : z_.rows(x)) add(lead * x);
    if (const auto x = weight(t, region(l))) add(*x);
    // a loss that leaves out the last token of each sequence
    const double shorter = (z_.dims.seq - 1) / z_.dims.seq;
    if (z_.is(z_.vocab, static_cast<double>(t.back()))) add(constant(shorter) * z_.tokens * z_.vocab);
  }
  if (!found.empty()) return found.front();
  return of_count(n, s);
}

// A number of elements without its extents.
std::optional<Term> Recogniser::of_count(double n, const Site& s) const {
  const Launch& l = *s.l;
  const std::vector<Term> w = widths(region(l), l.backward);
  auto ok = [&](const Term& x) { return z_.is(x, n) && covers(s, x); };
  if (s.parameter) {
    for (const Term& x : w)
      if (ok(x)) return x;
    for (const Term& x : weights(region(l)))
      if (ok(x)) return x;
  }
  if (region(l).scores && ok(z_.scores)) return z_.scores;
  for (const Term& x : w)
    for (const Term& lead : z_.rows(x))
      if (const Term y = lead * x; ok(y)) return y;
  for (const Term& x : {z_.scores, z_.seq * z_.seq, z_.seq * z_.head_dim})
    if (ok(x)) return x;
  for (const Term& x : {z_.attn, z_.kv})  // rotary embeddings turn halves
    if (const Term y = constant(0.5) * z_.tokens * x; ok(y)) return y;
  Term per_head = z_.tokens;  // statistics of attention's rows
  per_head.heads = 1, per_head.tp = -1;
  if (ok(per_head)) return per_head;
  return {};
}

// The likeliest size whose grid this would be, where the kernel's name tells how much a block does.
std::optional<Term> Recogniser::of_grid(const Site& s) const {
  const Launch& l = *s.l;
  if (s.kernel.per_thread == 0 || s.grid <= 0 || s.threads <= 0) return {};
  const std::vector<Term> w = widths(region(l), l.backward);
  auto ok = [&](const Term& x) { return z_.value(x) >= 1 && covers(s, x); };
  if (s.parameter) {
    for (const Term& x : w)
      if (!(x == z_.one) && ok(x)) return x;
    for (const Term& x : weights(region(l)))
      if (ok(x)) return x;
  }
  if (region(l).scores && ok(z_.scores)) return z_.scores;
  for (const Term& x : w)
    for (const Term& lead : z_.rows(x))
      if (ok(lead * x)) return lead * x;
  for (const Term& x : {z_.scores, z_.seq * z_.seq})
    if (ok(x)) return x;
  return {};
}

// Other builds give a thread other amounts: the likeliest size at this place for 1 to 16 elements a thread.
std::optional<Term> Recogniser::near_grid(const Site& s) const {
  const std::vector<Term> w = widths(region(*s.l), s.l->backward);
  const double least = s.grid * s.threads, most = least * 16;
  for (const Term& x : w) {
    for (const Term& lead : z_.rows(x)) {
      const Term t = s.parameter ? x : lead * x;
      if (z_.value(t) > least && z_.value(t) <= most) return t;
    }
  }
  return {};
}

Work Recogniser::copy_work(const Site& s, double bytes) {
  if (bytes >= 0 && bytes <= 64) return fixed();
  if (bytes < 0) return {};
  // The operators round it have the tensor, the bytes its element.
  const std::array<double, 4> sizes = {2, 4, 8, 1};
  bool flat = false;
  for (std::uint32_t p = s.l->op; p != kNone && p != s.l->node; p = o_.parent[p]) {
    for (const Tensor& t : o_.tensors(p)) {
      const double n = elements_of(t);
      if (std::none_of(sizes.begin(), sizes.end(), [&](double e) { return n * e == bytes; })) continue;
      if (const auto x = of_tensor(t, s)) return memory(*x);
      flat = flat || t.size() == 1;
    }
  }
  const auto known = static_cast<double>(m_.dtype_bytes);
  if (known > 0)
    if (const auto x = of_count(bytes / known, s)) return memory(*x);
  for (const double e : sizes)
    if (const auto x = of_count(bytes / e, s)) return memory(*x);
  const bool buffer = t_.ops.kind[s.l->task] == OpKind::memset && s.l->node == kNone && bytes >= 1 << 20;
  if ((flat && bytes >= 1 << 18) || buffer) return parameters(bytes / 4);
  return {};
}

Work Recogniser::memory_work(const Site& s, std::uint32_t launch) {
  const Launch& l = *s.l;
  const bool single = s.grid == 1;
  if ((s.chain & F::optimizer) != 0 && s.parameter) {
    if (single) return fixed();
    double most = 1;
    for (std::uint32_t p = l.op; p != kNone; p = o_.parent[p])
      for (const Tensor& t : o_.tensors(p)) most = std::max(most, elements_of(t));
    return parameters(most);
  }
  // Embedding: its largest input is the table, of which it reads as many rows as there are tokens.
  if ((s.chain & F::embedding) != 0) {
    if ((s.kernel.flags & KernelName::sort) != 0) return memory(z_.tokens);
    if (s.kernel.per_thread == 0) {
      for (const Term& lead : {z_.tokens, z_.split_tokens}) {
        for (std::uint32_t p = l.op; p != kNone; p = o_.parent[p]) {
          const std::vector<Tensor>& t = o_.tensors(p);
          if ((o_.flags(p) & F::embedding) == 0 || t.size() < 2) continue;
          const double width = static_cast<double>(t[0].empty() ? 0 : t[0].back());
          const double ids = elements_of(t[1]);
          if (z_.is(z_.hidden, width) && z_.is(lead, ids)) return memory(lead * z_.hidden);
        }
      }
      if (z_.value(z_.tokens * z_.hidden) >= 1 && !single) return memory(z_.tokens * z_.hidden);
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
        if (const auto x = of_count(all, s)) return memory(*x);
      }
      const bool scaling = has(o_.name(p), "mul_") || has(o_.name(p), "div_");
      if (s.parameter && scaling && largest->size() == 1 && most >= 1 << 16) return parameters(most);
      if (const auto x = of_tensor(*largest, s)) return memory(*x);
      if (!shaped && largest->size() == 1) flat = most;
      if (!shaped && most <= 64) return fixed();
      // operators inside of an autograd function have their own tensors: look for these by the grid
      shaped = true;
      if (p == l.op) {
        if (flat >= 1 << 16) return parameters(flat);
        if (s.kernel.per_thread != 0 && s.grid > 0) break;
        return {};
      }
    }
    if (p == l.node) break;
  }
  if (flat >= 1 << 16) return parameters(flat);
  const std::string_view innermost = l.op == kNone ? std::string_view() : o_.name(l.op);
  const bool scaled = has(innermost, "mul_") || has(innermost, "div_");
  if (s.parameter && scaled && !shaped && s.grid * s.threads >= 1 << 16) return parameters(1);
  if (const auto x = of_grid(s)) return memory(*x);
  if (single) return fixed();
  if (shaped) return {};
  if (l.op == kNone) return {};
  // A backward operator handles what its forward operator did.
  if (l.backward && l.node != kNone && !s.parameter) {
    const std::uint32_t f = o_.forward_launch(l.node, l.at);
    if (f != kNone && f < launch && done_[f].kind == WorkKind::memory) return done_[f];
  }
  if (s.kernel.per_thread != 0 && s.grid > 0) {
    const auto x = near_grid(s);
    return x ? memory(*x) : Work{};
  }
  // Else by its place alone.
  if (s.parameter) {
    const Term w = widths(region(l), l.backward).front();
    return z_.value(w) >= 1 ? memory(w) : Work{};
  }
  Region norm = region(l);
  if ((s.chain & F::norm) != 0) norm.last = Place::fc2;
  const Term w = (s.chain & F::norm) != 0 ? z_.hidden : widths(norm, l.backward).front();
  if ((s.chain & F::loss) != 0) return z_.value(z_.vocab) >= 1 ? memory(z_.tokens * z_.vocab) : Work{};
  const bool on_scores = region(l).scores || has(innermost, "softmax") || has(innermost, "Softmax");
  const Term x = on_scores ? z_.scores : z_.rows(w)[0] * w;
  return z_.value(x) >= 1 ? memory(x) : Work{};
}

void Recogniser::enter(const Launch& l, Place p) {
  if (p != Place::none) region(l) = {p, p == Place::attention && region(l).scores, false};
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
  s.kernel = k;
  if (ops.kind[l.task] == OpKind::kernel && ops.extra[l.task] != kNone) {
    s.grid = t_.kernel_args.grid_blocks[ops.extra[l.task]];
    s.threads = t_.kernel_args.block_threads[ops.extra[l.task]];
  }
  for (std::uint32_t p = l.op; p != kNone; p = o_.parent[p]) s.chain |= o_.flags(p);
  s.parameter = (s.chain & (F::accumulate | F::optimizer)) != 0;
  if ((s.chain & F::embedding) != 0) {
    if (!l.backward) region(l).last = Place::none;
    region(l).table = true;
  }
  if (ops.kind[l.task] != OpKind::kernel) {
    const double bytes = ops.extra[l.task] == kNone ? -1 : static_cast<double>(t_.copy_args.bytes[ops.extra[l.task]]);
    s.parameter = s.parameter || (l.backward && (s.chain & F::embedding) != 0);
    return copy_work(s, bytes);
  }
  if (l.anchor != kNone) {
    const Anchor& a = o_.anchors[l.anchor];
    enter(l, a.place);
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
  regions_.assign(t_.lanes.size() * 2, {});
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
