// Answers from logs: the progress of a pretraining run, the stages of evaluation trials.
#pragma once
#include <vector>

#include "cluster/progress.h"
#include "data/chart.h"
#include "data/table.h"

namespace orrery {

void describe_progress(const RunProgress& run, std::vector<Section>& out);
Chart progress_chart(const RunProgress& run);

void describe_trials(const std::vector<TrialLog>& trials, std::vector<Section>& out);
Chart trials_chart(const std::vector<TrialLog>& trials);

}  // namespace orrery
