// Small noise that is the same on every machine: integers only, drawn by key and count, no library distribution.
#pragma once
#include <cstdint>

#include "base/ids.h"

namespace orrery::synth {

// The finalizer of splitmix64: every input bit moves every output bit.
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A stream of draws. Two streams of different keys do not disturb each other, so a job whose kernels are faster draws
// the same noise for its host.
struct Noise {
  std::uint64_t key = 0;
  std::uint64_t count = 0;

  // Near normal (the sum of twelve uniform draws), mean 0, standard deviation `sigma_ppm`, within +-6 of it.
  std::int64_t normal_ppm(std::int64_t sigma_ppm) {
    std::int64_t sum = 0;
    for (int i = 0; i < 3; ++i)
      for (std::uint64_t bits = mix(key ^ mix(count++)), k = 0; k < 4; ++k, bits >>= 16)
        sum += static_cast<std::int64_t>(bits & 0xffff);
    const std::int64_t centred = 2 * sum - 12 * 0xffff;  // standard deviation 2 * 65536
    return centred * sigma_ppm / (2 * 65536);
  }

  // `t` with relative noise; never below a quarter of it.
  Ns vary(Ns t, std::int64_t sigma_ppm) {
    std::int64_t ppm = 1'000'000 + normal_ppm(sigma_ppm);
    if (ppm < 250'000) ppm = 250'000;
    return t / 1'000'000 * ppm + t % 1'000'000 * ppm / 1'000'000;
  }
};

}  // namespace orrery::synth
