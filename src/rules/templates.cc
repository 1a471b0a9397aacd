#include "rules/templates.h"

#include <algorithm>
#include <map>

namespace orrery {
namespace {

constexpr std::size_t kValues = 3;           // a word that takes so many values in one place varies
constexpr std::size_t kConstants = 3;        // words that must stay for two groups to be of a kind
constexpr std::size_t kFewValues = 6;        // up to so many values, ...
constexpr std::uint64_t kOften = 8;          // ... each in so many lines: names of events, not values
constexpr int kRounds = 3;                   // places that may vary one after another
constexpr std::size_t kMostMerged = 100000;  // groups; beyond, nothing is merged

using Tokens = std::vector<std::string>;

bool is_word(const std::string& t) {
  return t != "*" && t != "?" && ((t[0] >= 'a' && t[0] <= 'z') || (t[0] >= 'A' && t[0] <= 'Z'));
}
bool is_constant(const std::string& t) {
  return is_word(t) && t.size() >= 2 && ((t[1] >= 'a' && t[1] <= 'z') || (t[1] >= 'A' && t[1] <= 'Z'));
}

Tokens collapsed(const Tokens& tokens) {
  Tokens out;
  for (const std::string& t : tokens) {
    out.push_back(t);
    for (;;) {
      const std::size_t n = out.size();
      if (n >= 2 && out[n - 1] == "*" && out[n - 2] == "*") {
        out.pop_back();
      } else if (n >= 3 && out[n - 1] == "*" && out[n - 3] == "*" && out[n - 2].size() == 1 &&
                 std::string_view(",:/-@+#%&?|._~").find(out[n - 2][0]) != std::string_view::npos) {
        out.resize(n - 2);
      } else {
        break;
      }
    }
  }
  return out;
}

std::string joined(const Tokens& tokens, std::string_view star) {
  std::string out;
  for (const std::string& t : tokens) {
    if (!out.empty()) out.push_back(' ');
    if (t == "*") {
      out.append(star);
    } else {
      out.append(t);
    }
  }
  return out;
}

struct Kind {
  Tokens tokens;
  std::vector<std::uint32_t> groups;
  std::uint64_t lines = 0;
  bool gone = false;
};

// One round: for each place of a word, kinds alike but for it.
bool merge_round(std::vector<Kind>& kinds) {
  std::map<std::string, std::vector<std::uint32_t>> alike;
  std::string key;
  for (std::uint32_t k = 0; k < kinds.size(); ++k) {
    const Tokens& t = kinds[k].tokens;
    const auto constants = static_cast<std::size_t>(std::count_if(t.begin(), t.end(), is_constant));
    for (std::size_t i = 0; i < t.size(); ++i) {
      if (!is_word(t[i]) || constants - (is_constant(t[i]) ? 1 : 0) < kConstants) continue;
      key.clear();
      for (std::size_t j = 0; j < t.size(); ++j) {
        if (j == i) {
          key.push_back('\x01');
        } else {
          key.append(t[j]);
        }
        key.push_back(' ');
      }
      alike[key].push_back(k);
    }
  }
  std::vector<std::pair<const std::string*, std::vector<std::uint32_t>*>> order;
  for (auto& [k, members] : alike)
    if (members.size() >= kValues) order.emplace_back(&k, &members);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second->size() > b.second->size(); });
  bool any = false;
  std::vector<Kind> made;
  for (const auto& [k, members] : order) {
    std::erase_if(*members, [&](std::uint32_t m) { return kinds[m].gone; });
    if (members->size() < kValues) continue;
    const auto rarest = std::min_element(members->begin(), members->end(), [&](std::uint32_t a, std::uint32_t b) {
      return kinds[a].lines < kinds[b].lines;
    });
    if (members->size() <= kFewValues && kinds[*rarest].lines >= kOften) continue;
    Kind whole;
    whole.tokens = kinds[members->front()].tokens;
    const Tokens& other = kinds[members->back()].tokens;
    for (std::size_t i = 0; i < whole.tokens.size(); ++i)
      if (whole.tokens[i] != other[i]) whole.tokens[i].assign(1, '*');
    whole.tokens = collapsed(whole.tokens);
    for (const std::uint32_t m : *members) {
      whole.lines += kinds[m].lines;
      whole.groups.insert(whole.groups.end(), kinds[m].groups.begin(), kinds[m].groups.end());
      kinds[m].gone = true;
    }
    made.push_back(std::move(whole));
    any = true;
  }
  if (!any) return false;
  std::erase_if(kinds, [](const Kind& k) { return k.gone; });
  for (Kind& k : made) kinds.push_back(std::move(k));
  // What became the same is one.
  std::map<Tokens, std::size_t> known;
  std::vector<Kind> unique;
  for (Kind& k : kinds) {
    const auto [it, fresh] = known.emplace(k.tokens, unique.size());
    if (fresh) {
      unique.push_back(std::move(k));
      continue;
    }
    Kind& same = unique[it->second];
    same.lines += k.lines;
    same.groups.insert(same.groups.end(), k.groups.begin(), k.groups.end());
  }
  kinds = std::move(unique);
  return true;
}

}  // namespace

std::uint32_t TemplateMiner::add(std::string_view line) {
  std::vector<std::string> tokens = masked_tokens(line);
  const auto [it, fresh] = group_of_.emplace(joined(tokens, "*"), static_cast<std::uint32_t>(tokens_.size()));
  if (fresh) {
    tokens_.push_back(std::move(tokens));
    lines_.push_back(0);
  }
  ++lines_[it->second];
  return it->second;
}

TemplateMiner::Result TemplateMiner::finish() const {
  std::vector<Kind> kinds;
  for (std::uint32_t g = 0; g < tokens_.size(); ++g) kinds.push_back({tokens_[g], {g}, lines_[g], false});
  if (kinds.size() <= kMostMerged)
    for (int round = 0; round < kRounds && merge_round(kinds); ++round) continue;
  // Templates by their first group.
  std::sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) {
    return *std::min_element(a.groups.begin(), a.groups.end()) < *std::min_element(b.groups.begin(), b.groups.end());
  });
  Result r;
  r.merged.resize(tokens_.size());
  for (std::uint32_t t = 0; t < kinds.size(); ++t) {
    for (const std::uint32_t g : kinds[t].groups) r.merged[g] = t;
    r.templates.push_back(joined(kinds[t].tokens, "<*>"));
    r.lines.push_back(kinds[t].lines);
  }
  return r;
}

}  // namespace orrery
