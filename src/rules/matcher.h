// All rules as one automaton (Hyperscan): a block of lines is scanned once, however many rules there are. What it finds
// is confirmed on the message of the line alone by RE2, which also reads named groups.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/logs.h"
#include "data/notes.h"
#include "rules/rule.h"

namespace orrery {

struct RuleGroups {  // (?P<rank>..), (?P<node>..), (?P<peer>..) of a match; "" = not there
  std::string rank, node, peer;
  std::size_t from = 0, to = 0;  // where the pattern matched
};

class Matcher final : public LinePatterns {
 public:
  // Errors, with the rule: a pattern that RE2 refuses. One that only the automaton refuses is looked for on every line
  // by RE2 alone, with a note: slow, never silent.
  static Result<std::shared_ptr<Matcher>> compile(const RuleSet& set, Notes& notes);
  ~Matcher() override;

  std::unique_ptr<LineFinder> finder() const override;
  PatternClass class_of(std::uint32_t pattern) const override;
  bool matches(std::uint32_t pattern, std::string_view message) const override;

  // Precondition: a rule's pattern.
  RuleGroups groups(std::uint32_t pattern, std::string_view message) const;
  const std::vector<Rule>& rules() const;

 private:
  struct State;
  explicit Matcher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace orrery
