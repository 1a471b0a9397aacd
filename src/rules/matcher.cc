#include "rules/matcher.h"

#include <hs/hs.h>
#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

namespace orrery {
namespace {

struct BuiltIn {
  PatternClass kind;
  const char* pattern;
};

// What every log is looked through for, beside the rules.
constexpr std::array<BuiltIn, 14> kBuiltIn{{
    {PatternClass::frame, "File \"[^\"\\n]{1,400}\", line \\d"},
    {PatternClass::chain, "The above exception was the direct cause of"},
    {PatternClass::chain, "During handling of the above exception, another"},
    {PatternClass::ignored, "Exception ignored in"},
    {PatternClass::step, "elapsed time per iteration"},
    {PatternClass::step, "lm loss"},
    {PatternClass::step, "'loss': "},
    {PatternClass::step, "\\bloss[=:]\\s?"},
    {PatternClass::step, "_loss[=:]\\s?"},
    {PatternClass::step, "\\bloss \\d"},
    {PatternClass::step, "\"loss\": "},
    {PatternClass::step, "\\bloss -?(?:nan|inf)"},
    {PatternClass::step, "\\ds/it\\b"},
    {PatternClass::step, "\\dit/s\\b"},
}};

struct FreeDatabase {
  void operator()(hs_database_t* d) const { hs_free_database(d); }
};
struct FreeScratch {
  void operator()(hs_scratch_t* s) const { hs_free_scratch(s); }
};

// The start of a message is not the start of a line: prefixes come before it. RE2 knows it.
std::string without_anchor(std::string p) {
  for (std::size_t at = 0; (at = p.find('^', at)) != std::string::npos;) {
    const bool literal = at > 0 && (p[at - 1] == '\\' || p[at - 1] == '[');
    if (literal) {
      ++at;
    } else {
      p.erase(at, 1);
    }
  }
  return p;
}

// (?P<name>...) is not known to the automaton.
std::string without_names(std::string p) {
  for (std::size_t at = 0; (at = p.find("(?P<", at)) != std::string::npos;) {
    const std::size_t end = p.find('>', at);
    if (end == std::string::npos) break;
    p.replace(at, end - at + 1, "(?:");
  }
  return p;
}

// [^x] must not run over the end of a line.
std::string within_lines(std::string p) {
  for (std::size_t at = 0; (at = p.find("[^", at)) != std::string::npos; at += 2) {
    if (at > 0 && p[at - 1] == '\\') continue;
    if (p.compare(at + 2, 2, "\\n") != 0) p.insert(at + 2, "\\n");
  }
  for (std::size_t at = 0; (at = p.find("\\s", at)) != std::string::npos;) {
    // \s inside brackets: rare, and only makes the automaton find a little more
    int depth = 0;
    for (std::size_t k = 0; k < at; ++k) {
      if (p[k] == '\\') {
        ++k;
      } else if (p[k] == '[') {
        depth = 1;
      } else if (p[k] == ']') {
        depth = 0;
      }
    }
    const std::string_view blank = depth > 0 ? " \\t" : "[ \\t]";
    p.replace(at, 2, blank);
    at += blank.size();
  }
  return p;
}

// Bounded repeats make large automata: the bounds are RE2's business. What ends in a repeat would be found at every
// byte after it.
std::string without_bounds(std::string p) {
  for (std::size_t at = 0; (at = p.find('{', at)) != std::string::npos;) {
    const std::size_t end = p.find('}', at);
    if (end == std::string::npos) break;
    const std::string_view inside = std::string_view(p).substr(at + 1, end - at - 1);
    const std::size_t comma = inside.find(',');
    const bool bounds = (at == 0 || p[at - 1] != '\\') && comma != std::string_view::npos &&
                        inside.find_first_not_of("0123456789,") == std::string_view::npos;
    if (!bounds) {
      at = end;
      continue;
    }
    p.replace(at, end - at + 1, inside.substr(0, comma) == "0" ? "*" : "+");
    ++at;
  }
  return p;
}

}  // namespace

struct Matcher::State {
  std::vector<Rule> rules;
  std::vector<std::unique_ptr<re2::RE2>> confirm;  // of each rule
  std::unique_ptr<hs_database_t, FreeDatabase> database;
  std::vector<std::uint32_t> by_line;                                   // rules that the automaton does not take
  std::map<std::string, std::vector<std::uint32_t>> alike;              // scan -> rules that share it
  std::map<std::uint32_t, const std::vector<std::uint32_t>*> rules_of;  // first of them -> all
};

namespace {

class Finder final : public LineFinder {
 public:
  using Alike = std::map<std::uint32_t, const std::vector<std::uint32_t>*>;
  Finder(const hs_database_t* database, const std::vector<std::uint32_t>& by_line, const Alike& alike,
         const Matcher& matcher)
      : database_(database), by_line_(by_line), alike_(alike), matcher_(matcher) {
    hs_scratch_t* scratch = nullptr;
    if (hs_alloc_scratch(database, &scratch) == HS_SUCCESS) scratch_.reset(scratch);
  }

