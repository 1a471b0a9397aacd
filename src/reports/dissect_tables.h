// One rank's attribution, summed: the rows that the tables of `orrery dissect` are made of. Times are of all chosen
// steps together, ns.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reports/dissect.h"

namespace orrery {

struct DissectSum {
  Ns exclusive = 0;  // adds up to the steps
  Ns gpu = 0;        // of tasks that begin in the steps, overlaps counted twice
  Ns cpu = 0;        // of the host; of an operator without what it calls
  double count = 0;  // tasks, visits or calls
  // Of the tasks whose shapes tell the work (dissect_cost.cc), and the time of those.
  double flops = 0, bytes = 0, flops_ns = 0, bytes_ns = 0;
  // Of those for which the GPU's facts tell a bound: time that work must take, and took.
  double bound_ns = 0, bounded_ns = 0, compute_ns = 0, memory_ns = 0;
  void add(const DissectSum& o);
};

struct MemoryLevels {  // GiB; of the GPU that holds most
  bool told = false;
  double peak = 0, least = 0, reserved = 0;
  double peak_at_ms = 0;       // from the begin of the first chosen step
  std::vector<double> per_ms;  // the most of each ms, in the layout of gpu_busy
};

struct RankTables {
  std::size_t steps = 0;
  Ns length = 0, idle = 0, outside = 0, busy = 0;
  std::uint64_t tasks = 0, unlaunched = 0;  // in the steps; without a recorded launch
  bool graphs = false, decode_by_graph = false, layers_told = false;
  const GpuFacts* gpu = nullptr;
  std::vector<DissectSum> phases;  // by Phase
  std::map<std::pair<std::string, Phase>, DissectSum> modules;
  std::map<std::string, DissectSum> operators;
  std::map<std::pair<std::string, KernelClass>, DissectSum> kernels;
  std::map<std::pair<std::int32_t, Phase>, DissectSum> layers;
  std::vector<double> busy_per_ms;
  MemoryLevels memory;
};

RankTables tables_of(const Dissection& d);

}  // namespace orrery
