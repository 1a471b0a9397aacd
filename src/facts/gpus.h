// What is known of GPUs and of the servers they are sold in, without any trace. Every number with its source.
#pragma once
#include <string_view>
#include <vector>

namespace orrery {

struct GpuFacts {
  std::string_view name;  // part of the name that the driver reports
  int sms = 0;
  double bf16_tflops = 0;  // dense
  double memory_gb_per_s = 0;
  double memory_gib = 0;       // that the driver reports, less than a process can use by its context
  double nvlink_gb_per_s = 0;  // each way, all links of one GPU; 0 = none
  double nic_gb_per_s = 0;     // each way, a GPU's share of the network of the usual 8-GPU server
  std::string_view source;
  bool nvlink_sharp = false;  // switches that add: all-reduces of a full server exceed rings
  // Dense, with fp32 accumulation; 0 = the GPU has none of that kind.
  double fp16_tflops = 0, tf32_tflops = 0, fp8_tflops = 0, int8_tops = 0, fp32_tflops = 0;
  double l2_mib = 0, boost_mhz = 0, pcie_gb_per_s = 0;  // 0 = not known; PCIe each way
  std::string_view arch = {};                           // Volta, Ampere, Ada, Hopper, Blackwell ...
};

// The row whose name is part of `device`; nullptr = not known.
const GpuFacts* find_gpu(std::string_view device);
// The names of all rows, in their order.
std::vector<std::string_view> gpu_names();

}  // namespace orrery
