#include "whatif/work_sizes.h"

#include <cmath>

#include "base/text_match.h"

namespace orrery {
namespace {

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

}  // namespace

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

Grid grid_of_kernel(std::string_view name) {
  Grid g;
  g.per_thread = work_of_thread(name);
  g.flexible = has(name, "vectorized_elementwise_kernel<4") || has(name, "unrolled_elementwise_kernel");
  return g;
}

Sizes::Sizes(const ModelShape& m)
    : dims_(m.dims), positions_(m.positions), gated_(m.gated_mlp), fused_gate_(m.fused_gate) {
  hidden.hidden = 1;
  qkv.qkv = attn.attn = ffn.ffn = vocab.vocab = 1;
  qkv.tp = attn.tp = ffn.tp = vocab.tp = -1;
  kv = attn;
  if (dims_.kv_heads != dims_.heads) {  // groups: does not go with the heads
    kv = constant(dims_.kv_heads);
    kv.head_dim = 1, kv.tp = -1;
  }
  gates = ffn;
  gates.factor = 2;
  seq.seq = head_dim.head_dim = 1;
  tokens.seq = tokens.mbs = 1;
  split_tokens = tokens;
  if (dims_.sequence_parallel && dims_.tp > 1) split_tokens.split = -1;
  heads.mbs = heads.heads = 1;
  heads.tp = -1;
  scores = heads * seq * seq;
  routed = constant(m.routed) * tokens;
  expert_width = constant(m.expert_width);
  expert_gates = constant((m.expert_gate ? 2 : 1) * m.expert_width);
  local_experts = static_cast<double>(m.local_experts);
}

bool Sizes::is(const Term& t, double x) const { return x >= 1 && std::abs(value(t) - x) < 0.5; }

std::array<Term, 2> Sizes::rows(const Term& x) const {
  if (x == hidden) return {split_tokens, tokens};
  return {tokens, split_tokens};
}

Term Sizes::width(Place p, bool out) const {
  switch (p) {
    case Place::qkv:
      return out ? qkv : hidden;
    case Place::q:
      return out ? attn : hidden;
    case Place::kv:
      return out ? kv : hidden;
    case Place::proj:
      return out ? hidden : attn;
    case Place::fc1:
      return out ? (fused_gate_ ? gates : ffn) : hidden;
    case Place::fc2:
      return out ? hidden : ffn;
    case Place::head:
      return out ? vocab : hidden;
    case Place::expert_in:
      return out ? expert_gates : hidden;
    case Place::expert_out:
      return out ? hidden : expert_width;
    default:
      return one;
  }
}

// Widths of activations, the likeliest at this place first.
std::vector<Term> Sizes::widths(const Spot& s) const {
  const Term &h = hidden, &q = qkv, &a = attn, &f = ffn, &f2 = gates, &v = vocab;
  if (!s.backward) {
    switch (s.last) {
      case Place::qkv:
      case Place::q:
      case Place::kv:
        return {s.last == Place::kv ? kv : s.last == Place::q ? a : q, q, a, kv, h, one, f, f2, v};
      case Place::attention:
        return {a, kv, q, h, one, f, f2, v};
      case Place::fc1:
        return fused_gate_ ? std::vector<Term>{f2, f, one, h, q, a, kv, v}
                           : std::vector<Term>{f, f2, one, h, q, a, kv, v};
      case Place::head:
        return {v, one, h, f, f2, q, a, kv};
      default:
        return {h, one, v, f, f2, q, a, kv};
    }
  }
  switch (s.last) {
    case Place::none:
      return {v, one, h, f, f2, q, a, kv};
    case Place::fc2:
      // the gradient of a gate in one product is of twice the width
      return fused_gate_ ? std::vector<Term>{f2, f, one, h, q, a, kv, v}
             : gated_    ? std::vector<Term>{f, f2, one, h, q, a, kv, v}
                         : std::vector<Term>{f, one, h, f2, q, a, kv, v};
    case Place::proj:
      return {a, h, kv, q, one, f, f2, v};
    case Place::attention:
      return {q, a, kv, h, one, f, f2, v};
    default:
      return {h, one, q, a, kv, f, f2, v};
  }
}

bool Sizes::covers(const Grid& g, const Term& t) const {
  const double n = value(t);
  if (!g.told()) return true;
  auto blocks = [&](int per_thread) { return std::ceil(n / (g.threads * per_thread)) == g.blocks; };
  return blocks(g.per_thread) || (g.flexible && blocks(8));
}

Term Sizes::table_of_positions() const {
  const auto rows = static_cast<double>(positions_);
  return (is(seq, rows) ? seq : constant(rows)) * hidden;
}

// Elements of weights, the likeliest at this place first.
std::vector<Term> Sizes::weights(const Spot& s) const {
  std::vector<Term> out;
  if (s.table && positions_ > 0) out.push_back(table_of_positions());
  if (s.table) out.push_back(vocab * hidden);
  for (const Place p : {s.last, Place::fc1, Place::fc2, Place::qkv, Place::proj, Place::head, Place::q, Place::kv}) {
    if (p != Place::none && p != Place::attention) out.push_back(width(p, true) * width(p, false));
  }
  if (!s.table && positions_ > 0) out.push_back(table_of_positions());
  return out;
}

// [out, in] of a weight, or of its gradient.
std::optional<Term> Sizes::weight(const Tensor& t, const Spot& s) const {
  if (t.size() != 2) return {};
  const auto rows = static_cast<double>(t[0]), columns = static_cast<double>(t[1]);
  const bool positions = positions_ == t[0] && is(hidden, columns);
  if (s.table && positions) return table_of_positions();
  for (const Place p : {s.last, Place::fc1, Place::fc2, Place::qkv, Place::proj, Place::head, Place::q, Place::kv}) {
    if (p == Place::none || p == Place::attention) continue;
    const Term in = width(p, false), out = width(p, true);
    if ((is(out, rows) && is(in, columns)) || (is(in, rows) && is(out, columns))) return out * in;
  }
  if (positions) return table_of_positions();
  return {};
}

std::optional<Term> Sizes::of_tensor(const Tensor& t, const Spot& s, const Grid& g) const {
  const double n = elements_of(t);
  if (n <= 1) return {};
  const std::vector<Term> w = widths(s);
  auto ok = [&](const Term& x) { return is(x, n) && covers(g, x); };
  std::vector<Term> found;
  auto add = [&](const Term& x) {
    if (ok(x)) found.push_back(x);
  };
  const std::array<Term, 2> leads = rows(one);
  if (t.size() == 1) {
    if (s.parameter)
      for (const Term& x : w) add(x);
    for (const Term& lead : leads) add(lead);
    for (const Term& x : w) add(x);
  } else {
    if (s.parameter)
      if (const auto x = weight(t, s)) add(*x);
    if (t.size() >= 3 && t[t.size() - 1] == t[t.size() - 2] && is(seq, static_cast<double>(t.back()))) {
      if (n == value(scores)) add(scores);
      if (t.size() == 4 && t[1] == 1) {
        if (t[0] > 1) add(tokens * seq);
        add(seq * seq);  // a mask
      }
    }
    // ids and losses: [batch, seq]
    if (t.size() == 2 || t.back() == 1)
      for (const Term& lead : leads) add(lead);
    // [..., width], then [..., heads, dim]
    for (const double last :
         {static_cast<double>(t.back()), static_cast<double>(t.back()) * static_cast<double>(t[t.size() - 2])})
      for (const Term& x : w)
        if (is(x, last))
          for (const Term& lead : rows(x)) add(lead * x);
    if (const auto x = weight(t, s)) add(*x);
    // a loss that leaves out the last token of each sequence
    const double shorter = (dims_.seq - 1) / dims_.seq;
    if (is(vocab, static_cast<double>(t.back()))) add(constant(shorter) * tokens * vocab);
  }
  if (!found.empty()) return found.front();
  return of_count(n, s, g);
}

// A number of elements without its extents.
std::optional<Term> Sizes::of_count(double n, const Spot& s, const Grid& g) const {
  const std::vector<Term> w = widths(s);
  auto ok = [&](const Term& x) { return is(x, n) && covers(g, x); };
  if (s.parameter) {
    for (const Term& x : w)
      if (ok(x)) return x;
    for (const Term& x : weights(s))
      if (ok(x)) return x;
  }
  if (s.scores && ok(scores)) return scores;
  for (const Term& x : w)
    for (const Term& lead : rows(x))
      if (const Term y = lead * x; ok(y)) return y;
  for (const Term& x : {scores, seq * seq, seq * head_dim})
    if (ok(x)) return x;
  for (const Term& x : {attn, kv})  // rotary embeddings turn halves
    if (const Term y = constant(0.5) * tokens * x; ok(y)) return y;
  Term per_head = tokens;  // statistics of attention's rows
  per_head.heads = 1, per_head.tp = -1;
  if (ok(per_head)) return per_head;
  return {};
}

// The likeliest size whose grid this would be, where the kernel's name tells how much a block does.
std::optional<Term> Sizes::of_grid(const Spot& s, const Grid& g) const {
  if (!g.told()) return {};
  const std::vector<Term> w = widths(s);
  auto ok = [&](const Term& x) { return known(x) && covers(g, x); };
  if (s.parameter) {
    for (const Term& x : w)
      if (!(x == one) && ok(x)) return x;
    for (const Term& x : weights(s))
      if (ok(x)) return x;
  }
  if (s.scores && ok(scores)) return scores;
  for (const Term& x : w)
    for (const Term& lead : rows(x))
      if (ok(lead * x)) return lead * x;
  for (const Term& x : {scores, seq * seq})
    if (ok(x)) return x;
  return {};
}

// Other builds give a thread other amounts: the likeliest size at this place for 1 to 16 elements a thread.
std::optional<Term> Sizes::near_grid(const Spot& s, const Grid& g) const {
  const std::vector<Term> w = widths(s);
  const double least = g.blocks * g.threads, most = least * 16;
  for (const Term& x : w) {
    for (const Term& lead : rows(x)) {
      const Term t = s.parameter ? x : lead * x;
      if (value(t) > least && value(t) <= most) return t;
    }
  }
  return {};
}

}  // namespace orrery
