// Threads that wait for work and share it: what an operator of a framework runs on.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace orrery {

class Team {
 public:
  // `first_core`: threads are pinned to cores of this process's set, from that one on, each to its own where there are
  // enough (a second rank begins where the first ends); -1: not pinned. The calling thread is worker 0.
  Team(unsigned threads, int first_core);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  unsigned size() const { return static_cast<unsigned>(threads_.size()) + 1; }
  bool pinned() const { return pinned_; }
  // The calling thread alone: may run on every core again, or is back on its own. For libraries with threads of their
  // own, which begin where their caller may run.
  void loosen(bool loose);
  // work(worker) on each of them; returns when all are done.
  void run(const std::function<void(unsigned worker)>& work);

 private:
  void wait_for_work(unsigned worker);
  std::vector<std::thread> threads_;
  const std::function<void(unsigned)>* work_ = nullptr;
  std::atomic<std::uint32_t> round_{0}, left_{0};
  std::atomic<bool> ending_{false};
  bool pinned_ = false, loose_ = false;
  std::vector<int> cores_;  // that this process had; empty: not pinned
  int own_core_ = 0;
};

// Of `all` rows the share of one worker, in whole groups of `grain`.
struct WorkShare {
  std::size_t from, to;
};
WorkShare share_of(std::size_t all, unsigned worker, unsigned workers, std::size_t grain = 1);

}  // namespace orrery
