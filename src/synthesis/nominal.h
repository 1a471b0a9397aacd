// Nominal times of GPU work, for traces that we make up: FLOPs and bytes over data-sheet rates with a stated
// efficiency. Not a prediction of any real machine. Integers only, so that they are the same everywhere.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/ids.h"

namespace orrery::synth {

struct Gpu {
  std::string_view key;   // as the user names it
  std::string_view name;  // as the driver names it
  std::int64_t memory_bytes;
  std::int32_t sms, compute_major, compute_minor;
  std::int64_t flop_per_us;     // dense bf16
  std::int64_t bytes_per_us;    // device memory
  std::int64_t link_per_us;     // bytes, NVLink, each way
  std::int64_t network_per_us;  // bytes, one NIC a GPU
};

inline constexpr Gpu kGpus[] = {
    {"A100", "NVIDIA A100-SXM4-80GB", 84'987'740'160, 108, 8, 0, 312'000'000, 2'039'000, 300'000, 25'000},
    {"H100", "NVIDIA H100 80GB HBM3", 85'028'372'480, 132, 9, 0, 989'000'000, 3'350'000, 450'000, 50'000},
};

// Share of the nominal rate that kernels reach, in percent.
inline constexpr std::int64_t kGemmPct = 62, kAttentionPct = 45, kMemoryPct = 80, kLinkPct = 75;

struct Cost {
  Ns duration = 0;
  std::uint32_t blocks = 1;
};

inline std::uint32_t blocks_of(std::int64_t n, std::int64_t per_block) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>((n + per_block - 1) / per_block, 1, 1 << 30));
}

// C[m, n] += A[m, k] B[k, n] in tiles of 128 x 128: a started wave of tiles takes as long as a full one.
inline Cost gemm(const Gpu& g, std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::int64_t tiles = ((m + 127) / 128) * ((n + 127) / 128);
  const std::int64_t waves = (tiles + g.sms - 1) / g.sms;
  const std::int64_t flop = 2 * 128 * 128 * k * waves * g.sms;
  return {2'000 + flop * 1'000 / (g.flop_per_us / 100 * kGemmPct), blocks_of(tiles, 1)};
}

// Several such products in one kernel.
inline Cost grouped_gemm(const Gpu& g, std::int64_t groups, std::int64_t m, std::int64_t n, std::int64_t k) {
  return gemm(g, groups * ((m + 127) / 128) * 128, n, k);
}

// Causal flash attention, forward; the backward pass does 2.5 times the work.
inline Cost attention(const Gpu& g, std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t head_dim) {
  const std::int64_t flop = 4 * batch * heads * seq * seq * head_dim / 2;
  return {2'500 + flop * 1'000 / (g.flop_per_us / 100 * kAttentionPct), blocks_of(batch * heads * seq, 128)};
}

// A kernel that reads and writes `bytes` in all.
inline Cost streaming(const Gpu& g, std::int64_t bytes) {
  return {1'500 + bytes * 1'000 / (g.bytes_per_us / 100 * kMemoryPct), blocks_of(bytes, 8'192)};
}

// Ring all-reduce of `bytes` over n ranks; a point-to-point transfer is one hop of it.
inline Ns all_reduce_time(const Gpu& g, std::int64_t bytes, std::int64_t n, bool one_node, std::int64_t rails = 1) {
  const std::int64_t between = std::min(g.link_per_us, rails * g.network_per_us);
  const std::int64_t rate = (one_node ? g.link_per_us : between) / 100 * kLinkPct;
  const Ns latency = (one_node ? 3'000 : 9'000) + (n - 1) * (one_node ? 1'500 : 4'000);
  return latency + 2 * (n - 1) * bytes / n * 1'000 / rate;
}
// Every member sends each other member its part; those of its own server come over the links inside.
inline Ns all_to_all_time(const Gpu& g, std::int64_t bytes, std::int64_t n, std::int64_t in_server) {
  const bool one_node = in_server >= n;
  const std::int64_t rate = (one_node ? g.link_per_us : g.network_per_us) / 100 * kLinkPct;
  return (one_node ? 5'000 : 12'000) + bytes * (one_node ? n - 1 : n - in_server) / n * 1'000 / rate;
}
inline Ns send_receive_time(const Gpu& g, std::int64_t bytes, bool one_node) {
  return (one_node ? 5'000 : 12'000) + bytes * 1'000 / ((one_node ? g.link_per_us : g.network_per_us) / 100 * kLinkPct);
}

}  // namespace orrery::synth
