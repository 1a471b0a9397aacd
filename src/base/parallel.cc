#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace orrery {

unsigned worker_count(unsigned wanted) {
  return wanted != 0 ? wanted : std::max(1u, std::thread::hardware_concurrency());
}

void for_each_row(std::size_t rows, unsigned workers,
                  const std::function<void(std::size_t row, unsigned worker)>& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> thrown(std::max(1u, workers));
  const auto run = [&](unsigned worker) {
    try {
      for (std::size_t row = next++; row < rows; row = next++) work(row, worker);
    } catch (...) {  // out of memory: told by the thread that asked
      thrown[worker] = std::current_exception();
      next = rows;
    }
  };
  std::vector<std::thread> others;
  const auto threads = static_cast<unsigned>(std::min<std::size_t>(workers, rows));
  for (unsigned w = 1; w < threads; ++w) others.emplace_back(run, w);
  run(0);
  for (std::thread& t : others) t.join();
  for (const std::exception_ptr& e : thrown)
    if (e) std::rethrow_exception(e);
}

}  // namespace orrery
