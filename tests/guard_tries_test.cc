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

TEST(GuardTries, ASaveThatNeverBecomesCompleteIsToldOnceUntilOneDoes) {
  SavesBegun saves;
  const auto at = [&](double now_s, bool over = false) { return saves.lost(now_s, over); };
  saves.begun(0, 40, true);
  saves.begun(10, 80, true);
  saves.begun(10, 80, true);  // another rank tells it as well
  EXPECT_EQ(at(100), "") << "checkpoints are not known yet";
  saves.complete(80);
  EXPECT_EQ(at(100), "");
  saves.begun(100, 120, true);
  EXPECT_EQ(at(300), "") << "it may take its time";
  saves.begun(300, 160, true);
  EXPECT_EQ(at(304), "") << "slow storage";
  EXPECT_EQ(at(305), "the checkpoint of iteration 120 never became complete: the newest is of 80");
  saves.begun(500, 200, true);
  EXPECT_EQ(at(600), "") << "once";
  saves.complete(200);
  saves.begun(700, 240, true);
  EXPECT_EQ(at(700, true), "the checkpoint of iteration 240 never became complete: the newest is of 200");
}

TEST(GuardTries, ASaveThatIsSlowOrToldTwiceIsNotLost) {
  SavesBegun saves;
  saves.complete(-1);
  saves.begun(0, 39, false);  // a heartbeat; the log counts otherwise
  saves.begun(0, 40, true);
  saves.begun(0.5, 41, false);
  EXPECT_EQ(saves.lost(100, false), "");
  saves.begun(100, 80, true);
  saves.complete(40);
  EXPECT_EQ(saves.lost(200, false), "");
  saves.complete(80);
  saves.begun(200, 80, true);  // its line came late
  EXPECT_EQ(saves.lost(300, true), "");
  SavesBegun none;
  none.complete(-1);
  none.begun(0, 5, false);
  none.begun(9, 10, false);
  EXPECT_EQ(none.lost(14, false), "the checkpoint of iteration 5 never became complete: none is");
}

}  // namespace
}  // namespace orrery
