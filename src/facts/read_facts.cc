#include "facts/read_facts.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr double kMany = 1e6;  // of layers, heads, widths

using Model = ModelFacts;
constexpr FactField<Model> kModel[] = {
    {"name", &Model::name, true},
    {"aliases", &Model::aliases},
    {"source", &Model::source, true},
    {"sure", &Model::sure, true},
    {"unsupported", &Model::unsupported},
    {"layers", &Model::layers, true, 1, 1e4},
    {"hidden", &Model::hidden, true, 1, kMany},
    {"ffn", &Model::ffn, false, 1, kMany},
    {"heads", &Model::heads, true, 1, 1e4},
    {"kv_heads", &Model::kv_heads, false, 1, 1e4},
    {"head_dim", &Model::head_dim, false, 1, 1e4},
    {"vocab", &Model::vocab, true, 1, 1e8},
    {"max_context", &Model::max_context, false, 1, 1e9},
    {"tied_embeddings", &Model::tied_embeddings},
    {"gated_mlp", &Model::gated_mlp},
    {"clamped_gate", &Model::clamped_gate},
    {"rms_norm", &Model::rms_norm},
    {"learned_positions", &Model::learned_positions},
    {"linear_bias", &Model::linear_bias},
    {"qkv_bias", &Model::qkv_bias},
    {"experts", &Model::experts, false, 1, 1e5},
    {"experts_per_token", &Model::experts_per_token, false, 1, 1e5},
    {"expert_ffn", &Model::expert_ffn, false, 1, kMany},
    {"shared_ffn", &Model::shared_ffn, false, 1, kMany},
    {"dense_layers", &Model::dense_layers, false, 0, 1e4},
    {"expert_every", &Model::expert_every, false, 1, 1e4},
    {"q_lora_rank", &Model::q_lora_rank, false, 1, kMany},
    {"kv_lora_rank", &Model::kv_lora_rank, false, 1, kMany},
    {"rope_head_dim", &Model::rope_head_dim, false, 1, kMany},
    {"value_head_dim", &Model::value_head_dim, false, 1, kMany},
    {"layer_norms", &Model::layer_norms, false, 0, 16},
    {"qk_norm", &Model::qk_norm},
    {"sliding_window", &Model::sliding_window, false, 1, 1e9},
    {"full_attention_every", &Model::full_attention_every, false, 1, 1e4},
    {"published_parameters", &Model::published_parameters, false, 1e5, 1e15},
};

using Gpu = GpuFacts;
constexpr FactField<Gpu> kGpu[] = {
    {"name", &Gpu::name, true},
    {"aliases", &Gpu::aliases},
    {"device_names", &Gpu::device_names},
    {"source", &Gpu::source, true},
    {"sure", &Gpu::sure, true},
    {"arch", &Gpu::arch},
    {"sms", &Gpu::sms, true, 1, 1e4},
    {"boost_mhz", &Gpu::boost_mhz, false, 100, 1e4},
    {"bf16_tflops", &Gpu::bf16_tflops, false, 1e-4, 1e5},
    {"fp16_tflops", &Gpu::fp16_tflops, false, 1e-4, 1e5},
    {"tf32_tflops", &Gpu::tf32_tflops, false, 1e-4, 1e5},
    {"fp8_tflops", &Gpu::fp8_tflops, false, 1e-4, 1e5},
    {"int8_tops", &Gpu::int8_tops, false, 1e-4, 1e5},
    {"fp32_tflops", &Gpu::fp32_tflops, false, 1e-4, 1e5},
    {"memory_gib", &Gpu::memory_gib, true, 0.5, 1e4},
    {"memory_gb_per_s", &Gpu::memory_gb_per_s, true, 0.1, 1e5},
    {"l2_mib", &Gpu::l2_mib, false, 0.1, 1e4},
    {"nvlink_gb_per_s", &Gpu::nvlink_gb_per_s, false, 1, 1e4},
    {"nvlink_in_pairs", &Gpu::nvlink_in_pairs},
    {"nvlink_sharp", &Gpu::nvlink_sharp},
    {"pcie_gb_per_s", &Gpu::pcie_gb_per_s, false, 0.1, 1e4},
    {"pcie_p2p", &Gpu::pcie_p2p},
    {"nic_gb_per_s", &Gpu::nic_gb_per_s, false, 0.1, 1e3},
    {"tdp_w", &Gpu::tdp_w, false, 1, 1e5},
};

