#include "operators/operator_plan.h"

#include <algorithm>
#include <cmath>

#include "costs/attention_law.h"

namespace orrery {
namespace {

using Size = std::array<double, 4>;

// Products of transformers: squares, a few tokens (decoding), many tokens by narrow and wide matrices, gradients of
// weights (a short side by two long ones), heads of attention in batches, a vocabulary.
std::vector<Size> gemms_of(SizeSet set) {
  if (set == SizeSet::tiny) return {{1, 8, 8, 8}, {1, 1, 32, 64}, {1, 17, 33, 20}, {1, 48, 48, 48}, {3, 16, 8, 24}};
  std::vector<Size> all = {{1, 64, 64, 64},    {1, 128, 128, 128}, {1, 256, 256, 256}, {1, 1, 256, 256},
                           {1, 16, 256, 256},  {1, 128, 256, 256}, {1, 512, 256, 256}, {1, 256, 256, 1024},
                           {1, 256, 768, 256}, {1, 256, 256, 512}, {1, 64, 1024, 256}, {8, 64, 64, 32},
                           {16, 128, 128, 64}, {1, 128, 2048, 256}};
  if (set == SizeSet::small) return all;
  const std::vector<Size> medium = {
      {1, 384, 384, 384},   {1, 512, 512, 512},  {1, 768, 768, 768},   {1, 1024, 1024, 1024}, {1, 1, 1024, 1024},
      {1, 4, 512, 512},     {1, 32, 1024, 1024}, {1, 128, 512, 512},   {1, 128, 1024, 512},   {1, 256, 688, 256},
      {1, 512, 688, 256},   {1, 512, 256, 688},  {1, 688, 256, 512},   {1, 1024, 256, 256},   {1, 1024, 768, 256},
      {1, 1024, 1024, 256}, {1, 256, 256, 2048}, {1, 1024, 256, 1024}, {1, 512, 1536, 512},   {1, 512, 512, 2048},
      {1, 1024, 512, 512},  {1, 2048, 256, 256}, {1, 2048, 512, 512},  {1, 256, 4096, 256},   {1, 512, 8192, 256},
      {1, 512, 256, 8192},  {1, 8192, 256, 512}, {1, 1024, 2048, 512}, {1, 200, 300, 400},    {32, 128, 128, 32},
      {32, 128, 32, 128},   {16, 256, 256, 64},  {16, 256, 64, 256},   {4, 512, 512, 64},     {32, 256, 256, 64}};
  all.insert(all.end(), medium.begin(), medium.end());
  if (set == SizeSet::medium) return all;
  const std::vector<Size> large = {
      {1, 2048, 2048, 2048},  {1, 4096, 4096, 4096},  {1, 8192, 8192, 8192},  {1, 1, 4096, 4096},
      {1, 16, 4096, 4096},    {1, 128, 4096, 4096},   {1, 512, 4096, 4096},   {1, 2048, 4096, 4096},
      {1, 2048, 12288, 4096}, {1, 2048, 4096, 11008}, {1, 2048, 11008, 4096}, {1, 4096, 11008, 4096},
      {1, 2048, 32000, 4096}, {1, 4096, 4096, 2048},  {1, 11008, 4096, 2048}, {32, 1024, 1024, 128},
      {32, 1024, 128, 1024},  {64, 2048, 2048, 128},  {1, 8192, 1024, 8192},  {1, 1000, 3000, 5000}};
  all.insert(all.end(), large.begin(), large.end());
  return all;
}

std::vector<Size> attentions_of(SizeSet set) {
  if (set == SizeSet::tiny) return {{2, 8, 8, 16}, {3, 20, 20, 8}};
  std::vector<Size> all = {{4, 64, 64, 32}, {8, 128, 128, 32}, {8, 256, 256, 64}};
  if (set == SizeSet::small) return all;
  const std::vector<Size> medium = {{4, 512, 512, 64},  {8, 64, 64, 64},    {16, 128, 128, 64},  {32, 128, 128, 32},
                                    {32, 256, 256, 32}, {16, 512, 512, 32}, {4, 1024, 1024, 64}, {32, 64, 64, 32},
                                    {8, 512, 512, 128}, {2, 2048, 2048, 64}};
  all.insert(all.end(), medium.begin(), medium.end());
  if (set == SizeSet::medium) return all;
  const std::vector<Size> large = {{32, 1024, 1024, 128},
                                   {32, 2048, 2048, 128},
                                   {64, 2048, 2048, 128},
                                   {32, 4096, 4096, 128},
                                   {16, 8192, 8192, 128}};
  all.insert(all.end(), large.begin(), large.end());
  return all;
}

std::vector<double> elements_of(SizeSet set) {
  switch (set) {
    case SizeSet::tiny:
      return {1 << 8, 1 << 12};
    case SizeSet::small:
      return {1 << 10, 1 << 14, 1 << 18};
    case SizeSet::medium:
      return {1 << 10, 1 << 12, 1 << 14, 1 << 16, 3 << 16, 1 << 19, 1 << 20, 1 << 21, 1 << 22, 1 << 23};
    case SizeSet::large:
      break;
  }
  return {1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28};
}

std::vector<double> messages_of(SizeSet set) {  // elements
  switch (set) {
    case SizeSet::tiny:
      return {1 << 6, 1 << 10};
    case SizeSet::small:
      return {1 << 8, 1 << 14, 1 << 18};
    case SizeSet::medium:
      return {1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22};
    case SizeSet::large:
      break;
  }
  return {1 << 8, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28};
}

// The products of one decoder layer and of the head, forward, towards the input and towards the weights.
std::vector<Size> gemms_of(const ModelFacts& m, double tokens, double tp) {
  const double hidden = static_cast<double>(m.hidden), head = static_cast<double>(m.head_dim);
  const double q = static_cast<double>(m.heads) * head / tp, kv = static_cast<double>(m.kv_heads) * head / tp;
  const double ffn = static_cast<double>(m.ffn) / tp, vocab = static_cast<double>(m.vocab) / tp;
  std::vector<Size> linear = {{1, tokens, q, hidden},    {1, tokens, kv, hidden},  {1, tokens, q + 2 * kv, hidden},
                              {1, tokens, hidden, q},    {1, tokens, ffn, hidden}, {1, tokens, hidden, ffn},
                              {1, tokens, vocab, hidden}};
  if (m.gated_mlp) linear.push_back({1, tokens, 2 * ffn, hidden});
  std::vector<Size> all;
  for (const Size& s : linear) {
    const double t = s[1], n = s[2], k = s[3];
    if (n < 1) continue;
    for (const Size& x : {Size{1, t, n, k}, Size{1, t, k, n}, Size{1, n, k, t}})
      all.push_back({std::floor(x[0]), std::floor(x[1]), std::floor(x[2]), std::floor(x[3])});
  }
  return all;
}

constexpr double kMostStream = 1 << 29;  // elements: 6 GiB in all

// More than the caches hold, but where a quick answer is wanted.
double stream_elements(SizeSet set, bool gpu, const PlanTerms& t) {
  if (set == SizeSet::tiny) return 1 << 14;
  if (set == SizeSet::small) return 1 << 22;
  if (gpu) return 1 << 27;
  // Three arrays of four bytes an element: four times the caches that all ranks have, each its share.
  const double caches = t.cache_mib * (1 << 20) * 4 / 12 / static_cast<double>(std::max<std::int64_t>(1, t.ranks));
  return std::clamp(std::ceil(caches / 1024) * 1024, double{3 << 22}, kMostStream);
}

double work_of(const OperatorRow& r) { return std::max(r.flops, r.bytes); }

}  // namespace

void count_work(OperatorRow& r) {
  const double e = bytes_of(r.precision), n = r.size[0];
  const double out = r.kind == OperatorKind::gemm && r.precision == Precision::bf16 ? 4 : e;  // sums stay fp32
  switch (r.kind) {
    case OperatorKind::gemm:
      r.flops = 2 * n * r.size[1] * r.size[2] * r.size[3];
      r.bytes = n * (e * (r.size[1] * r.size[3] + r.size[3] * r.size[2]) + out * r.size[1] * r.size[2]);
      break;
    case OperatorKind::attention:
      r.flops = 4 * n * attention_pairs(r.size[1], r.size[2], r.causal) * r.size[3];
      r.bytes = 2 * e * n * (r.size[1] + r.size[2]) * r.size[3];
      break;
    case OperatorKind::copy:
    case OperatorKind::silu:
    case OperatorKind::softmax:
    case OperatorKind::norm:
    case OperatorKind::embedding:
      r.bytes = 2 * e * n;
      break;
    case OperatorKind::add:
    case OperatorKind::stream:
      r.bytes = 3 * e * n;
      break;
    case OperatorKind::adamw:  // weight, both moments and the gradient are read, the first three written
      r.bytes = 7 * e * n;
      break;
    case OperatorKind::to_device:
    case OperatorKind::to_host:
    case OperatorKind::all_reduce:
    case OperatorKind::all_gather:
    case OperatorKind::reduce_scatter:
    case OperatorKind::all_to_all:
      r.bytes = e * n;
      break;
    case OperatorKind::peak:
    case OperatorKind::launch:
      break;
  }
}

bool attends_in(Precision p, bool gpu) { return p == Precision::fp32 || (gpu && p == Precision::bf16); }

std::vector<OperatorRow> plan_operators(const PlanTerms& t) {
  std::vector<OperatorRow> plan;
  const bool gpu = t.device != "cpu";
  const auto wanted = [&](OperatorKind k) {
    return t.only.empty() || std::find(t.only.begin(), t.only.end(), k) != t.only.end();
  };
  std::size_t begin = 0;
  const auto add = [&](OperatorKind kind, const Size& size, Precision p, AttentionWay way = AttentionWay::naive,
                       bool causal = false) {
    OperatorRow r;
    r.kind = kind, r.size = size, r.precision = p, r.way = way, r.causal = causal;
    r.threads = gpu ? 1 : t.threads;
    // Processes of a CPU share it in every operator; GPUs are alone but when they exchange.
    r.ranks = gpu && !is_collective(kind) ? 1 : t.ranks;
    count_work(r);
    const bool known =
        std::any_of(plan.begin() + static_cast<std::ptrdiff_t>(begin), plan.end(), [&](const OperatorRow& o) {
          return o.kind == kind && o.size == size && o.precision == p && o.way == way && o.causal == causal;
        });
    if (!known) plan.push_back(r);
  };
  const auto in_order = [&] {
    std::stable_sort(plan.begin() + static_cast<std::ptrdiff_t>(begin), plan.end(),
                     [](const OperatorRow& a, const OperatorRow& b) { return work_of(a) < work_of(b); });
    begin = plan.size();
  };
  // Floors, whatever else is asked for: shares of them are told.
  if (!gpu)
    for (const Precision p : t.precisions) add(OperatorKind::peak, {1, 1, 1, 1}, p);
  add(OperatorKind::stream, {stream_elements(t.sizes, gpu, t), 1, 1, 1}, Precision::fp32);
  begin = plan.size();
  if (wanted(OperatorKind::launch)) add(OperatorKind::launch, {1, 1, 1, 1}, Precision::fp32);
  for (const Precision p : t.precisions) {
    begin = plan.size();
    if (wanted(OperatorKind::gemm)) {
      for (const Size& s : gemms_of(t.sizes)) add(OperatorKind::gemm, s, p);
      for (const Size& s : t.gemms) add(OperatorKind::gemm, s, p);
      if (t.model != nullptr)
        for (const Size& s : gemms_of(*t.model, t.tokens, t.tensor_parallel)) add(OperatorKind::gemm, s, p);
    }
    in_order();
    if (wanted(OperatorKind::attention) && attends_in(p, gpu)) {
      std::vector<Size> sizes = attentions_of(t.sizes);
      sizes.insert(sizes.end(), t.attentions.begin(), t.attentions.end());
      if (t.model != nullptr)
        sizes.push_back({std::max(1.0, std::floor(static_cast<double>(t.model->heads) / t.tensor_parallel *
                                                  std::max(1.0, t.tokens / t.sequence))),
                         std::min(t.sequence, t.tokens), std::min(t.sequence, t.tokens),
                         static_cast<double>(t.model->head_dim)});
      for (const Size& s : sizes) {
        add(OperatorKind::attention, s, p, gpu ? AttentionWay::composed : AttentionWay::naive);
        // Of more queries than keys the first would see none.
        if (!gpu && s[2] >= s[1]) add(OperatorKind::attention, s, p, AttentionWay::tiled, true);
      }
    }
    in_order();
  }
  const auto by_elements = [&](OperatorKind kind, const std::vector<double>& sizes, Precision p) {
    if (wanted(kind))
      for (const double n : sizes) add(kind, {n, 1, 1, 1}, p);
    in_order();
  };
  const std::vector<double> elements = elements_of(t.sizes), messages = messages_of(t.sizes);
  by_elements(OperatorKind::copy, elements, Precision::fp32);
  for (const Precision p : t.precisions)
    if (p == Precision::fp32 || p == Precision::bf16) by_elements(OperatorKind::add, elements, p);
  if (gpu) {
    by_elements(OperatorKind::softmax, elements, Precision::fp32);
    by_elements(OperatorKind::to_device, elements, Precision::fp32);
    by_elements(OperatorKind::to_host, elements, Precision::fp32);
  } else {
    for (const OperatorKind k :
         {OperatorKind::silu, OperatorKind::norm, OperatorKind::softmax, OperatorKind::embedding, OperatorKind::adamw})
      by_elements(k, elements, Precision::fp32);
  }
  if (t.ranks > 1)
    for (const OperatorKind k :
         {OperatorKind::all_reduce, OperatorKind::all_gather, OperatorKind::reduce_scatter, OperatorKind::all_to_all})
      by_elements(k, messages, Precision::fp32);
  return plan;
}

}  // namespace orrery
