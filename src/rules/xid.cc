// The table of Xid codes as rules: src/rules/tables/xid.toml.
#include "rules/xid.h"

#include "base/toml.h"

namespace orrery {
namespace {

std::string pattern_of(std::int64_t code) {
  const std::string n = std::to_string(code);
  return "\\bXid \\((?:PCI|0|GPU)[^)]{0,40}\\): " + n +
         "(?:,|:|$| )|\\b[Xx][Ii][Dd](?: error| event| code)?(?: ?[:=#] ?| )" + n + "(?:[^0-9.%]|$)";
}

std::string advice_of(const std::string& name, const std::string& action) {
  std::string text = name + ". ";
  if (action == "RESET_GPU") return text + "Reset the GPU; restart without the node until then.";
  if (action == "RESTART_BM" || action == "RESTART_VM") return text + "Reboot the node; restart without it.";
  if (action == "RESTART_APP")
    return text + "NVIDIA advises to restart the job; if it comes again on another node, it is the program.";
  if (action.rfind("WORKFLOW", 0) == 0)
    return text + "Restart without the node and follow NVIDIA's procedure for this code.";
  return text + "Restart without the node and let operations look at it.";
}

}  // namespace

Result<std::vector<Rule>> xid_rules(std::string_view text, const std::string& where) {
  const auto parsed = toml_text::parse(text);
  if (!parsed) return fail(parsed.error().what, where + ":" + std::to_string(parsed.error().line));
  const toml::array* list = (*parsed)["xids"].as_array();
  if (list == nullptr) return fail("no xids", where);
  std::vector<Rule> rules;
  for (const toml::node& node : *list) {
    const toml::array* row = node.as_array();
    const auto text_at = [&](std::size_t i) { return (*row)[i].value<std::string>().value_or(""); };
    if (row == nullptr || row->size() != 5 || !(*row)[0].is_integer())
      return fail("not a row of code, name, action, reason and restart",
                  where + ":" + std::to_string(node.source().begin.line));
    const std::int64_t code = *(*row)[0].value<std::int64_t>();
    Rule r;
    r.id = "xid-" + std::to_string(code);
    r.family = "xid";
    r.origin = where;
    r.line = static_cast<std::int64_t>(node.source().begin.line);
    r.pattern = pattern_of(code);
    r.scan = "\\bXid \\(|\\b[Xx][Ii][Dd](?: error| event| code)?[ :=#]";
    r.literal = std::to_string(code);
    r.reason = text_at(3);
    r.restart = text_at(4);
    r.advice = advice_of(text_at(1), text_at(2));
    r.where = "node";
    r.sample = "NVRM: Xid (PCI:0000:02:00): " + std::to_string(code) + ", pid=1896, name=python";
    r.counter = "NVRM: Xid (PCI:0000:02:00): " + std::to_string(code) + "7, pid=1896, name=python";
    if (r.reason.empty()) {
      r.role = code == 45 || code == 43 || code == 154 ? Role::symptom : Role::benign;
      r.kind = "xid-echo";
      r.tier = 6;
    } else {
      const Reason* reason = find_reason(r.reason);
      if (reason == nullptr) return fail("not a reason: " + r.reason, where + ":" + std::to_string(r.line));
      r.category = reason->category;
      r.who = "operator";
      const bool app = text_at(2) == "RESTART_APP" && r.reason == "CUDA Error";
      r.kind = r.reason == "ECC Error" ? "ecc" : r.reason == "NVLink Error" ? "nvlink" : app ? "xid-app" : "gpu";
      r.tier = 1;
      r.masks = {"oom", "pcie", "numeric"};
      r.confidence = app ? 0.8 : 0.95;
    }
    rules.push_back(std::move(r));
  }
  // One GPU that makes NaNs and reports even an application's Xid is a bad GPU.
  for (const std::int64_t code : {std::int64_t{13}, std::int64_t{31}}) {
    Rule r;
    for (const Rule& known : rules)
      if (known.id == "xid-" + std::to_string(code)) r = known;
    r.id += "-with-nan";
    r.restart = "auto-exclude";
    r.kind = "gpu";
    r.needs = {"numeric"};
    r.advice = "One GPU makes NaNs and reports errors: restart without its node and test it.";
    rules.push_back(std::move(r));
  }
  return rules;
}

}  // namespace orrery
