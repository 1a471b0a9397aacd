// What `predict --platform list` says: the GPUs of which facts are known.
#include "facts/gpus.h"

#include "reports/reports.h"

namespace orrery {

Section gpus_section(const std::vector<GpuFacts>& gpus) {
  Section s{.key = "platforms", .title = "Platforms: a GPU and the links of its usual server", .table = {}};
  s.table.columns = {{.key = "name"},
                     {.key = "tflops_16_bit", .title = "16-bit TFLOP/s", .digits = 0},
                     {.key = "memory_gb_per_s", .title = "memory GB/s", .digits = 0},
                     {.key = "memory_gib", .title = "memory GiB", .digits = 1},
                     {.key = "nvlink_gb_per_s", .title = "NVLink GB/s", .digits = 0},
                     {.key = "nic_gb_per_s", .title = "network GB/s", .digits = 1}};
  for (const GpuFacts& g : gpus)
    s.table.rows.push_back(
        {g.name, half_tflops(g), g.memory_gb_per_s, g.memory_gib, g.nvlink_gb_per_s, g.nic_gb_per_s});
  return s;
}

}  // namespace orrery
