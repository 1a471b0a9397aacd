// Several ranks: complete when all are, and read back by any number of others.
#include <atomic>
#include <cerrno>
#include <thread>

#include "checkpoint_helpers.h"

namespace orrery::ckpt::test {
namespace {

constexpr std::int64_t rows = 40;

struct Team {
  std::vector<Writer> ranks;
  Team(const std::string& directory, int world, const std::string& session, double peer_timeout_s = 20,
       const StorageFault& last_ones_fault = {}) {
    for (int r = 0; r < world; ++r) {
      Options o = small_options(directory);
      o.rank = r;
      o.world = world;
      o.session = session;
      o.peer_timeout_s = peer_timeout_s;
      if (r == world - 1) o.fault = last_ones_fault;
      auto w = Writer::open(o);
      EXPECT_TRUE(w) << w.error().line();
      ranks.push_back(std::move(*w));
    }
  }
  Writer& operator[](int r) { return ranks[static_cast<std::size_t>(r)]; }
  // Rank `r` saves its share of the rows.
  void save(int r, std::int64_t step) {
    const auto world = static_cast<std::int64_t>(ranks.size());
    const ToyState state(step);
    const auto views = state.piece(rows * r / world, rows * (r + 1) / world, r == 0);
    const auto saved = ranks[static_cast<std::size_t>(r)].save(step, Slot::full, views, {});
    ASSERT_TRUE(saved) << saved.error().line();
  }
};

TEST(CheckpointRanks, CompleteOnlyWhenAllAreThere) {
  const Scratch dir;
  Team team(dir / "c", 3, "a");
  team.save(0, 5);
  team.save(1, 5);
  ASSERT_TRUE(team[1].wait(20));
  EXPECT_FALSE(team[0].wait(0.05));  // rank 2 is missing
  EXPECT_TRUE(steps_in(dir / "c").empty());
  team.save(2, 5);
  ASSERT_TRUE(team[0].wait(20));
  EXPECT_EQ(newest_step(dir / "c"), 5);
}

TEST(CheckpointRanks, EveryNumberOfRanksReadsWhatEveryOtherWrote) {
  const ToyState state(9);
  for (int writers = 1; writers <= 5; ++writers) {
    const Scratch dir;
    {
      Team team(dir / "c", writers, "a");
      for (int r = 0; r < writers; ++r) team.save(r, 9);
      ASSERT_TRUE(team[0].wait(20));
    }
    const auto c = Checkpoint::newest_good(dir / "c");
    ASSERT_TRUE(c && *c);
    EXPECT_EQ((*c)->world(), writers);
    EXPECT_EQ(differs(**c), "");
    for (int readers = 1; readers <= 6; ++readers) {
      for (int r = 0; r < readers; ++r) {
        const std::int64_t begin = rows * r / readers, end = rows * (r + 1) / readers;
        std::vector<float> got(static_cast<std::size_t>(3 * (end - begin)), -1);
        ASSERT_TRUE((*c)->read_part("weights", 0, begin, end, got.data()));
        EXPECT_TRUE(std::equal(got.begin(), got.end(), state.weights.begin() + 3 * begin));
      }
    }
    for (std::int64_t column = 0; column < 3; ++column) {  // across the split
      std::vector<float> got(rows, -1);
      ASSERT_TRUE((*c)->read_part("weights", 1, column, column + 1, got.data()));
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i], state.weights[3 * i + static_cast<std::size_t>(column)]);
      }
    }
  }
}

// [2, 6, 2] of 0..23 split along the middle dimension: (1, 4, 1).
TEST(CheckpointRanks, SplitAlongAnInnerDimension) {
  const Scratch dir;
  std::vector<std::int16_t> whole(24);
  for (std::size_t i = 0; i < 24; ++i) whole[i] = static_cast<std::int16_t>(i);
  {
    Team team(dir / "c", 3, "a");
    const std::int64_t widths[] = {1, 4, 1};
    std::int64_t offset = 0;
    for (int r = 0; r < 3; ++r) {
      std::vector<std::int16_t> mine;
      for (std::int64_t a = 0; a < 2; ++a) {
        for (std::int64_t i = offset * 2; i < (offset + widths[r]) * 2; ++i) {
          mine.push_back(whole[static_cast<std::size_t>(a * 12 + i)]);
        }
      }
      TensorView t{"x", DType::i16, {2, widths[r], 2}, mine.data(), Place::host, 1, offset, 6};
      ASSERT_TRUE(team[r].save(1, Slot::full, {&t, 1}, {}));
      offset += widths[r];
    }
    ASSERT_TRUE(team[0].wait(20));
  }
  const auto c = Checkpoint::newest_good(dir / "c");
  ASSERT_TRUE(c && *c);
  std::vector<std::int16_t> got(24, -1);
  ASSERT_TRUE((*c)->read("x", got.data()));
  EXPECT_EQ(got, whole);
  const std::int64_t begin[] = {1, 0, 1}, shape[] = {1, 5, 1};
  std::vector<std::int16_t> box(5, -1);
  ASSERT_TRUE((*c)->read("x", begin, shape, box.data()));
  EXPECT_EQ(box, (std::vector<std::int16_t>{13, 15, 17, 19, 21}));
  const std::int64_t beyond[] = {0, 2, 1};
  EXPECT_FALSE((*c)->read("x", beyond, shape, box.data()));
  EXPECT_FALSE((*c)->read("y", box.data()));
}

