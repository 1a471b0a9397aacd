// Kernels that update parameters: their work is a rank's share of all of them.
#pragma once
#include <string_view>

namespace orrery {

inline bool is_optimizer_kernel(std::string_view name) {
  for (const std::string_view part : {"adam", "Adam", "lamb", "LAMB", "multi_tensor_apply", "FusedOptimizer", "sgd_"})
    if (name.find(part) != std::string_view::npos) return true;
  return false;
}

}  // namespace orrery
