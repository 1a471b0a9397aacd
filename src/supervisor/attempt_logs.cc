#include "supervisor/attempt_logs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include "importers/log_text.h"
#include "rules/diagnose.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPause = std::chrono::milliseconds(50);
constexpr auto kDiagnosis = std::chrono::seconds(1);  // no more often while it runs
constexpr std::size_t kMostSteps = 4096;
constexpr std::size_t kFewSeen = 1024;  // marks (File::seen) below which none is forgotten

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

// A log that may be cut short (copytruncate), replaced (logrotate), or out of reach for a while (a file server that was
// restarted): it has no end and no errors, only nothing to read now.
class LiveFile final : public ByteSource {
 public:
  // `told`: why it cannot be read, where that changes; "" = it can be.
  LiveFile(std::string path, std::function<void(const std::string&)> told)
      : path_(std::move(path)), told_(std::move(told)) {}
  ~LiveFile() override { close(); }
  LiveFile(const LiveFile&) = delete;
  LiveFile& operator=(const LiveFile&) = delete;

  Result<std::size_t> read(char* to, std::size_t n) override {
    if (fd_ < 0 && !open()) return 0;
    ssize_t got = read_once(to, n);
    if (got == 0 && began_anew()) got = read_once(to, n);
    if (got < 0) return lost(errno);
    tell("");
    at_ += got;
    taken_ += static_cast<std::uint64_t>(got);
    return static_cast<std::size_t>(got);
  }
  std::uint64_t taken() const override { return taken_; }
  std::uint64_t total() const override { return 0; }

 private:
  ssize_t read_once(char* to, std::size_t n) const {
    ssize_t got = 0;
    do {
      got = ::read(fd_, to, n);
    } while (got < 0 && errno == EINTR);
    return got;
  }

  bool open() {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat s {};
    if (fd_ < 0 || ::fstat(fd_, &s) != 0) {
      // One that never was there is waited for.
      if (errno != ENOENT || known_) lost(errno);
      return false;
    }
    // After an error it goes on where it was, in the same file.
    const bool same = known_ && s.st_dev == device_ && s.st_ino == inode_ && s.st_size >= at_;
    if (!same || ::lseek(fd_, at_, SEEK_SET) != at_) at_ = 0;
    known_ = true;
    device_ = s.st_dev;
    inode_ = s.st_ino;
    return true;
  }

  // At what was its end: it is shorter now (twice in a row: sizes that a file server tells may be late), or another
  // file by its name is written. An empty one is not: who has the old one open goes on there.
  bool began_anew() {
    struct stat here {};
    struct stat there {};
    if (::fstat(fd_, &here) != 0 || !S_ISREG(here.st_mode)) return false;
    const bool shorter = here.st_size < at_;
    if (shorter && std::exchange(shorter_, true)) {
      shorter_ = false;
      at_ = 0;
      return ::lseek(fd_, 0, SEEK_SET) == 0;
    }
    shorter_ = shorter;
    if (::stat(path_.c_str(), &there) != 0 || !S_ISREG(there.st_mode) || there.st_size == 0 ||
        (there.st_dev == device_ && there.st_ino == inode_))
      return false;
    close();
    return open();
  }

