#include "bench/techniques.h"

#include <algorithm>

#include "base/closest.h"
#include "base/json_text.h"
#include "base/toml.h"
#include "bench/embedded.h"

namespace orrery {
namespace {

tl::unexpected<Error> fail_at(const std::string& where, std::int64_t line, std::string what, std::string advice = {}) {
  return fail(quote_for_people(what, 400), where + ":" + std::to_string(line), std::move(advice));
}

std::int64_t line_of(const toml::node& n) { return std::max<std::int64_t>(1, n.source().begin.line); }

Status read_words(const toml::node& node, const std::string& where, std::vector<std::string>& out) {
  const toml::array* list = node.as_array();
  if (!list) return fail_at(where, line_of(node), "not a list of words", "[\"R\", \"F\"]");
  for (const toml::node& item : *list) {
    const auto word = item.value_exact<std::string>();
    if (!word) return fail_at(where, line_of(node), "not a list of words", "[\"R\", \"F\"]");
    out.push_back(*word);
  }
  return {};
}

Result<TechniqueRule> read_rule(const toml::table& t, const std::string& where) {
  TechniqueRule r;
  for (const auto& [key, node] : t) {
    const std::string_view k = key.str();
    std::vector<std::string>* words = k == "tasks"        ? &r.tasks
                                      : k == "frameworks" ? &r.frameworks
                                      : k == "of"         ? &r.of
                                      : k == "beside"     ? &r.beside
                                                          : nullptr;
    if (words != nullptr) {
      if (const Status ok = read_words(node, where, *words); !ok) return tl::unexpected(ok.error());
    } else if (k == "at_most" && node.is_integer()) {
      r.at_most = *node.value<std::int64_t>();
    } else if (k == "alone" && node.is_boolean()) {
      r.alone = *node.value<bool>();
    } else if (k == "reason" && node.is_string()) {
      r.reason = *node.value<std::string>();
    } else {
      return fail_at(where, line_of(node), "no key of a rule: " + std::string(k),
                     "tasks, frameworks, of, beside, at_most, alone, reason");
    }
  }
  if (r.reason.empty()) return fail_at(where, line_of(t), "a rule without a reason");
  return r;
}

bool holds(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

}  // namespace

bool Techniques::has(std::string_view letter) const { return holds(letters, letter); }

std::string to_text(const Techniques& t) {
  std::string s;
  for (const std::string& letter : t.letters) s += (s.empty() ? "" : "+") + letter;
  return s;
}

Result<TechniqueTable> parse_techniques(std::string_view text, const std::string& where) {
  const auto parsed = toml_text::parse(text);
  if (!parsed) return fail_at(where, parsed.error().line, parsed.error().what);
  TechniqueTable table;
  for (const auto& [key, node] : *parsed) {
    const toml::array* list = node.as_array();
    if ((key.str() != "technique" && key.str() != "rule") || !list || !list->is_homogeneous(toml::node_type::table))
      return fail_at(where, line_of(node), "not known: " + std::string(key.str()), "[[technique]] and [[rule]]");
    for (const toml::node& item : *list) {
      const toml::table& t = *item.as_table();
      if (key.str() == "rule") {
        auto rule = read_rule(t, where);
        if (!rule) return tl::unexpected(rule.error());
        table.rules.push_back(std::move(*rule));
        continue;
      }
      TechniqueFacts f{t["letter"].value_or(std::string()), t["name"].value_or(std::string())};
      if (f.letter.empty() || f.name.empty() || t.size() != 2)
        return fail_at(where, line_of(t), "a technique has a letter and a name");
      table.techniques.push_back(std::move(f));
    }
  }
  for (const TechniqueRule& r : table.rules)
    for (const std::vector<std::string>* letters : {&r.of, &r.beside})
      for (const std::string& letter : *letters)
        if (std::none_of(table.techniques.begin(), table.techniques.end(),
                         [&](const TechniqueFacts& f) { return f.letter == letter; }))
          return fail_at(where, 1, "no technique has the letter " + letter);
  return table;
}

const TechniqueTable& technique_table() {
  static const TechniqueTable table = [] {
    for (const EmbeddedBench& e : embedded_bench())
      if (e.name == "techniques") return parse_techniques(e.text, "techniques.toml").value();  // a test reads it
    return TechniqueTable{};
  }();
  return table;
}

Result<Techniques> read_techniques(std::string_view text) {
  std::vector<std::string> given;
  std::string word;
  const auto take = [&] {
    if (!word.empty()) given.push_back(word);
    word.clear();
  };
  for (const char c : text) {
    if (c == '+' || c == ',' || c == ' ') {
      take();
    } else {
      word += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    }
  }
  take();
  Techniques t;
  if (given.size() == 1 && (given[0] == "NONE" || given[0] == "NAIVE")) return t;
  std::vector<std::string_view> known;
  for (const TechniqueFacts& f : technique_table().techniques) known.push_back(f.letter);
  for (const std::string& g : given) {
    if (std::find(known.begin(), known.end(), g) == known.end()) {
      const std::string_view near = closest(g, known);
      return fail("no technique " + quote_for_people(g, 40), "",
                  near.empty() ? "R, F, Z2, Z3, Z2O, Z3O, Q, L, QL, P" : "did you mean " + std::string(near) + "?");
    }
    if (std::count(given.begin(), given.end(), g) > 1) return fail("technique " + g + " is given twice");
  }
  for (const std::string_view k : known)
    if (holds(given, k)) t.letters.emplace_back(k);
  return t;
}

std::string refused_because(const Techniques& t, std::string_view task, std::string_view framework) {
  for (const TechniqueRule& r : technique_table().rules) {
    if (!r.tasks.empty() && !holds(r.tasks, task)) continue;
    if (!r.frameworks.empty() && !holds(r.frameworks, framework)) continue;
    if (r.of.empty()) return r.reason;
    const auto count = [&](const std::vector<std::string>& of) {
      return std::count_if(t.letters.begin(), t.letters.end(), [&](const std::string& l) { return holds(of, l); });
    };
    const std::int64_t found = count(r.of);
    if (!r.beside.empty()) {
      if (found > 0 && count(r.beside) > 0) return r.reason;
    } else if (r.alone) {
      if (found > 0 && t.letters.size() > static_cast<std::size_t>(found)) return r.reason;
    } else if (found > r.at_most) {
      return r.reason;
    }
  }
  return "";
}

std::vector<Techniques> all_mixes(const Techniques& letters) {
  const std::size_t n = letters.letters.size();
  std::vector<Techniques> mixes;
  for (std::size_t bits = 0; bits < (std::size_t{1} << n); ++bits) {
    Techniques t;
    for (std::size_t i = 0; i < n; ++i)
      if ((bits >> i & 1) != 0) t.letters.push_back(letters.letters[i]);
    mixes.push_back(std::move(t));
  }
  std::stable_sort(mixes.begin(), mixes.end(),
                   [](const Techniques& a, const Techniques& b) { return a.letters.size() < b.letters.size(); });
  return mixes;
}

}  // namespace orrery
