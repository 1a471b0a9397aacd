// A rule: what a line of a log says of a failure. Rules are data (src/rules/families/*.toml, --rules FILE);
// docs/formats/rules.md describes the files.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery {

enum class Role : std::uint8_t {
  cause,         // may be the root cause
  symptom,       // tells that something failed, never why
  interruption,  // ended on request or at a limit
  context,       // counts only where another rule needs its kind
  success,       // says that the job ended well
  benign         // looks like trouble and is none: the line's other rules are void
};

struct Rule {
  std::string id, family, origin;  // origin: the file
  std::string pattern;             // of the message, without prefixes; ^ is its start
  std::string scan, literal;       // rules alike: what the automaton looks for instead; what must be in the message
  std::string exception;           // instead of a pattern: the last line of a traceback with this exception
  Role role = Role::cause;
  std::string reason, category, restart, who;  // of REASONS; category "by-frame": whose file raised it
  std::string kind;                            // what other rules call it in masks and needs
  int tier = 2;                    // how early in the causal order (docs/model.md): 0 a dead node ... 6 a wrapper
  std::vector<std::string> masks;  // kinds that it explains wherever they stand
  std::vector<std::string> needs;  // counts only where evidence of one of these kinds exists
  std::string where;               // "rank", "node", "none"; named groups of the pattern come first
  std::string advice;
  std::string sample, counter;  // must match, must not match
  bool generic = false;         // yields to any other rule on the same line
  double confidence = 0.9;
  std::int64_t line = 0;  // in its file
};

struct RuleSet {
  std::vector<Rule> rules;
};

// Errors, with the line: not TOML, an unknown key, a value of another kind, no pattern, an id given twice.
Result<std::vector<Rule>> parse_rules(std::string_view text, const std::string& where);
Result<std::vector<Rule>> read_rule_file(const std::string& path);

// The built-in families and the table of Xid codes as rules. Errors: of the files (a test reads them all).
Result<RuleSet> built_in_rules();

// What a reason entails where a rule does not say it itself; nullptr = not a reason.
struct Reason {
  std::string_view name, category, restart;
};
const Reason* find_reason(std::string_view name);
std::vector<std::string_view> reason_names();

}  // namespace orrery