  void find(std::string_view block, std::vector<PatternHit>& hits) override {
    const auto on_match = [](unsigned id, unsigned long long, unsigned long long to, unsigned, void* out) {
      auto& list = *static_cast<std::vector<PatternHit>*>(out);
      list.push_back({id, static_cast<std::size_t>(to)});
      return 0;
    };
    if (scratch_) {
      for (std::size_t at = 0; at < block.size();) {  // lengths are 32 bits there
        std::size_t n = std::min<std::size_t>(block.size() - at, std::size_t{1} << 30);
        const std::size_t first = hits.size();
        hs_scan(database_, block.data() + at, static_cast<unsigned>(n), 0, scratch_.get(), on_match, &hits);
        for (std::size_t i = first; i < hits.size(); ++i) hits[i].end += at;
        at += n;
        expand(hits, first);
      }
    }
    if (by_line_.empty()) return;
    for (std::size_t at = 0; at < block.size();) {
      const std::size_t end = std::min(block.find('\n', at), block.size());
      for (const std::uint32_t rule : by_line_)
        if (end > at && matcher_.groups(rule, block.substr(at, end - at)).to > 0) hits.push_back({rule, end});
      at = end + 1;
    }
    std::stable_sort(hits.begin(), hits.end(), [](const PatternHit& a, const PatternHit& b) { return a.end < b.end; });
  }

 private:
  // A hit of a shared expression is one of each rule that shares it.
  void expand(std::vector<PatternHit>& hits, std::size_t first) {
    more_.clear();
    for (std::size_t i = first; i < hits.size(); ++i) {
      const auto it = alike_.find(hits[i].pattern);
      more_.push_back(hits[i]);
      if (it == alike_.end()) continue;
      for (std::size_t k = 1; k < it->second->size(); ++k) more_.push_back({(*it->second)[k], hits[i].end});
    }
    if (more_.size() == hits.size() - first) return;
    hits.resize(first);
    hits.insert(hits.end(), more_.begin(), more_.end());
  }

