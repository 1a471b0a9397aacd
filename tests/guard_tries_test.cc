// What is tried again and again: told once it lasts, repeated until it is done.
#include <gtest/gtest.h>

#include "supervisor/tries.h"

namespace orrery {
namespace {

TEST(GuardTries, TroubleThatLastsIsToldOnce) {
  LastingTrouble t;
  int told = 0;
  for (double s = 0; s < 300; s += 5) {
    const auto lasts = t.met("squeue", s);
    if (lasts) {
      EXPECT_DOUBLE_EQ(*lasts, 60);
    }
    told += lasts ? 1 : 0;
  }
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(t.met("squeue", 400)) << "it was over meanwhile";
  EXPECT_FALSE(t.met("other", 430));
  EXPECT_FALSE(t.met("squeue", 425));
  EXPECT_FALSE(t.met("squeue", 450));
  EXPECT_TRUE(t.met("squeue", 470));
}

TEST(GuardTries, DrainsAreRepeatedUntilTheyAreDone) {
  DrainsOwed d;
  Action a;
  a.node = "n1";
  EXPECT_TRUE(d.due(0).empty());
  d.failed(a, 100);
  EXPECT_TRUE(d.due(101).empty());
  ASSERT_EQ(d.due(105).size(), 1u);
  EXPECT_EQ(d.due(105)[0].node, "n1");
  for (double s = 105; s <= 165; s += 5) d.failed(a, s);
  EXPECT_TRUE(d.due(171).empty()) << "seldom, after a minute in vain";
  EXPECT_EQ(d.due(225).size(), 1u);
  EXPECT_EQ(d.all().size(), 1u);
  d.done("n1");
  EXPECT_TRUE(d.due(1000).empty());
}

}  // namespace
}  // namespace orrery
