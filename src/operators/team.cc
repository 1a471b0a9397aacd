#include "operators/team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

namespace orrery {
namespace {

constexpr int kSpins = 4'000;  // some ten microseconds: operators follow each other closely

void pause_a_little() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

std::vector<int> cores_of_this_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &set)) cores.push_back(c);
  return cores;
}

bool pin_this_thread(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int c : cores) CPU_SET(c, &set);
  return ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set) == 0;
}

}  // namespace

Team::Team(unsigned threads, int first_core) {
  if (first_core >= 0) cores_ = cores_of_this_process();
  const auto first = static_cast<std::size_t>(std::max(0, first_core));
  if (cores_.size() < first + threads) cores_.clear();
  pinned_ = !cores_.empty();
  if (pinned_) own_core_ = cores_[first];
  std::atomic<bool> all_pinned{true};
  std::atomic<unsigned> ready{0};
  const auto pin = [&](unsigned worker) {
    if (!cores_.empty() && !pin_this_thread({cores_[first + worker]})) all_pinned = false;
    ++ready;
  };
  for (unsigned w = 1; w < threads; ++w)
    threads_.emplace_back([this, w, &pin] {
      pin(w);
      wait_for_work(w);
    });
  pin(0);
  while (ready < threads) std::this_thread::yield();  // `pin` must outlive its calls
  pinned_ = pinned_ && all_pinned;
}

Team::~Team() {
  ending_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& t : threads_) t.join();
  loosen(true);
}

void Team::loosen(bool loose) {
  if (cores_.empty() || loose == loose_) return;
  loose_ = loose;
  (void)pin_this_thread(loose ? cores_ : std::vector<int>{own_core_});
}

void Team::wait_for_work(unsigned worker) {
  std::uint32_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpins && round_.load(std::memory_order_acquire) == seen; ++i) pause_a_little();
    round_.wait(seen, std::memory_order_acquire);
    seen = round_.load(std::memory_order_acquire);
    if (ending_) return;
    (*work_)(worker);
    left_.fetch_sub(1, std::memory_order_release);
  }
}

void Team::run(const std::function<void(unsigned)>& work) {
  if (threads_.empty()) return work(0);
  work_ = &work;
  left_.store(static_cast<std::uint32_t>(threads_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  work(0);
  for (int i = 0; left_.load(std::memory_order_acquire) != 0; ++i) {
    if (i < kSpins)
      pause_a_little();
    else
      std::this_thread::yield();  // more threads than cores: whoever is not done must run
  }
}

WorkShare share_of(std::size_t all, unsigned worker, unsigned workers, std::size_t grain) {
  const std::size_t groups = (all + grain - 1) / grain;
  const std::size_t from = groups * worker / workers * grain, to = groups * (worker + 1) / workers * grain;
  return {std::min(from, all), std::min(to, all)};
}

}  // namespace orrery