using Host = HostFacts;
constexpr FactField<Host> kHost[] = {
    {"name", &Host::name, true},
    {"aliases", &Host::aliases},
    {"source", &Host::source, true},
    {"sure", &Host::sure, true},
    {"memory_gb_per_s", &Host::memory_gb_per_s, true, 0.1, 1e5},
    {"memory_gib", &Host::memory_gib, false, 1, 1e6},
    {"cores", &Host::cores, true, 1, 1e4},
    {"launch_us", &Host::launch_us, false, 0.1, 1e3},
    {"operator_us", &Host::operator_us, false, 0, 1e4},
};

using Link = LinkFacts;
constexpr FactField<Link> kLink[] = {
    {"name", &Link::name, true},
    {"aliases", &Link::aliases},
    {"source", &Link::source, true},
    {"sure", &Link::sure, true},
    {"gb_per_s", &Link::gb_per_s, true, 0.05, 1e4},
    {"busbw_gb_per_s", &Link::busbw_gb_per_s, false, 0.05, 1e4},
    {"sharp_busbw_gb_per_s", &Link::sharp_busbw_gb_per_s, false, 0.05, 1e4},
    {"both_gb_per_s", &Link::both_gb_per_s, false, 0.05, 2e4},
    {"latency_us", &Link::latency_us, false, 0.01, 1e6},
};

using Engine = EngineFacts;
constexpr FactField<Engine> kEngine[] = {
    {"name", &Engine::name, true},
    {"aliases", &Engine::aliases},
    {"source", &Engine::source, true},
    {"sure", &Engine::sure, true},
    {"note", &Engine::note},
    {"scheduling", &Engine::scheduling},
    {"kv_growth", &Engine::kv_growth},
    {"preemption", &Engine::preemption},
    {"multi_gpu", &Engine::multi_gpu},
    {"kernels", &Engine::kernels},
    {"block_size", &Engine::block_size, false, 1, 65536},
    {"max_num_seqs", &Engine::max_num_seqs, false, 1, 1e6},
    {"max_batched_tokens", &Engine::max_batched_tokens, false, 1, 1e8},
    {"step_covers_context", &Engine::step_covers_context},
    {"gpu_memory_utilization", &Engine::gpu_memory_utilization, false, 0.05, 1},
    {"reserved_gib", &Engine::reserved_gib, false, 0, 1e3},
    {"prefix_caching", &Engine::prefix_caching},
    {"custom_all_reduce", &Engine::custom_all_reduce},
    {"custom_all_reduce_on_amd", &Engine::custom_all_reduce_on_amd},
    {"cuda_graph_batch", &Engine::cuda_graph_batch, false, 0, 1e6},
    {"cuda_graph_prefill", &Engine::cuda_graph_prefill},
    {"overlap_host", &Engine::overlap_host},
    {"step_us", &Engine::step_us, false, 0, 1e6},
    {"sequence_us", &Engine::sequence_us, false, 0, 1e5},
    {"exposed_us", &Engine::exposed_us, false, 0, 1e6},
    {"parallel_step_us", &Engine::parallel_step_us, false, 0, 1e6},
    {"request_us", &Engine::request_us, false, 0, 1e7},
    {"matvec_share", &Engine::matvec_share, false, 0, 1},
    {"matvec_bytes_per_clock", &Engine::matvec_bytes_per_clock, false, 0, 1e4},
    {"shared_quantised_kv", &Engine::shared_quantised_kv},
    {"shared_kv_on_amd", &Engine::shared_kv_on_amd},
    {"expert_sync", &Engine::expert_sync},
    {"int8_unpack_ops", &Engine::int8_unpack_ops, false, 0, 1e3},
};

