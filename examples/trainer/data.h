// The language that the example learns: each token is followed by one other nine times in ten. Every sample follows
// from the seed and its number alone, so a job that was restarted sees what it would have seen.
#pragma once
#include <cstdint>
#include <vector>

namespace trainer {

// SplitMix64's output function: a good 64-bit hash.
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// length + 1 tokens below `vocabulary`.
inline std::vector<std::uint32_t> sample(std::uint64_t seed, std::uint64_t number, std::size_t length,
                                         std::uint64_t vocabulary) {
  std::vector<std::uint32_t> tokens(length + 1);
  std::uint64_t state = mix(seed ^ mix(number));
  std::uint64_t token = state % vocabulary;
  for (std::uint32_t& out : tokens) {
    out = static_cast<std::uint32_t>(token);
    state = mix(state);
    token = state % 10 == 0 ? (state >> 8) % vocabulary : (token * 5 + 3) % vocabulary;
  }
  return tokens;
}

}  // namespace trainer
