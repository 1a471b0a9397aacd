// The phase of each GPU task: what the ranges and operators round its launch say, from the innermost outwards; then the
// thread of autograd; then, for what nothing says, the phases of what was launched before and after.
#include <algorithm>
#include <cctype>

#include "base/text_match.h"
#include "reports/dissect.h"
#include "whatif/optimizer.h"

namespace orrery {
namespace {

using F = NameFlags;

constexpr Phase kOpen = Phase::unattributed;  // until the end of find_phases

class PhaseFinder {
 public:
  explicit PhaseFinder(Dissection& d) : d_(d), t_(*d.trace), o_(d.operators) {}

  void run() {
    range_phase_.assign(t_.strings.size(), 0);
    for (const Launch& l : o_.launches) d_.training = d_.training || l.backward;
    for (DissectedTask& task : d_.tasks) task.phase = told(task);
    fill_between();
    if (!d_.training) tell_inference();
    for (DissectedTask& task : d_.tasks) {
      if (task.communicates) task.phase = Phase::communication;
      // one kernel over many tensors is the optimizer's only where there is one
      if (task.kind == KernelClass::optimizer && !d_.training && task.phase != Phase::optimizer)
        task.kind = KernelClass::elementwise;
    }
  }

 private:
  std::optional<Phase> range_phase(std::uint32_t row) {
    std::uint8_t& known = range_phase_[raw(t_.ops.name[row])];
    if (known == 0) {
      const auto p = phase_of_range(t_.name_of(OpId{row}));
      known = p ? static_cast<std::uint8_t>(2 + static_cast<int>(*p)) : 1;
    }
    if (known == 1) return {};
    return static_cast<Phase>(known - 2);
  }

  Phase told(const DissectedTask& task) {
    if (task.call == kNone)
      return d_.training && is_optimizer_kernel(t_.name_of(OpId{task.row})) ? Phase::optimizer : kOpen;
    const bool input = t_.ops.kind[task.row] == OpKind::memcpy && has(t_.name_of(OpId{task.row}), "HtoD");
    bool works = false, recomputes = false;
    for (std::uint32_t p = task.near; p != kNone; p = o_.parent[p]) {
      const std::uint32_t f = o_.flags(p);
      if (t_.ops.kind[p] == OpKind::user_annotation) {
        if (const auto phase = range_phase(p)) return input && is_forward(*phase) && !works ? Phase::data : *phase;
        continue;
      }
      if ((f & F::checkpoint) != 0) {
        if ((f & F::autograd) != 0) return Phase::recompute;
        recomputes = true;
        works = true;
      } else if ((f & F::autograd) != 0) {
        return recomputes ? Phase::recompute : Phase::backward;
      }
      if ((f & F::optimizer) != 0) return Phase::optimizer;
      works = works || o_.sequence(p) >= 0 || (f & (F::linear | F::attention | F::norm | F::loss | F::embedding)) != 0;
    }
    // a thread of autograd's own; the main thread may run nodes of it, too
    if (task.launch != kNone && o_.launches[task.launch].backward &&
        (raw(task.lane) != d_.main_lane || o_.launches[task.launch].node != kNone))
      return Phase::backward;
    if (task.cover != kNone)
      if (const auto phase = range_phase(task.cover)) return *phase;
    if (d_.training && task.launch != kNone && is_optimizer_kernel(t_.name_of(OpId{task.row}))) return Phase::optimizer;
    if (task.frame != kNone && in_module(task.frame)) return Phase::forward;
    if (input) return Phase::data;
    return works ? Phase::forward : kOpen;
  }

  bool in_module(std::uint32_t frame) const {
    for (; frame != kNone; frame = d_.frame_parent[frame])
      if (t_.name_of(OpId{frame}).substr(0, 10) == "nn.Module:") return true;
    return false;
  }

