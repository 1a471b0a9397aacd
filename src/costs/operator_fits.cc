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
constexpr std::array<GemmFitRow, 21> kGemm = {{
    {Architecture::ampere,
     Precision::bf16,
     {4792, 1, 0.7773, 15.85, 0.7459, 953.3, 3.295, 0.0001, 2274, 0.7523, 21.44, 0.9578, 0.116, 4.995, 0, 0, 0},
     0.079,
     "AIConfigurator A100, Vidur A100, LLMCompass A100"},
    {Architecture::hopper,
     Precision::fp8,
     {2701, 0.7558, 0.8182, 0.01002, 0.1251, 30.14, 4.268, 0.04513, 3080, 0.179, 26.4, 0.7232, 0.1275, 4.979, 1.157e+04,
      3.821, 1.215},
     0.05,
     "AIConfigurator H100 and H200"},
    {Architecture::hopper,
     Precision::bf16,
     {2701, 0.9059, 0.8992, 0.01088, 1, 644.4, 2.14, 0.06577, 3324, 0.4206, 3.945, 1.139, 0.1181, 5, 0, 0, 0},
     0.085,
     "AIConfigurator H100 and H200, Vidur H100"},
    {Architecture::hopper,
     Precision::fp8_block,
     {2701, 0.6754, 0.9368, 0.01, 0.1114, 1574, 1.678, 0.03508, 5.961e+04, 5.14, 4.803, 1.124, 0.09966, 4.999, 270,
      1.528, 1.975},
     0.06,
     "AIConfigurator H100 and H200"},
    {Architecture::blackwell,
     Precision::bf16,
     {2765, 0.7283, 0.7508, 4.381, 0.07115, 32.8, 3.553, 0.007754, 6308, 0.05091, 5.041, 0.7766, 0.1502, 4.998, 0, 0,
      0},
     0.091,
     "AIConfigurator B200 and GB200"},
    {Architecture::blackwell,
     Precision::fp8,
     {2765, 0.7641, 0.7918, 7.448, 0.1909, 30.04, 2.052, 0.06072, 3385, 16.18, 3.342, 0.8157, 0.112, 4.996, 1.101e+04,
      3.349, 0.508},
     0.077,
     "AIConfigurator B200 and GB200"},
    {Architecture::blackwell,
     Precision::fp8_block,
     {2765, 0.852, 0.746, 25.99, 0.05296, 30, 2.01, 0.0001007, 1.38e+04, 28.19, 4.175, 0.7495, 0.1257, 4.999, 4395,
      4.669, 0.001112},
     0.15,
     "AIConfigurator B200 and GB200"},
    {Architecture::blackwell,
     Precision::nvfp4,
     {2765, 0.9977, 0.9996, 59.82, 1, 933, 1.73, 0.1289, 2.728e+04, 1.658, 2.558, 1.732, 0.1766, 1.464, 2467, 1.443,
      0.4177},
     0.05,
     "AIConfigurator B200 and GB200"},
    {Architecture::ada,
     Precision::bf16,
     {500, 0.9268, 0.7643, 5.35, 0.7155, 4217, 4.441, 0.1011, 101.8, 0.9, 11.2, 0.4619, 0.2155, 5, 0, 0, 0},
     0.113,
     "AIConfigurator L40S"},
    {Architecture::ada,
     Precision::fp8,
     {500, 0.7601, 0.7989, 4.598, 1, 839.7, 4.862, 0.1061, 2638, 1.502, 9.448, 0.05565, 0.1871, 5, 1.048e+04, 1.184,
      0.001},
     0.105,
     "AIConfigurator L40S"},
    {Architecture::ada,
     Precision::fp8_block,
     {500, 0.3643, 0.7635, 0.5732, 0.7563, 391.7, 12, 0.05916, 4.478e+04, 8.017, 4.435, 0.04465, 0.2824, 5, 2287,
      0.3264, 0.001},
     0.089,
     "AIConfigurator L40S"},
    {Architecture::blackwell_gb202,
     Precision::bf16,
     {500, 0.9644, 0.9462, 10.35, 0.7631, 3228, 2.494, 0.001488, 916.5, 0.5081, 5.716, 0.02368, 0.2767, 2.692, 0, 0, 0},
     0.168,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::blackwell_gb202,
     Precision::fp8,
     {500, 0.8225, 0.8426, 4.263, 0.9632, 2471, 3.063, 0.0009507, 1426, 3.044, 4.566, 0.591, 0.264, 2.288, 8534, 0.8236,
      0.001028},
     0.168,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::blackwell_gb202,
     Precision::fp8_block,
     {500, 0.5934, 1, 0.01676, 0.05, 332.8, 1.569, 0.0001036, 3.374e+04, 0.4242, 3.462, 0.8892, 0.2468, 1.986, 4331,
      0.7866, 23.9},
     0.196,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::blackwell_gb202,
     Precision::nvfp4,
     {500, 0.7158, 0.5704, 0.2509, 0.9407, 128.9, 5.985, 0.03348, 5.377e+04, 4.23, 3.869, 3.732, 0.3155, 1.078, 3504,
      0.2539, 0.001007},
     0.101,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::ampere_ga102,
     Precision::bf16,
     {2229, 0.9019, 0.7721, 6.478, 0.6583, 2380, 3.263, 0.01016, 8973, 0.07004, 4.735, 4.074, 1.2, 1.102, 0, 0, 0},
     0.069,
     "Vidur A40"},
    {Architecture::cdna2,
     Precision::bf16,
     {1.6e+04, 1, 0.5, 31.48, 0.6475, 6000, 1.2, 0.01136, 7344, 2.006, 1.189, 0.4203, 0.02, 1.063, 0, 0, 0},
     0.05,
     "LLMCompass MI210"},
    {Architecture::other,
     Precision::bf16,
     {3035, 0.9995, 0.809, 21.96, 0.3639, 274.5, 2.542, 0.02752, 3637, 0.05021, 25.57, 0.8733, 0.2209, 5, 0, 0, 0},
     0.18,
     "all of them, each GPU alike"},
    {Architecture::other,
     Precision::fp8,
     {3035, 0.6549, 0.8221, 0.01088, 0.6907, 30, 3.109, 0.01904, 3330, 4.982, 24.51, 1.069, 0.2125, 5, 1.089e+04, 1.45,
      1.883},
     0.18,
     "all of them, each GPU alike"},
    {Architecture::other,
     Precision::fp8_block,
     {3035, 0.6916, 0.8498, 0.01015, 1, 2267, 2.179, 0.03988, 1.243e+04, 0.05021, 20.94, 1.301, 0.2185, 5, 661.7, 2.228,
      1.13},
     0.3,
     "all of them, each GPU alike"},
    {Architecture::other,
     Precision::nvfp4,
     {3035, 0.9288, 0.558, 0.02197, 1, 1095, 4.672, 0.1086, 2.784e+04, 2.23, 4.73, 1.896, 0.09418, 1.194, 1850, 1.042,
      0.6065},
     0.15,
     "all of them, each GPU alike"},
}};

