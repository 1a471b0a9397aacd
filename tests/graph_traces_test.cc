// Graphs of real profiler traces and of simulated jobs, where they are at hand (../shared beside the repository): what
// was measured is reproduced, and hidden stream events are found again. One or two ranks of each set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "graph/build.h"
#include "importers/importers.h"
#include "replay/replay.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
const fs::path kData = fs::path(ORRERY_SOURCE_DIR) / ".." / "shared" / "data";

// False, and a line that says so, where the data are not there.
bool at_hand(const fs::path& path) {
  if (fs::exists(path)) return true;
  std::cout << "SKIP: no " << path.filename().string() << " in ../shared/data\n";
  return false;
}

TraceSet import_one(const fs::path& file) {
  ImportOptions options;
  options.threads = 1;
  Result<TraceSet> set = import_traces({file.string()}, options);
  if (!set) {
    ADD_FAILURE() << set.error().line();
    return {};
  }
  return std::move(*set);
}

// Time in which compute, communication, both or neither run, ms: counted instant by instant from the tasks' own times.
struct Classes {
  double compute = 0, overlapped = 0, comm = 0, other = 0;
};
Classes classes(const ExecGraph& g, const std::vector<Ns>& start, Ns begin, Ns end) {
  struct Change {
    Ns at;
    int compute, comm;
  };
  std::vector<Change> changes;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.kind[n] != NodeKind::kernel && g.kind[n] != NodeKind::comm) continue;
    const Ns from = std::clamp(start[n], begin, end), to = std::clamp(start[n] + g.duration[n], begin, end);
    if (from == to) continue;
    const int compute = g.kind[n] == NodeKind::kernel ? 1 : 0;
    changes.push_back({from, compute, 1 - compute});
    changes.push_back({to, -compute, compute - 1});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) { return a.at < b.at; });
  Classes c;
  Ns at = begin;
  int compute = 0, comm = 0;
  auto pass = [&](Ns to) {
    const double ms = static_cast<double>(to - at) / 1e6;
    (compute > 0 ? comm > 0 ? c.overlapped : c.compute : comm > 0 ? c.comm : c.other) += ms;
    at = to;
  };
  for (const Change& x : changes) {
    pass(x.at);
    compute += x.compute;
    comm += x.comm;
  }
  pass(end);
  return c;
}

struct Checked {
  GraphBuild build;
  std::vector<double> step_errors;  // share of the measured step
};

// Builds and replays one rank: its structure holds, no edges close a cycle.
Checked check_rank(const TraceSet& set, bool with_classes) {
  Checked c;
  Result<GraphBuild> built = build_graph(set);
  if (!built) {
    ADD_FAILURE() << built.error().line();
    return c;
  }
  c.build = std::move(*built);
  const ExecGraph& g = c.build.graph;
  const Status sound = check(g);
  EXPECT_TRUE(sound.has_value()) << sound.error().line();
  for (const Note& n : c.build.notes.rows) EXPECT_NE(n.name, "cycle-cut");
  Replay r;
  replay(g, r);
  for (const Step& s : g.steps) {
    const Ns begin = r.end[raw(s.begin_node)], end = r.end[raw(s.end_node)];
    const auto measured = static_cast<double>(s.end - s.begin);
    if (measured <= 0) continue;
    c.step_errors.push_back(std::abs(static_cast<double>(end - begin) - measured) / measured);
    if (!with_classes) continue;
    const Classes m = classes(g, g.observed_start, s.begin, s.end), p = classes(g, r.start, begin, end);
    for (const auto& [name, x, y] : {std::tuple{"exposed compute", m.compute, p.compute},
                                     {"overlapped", m.overlapped, p.overlapped},
                                     {"exposed communication", m.comm, p.comm},
                                     {"other", m.other, p.other}}) {
      EXPECT_LE(std::abs(x - y), std::max(0.03 * x, 0.1))
          << name << " of step " << s.number << ", ms: " << x << ", replayed " << y;
    }
  }
  return c;
}

