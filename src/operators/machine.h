// What is known of the machine at hand, and the platform that measured operators make of it.
#pragma once
#include <cstdint>
#include <string>

#include "costs/operator_table.h"
#include "operators/rank_group.h"

namespace orrery {

struct Machine {
  std::string cpu;  // as the system names it; "" = it does not
  std::int64_t cores = 1;
  double memory_gib = 0;
  double cache_mib = 0;  // the last level, of all parts that its cores have; 0 = not known
  // Of a GPU that was measured; 0 = none, or not known.
  int multiprocessors = 0;
  double gpu_memory_gib = 0;
};
Machine this_machine();  // cores and memory that this process may use

// Cores of this process for it alone: those that it may use, shared evenly among the ranks that may use the very same.
// A launcher binds each to its own, or none. All ranks call it. 0: one of them is gone.
std::int64_t cores_of_rank(RankGroup& ranks);

// A file of facts (docs/formats/facts.md): the device of the table as the GPU of a platform (of a CPU one process of
// the table's threads), as many of them as the table has ranks. Rates are those of the table's floors and products,
// memory this machine's. A GPU that the facts know is named instead. Errors: a table without a matrix product or
// without a floor of memory; a GPU whose multiprocessors are not known.
Result<std::string> platform_facts(const OperatorTable& table, const Machine& machine, const std::string& name);

}  // namespace orrery
