// Evidence -> verdict.
#include "rules/diagnose.h"

#include <algorithm>

#include "rules/where.h"

namespace orrery {
namespace {

constexpr std::size_t kMostEvidence = 12;

// Of a collective time-out in which one rank stands out: its GPU stopped.
void read_timeout_root(const std::vector<Evidence>& evidence, Evidence& root) {
  if (root.kind != "timeout") return;
  const TimeoutReading reading = read_timeouts(evidence);
  if (reading.behind < 0 || !reading.given_all) return;
  const Evidence& e = evidence[reading.evidence];
  root.line = e.line;
  root.file = e.file;
  root.row = e.row;
  root.text = e.text;
  root.rank = reading.behind;
  root.node = e.node;
  root.why = "one-rank-behind";
  root.kind = "gpu";
  root.reason = "CUDA Error";
  root.category = "Infrastructure";
  root.restart = "auto-exclude";
  root.where = "rank";
  root.confidence = 0.75;
  root.advice = "One rank had been given the same work and did not finish it: its GPU stopped; restart without it.";
}

// A line that says that the job ended well outweighs what stood before it: other processes' trouble, warnings of a
// limit, errors after which steps went on; and the teardown after it. Not what another rank of the file says.
bool ended_well(std::vector<Evidence>& all, const LogTable& table) {
  std::vector<const Evidence*> last(table.files.size(), nullptr);  // of each file
  for (const Evidence& e : all)
    if (e.role == Role::success) last[e.file] = &e;
  for (Evidence& e : all) {
    const Evidence* end = last[e.file];
    if (end == nullptr || e.role == Role::success) continue;
    if (end->rank >= 0 && e.rank >= 0 && end->rank != e.rank) continue;
    if (e.row == kNoRow) {
      e.survived = e.survived || e.kind == "hang";
    } else if (e.line > end->line) {
      e.survived = e.survived || (e.role == Role::symptom && (e.why == "sigterm" || e.why == "eof-peer"));
    } else {
      const std::uint64_t steps = table.rows.steps_before[end->row] - table.rows.steps_before[e.row];
      e.survived = e.survived || e.tier <= 1 || e.role == Role::symptom || steps > 0;
    }
  }
  return std::any_of(last.begin(), last.end(), [](const Evidence* e) { return e != nullptr; });
}

double sure(const std::vector<Evidence>& evidence, std::uint32_t root) {
  double c = evidence[root].confidence;
  // Other causes that training did not survive and that are as early make it less sure.
  for (std::uint32_t i = 0; i < evidence.size(); ++i) {
    const Evidence& e = evidence[i];
    if (i == root || e.survived || e.role != Role::cause || e.tier > 2 || e.reason == evidence[root].reason) continue;
    c *= 0.9;
    break;
  }
  if (evidence[root].survived) c *= 0.4;
  return c;
}

}  // namespace

Diagnosis diagnose(const LogTable& table, const Matcher& matcher, const KnownShapes& known) {
  std::vector<Evidence> all = find_evidence(table, matcher, known);
  for (Evidence& e : silent_evidence(table)) all.push_back(std::move(e));
  Diagnosis d;
  d.restart = "none";
  d.where = "-";
  const bool well = ended_well(all, table);
  const bool ended_badly = std::any_of(all.begin(), all.end(), [](const Evidence& e) {
    return !e.survived && e.role == Role::symptom && e.kind != "xid-echo";
  });
  const std::uint32_t root = root_cause(all);
  const bool counts = root != kNoRow && (!all[root].survived || ended_badly);
  if (!counts) {
    std::uint64_t lines = 0, steps = 0;
    for (const LogFile& f : table.files) {
      lines += f.lines;
      steps += f.steps;
    }
    const bool progress = std::any_of(all.begin(), all.end(), [](const Evidence& e) {  // a bar of preparation
      return e.role == Role::context && e.text.find("%|") != std::string::npos;
    });
    const bool health = well || progress || steps > 0;  // healthy is what shows signs of health, not what shows nothing
    d.verdict = ended_badly || !health ? Verdict::unknown : Verdict::healthy;
    d.ended = ended_badly || well;
    d.reason = d.category = d.verdict == Verdict::healthy ? "None" : "";
    if (d.verdict == Verdict::unknown) d.restart = "no";
    d.root_cause = d.verdict == Verdict::healthy ? "no failure"
                   : lines == 0                  ? "nothing to read"
                   : !ended_badly                ? "no error, and no step or end of a training either"
                                                 : "the job was ended, and why is not in these logs";
    d.confidence = d.verdict == Verdict::healthy ? 0.8 : 0;
    d.who = "nobody";
  } else {
    d.ended = true;
    read_timeout_root(all, all[root]);
    const Evidence& r = all[root];
    d.verdict = r.role == Role::interruption ? Verdict::interrupted : Verdict::failed;
    d.reason = r.reason;
    d.category = r.category;
    d.restart = r.restart;
    d.root_cause = r.text;
    d.advice = r.advice;
    d.confidence = sure(all, root);
    d.who = d.category == "Infrastructure" ? "operator" : d.category == "None" ? "nobody" : "user";
    blame(all, root, d);
    d.evidence.push_back(r);
  }
  // First of each other rule: the symptoms; the earliest few are shown as evidence.
  std::vector<std::string> seen;
  if (counts) seen.push_back(all[root].why);
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    const Evidence& e = all[i];
    if (i == root || e.role == Role::context || e.role == Role::success || e.survived) continue;
    if (std::find(seen.begin(), seen.end(), e.why) != seen.end()) continue;
    seen.push_back(e.why);
    d.symptoms.push_back({e.reason.empty() ? e.why : e.reason, e.file, e.line});
    if (d.evidence.size() < kMostEvidence) d.evidence.push_back(e);
  }
  return d;
}

}  // namespace orrery
