#include "whatif/operators.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <tuple>

#include "base/text_match.h"
#include "graph/calls.h"

namespace orrery {
namespace {

// "NativeDropoutBackward0" and "aten::native_dropout" are one stem.
std::string stem(std::string_view name) {
  if (const auto at = name.rfind(':'); at != std::string_view::npos) name.remove_prefix(at + 1);
  while (!name.empty() && (std::isdigit(static_cast<unsigned char>(name.back())) != 0 || name.back() == ' '))
    name.remove_suffix(1);
  if (ends(name, "Backward")) name.remove_suffix(8);
  std::string out;
  for (const char c : name)
    if (c != '_' && c != ' ') out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return out;
}

constexpr std::int64_t kMostExtent = 100'000'000'000;  // no GPU holds more elements
constexpr double kMostElements = 1e18;

// Every innermost list of numbers is a tensor; what is no number makes it none, and so does an extent that cannot be.
std::vector<Tensor> parse_shapes(std::string_view text) {
  std::vector<Tensor> out;
  Tensor open;
  bool leaf = false, absurd = false;
  std::int64_t number = -1;
  auto end_number = [&] {
    if (number >= 0) open.push_back(number);
    absurd = absurd || number > kMostExtent;
    number = -1;
  };
  int depth = 0;
  for (const char c : text) {
    if (c == '[') {
      ++depth;
      leaf = true;
      open.clear();
      absurd = false;
      number = -1;
    } else if (c == ']') {
      end_number();
      if (absurd) open.clear();
      if (leaf && (depth > 1 || !open.empty())) out.push_back(open);
      leaf = false;
      --depth;
    } else if (c >= '0' && c <= '9') {
      number = std::min(number < 0 ? 0 : number, kMostExtent) * 10 + (c - '0');
    } else if (c == ',') {
      end_number();
    }
  }
  return out;
}

struct HostRow {
  std::uint32_t lane, row;
  Ns start, end;
  std::int64_t ext;
  bool call;
};

// The operators and ranges that enclose each other, and those round each call that has a correlation.
void nest(Operators& o, std::vector<std::pair<std::int64_t, std::uint32_t>>& calls) {
  const OpTable& ops = o.trace->ops;
  std::vector<HostRow> rows;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    const OpKind k = ops.kind[i];
    const bool call = k == OpKind::runtime && ops.corr[i] != 0;
    if (k != OpKind::cpu_op && k != OpKind::user_annotation && !call) continue;
    rows.push_back({raw(ops.lane[i]), i, ops.start[i], ops.end(i), call ? 0 : ops.ext[i], call});
    o.coarse = o.coarse && ops.start[i] % 1000 == 0;
  }
  std::sort(rows.begin(), rows.end(), [](const HostRow& a, const HostRow& b) {
    return std::tie(a.lane, a.start, b.end, a.call, a.ext, a.row) <
           std::tie(b.lane, b.start, a.end, b.call, b.ext, b.row);
  });
  o.parent.assign(ops.size(), kNone);
  std::vector<std::uint32_t> open;
  std::uint32_t lane = kNone;
  for (const HostRow& r : rows) {
    if (r.lane != lane) open.clear();
    lane = r.lane;
    // In whole microseconds a row may begin where its parent, cut short, ends; it cannot outlast it by more than that.
    auto over = [&](std::uint32_t p) {
      const Ns end = ops.end(p);
      if (o.coarse && end == r.start) return r.end > end + 1000;
      return end <= r.start;
    };
    while (!open.empty() && over(open.back())) open.pop_back();
    o.parent[r.row] = open.empty() ? kNone : open.back();
    if (r.call)
      calls.emplace_back(ops.corr[r.row], r.row);
    else
      open.push_back(r.row);
  }
}

}  // namespace

double elements_of(const Tensor& t) {
  double n = 1;
  for (const std::int64_t d : t) n *= static_cast<double>(d);
  return std::min(n, kMostElements);  // which callers may take for a whole number
}

