// Rows -> evidence: which rule speaks for a line, and for whom.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "base/line_shape.h"
#include "base/text_match.h"
#include "rules/diagnose.h"

namespace orrery {
namespace {

constexpr std::uint64_t kSpeaking = 4;
constexpr std::uint64_t kSurvivedSteps = 3;         // logged steps after an error that did not stop training
constexpr std::uint64_t kSurvivedStepsMachine = 5;  // a sick machine may go on for a while

// "no", "without", "0": a word that turns what follows it into its opposite. `before` is the text before the pattern.
bool negated(std::string_view before, std::string_view after) {
  std::size_t end = before.size();
  for (int words = 0; words < 3; ++words) {
    while (end > 0 && (before[end - 1] == ' ' || before[end - 1] == '\'' || before[end - 1] == '"')) --end;
    std::size_t from = end;
    while (from > 0 && (std::isalnum(static_cast<unsigned char>(before[from - 1])) || before[from - 1] == '\'')) --from;
    if (from > 0 && before[from - 1] != ' ' && before[from - 1] != '(' && before[from - 1] != ',') break;
    const std::string word = lower(before.substr(from, end - from));
    for (const std::string_view no : {"no", "not", "without", "zero", "never", "0", "isn't", "wasn't", "free", "any"})
      if (word == no) return true;
    if (from == 0 || from == end) break;
    end = from;
  }
  // "errors: 0", "= none"
  std::size_t at = 0;
  if (at < after.size() && after[at] == 's') ++at;
  bool equals = false;
  for (; at < after.size() && (after[at] == ' ' || after[at] == ':' || after[at] == '='); ++at)
    equals |= after[at] != ' ';
  if (!equals) return false;
  const std::string_view value = after.substr(at);
  for (const std::string_view none : {"0", "none", "None", "false", "False", "no", "N/A"}) {
    if (value.substr(0, none.size()) != none) continue;
    const char next = value.size() > none.size() ? value[none.size()] : ' ';
    if (!std::isalnum(static_cast<unsigned char>(next)) && next != '.' && next != '\'') return true;
  }
  return false;
}

bool is_framework_file(std::string_view path) {
  return has_any(
      path, {"site-packages",   "dist-packages", "/torch/",     "megatron",  "Megatron",     "deepspeed",  "DeepSpeed",
             "transformers",    "lightning",     "internlm",    "internevo", "InternEvo",    "colossalai", "nemo",
             "accelerate",      "fairseq",       "torchtitan",  "torchtune", "verl",         "vllm",       "sglang",
             "/usr/lib/python", "lib/python3",   "opencompass", "olmo",      "llamafactory", "openrlhf",   "trl/",
             "dataset",         "loader",        "<frozen"});
}

// Who raised an exception: the program's own code, or a framework (also its C++ under a line of the program).
std::string category_by_frame(const std::string& reason, const std::string& frame, const std::string& code) {
  const bool raises = code.rfind("raise ", 0) == 0 || code.rfind("assert ", 0) == 0 || code.rfind("assert(", 0) == 0;
  if (frame.empty()) return reason == "Runtime Error" || reason == "Assertion Error" ? "Framework" : "Script";
  if (is_framework_file(frame.substr(0, frame.rfind(':')))) return "Framework";
  if (reason == "Runtime Error") return raises ? "Script" : "Framework";
  return "Script";
}

// Exceptions inside of what reads checkpoints or data sets are about those.
const char* reason_by_frame(const std::string& reason, const std::string& frame) {
  const bool plain = reason == "Key Error" || reason == "Runtime Error" || reason == "Value Error" ||
                     reason == "Assertion Error" || reason == "OS Error" || reason == "File Not Found Error";
  if (!plain || frame.empty()) return nullptr;
  if (has_any(frame, {"/datasets/load.py", "/datasets/builder.py", "/datasets/arrow_", "/datasets/packaged_modules/"}))
    return "Dataset Loading Error";
  const std::size_t in = frame.rfind(':');
  const std::string_view function = std::string_view(frame).substr(in == std::string::npos ? frame.size() : in + 1);
  if (has_any(function, {"load_checkpoint", "load_state_dict", "load_ckpt", "from_pretrained", "load_pretrained",
                         "restore_checkpoint", "load_from_checkpoint", "load_sharded", "load_model", "load_weights"}))
    return "Model Loading Error";
  if (has_any(frame, {"dist_checkpointing", "distributed/checkpoint", "/safetensors/"}) && has(function, "load"))
    return "Model Loading Error";
  return nullptr;
}

std::int32_t number(std::string_view s) {
  std::int32_t n = -1;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), n);
  return error == std::errc() && end != s.data() ? n : -1;
}

