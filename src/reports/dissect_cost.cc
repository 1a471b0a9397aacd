// What each GPU task must do at least, from the recorded shapes of the operator that launched it. Matrix product of
// [m, k] x [k, n]: 2 m n k operations (whatif/operators.h reads the sizes); attention: 4 queries x keys x width forward
// (two products, Dao et al. 2022), half of it where causal, 2.5 times as much backward; convolution: as the product it
// is. Bytes: every input read and every output written once. An operator that launches several kernels tells of the
// product among them alone. What the shapes do not tell stays 0.
#include <algorithm>
#include <charconv>

#include "base/text_match.h"
#include "reports/dissect.h"

namespace orrery {
namespace {

using F = NameFlags;

bool starts(std::string_view text, std::string_view part) { return text.substr(0, part.size()) == part; }

// `["c10::BFloat16", "float", ""]` -> its strings. Elements are split at commas outside of quotes and brackets.
std::vector<std::string_view> elements_of_list(std::string_view text) {
  std::vector<std::string_view> out;
  if (text.size() < 2 || text.front() != '[') return out;
  int depth = 0;
  bool quoted = false;
  std::size_t begin = 1;
  const auto put = [&](std::size_t end) {
    std::string_view e = text.substr(begin, end - begin);
    const auto around = [](char c) { return c == '"' || c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
    while (!e.empty() && around(e.front())) e.remove_prefix(1);
    while (!e.empty() && around(e.back())) e.remove_suffix(1);
    out.push_back(e);
    begin = end + 1;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '[') ++depth;
    if (c == ']' && --depth == 0) {
      if (i > begin) put(i);
      break;
    }
    if (c == ',' && depth == 1) put(i);
  }
  return out;
}

int bytes_of_type(std::string_view type) {
  if (starts(type, "c10::")) type.remove_prefix(5);
  if (starts(type, "Float8") || type == "signed char" || type == "unsigned char" || type == "bool" || type == "Byte")
    return 1;
  if (type == "BFloat16" || type == "Half" || type == "short" || type == "short int") return 2;
  if (type == "float" || type == "int") return 4;
  if (type == "double" || type == "long" || type == "long int" || type == "complex<float>") return 8;
  return 0;
}

class CostFinder {
 public:
  explicit CostFinder(Dissection& d) : d_(d), t_(*d.trace), o_(d.operators) {}

  void run() {
    kernels_of_.assign(t_.ops.size(), 0);
    products_of_.assign(t_.ops.size(), 0);
    for (const DissectedTask& task : d_.tasks) {
      if (task.op == kNone || task.launch == kNone || t_.ops.kind[task.row] != OpKind::kernel) continue;
      ++kernels_of_[task.op];
      products_of_[task.op] += is_product(task);
    }
    for (DissectedTask& task : d_.tasks) task.cost = cost_of(task);
  }

 private:
  bool is_product(const DissectedTask& task) const {
    const std::string_view name = t_.name_of(OpId{task.row});
    return task.kind == KernelClass::gemm && !is_split_reduction(name) && !has(name, "nchwToNhwc") &&
           !has(name, "nhwcToNchw");
  }

  TaskCost cost_of(const DissectedTask& task) {
    const std::uint32_t extra = t_.ops.extra[task.row];
    if (t_.ops.kind[task.row] != OpKind::kernel) {
      if (extra == kNone || t_.copy_args.bytes[extra] <= 0) return {};
      // a copy within the device reads and writes its memory; one from or to the host crosses the bus once
      const bool within = t_.ops.kind[task.row] == OpKind::memcpy && has(t_.name_of(OpId{task.row}), "DtoD");
      return {0, static_cast<double>(t_.copy_args.bytes[extra]) * (within ? 2 : 1), 1};
    }
    if (task.communicates || task.op == kNone || task.launch == kNone) return {};
    if (task.kind == KernelClass::gemm) return is_product(task) ? product(task) : TaskCost{};
    if (task.kind == KernelClass::attention) return attention(task);
    return pass(task);
  }

  // Bytes of an element by input, as many as tensors; empty where they do not go together.
  std::vector<int> types(std::uint32_t op) const {
    std::vector<int> out;
    const std::uint32_t extra = t_.ops.extra[op];
    if (extra == kNone) return out;
    for (const std::string_view e : elements_of_list(t_.strings.view(t_.op_args.input_types[extra])))
      out.push_back(bytes_of_type(e));
    if (out.size() != o_.tensors(op).size()) out.clear();
    return out;
  }
  int first_type(std::uint32_t op, std::size_t from = 0) const {
    const std::vector<int> all = types(op);
    for (std::size_t i = from; i < all.size(); ++i)
      if (all[i] > 0) return all[i];
    return 0;
  }

