// When no rule fires: past cases, then an agent; and what is learnt from an answer.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/notes.h"
#include "reports/diagnose.h"
#include "rules/agent.h"
#include "rules/case_store.h"

namespace orrery {

struct UnknownOptions {
  CaseStore* cases = nullptr;         // --cases
  std::optional<AgentOptions> agent;  // --llm
  std::string rule_file;              // the user's, where accepted rules go; "" = nowhere
  std::vector<std::string> healthy;   // lines that no proposed rule may match
};

// Answers a verdict that is unknown, where it can. An agent that fails is a note, and is not asked again. Errors: of
// the store, of the rule file.
Status answer_unknown(LogVerdict& verdict, const LogTable& table, const KnownShapes& known, UnknownOptions& options,
                      Notes& notes);

}  // namespace orrery
