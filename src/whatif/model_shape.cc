// The dimensions of the model, by a vote of what the operators of all ranks say.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "base/text_match.h"
#include "whatif/operators.h"
#include "whatif/work.h"

namespace orrery {
namespace {

using Votes = std::map<std::int64_t, std::uint64_t>;

struct Facts {  // of one rank's share, as recorded
  Votes seq, mbs, tokens, heads, kv_heads, head_dim;
  Votes hidden, qkv, q, kv, attn, fc1, fc2, head, norm_lead;
  Votes score_batch;                // sequences * heads of unfused attention
  Votes vocab_rows, position_rows;  // rows of embeddings
  Votes dtype;
  Votes expert_up, expert_down, local_experts, router;
  double expert_rows = 0, expert_uses = 0;  // of the first of their products: rows, and how many
  std::uint64_t expert_ins = 0, expert_outs = 0;
  std::uint64_t fc1_linears = 0, fc2_linears = 0, batch_first = 0, seq_first = 0;
  std::uint64_t fused = 0, unfused = 0, gated_names = 0;
  std::uint64_t forward_linears = 0, backward_linears = 0;
  std::uint64_t again_linears = 0, again_attentions = 0;  // in recomputation
  std::uint64_t shaped = 0, placed = 0, unplaced = 0;
  bool embedding_reduced = false, embedding_group = false, groups_named = false;

