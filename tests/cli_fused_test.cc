// The whole tool on files in which a tool fused the traces of several ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cli_run.h"
#include "fused_traces.h"

namespace orrery {
namespace {

using namespace orrery::testing;
using test::orrery;
using test::TempDir;
using test::write_text;

struct CliFused : ::testing::Test {
  TempDir dir;
};

// A replay's tables without what the file alone tells of a rank.
Json tables(const std::string& inputs) {
  const auto o = orrery("replay --json " + inputs);
  EXPECT_EQ(o.status, 0) << o.err;
  Json j = Json::parse(o.out, nullptr, false);
  if (j.is_discarded()) return {};
  for (Json& rank : j["ranks"]) rank.erase("file"), rank.erase("device");
  j.erase("inputs");
  j.erase("notes");
  return j;
}

TEST_F(CliFused, ReplayOfTheSampleFusedIsThatOfItsFiles) {
  const std::vector<Json> documents = sample();
  const Json files = tables("samples/gpt-tp2-pp2-dp2");
  ASSERT_EQ(files["ranks"].size(), 8u);
  const std::string path = dir / "fused.json";
  for (const Style& style :
       {Style{}, Style{.pids = Style::shifted, .rank_as_text = true}, Style{.pids = Style::text}}) {
    write_text(path, fused(documents, style));
    EXPECT_TRUE(tables(path) == files) << "style " << style.pids;
  }
  const Json j = Json::parse(orrery("replay --json " + path).out);
  for (const Json& rank : j["ranks"]) EXPECT_EQ(rank["file"], path);
  EXPECT_EQ(j["ranks"][0]["device"], "NVIDIA H100 80GB HBM3");
  EXPECT_TRUE(j["ranks"][1]["device"].is_null()) << "deviceProperties are those of the rank that distributedInfo names";
}

TEST_F(CliFused, ACollectiveJoinsTheRanks) {
  const std::string path = dir / "both.json";
  write_text(path, fused({small_rank(0), small_rank(1)}, {}));
  const auto o = orrery("replay --json " + path);
  ASSERT_EQ(o.status, 0) << o.err;
  const Json j = Json::parse(o.out);
  ASSERT_EQ(j["ranks"].size(), 2u);
  ASSERT_EQ(j["collectives"].size(), 1u) << j["collectives"].dump();
  EXPECT_EQ(j["collectives"][0]["count"], 1);
  EXPECT_EQ(j["collectives"][0]["kernels"], 2);
  EXPECT_EQ(j["quality"]["matched_collectives_pct"], 100.0) << j["quality"].dump();
}

void expect_refused(const test::Outcome& o, const std::string& says) {
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << o.err;
}

TEST_F(CliFused, RankOptionAndDoubleRanksAreErrors) {
  const std::string path = dir / "both.json";
  write_text(path, fused({small_rank(0), small_rank(1)}, {}));
  expect_refused(orrery("replay --rank " + path + "=4 " + path), "2 ranks are fused");
  const std::string other = dir / "rank-1.json";
  write_text(other, small_rank(1).dump());
  expect_refused(orrery("replay " + path + " " + other), "both are rank 1");
  EXPECT_EQ(orrery("replay --rank " + other + "=2 " + path + " " + other).err.find("both are"), std::string::npos);
}

// Each rank is handed over once, with a place of its own, also where several files are read side by side.
TEST_F(CliFused, EveryRankIsHandedOverOnce) {
  write_text(dir / "a.json", fused({small_rank(0), small_rank(1)}, {}));
  Json more[2] = {small_rank(0), small_rank(1)};
  more[0]["distributedInfo"]["rank"] = 2;
  more[1]["distributedInfo"]["rank"] = 3;
  write_text(dir / "b.json", fused({more[0], more[1]}, {}));
  write_text(dir / "rank-4.json", document({cpu_op("op", "1", "1")}));
  for (const unsigned threads : {1u, 2u, 8u}) {
    std::mutex mutex;
    std::vector<std::pair<std::uint32_t, std::string>> seen;
    ImportOptions options;
    options.threads = threads;
    options.on_trace = [&](RankTrace& t, unsigned worker) -> Status {
      const std::lock_guard lock(mutex);
      EXPECT_LT(worker, options.workers());
      seen.emplace_back(t.place, t.file + " " + std::to_string(t.rank));
      return {};
    };
    const auto set = import_traces({dir.path.string()}, options);
    ORRERY_IMPORTED(set);
    ASSERT_EQ(set->ranks.size(), 5u);
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), 5u);
    for (std::uint32_t k = 0; k < 5; ++k) EXPECT_EQ(seen[k].first, k);
    for (std::size_t k = 0; k < 5; ++k) EXPECT_EQ(set->ranks[k].rank, static_cast<std::int64_t>(k));
    for (const RankTrace& t : set->ranks) {
      if (t.rank == 4) continue;  // told by its name, later
      EXPECT_EQ(seen[t.place].second, t.file + " " + std::to_string(t.rank));
    }
    options.on_trace = [](RankTrace& t, unsigned) -> Status {
      if (t.rank == 3) return fail("no", t.file);
      return {};
    };
    EXPECT_FALSE(import_traces({dir.path.string()}, options));
  }
}

}  // namespace
}  // namespace orrery
