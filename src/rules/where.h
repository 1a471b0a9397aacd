// Whom to blame: the rank, the node or the peer that the evidence points at.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "rules/diagnose.h"

namespace orrery {

// What the ranks of a collective time-out say together.
struct TimeoutReading {
  std::int32_t behind = -1;  // one rank that did not do what it had been given, while the others waited for it
  bool given_all = false;    // it had been given all the work that the others had: its GPU stopped
  std::uint64_t line = 0;    // of its message
  std::uint32_t evidence = kNoRow;
};
TimeoutReading read_timeouts(const std::vector<Evidence>& evidence);

// Fills rank, node and where ("rank4", "node12", an address, "-").
void blame(const std::vector<Evidence>& evidence, std::uint32_t root, Diagnosis& d);

}  // namespace orrery
