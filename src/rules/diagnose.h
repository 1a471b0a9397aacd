// Rows of logs -> the root cause: evidence (which rule a line bears), the causal order over all of it, the verdict.
// docs/model.md says how a cause is chosen.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/logs.h"
#include "rules/compress.h"
#include "rules/matcher.h"

namespace orrery {

// One row of a log and the rule that speaks for it.
struct Evidence {
  std::uint32_t row = 0;  // of LogRows; kNoRow where it is drawn from steps
  std::uint32_t file = 0;
  std::uint64_t line = 0;
  std::uint32_t rule = 0;  // of Matcher::rules(); kNoRow where it is drawn from steps
  std::int32_t rank = -1;
  std::string node, peer;
  LogTime time;
  std::string text;
  bool survived = false;  // the training went on afterwards

  // What the rule says, with what the line adds (category by frame).
  Role role = Role::cause;
  std::string reason, category, restart, kind, why, advice, where;
  int tier = 2;
  double confidence = 0.9;
  std::vector<std::string> masks;
};

inline constexpr std::uint32_t kNoRow = 0xffffffffu;

enum class Verdict : std::uint8_t { healthy, failed, interrupted, unknown };

struct Symptom {
  std::string reason;  // what a reader of this line alone would say
  std::uint32_t file = 0;
  std::uint64_t line = 0;
};

struct Diagnosis {
  Verdict verdict = Verdict::unknown;
  std::string reason, category, root_cause, restart, where, node, advice, who;
  std::int32_t rank = -1;
  double confidence = 0;
  bool ended = false;              // a line says that the job is over, well or badly
  std::vector<Evidence> evidence;  // the root cause first
  std::vector<Symptom> symptoms;   // first of each rule that is not the cause
};

// All evidence in the files of `table`, in order of file and line: benign and negated lines are gone, of several rules
// on a line the most specific stays, rules whose needs are not met are gone. What healthy runs of the job said as well
// counts as survived.
std::vector<Evidence> find_evidence(const LogTable& table, const Matcher& matcher, const KnownShapes& known = {});

// What steps tell without an error line: NaN at the end, a spike that stays, steps that became slow, no more steps.
std::vector<Evidence> silent_evidence(const LogTable& table);

// The verdict on all files of `table` together: one job.
Diagnosis diagnose(const LogTable& table, const Matcher& matcher, const KnownShapes& known = {});

// The cause among `evidence` (in order of file and line); kNoRow = none. Exposed for tests.
std::uint32_t root_cause(const std::vector<Evidence>& evidence);

}  // namespace orrery
