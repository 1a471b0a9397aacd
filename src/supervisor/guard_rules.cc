#include <future>
#include <memory>
#include <utility>

#include "rules/rule.h"
#include "supervisor/guard_run.h"

namespace orrery {

SharedRules guard_rules() {
  return std::async(std::launch::async,
                    [] {
                      RuleSet set = built_in_rules().value();  // the tool's own: tests compile them
                      Rule saving;
                      saving.id = kSavingRule;
                      saving.family = "guard";
                      saving.role = Role::context;
                      saving.kind = "saving";
                      saving.pattern =
                          "(?i:^\\W*(?:start(?:ed)? )?saving (?:\\w+ ){0,2}(?:checkpoint|state|weights|snapshot)\\b)";
                      set.rules.push_back(std::move(saving));
                      Notes notes;
                      return Matcher::compile(set, notes).value();
                    })
      .share();
}

}  // namespace orrery
