// Slices of one lane -> tracks on which they nest, because viewers drop what does not.
#pragma once
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace orrery {

struct Slice {
  Ns begin = 0, end = 0;
  std::uint32_t first_node = kNone;  // whose boundary or start is `begin`
  std::uint32_t last_node = kNone;   // whose end is `end`
};

// Sorts by begin, where they are not sorted yet; equal begins keep their order (a parent was opened before its child).
void sort_by_begin(std::vector<Slice>& slices);

// By slice the number of its track, 0 upwards: each goes to the first on which it lies beside or, when `nested`, wholly
// inside what is there. `slices` as sort_by_begin leaves them. Returns how many tracks there are.
std::uint32_t assign_tracks(const std::vector<Slice>& slices, bool nested, std::vector<std::uint32_t>& track);

}  // namespace orrery