  const hs_database_t* database_;
  const std::vector<std::uint32_t>& by_line_;
  const Alike& alike_;
  std::vector<PatternHit> more_;
  const Matcher& matcher_;
  std::unique_ptr<hs_scratch_t, FreeScratch> scratch_;
};

}  // namespace

Matcher::Matcher(std::unique_ptr<State> state) : state_(std::move(state)) {}
Matcher::~Matcher() = default;

Result<std::shared_ptr<Matcher>> Matcher::compile(const RuleSet& set, Notes& notes) {
  auto state = std::make_unique<State>();
  state->rules = set.rules;
  std::vector<std::string> patterns;
  std::vector<unsigned> ids, flags;
  const auto add = [&](const std::string& pattern, unsigned id) {
    patterns.push_back(without_bounds(within_lines(without_names(without_anchor(pattern)))));
    ids.push_back(id);
    flags.push_back(HS_FLAG_MULTILINE);
  };
  re2::RE2::Options quiet;
  quiet.set_log_errors(false);
  quiet.set_encoding(re2::RE2::Options::EncodingLatin1);  // logs hold any bytes
  for (std::size_t i = 0; i < set.rules.size(); ++i) {
    const Rule& r = set.rules[i];
    auto re = std::make_unique<re2::RE2>(r.pattern, quiet);
    if (!re->ok())
      return fail("rule " + r.id + ": " + re->error(), r.origin + ":" + std::to_string(r.line), "the syntax is RE2's");
    if (re->Match("", 0, 0, re2::RE2::UNANCHORED, nullptr, 0))
      return fail("rule " + r.id + " matches every line", r.origin + ":" + std::to_string(r.line));
    state->confirm.push_back(std::move(re));
    if (r.scan.empty()) {
      add(r.pattern, static_cast<unsigned>(i));
      continue;
    }
    std::vector<std::uint32_t>& same = state->alike[r.scan];
    same.push_back(static_cast<std::uint32_t>(i));
    if (same.size() == 1) add(r.scan, static_cast<unsigned>(i));
  }
  for (std::size_t i = 0; i < kBuiltIn.size(); ++i)
    add(kBuiltIn[i].pattern, static_cast<unsigned>(set.rules.size() + i));
  for (const auto& [scan, same] : state->alike) state->rules_of.emplace(same.front(), &same);
  for (;;) {
    std::vector<const char*> expressions;
    for (const std::string& p : patterns) expressions.push_back(p.c_str());
    hs_database_t* database = nullptr;
    hs_compile_error_t* error = nullptr;
    const hs_error_t status =
        hs_compile_multi(expressions.data(), flags.data(), ids.data(), static_cast<unsigned>(expressions.size()),
                         HS_MODE_BLOCK, nullptr, &database, &error);
    if (status == HS_SUCCESS) {
      state->database.reset(database);
      break;
    }
    const int at = error != nullptr ? error->expression : -1;
    const std::string why = error != nullptr ? error->message : "no automaton";
    hs_free_compile_error(error);
    if (at < 0 || static_cast<std::size_t>(at) >= patterns.size()) return fail("the rules cannot be compiled: " + why);
    const auto k = static_cast<std::size_t>(at);
    if (ids[k] >= set.rules.size()) return fail("a built-in pattern cannot be compiled: " + why);
    notes.add("rule-without-automaton", Severity::warning, 1, set.rules[ids[k]].id + ": " + why,
              "such rules are looked for line by line, which is slow");
    const auto shared = state->rules_of.find(ids[k]);
    if (shared == state->rules_of.end()) {
      state->by_line.push_back(ids[k]);
    } else {
      state->by_line.insert(state->by_line.end(), shared->second->begin(), shared->second->end());
    }
    patterns.erase(patterns.begin() + at);
    ids.erase(ids.begin() + at);
    flags.erase(flags.begin() + at);
  }
  return std::shared_ptr<Matcher>(new Matcher(std::move(state)));
}

std::unique_ptr<LineFinder> Matcher::finder() const {
  return std::make_unique<Finder>(state_->database.get(), state_->by_line, state_->rules_of, *this);
}

PatternClass Matcher::class_of(std::uint32_t pattern) const {
  return pattern < state_->rules.size() ? PatternClass::rule : kBuiltIn[pattern - state_->rules.size()].kind;
}

bool Matcher::matches(std::uint32_t pattern, std::string_view message) const {
  const std::string& literal = state_->rules[pattern].literal;
  if (!literal.empty() && message.find(literal) == std::string_view::npos) return false;
  return state_->confirm[pattern]->Match(message, 0, message.size(), re2::RE2::UNANCHORED, nullptr, 0);
}

RuleGroups Matcher::groups(std::uint32_t pattern, std::string_view message) const {
  const re2::RE2& re = *state_->confirm[pattern];
  RuleGroups g;
  const int n = std::min(re.NumberOfCapturingGroups(), 15) + 1;
  std::array<re2::StringPiece, 16> parts;
  if (!re.Match(message, 0, message.size(), re2::RE2::UNANCHORED, parts.data(), n)) return g;
  g.from = static_cast<std::size_t>(parts[0].data() - message.data());
  g.to = g.from + parts[0].size();
  for (const auto& [name, index] : re.NamedCapturingGroups()) {
    if (index >= n || parts[static_cast<std::size_t>(index)].data() == nullptr) continue;
    std::string text(parts[static_cast<std::size_t>(index)]);
    if (name == "rank")
      g.rank = std::move(text);
    else if (name == "node")
      g.node = std::move(text);
    else if (name == "peer")
      g.peer = std::move(text);
  }
  return g;
}

const std::vector<Rule>& Matcher::rules() const { return state_->rules; }

}  // namespace orrery
