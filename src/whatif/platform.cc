#include "whatif/platform.h"

#include <cctype>
#include <cmath>

#include "facts/library.h"

namespace orrery {

const GpuFacts* gpu_of(const TraceSet& traces) {
  for (const RankTrace& t : traces.ranks)
    for (const Device& d : t.devices)
      if (const GpuFacts* gpu = find_gpu(d.name); gpu != nullptr) return gpu;
  return nullptr;
}

Result<GpuFacts> known_platform(const std::string& name) {
  auto named = gpu_named(name);
  if (named) return std::move(*named);
  std::string upper = name;
  for (char& letter : upper) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  // part of the name that a driver reports ("NVIDIA H100 80GB HBM3")
  if (const GpuFacts* gpu = find_gpu(upper); gpu != nullptr) return *gpu;
  return fail("nothing is known of this GPU: " + name, "--platform",
              named.error().advice + "; --platform list shows all");
}

Result<Changed> change_platform(const TraceSet& traces, GraphBuild& build, JobModel& job, const std::string& name) {
  const GpuFacts* from = gpu_of(traces);
  if (from == nullptr)
    return fail("the traces do not say which GPU they are from, or nothing is known of it", "--platform");
  const auto known = known_platform(name);
  if (!known) return tl::unexpected(known.error());
  const GpuFacts* to = &*known;
  Changed changed;
  if (to->name == from->name) return changed;
  for (const GpuFacts* gpu : {from, to})
    if (half_tflops(*gpu) <= 0) return fail("no rate of 16-bit products is known of " + gpu->name, "--platform");
  const double compute = half_tflops(*from) / half_tflops(*to), memory = from->memory_gb_per_s / to->memory_gb_per_s;
  ExecGraph& g = build.graph;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.kind[n] != NodeKind::kernel && g.kind[n] != NodeKind::memcpy && g.kind[n] != NodeKind::memset) continue;
    const std::uint32_t s = job.sample_of[n];
    const bool products =
        s != kNone && (job.work[s].kind == WorkKind::gemm || job.work[s].kind == WorkKind::attention ||
                       job.work[s].kind == WorkKind::attention_backward);
    const Ns t = std::llround(static_cast<double>(g.duration[n]) * (products ? compute : memory));
    changed.nodes += t != g.duration[n];
    g.duration[n] = t;
  }
  const auto links = [&](Link link, Level& level, double before, double after) {
    if (before <= 0 || after <= 0 || before == after) return;
    changed.nodes += scale_bandwidth(build, link, after / before).nodes;
    level.gb_per_s *= after / before;
  };
  links(Link::intra, job.net.intra, from->nvlink_gb_per_s, to->nvlink_gb_per_s);
  links(Link::inter, job.net.inter, from->nic_gb_per_s, to->nic_gb_per_s);
  job.capacity_gib = to->memory_gib;
  refresh_queue_lags(g);
  return changed;
}

}  // namespace orrery
