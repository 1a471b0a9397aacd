// Which runs first. A run tells of the level of each of its factors (model, techniques, batch ...) and of each pair of
// levels. Next is always the run that tells most that no run before it told, for the time it takes: new levels and new
// pairs of levels, each one point, over its seconds; of equals the shorter, then the earlier of the file. Factors that
// do not vary count for nothing. (Greedy cover of pairs under a budget: Khuller, Moss and Naor 1999.)
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/matrix.h"

namespace orrery {

struct OrderedRun {
  std::vector<std::string> levels;  // of the factors, in one order for all
  double seconds = 0;               // that it will take
  bool told = false;                // measured already: what it tells is known, and it is not in the order
};

// Places in `runs`, those told left out.
std::vector<std::size_t> by_information(const std::vector<OrderedRun>& runs);

// Of an order those that a budget leaves room for: each that still fits in what is left. budget_s 0 = all.
std::vector<bool> within_budget(const std::vector<OrderedRun>& runs, const std::vector<std::size_t>& order,
                                double budget_s);

std::vector<std::string> levels_of(const BenchRun& run);

}  // namespace orrery
