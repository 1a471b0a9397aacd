// What `orrery estimate train|finetune` says.
#pragma once
#include <vector>

#include "data/table.h"
#include "estimate/estimate.h"

namespace orrery {

struct ScalingPoint {
  std::int64_t gpus = 1;
  double tokens_per_s = 0, efficiency = 0;  // against the first point, per GPU
};

Document estimate_document(const EstimateJob& job, const Estimate& e, const std::vector<ScalingPoint>& scaling,
                           const std::vector<std::string>& notes);

}  // namespace orrery
