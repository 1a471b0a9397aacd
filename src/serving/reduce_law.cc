#include "serving/reduce_law.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "costs/operator_fits.h"

namespace orrery {
namespace {

// NCCL, messages of 256 bytes to some KiB: ns = start + hop * 2 (members - 1). Custom kernels: ns = launch for each of
// one or two meetings of all members.
// github.com/ai-dynamo/aiconfigurator@095f58a51c4c, NCCL and SGLang's custom all-reduce under CUDA graphs: 2, 4, 8
// A100 10.0, 14.0, 21.5 and 5.0, 5.2, 5.8 us; H100 and H200 6.2, 9.5, 15.7 and 4.4, 4.5, 4.8; B200 10.2, 15.0, 25.1 and
// 6.9, 7.0, 7.2; over PCIe with peer access (RTX PRO 6000, L40S) 6.3, 12.5, 23.5.
struct SmallLaw {
  double start_ns, hop_ns, custom_ns, custom_member_ns;
};
constexpr SmallLaw kNvlink3{8'100, 960, 4'700, 140}, kNvlink4{4'650, 790, 4'300, 60}, kNvlink5{7'800, 1'230, 6'850, 50},
    kPcie{3'600, 1'430, 0, 0};

// Of NVLink's rate what a kernel that reads all other members' messages reaches, and one that reads its share of them
// and then the sums: the same tables, 128 KiB to 8 MiB.
constexpr double kOneShot = 0.6, kTwoShot = 0.72;
constexpr double kLargestCustom = 8 << 20;

const SmallLaw& law_of(const GpuFacts& gpu) {
  switch (architecture_of(gpu)) {
    case Architecture::blackwell:
      return kNvlink5;
    case Architecture::volta:
    case Architecture::turing:
    case Architecture::ampere:
    case Architecture::ampere_ga102:
      return kNvlink3;
    default:
      return kNvlink4;
  }
}

}  // namespace

double all_reduce_ns(const PlatformFacts& p, const NetworkModel& network, double bytes, const Placement& where,
                     bool custom) {
  if (where.members < 2) return 0;
  const double large = transfer_ns(network, Pattern::all_reduce, bytes, where);
  const bool nvlink = p.nvlink_gb_per_s > 0 && !(p.nvlink_in_pairs && where.members > 2);
  if (large < 0 || !where.one_server() || (!nvlink && !p.p2p)) return large;
  const SmallLaw& law = nvlink ? law_of(p.gpu) : kPcie;
  const double n = static_cast<double>(where.members), each = bytes * 2 * (n - 1) / n;
  const double small = law.start_ns + law.hop_ns * 2 * (n - 1) + each / (network.intra.gb_per_s * network.small_share);
  double ns = std::min(large, small);
  if (custom && nvlink && bytes <= kLargestCustom) {
    const double meeting = law.custom_ns + law.custom_member_ns * n;
    ns = std::min({ns, meeting + bytes * (n - 1) / (kOneShot * p.nvlink_gb_per_s),
                   2 * meeting + each / (kTwoShot * p.nvlink_gb_per_s)});
  }
  return ns;
}

}  // namespace orrery
