#pragma once

namespace orrery {

// Decimals of a rate: one, or as many as a rate below 1, which a CPU has, needs to be told from 0.
inline int rate_digits(double rate) { return rate >= 1 || !(rate > 0) ? 1 : rate >= 0.1 ? 3 : rate >= 0.01 ? 4 : 5; }

}  // namespace orrery
