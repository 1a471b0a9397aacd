// Step times of jobs that were measured, as `orrery bench` reports them: what `estimate --calibrate` takes beside
// tables and traces.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "estimate/calibrate_tables.h"

namespace orrery {

// Whether the text is one, by its beginning: JSON lines with step_ms, or the document of `bench report --json`.
bool looks_like_steps(std::string_view text);

// docs/formats/operators.md, "Measured steps". Each becomes the job `base` with the model, batch, lengths, techniques,
// precision and ranks that it names; what it does not name is base's. Runs that are not done are left out. Errors, with
// the line or the run: no JSON; unknown techniques or models; no step time; a job that cannot be.
Result<std::vector<CalibrationStep>> parse_steps(std::string_view text, const std::string& where,
                                                 const EstimateJob& base);

}  // namespace orrery