// "[Rank 3]", "rank=6", "on rank 154", "Rank 4/8" in a message
std::int32_t rank_in(std::string_view text) {
  for (std::size_t at = 0; (at = text.find("ank", at)) != std::string_view::npos; at += 3) {
    if (at == 0 || (text[at - 1] != 'r' && text[at - 1] != 'R')) continue;
    if (at >= 2 && (std::isalnum(static_cast<unsigned char>(text[at - 2])) || text[at - 2] == '_')) continue;
    std::size_t d = at + 3;
    while (d < text.size() && (text[d] == ' ' || text[d] == '=' || text[d] == ':' || text[d] == '_')) ++d;
    if (d < text.size() && std::isdigit(static_cast<unsigned char>(text[d]))) return number(text.substr(d));
  }
  return -1;
}

// "host : node232", "on node node04", "[node-C]", "slurmstepd-node3:", "srun: error: node3:", 'node37-ib0_187281_0'
std::string node_in(std::string_view text) {
  for (const std::string_view lead :
       {"slurmstepd-", "srun: error: ", "on node ", "node: ", "host      : ", "host: ", "of node ", "The node '",
        " [node", "node=", "host=", "hostname=", " ON ", "Node "}) {
    const std::size_t at = text.find(lead);
    if (at == std::string_view::npos) continue;
    const std::size_t begin = lead == " [node" ? at + 2 : at + lead.size();
    std::size_t end = begin;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '-' || text[end] == '.'))
      ++end;
    std::string_view name = text.substr(begin, end - begin);
    while (!name.empty() && name.back() == '.') name.remove_suffix(1);
    const std::size_t ib = name.find("-ib");  // the name of its interface
    if (ib != std::string_view::npos) name = name.substr(0, ib);
    bool digit = false, letter = false;
    for (const char c : name) {
      digit |= std::isdigit(static_cast<unsigned char>(c)) != 0;
      letter |= std::isalpha(static_cast<unsigned char>(c)) != 0;
    }
    if ((digit && letter) || name.substr(0, 5) == "node-") return std::string(name);
  }
  return {};
}

// "from peer 10.1.147.122<39138>", "Call to recv from 172.16.3.12<33759>"
std::string peer_in(std::string_view text) {
  for (const std::string_view lead : {"from peer ", "recv from ", "send to ", "remote peer ", "Connect to "}) {
    const std::size_t at = text.find(lead);
    if (at == std::string_view::npos) continue;
    const std::size_t from = at + lead.size();
    const std::size_t end = std::min(text.find_first_of("<> ,", from), text.size());
    return std::string(text.substr(from, end - from));
  }
  return {};
}

// Of several rules on a line: an interruption or a specific rule before a generic one, the earlier in the causal order,
// the longer match.
struct Choice {
  std::uint32_t rule = kNoRow;
  RuleGroups groups;
};

bool better(const Rule& a, const RuleGroups& ga, const Rule& b, const RuleGroups& gb) {
  const auto weak = [](const Rule& r) {
    return r.role == Role::symptom || r.role == Role::context || r.role == Role::success;
  };
  if (a.generic != b.generic) return !a.generic;
  if (weak(a) != weak(b)) return !weak(a);
  if (a.generic && ga.to != gb.to) return ga.to > gb.to;  // the inner exception of "A: B: message"
  if (a.tier != b.tier) return a.tier < b.tier;
  if (a.needs.empty() != b.needs.empty()) return !a.needs.empty();
  if (a.confidence != b.confidence) return a.confidence > b.confidence;
  return ga.to - ga.from > gb.to - gb.from;
}

