// Which items of a dataset are taken care of, and which are free.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace orrery {

using ItemRange = std::pair<std::int64_t, std::int64_t>;  // [first, end)

// [0, items) without what `taken` covers, ascending. Ranges may come in any order.
inline std::vector<ItemRange> free_items(std::int64_t items, std::vector<ItemRange> taken) {
  std::sort(taken.begin(), taken.end());
  std::vector<ItemRange> out;
  std::int64_t at = 0;
  for (const auto& [first, end] : taken) {
    if (first > at) out.emplace_back(at, std::min(first, items));
    at = std::max(at, end);
  }
  if (at < items) out.emplace_back(at, items);
  return out;
}

}  // namespace orrery
