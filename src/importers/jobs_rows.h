// What the readers of job records share: a record as text by what its columns mean, and how it becomes a row.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/jobs.h"
#include "importers/jobs.h"
#include "importers/jobs_time.h"

namespace orrery {

enum class JobField : std::uint8_t {
  id,
  user,
  group,
  type,
  state,
  submit,
  start,
  end,
  duration,
  queue,
  gpus,
  cpus,
  nodes,
  reason,
  limit
};
inline constexpr std::size_t kJobFields = 15;

struct JobRecord {
  std::array<std::string_view, kJobFields> text{};
  std::string_view& operator[](JobField f) { return text[static_cast<std::size_t>(f)]; }
  std::string_view operator[](JobField f) const { return text[static_cast<std::size_t>(f)]; }
};

enum class RecordUse : std::uint8_t { row, skip };

// What an adjustment may keep between records.
struct JobScratch {
  std::string gpus, cpus, limit;
  std::uint64_t skipped = 0;
  std::string first_skipped;
  std::uint64_t array_tasks = 0, other_resources = 0;  // tasks of arrays beyond the one that is counted
  std::string first_array, first_other;
};

struct JobForm {
  std::array<int, kJobFields> column{};  // of each field, -1 = none
  int gpu_scale = 3, cpu_scale = 3;      // 10^scale thousandths a unit: 3 = whole, 1 = percent, 0 = thousandths
  bool relative_times = false;           // seconds since the begin of the trace
  bool headerless = false;               // the first line is a record
  // Changes a record before it becomes a row. May be empty.
  RecordUse (*adjust)(const std::vector<std::string_view>& fields, const JobForm& form, JobRecord& record,
                      JobScratch& scratch) = nullptr;
  std::array<int, 6> own{};  // columns that only adjust() knows

  JobForm() {
    column.fill(-1);
    own.fill(-1);
  }
  int& operator[](JobField f) { return column[static_cast<std::size_t>(f)]; }
  int operator[](JobField f) const { return column[static_cast<std::size_t>(f)]; }
};

struct JobHeader {
  std::vector<std::string> names;  // lower case, without blanks around and byte order mark
  // The column of the first of these names that is there, else -1.
  int find(std::initializer_list<std::string_view> any) const;
  bool has_all(std::initializer_list<std::string_view> all) const;
};

struct JobSchema {
  std::string_view name;
  std::optional<JobForm> (*form)(const JobHeader& header);  // nothing: not this schema
};

// One a file, jobs_NAME.cc.
std::optional<JobForm> acme_form(const JobHeader&);
std::optional<JobForm> sacct_form(const JobHeader&);
std::optional<JobForm> philly_form(const JobHeader&);
std::optional<JobForm> helios_form(const JobHeader&);
std::optional<JobForm> pai_form(const JobHeader&);
std::optional<JobForm> openb_form(const JobHeader&);
std::optional<JobForm> plain_form(const JobHeader&);

// GPUs in Slurm's lists of resources: "billing=8,cpu=8,gres/gpu=8,gres/gpu:a100=8", "gpu:a100:4", "gres:gpu:2" or
// "PER_NODE:gpu:8" (times `nodes`, 0 = not known); -1 = a list that cannot be understood. `other` gets the first
// resource that is not known, and not counted as a GPU.
std::int64_t gpus_of_tres(std::string_view tres, std::int64_t nodes = 0, std::string_view* other = nullptr);

inline std::string_view without_blanks(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

class JobRows {
 public:
  JobRows(JobTable& table, std::string label, const JobForm& form, const JobImportOptions& options);

  // Appends a record as a row, or counts it as bad. `line` is its place.
  void add(const JobRecord& record, std::uint64_t line);
  void bad(std::uint64_t line, std::string_view why, std::string_view value = {});
  // Notes of what was met.
  void finish();

 private:
  bool time(JobField f, const JobRecord& record, std::uint64_t line, std::int64_t& ms);
  bool span(JobField f, const JobRecord& record, std::uint64_t line, std::int64_t& ms);
  bool count(JobField f, int scale, const JobRecord& record, std::uint64_t line, std::int32_t& milli);
  void absurd(std::string_view text, std::uint64_t line, std::int64_t& ms);
  void remember(std::uint64_t hash, std::uint64_t line);
  void look_up(std::uint64_t hash, std::uint64_t line);

  JobTable& t_;
  std::string label_;
  const JobForm& form_;
  TimeReader times_;
  bool zone_given_;
  std::uint64_t bad_ = 0, early_starts_ = 0, unknown_states_ = 0, gpus_missing_ = 0, absurd_times_ = 0, set_back_ = 0;
  std::string first_bad_, first_early_, first_unknown_, first_duplicate_, first_absurd_, first_set_back_;
  std::vector<std::uint64_t> hashes_;  // open addressing, of the rows so far
  std::size_t hashed_ = 0;
  // Rows are looked up some rows later, when the line of the cache that was asked for has come.
  std::array<std::pair<std::uint64_t, std::uint64_t>, 16> later_{};  // hash, line
  std::size_t later_count_ = 0;
  std::vector<bool> known_state_;  // by StrId: looked at
};

// Philly's job log and `sacct --json`: arrays of objects. `first` are the bytes already looked at.
bool looks_like_json_jobs(std::string_view first_bytes);
Result<JobTable> import_json_jobs(ByteSource& source, const std::string& label, const JobImportOptions& options);

}  // namespace orrery
