// Rules from TOML.
#include <algorithm>
#include <array>
#include <map>

#include "base/byte_source.h"
#include "base/closest.h"
#include "base/toml.h"
#include "rules/embedded.h"
#include "rules/rule.h"
#include "rules/xid.h"

namespace orrery {
namespace {

constexpr std::size_t kLargest = std::size_t{4} << 20;  // bytes of a file of rules

constexpr std::array<Reason, 34> kReasons{{
    {"NVLink Error", "Infrastructure", "auto-exclude"},
    {"CUDA Error", "Infrastructure", "auto-exclude"},
    {"Node Failure", "Infrastructure", "auto-exclude"},
    {"ECC Error", "Infrastructure", "auto-exclude"},
    {"Network Error", "Infrastructure", "auto-exclude"},
    {"Connection Error", "Infrastructure", "auto"},
    {"S3 Storage Error", "Infrastructure", "auto"},
    {"NCCL Timeout Error", "Infrastructure", "auto"},
    {"NCCL Remote Error", "Infrastructure", "auto-exclude"},
    {"Dataloader Killed", "Framework", "auto"},
    {"Attribute Error", "Framework", "no"},
    {"Out of Memory Error", "Framework", "no"},
    {"Runtime Error", "Framework", "no"},
    {"Assertion Error", "by-frame", "no"},
    {"Value Error", "by-frame", "no"},
    {"Zero Division Error", "Framework", "no"},
    {"Model Loading Error", "Framework", "no"},
    {"Dataset Loading Error", "Framework", "no"},
    {"File Not Found Error", "by-frame", "no"},
    {"OS Error", "Script", "no"},
    {"Type Error", "Script", "no"},
    {"Name Error", "Script", "no"},
    {"Permission Error", "Script", "no"},
    {"Import Error", "Script", "no"},
    {"Key Error", "Script", "no"},
    {"Syntax Error", "Script", "no"},
    {"Argument Error", "Script", "no"},
    {"Called Process Error", "Script", "no"},
    {"Index Error", "Script", "no"},
    {"Preemption", "None", "auto"},
    {"Requeue", "None", "auto"},
    {"Time Limit", "None", "auto"},
    {"Straggler", "Infrastructure", "auto-exclude"},
    {"None", "None", "none"},
}};

struct Source {
  const std::string& where;
  tl::unexpected<Error> fail_at(std::int64_t line, std::string what, std::string advice = {}) const {
    return fail(std::move(what), where + ":" + std::to_string(line), std::move(advice));
  }
};

std::int64_t line_of(const toml::node& n) { return static_cast<std::int64_t>(n.source().begin.line); }

Result<Role> role_named(const Source& source, const toml::node& node, std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Role>, 6> roles{{{"cause", Role::cause},
                                                                    {"symptom", Role::symptom},
                                                                    {"interruption", Role::interruption},
                                                                    {"context", Role::context},
                                                                    {"success", Role::success},
                                                                    {"benign", Role::benign}}};
  for (const auto& [n, role] : roles)
    if (n == name) return role;
  return source.fail_at(line_of(node), "not a role: " + std::string(name),
                        "cause, symptom, interruption, context, success or benign");
}

Result<std::vector<std::string>> texts(const Source& source, const toml::node& node, const std::string& key) {
  std::vector<std::string> out;
  const toml::array* list = node.as_array();
  if (list == nullptr) return source.fail_at(line_of(node), key + " is not a list of texts");
  for (const toml::node& item : *list) {
    const auto* s = item.as_string();
    if (s == nullptr) return source.fail_at(line_of(item), key + " holds something else than texts");
    out.push_back(s->get());
  }
  return out;
}

// Keys whose values are listed in docs/formats/rules.md.
Status check_value(const Source& source, const toml::node& node, const std::string& id, std::string_view key,
                   std::string_view value) {
  static const std::map<std::string_view, std::vector<std::string_view>> known{
      {"category", {"Infrastructure", "Framework", "Script", "None", "by-frame"}},
      {"restart", {"auto", "auto-exclude", "auto-rollback", "no", "none"}},
      {"who", {"operator", "user", "nobody"}},
      {"where", {"rank", "node", "peer", "rank 0", "none"}}};
  const auto it = known.find(key);
  if (it == known.end() || std::find(it->second.begin(), it->second.end(), value) != it->second.end()) return {};
  std::string all;
  for (const std::string_view v : it->second) all += (all.empty() ? "" : ", ") + std::string(v);
  return source.fail_at(
      line_of(node), (id.empty() ? "" : "rule " + id + ": ") + "not a " + std::string(key) + ": " + std::string(value),
      "one of " + all);
}

// One [family] or [[rule]] table onto `rule`, which holds what its family says of all.
Status put(const Source& source, const toml::table& table, Rule& rule) {
  const std::map<std::string_view, std::string Rule::*> strings{
      {"id", &Rule::id},         {"pattern", &Rule::pattern},   {"exception", &Rule::exception},
      {"reason", &Rule::reason}, {"category", &Rule::category}, {"restart", &Rule::restart},
      {"who", &Rule::who},       {"kind", &Rule::kind},         {"where", &Rule::where},
      {"advice", &Rule::advice}, {"sample", &Rule::sample},     {"counter", &Rule::counter},
      {"origin", &Rule::origin}, {"name", &Rule::family}};
  for (const auto& [k, node] : table) {
    const std::string_view key = k.str();
    const auto* text = node.as_string();
    if (const auto it = strings.find(key); it != strings.end()) {
      if (text == nullptr) return source.fail_at(line_of(node), std::string(key) + " is not a text");
      const std::string id = table["id"].value_or(std::string());
      if (Status ok = check_value(source, node, id, key, text->get()); !ok) return ok;
      rule.*(it->second) = text->get();
    } else if (key == "role" && text != nullptr) {
      auto role = role_named(source, node, text->get());
      if (!role) return tl::unexpected(role.error());
      rule.role = *role;
    } else if (key == "masks" || key == "needs") {
      auto list = texts(source, node, std::string(key));
      if (!list) return tl::unexpected(list.error());
      (key == "masks" ? rule.masks : rule.needs) = std::move(*list);
    } else if (key == "tier" && node.is_integer()) {
      const std::int64_t tier = node.as_integer()->get();
      if (tier < 0 || tier > 6) return source.fail_at(line_of(node), "tier is not from 0 to 6");
      rule.tier = static_cast<int>(tier);
    } else if (key == "confidence" && node.is_number()) {
      rule.confidence = node.value<double>().value_or(0);
      if (!(rule.confidence > 0 && rule.confidence <= 1))
        return source.fail_at(line_of(node), "confidence is not above 0 and up to 1");
    } else if (key == "generic" && node.is_boolean()) {
      rule.generic = node.as_boolean()->get();
    } else {
      std::vector<std::string_view> keys{"role", "masks", "needs", "tier", "confidence", "generic"};
      for (const auto& s : strings) keys.push_back(s.first);
      const std::string_view near = closest(key, keys);
      return source.fail_at(
          line_of(node), "unknown or misused key " + std::string(key),
          near.empty() ? "docs/formats/rules.md lists the keys" : "did you mean " + std::string(near) + "?");
    }
  }
  return {};
}

Status complete(const Source& source, Rule& rule) {
  if (rule.id.empty()) return source.fail_at(rule.line, "a rule has no id");
  if (rule.pattern.empty() == rule.exception.empty())
    return source.fail_at(rule.line, "rule " + rule.id + " needs a pattern or an exception, and only one of them");
  if (!rule.exception.empty())
    rule.pattern =
        "(?:^|(?:[Uu]ncaught|[Uu]nhandled|[Ee]xception|[Rr]aised|Caught|[Ff]ailed|ERROR|CRITICAL|[Ee]rror)"
        "\\b.{0,80}?[\\s(:'])(?:[A-Za-z_][\\w.]*\\.)?" +
        rule.exception + "(?:\\([^)]{0,80}\\))?(?::|\\s*$|\\(|\\))";
  if (rule.kind.empty()) rule.kind = rule.family;
  if (rule.role == Role::benign || rule.role == Role::context || rule.role == Role::success ||
      rule.role == Role::symptom)
    return {};
  const Reason* reason = find_reason(rule.reason);
  if (reason == nullptr)
    return source.fail_at(rule.line, "rule " + rule.id + ": not a reason: " + rule.reason,
                          "docs/formats/rules.md lists them");
  if (rule.category.empty()) rule.category = reason->category;
  if (rule.restart.empty()) rule.restart = reason->restart;
  if (rule.who.empty())
    rule.who = rule.category == "Infrastructure" ? "operator" : rule.category == "None" ? "nobody" : "user";
  return {};
}

}  // namespace

const Reason* find_reason(std::string_view name) {
  for (const Reason& r : kReasons)
    if (r.name == name) return &r;
  return nullptr;
}

std::vector<std::string_view> reason_names() {
  std::vector<std::string_view> names;
  for (const Reason& r : kReasons) names.push_back(r.name);
  return names;
}

Result<std::vector<Rule>> parse_rules(std::string_view text, const std::string& where) {
  const Source source{where};
  if (text.size() > kLargest) return source.fail_at(1, "too large for a file of rules", "4 MiB at most");
  const auto parsed = toml_text::parse(text);
  if (!parsed) return source.fail_at(parsed.error().line, parsed.error().what);
  Rule family;
  std::vector<Rule> rules;
  const toml::array* list = nullptr;
  for (const auto& [key, node] : *parsed) {
    if (key.str() == "family" && node.is_table()) {
      if (const Status ok = put(source, *node.as_table(), family); !ok) return tl::unexpected(ok.error());
    } else if (key.str() == "rule" && node.is_array()) {
      list = node.as_array();
    } else {
      return source.fail_at(line_of(node), "unknown table " + std::string(key.str()), "[family] and [[rule]]");
    }
  }
  if (list == nullptr) return rules;
  for (const toml::node& node : *list) {
    if (!node.is_table()) return source.fail_at(line_of(node), "a rule is not a table", "[[rule]]");
    Rule rule = family;
    rule.origin = where;
    rule.line = line_of(node);
    if (Status ok = put(source, *node.as_table(), rule); !ok) return tl::unexpected(ok.error());
    if (Status ok = complete(source, rule); !ok) return tl::unexpected(ok.error());
    for (const Rule& other : rules)
      if (other.id == rule.id) return source.fail_at(rule.line, "two rules are called " + rule.id);
    rules.push_back(std::move(rule));
  }
  return rules;
}

Result<std::vector<Rule>> read_rule_file(const std::string& path) {
  const auto text = read_at_most(path, kLargest + 1);
  if (!text) return tl::unexpected(text.error());
  return parse_rules(*text, path);
}

Result<RuleSet> built_in_rules() {
  RuleSet set;
  for (const EmbeddedRules& file : embedded_rules()) {
    const std::string where = "src/rules/" + std::string(file.folder) + "/" + std::string(file.name) + ".toml";
    auto rules = file.folder == "tables" ? xid_rules(file.text, where) : parse_rules(file.text, where);
    if (!rules) return tl::unexpected(rules.error());
    for (Rule& r : *rules) set.rules.push_back(std::move(r));
  }
  return set;
}

}  // namespace orrery
