#include "cli/diagnose_read.h"

#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "base/parallel.h"
#include "importers/log_text.h"

namespace orrery {

Result<std::vector<LogTable>> read_logs(const std::vector<TraceInput>& inputs, const LinePatterns& patterns,
                                        unsigned threads, Progress& progress) {
  std::uint64_t total = 0;
  for (const TraceInput& i : inputs) total += i.size;
  std::atomic<std::uint64_t> taken{0};
  std::vector<std::optional<Result<LogTable>>> tables(inputs.size());
  for_each_row(inputs.size(), worker_count(threads), [&](std::size_t row, unsigned) {
    const TraceInput& input = inputs[row];
    auto source = open_input(input);
    if (!source) {
      tables[row] = tl::unexpected(source.error());
      return;
    }
    std::uint64_t before = 0;
    LogReadOptions how;
    how.on_progress = [&](std::uint64_t now) {
      taken += now - before;
      before = now;
      progress.update(taken, total);
    };
    tables[row] = read_log(std::move(*source), input.label, patterns, how);
    if (*tables[row]) (*tables[row])->files[0].rank = static_cast<std::int32_t>(rank_in_path(input.label));
  });
  std::vector<LogTable> out;
  for (auto& table : tables) {
    if (!*table) return tl::unexpected(table->error());
    out.push_back(std::move(**table));
  }
  return out;
}

namespace {

volatile std::sig_atomic_t stop_asked = 0;  // a handler of signals has no other way to tell

// Until its end, SIGINT and SIGTERM ask to stop. Once: a second signal does what it always does.
class StopOnSignal {
 public:
  StopOnSignal() {
    stop_asked = 0;
    struct sigaction how {};
    how.sa_handler = [](int) { stop_asked = 1; };
    how.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &how, &interrupt_);
    ::sigaction(SIGTERM, &how, &terminate_);
  }
  ~StopOnSignal() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGTERM, &terminate_, nullptr);
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

bool became_shorter(const std::string& path, std::uint64_t read) {
  struct stat now {};
  return ::stat(path.c_str(), &now) == 0 && S_ISREG(now.st_mode) && static_cast<std::uint64_t>(now.st_size) < read;
}

}  // namespace

Result<LogTable> follow_log(const TraceInput& input, const LinePatterns& patterns, const FollowOptions& options,
                            const std::function<bool(const LogTable&)>& ended, bool& hung) {
  using Clock = std::chrono::steady_clock;
  hung = false;
  const StopOnSignal signals;
  Notes restarts;
  for (;;) {
    auto source = open_input(input);
    if (!source) return tl::unexpected(source.error());
    const ByteSource* raw = source->get();
    std::uint64_t bytes = 0;
    bool again = false;
    auto last_growth = Clock::now();
    const auto more = [&](const LogTable& table) {
      if (stop_asked != 0) return false;
      const auto now = Clock::now();
      if (table.files[0].bytes != bytes) {
        bytes = table.files[0].bytes;
        last_growth = now;
      }
      again = became_shorter(input.label, raw->taken());
      if (again) return false;
      const double quiet = std::chrono::duration<double>(now - last_growth).count();
      if (quiet >= options.settle_s && ended(table)) return false;
      if (quiet >= options.hang_after_s) {
        hung = true;
        return false;
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(options.poll_s));
      return true;
    };
    auto table = read_log(std::move(*source), input.label, patterns, LogReadOptions{}, more);
    if (!table) return table;
    if (again) {
      restarts.add("log-truncated", Severity::warning, 1, input.label,
                   "the file became shorter while it was followed: read again from its start");
      continue;
    }
    table->notes.merge(restarts);
    table->files[0].rank = static_cast<std::int32_t>(rank_in_path(input.label));
    return table;
  }
}

}  // namespace orrery