  TaskCost product(const DissectedTask& task) {
    if (products_of_[task.op] != 1) return {};
    const Gemm g = o_.gemm(task.op);
    if (g.m <= 0) return convolution(task);
    const auto batch = static_cast<double>(g.batch), m = static_cast<double>(g.m), n = static_cast<double>(g.n),
               k = static_cast<double>(g.k);
    TaskCost c;
    c.flops = 2 * batch * m * n * k;
    const int bytes = first_type(task.op);
    c.element_bytes = static_cast<std::uint8_t>(bytes);
    c.bytes = batch * ((m * k + k * n) * bytes + m * n * std::max(bytes, bytes == 1 ? 2 : 0));
    return c;
  }

  // aten::convolution and its like: input [n, c, h, w], weight [out, c / groups, kh, kw], and the whole numbers among
  // the arguments that tell the output's extents (stride, padding, dilation).
  TaskCost convolution(const DissectedTask& task) {
    for (std::uint32_t p = task.op; p != kNone; p = o_.parent[p]) {
      if (t_.ops.kind[p] != OpKind::cpu_op || (o_.flags(p) & F::autograd) != 0) break;
      if (o_.name(p) != "aten::convolution" && o_.name(p) != "aten::_convolution") continue;
      const std::vector<Tensor>& t = o_.tensors(p);
      const std::uint32_t extra = t_.ops.extra[p];
      if (t.size() < 2 || t[0].size() != 4 || t[1].size() != 4 || extra == kNone) return {};
      const std::vector<std::string_view> said = elements_of_list(t_.strings.view(t_.op_args.concrete_inputs[extra]));
      if (said.size() < 7 || said[6] != "False") return {};  // a transposed one
      double out = static_cast<double>(t[0][0]) * static_cast<double>(t[1][0]);
      for (std::size_t i = 0; i < 2; ++i) {
        const std::int64_t stride = number_of(said[3], i), padding = number_of(said[4], i),
                           dilation = number_of(said[5], i);
        if (stride < 1 || padding < 0 || dilation < 1) return {};
        const std::int64_t extent = (t[0][2 + i] + 2 * padding - dilation * (t[1][2 + i] - 1) - 1) / stride + 1;
        if (extent < 1) return {};
        out *= static_cast<double>(extent);
      }
      TaskCost c;
      c.flops = 2 * out * elements_of(t[1]) / static_cast<double>(t[1][0]);
      const int bytes = first_type(p);
      c.element_bytes = static_cast<std::uint8_t>(bytes);
      c.bytes = (elements_of(t[0]) + elements_of(t[1]) + out) * bytes;
      return c;
    }
    return {};
  }
  // The n-th number of "[1, 2]"; the only one where it has one. -1 = none.
  static std::int64_t number_of(std::string_view list, std::size_t n) {
    std::int64_t found = -1;
    std::size_t seen = 0;
    for (const char* at = list.data(); at != list.data() + list.size();) {
      std::int64_t x = -1;
      const auto read = std::from_chars(at, list.data() + list.size(), x);
      if (read.ec != std::errc{}) {
        ++at;
        continue;
      }
      found = x;
      if (seen++ == n || x > 1'000'000) break;
      at = read.ptr;
    }
    return found > 1'000'000 ? -1 : found;
  }

  TaskCost attention(const DissectedTask& task) {
    const std::string_view kernel = t_.name_of(OpId{task.row});
    for (const std::string_view part :
         {"dot_do_o", "convert_dq", "convert_dkv", "reprocess", "ostprocess", "combine", "reduce"})
      if (has(kernel, part)) return {};
    for (std::uint32_t p = task.near; p != kNone; p = o_.parent[p]) {
      if ((o_.flags(p) & F::attention) == 0) continue;
      const bool backward = o_.launches[task.launch].backward;
      const std::vector<Tensor>& t = o_.tensors(p);
      const std::size_t q = backward ? 1 : 0;  // the output's gradient comes first
      if (t.size() < q + 3 || t[q].size() != 4 || t[q + 1].size() != 4 || t[q + 2].size() != 4) continue;
      const bool heads_first = has(o_.name(p), "scaled_dot_product");
      const std::size_t tokens = heads_first ? 2 : 1, heads = heads_first ? 1 : 2;
      const auto queries = static_cast<double>(t[q][tokens]), keys = static_cast<double>(t[q + 1][tokens]);
      const auto n = static_cast<double>(t[q][0]) * static_cast<double>(t[q][heads]);
      const auto width = static_cast<double>(t[q][3]) + static_cast<double>(t[q + 2][3]);
      TaskCost c;
      const int bytes = first_type(p);
      c.element_bytes = static_cast<std::uint8_t>(bytes);
      c.bytes = (elements_of(t[q]) * 2 + elements_of(t[q + 1]) + elements_of(t[q + 2])) * bytes * (backward ? 2 : 1);
      const int causal = queries == 1 ? 0 : is_causal(p, kernel);
      if (causal >= 0) c.flops = 2 * n * queries * keys * width * (causal == 1 ? 0.5 : 1) * (backward ? 2.5 : 1);
      return c;
    }
    return {};
  }
  // 1, 0; -1 = not told: the arguments of the operators, FlashAttention 2's template (traits, dropout, causal).
  int is_causal(std::uint32_t op, std::string_view kernel) const {
    constexpr std::pair<std::string_view, std::size_t> kArgument[] = {
        {"aten::scaled_dot_product_attention", 5},
        {"aten::_scaled_dot_product_flash_attention", 4},
        {"aten::_scaled_dot_product_efficient_attention", 6},
        {"aten::_scaled_dot_product_cudnn_attention", 6}};
    const std::uint32_t extra = t_.ops.extra[op];
    if (extra != kNone) {
      for (const auto& [name, at] : kArgument) {
        if (o_.name(op) != name) continue;
        const auto said = elements_of_list(t_.strings.view(t_.op_args.concrete_inputs[extra]));
        if (said.size() > at && said[at] == "True") return 1;
        if (said.size() > at && said[at] == "False") return 0;
      }
    }
    for (const std::string_view of : {"flash_fwd_kernel<", "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<"}) {
      const auto at = kernel.find(of);
      if (at == std::string_view::npos) continue;
      const auto close = kernel.find(">, ", at);
      if (close == std::string_view::npos) continue;
      std::string_view rest = kernel.substr(close + 3);
      const auto comma = rest.find(", ");
      if (comma == std::string_view::npos) continue;
      rest = rest.substr(comma + 2);
      if (starts(rest, "true")) return 1;
      if (starts(rest, "false")) return 0;
    }
    return -1;
  }