TEST(CheckpointRanks, ARankThatSkipsLetsTheOthersKnow) {
  const Scratch dir;
  Team team(dir / "c", 2, "a");
  team.save(0, 1);
  const TensorView bad{"", DType::f32, {}, nullptr};
  EXPECT_FALSE(team[1].save(1, Slot::full, {&bad, 1}, {}));
  const auto ok = team[0].wait(10);  // at once, not after the peer timeout
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().line().find("rank 1: a tensor has no name"), std::string::npos) << ok.error().line();
  EXPECT_EQ(team[0].stats().abandoned, 1u);
  team.save(0, 2);
  team.save(1, 2);
  ASSERT_TRUE(team[0].wait(20));
  EXPECT_EQ(newest_step(dir / "c"), 2);
  EXPECT_EQ(steps_in(dir / "c").size(), 1u);
}

TEST(CheckpointRanks, ARankThatIsSilentIsWaitedForSoLong) {
  const Scratch dir;
  Team team(dir / "c", 2, "a", 0.05);
  team.save(0, 1);
  const auto ok = team[0].wait(10);
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().line().find("rank 1 has not written"), std::string::npos) << ok.error().line();
  team.save(1, 1);         // too late
  (void)team[1].wait(20);  // its part is written or swept away
  EXPECT_EQ(newest_step(dir / "c"), -1);
}

TEST(CheckpointRanks, OneThatIsPassedIsNeverCompleted) {
  const Scratch dir;
  std::atomic<bool> gone{false};
  Team team(dir / "c", 2, "a", 20, [&](std::string_view, const std::string&) { return gone ? EIO : 0; });
  gone = true;  // rank 1's storage takes nothing, not even word that it took nothing
  for (int r = 0; r < 2; ++r) team.save(r, 1);
  ASSERT_FALSE(team[1].wait(20));
  gone = false;
  for (int r = 0; r < 2; ++r) team.save(r, 2);
  const auto ok = team[0].wait(10);
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().line().find("step 1: overtaken by step 2"), std::string::npos) << ok.error().line();
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{2}));
  EXPECT_EQ(team[0].stats().abandoned, 1u);
}

// Rank 0's look at one hangs so long that the next is seen complete first.
TEST(CheckpointRanks, OneThatIsCompleteIsNotOvertaken) {
  const Scratch dir;
  std::atomic<bool> second_seen{false};
  std::vector<Writer> ranks;
  for (int r = 0; r < 2; ++r) {
    Options o = small_options(dir / "c");
    o.rank = r;
    o.world = 2;
    o.session = "a";
    if (r == 0)
      o.fault = [&](std::string_view operation, const std::string& path) {
        if (operation != "stat" || path.find("rank-00001.receipt.json") == std::string::npos) return 0;
        if (path.find("step-000000000002") != std::string::npos) second_seen = true;
        return second_seen ? 0 : ENOENT;
      };
    auto w = Writer::open(o);
    ASSERT_TRUE(w) << w.error().line();
    ranks.push_back(std::move(*w));
  }
  for (const int r : {1, 0}) {
    for (const int step : {1, 2}) {
      const ToyState state(step);
      const auto views = state.piece(20 * r, 20 * (r + 1), r == 0);
      ASSERT_TRUE(ranks[static_cast<std::size_t>(r)].save(step, Slot::full, views, {}));
    }
    if (r == 1) {
      ASSERT_TRUE(ranks[1].wait(60));
    }
  }
  const auto ok = ranks[0].wait(60);
  EXPECT_TRUE(ok) << ok.error().line();
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{2, 1})) << "the newest is the later one";
}

TEST(CheckpointRanks, CopiesThatDifferAreNotCommitted) {
  const Scratch dir;
  Team team(dir / "c", 2, "a");
  for (int r = 0; r < 2; ++r) {
    const ToyState state(1);
    auto views = state.views();
    const std::int64_t other = r;
    views[1].data = &other;
    ASSERT_TRUE(team[r].save(1, Slot::full, views, {}));
  }
  const auto ok = team[0].wait(20);
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().line().find("different values of tensor steps"), std::string::npos) << ok.error().line();
  EXPECT_EQ(newest_step(dir / "c"), -1);
}

TEST(CheckpointRanks, PartsOfADeadRunAreNotUsed) {
  const Scratch dir;
  {
    Team team(dir / "c", 2, "a", 0.05);
    team.save(1, 1);  // rank 0 never did
    ASSERT_TRUE(team[1].wait(20));
  }
  Team team(dir / "c", 2, "b", 0.05);
  team.save(0, 1);
  const auto ok = team[0].wait(10);
  ASSERT_FALSE(ok);
  EXPECT_EQ(newest_step(dir / "c"), -1);
}

TEST(CheckpointRanks, ManyRanksNeedASession) {
  const Scratch dir;
  Options o = small_options(dir / "c");
  o.world = 2;
  ::unsetenv("SLURM_JOB_ID");
  const auto w = Writer::open(o);
  ASSERT_FALSE(w);
  EXPECT_NE(w.error().line().find("no session"), std::string::npos);
}

TEST(CheckpointRanks, FewerRanksThanBeforeGoOn) {
  const Scratch dir;
  {
    Team team(dir / "c", 4, "a");
    for (int r = 0; r < 4; ++r) team.save(r, 1);
    ASSERT_TRUE(team[0].wait(20));
  }
  Team team(dir / "c", 3, "b");
  for (int r = 0; r < 3; ++r) team.save(r, 2);
  ASSERT_TRUE(team[0].wait(20));
  EXPECT_EQ(newest_step(dir / "c"), 2);
  const auto c = Checkpoint::newest_good(dir / "c");
  EXPECT_EQ((*c)->world(), 3);
  for (int part = 0; part < 2; ++part) EXPECT_TRUE((*c)->verify(part, 2));
}

}  // namespace
}  // namespace orrery::ckpt::test
