// Rows of work shared out to threads.
#pragma once
#include <cstddef>
#include <functional>

namespace orrery {

// The threads to use: `wanted`, or one a core when that is 0.
unsigned worker_count(unsigned wanted);

// Calls work(row, worker) once for every row below `rows`, on up to `workers` threads (this one is worker 0), each row
// by whoever is free. Returns when all are done; what `work` throws (out of memory) is thrown again here.
void for_each_row(std::size_t rows, unsigned workers,
                  const std::function<void(std::size_t row, unsigned worker)>& work);

}  // namespace orrery