// Products on the ordinary units, without tensor cores: no table of single operators; the shares that NeuSight's FP32
// models (github.com/sitar-lab/NeuSight@6945927d9afc, labels, rows that are not held out) show. Multiprocessors of 128
// lanes (GA102, Ada, Hopper, Blackwell) feed them less well than those of 64 (Volta, GA100).
constexpr GemmFitRow kGemmFp32Of64 = {Architecture::ampere,
                                      Precision::fp32,
                                      {4000, 0.9, 0.8, 4, 0.5, 1000, 3, 0.005, 3200, 0.5, 6, 0.1, 0.12, 2, 0, 0, 0},
                                      0.2,
                                      "NeuSight's whole models"};
constexpr GemmFitRow kGemmFp32Of128 = {Architecture::other,
                                       Precision::fp32,
                                       {4000, 0.74, 0.8, 4, 0.5, 1000, 3, 0.005, 3200, 0.5, 6, 0.1, 0.12, 2, 0, 0, 0},
                                       0.2,
                                       "NeuSight's whole models"};

// overhead_ns, peak_share, softmax, wide, wave, tile_ns, queries, memory_share, cache_part, cache_speed: forward, then
// backward; append_ns, append_share; error
constexpr std::array<AttentionFitRow, 14> kAttention = {{
    {Architecture::ada,
     AttentionKernel::trtllm,
     {5656, 0.495, 26.78, 0.1829, 0.8055, 804.1, 89.04, 0.5406, 1.2, 6},
     {5656, 0.396, 26.78, 0.1829, 0.8055, 804.1, 89.04, 0.5406, 1.2, 6},
     957.2,
     0.9996,
     0.08,
     "AIConfigurator"},
    {Architecture::blackwell,
     AttentionKernel::trtllm,
     {826.7, 0.5288, 12.37, 0.9498, 0.9429, 3217, 214.1, 1, 0.02693, 6},
     {826.7, 0.423, 12.37, 0.9498, 0.9429, 3217, 214.1, 1, 0.02693, 6},
     1.107e+04,
     0.7224,
     0.075,
     "AIConfigurator"},
    {Architecture::ampere,
     AttentionKernel::trtllm,
     {4432, 0.5502, 32.81, 0.9984, 0.9517, 1798, 148.4, 0.5704, 0.9239, 1.474},
     {4432, 0.4401, 32.81, 0.9984, 0.9517, 1798, 148.4, 0.5704, 0.9239, 1.474},
     6146,
     0.9996,
     0.05,
     "AIConfigurator"},
    {Architecture::blackwell_gb202,
     AttentionKernel::trtllm,
     {1486, 0.5066, 22.8, 0.02773, 1, 1322, 87.13, 0.7424, 1.2, 2.914},
     {1486, 0.4053, 22.8, 0.02773, 1, 1322, 87.13, 0.7424, 1.2, 2.914},
     8197,
     0.9228,
     0.05,
     "AIConfigurator"},
    {Architecture::hopper,
     AttentionKernel::trtllm,
     {2981, 0.5858, 19.43, 1.416, 0.7903, 2623, 94.82, 0.961, 0.02857, 6},
     {2981, 0.4686, 19.43, 1.416, 0.7903, 2623, 94.82, 0.961, 0.02857, 6},
     8421,
     1,
     0.05,
     "AIConfigurator"},
    {Architecture::ampere,
     AttentionKernel::flash1,
     {3821, 0.5875, 1.002, 0.06822, 0.9999, 464.9, 197.9, 0.4708, 0.2869, 1.319},
     {6390, 0.2769, 1.014, 0.05544, 0.9919, 369.9, 178, 0.275, 0.2283, 2.932},
     0,
     1,
     0.196,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::flash1,
     {2882, 0.1215, 1, 0.9555, 0.9991, 185.3, 126.5, 0.9797, 0.3832, 1.406},
     {6388, 0.156, 1.018, 0.05781, 0.8881, 170.6, 182.6, 0.9919, 0.1445, 2.398},
     0,
     1,
     0.151,
     "FlashAttention README plots"},
    {Architecture::ampere,
     AttentionKernel::triton,
     {3109, 0.5524, 15.95, 0.09766, 0.9928, 52.09, 85.77, 0.3035, 0.4948, 4.746},
     {4067, 0.2567, 7.985, 0.07065, 0.2661, 50.82, 102.8, 0.1945, 0.7688, 3.854},
     0,
     1,
     0.05,
     "FlashAttention README plots"},
    {Architecture::ampere,
     AttentionKernel::flash2,
     {6258, 0.6252, 8.986, 0.01239, 0.2446, 1947, 184.1, 0.8963, 1.061, 1.717},
     {4845, 0.7491, 39.37, 0.02386, 0.393, 4522, 88.55, 0.4338, 0.4991, 1.84},
     0,
     1,
     0.05,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::flash2,
     {1172, 0.4051, 36.26, 0.1327, 0.2731, 1497, 147.4, 0.997, 0.8101, 1.033},
     {3016, 0.3885, 42.24, 0.02431, 0.9726, 5427, 86.7, 0.4573, 0.2355, 1.766},
     0,
     1,
     0.109,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::flash3,
     {500, 0.9339, 112.7, 0.001154, 0.0232, 1558, 133.2, 0.7264, 0.1173, 1.035},
     {500, 0.7472, 112.7, 0.001154, 0.0232, 1558, 133.2, 0.7264, 0.1173, 1.035},
     0,
     1,
     0.05,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::triton,
     {506.8, 0.4072, 1.014, 1.5, 1, 50, 104.6, 0.4032, 1.176, 1.323},
     {506.8, 0.3258, 1.014, 1.5, 1, 50, 104.6, 0.4032, 1.176, 1.323},
     0,
     1,
     0.05,
     "FlashAttention README plots"},
    {Architecture::hopper,
     AttentionKernel::cudnn,
     {1084, 0.9461, 157.6, 0.3862, 0.02005, 818.2, 109.2, 1, 1.198, 5.997},
     {1084, 0.7569, 157.6, 0.3862, 0.02005, 818.2, 109.2, 1, 1.198, 5.997},
     0,
     1,
     0.081,
     "FlashAttention README plots"},
    {Architecture::ampere,
     AttentionKernel::xformers,
     {1.108e+04, 0.5363, 14.03, 0.04594, 0.1513, 617.6, 171.8, 0.7198, 1.016, 1.363},
     {6137, 0.3627, 102.5, 0.00372, 0.07227, 1255, 89.21, 0.2343, 0.605, 1.341},
     0,
     1,
     0.056,
     "FlashAttention README plots"},
}};

