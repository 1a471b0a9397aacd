// Which schema a file of jobs has, and the walk over its rows.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/byte_source.h"
#include "base/closest.h"
#include "base/json_text.h"
#include "base/text_match.h"
#include "importers/jobs_csv.h"
#include "importers/jobs_rows.h"

namespace orrery {
namespace {

constexpr std::array<JobSchema, 7> kSchemas = {{{"acme", acme_form},
                                                {"helios", helios_form},
                                                {"philly", philly_form},
                                                {"openb", openb_form},
                                                {"pai", pai_form},
                                                {"sacct", sacct_form},
                                                {"plain", plain_form}}};

JobHeader header_of(const std::vector<std::string_view>& fields) {
  JobHeader h;
  for (std::string_view f : fields) {
    if (h.names.empty() && f.starts_with("\xef\xbb\xbf")) f.remove_prefix(3);
    f = without_blanks(f);
    if (f.size() >= 2 && f.front() == '"' && f.back() == '"') f = f.substr(1, f.size() - 2);
    h.names.push_back(lower(f.substr(0, f.find('%'))));  // sacct's widths: "JobID%20"
  }
  return h;
}

std::string_view first_line(std::string_view bytes) {
  while (!bytes.empty() && (bytes.front() == '\n' || bytes.front() == '\r')) bytes.remove_prefix(1);
  return bytes.substr(0, bytes.find('\n'));
}

const JobSchema* schema_of(const JobHeader& header, std::string_view wanted) {
  for (const JobSchema& s : kSchemas) {
    if (wanted != "auto" && wanted != s.name) continue;
    if (s.form(header)) return &s;
  }
  return nullptr;
}

JobHeader header_in(std::string_view line) {
  std::vector<std::string_view> fields;
  const char separator = separator_of(line);
  for (std::size_t i = 0; i <= line.size();) {
    const std::size_t end = std::min(line.find(separator, i), line.size());
    fields.push_back(line.substr(i, end - i));
    i = end + 1;
  }
  return header_of(fields);
}

// What a file of job records that cannot be used looks like: a header that tells times of jobs and not their GPUs, or
// rows with a state and a time and no header. "" = it is something else.
std::string_view why_unusable_jobs(std::string_view line) {
  const JobHeader h = header_in(line);
  const bool names_jobs = h.find({"jobid", "jobidraw", "job_id"}) >= 0;
  const bool tells_length = h.find({"duration", "end_time", "elapsed", "elapsedraw", "end", "duration_s"}) >= 0;
  if (names_jobs && tells_length) return "job records without a number of GPUs";
  bool state = false, time = false;
  TimeReader times;
  for (const std::string& cell : h.names) {
    std::int64_t ms = 0;
    state |= outcome_of(cell.substr(0, cell.find(" by "))) != Outcome::other;
    time |= cell.size() >= 16 && cell[4] == '-' &&
            (times.read(cell, ms) == TimeReader::State::ok ||
             (cell[10] == 't' && times.read(cell.substr(0, 10) + ' ' + cell.substr(11), ms) == TimeReader::State::ok));
  }
  return h.names.size() >= 4 && state && time ? "rows of jobs without a header" : std::string_view();
}

tl::unexpected<Error> not_jobs(const std::string& label, std::string_view line, std::string_view wanted) {
  const JobHeader h = header_in(line);
  const bool tells_length = h.find({"duration", "end_time", "elapsed", "elapsedraw", "end", "duration_s"}) >= 0;
  if (wanted != "auto")
    return fail(fmt::format("not a file of schema {}: {}", wanted, quote_for_people(line, 80)), label,
                "--schema auto tells schemas by their columns");
  if (const std::string_view why = why_unusable_jobs(line); !tells_length && !why.empty())
    return fail(fmt::format("{}: {}", why, quote_for_people(line, 80)), label,
                "docs/formats/jobs.md names the columns");
  if (tells_length)
    return fail("job records without a number of GPUs: " + quote_for_people(line, 80), label,
                "a column gpu_num, num_gpus or gpus; sacct needs AllocTRES");
  return fail("not job records: " + quote_for_people(line, 80), label, "docs/formats/jobs.md names the columns");
}

}  // namespace

const std::vector<std::string_view>& job_schemas() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all{"auto"};
    for (const JobSchema& s : kSchemas) all.push_back(s.name);
    return all;
  }();
  return names;
}

bool looks_like_jobs(std::string_view bytes) {
  return looks_like_json_jobs(bytes) || schema_of(header_in(first_line(bytes)), "auto") != nullptr;
}

std::string unusable_jobs(std::string_view bytes) {
  const std::string_view why = why_unusable_jobs(first_line(bytes));
  return why.empty() ? std::string() : fmt::format("{}: {}", why, quote_for_people(first_line(bytes), 80));
}

