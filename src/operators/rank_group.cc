#include "operators/rank_group.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <new>
#include <system_error>

#include "operators/cpu_kernels.h"

namespace orrery {
namespace {

constexpr std::size_t kSlot = std::size_t{64} << 10;  // floats of a rank in flight at a time; two such
constexpr int kMostRanks = 64;

struct Shared {
  std::atomic<std::uint32_t> arrived{0}, generation{0};
  std::atomic<bool> broken{false};
  double values[kMostRanks] = {};
};

class SharedRanks final : public RankGroup {
 public:
  SharedRanks(Shared& shared, float* slots, int rank, int size, const std::vector<pid_t>* children)
      : shared_(shared), slots_(slots), rank_(rank), size_(size), children_(children) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return "shared memory"; }

  bool meet() override {
    if (shared_.broken) return false;
    const std::uint32_t generation = shared_.generation.load(std::memory_order_acquire);
    if (shared_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size_)) {
      shared_.arrived.store(0, std::memory_order_relaxed);
      shared_.generation.fetch_add(1, std::memory_order_release);
      return true;
    }
    using Clock = std::chrono::steady_clock;
    Clock::time_point looked{};
    for (std::uint64_t i = 0; shared_.generation.load(std::memory_order_acquire) == generation; ++i) {
      if (i < 200) continue;
      ::sched_yield();
      if (i % 1024 != 0) continue;
      if (shared_.broken) return false;
      const auto now = Clock::now();
      if (looked == Clock::time_point{}) looked = now;
      if (now - looked < std::chrono::milliseconds(50)) continue;
      looked = now;
      if (a_child_is_gone()) {
        shared_.broken = true;
        return false;
      }
    }
    return !shared_.broken;
  }

  double of_first(double mine) override {
    return exchanged(mine, [&] { return shared_.values[0]; });
  }
  double most(double mine) override {
    return exchanged(mine, [&] { return *std::max_element(shared_.values, shared_.values + size_); });
  }

  bool all_reduce(float* data, std::size_t n) override {
    for (std::size_t at = 0; at < n; at += kSlot) {
      const std::size_t part = std::min(kSlot, n - at);
      std::memcpy(slot(rank_), data + at, part * sizeof(float));
      if (!meet()) return false;
      // each sums its share of the part, in its own slot
      const auto r = static_cast<std::size_t>(rank_), s = static_cast<std::size_t>(size_);
      const std::size_t from = part * r / s, to = part * (r + 1) / s;
      sum(from, to, slot(rank_));
      if (!meet()) return false;
      for (std::size_t k = 0; k < s; ++k) {
        const std::size_t begin = part * k / s, end = part * (k + 1) / s;
        std::memcpy(data + at + begin, slot(static_cast<int>(k)) + begin, (end - begin) * sizeof(float));
      }
      half_ ^= 1;
    }
    return true;
  }

  bool all_gather(const float* mine, std::size_t each, float* all) override {
    for (std::size_t at = 0; at < each; at += kSlot, half_ ^= 1) {
      const std::size_t part = std::min(kSlot, each - at);
      std::memcpy(slot(rank_), mine + at, part * sizeof(float));
      if (!meet()) return false;
      for (int k = 0; k < size_; ++k)
        std::memcpy(all + static_cast<std::size_t>(k) * each + at, slot(k), part * sizeof(float));
    }
    return true;
  }

  bool reduce_scatter(const float* all, std::size_t each, float* mine) override {
    return by_parts(all, each, [&](std::size_t at, std::size_t part) {
      std::fill_n(mine + at, part, 0.0f);
      for (int k = 0; k < size_; ++k) {
        const float* from = slot(k) + static_cast<std::size_t>(rank_) * part;
        kernels_.add(mine + at, from, mine + at, part);
      }
    });
  }

  bool all_to_all(const float* parts, std::size_t each, float* received) override {
    return by_parts(parts, each, [&](std::size_t at, std::size_t part) {
      for (int k = 0; k < size_; ++k)
        std::memcpy(received + static_cast<std::size_t>(k) * each + at,
                    slot(k) + static_cast<std::size_t>(rank_) * part, part * sizeof(float));
    });
  }

