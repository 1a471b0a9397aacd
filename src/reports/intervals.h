// Sets of instants as sorted, disjoint, half-open stretches of time: what "union over all streams" means. Every
// operation is one linear pass. A stretch without length is in no set, so zero-length tasks need no care.
#pragma once
#include <vector>

#include "base/ids.h"

namespace orrery {

struct Interval {
  Ns begin = 0, end = 0;  // [begin, end), begin < end
  bool operator==(const Interval&) const = default;
};
using Intervals = std::vector<Interval>;  // by begin; a gap between any two

// Adds [begin, end) to the union. Precondition: `begin` is not before the begin of the last stretch.
inline void append(Intervals& set, Ns begin, Ns end) {
  if (begin >= end) return;
  if (!set.empty() && begin <= set.back().end) {
    if (end > set.back().end) set.back().end = end;
  } else {
    set.push_back({begin, end});
  }
}

// `out` is overwritten, its buffer reused; it is neither of the two others.
void unite(const Intervals& a, const Intervals& b, Intervals& out);
void intersect(const Intervals& a, const Intervals& b, Intervals& out);
// `rows`, any stretches in any order, becomes their union.
void unite_all(Intervals& rows);
// How much of [begin, end) the set covers, ns.
Ns covered(const Intervals& set, Ns begin, Ns end);

}  // namespace orrery
