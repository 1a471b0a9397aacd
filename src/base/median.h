// The middle of a few values.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace orrery {

// Of an even number the upper of the two in the middle. Precondition: not empty.
template <class T>
T median(std::vector<T> v) {
  const auto mid = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), mid, v.end());
  return *mid;
}

}  // namespace orrery
