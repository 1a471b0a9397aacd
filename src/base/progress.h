// A progress bar on standard error, for people who wait longer than two seconds.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace orrery {

// One line, at most `width` columns: "reading  [#####.....]  50%  3 s". Without a total no bar, only the time.
std::string progress_line(std::string_view stage, std::uint64_t done, std::uint64_t total, double seconds,
                          unsigned width);

// Draws from its own thread, so that a stage which never reports still shows its name and time. Does nothing at all
// when not enabled. The line is erased at the end: nothing of it stays on the terminal.
class Progress {
 public:
  explicit Progress(bool enabled, std::chrono::milliseconds delay = std::chrono::seconds(2));
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void stage(std::string_view name);                     // total unknown until update()
  void update(std::uint64_t done, std::uint64_t total);  // from any thread
  void finish();                                         // erases the line; later calls do nothing

 private:
  void draw_loop(std::chrono::milliseconds delay);
  std::atomic<std::uint64_t> done_{0}, total_{0};
  std::mutex mutex_;
  std::condition_variable stop_;
  std::string stage_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace orrery