// A platform, and the names that its file states.
struct NamedPlatform : PlatformFacts {
  std::string gpu_name, host_name;
  double host_memory_gib = 0;
};
using Server = NamedPlatform;
template <class Member>
constexpr auto of_server(Member PlatformFacts::*member) {
  return static_cast<Member Server::*>(member);
}
constexpr FactField<Server> kPlatform[] = {
    {"name", of_server(&PlatformFacts::name), true},
    {"aliases", of_server(&PlatformFacts::aliases)},
    {"source", of_server(&PlatformFacts::source), true},
    {"sure", of_server(&PlatformFacts::sure), true},
    {"note", of_server(&PlatformFacts::note)},
    {"gpu", &Server::gpu_name},
    {"host", &Server::host_name},
    {"gpus_per_node", of_server(&PlatformFacts::gpus_per_node), true, 1, 1e3},
    {"nvlink_domain", of_server(&PlatformFacts::nvlink_domain), false, 1, 1e5},
    {"nvlink_gb_per_s", of_server(&PlatformFacts::nvlink_gb_per_s), false, 0, 1e4},
    {"nvlink_in_pairs", of_server(&PlatformFacts::nvlink_in_pairs)},
    {"nvlink_sharp", of_server(&PlatformFacts::nvlink_sharp)},
    {"pcie_gb_per_s", of_server(&PlatformFacts::pcie_gb_per_s), false, 0.1, 1e4},
    {"p2p", of_server(&PlatformFacts::p2p)},
    {"host_path_gb_per_s", of_server(&PlatformFacts::host_path_gb_per_s), false, 0.1, 1e3},
    {"host_memory_gib", &Server::host_memory_gib, false, 1, 1e6},
    {"nic_gb_per_s", of_server(&PlatformFacts::nic_gb_per_s), false, 0.05, 1e3},
};

// A rule between fields: told with the line of the field that breaks it.
struct Rule {
  bool broken;
  const char* key;
  std::string what;
};

Status hold(const FactFile& file, std::string_view table, std::initializer_list<Rule> rules) {
  for (const Rule& r : rules) {
    if (!r.broken) continue;
    const FactEntry* e = file.find(table, r.key);
    return fail_at(file, e != nullptr ? e->line : file.line_of(table), r.what);
  }
  return {};
}

std::string of(const char* a, std::int64_t x, const char* b, std::int64_t y) {
  return std::string(a) + " = " + std::to_string(x) + " and " + b + " = " + std::to_string(y) + " ";
}

Status check_attention(const FactFile& file, const ModelFacts& m) {
  return hold(
      file, "model",
      {{m.heads % m.kv_heads != 0, file.find("model", "kv_heads") != nullptr ? "kv_heads" : "heads",
        of("heads", m.heads, "kv_heads", m.kv_heads) + "do not divide"},
       {m.head_dim == 0, "heads", of("hidden", m.hidden, "heads", m.heads) + "do not divide: say head_dim"},
       {m.kv_lora_rank > 0 && (m.rope_head_dim == 0 || m.value_head_dim == 0), "kv_lora_rank",
        "kv_lora_rank needs rope_head_dim and value_head_dim beside it"},
       {m.kv_lora_rank == 0 && m.q_lora_rank > 0, "q_lora_rank", "q_lora_rank needs kv_lora_rank beside it"},
       {m.kv_lora_rank == 0 && m.rope_head_dim > 0, "rope_head_dim", "rope_head_dim needs kv_lora_rank beside it"},
       {m.kv_lora_rank == 0 && m.value_head_dim > 0, "value_head_dim", "value_head_dim needs kv_lora_rank beside it"},
       {m.learned_positions && m.max_context == 0, "learned_positions",
        "learned_positions needs max_context beside it"},
       {m.full_attention_every > 0 && m.sliding_window == 0, "full_attention_every",
        "full_attention_every needs sliding_window beside it"}});
}