void fill(Evidence& e, const LogTable& table, const Rule& rule, const RuleGroups& groups) {
  const LogRows& r = table.rows;
  const std::string& text = r.text[e.row];
  e.file = r.file[e.row];
  e.line = r.line[e.row];
  e.time = r.time[e.row];
  e.text = text;
  e.role = rule.role;
  e.reason = rule.reason;
  e.category =
      rule.category == "by-frame" ? category_by_frame(rule.reason, r.frame[e.row], r.code[e.row]) : rule.category;
  e.restart = rule.restart;
  e.kind = rule.kind;
  if (rule.generic) {
    if (const char* other = reason_by_frame(rule.reason, r.frame[e.row])) {
      e.reason = other;
      e.category = "Framework";
    }
  }
  e.why = rule.id;
  e.advice = rule.advice;
  e.where = rule.where;
  e.tier = rule.tier;
  e.confidence = rule.confidence;
  e.masks = rule.masks;
  e.rank = groups.rank.empty() ? r.rank[e.row] : number(groups.rank);
  if (e.rank < 0) e.rank = rank_in(text);
  if (e.rank < 0) e.rank = table.files[e.file].rank;
  if (rule.where == "rank 0") e.rank = 0;
  e.node = groups.node.empty() ? r.node[e.row] : groups.node;
  if (e.node.empty()) e.node = node_in(text);
  // Lines of NCCL and the like shortly before it say which node is speaking.
  for (std::uint32_t b = e.row; e.node.empty() && rule.where == "node" && e.rank < 0 && b-- > 0;) {
    if (r.file[b] != e.file || r.line[b] + kSpeaking < e.line) break;
    e.node = r.node[b];
  }
  e.peer = groups.peer.empty() ? peer_in(text) : groups.peer;
  const std::uint64_t after = table.files[e.file].steps - r.steps_before[e.row];
  e.survived = after >= (rule.tier <= 1 ? kSurvivedStepsMachine : kSurvivedSteps);
}

// A lookup that failed inside ("During handling of the above exception, another exception occurred") is not what the
// program says of itself; trouble from outside is.
bool only_a_lookup(const Evidence& e) {
  return e.kind == "python" && (e.reason == "Key Error" || e.reason == "Attribute Error" || e.reason == "Index Error" ||
                                e.reason == "Import Error" || e.reason == "Type Error" || e.reason == "Value Error");
}

}  // namespace

std::vector<Evidence> find_evidence(const LogTable& table, const Matcher& matcher, const KnownShapes& known) {
  const std::vector<Rule>& rules = matcher.rules();
  const LogRows& r = table.rows;
  std::vector<Evidence> all;
  std::vector<std::vector<std::string>> needs;
  for (std::uint32_t row = 0; row < r.size(); ++row) {
    std::vector<Choice> choices;
    bool benign = false;
    for (const std::uint32_t p : r.patterns[row]) {
      const Rule& rule = rules[p];
      RuleGroups groups = matcher.groups(p, r.text[row]);
      if (groups.to == 0) continue;  // long line, cut
      if (rule.role == Role::benign) {
        benign = true;
        break;
      }
      const std::string_view text = r.text[row];
      if (rule.exception.empty() && negated(text.substr(0, groups.from), text.substr(groups.to))) continue;
      choices.push_back({p, std::move(groups)});
    }
    if (benign || choices.empty()) continue;
    std::sort(choices.begin(), choices.end(), [&](const Choice& a, const Choice& b) {
      return better(rules[a.rule], a.groups, rules[b.rule], b.groups);
    });
    // Rules that need other evidence stay beside the best one that does not.
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Rule& rule = rules[choices[i].rule];
      const bool conditional = !rule.needs.empty() || rule.role == Role::context;
      Evidence e;
      e.row = row;
      e.rule = choices[i].rule;
      fill(e, table, rule, choices[i].groups);
      if (!known.empty() && known.count(line_shape(e.text)) != 0) e.survived = true;
      if (r.chained[row] == 2 && only_a_lookup(e)) {
        e.role = Role::symptom;
        e.tier = 6;
      }
      all.push_back(std::move(e));
      needs.push_back(rule.needs);
      if (!conditional) break;
    }
  }
  std::vector<std::string> kinds;
  for (const Evidence& e : all)
    if (std::find(kinds.begin(), kinds.end(), e.kind) == kinds.end()) kinds.push_back(e.kind);
  for (const Evidence& e : silent_evidence(table))
    if (std::find(kinds.begin(), kinds.end(), e.kind) == kinds.end()) kinds.push_back(e.kind);
  std::vector<Evidence> met;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool ok = needs[i].empty() || std::any_of(needs[i].begin(), needs[i].end(), [&](const std::string& n) {
                      return std::find(kinds.begin(), kinds.end(), n) != kinds.end();
                    });
    if (!ok) continue;
    // Of a line with a conditional rule that counts, the plain one is superseded.
    if (!met.empty() && met.back().row == all[i].row && met.back().row != kNoRow && met.back().role == Role::cause &&
        !rules[met.back().rule].needs.empty() && needs[i].empty() && all[i].kind != "timeout")
      continue;
    met.push_back(std::move(all[i]));
  }
  return met;
}

}  // namespace orrery
