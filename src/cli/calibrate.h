// --calibrate FILE...: what `estimate` and `plan` share.
#pragma once
#include <string>
#include <vector>

#include "cli/options.h"
#include "data/table.h"
#include "estimate/calibrate_tables.h"
#include "estimate/operations.h"

namespace orrery {

OptionSpec calibrate_option();

struct Calibration {
  std::vector<Section> sections;  // which facts were replaced
  Notes notes;
  LargestMeasured largest;  // of the tables, for note_beyond
};

// Nothing without --calibrate. Else `costs` are changed by what was measured; `assumptions`: what was measured
// otherwise than the job is. Errors: files that cannot be read, traces that
// cannot be taken apart; those of calibrate() and of TableCalibration; steps beside traces.
Status calibrate_by(const Args& args, const RunOptions& options, const EstimateJob& job, JobCosts& costs,
                    Calibration& out, std::vector<std::string>& assumptions);

}  // namespace orrery
