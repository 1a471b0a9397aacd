#include "supervisor/guard_nodes.h"

#include <algorithm>

#include "supervisor/group_runs.h"

namespace orrery {

NodeReport report_of(const std::string& node, const NodeCheck& check, std::size_t i) {
  if (check.verdicts[i] != NodeVerdict::bad || !check.untested[i])
    return {node, std::string(name_of(check.verdicts[i])), ""};
  std::string why;
  for (const GroupTest& t : check.tests)
    if (std::find(t.nodes.begin(), t.nodes.end(), i) != t.nodes.end() && !t.outcome.why.empty()) why = t.outcome.why;
  return {node, "untested", why};
}

NodesTested test_nodes(const GuardOptions& o, JobRunner& runner, const std::vector<std::string>& usable,
                       const std::vector<std::string>& ran) {
  NodesTested out;
  std::vector<std::string> tested = usable;
  std::optional<RunGroups> run;
  GroupRunTerms terms;
  terms.argv = o.check_command;
  terms.timeout_s = o.check_timeout_s;
  if (!o.check_command.empty()) {
    if (tested.size() >= 2)
      run = [&](const std::vector<NodeGroup>& groups) { return run_commands(terms, tested, groups); };
  } else {
    std::erase_if(tested, [&](const std::string& n) { return std::find(ran.begin(), ran.end(), n) == ran.end(); });
    if (tested.size() >= 2) run = runner.tester(tested, o.check_timeout_s);
  }
  const auto check =
      run ? orrery::check_nodes(tested.size(), *run) : Result<NodeCheck>(tl::unexpected(Error{"no test", "", ""}));
  if (run && !check) out.text = "nodes could not be tested: " + check.error().line();
  if (!run) out.text = tested.size() < 2 ? "one node: nothing to compare it with" : "no command to test nodes is given";
  for (const std::string& n : usable) {
    const auto at = static_cast<std::size_t>(std::find(tested.begin(), tested.end(), n) - tested.begin());
    if (check && at < tested.size()) {
      out.reports.push_back(report_of(n, *check, at));
    } else {
      out.reports.push_back({n, "good", "not tested"});
    }
  }
  return out;
}

}  // namespace orrery
