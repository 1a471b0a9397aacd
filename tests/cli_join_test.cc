// The whole tool on ranks that belong together, and on ranks that do not.
#include <gtest/gtest.h>

#include "cli_run.h"
#include "job_builder.h"
#include "synthesis/synthetic_job.h"
#include "writers/kineto_writer.h"

namespace orrery::test {
namespace {

using testing::job;
using testing::steady;

TEST(CliJoin, RefusesDifferentJobsInOneLine) {
  const auto run = [](TraceSet set) {
    const TempDir dir;
    for (RankTrace& t : set.ranks) {  // device 0 for rank 0, 1 for rank 1: one host
      for (std::size_t l = 0; l < t.lanes.size(); ++l)
        if (t.lanes.kind[l] == LaneKind::stream) t.lanes.pid[l] = t.rank;
      write_text(dir / t.file, to_kineto_json(t));
    }
    return orrery("replay " + dir.path.string());
  };
  const Outcome good = run(job(steady(0, "a", 2, 1e6), steady(1, "a", 2, 1e6)));
  EXPECT_EQ(good.status, 0) << good.err;
  for (const auto& [set, says] :
       {std::pair{+[] { return job(steady(0, "a", 2, 1e6), steady(1, "a", 4, 1e6)); }, "different jobs"},
        std::pair{+[] { return job(steady(0, "a", 2, 1e6), steady(1, "a", 2, 61e6)); }, "different runs"},
        std::pair{+[] { return job(steady(0, "a", 2, 1e6), steady(1, "a", 2, 6e6)); }, "different runs"}}) {
    const Outcome bad = run(set());
    EXPECT_EQ(bad.status, 2) << says;
    EXPECT_EQ(bad.out, "");
    EXPECT_EQ(std::count(bad.err.begin(), bad.err.end(), '\n'), 1) << bad.err;
    EXPECT_NE(bad.err.find(says), std::string::npos) << bad.err;
  }
}

// Files in any order, by name or by folder.
TEST(CliJoin, OrderOfFilesChangesNothing) {
  SyntheticJob made;
  made.layers = 2;
  made.tp = 1;
  made.hidden = 256;
  made.seq_length = 256;
  const auto ranks = synthesize(made);
  ASSERT_TRUE(ranks.has_value()) << ranks.error().line();
  const TempDir dir;
  std::string forward, backward;
  for (const SyntheticRank& r : *ranks) {
    const std::string file = dir / ("rank-" + std::to_string(r.rank) + ".json");
    write_text(file, r.json);
    forward += " " + file;
    backward = " " + file + backward;
  }
  const Outcome o = orrery("replay" + forward);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("matched collectives %         100.00"), std::string::npos) << o.out;
  EXPECT_EQ(orrery("replay" + backward).out, o.out);
  EXPECT_EQ(orrery("replay " + dir.path.string()).out, o.out);
}

}  // namespace
}  // namespace orrery::test