  // A launch that says nothing belongs to what surrounds it; between a backward pass and the optimizer to the latter
  // (clipping, scaling), between a forward pass and its backward to the former (the loss). Elsewhere it is the host's.
  void fill_between() {
    std::vector<std::uint32_t> launched;
    for (std::uint32_t i = 0; i < d_.tasks.size(); ++i)
      if (d_.tasks[i].call != kNone && !d_.tasks[i].communicates) launched.push_back(i);
    std::vector<Phase> next(launched.size(), kOpen);
    for (std::size_t i = launched.size(); i-- > 0;) {
      const Phase p = d_.tasks[launched[i]].phase;
      next[i] = p != kOpen ? p : i + 1 < launched.size() ? next[i + 1] : kOpen;
    }
    Phase last = kOpen;
    for (std::size_t i = 0; i < launched.size(); ++i) {
      DissectedTask& task = d_.tasks[launched[i]];
      if (task.phase != kOpen) {
        last = task.phase;
        continue;
      }
      const Phase then = next[i];
      if (last == kOpen && then == kOpen && next.front() == kOpen && !task.graph) continue;  // nothing is told at all
      if (last == then && last != kOpen)
        task.phase = last;
      else if (last == Phase::backward && then == Phase::optimizer)
        task.phase = Phase::optimizer;
      else if (is_forward(last) && then == Phase::backward)
        task.phase = last;
      else if (task.graph && !d_.training)
        task.phase = Phase::forward;  // tell_inference() says which
      else
        task.phase = Phase::host;
    }
  }

  // ---- inference ----

  // 1 prefill, 2 decode, 0 not told: queries of fused attention, or the kernel's name.
  int queries_of(const DissectedTask& task) {
    if (task.kind != KernelClass::attention) return 0;
    for (std::uint32_t p = task.near; p != kNone; p = o_.parent[p]) {
      if ((o_.flags(p) & F::attention) == 0) continue;
      const std::vector<Tensor>& t = o_.tensors(p);
      if (t.size() < 2 || t[0].size() != 4 || t[1].size() != 4) continue;
      // scaled_dot_product_*: [batch, heads, tokens, dim]; the others [batch, tokens, heads, dim]
      const std::size_t at = has(o_.name(p), "scaled_dot_product") ? 2 : 1;
      if (t[0][at] == 1 && t[1][at] > 1) return 2;
      if (t[0][at] > 1 && causal(p)) return 1;
      return 0;
    }
    std::string low(t_.name_of(OpId{task.row}));
    std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return std::tolower(c); });
    for (const std::string_view word : {"decode", "paged_attention_v", "paged_attention_ll4mi", "mlapageattention"})
      if (has(low, word)) return 2;
    if (has(low, "prefill")) return 1;
    return task.graph ? 2 : 0;  // graphs are captured for a fixed number of tokens: one a sequence
  }
  bool causal(std::uint32_t op) const {
    const std::uint32_t extra = t_.ops.extra[op];
    return extra != kNone && has(t_.strings.view(t_.op_args.concrete_inputs[extra]), "True");
  }

  // Each pass is what its attention says: a task goes with the attention before it, unless an embedding lies between:
  // then with the one after it.
  void tell_inference() {
    std::vector<std::uint32_t> pass;
    for (std::uint32_t i = 0; i < d_.tasks.size(); ++i)
      if (d_.tasks[i].phase == Phase::forward && !d_.tasks[i].communicates) pass.push_back(i);
    std::vector<int> kind(pass.size());
    for (std::size_t i = 0; i < pass.size(); ++i) kind[i] = queries_of(d_.tasks[pass[i]]);
    for (std::size_t begin = 0; begin < pass.size();) {
      // a pass: from an embedding (or the first task) up to the next embedding behind an attention
      std::size_t end = begin;
      bool attention = false;
      bool prefill = false, decode = false;
      for (; end < pass.size(); ++end) {
        const DissectedTask& task = d_.tasks[pass[end]];
        if (attention && task.kind == KernelClass::embedding) break;
        attention = attention || task.kind == KernelClass::attention;
        prefill = prefill || kind[end] == 1;
        decode = decode || kind[end] == 2;
      }
      for (std::size_t i = begin; i < end; ++i)
        if (prefill || decode)
          d_.tasks[pass[i]].phase = prefill && decode ? Phase::mixed : prefill ? Phase::prefill : Phase::decode;
      begin = end;
    }
  }

  Dissection& d_;
  const RankTrace& t_;
  const Operators& o_;
  std::vector<std::uint8_t> range_phase_;  // by StrId: 0 not asked, 1 none, Phase + 2
};

}  // namespace

void find_phases(Dissection& d) { PhaseFinder(d).run(); }

}  // namespace orrery