Result<JobTable> import_jobs(ByteSource& source, const std::string& label, const JobImportOptions& options) {
  // The header decides; the reader sees it again.
  std::string first(64 << 10, '\0');
  std::size_t have = 0;
  while (have < first.size()) {
    auto got = source.read(first.data() + have, first.size() - have);
    if (!got) return tl::unexpected(got.error());
    if (*got == 0) break;
    have += *got;
  }
  first.resize(have);

  class Rejoined final : public ByteSource {
   public:
    Rejoined(std::string_view begin, ByteSource& rest) : begin_(begin), rest_(rest) {}
    Result<std::size_t> read(char* to, std::size_t n) override {
      if (begin_.empty()) return rest_.read(to, n);
      n = std::min(n, begin_.size());
      begin_.copy(to, n);
      begin_.remove_prefix(n);
      return n;
    }
    std::uint64_t taken() const override { return rest_.taken(); }
    std::uint64_t total() const override { return rest_.total(); }
    SourceTrouble trouble() const override { return rest_.trouble(); }

   private:
    std::string_view begin_;
    ByteSource& rest_;
  } whole(first, source);

  if (looks_like_json_jobs(first)) return import_json_jobs(whole, label, options);
  if (first.find_first_not_of(" \t\r\n") == std::string::npos) return fail("an empty file", label);
  const std::string_view line = first_line(first);
  const JobSchema* schema = schema_of(header_in(line), options.schema);
  if (schema == nullptr) return not_jobs(label, line, options.schema);

  CsvReader reader(whole, separator_of(line));
  std::vector<std::string_view> fields;
  auto row = reader.next(fields);
  if (!row) return tl::unexpected(row.error());
  const JobHeader header = header_of(fields);
  auto form = schema->form(header);
  if (!form) return not_jobs(label, line, options.schema);
  if (!options.type_column.empty()) {
    const std::string wanted = lower(options.type_column);
    const int c = header.find({wanted});
    if (c < 0) {
      std::vector<std::string_view> known(header.names.begin(), header.names.end());
      const std::string_view near = closest(wanted, known);
      return fail("no column " + options.type_column, label,
                  near.empty() ? "--type-column takes one of the header" : fmt::format("did you mean {}?", near));
    }
    (*form)[JobField::type] = c;
  }

  JobTable table;
  table.schema = schema->name;
  table.file = label;
  JobRows rows(table, label, *form, options);
  JobScratch scratch;
  JobRecord record;
  const std::size_t width = fields.size();
  std::array<std::pair<std::uint8_t, std::uint16_t>, kJobFields> used{};
  std::size_t uses = 0;
  for (std::size_t f = 0; f < kJobFields; ++f)
    if (form->column[f] >= 0)
      used[uses++] = {static_cast<std::uint8_t>(f), static_cast<std::uint16_t>(form->column[f])};
  bool again = form->headerless;
  std::uint64_t count = 0;
  for (;; again = false) {
    if (!again) {
      row = reader.next(fields);
      if (!row) return tl::unexpected(row.error());
    }
    if (*row == CsvReader::Row::end) break;
    if ((++count & 0xffff) == 0 && options.progress) options.progress(source.taken(), source.total());
    if (*row == CsvReader::Row::bad) {
      rows.bad(reader.line(), "a quote that does not end, or a line too long", reader.text());
      continue;
    }
    // One more empty field: the separator at the end of sacct --parsable.
    if (fields.size() == width + 1 && fields.back().empty()) fields.pop_back();
    if (fields.size() != width) {
      rows.bad(reader.line(), fmt::format("{} fields of {}", fields.size(), width), reader.text());
      continue;
    }
    if (form->adjust) record = {};  // it may have filled what has no column
    for (std::size_t u = 0; u < uses; ++u) {
      std::string_view text = fields[used[u].second];
      if (!text.empty() && (text.front() <= ' ' || text.back() <= ' ')) text = without_blanks(text);
      record.text[used[u].first] = text;
    }
    if (form->adjust && form->adjust(fields, *form, record, scratch) == RecordUse::skip) continue;
    rows.add(record, reader.line());
  }
  rows.finish();
  table.notes.add("job-step", Severity::info, scratch.skipped, label + ": " + scratch.first_skipped,
                  "steps are part of the job above them");
  table.notes.add(
      "array-as-one-job", Severity::warning, scratch.array_tasks, label + ": " + scratch.first_array,
      "tasks of arrays that wait, in one record: each such record is one job; sacct --array lists them all");
  table.notes.add("resource-unknown", Severity::warning, scratch.other_resources, label + ": " + scratch.first_other,
                  "not counted as GPUs");
  const SourceTrouble trouble = source.trouble();
  if (trouble.kind != SourceTrouble::Kind::none)
    table.notes.add("truncated", Severity::data_loss, 1,
                    fmt::format("{}: {} at byte {}", label, trouble.what, trouble.at),
                    "the rows before it are answered for");
  if (table.size() == 0 && table.notes.lost_data()) return fail("no usable job: " + table.notes.rows[0].first, label);
  if (table.size() == 0) table.notes.add("no-jobs", Severity::info, 1, label, "a header and no jobs");
  return table;
}

Result<JobTable> import_jobs_bytes(std::string_view bytes, const std::string& label, const JobImportOptions& options) {
  auto source = decompressed(open_memory(bytes), label);
  if (!source) return tl::unexpected(source.error());
  return import_jobs(**source, label, options);
}

}  // namespace orrery
