// Layers told from the repeating sequence of kernels: the longest stretch of launches that repeats itself.
#pragma once
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace orrery {

struct NamedCost {
  std::uint32_t name;  // of the kernel
  Ns duration;
};

struct Stretch {
  std::size_t first = 0, layers = 0, length = 0;  // rows; layers = 0: none
};

// The longest stretch with this period, at least `least` rows long and two periods.
Stretch longest_stretch(const std::vector<NamedCost>& l, std::size_t period, std::size_t least);

// The shortest period, of four rows or more, of a stretch that covers a third of the rows; 0 = none.
std::size_t find_period(const std::vector<NamedCost>& l);

// A stretch may take in kernels of the embedding or head that have the names of a layer's. Where in it the layers begin
// is told by durations: layers are alike, the head's products are not.
std::size_t shift_of_layers(const std::vector<NamedCost>& l, const Stretch& s, std::size_t period);

// Rows at which each of `layers` begins, and the row after the last; empty when they are not in `l`. `model` is the
// stretch that told the period, with its layers from row `first` on; a pass that also packs gradients has more
// launches, which are passed over in order.
std::vector<std::size_t> layer_starts(const std::vector<NamedCost>& l, const std::vector<NamedCost>& model,
                                      std::size_t period, std::size_t layers, std::size_t first, std::size_t shift);

}  // namespace orrery