Status check_experts(const FactFile& file, const ModelFacts& m) {
  const bool dense = m.experts == 0;
  const bool all_experts = !dense && m.dense_layers == 0 && m.expert_every == 1;
  return hold(file, "model",
              {{!all_experts && m.ffn == 0, "layers", "[model] has no ffn, the width of a dense layer's MLP"},
               {!dense && m.experts_per_token == 0, "experts", "experts needs experts_per_token beside it"},
               {!dense && m.expert_ffn == 0, "experts", "experts needs expert_ffn beside it"},
               {dense && m.experts_per_token > 0, "experts_per_token", "experts_per_token needs experts beside it"},
               {dense && m.expert_ffn > 0, "expert_ffn", "expert_ffn needs experts beside it"},
               {dense && m.shared_ffn > 0, "shared_ffn", "shared_ffn needs experts beside it"},
               {dense && m.dense_layers > 0, "dense_layers", "dense_layers needs experts beside it"},
               {m.experts_per_token > m.experts, "experts_per_token",
                of("experts_per_token", m.experts_per_token, "experts", m.experts) + "are not possible"},
               {m.dense_layers > m.layers, "dense_layers",
                of("dense_layers", m.dense_layers, "layers", m.layers) + "are not possible"}});
}

template <class Facts>
Status read_all(const FactFile& file, std::string_view table, std::span<const FactField<Facts>> fields, Facts& out) {
  if (Status ok = read_fields<Facts>(file, table, fields, out); !ok) return ok;
  return require_fields<Facts>(file, table, fields);
}

// `pcie_gb_per_s = "pcie4-x16"` -> the link's number, with the link's source.
Result<FactFile> with_links(const FactFile& file, const KnownParts& known) {
  FactFile out = file;
  for (FactEntry& e : out.entries) {
    const auto* name = std::get_if<std::string>(&e.value);
    if (name == nullptr || (e.table != "gpu" && e.table != "platform")) continue;
    if (e.key != "nvlink_gb_per_s" && e.key != "pcie_gb_per_s" && e.key != "nic_gb_per_s" &&
        e.key != "host_path_gb_per_s")
      continue;
    const auto link = known.link(*name);
    if (!link) return fail_at(file, e.line, e.key + ": " + link.error().what, link.error().advice);
    if (e.source.empty()) e.source = link->name + ", " + link->source;
    if (e.sure.empty() && link->sure != "seen") e.sure = link->sure;
    e.value = link->gb_per_s;
  }
  return out;
}

// A [gpu] or [host] inside of a platform's file: what it leaves out of name, source and sure are the platform's.
FactFile part_of_platform(const FactFile& file, const std::string& part) {
  FactFile alone{.where = file.where, .tables = {{part, file.line_of(part)}}, .entries = {}};
  for (const FactEntry& e : file.entries)
    if (e.table == part) alone.entries.push_back(e);
  for (const char* key : {"name", "source", "sure"}) {
    const FactEntry* whole = file.find("platform", key);
    if (whole == nullptr || alone.find(part, key) != nullptr) continue;
    alone.entries.push_back(*whole);
    alone.entries.back().table = part;
  }
  return alone;
}

Status read_gpu_of(const FactFile& file, const KnownParts& known, NamedPlatform& p) {
  const FactEntry* named = file.find("platform", "gpu");
  if (file.has("gpu")) {
    if (named != nullptr) return fail_at(file, named->line, "a gpu by name and a table [gpu]", "one of them");
    auto gpu = gpu_of(part_of_platform(file, "gpu"), known);
    if (!gpu) return tl::unexpected(gpu.error());
    p.gpu = std::move(*gpu);
    return {};
  }
  if (named == nullptr)
    return fail_at(file, file.line_of("platform"), "[platform] has no gpu", "add gpu = \"NAME\" or a table [gpu]");
  auto gpu = known.gpu(p.gpu_name);
  if (!gpu) return fail_at(file, named->line, gpu.error().what, gpu.error().advice);
  p.gpu = std::move(*gpu);
  return {};
}

Status read_host_of(const FactFile& file, const KnownParts& known, NamedPlatform& p) {
  const FactEntry* named = file.find("platform", "host");
  if (file.has("host")) {
    if (named != nullptr) return fail_at(file, named->line, "a host by name and a table [host]", "one of them");
    auto host = host_of(part_of_platform(file, "host"), known);
    if (!host) return tl::unexpected(host.error());
    p.host = std::move(*host);
  } else if (named != nullptr) {
    auto host = known.host(p.host_name);
    if (!host) return fail_at(file, named->line, host.error().what, host.error().advice);
    p.host = std::move(*host);
  }
  if (p.host_memory_gib > 0) p.host.memory_gib = p.host_memory_gib;
  return {};
}

