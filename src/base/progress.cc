#include "base/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace orrery {
namespace {

unsigned stderr_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// Progress is a courtesy: a terminal that cannot be written to must not stop the work.
void print(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

}  // namespace

std::string progress_line(std::string_view stage, std::uint64_t done, std::uint64_t total, double seconds,
                          unsigned width) {
  std::string line;
  if (total == 0) {
    line = fmt::format("{}  {:.0f} s", stage, seconds);
  } else {
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const std::string tail = fmt::format("] {:3.0f}%  {:.0f} s", share * 100, seconds);
    const std::size_t used = stage.size() + 3 + tail.size();
    const std::size_t bar = width > used + 10 ? std::min<std::size_t>(40, width - used - 1) : 0;
    const std::size_t full = static_cast<std::size_t>(share * static_cast<double>(bar));
    line = fmt::format("{}  [{}{}{}", stage, std::string(full, '#'), std::string(bar - full, '.'), tail);
  }
  if (line.size() >= width) line.resize(width > 0 ? width - 1 : 0);
  return line;
}

Progress::Progress(bool enabled, std::chrono::milliseconds delay) {
  if (enabled) thread_ = std::thread([this, delay] { draw_loop(delay); });
}

Progress::~Progress() { finish(); }

void Progress::stage(std::string_view name) {
  const std::lock_guard lock(mutex_);
  stage_ = name;
  done_ = 0;
  total_ = 0;
}

void Progress::update(std::uint64_t done, std::uint64_t total) {
  done_ = done;
  total_ = total;
}

void Progress::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void Progress::draw_loop(std::chrono::milliseconds delay) {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  bool drawn = false;
  auto next = begin + delay;
  while (!stop_.wait_until(lock, next, [this] { return stopping_; })) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    print("\r\x1b[K" + progress_line(stage_, done_, total_, passed.count(), stderr_width()));
    drawn = true;
    next = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  }
  if (drawn) print("\r\x1b[K");
}

}  // namespace orrery
