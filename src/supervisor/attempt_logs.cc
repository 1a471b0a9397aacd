#include "supervisor/attempt_logs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "importers/log_text.h"
#include "rules/diagnose.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPause = std::chrono::milliseconds(50);
constexpr auto kDiagnosis = std::chrono::seconds(1);  // no more often while it runs
constexpr std::size_t kMostSteps = 4096;

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

Finding finding_of(const Diagnosis& d, const std::vector<std::string>& paths) {
  static constexpr const char* verdicts[] = {"healthy", "failed", "interrupted", "unknown"};
  Finding f;
  // Step times are watched as they come (Watch), with more to compare than what one log says.
  if (d.reason == "Straggler") {
    f.verdict = "healthy";
    return f;
  }
  f.verdict = verdicts[static_cast<std::size_t>(d.verdict)];
  f.reason = d.reason;
  f.category = d.category;
  f.restart = d.restart;
  f.text = d.root_cause.substr(0, 500);
  f.where = d.where == "-" ? "" : d.where;
  f.node = d.node;
  f.rank = d.rank;
  f.confidence = d.confidence;
  f.ended = d.ended;
  if (!d.evidence.empty() && d.evidence.front().file < paths.size())
    f.at = fmt::format("{}:{}", file_name(paths[d.evidence.front().file]), d.evidence.front().line);
  for (const Evidence& e : d.evidence) f.sigterm = f.sigterm || e.why == "sigterm";
  return f;
}

// "saving checkpoint at iteration      15 to DIR"; -1 = it does not say.
std::int64_t iteration_in(std::string_view line) {
  for (const std::string_view word : {"iteration", "step"}) {
    std::size_t at = line.find(word);
    if (at == std::string_view::npos) continue;
    at = line.find_first_not_of(" :=_-", at + word.size());
    std::int64_t step = -1;
    if (at != std::string_view::npos) std::from_chars(line.data() + at, line.data() + line.size(), step);
    if (step >= 0) return step;
  }
  return -1;
}

bool same(const Finding& a, const Finding& b) {
  return a.verdict == b.verdict && a.reason == b.reason && a.restart == b.restart && a.at == b.at &&
         a.where == b.where && a.node == b.node && a.ended == b.ended && a.sigterm == b.sigterm;
}

}  // namespace

struct AttemptLogs::Impl {
  struct File {
    std::string path;
    std::thread thread;
    LogTable table;           // guarded by mutex
    bool changed = false;     // guarded by mutex
    std::uint64_t bytes = 0;  // published; of the thread alone
    std::uint64_t save_line = 0;
    std::uint64_t step_line = 0;                                // up to which steps were told
    std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;  // lines up to here came before so many steps of the job

    void note_lines(std::uint64_t steps) {
      const std::uint64_t line = table.rows.size() > 0 ? table.rows.line.back() : 0;
      if (line > (seen.empty() ? 0 : seen.back().first)) seen.emplace_back(line, steps);
    }
    // As one of a job that has done so many steps, which another file of it may have told.
    LogTable among(std::uint64_t steps) const {
      LogTable t = table;
      if (t.files[0].steps >= steps) return t;
      t.files[0].steps = steps;
      for (std::size_t i = 0; i < t.rows.size(); ++i) {
        const auto at = std::lower_bound(seen.begin(), seen.end(), t.rows.line[i],
                                         [](const auto& mark, std::uint64_t line) { return mark.first < line; });
        if (at != seen.end()) t.rows.steps_before[i] = std::max(t.rows.steps_before[i], at->second);
      }
      return t;
    }
  };

  SharedRules rules;
  std::vector<std::string> paths;
  std::vector<std::unique_ptr<File>> files;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<bool> stop{false};
  std::optional<Finding> last;
  std::uint64_t diagnosed = 0, diagnosed_steps = 0;  // rows, steps then
  Clock::time_point diagnosed_at{};

  std::uint32_t save_rule() const {
    const std::vector<Rule>& all = rules.get()->rules();
    for (std::uint32_t i = 0; i < all.size(); ++i)
      if (all[i].id == kSavingRule) return i;
    return kNoRow;
  }