  std::size_t lost(int error) {
    close();
    tell(std::strerror(error));
    return 0;
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void tell(const std::string& trouble) {
    if (trouble == trouble_) return;
    trouble_ = trouble;
    told_(trouble);
  }

  std::string path_, trouble_;
  std::function<void(const std::string&)> told_;
  int fd_ = -1;
  bool known_ = false, shorter_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  off_t at_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace

struct AttemptLogs::Impl {
  struct File {
    std::string path;
    std::thread thread;
    LogTable table;           // guarded by mutex
    bool changed = false;     // guarded by mutex
    std::string unreadable;   // guarded by mutex
    std::uint64_t bytes = 0;  // published; of the thread alone
    std::uint64_t save_line = 0;
    std::uint64_t steps_told = 0;                               // so many rows of steps
    std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;  // lines up to here came before so many steps of the job
    std::size_t most_seen = kFewSeen;

    void note_lines(std::uint64_t steps) {
      const std::uint64_t line = table.rows.size() > 0 ? table.rows.line.back() : 0;
      if (line <= (seen.empty() ? 0 : seen.back().first)) return;
      seen.emplace_back(line, steps);
      if (seen.size() >= most_seen) forget_seen();
    }
    // Marks that no row needs: of many rows of a pattern only the first and the last are kept.
    void forget_seen() {
      std::vector<std::pair<std::uint64_t, std::uint64_t>> needed;
      for (const std::uint64_t line : table.rows.line) {
        const auto at = mark_of(line);
        if (at != seen.end() && (needed.empty() || needed.back().first < at->first)) needed.push_back(*at);
      }
      seen = std::move(needed);
      most_seen = std::max(kFewSeen, 2 * seen.size());
    }
    std::vector<std::pair<std::uint64_t, std::uint64_t>>::const_iterator mark_of(std::uint64_t line) const {
      return std::lower_bound(seen.begin(), seen.end(), line,
                              [](const auto& mark, std::uint64_t l) { return mark.first < l; });
    }
    // As one of a job that has done so many steps, which another file of it may have told.
    LogTable among(std::uint64_t steps) const {
      LogTable t = table;
      if (t.files[0].steps >= steps) return t;
      t.files[0].steps = steps;
      for (std::size_t i = 0; i < t.rows.size(); ++i) {
        const auto at = mark_of(t.rows.line[i]);
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
  bool saving = false;
  std::uint64_t diagnosed = 0, diagnosed_steps = 0;  // rows, steps then
  Clock::time_point diagnosed_at{};

  std::uint32_t save_rule() const {
    const std::vector<Rule>& all = rules.get()->rules();
    for (std::uint32_t i = 0; i < all.size(); ++i)
      if (all[i].id == kSavingRule) return i;
    return kNoRow;
  }

  void read(File& file) {
    while (!stop && ::access(file.path.c_str(), F_OK) != 0 && errno == ENOENT) pause();
    auto source = std::make_unique<LiveFile>(file.path, [this, &file](const std::string& trouble) {
      const std::lock_guard lock(mutex);
      file.unreadable = trouble;
    });
    LogReadOptions how;
    how.shapes = false;
    how.most_steps = kMostSteps;
    how.states = true;
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
    auto table = read_log(std::move(source), file_name(file.path), *rules.get(), how, more);
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
    {
      const std::lock_guard lock(mutex);
      take_all_steps(out);
      for (const auto& f : files) {
        out.grew = out.grew || f->changed;
        f->changed = false;
        if (out.unreadable.empty() && !f->unreadable.empty())
          out.unreadable = file_name(f->path) + ": " + f->unreadable;
        rows += f->table.rows.size();
        if (f->table.rows.size() > 0) rows += f->table.rows.line.back();
        steps = std::max(steps, f->table.files[0].steps);
      }
      for (const auto& f : files) f->note_lines(steps);
      // Steps after an error say that it was survived.
      const bool news = rows != diagnosed || (last && last->verdict != "healthy" && steps != diagnosed_steps);
      const bool look = all || (news && Clock::now() - diagnosed_at >= kDiagnosis);
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

  // What came of it since the last look ended with a save (more than 0) or with a step (below 0).
  int take_steps(File& f, LogNews& out) {
    const StepRows& s = f.table.steps;
    std::uint64_t last_step = 0, last_save = 0;
    bool new_step = false;
    for (std::size_t i = 0; i < s.size(); ++i) {
      last_step = std::max(last_step, s.line[i]);
      if (s.nth[i] <= f.steps_told) continue;
      f.steps_told = s.nth[i];
      new_step = true;
      StepSample sample;
      sample.step = s.step[i];
      if (s.has_loss[i] != 0) sample.loss = s.loss[i];
      if (s.relative[i] == 0) sample.seconds = s.seconds[i];  // else its time is told by the clock
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
    const bool new_save = last_save > f.save_line;
    f.save_line = std::max(f.save_line, last_save);
    if (!new_step && !new_save) return 0;
    // A message ends the line of the bar that it interrupts.
    return last_save > last_step || (new_save && last_save == last_step) ? 1 : -1;
  }

  // Steps may be in one file and saves in the other: what came later counts. Of two files at one look that is not
  // known: it may be saving.
  void take_all_steps(LogNews& out) {
    int last_word = 0;
    for (const auto& f : files) {
      const int word = take_steps(*f, out);
      if (last_word <= 0 && word != 0) last_word = word;
    }
    if (last_word != 0) saving = last_word > 0;
    out.saving = saving;
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