// What the file does not say of the links is that of the GPU's usual server.
void take_links_of_gpu(const FactFile& file, PlatformFacts& p) {
  const auto unsaid = [&](const char* key) { return file.find("platform", key) == nullptr; };
  if (unsaid("nvlink_gb_per_s")) p.nvlink_gb_per_s = p.gpu.nvlink_gb_per_s;
  const bool nvlink = p.nvlink_gb_per_s > 0;
  if (unsaid("nvlink_in_pairs")) p.nvlink_in_pairs = nvlink && p.gpu.nvlink_in_pairs;
  if (unsaid("nvlink_sharp")) p.nvlink_sharp = nvlink && p.gpu.nvlink_sharp;
  if (unsaid("nvlink_domain")) p.nvlink_domain = !nvlink ? 1 : p.nvlink_in_pairs ? 2 : p.gpus_per_node;
  if (unsaid("pcie_gb_per_s")) p.pcie_gb_per_s = p.gpu.pcie_gb_per_s;
  if (unsaid("p2p")) p.p2p = p.gpu.pcie_p2p;
  if (unsaid("nic_gb_per_s")) p.nic_gb_per_s = p.gpu.nic_gb_per_s;
}

Status only_tables(const FactFile& file, std::initializer_list<std::string_view> known) {
  for (const auto& [name, line] : file.tables) {
    bool found = false;
    for (const std::string_view k : known) found |= k == name;
    if (!found) return fail_at(file, line, "a table [" + name + "] is not known here", "docs/formats/facts.md");
  }
  return {};
}

}  // namespace

Result<FactKind> kind_of_facts(const FactFile& file) {
  if (file.has("platform")) return FactKind::platform;
  if (file.has("model")) return FactKind::model;
  if (file.has("gpu")) return FactKind::gpu;
  if (file.has("host")) return FactKind::host;
  if (file.has("link")) return FactKind::link;
  if (file.has("engine")) return FactKind::engine;
  return fail_at(file, 1, "no facts", "begin with [model], [gpu], [host], [link], [engine] or [platform]");
}

Result<ModelFacts> model_of(const FactFile& file, const KnownParts&) {
  ModelFacts m;
  if (Status ok = only_tables(file, {"model"}); !ok) return tl::unexpected(ok.error());
  if (Status ok = read_fields<ModelFacts>(file, "model", kModel, m); !ok) return tl::unexpected(ok.error());
  if (!m.unsupported.empty() && !m.name.empty()) return m;  // its numbers are for people
  if (Status ok = require_fields<ModelFacts>(file, "model", kModel); !ok) return tl::unexpected(ok.error());
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0 && m.hidden % m.heads == 0) m.head_dim = m.hidden / m.heads;
  if (Status ok = check_attention(file, m); !ok) return tl::unexpected(ok.error());
  if (Status ok = check_experts(file, m); !ok) return tl::unexpected(ok.error());
  return m;
}

Result<GpuFacts> gpu_of(const FactFile& stated, const KnownParts& known) {
  GpuFacts g;
  if (Status ok = only_tables(stated, {"gpu"}); !ok) return tl::unexpected(ok.error());
  const auto linked = with_links(stated, known);
  if (!linked) return tl::unexpected(linked.error());
  const FactFile& file = *linked;
  if (Status ok = read_all<GpuFacts>(file, "gpu", kGpu, g); !ok) return tl::unexpected(ok.error());
  const bool none = g.bf16_tflops + g.fp16_tflops + g.fp32_tflops <= 0;
  const Status ok = hold(
      file, "gpu",
      {{none, "sms", "[gpu] has none of bf16_tflops, fp16_tflops and fp32_tflops"},
       {g.nvlink_in_pairs && g.nvlink_gb_per_s <= 0, "nvlink_in_pairs",
        "nvlink_in_pairs needs nvlink_gb_per_s beside it"},
       {g.nvlink_sharp && g.nvlink_gb_per_s <= 0, "nvlink_sharp", "nvlink_sharp needs nvlink_gb_per_s beside it"}});
  if (!ok) return tl::unexpected(ok.error());
  return g;
}

