// What is known of GPUs, without any trace. One file a GPU, facts/gpus/NAME.toml, every number with its source.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

struct GpuFacts {
  std::string name;
  int sms = 0;
  double bf16_tflops = 0;  // dense
  double memory_gb_per_s = 0;
  double memory_gib = 0;       // that the driver reports, less than a process can use by its context
  double nvlink_gb_per_s = 0;  // each way, all links of one GPU; 0 = none
  double nic_gb_per_s = 0;     // each way, a GPU's share of the network of the usual 8-GPU server
  std::string source;
  bool nvlink_sharp = false;  // switches that add: all-reduces of a full server exceed rings
  // Dense, with fp32 accumulation; 0 = the GPU has none of that kind.
  double fp16_tflops = 0, tf32_tflops = 0, fp8_tflops = 0, int8_tops = 0, fp32_tflops = 0;
  double l2_mib = 0, boost_mhz = 0, pcie_gb_per_s = 0;  // 0 = not known; PCIe each way
  std::string arch = {};                                // Volta, Ampere, Ada, Hopper, Blackwell ...
  double tdp_w = 0;                                     // 0 = not known
  bool nvlink_in_pairs = false;                         // NVLink is a bridge between two GPUs
  bool pcie_p2p = true;                                 // the driver lets GPUs of this kind read each other over PCIe
  std::string sure = {};                                // seen, derived, remembered ...; exceptions with their field
  std::vector<std::string> device_names = {};           // parts of the name that the driver reports
  std::vector<std::string> aliases = {};
};

// What a kernel of 16-bit floats is measured against: bf16, or fp16 on GPUs without; 0 = not known.
inline double half_tflops(const GpuFacts& gpu) { return gpu.bf16_tflops > 0 ? gpu.bf16_tflops : gpu.fp16_tflops; }

// Of the built-in files the one whose device name is part of `device` as whole words; the longest wins. nullptr = not
// known.
const GpuFacts* find_gpu(std::string_view device);

}  // namespace orrery