 private:
  // Every rank shows a piece of each of its parts, then takes of all what is its own.
  template <class Take>
  bool by_parts(const float* all, std::size_t each, const Take& take) {
    const std::size_t most = kSlot / static_cast<std::size_t>(size_);
    for (std::size_t at = 0; at < each; at += most, half_ ^= 1) {
      const std::size_t part = std::min(most, each - at);
      for (int k = 0; k < size_; ++k)
        std::memcpy(slot(rank_) + static_cast<std::size_t>(k) * part, all + static_cast<std::size_t>(k) * each + at,
                    part * sizeof(float));
      if (!meet()) return false;
      take(at, part);
    }
    return true;
  }
  void sum(std::size_t from, std::size_t to, float* into) const {
    for (int k = 0; k < size_; ++k) {
      if (k == rank_) continue;
      kernels_.add(into + from, slot(k) + from, into + from, to - from);
    }
  }
  // Of two that alternate: a slow rank still reads the one while the others fill the other.
  float* slot(int rank) const {
    return slots_ +
           (static_cast<std::size_t>(half_) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(rank)) * kSlot;
  }
  template <class Read>
  double exchanged(double mine, const Read& read) {
    shared_.values[rank_] = mine;
    if (!meet()) return 0;
    const double x = read();
    return meet() ? x : 0;
  }
  bool a_child_is_gone() const {
    if (children_ == nullptr) return false;
    return std::any_of(children_->begin(), children_->end(), [](pid_t pid) {
      siginfo_t info{};
      return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
    });
  }

  Shared& shared_;
  float* slots_;
  int rank_, size_, half_ = 0;
  const std::vector<pid_t>* children_;
  const CpuKernels& kernels_ = cpu_kernels();
};

struct Ended {
  Status status;
  bool by_signal = false;
};
Ended end_of(const std::vector<pid_t>& children, bool at_once) {
  Ended all;
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (at_once) ::kill(children[i], SIGKILL);
    int status = 0;
    while (::waitpid(children[i], &status, 0) < 0 && errno == EINTR) {
    }
    if (at_once || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) continue;
    const std::string how = WIFSIGNALED(status) ? "was ended by signal " + std::to_string(WTERMSIG(status))
                                                : "failed with status " + std::to_string(WEXITSTATUS(status));
    if (!all.status && !(WIFSIGNALED(status) && !all.by_signal)) continue;
    all.status = fail("rank " + std::to_string(i + 1) + " " + how, "--ranks");
    all.by_signal = WIFSIGNALED(status);
  }
  return all;
}

}  // namespace

Status run_on_shared_memory(int ranks, const std::function<Status(RankGroup&)>& work) {
  if (ranks > kMostRanks) return fail("at most " + std::to_string(kMostRanks) + " ranks", "--ranks");
  const std::size_t slots = 2 * static_cast<std::size_t>(ranks) * kSlot * sizeof(float), head = 4096;
  static_assert(sizeof(Shared) <= 4096);
  void* memory = ::mmap(nullptr, head + slots, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return fail("no memory to share: " + std::error_code(errno, std::generic_category()).message(), "--ranks");
  auto* const shared = new (memory) Shared;
  auto* const data = reinterpret_cast<float*>(static_cast<char*>(memory) + head);
  const pid_t parent = ::getpid();
  std::vector<pid_t> children;
  Status done;
  for (int r = 1; r < ranks && done; ++r) {
    const pid_t pid = ::fork();
    if (pid < 0) {
      done = fail("no process for a rank: " + std::error_code(errno, std::generic_category()).message(), "--ranks");
      break;
    }
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      SharedRanks group(*shared, data, r, ranks, nullptr);
      const Status ok = work(group);
      if (!ok) shared->broken = true;
      ::_exit(ok ? 0 : 1);
    }
    children.push_back(pid);
  }
  if (done) {
    SharedRanks group(*shared, data, 0, ranks, &children);
    done = work(group);
  }
  if (!done) shared->broken = true;
  const Ended ended = end_of(children, !done && children.size() + 1 < static_cast<std::size_t>(ranks));
  ::munmap(memory, head + slots);
  // A rank that died is why the others could not go on; one that gave up may do so because of this one.
  return ended.by_signal || done ? ended.status : done;
}

}  // namespace orrery