  void add(const Facts& o);
};

void merge(Votes& a, const Votes& b) {
  for (const auto& [value, n] : b) a[value] += n;
}

void Facts::add(const Facts& o) {
  for (Votes Facts::*v :
       {&Facts::seq,         &Facts::mbs,           &Facts::tokens,        &Facts::heads, &Facts::kv_heads,
        &Facts::head_dim,    &Facts::hidden,        &Facts::qkv,           &Facts::q,     &Facts::kv,
        &Facts::attn,        &Facts::fc1,           &Facts::fc2,           &Facts::head,  &Facts::norm_lead,
        &Facts::score_batch, &Facts::vocab_rows,    &Facts::position_rows, &Facts::dtype, &Facts::expert_up,
        &Facts::expert_down, &Facts::local_experts, &Facts::router})
    merge(this->*v, o.*v);
  for (std::uint64_t Facts::*n :
       {&Facts::fc1_linears, &Facts::fc2_linears, &Facts::batch_first, &Facts::seq_first, &Facts::fused,
        &Facts::unfused, &Facts::gated_names, &Facts::forward_linears, &Facts::backward_linears, &Facts::again_linears,
        &Facts::again_attentions, &Facts::shaped, &Facts::placed, &Facts::unplaced, &Facts::expert_ins,
        &Facts::expert_outs})
    this->*n += o.*n;
  expert_rows += o.expert_rows;
  expert_uses += o.expert_uses;
  embedding_reduced = embedding_reduced || o.embedding_reduced;
  embedding_group = embedding_group || o.embedding_group;
  groups_named = groups_named || o.groups_named;
}

void attention_facts(const Operators& o, const Launch& l, Facts& f) {
  // The innermost operator with the three tensors; its name tells their order.
  for (std::uint32_t p = l.op; p != kNone; p = o.parent[p]) {
    const std::vector<Tensor>& t = o.tensors(p);
    if ((o.flags(p) & NameFlags::attention) == 0 || t.empty()) continue;
    const std::string_view name = o.name(p);
    const Tensor& q = t[0];
    if (q.size() == 5 && q[2] == 3) {  // packed [batch, seq, 3, heads, dim]
      ++f.mbs[q[0]], ++f.seq[q[1]], ++f.heads[q[3]], ++f.kv_heads[q[3]], ++f.head_dim[q[4]];
    } else if (q.size() == 4 && t.size() >= 2 && t[1].size() == 4) {
      const bool heads_second = has(name, "scaled_dot_product") || has(name, "ScaledDotProduct");
      std::array<std::int64_t, 4> d{q[0], q[1], q[2], q[3]};
      if (heads_second) std::swap(d[1], d[2]);
      // [seq, batch, heads, dim], as Transformer Engine may have it
      if ((has(name, "FusedAttn") || has(name, "fused_attn")) && d[0] > d[1]) std::swap(d[0], d[1]);
      ++f.mbs[d[0]], ++f.seq[d[1]], ++f.heads[d[2]], ++f.head_dim[d[3]];
      ++f.kv_heads[t[1][heads_second ? 1 : 2]];
    } else if (q.size() == 3 && t.size() >= 2 && t[1].size() == 3) {  // sequences of any lengths, one after the other
      ++f.heads[q[1]], ++f.head_dim[q[2]], ++f.kv_heads[t[1][1]];
    } else {
      continue;
    }
    return;
  }
}

void scores_facts(const Operators& o, const Launch& l, Facts& f) {
  const Gemm g = o.gemm(l.op);
  if (g.batch == 0 || g.m != g.n || g.k == g.m) return;  // [seq, dim] x [dim, seq]
  ++f.seq[g.m], ++f.head_dim[g.k], ++f.score_batch[g.batch];
}

void expert_facts(const Anchor& a, Facts& f) {
  if (a.place == Place::router) {
    if (a.out > 0) ++f.router[a.out];
    return;
  }
  ++(a.place == Place::expert_in ? f.expert_ins : f.expert_outs);
  if (a.in == 0) return;
  ++(a.place == Place::expert_in ? f.expert_up[a.out] : f.expert_down[a.in]);
  if (a.place != Place::expert_in) return;
  f.expert_rows += static_cast<double>(a.tokens);
  ++f.expert_uses;
  if (a.experts > 0) ++f.local_experts[a.experts];
}

void place_facts(const Anchor& a, Facts& f) {
  if (a.in == 0) return;
  switch (a.place) {
    case Place::qkv:
      ++f.qkv[a.out], ++f.hidden[a.in];
      break;
    case Place::q:
      ++f.q[a.out], ++f.hidden[a.in];
      break;
    case Place::kv:
      ++f.kv[a.out], ++f.hidden[a.in];
      break;
    case Place::proj:
      ++f.attn[a.in], ++f.hidden[a.out];
      break;
    case Place::fc1:
      ++f.fc1[a.out], ++f.hidden[a.in];
      break;
    case Place::fc2:
      ++f.fc2[a.in], ++f.hidden[a.out];
      break;
    case Place::head:
      ++f.head[a.out];
      break;
    default:
      ++f.unplaced;
      return;
  }
  ++f.placed;
  if (a.tokens > 0) ++f.tokens[a.tokens];
}

std::int64_t bytes_of(std::string_view type) {
  if (has(type, "BFloat16") || has(type, "Half")) return 2;
  if (has(type, "Float8")) return 1;
  if (has(type, "float")) return 4;
  return 0;
}

Facts facts_of(const RankTrace& trace) {
  Facts f;
  const Operators o = read_operators(trace);
  using F = NameFlags;
  auto recomputed = [&](std::uint32_t op) {
    bool checkpoint = false;
    for (; op != kNone; op = o.parent[op]) {
      const std::uint32_t flags = o.flags(op);
      checkpoint = checkpoint || (flags & F::checkpoint) != 0;
      if (checkpoint && (flags & F::autograd) != 0) return true;
    }
    return false;
  };
  for (const Anchor& a : o.anchors) {
    const Launch& l = o.launches[a.first_launch];
    const bool again = !a.backward && recomputed(l.op);
    if (a.attention) {
      if (again) ++f.again_attentions;
      if (a.backward) continue;
      const bool fused = o.gemm(l.op).batch == 0 && is_attention_kernel(o.name(l.task));
      ++(fused ? f.fused : f.unfused);
      attention_facts(o, l, f);
      scores_facts(o, l, f);
      continue;
    }
    if (again) ++f.again_linears;
    ++(a.backward ? f.backward_linears : f.forward_linears);
    if (a.backward || again) continue;
    if (of_experts(a.place) || a.place == Place::router) {
      expert_facts(a, f);
      continue;
    }
    if (a.in > 0) ++f.shaped;
    place_facts(a, f);
    f.fc1_linears += a.place == Place::fc1;
    f.fc2_linears += a.place == Place::fc2;
  }
  for (const Launch& l : o.launches) {
    if (l.backward) continue;
    for (std::uint32_t p = l.op; p != kNone; p = o.parent[p]) {
      const std::uint32_t flags = o.flags(p);
      if ((flags & F::gated) != 0) ++f.gated_names;
      const std::vector<Tensor>& t = o.tensors(p);
      if (t.empty()) continue;
      if ((flags & F::norm) != 0 && t[0].size() >= 2) {
        const std::int64_t width = t[0].back();
        if (width <= 0) break;
        // [tokens, heads, dim]: a norm of queries or keys, not of the hidden state
        if (t[0].size() == 4) break;
        ++f.hidden[width];
        ++f.norm_lead[static_cast<std::int64_t>(elements_of(t[0])) / width];
        if (t[0].size() == 3) {
          if (t[0][0] > t[0][1]) ++f.seq_first;
          if (t[0][0] < t[0][1]) ++f.batch_first;
        }
        const std::int64_t bytes =
            bytes_of(trace.strings.view(trace.op_args.input_types[trace.ops.extra[p]]).substr(0, 20));
        if (bytes > 0) ++f.dtype[bytes];
        break;
      }
      const bool lookup = (flags & F::embedding) != 0 && !has(o.name(p), "triton");
      if (lookup && t.size() >= 2 && t[0].size() == 2 && t[1].size() <= 2) {
        ++f.vocab_rows[t[0][0]];
        ++f.hidden[t[0][1]];
        break;
      }
      if (t[0].size() == 4 && has(o.name(p), "softmax") && t[0][2] == t[0][3]) {
        ++f.mbs[t[0][0]], ++f.heads[t[0][1]], ++f.seq[t[0][2]];
        break;
      }
    }
  }
  for (const ProcessGroup& g : trace.groups)
    f.embedding_group = f.embedding_group || (g.desc.rfind("EMBEDDING", 0) == 0 && g.size > 1);
  for (std::uint32_t i = 0; i < trace.comm_args.size(); ++i) {
    const std::string_view group = trace.strings.view(trace.comm_args.group_desc[i]);
    f.groups_named = f.groups_named || !group.empty();
    f.embedding_reduced = f.embedding_reduced || group.rfind("EMBEDDING", 0) == 0;
  }
  return f;
}

class Teller {
 public:
  explicit Teller(ModelShape& m) : model_(m) {}

