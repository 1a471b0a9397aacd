// What was probably meant by a word that is not known.
#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

namespace orrery {

// Insertions, deletions and substitutions that make one of the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate that a slip of the finger or an abbreviation away is nearest; empty = none is near.
std::string_view closest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace orrery
