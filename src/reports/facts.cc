// What is known without a trace: `--model list` and `--platform list`. A number that is not known is null.
#include "reports/reports.h"

namespace orrery {
namespace {

Cell known(double x) { return x > 0 ? Cell(x) : Cell(); }
Cell known(std::int64_t x) { return x > 0 ? Cell(x) : Cell(); }
Cell known(const std::string& s) { return s.empty() ? Cell() : Cell(s); }

std::vector<Cell> model_row(const ModelFacts& m) {
  const bool expressed = m.unsupported.empty();
  return {m.name,
          expressed ? Cell(parameters(m) / 1e9) : Cell(),
          expressed && m.experts > 0 ? Cell(active_parameters(m) / 1e9) : Cell(),
          known(m.layers),
          known(m.hidden),
          known(m.experts > 0 && m.dense_layers == 0 && m.expert_every == 1 ? 0 : m.ffn),
          known(m.heads),
          known(m.kv_heads),
          known(m.head_dim),
          known(m.vocab),
          known(m.max_context),
          known(m.experts),
          known(m.experts_per_token),
          known(m.expert_ffn),
          known(m.unsupported),
          m.source,
          m.sure};
}

std::vector<Cell> platform_row(const PlatformFacts& p) {
  return {p.name,
          p.gpu.name,
          p.gpus_per_node,
          known(half_tflops(p.gpu)),
          p.gpu.memory_gib,
          p.gpu.memory_gb_per_s,
          p.nvlink_gb_per_s > 0 ? Cell(p.nvlink_domain) : Cell(),
          known(p.nvlink_gb_per_s),
          known(p.pcie_gb_per_s),
          p.p2p,
          known(p.nic_gb_per_s),
          known(p.host.name),
          known(p.host.memory_gib),
          known(p.host.memory_gb_per_s),
          p.source,
          p.sure};
}

}  // namespace

Section models_section(const std::vector<ModelFacts>& models) {
  Section s{.key = "models", .title = "Models", .table = {}};
  s.table.columns = {{.key = "name"},
                     {.key = "parameters_b", .title = "10^9 parameters", .digits = 2},
                     {.key = "active_b", .title = "active", .digits = 2},
                     {.key = "layers"},
                     {.key = "hidden"},
                     {.key = "ffn"},
                     {.key = "heads"},
                     {.key = "kv_heads", .title = "kv"},
                     {.key = "head_dim", .title = "width"},
                     {.key = "vocab"},
                     {.key = "max_context", .title = "context"},
                     {.key = "experts"},
                     {.key = "experts_per_token", .title = "used"},
                     {.key = "expert_ffn", .json_only = true},
                     {.key = "unsupported", .title = "not expressed, because", .json_only = true},
                     {.key = "source", .json_only = true},
                     {.key = "sure", .json_only = true}};
  for (const ModelFacts& m : models) s.table.rows.push_back(model_row(m));
  return s;
}

Section platforms_section(const std::vector<PlatformFacts>& platforms) {
  Section s{.key = "platforms", .title = "Platforms", .table = {}};
  s.table.columns = {{.key = "name"},
                     {.key = "gpu", .title = "GPU"},
                     {.key = "gpus_per_node", .title = "GPUs"},
                     {.key = "half_tflops", .title = "TFLOP/s, 16 bit", .digits = 0},
                     {.key = "memory_gib", .title = "GiB", .digits = 1},
                     {.key = "memory_gb_per_s", .title = "GB/s", .digits = 0},
                     {.key = "nvlink_domain", .title = "NVLink joins"},
                     {.key = "nvlink_gb_per_s", .title = "NVLink GB/s", .digits = 0},
                     {.key = "pcie_gb_per_s", .title = "PCIe GB/s", .digits = 1},
                     {.key = "p2p"},
                     {.key = "nic_gb_per_s", .title = "network GB/s", .digits = 1},
                     {.key = "host"},
                     {.key = "host_memory_gib", .title = "host GiB", .digits = 0},
                     {.key = "host_memory_gb_per_s", .title = "host GB/s", .digits = 0},
                     {.key = "source", .json_only = true},
                     {.key = "sure", .json_only = true}};
  for (const PlatformFacts& p : platforms) s.table.rows.push_back(platform_row(p));
  return s;
}

}  // namespace orrery