Result<HostFacts> host_of(const FactFile& file, const KnownParts&) {
  HostFacts h;
  if (Status ok = only_tables(file, {"host"}); !ok) return tl::unexpected(ok.error());
  if (Status ok = read_all<HostFacts>(file, "host", kHost, h); !ok) return tl::unexpected(ok.error());
  return h;
}

Result<LinkFacts> link_of(const FactFile& file, const KnownParts&) {
  LinkFacts l;
  if (Status ok = only_tables(file, {"link"}); !ok) return tl::unexpected(ok.error());
  if (Status ok = read_all<LinkFacts>(file, "link", kLink, l); !ok) return tl::unexpected(ok.error());
  return l;
}

Result<EngineFacts> engine_of(const FactFile& file, const KnownParts&) {
  EngineFacts e;
  if (Status ok = only_tables(file, {"engine"}); !ok) return tl::unexpected(ok.error());
  if (Status ok = read_all<EngineFacts>(file, "engine", kEngine, e); !ok) return tl::unexpected(ok.error());
  const auto among = [](const std::string& value, std::initializer_list<std::string_view> values) {
    return std::find(values.begin(), values.end(), value) != values.end();
  };
  const Status ok = hold(
      file, "engine",
      {{!among(e.scheduling, {"chunked", "prefill-first", "static"}), "scheduling",
        "scheduling is chunked, prefill-first or static, not " + e.scheduling},
       {!among(e.kv_growth, {"paged", "reserved"}), "kv_growth", "kv_growth is paged or reserved, not " + e.kv_growth},
       {!among(e.preemption, {"recompute", "swap"}), "preemption",
        "preemption is recompute or swap, not " + e.preemption},
       {!among(e.multi_gpu, {"tensor", "layers"}), "multi_gpu", "multi_gpu is tensor or layers, not " + e.multi_gpu},
       {!among(e.kernels, {"fused", "separate", "unfused"}), "kernels",
        "kernels is fused, separate or unfused, not " + e.kernels}});
  if (!ok) return tl::unexpected(ok.error());
  return e;
}

Result<PlatformFacts> platform_of(const FactFile& stated, const KnownParts& known) {
  NamedPlatform p;
  if (Status ok = only_tables(stated, {"platform", "gpu", "host"}); !ok) return tl::unexpected(ok.error());
  const auto linked = with_links(stated, known);
  if (!linked) return tl::unexpected(linked.error());
  const FactFile& file = *linked;
  if (Status ok = read_all<NamedPlatform>(file, "platform", kPlatform, p); !ok) return tl::unexpected(ok.error());
  if (Status ok = read_gpu_of(file, known, p); !ok) return tl::unexpected(ok.error());
  if (Status ok = read_host_of(file, known, p); !ok) return tl::unexpected(ok.error());
  take_links_of_gpu(file, p);
  const bool nvlink = p.nvlink_gb_per_s > 0;
  const Status ok = hold(
      file, "platform",
      {{nvlink && p.nvlink_gb_per_s < 1, "nvlink_gb_per_s",
        "nvlink_gb_per_s is not possible: 0 for none, else 1 or more"},
       {p.nvlink_in_pairs && !nvlink, "nvlink_in_pairs", "nvlink_in_pairs without any NVLink"},
       {p.nvlink_sharp && !nvlink, "nvlink_sharp", "nvlink_sharp without any NVLink"},
       {nvlink && p.nvlink_domain % p.gpus_per_node != 0 && p.gpus_per_node % p.nvlink_domain != 0, "nvlink_domain",
        of("nvlink_domain", p.nvlink_domain, "gpus_per_node", p.gpus_per_node) + "do not divide"}});
  if (!ok) return tl::unexpected(ok.error());
  return static_cast<PlatformFacts&>(p);
}

}  // namespace orrery