  // The value that most say; others are a doubt.
  std::int64_t tell(const Votes& v, const char* what) {
    std::uint64_t all = 0, most = 0;
    std::int64_t value = 0;
    for (const auto& [x, n] : v) {
      all += n;
      if (n > most) value = x, most = n;
    }
    if (all == 0) return 0;
    const double share = static_cast<double>(most) / static_cast<double>(all);
    agreement_ = std::min(agreement_, share);
    if (share < 1)
      doubt(std::string(what) + ": the traces have several, the most frequent is " + std::to_string(value));
    return value;
  }
  void doubt(std::string text) { model_.doubts.push_back(std::move(text)); }
  double agreement() const { return agreement_; }

 private:
  ModelShape& model_;
  double agreement_ = 1;
};

void settle_vocabulary(ModelShape& m, Facts& f, Teller& tell, std::int64_t tp) {
  const std::int64_t head = tell.tell(f.head, "vocabulary of the head");
  std::int64_t rows = 0;
  for (const auto& [x, n] : f.vocab_rows) rows = std::max(rows, x);
  for (const auto& [x, n] : f.vocab_rows)
    if (x != rows) m.positions = std::max(m.positions, x);
  // A stage that has positions has the vocabulary too; a lone table of the sequence's length would be positions.
  if (head > 0)
    m.dims.vocab = static_cast<double>(rows == head * tp ? rows : head * tp);
  else if (rows > 0) {
    m.dims.vocab = static_cast<double>(rows * tp);
    if (tp > 1) tell.doubt("vocabulary: taken as split over the tensor-parallel ranks; no head is in the traces");
  }
  if (head > 0 && rows > 0 && rows != head && rows != head * tp)
    tell.doubt("vocabulary: embedding and head differ; the head's is taken");
}

void settle_heads(ModelShape& m, Facts& f, Teller& tell, std::int64_t tp) {
  Dims& d = m.dims;
  d.head_dim = static_cast<double>(tell.tell(f.head_dim, "head dimension"));
  const double attn = static_cast<double>(tell.tell(f.attn, "width of attention") * tp);
  d.heads = static_cast<double>(tell.tell(f.heads, "heads") * tp);
  if (d.heads == 0 && d.mbs > 0)
    d.heads = static_cast<double>(tell.tell(f.score_batch, "batch of the scores") * tp) / d.mbs;
  if (d.heads == 0 && d.head_dim > 0 && attn > 0) d.heads = attn / d.head_dim;
  const double qkv = static_cast<double>(tell.tell(f.qkv, "width of q, k and v") * tp);
  const double kv = static_cast<double>(tell.tell(f.kv, "width of k and v") * tp);
  if (d.head_dim > 0 && d.heads > 0) {
    if (qkv > 0)
      d.kv_heads = (qkv / d.head_dim - d.heads) / 2;
    else if (kv > 0)
      d.kv_heads = kv / d.head_dim;
    else
      d.kv_heads = static_cast<double>(tell.tell(f.kv_heads, "heads of k and v") * tp);
    // k and v in one product
    if (qkv == 0 && kv > 0 && d.kv_heads > d.heads) d.kv_heads /= 2;
  }
  // groups of heads share one of k and v
  if (d.kv_heads < 1 || std::fmod(d.heads, d.kv_heads) != 0) d.kv_heads = 0;
}

void settle_tokens(ModelShape& m, Facts& f, Teller& tell, std::int64_t tp) {
  Dims& d = m.dims;
  d.seq = static_cast<double>(tell.tell(f.seq, "sequence length"));
  d.mbs = static_cast<double>(tell.tell(f.mbs, "micro-batch size"));
  const double tokens = static_cast<double>(tell.tell(f.tokens, "tokens of a micro-batch"));
  if (d.seq > 0 && tokens > 0 && std::fmod(tokens, d.seq) == 0) {
    const double mbs = tokens / d.seq;
    if (d.mbs > 0 && d.mbs != mbs) tell.doubt("micro-batch size: attention and linear layers differ");
    d.mbs = mbs;
  }
  const double lead = static_cast<double>(tell.tell(f.norm_lead, "tokens at a norm"));
  const double all = tokens > 0 ? tokens : d.seq * d.mbs;
  d.sequence_parallel = tp > 1 && lead > 0 && lead * static_cast<double>(tp) == all;
  m.batch_first = f.batch_first > f.seq_first;
}

void settle_mlp(ModelShape& m, Facts& f, Teller& tell, std::int64_t tp) {
  const std::int64_t up = tell.tell(f.fc1, "width of the MLP's first layer");
  const std::int64_t down = tell.tell(f.fc2, "width of the MLP's second layer");
  m.dims.ffn = static_cast<double>(down * tp);
  const bool two = f.fc2_linears > 0 && f.fc1_linears > f.fc2_linears * 3 / 2;
  m.fused_gate = up > 0 && up == 2 * down;
  m.gated_mlp = m.fused_gate || two || (up == 0 && f.gated_names > 0);
  if (up == 0 && m.gated_mlp && !two) m.fused_gate = true;
}

void settle_experts(ModelShape& m, Facts& f, Teller& tell) {
  m.experts = f.expert_ins + f.expert_outs > 0;
  if (!m.experts) return;
  m.router_width = tell.tell(f.router, "width of the router");
  const std::int64_t up = tell.tell(f.expert_up, "width of the experts' first layer");
  const std::int64_t down = tell.tell(f.expert_down, "width of the experts' second layer");
  m.local_experts = tell.tell(f.local_experts, "experts of a rank");
  m.expert_width = static_cast<double>(down);
  m.expert_gate = up == 2 * down && up > 0;
  const double tokens = m.dims.seq * m.dims.mbs;
  if (tokens > 0 && f.expert_uses > 0) m.routed = f.expert_rows / f.expert_uses / tokens;
  // two products in where gate and up are apart
  const bool apart = !m.expert_gate && f.expert_outs > 0 && f.expert_ins > f.expert_outs * 3 / 2;
  m.dims.router = static_cast<double>(m.router_width);
  m.dims.expert_width =
      static_cast<double>(m.local_experts) * m.expert_width * (1 + (m.expert_gate || apart ? 2.0 : 1.0));
  if (m.local_experts == 0 || m.expert_width == 0 || m.routed == 0)
    tell.doubt("experts: their number, width or tokens are not told by the traces");
}

// What was said by hand wins over what was inferred.
void apply_given(ModelShape& m, const Dims& given, Teller& tell) {
  struct Field {
    double Dims::*at;
    const char *name, *key;
    std::vector<std::string_view> from;  // how doubts of what it is told from begin; none: it is always inferred
  };
  const std::vector<std::string> doubts = m.doubts;
  const auto sure = [&](const Field& x) {
    return !x.from.empty() && std::none_of(doubts.begin(), doubts.end(), [&](std::string_view d) {
      return d.starts_with("the order of linear layers") ||
             std::any_of(x.from.begin(), x.from.end(), [&](std::string_view from) { return d.starts_with(from); });
    });
  };
  const std::vector<Field> fields = {
      {&Dims::seq, "seq", "seq-length", {"sequence length"}},
      {&Dims::mbs, "mbs", "micro-batch-size", {"micro-batch size", "tokens of a micro-batch", "sequence length"}},
      {&Dims::hidden, "hidden", "hidden", {"hidden size"}},
      {&Dims::ffn, "ffn", "ffn", {"width of the MLP"}},
      {&Dims::heads, "heads", "heads", {"heads", "head dimension", "width of attention", "batch of the scores"}},
      {&Dims::kv_heads, "kv_heads", "kv-heads", {}},
      {&Dims::head_dim, "head_dim", "head-dim", {"head dimension"}},
      {&Dims::vocab, "vocab", "vocab", {}}};
  for (const Field& x : fields) {
    const double said = given.*x.at;
    if (said <= 0) continue;
    double& told = m.dims.*x.at;
    if (told > 0 && told != said) {
      const std::string mine = std::to_string(std::llround(said)), theirs = std::to_string(std::llround(told));
      if (sure(x))
        m.contradictions.push_back("--layout says " + std::string(x.key) + "=" + mine + ", the shapes in the traces " +
                                   theirs);
      tell.doubt(std::string(x.name) + ": said to be " + mine + ", the traces tell " + theirs);
    }
    told = said;
  }
  if (given.layers > 0) m.dims.layers = given.layers;
  m.dims.sequence_parallel = m.dims.sequence_parallel || given.sequence_parallel;
}

}  // namespace

Result<ModelShape> recognise_model(const TraceSet& traces, std::int64_t tp, std::int64_t dp, const Dims& given) {
  if (traces.ranks.empty()) return fail("no ranks to tell the model from");
  if (tp < 1 || dp < 1) return fail("tensor and data parallelism must be at least 1");
  std::vector<Facts> of_rank(traces.ranks.size());
  for_each_row(of_rank.size(), worker_count(0),
               [&](std::size_t row, unsigned) { of_rank[row] = facts_of(traces.ranks[row]); });
  Facts f;
  for (const Facts& one : of_rank) f.add(one);

  ModelShape m;
  Teller tell(m);
  if (f.unplaced * 2 > f.placed) {
    // Not a stack of transformer layers, or one that a compiler took apart: places would be guesses.
    for (Votes* v : {&f.qkv, &f.q, &f.kv, &f.attn, &f.fc1, &f.fc2, &f.head, &f.tokens}) v->clear();
    if (f.placed > 0) tell.doubt("the order of linear layers and attention is not that of a transformer layer");
  }
  m.dims.tp = static_cast<double>(tp);
  m.dims.dp = static_cast<double>(dp);
  m.flash_attention = f.fused > f.unfused;
  settle_tokens(m, f, tell, tp);
  settle_heads(m, f, tell, tp);
  m.dims.hidden = static_cast<double>(tell.tell(f.hidden, "hidden size"));
  settle_mlp(m, f, tell, tp);
  settle_experts(m, f, tell);
  settle_vocabulary(m, f, tell, tp);
  m.dtype_bytes = tell.tell(f.dtype, "element type");
  if (f.forward_linears > 0 && f.backward_linears > 0)
    m.recompute = f.again_linears > 0 ? "full" : f.again_attentions > 0 ? "selective" : "none";
  if (f.embedding_reduced)
    m.tied_embedding = 1;
  else if (f.embedding_group && f.groups_named)
    m.tied_embedding = 0;
  apply_given(m, given, tell);
  // without groups of their own, as many of k and v as of q is what nothing contradicts
  if (m.dims.kv_heads == 0 && m.dims.heads > 0) {
    m.dims.kv_heads = m.dims.heads;
    tell.doubt("heads of k and v: not told, taken as many as heads");
  }
  int told = 0;
  const std::array<std::pair<double, const char*>, 7> needed = {{{m.dims.seq, "sequence length"},
                                                                 {m.dims.mbs, "micro-batch size"},
                                                                 {m.dims.hidden, "hidden size"},
                                                                 {m.dims.ffn, "MLP width"},
                                                                 {m.dims.heads, "heads"},
                                                                 {m.dims.head_dim, "head dimension"},
                                                                 {m.dims.vocab, "vocabulary"}}};
  const bool no_mlp = m.experts && m.dims.ffn == 0;  // experts are all there is
  for (const auto& [value, name] : needed) {
    if (value > 0 || (no_mlp && &value == &needed[3].first))
      ++told;
    else
      tell.doubt(std::string(name) + ": not told by the traces" +
                 (f.shaped == 0 ? " (no shapes were recorded with the linear layers)" : ""));
  }
  if (f.unplaced > 0) tell.doubt(std::to_string(f.unplaced) + " linear layers fit no place of a transformer layer");
  m.confidence = tell.agreement() * told / static_cast<double>(needed.size());
  return m;
}

}  // namespace orrery