std::uint32_t name_flags(std::string_view name) {
  using F = NameFlags;
  std::uint32_t f = F::asked;
  const std::string low = lower(name);
  std::string_view digits = name;
  while (!digits.empty() && std::isdigit(static_cast<unsigned char>(digits.back())) != 0) digits.remove_suffix(1);
  if (has(name, "autograd::engine::evaluate_function")) f |= F::engine | F::autograd;
  if (ends(digits, "Backward") || has(name, "torch::autograd::")) f |= F::autograd;
  if (has_any(low, {"checkpointfunction", "checkpointwithoutoutput", "recompute"})) f |= F::checkpoint;
  if (has(low, "accumulategrad")) f |= F::accumulate;
  const std::string s = stem(has(name, "evaluate_function: ") ? name.substr(name.rfind(' ') + 1) : name);
  for (const std::string_view n : {"linear", "mm", "addmm", "matmul", "scaledmm"})
    if (s == n) f |= F::linear;
  for (const std::string_view n : {"groupedgemm", "groupedmm", "scaledgroupedmm", "gmm", "groupedlinear"})
    if (s == n) f |= F::linear | F::grouped;
  if (has_any(low, {"alltoall", "all_to_all"})) f |= F::all_to_all;
  if (has(low, "router")) f |= F::router;
  if (has(name, "Linear") || has(name, "linear_with") || has(name, "LayerNormMLP")) f |= F::linear;
  if (has_any(name, {"LayerNormLinear", "LayerNormMLP"})) f |= F::fused_norm;
  if (s == "bmm" || s == "baddbmm") f |= F::batched;
  if (has_any(low, {"flash_attn", "flashattn", "flash_attention", "scaled_dot_product", "scaleddotproduct", "fmha",
                    "fused_attn", "fusedattn", "efficient_attention", "cudnn_attention"}))
    f |= F::attention;
  if (has_any(low, {"layer_norm", "layernorm", "rms_norm", "rmsnorm"}) && (f & F::fused_norm) == 0) f |= F::norm;
  if (has_any(low, {"crossentropy", "cross_entropy", "nll_loss", "nllloss", "log_softmax", "logsoftmax"})) f |= F::loss;
  if (has(low, "embedding") && !has_any(low, {"rotary", "rope"})) f |= F::embedding;
  if (has_any(low, {"optimizer.", "optimizer_step", "optimizer-"})) f |= F::optimizer;
  if (has_any(low, {"swiglu", "geglu", "silu_and_mul"})) f |= F::gated;
  return f;
}

bool is_gemm_kernel(std::string_view name) {
  return has_any(name, {"gemm", "GEMM", "nvjet", "Cijk_", "gemv", "cutlass::Kernel", "cutlass_80_tensorop", "wgmma"}) &&
         !is_split_reduction(name) && !is_attention_kernel(name);
}
bool is_split_reduction(std::string_view name) {
  return has_any(name, {"splitKreduce", "splitk_reduce", "reduce_1Block_kernel", "PostGSU"});
}
bool is_attention_kernel(std::string_view name) {
  return has_any(name, {"flash", "Flash", "fmha", "Fmha", "attention", "Attention", "sdpa", "attn_fwd", "attn_bwd",
                        "bwd_kernel_dk_dv", "bwd_kernel_dq"}) &&  // the last four: AOTriton, on ROCm
         !has_any(name, {"at::native::vectorized", "at::native::elementwise", "triton_"});
}

const std::vector<Tensor>& Operators::tensors(std::uint32_t row) const {
  const OpTable& ops = trace->ops;
  if (ops.kind[row] != OpKind::cpu_op || ops.extra[row] == kNone) return no_shapes;
  const std::uint32_t s = shapes_of[raw(trace->op_args.input_dims[ops.extra[row]])];
  return s == kNone ? no_shapes : shapes[s];
}

std::int64_t Operators::sequence(std::uint32_t row) const {
  const OpTable& ops = trace->ops;
  if (ops.kind[row] != OpKind::cpu_op || ops.extra[row] == kNone) return -1;
  return trace->op_args.sequence[ops.extra[row]];
}

std::uint32_t Operators::forward_launch(std::uint32_t row, Ns before) const {
  const std::int64_t number = sequence(row);
  if (number < 0) return kNone;
  auto it = std::lower_bound(forward_of.begin(), forward_of.end(), number,
                             [](const Sequence& s, std::int64_t n) { return s.number < n; });
  // Each thread counts for itself (recomputation on the autograd thread), so the name has a say where there are
  // several.
  std::uint32_t any = kNone, named = kNone;
  for (; it != forward_of.end() && it->number == number && launches[it->launch].at < before; ++it) {
    // the first task of the last operator with that number
    if (any == kNone || launches[any].op == kNone || trace->ops.start[it->op] > launches[any].at) any = it->launch;
    if ((named == kNone || trace->ops.start[it->op] > launches[named].at) && stem(name(it->op)) == stem(name(row)))
      named = it->launch;
  }
  return named != kNone ? named : any;
}