// grouped heads; overhead_ns, memory_share, wave, tile_ns, split_ns, feed, step_ns, cache_part, cache_speed, ramp_ns,
// ramp_bytes; error
constexpr std::array<DecodeFitRow, 10> kDecode = {{
    {Architecture::ada,
     true,
     {4173, 0.7607, 0.02, 3386, 2476, 8.198, 0.0519, 1.171, 5, 2.81e+04, 2.356e+07},
     0.135,
     "AIConfigurator L40S"},
    {Architecture::blackwell,
     true,
     {9011, 0.8437, 0.02, 1688, 6615, 4.881, 0.9877, 0.6097, 5, 1.623e+04, 1.611e+08},
     0.055,
     "AIConfigurator B200, GB200"},
    {Architecture::ampere,
     true,
     {6108, 1, 1, 5713, 3884, 1.742, 1.763, 0.6154, 4.745, 5.287e+04, 2.11e+07},
     0.068,
     "AIConfigurator A100"},
    {Architecture::blackwell_gb202,
     true,
     {2533, 0.837, 0.1703, 4089, 2213, 2.718, 0.9347, 1.2, 1.366, 5331, 1e+05},
     0.139,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::hopper,
     true,
     {4754, 1, 0.04931, 5207, 3137, 1.833, 6.535, 0.6193, 2.409, 5.201e+04, 2.981e+07},
     0.1,
     "AIConfigurator H100, H200"},
    {Architecture::ada,
     false,
     {6434, 1, 0.02, 863.3, 866.6, 19.69, 6.987, 1.2, 5, 10.08, 9.9e+08},
     0.389,
     "AIConfigurator L40S"},
    {Architecture::blackwell,
     false,
     {7639, 0.7743, 0.3424, 1469, 5613, 3.403, 0.3306, 0.0904, 5, 3097, 6.933e+05},
     0.154,
     "AIConfigurator B200, GB200"},
    {Architecture::ampere,
     false,
     {9925, 0.8644, 1, 1411, 7045, 1.615, 7.72, 1.2, 5, 2.802e+04, 1e+09},
     0.144,
     "AIConfigurator A100"},
    {Architecture::blackwell_gb202,
     false,
     {5472, 0.9993, 1, 1151, 2664, 3.911, 13.88, 1.2, 5, 3395, 2.469e+06},
     0.265,
     "AIConfigurator RTX PRO 6000"},
    {Architecture::hopper,
     false,
     {7839, 0.9955, 0.02187, 1065, 7189, 1.585, 9.671, 0.4793, 5, 3298, 7.544e+05},
     0.129,
     "AIConfigurator H100, H200"},
}};

