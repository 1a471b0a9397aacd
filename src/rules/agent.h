// Asking a language model behind any OpenAI-compatible server, where no rule fires: several samples, a vote, and a rule
// for the next time that is only taken when it proves itself.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/notes.h"
#include "rules/compress.h"
#include "rules/rule.h"

namespace orrery {

struct AgentOptions {
  std::string url;    // https://host/v1; /chat/completions is added where it is not there
  std::string model;  // "" = the server's first
  std::string key;    // sent as a bearer token; "" = none
  int samples = 3;
  double timeout_s = 60;  // for all samples together
};

struct AgentAnswer {
  std::string reason, category, restart, root_cause, advice;
  std::string pattern;  // of a rule that would have found it; "" = none proposed
};

// What is asked: the instructions and the kept lines, nothing else of the log.
std::string agent_prompt(const std::vector<KeptLine>& lines);

// Errors: the server cannot be reached, does not speak the protocol or takes too long. Answers that are none are left
// out, with a note.
Result<std::vector<AgentAnswer>> ask_agent(const AgentOptions& options, const std::vector<KeptLine>& lines,
                                           Notes& notes);

struct AgentVote {
  AgentAnswer answer;
  double agreement = 0;  // share of all samples asked for
};
// The reason that more than half of the samples give.
std::optional<AgentVote> vote(const std::vector<AgentAnswer>& answers, int samples);

// The first proposed pattern that compiles (also to an automaton), matches a line of the failing log and none of
// `healthy`, as a rule. What is wrong with the others goes to `notes`.
std::optional<Rule> proven_rule(const std::vector<AgentAnswer>& answers, const AgentAnswer& chosen,
                                const std::vector<KeptLine>& failing, const std::vector<std::string>& healthy,
                                const std::string& origin, Notes& notes);

// The rule as it stands in a file of rules.
std::string rule_text(const Rule& rule);

}  // namespace orrery
