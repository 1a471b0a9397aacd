// Which facts traces replaced.
#pragma once
#include <vector>

#include "data/table.h"
#include "estimate/calibrate.h"

namespace orrery {

Section calibration_section(const std::vector<CalibratedFact>& facts);

}  // namespace orrery
