// The built-in rules, one by one: each finds its sample and not its counter-example, alone and among all the others.
#include <gtest/gtest.h>

#include <set>

#include "log_helpers.h"

namespace orrery::test {
namespace {

TEST(RuleFiles, EveryRuleFindsItsSampleAndNotItsCounterExample) {
  const Matcher& m = built_in_matcher();
  std::set<std::string> ids;
  for (std::uint32_t i = 0; i < m.rules().size(); ++i) {
    const Rule& r = m.rules()[i];
    EXPECT_TRUE(ids.insert(r.id).second) << r.id << " twice";
    EXPECT_TRUE(m.matches(i, r.sample)) << r.id << ": " << r.sample;
    EXPECT_FALSE(m.matches(i, r.counter)) << r.id << ": " << r.counter;
    EXPECT_FALSE(r.sample.empty() || r.counter.empty()) << r.id;
  }
  EXPECT_GT(ids.size(), 300u);
}

// The one scan of all rules finds what each of them finds alone.
TEST(RuleFiles, OneScanFindsEverySample) {
  const Matcher& m = built_in_matcher();
  const auto finder = m.finder();
  for (std::uint32_t i = 0; i < m.rules().size(); ++i) {
    std::vector<PatternHit> hits;
    finder->find("before\n" + m.rules()[i].sample + "\nafter\n", hits);
    const bool found = std::any_of(hits.begin(), hits.end(), [&](const PatternHit& h) { return h.pattern == i; });
    EXPECT_TRUE(found) << m.rules()[i].id << ": " << m.rules()[i].sample;
  }
}

TEST(RuleFiles, EveryCauseSaysWhatToDo) {
  for (const Rule& r : built_in_matcher().rules()) {
    if (r.role != Role::cause && r.role != Role::interruption) continue;
    ASSERT_NE(find_reason(r.reason), nullptr) << r.id;
    EXPECT_FALSE(r.advice.empty() || r.restart.empty() || r.who.empty() || r.category.empty()) << r.id;
    for (const std::string& kind : r.needs) {
      const auto& all = built_in_matcher().rules();
      EXPECT_TRUE(kind == "numeric" ||
                  std::any_of(all.begin(), all.end(), [&](const Rule& o) { return o.kind == kind; }))
          << r.id << " needs " << kind;
    }
  }
}

TEST(RuleFiles, XidsByTheirAction) {
  const auto restart_of = [](int xid) {
    const Diagnosis d = diagnose_text("NVRM: Xid (PCI:0000:9b:00): " + std::to_string(xid) +
                                      ", pid=1, name=python, x\n"
                                      "[rank0]: RuntimeError: CUDA error: unspecified launch failure\n");
    return d.reason + " " + d.restart;
  };
  EXPECT_EQ(restart_of(79), "CUDA Error auto-exclude");
  EXPECT_EQ(restart_of(94), "ECC Error auto");
  EXPECT_EQ(restart_of(48), "ECC Error auto-exclude");
  EXPECT_EQ(restart_of(74), "NVLink Error auto-exclude");
  EXPECT_EQ(restart_of(31), "CUDA Error auto");
}

TEST(RuleFiles, UsersRulesAndTheirMistakes) {
  const auto good = parse_rules(
      "[family]\nname = 'mine'\ntier = 2\n[[rule]]\nid = 'a'\npattern = 'boom'\n"
      "reason = 'Key Error'\n",
      "mine.toml");
  ASSERT_TRUE(good.has_value()) << good.error().line();
  EXPECT_EQ(good->at(0).category, "Script");
  EXPECT_EQ(good->at(0).restart, "no");
  EXPECT_EQ(good->at(0).kind, "mine");
  const struct {
    const char* text;
    const char* says;
  } bad[] = {
      {"[[rule]]\nid = 'a'\n", "mine.toml:1: rule a needs a pattern or an exception"},
      {"[[rule]]\nid = 'a'\npattern = 'x'\nreason = 'No Such'\n", "not a reason: No Such"},
      {"[[rule]]\nid = 'a'\npatern = 'x'\n", "did you mean pattern?"},
      {"[[rule]]\nid = 'a'\npattern = 'x'\nrole = 'villain'\n", "not a role: villain"},
      {"[[rule]]\npattern = 'x'\nreason = 'Key Error'\n", "a rule has no id"},
      {"[[rule]]\nid = 'a'\npattern = 'x'\nreason = 'Key Error'\ntier = 9\n", "tier is not from 0 to 6"},
      {"[[rule]]\nid = 'a'\npattern = 'x'\nreason = 'Key Error'\ncategory = 'Magic'\n",
       "mine.toml:5: rule a: not a category: Magic"},
      {"[[rule]]\nid = 'a'\npattern = 'x'\nreason = 'Key Error'\nrestart = 'maybe'\n", "not a restart: maybe"},
      {"[[rule]]\nid = 'a'\npattern = 'x'\nreason = 'Key Error'\nwhere = 'moon'\n", "not a where: moon"},
      {"[[rule]]\nid = 'a'\npattern = 'x'\nreason = 'Key Error'\nwho = 'me'\n", "not a who: me"},
      {"rules = [[[", "not TOML"},
  };
  for (const auto& b : bad) {
    const auto r = parse_rules(b.text, "mine.toml");
    ASSERT_FALSE(r.has_value()) << b.text;
    EXPECT_NE(r.error().line().find(b.says), std::string::npos) << r.error().line();
  }
}

TEST(RuleFiles, PatternsThatCannotBeUsedAreRefused) {
  Notes notes;
  for (const char* pattern : {"(unclosed", "x*", "(?=ahead)y"}) {
    Rule r;
    r.id = "r";
    r.pattern = pattern;
    EXPECT_FALSE(Matcher::compile({{r}}, notes).has_value()) << pattern;
  }
}

// A thousand rules more are one scan all the same, and find their own lines.
TEST(RuleFiles, AThousandRulesMore) {
  RuleSet set = *built_in_rules();
  const std::size_t first = set.rules.size();
  for (int i = 0; i < 1000; ++i) {
    Rule r;
    r.id = "extra-" + std::to_string(i);
    r.pattern = "gizmo " + std::to_string(i) + " failed to [a-z]+ its flange";
    r.reason = "Runtime Error";
    r.category = "Framework";
    r.restart = "no";
    r.kind = "extra";
    set.rules.push_back(r);
  }
  Notes notes;
  const auto m = Matcher::compile(set, notes);
  ASSERT_TRUE(m.has_value());
  EXPECT_TRUE(notes.rows.empty());
  std::vector<PatternHit> hits;
  (*m)->finder()->find("gizmo 417 failed to close its flange\n", hits);
  ASSERT_EQ(hits.size(), 1u);
  EXPECT_EQ(hits[0].pattern, first + 417);
}

}  // namespace
}  // namespace orrery::test