  void read(File& file) {
    while (!stop && ::access(file.path.c_str(), R_OK) != 0) pause();
    auto source = open_file(file.path);
    if (!source) return;
    LogReadOptions how;
    how.shapes = false;
    how.most_steps = kMostSteps;
    bool last_look = false;
    const auto more = [&](const LogTable& table) {
      publish(file, table);
      if (last_look) return false;
      // What was written before the end was asked for is read still.
      if (stop) {
        last_look = true;
        return true;
      }
      pause();
      return true;
    };
    auto table = read_log(std::move(*source), file_name(file.path), *rules.get(), how, more);
    if (table) publish(file, *table);
  }

  void pause() {
    std::unique_lock lock(mutex);
    wake.wait_for(lock, kPause, [&] { return stop.load(); });
  }

  void publish(File& file, const LogTable& table) {
    if (table.files[0].bytes == file.bytes && !stop) return;
    file.bytes = table.files[0].bytes;
    const std::lock_guard lock(mutex);
    file.table = table;
    file.changed = true;
  }

  LogNews news(bool all) {
    LogNews out;
    if (rules.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return out;
    LogTable job;
    std::uint64_t rows = 0, steps = 0;
    bool saving = false;
    {
      const std::lock_guard lock(mutex);
      for (const auto& f : files) {
        out.grew = out.grew || f->changed;
        f->changed = false;
        take_steps(*f, out, saving);
        rows += f->table.rows.size();
        if (f->table.rows.size() > 0) rows += f->table.rows.line.back();
        steps = std::max(steps, f->table.files[0].steps);
      }
      for (const auto& f : files) f->note_lines(steps);
      // Steps after an error say that it was survived.
      const bool news = rows != diagnosed || (last && last->verdict != "healthy" && steps != diagnosed_steps);
      const bool look = all || (news && Clock::now() - diagnosed_at >= kDiagnosis);
      out.saving = saving;
      if (!look) return out;
      for (const auto& f : files) append_log(job, f->among(steps));
    }
    diagnosed = rows;
    diagnosed_steps = steps;
    diagnosed_at = Clock::now();
    Finding now = finding_of(diagnose(job, *rules.get()), paths);
    if (!last || !same(*last, now)) {
      out.finding = now;
      last = std::move(now);
    }
    return out;
  }

  void take_steps(File& f, LogNews& out, bool& saving) {
    const StepRows& s = f.table.steps;
    std::uint64_t last_step = 0, last_save = 0;
    for (std::size_t i = 0; i < s.size(); ++i) {
      last_step = std::max(last_step, s.line[i]);
      if (s.line[i] <= f.step_line) continue;
      StepSample sample;
      sample.step = s.step[i];
      if (s.has_loss[i] != 0) sample.loss = s.loss[i];
      sample.seconds = s.seconds[i];
      sample.rank = s.rank[i];
      out.steps.push_back(sample);
    }
    const LogRows& r = f.table.rows;
    const std::uint32_t save = save_rule();
    for (std::size_t i = 0; i < r.size(); ++i) {
      if (std::find(r.patterns[i].begin(), r.patterns[i].end(), save) == r.patterns[i].end()) continue;
      last_save = std::max(last_save, r.line[i]);
      if (r.line[i] <= f.save_line) continue;
      const std::int64_t step = iteration_in(r.text[i]);
      if (step >= 0) out.saves.push_back(step);
    }
    f.step_line = std::max(f.step_line, last_step);
    f.save_line = std::max(f.save_line, last_save);
    saving = saving || last_save > last_step;
  }
};

AttemptLogs::AttemptLogs(SharedRules rules, std::vector<std::string> paths) : impl_(std::make_unique<Impl>()) {
  impl_->rules = std::move(rules);
  impl_->paths = std::move(paths);
  for (const std::string& path : impl_->paths) {
    auto file = std::make_unique<Impl::File>();
    file->path = path;
    file->table.files.resize(1);
    impl_->files.push_back(std::move(file));
  }
  for (const auto& file : impl_->files) file->thread = std::thread([this, f = file.get()] { impl_->read(*f); });
}

AttemptLogs::~AttemptLogs() { finish(); }

LogNews AttemptLogs::look() { return impl_->news(false); }

LogNews AttemptLogs::finish() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_all();
  bool any = false;
  for (const auto& file : impl_->files) {
    if (!file->thread.joinable()) continue;
    any = true;
    file->thread.join();
  }
  return any ? impl_->news(true) : LogNews{};
}

}  // namespace orrery