Gemm Operators::gemm(std::uint32_t op) const {
  for (; op != kNone; op = parent[op]) {
    const std::uint32_t f = flags(op);
    if ((f & NameFlags::autograd) != 0) break;
    const std::vector<Tensor>& t = tensors(op);
    if (t.empty() || (f & (NameFlags::linear | NameFlags::batched)) == 0) continue;
    const std::string s = stem(name(op));
    const std::size_t first = s == "addmm" || s == "baddbmm" ? 1 : 0;
    if (t.size() < first + 2) continue;
    const Tensor &a = t[first], &b = t[first + 1];
    if ((f & NameFlags::batched) != 0) {
      if (a.size() == 3 && b.size() == 3 && a[0] == b[0] && a[2] == b[1]) return {a[0], a[1], b[2], a[2]};
      continue;
    }
    if (a.size() == 2 && b.size() == 3 && (f & NameFlags::grouped) != 0) {
      if (b[1] == a[1]) return {1, a[0], b[2], a[1], b[0]};
      if (b[2] == a[1]) return {1, a[0], b[1], a[1], b[0]};
      continue;
    }
    if (a.empty() || b.size() != 2 || a.back() <= 0) continue;
    if ((f & NameFlags::grouped) != 0) {  // as many weights as experts
      const auto weights = std::count(t.begin() + 1, t.end(), b);
      if (b[1] == a.back()) return {1, static_cast<std::int64_t>(elements_of(a)) / a.back(), b[0], b[1], weights};
      continue;
    }
    const std::int64_t k = a.back(), m = static_cast<std::int64_t>(elements_of(a)) / k;
    const bool plain = s == "mm" || s == "addmm" || s == "scaledmm" || s == "matmul";
    if (plain && b[0] == k) return {1, m, b[1], k};
    if (!plain && b[1] == k) return {1, m, b[0], k};
  }
  return {};
}

namespace {

void classify(Operators& o) {
  const RankTrace& t = *o.trace;
  o.flags_name.assign(t.strings.size(), 0);
  o.shapes_of.assign(t.strings.size(), kNone);
  for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
    const OpKind k = t.ops.kind[i];
    if (k != OpKind::cpu_op && k != OpKind::user_annotation) continue;
    std::uint32_t& f = o.flags_name[raw(t.ops.name[i])];
    if (f == 0) f = name_flags(t.name_of(OpId{i}));
    if (k != OpKind::cpu_op || t.ops.extra[i] == kNone) continue;
    const StrId dims = t.op_args.input_dims[t.ops.extra[i]];
    if (raw(dims) == 0 || o.shapes_of[raw(dims)] != kNone) continue;
    o.shapes_of[raw(dims)] = static_cast<std::uint32_t>(o.shapes.size());
    o.shapes.push_back(parse_shapes(t.strings.view(dims)));
  }
}

void find_launches(Operators& o, std::vector<std::pair<std::int64_t, std::uint32_t>>& calls) {
  const OpTable& ops = o.trace->ops;
  std::sort(calls.begin(), calls.end());
  std::vector<char> autograd_thread(o.trace->lanes.size(), 0);
  for (std::uint32_t i = 0; i < ops.size(); ++i)
    if (ops.kind[i] == OpKind::cpu_op && (o.flags(i) & NameFlags::engine) != 0) autograd_thread[raw(ops.lane[i])] = 1;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    if (!is_gpu_task(ops.kind[i]) || ops.corr[i] == 0) continue;
    const auto it = std::lower_bound(calls.begin(), calls.end(), std::pair{ops.corr[i], 0u});
    if (it == calls.end() || it->first != ops.corr[i]) continue;
    // one call for many tasks: what is round it is round none of them
    if (classify_call(o.name(it->second)) == Call::graph_launch) continue;
    Launch l;
    l.task = i;
    l.at = ops.start[it->second];
    l.lane = ops.lane[it->second];
    l.op = o.parent[it->second];
    l.backward = autograd_thread[raw(l.lane)] != 0;
    for (std::uint32_t p = l.op; p != kNone; p = o.parent[p]) {
      const std::uint32_t f = o.flags(p);
      if ((f & NameFlags::checkpoint) != 0) {
        l.backward = false;
        break;
      }
      if ((f & NameFlags::autograd) == 0) continue;
      l.backward = true;
      l.node = p;
      break;
    }
    o.launches.push_back(l);
  }
  std::sort(o.launches.begin(), o.launches.end(), [&](const Launch& a, const Launch& b) {
    return std::tie(a.at, ops.start[a.task], a.task) < std::tie(b.at, ops.start[b.task], b.task);
  });
  for (std::uint32_t n = 0; n < o.launches.size(); ++n) {
    const Launch& l = o.launches[n];
    if (l.backward) continue;
    for (std::uint32_t p = l.op; p != kNone; p = o.parent[p]) {
      if ((o.flags(p) & NameFlags::checkpoint) != 0) break;
      if (const std::int64_t s = o.sequence(p); s >= 0) o.forward_of.push_back({s, n, p});
    }
  }
  std::sort(o.forward_of.begin(), o.forward_of.end(), [](const Operators::Sequence& a, const Operators::Sequence& b) {
    return std::tie(a.number, a.launch) < std::tie(b.number, b.launch);
  });
}

