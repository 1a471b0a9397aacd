// Answers on runs that are to be measured and were: the plan, the study's tables, what changed.
#pragma once
#include <utility>
#include <vector>

#include "bench/analysis.h"
#include "bench/sweep.h"
#include "data/chart.h"
#include "data/table.h"

namespace orrery {

struct BenchFacts {
  std::vector<BenchEntry> entries;
  std::vector<RunRow> rows;                                      // of the store
  std::vector<std::pair<std::int64_t, ShareRow>> shares;         // by RunRow::id
  std::vector<std::pair<std::int64_t, OperatorRate>> operators;  // by RunRow::id
  std::vector<std::pair<std::int64_t, std::string>> environments;
  std::vector<ComparedRun> compared;  // empty: nothing to compare with
  bool has_platform = false, compare_cpu = false;
  std::size_t fitted = 0;  // runs that the estimate was fitted to
  Notes tables;            // what the tables that it is calibrated by do not tell well
};

Document bench_plan_document(const BenchConfig& config, const RunPlan& plan, const BenchFacts& facts);
Document bench_run_document(const BenchConfig& config, const SweepResult& result, const BenchFacts& facts);
Document bench_report_document(const BenchConfig& config, const BenchFacts& facts);
std::vector<Chart> bench_charts(const BenchFacts& facts);

}  // namespace orrery
