#include "importers/jobs_reasons.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <unordered_map>

#include "base/json_text.h"
#include "base/text_match.h"
#include "importers/jobs_csv.h"
#include "importers/jobs_rows.h"
#include "importers/jobs_time.h"

namespace orrery {
namespace {

namespace dom = simdjson::dom;

constexpr std::size_t kLargestAnswer = std::size_t{256} << 20;

Result<ReasonFile> read_answer(const std::string& text, const std::string& label) {
  ReasonFile out;
  out.by_file = true;
  dom::parser parser;
  dom::element document;
  dom::array logs;
  if (parser.parse(text).get(document)) return fail("not JSON", label, "orrery diagnose --json writes such a file");
  if (document["logs"].get_array().get(logs))
    return fail("no array of logs", label, "orrery diagnose --json writes one");
  for (const dom::element log : logs) {
    std::string_view file, reason, category;
    if (log["file"].get_string().get(file) || log["reason"].get_string().get(reason)) {
      out.notes.add("reason-unusable", Severity::warning, 1, label, "a log without a file or a reason");
      continue;
    }
    if (reason == "None" || reason.empty()) continue;
    out.reason_of.emplace_back(file, reason);
    if (!log["category"].get_string().get(category) && !category.empty() && category != "None")
      out.categories.emplace(reason, category);
  }
  return out;
}

Result<ReasonFile> read_table(ByteSource& source, const std::string& label) {
  ReasonFile out;
  CsvReader reader(source, ',');
  std::vector<std::string_view> f;
  int id = -1, reason = -1, category = -1;
  std::uint64_t bad = 0, several = 0;
  std::string first_bad, first_several;
  std::unordered_map<std::string, std::size_t> place;  // of a job in reason_of
  for (bool header = true;; header = false) {
    auto row = reader.next(f);
    if (!row) return tl::unexpected(row.error());
    if (*row == CsvReader::Row::end) break;
    if (header) {
      for (std::size_t i = 0; i < f.size(); ++i) {
        const std::string name = lower(without_blanks(f[i]));
        if (name == "job_id" || name == "jobid" || name == "id") id = static_cast<int>(i);
        if (name == "reason" || name == "failure_reason") reason = static_cast<int>(i);
        if (name == "category") category = static_cast<int>(i);
      }
      if (id < 0 || reason < 0)
        return fail("no columns job_id and reason: " + quote_for_people(reader.text(), 60), label);
      continue;
    }
    const auto width = static_cast<std::size_t>(std::max({id, reason, category}) + 1);
    if (*row == CsvReader::Row::bad || f.size() < width) {
      if (bad++ == 0) first_bad = fmt::format("{}:{}", label, reader.line());
      continue;
    }
    const std::string_view why = without_blanks(f[static_cast<std::size_t>(reason)]);
    const std::string job(without_blanks(f[static_cast<std::size_t>(id)]));
    if (is_missing(why)) continue;
    if (const auto [it, fresh] = place.emplace(job, out.reason_of.size()); fresh) {
      out.reason_of.emplace_back(job, why);
    } else if (out.reason_of[it->second].second != why) {
      if (several++ == 0) first_several = fmt::format("{}:{}: job {}", label, reader.line(), quote_for_people(job, 60));
      out.reason_of[it->second].second = why;
    }
    if (category >= 0 && !is_missing(f[static_cast<std::size_t>(category)]))
      out.categories.emplace(why, without_blanks(f[static_cast<std::size_t>(category)]));
  }
  out.notes.add("several-reasons", Severity::warning, several, first_several,
                "another reason for the same job: the last one counts");
  out.notes.add("bad-reason", Severity::data_loss, bad, first_bad, "a line without a job or a reason");
  return out;
}

}  // namespace

Result<ReasonFile> import_reasons(ByteSource& source, const std::string& label) {
  std::string text(64 << 10, '\0');
  std::size_t have = 0;
  while (have < kLargestAnswer) {
    if (have == text.size()) text.resize(text.size() * 2);
    auto got = source.read(text.data() + have, text.size() - have);
    if (!got) return tl::unexpected(got.error());
    if (*got == 0) break;
    have += *got;
  }
  text.resize(have);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return fail("an empty file", label);
  if (text[first] == '{') return read_answer(text, label);
  const SourcePtr whole = open_memory(text);
  return read_table(*whole, label);
}

}  // namespace orrery
