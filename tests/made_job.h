// Made-up jobs as tests of predictions use them: run, and how long their iteration really takes.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "synthesis/synthetic_job.h"

namespace orrery::testing {

inline SyntheticRun run_of(const SyntheticJob& job) {
  auto run = run_job(job);
  EXPECT_TRUE(run.has_value()) << run.error().line();
  return std::move(*run);
}

inline double truth_ms(const SyntheticJob& job) {
  const SyntheticRun run = run_of(job);
  std::map<std::int64_t, Ns> longest;
  for (const TrueRank& rank : run.truth)
    for (const TrueStep& s : rank.steps) longest[s.number] = std::max(longest[s.number], s.duration);
  double sum = 0;
  for (const auto& [number, t] : longest) sum += static_cast<double>(t);
  return sum / static_cast<double>(longest.size()) / 1e6;
}

}  // namespace orrery::testing
