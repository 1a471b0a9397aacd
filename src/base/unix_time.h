// The time of day as a number.
#pragma once
#include <chrono>

namespace orrery {

inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace orrery
