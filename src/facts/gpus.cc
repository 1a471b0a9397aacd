#include "facts/gpus.h"

#include <array>

namespace orrery {
namespace {

// The longer names first: "H100 PCIe" before "H100". Memory is what the driver reports (nvidia-smi or totalGlobalMem),
// as collected by Modal (nvidia-gpu-memory-capacity) for A100, H100 and H200 and in pytorch/ao#4002 for B200; of others
// what the data sheet says. V100: nvidia-smi, remembered. Switches that add (NVLink SHARP): SXM servers from Hopper on.
constexpr std::array<GpuFacts, 12> kGpus = {{
    {"B200", 148, 2250, 8000, 178.35, 900, 50, "NVIDIA DGX B200 datasheet: 8 x 400 Gb/s ConnectX-7", true},
    {"H200", 132, 989, 4800, 140.4, 450, 50, "NVIDIA H200 datasheet; DGX H200: 8 x 400 Gb/s ConnectX-7", true},
    {"H100 PCIe", 114, 756, 2000, 79.65, 300, 25, "NVIDIA H100 datasheet (PCIe, NVLink bridge)"},
    {"H100", 132, 989, 3350, 79.65, 450, 50, "NVIDIA H100 datasheet (SXM5); DGX H100: 8 x 400 Gb/s ConnectX-7", true},
    {"H800", 132, 989, 3350, 79.65, 200, 50, "NVIDIA H800 (SXM5): NVLink 400 GB/s both ways; memory as H100", true},
    {"A100-SXM4-80GB", 108, 312, 2039, 80, 300, 25,
     "NVIDIA A100 80GB datasheet (SXM4); DGX A100: 8 x 200 Gb/s ConnectX-6"},
    {"A100-SXM-80GB", 108, 312, 2039, 80, 300, 25, "the same, as older drivers name it"},
    {"A100 80GB PCIe", 108, 312, 1935, 80, 300, 25, "NVIDIA A100 80GB datasheet (PCIe, NVLink bridge)"},
    {"A100", 108, 312, 1555, 40, 300, 25, "NVIDIA A100 datasheet (40GB); DGX A100: 8 x 200 Gb/s ConnectX-6"},
    {"V100-SXM2-32GB", 80, 125, 900, 31.75, 150, 12.5, "NVIDIA V100 datasheet (SXM2, fp16, 32 GB); DGX-1 as below"},
    {"V100", 80, 125, 900, 15.78, 150, 12.5,
     "NVIDIA V100 datasheet (SXM2, fp16); DGX-1: 4 x 100 Gb/s for 8 GPUs, two a NIC"},
    {"MI300X", 304, 1307, 5300, 192, 448, 50, "AMD Instinct MI300X data sheet; 7 x 64 GB/s Infinity Fabric each way"},
}};

}  // namespace

const GpuFacts* find_gpu(std::string_view device) {
  for (const GpuFacts& g : kGpus)
    if (device.find(g.name) != std::string_view::npos) return &g;
  return nullptr;
}

std::vector<std::string_view> gpu_names() {
  std::vector<std::string_view> names;
  for (const GpuFacts& g : kGpus) names.push_back(g.name);
  return names;
}

}  // namespace orrery
