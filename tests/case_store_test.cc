// Past cases are found again by what their lines have in common; healthy runs teach what to leave out.
#include "rules/case_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace orrery {
namespace {

struct Store : testing::Test {
  std::string path =
      (std::filesystem::temp_directory_path() / ("orrery-cases-" + std::to_string(::getpid()) + ".db")).string();
  void SetUp() override { std::filesystem::remove(path); }
  void TearDown() override { std::filesystem::remove(path); }
};

std::vector<KeptLine> lines(std::initializer_list<const char*> texts) {
  std::vector<KeptLine> out;
  for (const char* t : texts) out.push_back({0, out.size() + 1, t});
  return out;
}

PastCase reason(const std::string& name) {
  PastCase c;
  c.label = name + ".log";
  c.reason = name;
  c.category = "Framework";
  c.restart = "no";
  return c;
}

TEST_F(Store, TheNearestCaseAndHowNear) {
  auto store = CaseStore::open(path);
  ASSERT_TRUE(store.has_value());
  EXPECT_FALSE(store->nearest(lines({"anything"}))->has_value());
  ASSERT_TRUE(
      store->remember(reason("Runtime Error"), lines({"flux capacitor of shard 7 lost its alignment", "giving up"})));
  ASSERT_TRUE(store->remember(reason("OS Error"), lines({"cannot write page 12 of the ledger volume", "giving up"})));
  ASSERT_TRUE(store->remember(reason("Key Error"), lines({"the registry has no entry for sampler beta"})));
  const auto same = store->nearest(lines({"flux capacitor of shard 9 lost its alignment", "giving up"}));
  ASSERT_TRUE(same.has_value() && same->has_value());
  EXPECT_EQ((*same)->reason, "Runtime Error");
  EXPECT_NEAR((*same)->similarity, 1, 1e-9);  // numbers do not count
  const auto near = store->nearest(lines({"flux capacitor of shard 9 lost its phase", "step aside"}));
  EXPECT_EQ((*near)->reason, "Runtime Error");
  EXPECT_LT((*near)->similarity, 0.95);
  EXPECT_GT((*near)->similarity, 0.3);
  const auto none = store->nearest(lines({"wholly different words altogether"}));
  EXPECT_FALSE(none->has_value());
}

TEST_F(Store, CasesStayAndAreNotKeptTwice) {
  const auto text = lines({"flux capacitor lost its alignment"});
  for (int i = 0; i < 3; ++i) {
    auto store = CaseStore::open(path);
    ASSERT_TRUE(store.has_value());
    ASSERT_TRUE(store->remember(reason("Runtime Error"), text));
    ASSERT_TRUE(store->remember(reason("OS Error"), lines({"something else entirely happened"})));
  }
  const auto found = CaseStore::open(path)->nearest(text);
  EXPECT_EQ((*found)->id, 1);
}

TEST_F(Store, ShapesOfAJob) {
  auto store = CaseStore::open(path);
  ASSERT_TRUE(store->learn("llm-7b", {{11, "all is well"}, {12, "step"}}, true));
  ASSERT_TRUE(store->learn("other", {{13, "noise"}}, false));
  EXPECT_EQ(store->known("llm-7b")->size(), 2u);
  EXPECT_EQ(store->known("nobody")->size(), 0u);
  EXPECT_EQ(*store->healthy_lines(), (std::vector<std::string>{"all is well", "step"}));
}

TEST_F(Store, WhatIsNoStoreIsRefused) {
  std::ofstream(path) << std::string(5000, 'x');
  const auto store = CaseStore::open(path);
  ASSERT_FALSE(store.has_value());
  EXPECT_NE(store.error().line().find(path), std::string::npos);
  EXPECT_FALSE(CaseStore::open("/nowhere/at/all.db").has_value());
}

}  // namespace
}  // namespace orrery