// Unfused attention (PyTorch): times that the scores are written or read beside the products (scale, softmax, dropout),
// more of them with a causal mask; operands are copied between layouts. The PyTorch and standard bars of
// FlashAttention's plots, A100 and H100: each figure is within a tenth over head sizes and lengths.
constexpr UnfusedFit kUnfused = {3.2, 5, 4.2, 13, 35, 0.15};

// Share of memory bandwidth, and what a kernel takes that moves nothing. Vidur's profiles of A100, A40 and H100 (one
// line through each operator's times; norms there are vLLM's) and LLMCompass' GELU, softmax and layer norm on A100 and
// MI210 (without the 50 us that its host takes). Optimizers and copies: remembered of A100, 0.85 to 0.9.
constexpr std::array<MemoryFitRow, 9> kMemory = {{
    {MemoryKernel::elementwise, 2000, 0.85, 0.2},
    {MemoryKernel::norm, 3500, 0.6, 0.3},
    {MemoryKernel::softmax, 3500, 0.5, 0.3},
    {MemoryKernel::rotary, 2500, 0.5, 0.25},
    {MemoryKernel::embedding, 2500, 0.3, 0.4},
    {MemoryKernel::optimizer, 3000, 0.85, 0.15},
    {MemoryKernel::copy, 2000, 0.88, 0.1},
    {MemoryKernel::activation, 2000, 0.85, 0.2},
    {MemoryKernel::loss, 2000, 0.85, 0.2},
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
  // Products whose chip is another than that of the server part of their generation; longer parts before those that
  // they contain. Then the generation.
  static constexpr std::array<Name, 11> kProducts = {{
      {"A100", Architecture::ampere},
      {"A10", Architecture::ampere_ga102},
      {"A40", Architecture::ampere_ga102},
      {"A16", Architecture::ampere_ga102},
      {"A2", Architecture::ampere_ga102},
      {"A6000", Architecture::ampere_ga102},
      {"A5000", Architecture::ampere_ga102},
      {"A4000", Architecture::ampere_ga102},
      {"RTX-30", Architecture::ampere_ga102},
      {"RTX-50", Architecture::blackwell_gb202},
      {"RTX-PRO", Architecture::blackwell_gb202},
  }};
  static constexpr std::array<Name, 12> kArchitectures = {{
      {"GA102", Architecture::ampere_ga102},
      {"GB202", Architecture::blackwell_gb202},
      {"Blackwell", Architecture::blackwell},
      {"Hopper", Architecture::hopper},
      {"Ada", Architecture::ada},
      {"Ampere", Architecture::ampere},
      {"Turing", Architecture::turing},
      {"Volta", Architecture::volta},
      {"Pascal", Architecture::volta},
      {"CDNA3", Architecture::cdna3},
      {"CDNA4", Architecture::cdna3},
      {"CDNA", Architecture::cdna2},
  }};
  if (gpu.arch == "CPU") return Architecture::cpu;
  for (const Name& n : kProducts)
    if (gpu.name.find(n.part) != std::string::npos && gpu.arch.find("Ada") == std::string::npos) return n.architecture;
  for (const Name& n : kArchitectures)
    if (gpu.arch.find(n.part) != std::string::npos) return n.architecture;
  return Architecture::other;
}

const GemmFitRow& gemm_fit(Architecture a, Precision p) {
  if (p == Precision::fp32) {
    const bool of_64 = a == Architecture::volta || a == Architecture::turing || a == Architecture::ampere ||
                       a == Architecture::cdna2 || a == Architecture::cdna3;
    return of_64 ? kGemmFp32Of64 : kGemmFp32Of128;
  }
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
