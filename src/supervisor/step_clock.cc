#include "supervisor/step_clock.h"

#include <algorithm>

namespace orrery {

Ns StepClock::first_at(std::int64_t first, std::int64_t last, Ns at) const {
  const Ns least = std::min(none_until_, at);
  const auto steps = static_cast<double>(std::max<std::int64_t>(last - first, 0));
  const double there = static_cast<double>(at - least);
  const double needed =
      logged_ > 0 ? 1e9 * steps * logged_s_ / static_cast<double>(logged_) : there * steps / (steps + 1);
  return at - static_cast<Ns>(std::clamp(needed, 0.0, there));
}

}  // namespace orrery
