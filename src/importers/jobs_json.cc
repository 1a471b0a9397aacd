// Job records that are JSON: `sacct --json` ({"jobs": [...]}) and Philly's original log ([...]). Each job is parsed by
// itself; the document is never held as a whole.
#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "base/byte_source.h"
#include "base/json_text.h"
#include "importers/jobs_rows.h"

namespace orrery {
namespace {

namespace dom = simdjson::dom;
using F = JobField;

constexpr std::size_t kWindow = 128 << 10;
constexpr std::size_t kLongestJob = 16 << 20;  // text of one job

// Elements of the array of jobs, one at a time.
class JsonElements {
 public:
  explicit JsonElements(ByteSource& source) : source_(source) {}

  // Goes to the array: a top-level one, or the member "jobs". False: there is none.
  Result<bool> open() {
    for (;;) {
      const std::size_t first = text_.find_first_not_of(" \t\r\n");
      if (first != std::string::npos) {
        if (text_[first] == '[') {
          at_ = first + 1;
          return true;
        }
        for (std::size_t key = text_.find("\"jobs\"", first); key != std::string::npos;
             key = text_.find("\"jobs\"", key + 1)) {
          std::size_t i = text_.find_first_not_of(" \t\r\n", key + 6);
          if (i == std::string::npos || text_[i] != ':') continue;
          i = text_.find_first_not_of(" \t\r\n", i + 1);
          if (i == std::string::npos || text_[i] != '[') continue;
          at_ = i + 1;
          return true;
        }
      }
      if (text_.size() > kLongestJob) return false;
      auto more = fill();
      if (!more) return more;
      if (!*more) return false;
    }
  }

  enum class Next : std::uint8_t { element, end, cut, bad };
  Result<Next> next(std::string_view& element) {
    for (;;) {
      std::size_t i = at_;
      while (i < text_.size() && (is_json_space(text_[i]) || text_[i] == ',')) ++i;
      if (i < text_.size() && text_[i] == ']') return Next::end;
      JsonScan scan;
      scan.state = JsonScan::State::cut;
      if (i < text_.size()) scan = scan_json_value(text_, i);
      if (scan.state == JsonScan::State::bad) {
        at_ = i;
        return Next::bad;
      }
      if (scan.state == JsonScan::State::whole && scan.at < text_.size()) {
        element = std::string_view(text_).substr(i, scan.at - i);
        at_ = scan.at;
        return Next::element;
      }
      if (text_.size() - i > kLongestJob) return Next::bad;
      auto more = fill();
      if (!more) return tl::unexpected(more.error());
      if (!*more) return Next::cut;
    }
  }
  std::uint64_t place() const { return dropped_ + at_; }

