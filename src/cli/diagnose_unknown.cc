#include "cli/diagnose_unknown.h"

#include <sys/stat.h>

#include "base/byte_source.h"
#include "base/output.h"

namespace orrery {
namespace {

constexpr std::size_t kAskedLines = 200;
constexpr double kSimilarEnough = 0.35;  // below, a past case is no answer

Result<std::string> read_text(const std::string& path) {
  struct stat known {};
  if (::stat(path.c_str(), &known) != 0) return std::string();
  return read_at_most(path, SIZE_MAX);
}

Status keep_rule(const Rule& rule, const std::string& path, Notes& notes) {
  auto text = read_text(path);
  if (!text) return tl::unexpected(text.error());
  if (text->empty())
    *text = "# Rules that were learnt; docs/formats/rules.md describes them.\n[family]\nname = 'learnt'\n";
  const auto known = parse_rules(*text, path);
  if (!known) return tl::unexpected(known.error());
  for (const Rule& r : *known)
    if (r.pattern == rule.pattern) return {};
  if (Status ok = write_file(path, *text + rule_text(rule)); !ok) return ok;
  notes.add("rule-learnt", Severity::info, 1, rule.id + ": " + rule.pattern, "written to " + path);
  return {};
}

void take(LogVerdict& v, const std::string& reason, const std::string& category, const std::string& restart,
          const std::string& cause, const std::string& advice, double confidence, const std::string& by) {
  Diagnosis& d = v.diagnosis;
  d.verdict = category == "None" ? Verdict::interrupted : Verdict::failed;
  d.reason = reason;
  d.category = category;
  d.restart = restart;
  d.root_cause = cause;
  d.advice = advice;
  d.confidence = confidence;
  d.who = category == "Infrastructure" ? "operator" : category == "None" ? "nobody" : "user";
  v.found_by = by;
}

// The line of the log that the answer means: its text, as far as it is there.
void point_at(LogVerdict& v, const std::vector<KeptLine>& lines, const std::string& cause, const std::string& why) {
  for (const KeptLine& l : lines) {
    if (cause.empty() || (l.text.find(cause) == std::string::npos && cause.find(l.text) == std::string::npos)) continue;
    Evidence e;
    e.row = e.rule = kNoRow;
    e.file = l.file;
    e.line = l.line;
    e.text = l.text;
    e.why = why;
    v.diagnosis.evidence.insert(v.diagnosis.evidence.begin(), std::move(e));
    return;
  }
}

}  // namespace

Status answer_unknown(LogVerdict& verdict, const LogTable& table, const KnownShapes& known, UnknownOptions& options,
                      Notes& notes) {
  if (verdict.diagnosis.verdict != Verdict::unknown || verdict.lines == 0) return {};
  const std::vector<KeptLine> lines = kept_lines(table, known, kAskedLines);
  if (options.cases != nullptr) {
    const auto nearest = options.cases->nearest(lines);
    if (!nearest) return tl::unexpected(nearest.error());
    if (*nearest && (*nearest)->similarity >= kSimilarEnough) {
      const PastCase& c = **nearest;
      take(verdict, c.reason, c.category, c.restart, "as in " + c.label + ": " + c.root_cause, c.advice, c.similarity,
           "cases");
      return {};
    }
  }
  if (!options.agent) return {};
  const auto answers = ask_agent(*options.agent, lines, notes);
  if (!answers) {
    notes.add("agent-failed", Severity::warning, 1, answers.error().line(),
              "not asked again; what rules and past cases say stands");
    options.agent.reset();
    return {};
  }
  const auto chosen = vote(*answers, options.agent->samples);
  if (!chosen) {
    notes.add("agent-no-majority", Severity::warning, 1, verdict.label, "the samples do not agree: no answer is taken");
    return {};
  }
  const AgentAnswer& a = chosen->answer;
  take(verdict, a.reason, a.category, a.restart, a.root_cause, a.advice, 0.7 * chosen->agreement, "llm");
  point_at(verdict, lines, a.root_cause, "llm");
  const std::string origin =
      "proposed by " + (options.agent->model.empty() ? "a model" : options.agent->model) + " at " + options.agent->url;
  const auto rule = proven_rule(*answers, a, lines, options.healthy, origin, notes);
  if (rule && options.rule_file.empty())
    notes.add("rule-not-kept", Severity::info, 1, rule->pattern, "--rules FILE names where accepted rules go");
  if (rule && !options.rule_file.empty())
    if (Status ok = keep_rule(*rule, options.rule_file, notes); !ok) return ok;
  return {};
}

}  // namespace orrery