// The tasks that event edges join, as rows of the trace.
std::vector<std::pair<std::uint32_t, std::uint32_t>> event_edges(const ExecGraph& g) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    for (std::uint32_t e = g.first_pred[n]; e < g.first_pred[n + 1]; ++e) {
      if (g.pred_kind[e] == EdgeKind::event) edges.emplace_back(raw(g.source[raw(g.pred[e])]), raw(g.source[n]));
    }
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

TEST(GraphOfTraces, SimulatedJobsAreReproduced) {
  if (!at_hand(kData / "oracle")) GTEST_SKIP();
  for (const auto& [job, ranks] :
       {std::pair{"gpt-small", std::vector{0, 5}}, {"gpt3-15b", {2, 13}}, {"gpt-skewed", {0, 9}}}) {
    Ns idle = 0, unexplained = 0;
    for (const int rank : ranks) {
      const fs::path file = kData / "oracle" / job / "base" / ("rank-" + std::to_string(rank) + ".json.gz");
      if (!at_hand(file)) continue;
      SCOPED_TRACE(file.string());
      const Checked c = check_rank(import_one(file), true);
      EXPECT_FALSE(c.step_errors.empty());
      for (const double e : c.step_errors) EXPECT_LE(e, 0.005);
      for (const RankQuality& q : c.build.quality) {
        idle += q.idle_ns;
        unexplained += q.unexplained_idle_ns;
        EXPECT_EQ(q.stalls, 0u);
      }
    }
    EXPECT_LE(static_cast<double>(unexplained), 0.01 * static_cast<double>(idle)) << job;
  }
}

TEST(GraphOfTraces, HiddenEventsAreFoundAgain) {
  if (!at_hand(kData / "oracle")) GTEST_SKIP();
  for (const auto& [job, rank] : {std::pair{"gpt-small", 0}, {"gpt-small", 7}, {"gpt3-15b", 1}, {"gpt3-15b", 14}}) {
    const fs::path file = kData / "oracle" / job / "base" / ("rank-" + std::to_string(rank) + ".json.gz");
    if (!at_hand(file)) continue;
    SCOPED_TRACE(file.string());
    const TraceSet set = import_one(file);
    const Result<GraphBuild> known = build_graph(set), inferred = build_graph(set, {.hide_sync_events = true});
    ASSERT_TRUE(known.has_value() && inferred.has_value());
    EXPECT_EQ(inferred->quality[0].event_edges_by_sync, 0u);
    const auto truth = event_edges(known->graph), found = event_edges(inferred->graph);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> right;
    std::set_intersection(truth.begin(), truth.end(), found.begin(), found.end(), std::back_inserter(right));
    ASSERT_GT(truth.size(), 100u);
    EXPECT_GE(static_cast<double>(right.size()), 0.999 * static_cast<double>(found.size()));  // none invented
    EXPECT_GE(static_cast<double>(right.size()), 0.999 * static_cast<double>(truth.size()));  // none missed
  }
}

TEST(GraphOfTraces, RealTracesAreReproduced) {
  if (!at_hand(kData / "traces")) GTEST_SKIP();
  std::vector<fs::path> files;
  for (const fs::directory_entry& set : fs::directory_iterator(kData / "traces")) {
    if (!set.is_directory() || set.path().filename() == "odd") continue;
    std::vector<fs::path> in_set;
    for (const fs::directory_entry& f : fs::directory_iterator(set)) {
      if (f.path().extension() == ".gz") in_set.push_back(f.path());
    }
    std::sort(in_set.begin(), in_set.end());
    if (set.path().filename() != "single" && in_set.size() > 2) in_set = {in_set.front(), in_set.back()};
    files.insert(files.end(), in_set.begin(), in_set.end());
  }
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty());
  double sum = 0;
  std::size_t steps = 0;
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    const Checked c = check_rank(import_one(file), false);
    EXPECT_FALSE(c.step_errors.empty());
    for (const double e : c.step_errors) {
      EXPECT_LE(e, 0.05);
      sum += e;
      ++steps;
    }
  }
  EXPECT_LE(sum, 0.02 * static_cast<double>(steps));
}

}  // namespace
}  // namespace orrery
