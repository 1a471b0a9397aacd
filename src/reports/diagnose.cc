#include "reports/diagnose.h"

#include <algorithm>

namespace orrery {
namespace {

constexpr std::size_t kShownLogs = 20;  // with their evidence, for people
constexpr std::size_t kShownEvidence = 6;
constexpr std::size_t kShownWidth = 80;
constexpr std::size_t kShownLines = 3;

std::int64_t count(std::uint64_t n) { return static_cast<std::int64_t>(n); }

// Long text on several lines of at most kShownWidth bytes, cut at blanks.
std::vector<std::string> lines_of(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < kShownLines) {
    std::size_t end = text.size();
    if (end > kShownWidth) {
      end = text.rfind(' ', kShownWidth);
      if (end == std::string::npos || end < kShownWidth / 2) end = kShownWidth;
      while (end > 1 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    }
    lines.push_back(text.substr(0, end));
    text.erase(0, std::min(text.size(), text.find_first_not_of(' ', end)));
  }
  if (!text.empty()) lines.back() += " ...";
  return lines;
}

std::string place(const LogVerdict& v, std::uint32_t file, std::uint64_t line) {
  const std::string& label = file < v.files.size() ? v.files[file] : v.label;
  return (v.files.size() > 1 ? label + ":" : "line ") + std::to_string(line);
}

Section logs_section(const std::vector<LogVerdict>& verdicts) {
  Section s{.key = "logs[]", .title = "Verdicts", .table = {}};
  s.table.columns = {{.key = "name", .json_only = true},
                     {"file"},
                     {"verdict"},
                     {"reason"},
                     {"category"},
                     {.key = "root_cause", .json_only = true},
                     {"restart"},
                     {"where"},
                     {.key = "node", .json_only = true},
                     {.key = "rank", .json_only = true},
                     {.key = "confidence", .digits = 2},
                     {.key = "root_line", .title = "line"},
                     {.key = "evidence", .json_only = true},
                     {.key = "symptoms", .json_only = true},
                     {.key = "advice", .json_only = true},
                     {.key = "who_acts", .json_only = true},
                     {.key = "found_by", .json_only = true},
                     {"lines"},
                     {.key = "kept_lines", .title = "kept"},
                     {.key = "compression", .json_only = true}};
  for (const LogVerdict& v : verdicts) {
    const Diagnosis& d = v.diagnosis;
    s.table.rows.push_back(
        {v.label,
         v.label,
         std::string(name_of(d.verdict)),
         d.reason.empty() ? Cell{} : Cell{d.reason},
         d.category.empty() ? Cell{} : Cell{d.category},
         d.root_cause,
         d.restart,
         d.where,
         d.node.empty() ? Cell{} : Cell{d.node},
         d.rank < 0 ? Cell{} : Cell{std::int64_t{d.rank}},
         d.confidence,
         d.evidence.empty() ? Cell{} : Cell{count(d.evidence[0].line)},
         std::vector<double>{},
         std::vector<double>{},
         d.advice,
         d.who,
         v.found_by,
         count(v.lines),
         count(v.kept_lines),
         v.kept_lines == 0 ? Cell{} : Cell{static_cast<double>(v.lines) / static_cast<double>(v.kept_lines)}});
  }
  return s;
}

Section evidence_section(const std::vector<LogVerdict>& verdicts) {
  Section s{.key = "logs[].evidence", .title = "", .table = {}};
  s.table.columns = {{"name"}, {"file"}, {"line"}, {"text"}, {"why"}};
  for (const LogVerdict& v : verdicts)
    for (const Evidence& e : v.diagnosis.evidence)
      s.table.rows.push_back(
          {v.label, e.file < v.files.size() ? v.files[e.file] : v.label, count(e.line), e.text, e.why});
  return s;
}

Section symptoms_section(const std::vector<LogVerdict>& verdicts) {
  Section s{.key = "logs[].symptoms", .title = "", .table = {}};
  s.table.columns = {{"name"}, {"reason"}, {"line"}, {"file"}};
  for (const LogVerdict& v : verdicts)
    for (const Symptom& e : v.diagnosis.symptoms)
      s.table.rows.push_back({v.label, e.reason, count(e.line), e.file < v.files.size() ? v.files[e.file] : v.label});
  return s;
}

// What a person reads of one log: the cause, what to do, what follows from it.
Section story(const LogVerdict& v) {
  Section s{.key = "", .title = v.label, .table = {}};
  s.table.columns = {{.key = "what", .title = " ", .text_only = true},
                     {.key = "text", .title = " ", .text_only = true}};
  const Diagnosis& d = v.diagnosis;
  const auto add = [&](const std::string& what, const std::string& text) {
    std::string label = what;
    for (const std::string& line : lines_of(text)) {
      s.table.rows.push_back({label, line});
      label.clear();
    }
  };
  add("verdict", std::string(name_of(d.verdict)) + (d.reason.empty() || d.reason == "None" ? "" : ": " + d.reason));
  if (!d.evidence.empty()) add("cause", place(v, d.evidence[0].file, d.evidence[0].line) + ": " + d.root_cause);
  if (d.evidence.empty()) add("cause", d.root_cause);
  if (d.where != "-") add("where", d.where);
  add("restart", d.restart + (d.who.empty() || d.who == "nobody" ? "" : " (" + d.who + " acts)"));
  add("advice", d.advice);
  for (std::size_t i = 1; i < d.evidence.size() && i < kShownEvidence; ++i)
    add(i == 1 ? "follows" : "", place(v, d.evidence[i].file, d.evidence[i].line) + ": " + d.evidence[i].text);
  return s;
}

}  // namespace

std::string_view name_of(Verdict v) {
  switch (v) {
    case Verdict::healthy:
      return "healthy";
    case Verdict::failed:
      return "failed";
    case Verdict::interrupted:
      return "interrupted";
    case Verdict::unknown:
      return "unknown";
  }
  return "unknown";
}

Document diagnose_document(const std::vector<LogVerdict>& verdicts, Notes notes) {
  Document d;
  d.command = "diagnose";
  d.notes = std::move(notes);
  d.sections.push_back(logs_section(verdicts));
  d.sections.push_back(evidence_section(verdicts));
  d.sections.push_back(symptoms_section(verdicts));
  if (verdicts.size() <= kShownLogs)
    for (const LogVerdict& v : verdicts) d.sections.push_back(story(v));
  return d;
}

}  // namespace orrery
