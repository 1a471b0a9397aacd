// How long something takes that can be repeated: warm-up, batches long enough for the clock, median and spread.
#pragma once
#include <cstdint>
#include <functional>

namespace orrery {

struct MeasureTerms {
  double batch_ns = 500'000;  // a batch repeats until it is about so long
  int least_batches = 5;      // whatever they take ...
  int most_batches = 50;
  double budget_ns = 200e6;  // ... then until so much has been spent, warm-up included
  double noisy = 0.1;        // a spread above is not to be relied on, nor a median five times as far above the least
};

struct Timing {
  double ns = 0, least_ns = 0;                // of one repetition: median over the batches, the least
  double spread = 0;                          // half of the distance between the quartiles over the median
  std::int64_t batches = 0, repetitions = 0;  // repetitions: of a batch
  bool noisy = false;
};

// Ranks that measure together: all do the same repetitions at the same time, and what one decides all do.
class Lockstep {
 public:
  virtual ~Lockstep() = default;
  virtual bool meet() { return true; }                   // false: one of them is gone
  virtual double of_first(double mine) { return mine; }  // what rank 0 has
  virtual double most(double mine) { return mine; }      // over all ranks
};

// run(n) does n repetitions and returns the nanoseconds they took; 0 or less: it failed, and so does this: ns is 0. A
// batch counts as long as the slowest rank took for it.
Timing measure(const std::function<double(std::int64_t)>& run, const MeasureTerms& terms, Lockstep& ranks);

}  // namespace orrery
