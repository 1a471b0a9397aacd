#include "reports/intervals.h"

#include <algorithm>

namespace orrery {

void unite(const Intervals& a, const Intervals& b, Intervals& out) {
  out.clear();
  auto x = a.begin(), y = b.begin();
  while (x != a.end() || y != b.end()) {
    const bool first = y == b.end() || (x != a.end() && x->begin <= y->begin);
    const Interval& i = first ? *x++ : *y++;
    append(out, i.begin, i.end);
  }
}

void intersect(const Intervals& a, const Intervals& b, Intervals& out) {
  out.clear();
  auto x = a.begin(), y = b.begin();
  while (x != a.end() && y != b.end()) {
    append(out, std::max(x->begin, y->begin), std::min(x->end, y->end));
    if (x->end < y->end)
      ++x;
    else
      ++y;
  }
}

void unite_all(Intervals& rows) {
  std::sort(rows.begin(), rows.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::size_t last = 0, kept = 0;  // as append() does, in place
  for (const Interval i : rows) {
    if (i.begin >= i.end) continue;
    if (kept > 0 && i.begin <= rows[last].end) {
      rows[last].end = std::max(rows[last].end, i.end);
    } else {
      last = kept++;
      rows[last] = i;
    }
  }
  rows.resize(kept);
}

Ns covered(const Intervals& set, Ns begin, Ns end) {
  Ns sum = 0;
  auto i = std::partition_point(set.begin(), set.end(), [&](const Interval& x) { return x.end <= begin; });
  for (; i != set.end() && i->begin < end; ++i) sum += std::min(i->end, end) - std::max(i->begin, begin);
  return sum;
}

}  // namespace orrery
