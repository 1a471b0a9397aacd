// Processes that exchange data: what the collectives are measured on.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "operators/measure.h"

namespace orrery {

class RankGroup : public Lockstep {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string transport() const = 0;  // "shared memory", "MPI ..."
  // Each takes part of every rank; false: one of them is gone, or the library refuses. Elements of one rank.
  virtual bool all_reduce(float* data, std::size_t n) = 0;                             // the sum, in place
  virtual bool all_gather(const float* mine, std::size_t each, float* all) = 0;        // all: each * size
  virtual bool reduce_scatter(const float* all, std::size_t each, float* mine) = 0;    // the sum of this rank's part
  virtual bool all_to_all(const float* parts, std::size_t each, float* received) = 0;  // both: each * size
};

// Runs `work` in `ranks` processes of this machine: in this one as rank 0, in children as the others, which exit when
// it returns. Memory that they share carries the data. Call it while this process has no other threads that matter: a
// child has the calling one alone. Errors: no memory, no processes; a rank that died or failed.
Status run_on_shared_memory(int ranks, const std::function<Status(RankGroup&)>& work);

}  // namespace orrery
