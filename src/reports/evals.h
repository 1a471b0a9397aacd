// What `orrery evals` answers: schedules, their makespans beside yardsticks, and the distribution over draws.
#pragma once
#include <vector>

#include "data/chart.h"
#include "data/table.h"
#include "trials/coordinator.h"
#include "trials/draw.h"

namespace orrery {

// `width`: columns that a printed schedule may take.
Document evals_plan_document(const EvalConfig& config, const PlannedEvals& plan, unsigned width = 100);
Document evals_simulate_document(const EvalConfig& config, const std::vector<SimulatedRuns>& clusters,
                                 unsigned width = 100);

// Of a run: its scores, and its trials as they went.
Document evals_run_document(const EvalConfig& config, const EvalOutcome& outcome);

std::vector<Chart> evals_charts(const EvalConfig& config, const EvalOutcome& outcome);

// GPUs and metric jobs over time.
Chart evals_gantt(const EvalConfig& config, std::int64_t nodes, const BelievedUnits& believed,
                  const std::vector<EvalTrial>& trials, const EvalTimeline& timeline);
std::vector<Chart> evals_charts(const EvalConfig& config, const PlannedEvals& plan);
std::vector<Chart> evals_charts(const EvalConfig& config, const std::vector<SimulatedRuns>& clusters);

}  // namespace orrery
