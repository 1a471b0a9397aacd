// An estimated run as files.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>

#include "base/parallel.h"
#include "synthesis/estimated_job.h"
#include "writers/kineto_writer.h"
#include "writers/text_sink.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

// A directory beside the one that is asked for; gone again unless it took its place.
class Unfinished {
 public:
  explicit Unfinished(fs::path path) : path_(std::move(path)) {}
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  fs::path path_;
};

Status check_directory(const std::string& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) return {};
  if (error) return fail("cannot be looked at: " + error.message(), directory);
  if (!fs::is_directory(status)) return fail("is not a directory", directory, "name one that is not there yet");
  const bool empty = fs::is_empty(directory, error);
  if (error) return fail("cannot be read: " + error.message(), directory);
  if (!empty) return fail("is not empty", directory, "name a directory that is not there yet, or an empty one");
  return {};
}

}  // namespace

Result<std::vector<std::string>> write_traces(const EstimatedRun& run, const std::vector<std::int64_t>& ranks,
                                              const std::string& directory, unsigned threads, Progress& progress) {
  if (Status s = check_directory(directory); !s) return tl::unexpected(s.error());
  std::error_code error;
  fs::path target = fs::absolute(directory, error).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  if (fs::exists(target, error)) target = fs::canonical(target, error);
  const fs::path beside = target.parent_path() / fmt::format("{}.tmp{}", target.filename().string(), ::getpid());
  if (!fs::create_directory(beside, error) || error)
    return fail("cannot be made: " + error.message(), directory, "is the directory above it there and writable?");
  Unfinished unfinished(beside);

  std::mutex mutex;
  std::optional<Error> failed;
  std::atomic<std::uint64_t> written{0};
  std::vector<std::string> names(ranks.size());
  for_each_row(ranks.size(), worker_count(threads), [&](std::size_t row, unsigned) {
    {
      const std::lock_guard lock(mutex);
      if (failed) return;
    }
    const std::string file = fmt::format("rank-{}.json.gz", ranks[row]);
    const auto write = [&]() -> Status {
      auto sink = TextSink::create((beside / file).string());
      if (!sink) return tl::unexpected(sink.error());
      sink->text = to_kineto_json(trace_of_rank(run, ranks[row]));
      return sink->finish();
    };
    if (Status s = write(); !s) {
      const std::lock_guard lock(mutex);
      if (!failed) failed = s.error();
      return;
    }
    names[row] = (fs::path(directory) / file).string();
    progress.update(++written, ranks.size());
  });
  if (failed) {
    failed->where = directory;
    return tl::unexpected(*failed);
  }
  fs::rename(beside, target, error);
  if (error) return fail("cannot be written: " + error.message(), directory);
  unfinished.keep();
  return names;
}

}  // namespace orrery
