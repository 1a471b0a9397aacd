// What `orrery bench` reads of a run's logs and traces, by the code of diagnose and dissect.
#pragma once
#include "bench/measure.h"

namespace orrery {

BenchReaders bench_readers(unsigned threads);

// Phases, modules and operators of the traces in a directory, as `orrery dissect` has them. Of the operators the
// largest.
Result<std::vector<ShareRow>> dissected_shares(const std::string& directory, unsigned threads);

}  // namespace orrery
