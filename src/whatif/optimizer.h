// Kernels that update parameters: their work is a rank's share of all of them.
#pragma once
#include <string_view>

namespace orrery {

inline bool is_optimizer_kernel(std::string_view name) {
  for (const std::string_view part : {"adam", "Adam", "LAMB", "multi_tensor_apply", "FusedOptimizer", "sgd_"})
    if (name.find(part) != std::string_view::npos) return true;
  // the optimizer LAMB, not a C++ lambda: half of PyTorch's elementwise kernels have one in their names
  for (auto at = name.find("lamb"); at != std::string_view::npos; at = name.find("lamb", at + 1))
    if (name.substr(at, 6) != "lambda") return true;
  return false;
}

}  // namespace orrery
