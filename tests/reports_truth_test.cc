// Reports against others that know the answer: the maker of a made-up job, the simulator of the simulated jobs, and
// another program on real traces.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "importers/importers.h"
#include "reference/report_helpers.h"
#include "synthesis/synthetic_job.h"

namespace orrery {
namespace {

// The job of the sample, made up with rendezvous between its ranks: its maker sums the classes by itself while it
// plays.
TEST(MadeUpJob, ClassesAreItsTruth) {
  SyntheticJob job;
  job.layers = 2;
  job.hidden = 256;
  job.seq_length = 256;
  const auto made = run_job(job);
  ASSERT_TRUE(made.has_value()) << made.error().line();
  const ExecGraph& g = made->graph;
  ASSERT_TRUE(check(g).has_value()) << check(g).error().line();
  const auto rows = *select_steps(g, {});
  ASSERT_EQ(rows.size(), 16u);  // 8 ranks, 2 steps
  Ns idle = 0;
  for (const StepTimes& t : times_of(g, made->replay)) {
    const Step& step = g.steps[t.step];
    const auto& steps = made->truth[step.rank].steps;
    const auto truth =
        std::find_if(steps.begin(), steps.end(), [&](const TrueStep& x) { return x.number == step.number; });
    ASSERT_NE(truth, steps.end());
    EXPECT_EQ(t.replayed, truth->duration);
    expect_classes(t.replayed_classes, truth->exposed_compute, truth->overlapped, truth->exposed_comm, truth->other,
                   truth->memory);
    EXPECT_GT(truth->exposed_comm, 0);
    idle += t.replayed_classes.idle();
  }
  // Ranks wait for each other inside kernels: the device is busy then, and every pause has a cause on its own rank.
  Ns causes = 0, unexplained = 0;
  for (const IdleTimes& t : idle_of(g, made->replay)) {
    for (Ns x : t.by_cause) causes += x;
    unexplained += of(t, IdleCause::unexplained);
  }
  EXPECT_EQ(causes, idle);
  EXPECT_EQ(unexplained, 0);
  for (const CriticalPath& p : critical_paths(g, made->replay, rows)) {
    Ns sum = 0;
    for (const Hop& h : p.hops) sum += h.wait + h.run;
    EXPECT_EQ(sum, p.length);
  }
}

// ---- simulated jobs with known truth ----

// The whole way from files to the document, against what the simulator itself summed up.
void expect_truth(const std::string& set) {
  const std::string dir = std::string(ORRERY_SOURCE_DIR) + "/../shared/data/oracle/" + set + "/base";
  std::ifstream file(dir + "/truth.json");
  if (!file) GTEST_SKIP() << dir << " is absent";
  const Json truth = Json::parse(file);
  const auto traces = import_traces({dir});
  ASSERT_TRUE(traces.has_value()) << traces.error().line();
  const auto build = build_graph(*traces);
  ASSERT_TRUE(build.has_value()) << build.error().line();
  const ExecGraph& g = build->graph;
  const Status sound = check(g);
  ASSERT_TRUE(sound.has_value()) << sound.error().line();
  Replay r;
  replay(g, r);
  const auto document = replay_document(*traces, *build, r);
  ASSERT_TRUE(document.has_value());
  const Json j = Json::parse(to_json(*document));

  EXPECT_NEAR(j["summary"]["iteration_measured_ms"], truth["iteration_ms"], 0.001);
  const Json& first = truth["steps"][0];
  std::size_t compared = 0;
  for (const Json& row : j["steps"]) {
    if (row["step"] != first) continue;
    const Json& t = truth["breakdown"][std::to_string(row["rank"].get<int>())];
    const Json& m = row["measured"];
    EXPECT_NEAR(row["measured_ms"], t["step_ms"], 0.0002);
    EXPECT_NEAR(m["exposed_compute_ms"], t["exposed_compute_ms"], 0.0002);
    EXPECT_NEAR(m["overlapped_ms"], t["overlapped_ms"], 0.0002);
    EXPECT_NEAR(m["exposed_comm_ms"], t["exposed_comm_ms"], 0.0002);
    EXPECT_NEAR(m["memory_ms"], t["exposed_memory_ms"], 0.0002);
    EXPECT_NEAR(m["other_ms"].get<double>() - m["memory_ms"].get<double>(), t["idle_ms"], 0.0003);
    ++compared;
  }
  EXPECT_EQ(compared, truth["world_size"].get<std::size_t>());

  for (const Json& row : j["gpu_busy"]) {  // the first step's values come first
    const auto t = truth["gpu_busy"].find(std::to_string(row["rank"].get<int>()));
    if (t == truth["gpu_busy"].end()) continue;
    ASSERT_GE(row["measured"].size(), t->size());
    for (std::size_t k = 0; k + 1 < t->size(); ++k)
      ASSERT_NEAR(row["measured"][k], (*t)[k], 0.0002) << "rank " << row["rank"] << ", ms " << k;
    EXPECT_NEAR(row["measured"][t->size() - 1], t->back(), 0.02);  // of a few microseconds, in whole nanoseconds here
  }

  for (const Json& row : j["idle"]) {
    double sum = 0;
    for (const char* cause : {"host_late_ms", "launch_ms", "sync_ms", "dependency_ms", "unexplained_ms"})
      sum += row[cause].get<double>();
    EXPECT_NEAR(sum, row["idle_ms"], 1e-5);
    EXPECT_GT(row["peer_late_ms"], 0);
  }
  double path = 0, steps = 0;
  for (const Json& row : j["critical_path"]) path += row["ms"].get<double>();
  steps = j["summary"]["iteration_replayed_ms"].get<double>() * static_cast<double>(truth["steps"].size());
  EXPECT_NEAR(path, steps, 1e-3);
}
// Real traces: class times over each rank's own GPU span, computed by another program (in floating point).
TEST(RealTraces, ClassTimesMatchAnotherProgram) {
  const std::string dir = std::string(ORRERY_SOURCE_DIR) + "/../shared/data/traces/";
  std::ifstream file(dir + "GPU_BREAKDOWN.tsv");
  if (!file) GTEST_SKIP() << dir << " is absent";
  struct Row {
    std::string set;
    std::int64_t rank, computes, comms, copies;
    double span, compute, comm, memory, overlap, exposed_comm, idle;  // us
  };
  std::map<std::string, std::vector<Row>> sets;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream in(line);
    Row r;
    in >> r.set >> r.rank >> r.computes >> r.comms >> r.copies >> r.span >> r.compute >> r.comm >> r.memory >>
        r.overlap >> r.exposed_comm >> r.idle;
    sets[r.set].push_back(r);
  }
  ASSERT_FALSE(sets.empty());
  for (const auto& [set, rows] : sets) {
    const auto traces = import_traces({dir + set});
    ASSERT_TRUE(traces.has_value()) << traces.error().line();
    const auto build = build_graph(*traces);
    ASSERT_TRUE(build.has_value()) << build.error().line();
    const ExecGraph& g = build->graph;
    const DeviceTasks tasks = device_tasks(g);
    Replay r;
    replay(g, r);
    DeviceRuns device;
    const DeviceTime& d = device.measured;
    for (const Row& want : rows) {
      const auto k = static_cast<std::size_t>(
          std::find_if(g.ranks.begin(), g.ranks.end(), [&](const GraphRank& x) { return x.rank == want.rank; }) -
          g.ranks.begin());
      ASSERT_LT(k, g.ranks.size()) << set << " rank " << want.rank;
      look_at_device(g, r, tasks, static_cast<std::uint32_t>(k), device);
      ASSERT_FALSE(d.busy.empty());
      const Ns begin = d.busy.front().begin, end = d.busy.back().end;
      const ClassTimes c = class_times(d, begin, end);
      const auto us = [](Ns t) { return static_cast<double>(t) / 1e3; };
      const std::string where = set + " rank " + std::to_string(want.rank);
      EXPECT_NEAR(us(end - begin), want.span, 0.1) << where;
      EXPECT_NEAR(us(c.exposed_compute + c.overlapped), want.compute, 0.1) << where;
      EXPECT_NEAR(us(c.exposed_comm + c.overlapped), want.comm, 0.1) << where;
      EXPECT_NEAR(us(c.overlapped), want.overlap, 0.1) << where;
      EXPECT_NEAR(us(c.exposed_comm), want.exposed_comm, 0.1) << where;
      EXPECT_NEAR(us(covered(d.memory, begin, end)), want.memory, 0.1) << where;
      EXPECT_NEAR(us(c.idle()), want.idle, 0.1) << where;
    }
  }
}

TEST(SimulatedJob, SmallMatchesItsTruth) { expect_truth("gpt-small"); }
TEST(SimulatedJob, SkewedMatchesItsTruth) { expect_truth("gpt-skewed"); }

}  // namespace
}  // namespace orrery
