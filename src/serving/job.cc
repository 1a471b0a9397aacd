#include "serving/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "estimate/operations.h"

namespace orrery {
namespace {

// Whether GPUs of a group of `members` can talk, as far as the platform is known.
Status reachable(const ServeJob& job, std::int64_t members, const char* option) {
  const PlatformFacts& p = job.platform;
  const bool joined = p.nvlink_gb_per_s > 0 && !p.nvlink_in_pairs;
  const std::int64_t server = std::max<std::int64_t>(1, joined ? p.nvlink_domain : p.gpus_per_node);
  if (members < 2) return {};
  const NetworkModel net = network_of(p, p.gpus_per_node);
  if (transfer_ns(net, Pattern::all_reduce, 1e6, {members, std::min(members, server)}) >= 0) return {};
  return fail(members > server ? "the platform's network between servers is not known"
                               : "the platform's links between GPUs are not known",
              option, "fewer GPUs, or a platform file with nic_gb_per_s (docs/formats/facts.md)");
}

}  // namespace

std::string_view name_of(WeightFormat f) {
  switch (f) {
    case WeightFormat::same:
      return "none";
    case WeightFormat::fp8:
      return "fp8";
    case WeightFormat::int8:
      return "int8";
    case WeightFormat::int4:
      return "int4";
  }
  return "";
}

double weight_bytes(const ServeJob& job) {
  switch (job.weights) {
    case WeightFormat::same:
      return bytes_of(job.precision);
    case WeightFormat::fp8:
    case WeightFormat::int8:
      return 1;
    case WeightFormat::int4:  // two-byte scale and zero point of each group
      return 0.5 + 4.0 / static_cast<double>(job.group);
  }
  return 2;
}

double kv_bytes_per_token(const ServeJob& job) {
  const ModelFacts& m = job.model;
  const double element = job.kv_bytes > 0 ? job.kv_bytes : std::max(2.0, bytes_of(job.precision));
  const double layers = static_cast<double>(m.layers);
  if (m.kv_lora_rank > 0) return layers * static_cast<double>(m.kv_lora_rank + m.rope_head_dim) * element;
  // A head is on one GPU at least: groups of more GPUs than heads keep copies.
  const double heads = static_cast<double>(std::max(m.kv_heads, job.tp));
  return layers * 2 * heads * static_cast<double>(m.head_dim) * element;
}

Status check(const ServeJob& job) {
  const ModelFacts& m = job.model;
  const auto below_one = [](std::int64_t n) { return n < 1; };
  if (below_one(job.tp) || below_one(job.pp) || below_one(job.ep) || below_one(job.replicas))
    return fail("tp, pp, expert-parallel and replicas are at least 1", "estimate serve");
  if (m.heads % job.tp != 0)
    return fail(fmt::format("{} heads cannot be divided by tp = {}", m.heads, job.tp), "--tp",
                "a divisor of the heads");
  if (m.kv_lora_rank == 0 && m.kv_heads % job.tp != 0 && job.tp % m.kv_heads != 0)
    return fail(fmt::format("{} heads of keys and values cannot be shared by tp = {}", m.kv_heads, job.tp), "--tp");
  if (job.pp > m.layers) return fail(fmt::format("{} layers cannot be cut into {} stages", m.layers, job.pp), "--pp");
  if (job.ep > 1 && m.experts == 0) return fail("the model has no experts", "--expert-parallel", "leave it out");
  const bool over_replicas = job.ep > job.tp && job.replicas * job.tp == job.ep;
  if (job.ep > 1 && ((job.tp % job.ep != 0 && !over_replicas) || m.experts % job.ep != 0))
    return fail(fmt::format("{} GPUs cannot share {} experts with tp = {} and {} replicas", job.ep, m.experts, job.tp,
                            job.replicas),
                "--expert-parallel", "a divisor of tp, or tp * replicas, that divides the experts");
  if (job.prefill_replicas >= job.replicas && job.prefill_replicas > 0)
    return fail(fmt::format("{} of {} replicas prefill: none is left to decode", job.prefill_replicas, job.replicas),
                "--prefill-replicas", "fewer of them, or more --replicas");
  if (over_replicas && (job.pp > 1 || job.prefill_replicas > 0))
    return fail("replicas that share experts go in step: no stages, no separate prefill", "--expert-parallel");
  if (const Status ok = reachable(job, job.tp, "--tp"); !ok) return ok;
  if (const Status ok = reachable(job, job.pp > 1 ? job.tp * job.pp : 1, "--pp"); !ok) return ok;
  if (const Status ok = reachable(job, job.ep, "--expert-parallel"); !ok) return ok;
  if (const Status ok = reachable(job, job.prefill_replicas > 0 ? job.gpus() : 1, "--prefill-replicas"); !ok) return ok;
  if (job.weights == WeightFormat::fp8 && job.platform.gpu.fp8_tflops <= 0)
    return fail(job.platform.gpu.name + " has no products in fp8", "--quantize", "int8 or int4");
  if (cpu_emulates(job.platform.gpu, job.precision))
    return fail(fmt::format("{} has no unit for {}", job.platform.gpu.name, name_of(job.precision)), "--precision",
                "use fp32");
  if (job.max_model_len < 0 || job.kv_tokens < 0) return fail("negative", "--max-model-len or --kv-tokens");
  return {};
}

}  // namespace orrery
