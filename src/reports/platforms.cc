// What `--platform list` says: the GPUs of which facts are known.
#include "facts/gpus.h"
#include "reports/reports.h"

namespace orrery {

Section platforms_section() {
  Section s{.key = "platforms", .title = "Platforms: a GPU and the links of its usual server", .table = {}};
  s.table.columns = {{.key = "name"},
                     {.key = "bf16_tflops", .digits = 0},
                     {.key = "memory_gb_per_s", .title = "memory GB/s", .digits = 0},
                     {.key = "memory_gib", .title = "memory GiB", .digits = 1},
                     {.key = "nvlink_gb_per_s", .title = "NVLink GB/s", .digits = 0},
                     {.key = "nic_gb_per_s", .title = "network GB/s", .digits = 1},
                     {.key = "source"}};
  for (const std::string_view name : gpu_names()) {
    const GpuFacts* g = find_gpu(name);
    s.table.rows.push_back({std::string(name), g->bf16_tflops, g->memory_gb_per_s, g->memory_gib, g->nvlink_gb_per_s,
                            g->nic_gb_per_s, std::string(g->source)});
  }
  return s;
}

}  // namespace orrery
