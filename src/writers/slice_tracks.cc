#include "writers/slice_tracks.h"

#include <algorithm>

namespace orrery {

void sort_by_begin(std::vector<Slice>& slices) {
  const auto earlier = [](const Slice& a, const Slice& b) { return a.begin < b.begin; };
  if (!std::is_sorted(slices.begin(), slices.end(), earlier)) std::stable_sort(slices.begin(), slices.end(), earlier);
}

std::uint32_t assign_tracks(const std::vector<Slice>& slices, bool nested, std::vector<std::uint32_t>& track) {
  std::vector<std::vector<Ns>> open;  // by track: ends of the slices around the present moment, innermost last
  track.clear();
  track.reserve(slices.size());
  for (const Slice& s : slices) {
    std::uint32_t k = 0;
    for (;; ++k) {
      if (k == open.size()) open.emplace_back();
      std::vector<Ns>& ends = open[k];
      while (!ends.empty() && ends.back() <= s.begin) ends.pop_back();
      if (ends.empty() || (nested && s.end <= ends.back())) break;
    }
    open[k].push_back(s.end);
    track.push_back(k);
  }
  return static_cast<std::uint32_t>(open.size());
}

}  // namespace orrery
