#include "reports/intervals.h"

#include <algorithm>

namespace orrery {

Intervals unite(const Intervals& a, const Intervals& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  Intervals out;
  out.reserve(a.size() + b.size());
  auto x = a.begin(), y = b.begin();
  while (x != a.end() || y != b.end()) {
    const bool first = y == b.end() || (x != a.end() && x->begin <= y->begin);
    const Interval& i = first ? *x++ : *y++;
    append(out, i.begin, i.end);
  }
  return out;
}

Intervals intersect(const Intervals& a, const Intervals& b) {
  Intervals out;
  auto x = a.begin(), y = b.begin();
  while (x != a.end() && y != b.end()) {
    append(out, std::max(x->begin, y->begin), std::min(x->end, y->end));
    if (x->end < y->end)
      ++x;
    else
      ++y;
  }
  return out;
}

Intervals unite_all(Intervals rows) {
  std::sort(rows.begin(), rows.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  Intervals out;
  for (const Interval& i : rows) append(out, i.begin, i.end);
  return out;
}

Ns covered(const Intervals& set, Ns begin, Ns end) {
  Ns sum = 0;
  auto i = std::partition_point(set.begin(), set.end(), [&](const Interval& x) { return x.end <= begin; });
  for (; i != set.end() && i->begin < end; ++i) sum += std::min(i->end, end) - std::max(i->begin, begin);
  return sum;
}

}  // namespace orrery