  // Operators that go over their tensors once.
  TaskCost pass(const DissectedTask& task) {
    if (kernels_of_[task.op] != 1) return {};
    const std::string_view name = o_.name(task.op);
    const std::vector<Tensor>& t = o_.tensors(task.op);
    const std::vector<int> size = types(task.op);
    if (t.empty() || size.empty()) return {};
    double all = 0, largest = 0;
    int first = 0;
    for (std::size_t i = 0; i < t.size(); ++i) {
      if (t[i].empty() || size[i] == 0) continue;
      const double bytes = elements_of(t[i]) * size[i];
      all += bytes;
      largest = std::max(largest, bytes);
      if (first == 0) first = size[i];
    }
    if (all <= 0) return {};
    const auto cost = [&](double bytes) { return TaskCost{0, bytes, static_cast<std::uint8_t>(first)}; };
    if (starts(name, "triton_")) {  // its outputs are among its arguments; of what it picks from not all is read
      for (const std::string_view part : {"slice", "select", "embedding", "gather", "index", "split", "nll_loss"})
        if (has(name, part)) return {};
      const double ns = static_cast<double>(t_.ops.dur[task.row]);
      if (d_.gpu != nullptr && all > 1.25 * d_.gpu->memory_gb_per_s * ns) return {};  // more than can have been read
      return cost(all);
    }
    std::string_view stem = name;
    if (starts(stem, "aten::")) stem.remove_prefix(6);
    if (stem == "copy_") return t.size() >= 2 ? cost(all) : TaskCost{};
    if (stem == "fill_" || stem == "zero_" || stem == "masked_fill_") return cost(elements_of(t[0]) * size[0]);
    if (stem == "sum" || stem == "mean" || stem == "amax" || stem == "norm") return cost(all);
    if (stem == "embedding" && t.size() >= 2 && !t[0].empty())
      return cost(elements_of(t[1]) * (size[1] + 2.0 * static_cast<double>(t[0].back()) * size[0]));
    for (const std::string_view known : {"add",
                                         "sub",
                                         "mul",
                                         "div",
                                         "gelu",
                                         "silu",
                                         "relu",
                                         "tanh",
                                         "sigmoid",
                                         "exp",
                                         "neg",
                                         "pow",
                                         "sqrt",
                                         "rsqrt",
                                         "where",
                                         "masked_fill",
                                         "native_dropout",
                                         "clone",
                                         "_softmax",
                                         "_log_softmax",
                                         "native_layer_norm",
                                         "rms_norm",
                                         "lerp",
                                         "addcmul",
                                         "addcdiv",
                                         "cat",
                                         "threshold_backward",
                                         "gelu_backward",
                                         "silu_backward",
                                         "native_dropout_backward",
                                         "_softmax_backward_data",
                                         "_log_softmax_backward_data",
                                         "clamp_min",
                                         "hardtanh",
                                         "cos",
                                         "sin"}) {
      if (stem == known) return cost(all + largest);
      if (ends(stem, "_") && stem.substr(0, stem.size() - 1) == known) return cost(all + elements_of(t[0]) * size[0]);
    }
    return {};
  }

  Dissection& d_;
  const RankTrace& t_;
  const Operators& o_;
  std::vector<std::uint32_t> kernels_of_, products_of_;  // by row of the operator
};

}  // namespace

void find_costs(Dissection& d) { CostFinder(d).run(); }

}  // namespace orrery