// What one launch is part of: a linear layer, attention or neither; the operator or node that is one anchor.
void find_anchors(Operators& o) {
  using F = NameFlags;
  std::vector<std::uint32_t> anchor_of(o.trace->ops.size(), kNone);
  std::vector<std::uint32_t> kernel_flags(o.trace->strings.size(), 0);  // 1 asked, 2 gemm, 4 attention
  // By thread and pass: the last anchor, and whether the loss has come since.
  struct Last {
    std::uint32_t anchor = kNone;
    bool loss = false;
    std::uint32_t all_to_alls = 0;
  };
  std::vector<Last> last(o.trace->lanes.size() * 2);
  for (std::uint32_t n = 0; n < o.launches.size(); ++n) {
    Launch& l = o.launches[n];
    if (o.trace->ops.kind[l.task] != OpKind::kernel || l.op == kNone) continue;
    Last& before = last[raw(l.lane) * 2 + (l.backward ? 1 : 0)];
    for (std::uint32_t p = l.op; p != kNone; p = o.parent[p]) {
      if ((o.flags(p) & F::all_to_all) == 0) continue;
      ++before.all_to_alls;
      break;
    }
    for (std::uint32_t p = l.op; p != kNone; p = o.parent[p]) {
      if ((o.flags(p) & F::loss) == 0) continue;
      before.loss = true;
      if (!l.backward && before.anchor != kNone) o.anchors[before.anchor].at_loss = true;
      break;
    }
    std::uint32_t& k = kernel_flags[raw(o.trace->ops.name[l.task])];
    if (k == 0) {
      const std::string_view name = o.name(l.task);
      k = 1u | (is_gemm_kernel(name) ? 2u : 0) | (is_attention_kernel(name) ? 4u : 0);
    }
    if ((k & 6u) == 0) continue;
    std::uint32_t linear = kNone, attention = kNone, batched = kNone, chain = 0;
    for (std::uint32_t p = l.op; p != kNone; p = o.parent[p]) {
      const std::uint32_t f = o.flags(p);
      if ((f & F::checkpoint) != 0) break;
      chain |= f;
      if ((f & F::linear) != 0) linear = p;
      if ((f & F::attention) != 0) attention = p;
      if ((f & F::batched) != 0) batched = p;
      if (p == l.node) break;
    }
    const Gemm g = o.gemm(l.op);
    Anchor a;
    if (attention != kNone || (k & 4u) != 0) {
      a.attention = true;
      a.op = attention != kNone ? attention : l.op;
    } else if (batched != kNone || g.batch > 1) {
      if (g.batch == 1 || g.k == 1) continue;  // an outer product, such as angles of rotary embeddings
      a.attention = true;
      a.op = batched != kNone ? batched : l.op;
    } else if (linear != kNone) {
      a.op = linear;
    } else {
      continue;
    }
    a.backward = l.backward;
    a.lane = l.lane;
    if (l.backward && l.node != kNone) a.op = l.node;
    a.sequence = o.sequence(a.op);
    a.first_launch = n;
    a.grouped = (chain & F::grouped) != 0;
    a.named_router = (chain & F::router) != 0;
    a.all_to_alls = before.all_to_alls;
    if (anchor_of[a.op] == kNone) {
      anchor_of[a.op] = static_cast<std::uint32_t>(o.anchors.size());
      a.at_loss = l.backward && before.loss;
      o.anchors.push_back(a);
      before.anchor = anchor_of[a.op];
      before.loss = false;
    }
    l.anchor = anchor_of[a.op];
    Anchor& at = o.anchors[l.anchor];
    if ((k & 2u) != 0) l.nth_gemm = at.gemms++;
    if (!at.attention && at.in == 0 && g.m > 0) {
      at.tokens = g.m;
      at.experts = g.experts;
      at.in = at.backward ? g.n : g.k;  // the first backward product is the input's gradient
      at.out = at.backward ? g.k : g.n;
    }
  }
}

}  // namespace

Operators read_operators(const RankTrace& trace) {
  Operators o;
  o.trace = &trace;
  o.coarse = true;
  std::vector<std::pair<std::int64_t, std::uint32_t>> calls;
  classify(o);
  nest(o, calls);
  find_launches(o, calls);
  find_anchors(o);
  place_anchors(o);
  return o;
}

}  // namespace orrery
