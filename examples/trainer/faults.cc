#include "faults.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace trainer {
namespace {

// One bit near the end of the last shard of the newest checkpoint.
void corrupt_newest(const std::string& directory) {
  const auto all = orrery::ckpt::list(directory);
  if (!all || all->empty()) return;
  const std::string path =
      fmt::format("{}/{}/rank-{:05}.safetensors", directory, all->front().id, all->front().world - 1);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(0, std::ios::end);
  const auto middle = static_cast<std::streamoff>(file.tellg()) - 8;
  file.seekg(middle);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(middle);
  file.put(byte);
}

[[noreturn]] void out_of_memory() {
  const rlimit limit{std::size_t{1} << 30, std::size_t{1} << 30};
  ::setrlimit(RLIMIT_AS, &limit);
  try {
    std::vector<std::vector<char>> all;
    for (;;) all.emplace_back(std::size_t{64} << 20);
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("std::bad_alloc: out of host memory: tried to allocate 64.00 MiB");
  }
}

}  // namespace

// A mark is made before the fault strikes, so that it does not strike again after it.
bool Faults::first_time(const Fault& f) const {
  if (settings_.fault_marks.empty()) return true;
  const std::string mark = fmt::format("{}/{}-{}-{}", settings_.fault_marks, f.kind, f.step, f.rank);
  const int fd = ::open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  ::close(fd);
  return true;
}

void Faults::strike(std::int64_t step) {
  poisoned_ = false;
  too_far_ = 1;
  for (const Fault& f : settings_.faults) {
    if (f.step != step || f.rank != rank_ || !first_time(f)) continue;
    std::fprintf(stderr, "orrery_trainer: rank %d: fault %s at iteration %lld\n", rank_, f.kind.c_str(),
                 static_cast<long long>(step));
    if (f.kind == "kill") ::raise(SIGKILL);
    if (f.kind == "crash") ::raise(SIGSEGV);
    if (f.kind == "corrupt") {
      corrupt_newest(settings_.save);
      ::raise(SIGKILL);
    }
    if (f.kind == "hang") {
      for (;;) ::pause();
    }
    if (f.kind == "oom") out_of_memory();
    if (f.kind == "error") throw std::runtime_error("shape '[2, 3]' is invalid for input of size 5");
    if (f.kind == "nan") poisoned_ = true;
    if (f.kind == "spike") too_far_ = 1000;
    if (f.kind == "slow") delay_ms_ = f.value;
    if (f.kind == "storage") storage_full_ = true;
  }
}

}  // namespace trainer