 private:
  Result<bool> fill() {
    if (at_ > kWindow) {
      text_.erase(0, at_);
      dropped_ += at_;
      at_ = 0;
    }
    const std::size_t size = text_.size();
    // As much again as is there: a long element is not scanned too often.
    text_.resize(size + std::max(kWindow, size - at_));
    auto got = source_.read(text_.data() + size, text_.size() - size);
    if (!got) return tl::unexpected(got.error());
    text_.resize(size + *got);
    return *got != 0;
  }
  ByteSource& source_;
  std::string text_;
  std::size_t at_ = 0;
  std::uint64_t dropped_ = 0;
};

std::string text_of(dom::element e) {
  std::string_view s;
  if (!e.get_string().get(s)) return std::string(s);
  std::int64_t i = 0;
  if (!e.get_int64().get(i)) return fmt::format("{}", i);
  double x = 0;
  if (!e.get_double().get(x)) return fmt::format("{}", x);
  // Slurm since 23.02: {"set": true, "infinite": false, "number": 5}; states are lists
  dom::object o;
  dom::element member;
  if (!e.get_object().get(o)) {
    bool set = true;
    if (!o["set"].get_bool().get(set) && !set) return {};
    if (!o["number"].get(member)) return text_of(member);
    if (!o["current"].get(member)) return text_of(member);
    return {};
  }
  dom::array a;
  if (!e.get_array().get(a))
    for (const dom::element first : a) return text_of(first);
  return {};
}

std::string member_text(dom::object job, std::string_view key) {
  dom::element e;
  return job[key].get(e) ? std::string() : text_of(e);
}

struct OwnedRecord {
  std::array<std::string, kJobFields> text;
  std::string& operator[](F f) { return text[static_cast<std::size_t>(f)]; }
  JobRecord view() const {
    JobRecord r;
    for (std::size_t i = 0; i < kJobFields; ++i) r.text[i] = text[i];
    return r;
  }
};

// "" = the list names no GPUs. What cannot be read comes as it stands and makes the row a bad one.
std::string gpus_in(dom::object tres, std::string_view which) {
  dom::array list;
  if (tres[which].get_array().get(list)) return {};
  std::int64_t plain = -1, typed = 0;
  for (const dom::element item : list) {
    dom::object o;
    std::string_view type, name;
    std::int64_t count = 0;
    if (item.get_object().get(o) || o["type"].get_string().get(type) || type != "gres") continue;
    if (o["name"].get_string().get(name)) return simdjson::minify(item);
    if (name != "gpu" && !name.starts_with("gpu:")) continue;
    if (o["count"].get_int64().get(count) || count < 0 || count > 1'000'000) return simdjson::minify(item);
    (name == "gpu" ? plain : typed) = std::max<std::int64_t>(name == "gpu" ? plain : typed, 0) + count;
  }
  return plain < 0 && typed == 0 ? std::string() : fmt::format("{}", plain >= 0 ? plain : typed);
}

// Seconds since 1970 of Slurm: 0 is none.
std::string instant(dom::object times, std::string_view key) {
  std::string s = member_text(times, key);
  return s == "0" ? std::string() : s;
}

// A job of `sacct --json`.
void read_slurm(dom::object job, OwnedRecord& r) {
  r[F::id] = member_text(job, "job_id");
  r[F::user] = member_text(job, "user");
  r[F::group] = member_text(job, "account");
  r[F::type] = member_text(job, "partition");
  r[F::state] = member_text(job, "state");
  dom::object time, tres, required;
  if (!job["time"].get_object().get(time)) {
    r[F::submit] = instant(time, "submission");
    r[F::start] = instant(time, "start");
    r[F::end] = instant(time, "end");
    r[F::duration] = member_text(time, "elapsed");
    if (r[F::start].empty() && r[F::duration] == "0") r[F::duration].clear();
    const std::string minutes = member_text(time, "limit");
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (!minutes.empty() && minutes.size() < 8 && std::all_of(minutes.begin(), minutes.end(), is_digit))
      r[F::limit] = fmt::format("{}", std::stol(minutes) * 60);
  }
  if (!job["tres"].get_object().get(tres)) {
    r[F::gpus] = gpus_in(tres, "allocated");
    if (r[F::gpus].empty()) r[F::gpus] = gpus_in(tres, "requested");
    if (r[F::gpus].empty()) r[F::gpus] = "0";
  }
  if (!job["required"].get_object().get(required)) r[F::cpus] = member_text(required, "CPUs");
  r[F::nodes] = member_text(job, "allocation_nodes");
}

// A job of Philly's cluster_job_log: work is the sum of its attempts, GPUs are those of the largest.
bool read_philly(dom::object job, OwnedRecord& r, std::uint64_t& attempts_more, std::string_view& wrong) {
  r[F::id] = member_text(job, "jobid");
  r[F::user] = member_text(job, "user");
  r[F::group] = member_text(job, "vc");
  r[F::state] = member_text(job, "status");
  r[F::submit] = member_text(job, "submitted_time");
  dom::array attempts;
  if (job["attempts"].get_array().get(attempts)) return true;
  TimeReader times;
  std::int64_t gpus = 0, nodes = 0, work = 0, count = 0;
  bool whole = true;
  for (const dom::element one : attempts) {
    dom::object attempt;
    if (one.get_object().get(attempt)) continue;
    if (++count > 1) ++attempts_more;
    const std::string start = member_text(attempt, "start_time"), end = member_text(attempt, "end_time");
    std::int64_t from = 0, to = 0;
    const auto has_start = times.read(start, from), has_end = times.read(end, to);
    if (has_start == TimeReader::State::bad || has_end == TimeReader::State::bad) {
      wrong = "not a time in an attempt";
      return false;
    }
    if (r[F::start].empty() && has_start == TimeReader::State::ok) r[F::start] = start;
    if (has_start == TimeReader::State::ok && has_end == TimeReader::State::ok) {
      if (to < from) {
        wrong = "an attempt ends before it starts";
        return false;
      }
      work += to - from;
      r[F::end] = end;
    } else {
      whole = false;
    }
    dom::array detail;
    if (attempt["detail"].get_array().get(detail)) continue;
    std::int64_t its_gpus = 0, its_nodes = 0;
    for (const dom::element node : detail) {
      dom::object o;
      dom::array list;
      if (node.get_object().get(o)) continue;
      ++its_nodes;
      if (!o["gpus"].get_array().get(list)) its_gpus += static_cast<std::int64_t>(list.size());
    }
    gpus = std::max(gpus, its_gpus);
    nodes = std::max(nodes, its_nodes);
  }
  if (!whole) r[F::end].clear();  // the last attempt still runs, or its end was lost
  if (count > 0 && (whole || work > 0)) r[F::duration] = fmt::format("{}.{:03}", work / 1000, work % 1000);
  r[F::gpus] = fmt::format("{}", gpus);
  r[F::nodes] = fmt::format("{}", nodes);
  return true;
}

}  // namespace

bool looks_like_json_jobs(std::string_view b) {
  const std::size_t first = b.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  b = b.substr(first, 32 << 10);
  const auto names = [&](std::string_view key) { return b.find(key) != std::string_view::npos; };
  if (b[0] == '[') return names("\"jobid\"") && names("\"attempts\"");
  if (b[0] != '{') return false;
  if ((names("\"jobs\"") && names("\"job_id\"")) || (names("\"meta\"") && (names("slurm") || names("Slurm"))))
    return true;
  // An answer without any job.
  std::string bare;
  std::copy_if(b.begin(), b.begin() + std::min<std::ptrdiff_t>(std::ssize(b), 64), std::back_inserter(bare),
               [](char c) { return !is_json_space(c); });
  return bare.starts_with("{\"jobs\":[]");
}

Result<JobTable> import_json_jobs(ByteSource& source, const std::string& label, const JobImportOptions& options) {
  if (!options.type_column.empty())
    return fail("--type-column is for tables with a header", label, "records in JSON have their own fields");
  JsonElements elements(source);
  auto open = elements.open();
  if (!open) return tl::unexpected(open.error());
  if (!*open) return fail("no array of jobs", label, "sacct --json has one: \"jobs\"");
  JobTable table;
  table.file = label;
  JobForm form;
  for (const F f : {F::gpus}) form[f] = 0;  // there, if only by name
  std::unique_ptr<JobRows> rows;
  dom::parser parser;
  std::uint64_t index = 0, attempts_more = 0;
  bool philly = false, cut = false, broken = false;
  std::string first_attempts;
  for (std::string_view text;;) {
    auto next = elements.next(text);
    if (!next) return tl::unexpected(next.error());
    if (*next == JsonElements::Next::end) break;
    cut = *next == JsonElements::Next::cut;
    broken = *next == JsonElements::Next::bad;
    if (cut || broken) break;
    ++index;
    if ((index & 0xfff) == 0 && options.progress) options.progress(source.taken(), source.total());
    dom::element e;
    dom::object job;
    const bool parsed = !parser.parse(text.data(), text.size()).get(e) && !e.get_object().get(job);
    if (!rows) {
      dom::element unused;
      philly = parsed && !job["jobid"].get(unused);
      const std::string_view schema = philly ? "philly" : "sacct";
      if (options.schema != "auto" && options.schema != schema)
        return fail(fmt::format("records of schema {}, not {}", schema, options.schema), label);
      table.schema = schema;
      form[F::type] = philly ? -1 : 0;
      rows = std::make_unique<JobRows>(table, label, form, options);
    }
    if (!parsed) {
      rows->bad(index, "not a JSON object", text);
      continue;
    }
    OwnedRecord record;
    std::string_view wrong;
    const std::uint64_t before = attempts_more;
    if (philly && !read_philly(job, record, attempts_more, wrong)) {
      rows->bad(index, wrong, record[F::id]);
      continue;
    }
    if (attempts_more != before && first_attempts.empty()) first_attempts = label + ": " + record[F::id];
    if (!philly) read_slurm(job, record);
    rows->add(record.view(), index);
  }
  if (rows) rows->finish();
  table.notes.add("further-attempts", Severity::info, attempts_more, first_attempts,
                  "a job's duration is the sum of its attempts, its GPUs are those of the largest");
  if (cut || broken)
    table.notes.add(cut ? "truncated" : "broken-json", Severity::data_loss, 1,
                    fmt::format("{}: byte {}", label, elements.place()), "the jobs before it are answered for");
  if (table.size() == 0 && table.notes.lost_data()) return fail("no usable job: " + table.notes.rows[0].first, label);
  if (table.size() == 0) table.notes.add("no-jobs", Severity::info, 1, label, "an answer without jobs");
  return table;
}

}  // namespace orrery
