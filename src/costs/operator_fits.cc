// The numbers of the laws, one row an architecture and a kind of kernel: facts, each with the measurements that it was
// fitted on. Those are rows of published tables (docs/model.md, "Operators"): AIConfigurator's operator database
// (github.com/ai-dynamo/aiconfigurator@095f58a51c4c), Vidur's compute profiles
// (github.com/microsoft/vidur@7d47513363ec), LLMCompass' Figure 5 (github.com/PrincetonUniversity/LLMCompass), the
// plots of FlashAttention's README (github.com/Dao-AILab/flash-attention@0251105a2fb1). One row in five was held out of
// every fit.
#include "costs/operator_fits.h"

#include <array>
#include <cstddef>

namespace orrery {
namespace {

// overhead_ns, peak_share, memory_share, edge, wave, tile_ns, p, power, split_ns, reduce, feed, step_ns, cache_part,
// cache_speed, quantise_ns, quantise, row_ns; error: one standard deviation of the rows held out
constexpr std::array<GemmFitRow, 17> kGemm = {{
    {Architecture::ampere,
     Precision::bf16,
     {4912, 0.8683, 0.7819, 9.836, 0.4201, 759.3, 3.171, 0.002728, 2951, 0.4441, 15.44, 0.04697, 0.1452, 4.999, 0, 0,
      0},
     0.1,
     "AIConfigurator A100, Vidur A100, LLMCompass A100"},
    {Architecture::hopper,
     Precision::fp8,
     {2735, 0.7558, 0.8182, 0.01002, 0.1251, 30.14, 4.268, 0.04513, 3080, 0.179, 26.4, 0.7232, 0.1275, 4.979, 1.154e+04,
      3.821, 1.215},
     0.1,
     "AIConfigurator H100 and H200"},
    {Architecture::hopper,
     Precision::bf16,
     {2735, 0.8786, 0.9027, 0.01021, 0.7083, 721.2, 2.222, 0.05881, 3434, 0.4609, 3.664, 0.303, 0.1221, 5, 0, 0, 0},
     0.1,
     "AIConfigurator H100 and H200, Vidur H100"},
    {Architecture::hopper,
     Precision::fp8_block,
     {2735, 0.6754, 0.9368, 0.01, 0.1114, 1574, 1.678, 0.03508, 5.961e+04, 5.14, 4.803, 1.124, 0.09966, 4.999, 236.3,
      1.528, 1.975},
     0.1,
     "AIConfigurator H100 and H200"},
    {Architecture::blackwell,
     Precision::bf16,
     {2765, 0.7283, 0.7508, 4.381, 0.07115, 32.8, 3.553, 0.007754, 6308, 0.05091, 5.041, 0.7766, 0.1502, 4.998, 0, 0,
      0},
     0.1,
     "AIConfigurator B200 and GB200"},
    {Architecture::blackwell,
     Precision::fp8,
     {2765, 0.7641, 0.7918, 7.448, 0.1909, 30.04, 2.052, 0.06072, 3385, 16.18, 3.342, 0.8157, 0.112, 4.996, 1.101e+04,
      3.349, 0.508},
     0.1,
     "AIConfigurator B200 and GB200"},
    {Architecture::blackwell,
     Precision::fp8_block,
     {2765, 0.852, 0.746, 25.99, 0.05296, 30, 2.01, 0.0001007, 1.38e+04, 28.19, 4.175, 0.7495, 0.1257, 4.999, 4395,
      4.669, 0.001112},
     0.1,
     "AIConfigurator B200 and GB200"},
    {Architecture::blackwell,
     Precision::nvfp4,
     {2765, 0.9977, 0.9996, 59.82, 1, 933, 1.73, 0.1289, 2.728e+04, 1.658, 2.558, 1.732, 0.1766, 1.464, 2467, 1.443,
      0.4177},
     0.1,
     "AIConfigurator B200 and GB200"},
    {Architecture::ada,
     Precision::bf16,
     {500, 0.9268, 0.7643, 5.35, 0.7155, 4217, 4.441, 0.1011, 101.8, 0.9, 11.2, 0.4619, 0.2155, 5, 0, 0, 0},
     0.1,
     "AIConfigurator L40S"},
    {Architecture::ada,
     Precision::fp8,
     {500, 0.7601, 0.7989, 4.598, 1, 839.7, 4.862, 0.1061, 2638, 1.502, 9.448, 0.05565, 0.1871, 5, 1.048e+04, 1.184,
      0.001},
     0.1,
     "AIConfigurator L40S"},
    {Architecture::ada,
     Precision::fp8_block,
     {500, 0.3643, 0.7635, 0.5732, 0.7563, 391.7, 12, 0.05916, 4.478e+04, 8.017, 4.435, 0.04465, 0.2824, 5, 2287,
      0.3264, 0.001},
     0.1,
     "AIConfigurator L40S"},
    {Architecture::blackwell_gb202,
     Precision::bf16,
     {500, 0.9644, 0.9462, 10.35, 0.7631, 3228, 2.494, 0.001488, 916.5, 0.5081, 5.716, 0.02368, 0.2767, 2.692, 0, 0, 0},
     0.1,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::blackwell_gb202,
     Precision::fp8,
     {500, 0.8225, 0.8426, 4.263, 0.9632, 2471, 3.063, 0.0009507, 1426, 3.044, 4.566, 0.591, 0.264, 2.288, 8534, 0.8236,
      0.001028},
     0.1,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::blackwell_gb202,
     Precision::fp8_block,
     {500, 0.5934, 1, 0.01676, 0.05, 332.8, 1.569, 0.0001036, 3.374e+04, 0.4242, 3.462, 0.8892, 0.2468, 1.986, 4331,
      0.7866, 23.9},
     0.1,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::blackwell_gb202,
     Precision::nvfp4,
     {500, 0.7158, 0.5704, 0.2509, 0.9407, 128.9, 5.985, 0.03348, 5.377e+04, 4.23, 3.869, 3.732, 0.3155, 1.078, 3504,
      0.2539, 0.001007},
     0.1,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::ampere_ga102,
     Precision::bf16,
     {2229, 0.9019, 0.7721, 6.478, 0.6583, 2380, 3.263, 0.01016, 8973, 0.07004, 4.735, 4.074, 1.2, 1.102, 0, 0, 0},
     0.1,
     "Vidur A40"},
    {Architecture::cdna2,
     Precision::bf16,
     {1.6e+04, 1, 0.5, 31.48, 0.6475, 6000, 1.2, 0.01136, 7344, 2.006, 1.189, 0.4203, 0.02, 1.063, 0, 0, 0},
     0.1,
     "LLMCompass MI210"},
}};

// Products on the ordinary units, without tensor cores: no table of single operators; the shares that NeuSight's FP32
// models (github.com/sitar-lab/NeuSight@6945927d9afc, labels) show.
constexpr GemmFitRow kGemmFp32 = {Architecture::other,
                                  Precision::fp32,
                                  {4000, 0.9, 0.8, 4, 0.5, 1000, 3, 0.005, 3200, 0.5, 6, 0.1, 0.12, 2, 0, 0, 0},
                                  0.2,
                                  "NeuSight's whole models"};

// overhead_ns, peak_share, softmax, wide, wave, tile_ns, queries, memory_share: forward, then backward; append_ns,
// append_share; error
constexpr std::array<AttentionFitRow, 14> kAttention = {{
    {Architecture::ada,
     AttentionKernel::trtllm,
     {3572, 0.4442, 18.07, 0.4634, 0.05236, 693.9, 85.32, 1},
     {3572, 0.3553, 18.07, 0.4634, 0.05236, 693.9, 85.32, 1},
     1529,
     3,
     0.12,
     "AIConfigurator"},
    {Architecture::blackwell,
     AttentionKernel::trtllm,
     {5719, 0.6383, 60.78, 0.01594, 1, 3280, 170.7, 1},
     {5719, 0.5106, 60.78, 0.01594, 1, 3280, 170.7, 1},
     6312,
     0.7052,
     0.12,
     "AIConfigurator"},
    {Architecture::ampere,
     AttentionKernel::trtllm,
     {3843, 0.5557, 36.67, 0.0014, 0.9845, 1890, 146.3, 0.4518},
     {3843, 0.4445, 36.67, 0.0014, 0.9845, 1890, 146.3, 0.4518},
     6185,
     1.386,
     0.12,
     "AIConfigurator"},
    {Architecture::blackwell_gb202,
     AttentionKernel::trtllm,
     {3649, 0.4964, 37.04, 0.01239, 0.8722, 1406, 102.1, 1},
     {3649, 0.3971, 37.04, 0.01239, 0.8722, 1406, 102.1, 1},
     5516,
     3,
     0.12,
     "AIConfigurator"},
    {Architecture::hopper,
     AttentionKernel::trtllm,
     {5547, 0.5756, 17.68, 0.1667, 0.4295, 2612, 128, 0.7938},
     {5547, 0.4605, 17.68, 0.1667, 0.4295, 2612, 128, 0.7938},
     5638,
     1.182,
     0.12,
     "AIConfigurator"},
    {Architecture::ampere,
     AttentionKernel::flash1,
     {4955, 0.5173, 1.004, 0.02695, 0.9992, 539.9, 202.2, 0.5896},
     {4498, 0.2867, 1.004, 0.05962, 1, 473.9, 173.3, 0.2573},
     0,
     1,
     0.12,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::flash1,
     {2994, 0.2176, 1.003, 0.2514, 1, 50.04, 152.3, 0.2543},
     {5123, 0.1307, 1.008, 0.1145, 1, 50, 126.5, 0.3417},
     0,
     1,
     0.12,
     "FlashAttention README plots"},
    {Architecture::ampere,
     AttentionKernel::triton,
     {2631, 0.7092, 152.7, 1.259, 0.0206, 51.72, 73.36, 0.1471},
     {4950, 0.265, 4.302, 0.2819, 0.1926, 59.31, 172.5, 0.486},
     0,
     1,
     0.12,
     "FlashAttention README plots"},
    {Architecture::ampere,
     AttentionKernel::flash2,
     {2205, 0.7299, 22.03, 0.02145, 0.04943, 3019, 117.5, 0.9909},
     {4842, 0.7533, 47.95, 0.1424, 0.08349, 85.42, 200.5, 0.4651},
     0,
     1,
     0.12,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::flash2,
     {4865, 0.4027, 35.95, 0.1268, 0.2823, 1040, 129, 0.5891},
     {5172, 0.3989, 47.93, 0.02206, 0.06148, 5337, 125.9, 0.5713},
     0,
     1,
     0.12,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::flash3,
     {3442, 0.9975, 123.3, 0.02761, 0.6616, 1669, 172.5, 0.7483},
     {3442, 0.798, 123.3, 0.02761, 0.6616, 1669, 172.5, 0.7483},
     0,
     1,
     0.12,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::triton,
     {500, 0.4032, 1.041, 0.2685, 0.9658, 52.17, 129, 0.4102},
     {500, 0.3226, 1.041, 0.2685, 0.9658, 52.17, 129, 0.4102},
     0,
     1,
     0.12,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::cudnn,
     {500, 1, 176.5, 0.4073, 0.1275, 1035, 136.7, 1},
     {500, 0.8, 176.5, 0.4073, 0.1275, 1035, 136.7, 1},
     0,
     1,
     0.12,
     "FlashAttention README plots"},
    {Architecture::ampere,
     AttentionKernel::xformers,
     {1782, 0.4799, 41.92, 0.05861, 0.6262, 1352, 81.92, 0.2186},
     {2684, 0.389, 99.37, 0.02624, 0.3353, 2227, 174.2, 0.8309},
     0,
     1,
     0.12,
     "FlashAttention README plots"},
}};

// grouped heads; overhead_ns, memory_share, wave, tile_ns, split_ns, feed, step_ns, cache_part, cache_speed; error
constexpr std::array<DecodeFitRow, 10> kDecode = {{
    {Architecture::ada, true, {4726, 0.7394, 0.9958, 2841, 3372, 5.99, 1.006, 1.2, 2.437}, 0.15, "AIConfigurator L40S"},
    {Architecture::blackwell,
     true,
     {9179, 0.745, 0.9085, 1398, 5938, 4.655, 0.05028, 0.05565, 5},
     0.15,
     "AIConfigurator B200, GB200"},
    {Architecture::ampere, true, {5353, 1, 1, 6188, 5169, 1.069, 0.3084, 0.05628, 5}, 0.15, "AIConfigurator A100"},
    {Architecture::blackwell_gb202,
     true,
     {4400, 0.8634, 0.02061, 3755, 3017, 5.238, 1.413, 0.04122, 5},
     0.15,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::hopper,
     true,
     {4351, 1, 0.02, 5306, 5265, 29.65, 12.76, 0.0207, 1},
     0.15,
     "AIConfigurator H100, H200"},
    {Architecture::ada, false, {6445, 1, 0.0201, 862.9, 856.1, 12.05, 0.07361, 1.2, 5}, 0.15, "AIConfigurator L40S"},
    {Architecture::blackwell,
     false,
     {8535, 0.7317, 0.02416, 1436, 5354, 2.797, 0.2277, 0.02877, 1},
     0.15,
     "AIConfigurator B200, GB200"},
    {Architecture::ampere, false, {9954, 0.8344, 1, 1410, 7019, 1.617, 9.691, 1.2, 5}, 0.15, "AIConfigurator A100"},
    {Architecture::blackwell_gb202,
     false,
     {5552, 0.9807, 1, 1089, 3049, 3.383, 7.057, 1.2, 5},
     0.15,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::hopper,
     false,
     {8170, 0.9936, 0.02016, 1001, 1.091e+04, 1.629, 9.864, 1.186, 1.002},
     0.15,
     "AIConfigurator H100, H200"},
}};

// Passes over the scores of unfused attention (PyTorch): written by the first product, scaled, softmax, dropout, read
// by the second; a causal mask is added in further ones. Fitted on the PyTorch and standard bars of FlashAttention's
// plots.
constexpr UnfusedFit kUnfused = {6, 6, 10, 0.25};

// Share of memory bandwidth, and what a kernel takes that moves nothing. Vidur's profiles of A100, A40 and H100 (one
// line through each operator's times; norms there are vLLM's) and LLMCompass' GELU, softmax and layer norm on A100 and
// MI210 (without the 50 us that its host takes). Optimizers and copies: remembered of A100, 0.85 to 0.9.
constexpr std::array<MemoryFitRow, 7> kMemory = {{
    {MemoryKernel::elementwise, 2000, 0.85, 0.2},
    {MemoryKernel::norm, 3500, 0.6, 0.3},
    {MemoryKernel::softmax, 3500, 0.5, 0.3},
    {MemoryKernel::rotary, 2500, 0.5, 0.25},
    {MemoryKernel::embedding, 2500, 0.3, 0.4},
    {MemoryKernel::optimizer, 3000, 0.85, 0.15},
    {MemoryKernel::copy, 2000, 0.88, 0.1},
}};

// The architecture to take numbers from where there are none of its own.
Architecture like(Architecture a) {
  switch (a) {
    case Architecture::volta:
    case Architecture::turing:
      return Architecture::ampere;
    case Architecture::ampere_ga102:
      return Architecture::ampere;
    case Architecture::ada:
      return Architecture::ampere_ga102;
    case Architecture::blackwell_gb202:
      return Architecture::ada;
    case Architecture::blackwell:
      return Architecture::hopper;
    case Architecture::cdna3:
      return Architecture::cdna2;
    default:
      return Architecture::other;
  }
}

template <class Row, class Match>
const Row* find(const Row* begin, const Row* end, Architecture a, const Match& match) {
  for (;; a = like(a)) {
    for (const Row* r = begin; r != end; ++r)
      if (r->architecture == a && match(*r)) return r;
    if (a == Architecture::other) return nullptr;
  }
}

Precision measured_as(Precision p) {
  switch (p) {
    case Precision::fp16:
    case Precision::tf32:
      return Precision::bf16;
    case Precision::int8:
      return Precision::fp8;
    default:
      return p;
  }
}

}  // namespace

bool has_fp4(Architecture a) { return a == Architecture::blackwell || a == Architecture::blackwell_gb202; }

Architecture architecture_of(const GpuFacts& gpu) {
  struct Name {
    std::string_view part;
    Architecture architecture;
  };
  // Of GpuFacts::arch, else of the product's name; longer parts before those that they contain.
  static constexpr std::array<Name, 14> kArchitectures = {{
      {"GA102", Architecture::ampere_ga102},
      {"GB202", Architecture::blackwell_gb202},
      {"Blackwell", Architecture::blackwell},
      {"Hopper", Architecture::hopper},
      {"Ada", Architecture::ada},
      {"Ampere", Architecture::ampere},
      {"Turing", Architecture::turing},
      {"Volta", Architecture::volta},
      {"CDNA2", Architecture::cdna2},
      {"CDNA3", Architecture::cdna3},
      {"CDNA4", Architecture::cdna3},
      {"CDNA", Architecture::cdna2},
      {"GA100", Architecture::ampere},
      {"GH100", Architecture::hopper},
  }};
  static constexpr std::array<Name, 28> kProducts = {{
      {"RTX PRO", Architecture::blackwell_gb202},
      {"RTX 50", Architecture::blackwell_gb202},
      {"5090", Architecture::blackwell_gb202},
      {"GB200", Architecture::blackwell},
      {"GB300", Architecture::blackwell},
      {"B200", Architecture::blackwell},
      {"B300", Architecture::blackwell},
      {"H100", Architecture::hopper},
      {"H200", Architecture::hopper},
      {"H800", Architecture::hopper},
      {"H20", Architecture::hopper},
      {"GH200", Architecture::hopper},
      {"4090", Architecture::ada},
      {"L40", Architecture::ada},
      {"L4", Architecture::ada},
      {"A100", Architecture::ampere},
      {"A800", Architecture::ampere},
      {"A30", Architecture::ampere},
      {"A40", Architecture::ampere_ga102},
      {"A6000", Architecture::ampere_ga102},
      {"A10", Architecture::ampere_ga102},
      {"3090", Architecture::ampere_ga102},
      {"T4", Architecture::turing},
      {"V100", Architecture::volta},
      {"MI2", Architecture::cdna2},
      {"MI1", Architecture::cdna2},
      {"MI3", Architecture::cdna3},
      {"TITAN RTX", Architecture::turing},
  }};
  for (const Name& n : kArchitectures)
    if (gpu.arch.find(n.part) != std::string_view::npos) return n.architecture;
  for (const Name& n : kProducts)
    if (gpu.name.find(n.part) != std::string_view::npos) return n.architecture;
  return Architecture::other;
}

const GemmFitRow& gemm_fit(Architecture a, Precision p) {
  if (p == Precision::fp32) return kGemmFp32;
  const Precision as = measured_as(p);
  for (const Precision q : {as, Precision::bf16})
    if (const GemmFitRow* r = find(kGemm.data(), kGemm.data() + kGemm.size(), a,
                                   [q](const GemmFitRow& row) { return row.precision == q; }))
      return *r;
  return kGemm.front();
}

const AttentionFitRow& attention_fit(Architecture a, AttentionKernel k) {
  for (const AttentionKernel q : {k, AttentionKernel::trtllm})
    for (const AttentionFitRow& r : kAttention)
      if (r.architecture == a && r.kernel == q) return r;
  if (const AttentionFitRow* r = find(kAttention.data(), kAttention.data() + kAttention.size(), a,
                                      [k](const AttentionFitRow& row) { return row.kernel == k; }))
    return *r;
  return *find(kAttention.data(), kAttention.data() + kAttention.size(), Architecture::ampere,
               [](const AttentionFitRow& row) { return row.kernel == AttentionKernel::flash2; });
}

const DecodeFitRow& decode_fit(Architecture a, bool grouped) {
  if (const DecodeFitRow* r = find(kDecode.data(), kDecode.data() + kDecode.size(), a,
                                   [grouped](const DecodeFitRow& row) { return row.grouped == grouped; }))
    return *r;
  return kDecode.front();
}

const MemoryFitRow& memory_fit(MemoryKernel k) { return kMemory[static_cast<std::size_t>(k)]; }
const UnfusedFit& unfused_fit() { return kUnfused; }

}  // namespace orrery
