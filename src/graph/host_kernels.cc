#include "graph/host_kernels.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace orrery {
namespace {

constexpr std::string_view kAten = "aten::";

// Operators that only make another view, or memory, of tensors.
bool is_view(std::string_view op) {
  constexpr std::array<std::string_view, 30> kViews = {"as_strided",
                                                       "view",
                                                       "_unsafe_view",
                                                       "t",
                                                       "transpose",
                                                       "expand",
                                                       "slice",
                                                       "select",
                                                       "detach",
                                                       "detach_",
                                                       "empty",
                                                       "empty_like",
                                                       "empty_strided",
                                                       "resize_",
                                                       "unsqueeze",
                                                       "squeeze",
                                                       "reshape",
                                                       "permute",
                                                       "alias",
                                                       "unbind",
                                                       "split",
                                                       "chunk",
                                                       "narrow",
                                                       "resolve_conj",
                                                       "resolve_neg",
                                                       "set_",
                                                       "item",
                                                       "is_nonzero",
                                                       "_local_scalar_dense",
                                                       "lift_fresh"};
  return std::find(kViews.begin(), kViews.end(), op) != kViews.end();
}

bool starts(std::string_view text, std::initializer_list<std::string_view> with) {
  return std::any_of(with.begin(), with.end(), [&](std::string_view w) { return text.substr(0, w.size()) == w; });
}

// A name by which its class is told, as those of GPUs' kernels are.
std::string kernel_name(std::string_view op) {
  std::string_view kind = "elementwise";
  if (starts(op, {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "mkldnn_linear", "_addmm", "convolution", "mv",
                  "dot"}))
    kind = "gemm";
  if (starts(op, {"_scaled_dot_product", "_flash_attention"})) kind = "flash_attn";
  if (starts(op, {"copy_", "_to_copy", "cat", "stack", "clone", "fill_", "zero_", "contiguous", "index_put"}))
    kind = "copy_kernel";
  if (starts(op, {"embedding", "index_select"})) kind = "embedding";
  if (op.find("softmax") != std::string_view::npos) kind = "softmax";
  if (op.find("layer_norm") != std::string_view::npos || op.find("rms_norm") != std::string_view::npos)
    kind = "layer_norm";
  return std::string(kind) + " of the host: aten::" + std::string(op);
}

// Rows of operators that compute, none of them round another.
std::vector<std::uint32_t> innermost(const RankTrace& t) {
  struct Span {
    std::uint32_t lane, row;
    Ns start, end;
    bool computes, has_inner = false;
  };
  std::vector<Span> spans;
  for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
    if (t.ops.kind[i] != OpKind::cpu_op || t.ops.lane[i] == kNoLane) continue;
    const std::string_view name = t.name_of(OpId{i});
    const bool aten = name.substr(0, kAten.size()) == kAten;
    if (!aten || is_view(name.substr(kAten.size()))) continue;
    spans.push_back({raw(t.ops.lane[i]), i, t.ops.start[i], t.ops.end(i), true});
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.lane, a.start, b.end, a.row) < std::tie(b.lane, b.start, a.end, b.row);
  });
  std::vector<Span*> open;
  for (Span& s : spans) {
    if (!open.empty() && open.back()->lane != s.lane) open.clear();
    while (!open.empty() && open.back()->end <= s.start) open.pop_back();
    if (!open.empty()) open.back()->has_inner = true;
    open.push_back(&s);
  }
  std::vector<std::uint32_t> rows;
  for (const Span& s : spans)
    if (!s.has_inner && s.end > s.start) rows.push_back(s.row);
  return rows;
}

}  // namespace

std::size_t host_as_device(RankTrace& t) {
  std::int64_t correlation = 0;
  for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
    if (is_gpu_task(t.ops.kind[i])) return 0;
    correlation = std::max(correlation, t.ops.corr[i]);
  }
  const std::vector<std::uint32_t> rows = innermost(t);
  if (rows.empty()) return 0;
  const LaneId stream{static_cast<std::uint32_t>(t.lanes.size())};
  t.lanes.kind.push_back(LaneKind::stream);
  t.lanes.pid.push_back(0);
  t.lanes.tid.push_back(0);
  for (std::vector<StrId>* text : {&t.lanes.pid_text, &t.lanes.tid_text, &t.lanes.name})
    text->push_back(t.strings.intern(""));
  const StrId launch = t.strings.intern("cudaLaunchKernel");
  const auto add = [&](Ns start, Ns dur, StrId name, LaneId lane, OpKind kind) {
    t.ops.start.push_back(start);
    t.ops.dur.push_back(dur);
    t.ops.name.push_back(name);
    t.ops.lane.push_back(lane);
    t.ops.kind.push_back(kind);
    t.ops.corr.push_back(correlation);
    t.ops.ext.push_back(0);
    t.ops.extra.push_back(kNone);
  };
  for (const std::uint32_t row : rows) {
    const std::string name = kernel_name(t.name_of(OpId{row}).substr(kAten.size()));
    ++correlation;
    const Ns start = t.ops.start[row], dur = t.ops.dur[row];
    add(start, 0, launch, t.ops.lane[row], OpKind::runtime);
    add(start, dur, t.strings.intern(name), stream, OpKind::kernel);
  }
  t.notes.add("host-as-device", Severity::info, rows.size(), t.example_of(OpId{rows.front()}),
              "no GPU ran: operators of the host are taken for its kernels");
  return rows.size();
}

}  // namespace orrery
