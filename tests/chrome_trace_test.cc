// The exported trace: read back with a JSON parser and with the importer, it must say what the replay says.
#include "writers/chrome_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "cli_run.h"
#include "importers/importers.h"
#include "reference/graph_maker.h"
#include "reports/reports.h"
#include "synthesis/synthetic_job.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Rows in the order added; OpId k is the k-th. Lane 0 is a thread, lanes 1 to 3 are the streams 7, 8 and 9.
struct OneRank {
  TraceSet set;
  OneRank() {
    RankTrace& t = set.ranks.emplace_back();
    t.rank = 3;
    for (int lane = 0; lane < 4; ++lane) {
      t.lanes.kind.push_back(lane == 0 ? LaneKind::thread : LaneKind::stream);
      t.lanes.pid.push_back(lane == 0 ? 500 : 0);
      t.lanes.tid.push_back(lane == 0 ? 501 : 6 + lane);
      t.lanes.pid_text.push_back(StrId{});
      t.lanes.tid_text.push_back(StrId{});
      t.lanes.name.push_back(StrId{});
    }
  }
  OpId add(OpKind kind, std::uint32_t lane, std::string_view name, Ns start, Ns dur, std::int64_t corr = 0) {
    RankTrace& t = set.ranks[0];
    t.ops.start.push_back(start);
    t.ops.dur.push_back(dur);
    t.ops.name.push_back(t.strings.intern(name));
    t.ops.lane.push_back(LaneId{lane});
    t.ops.kind.push_back(kind);
    t.ops.corr.push_back(corr);
    t.ops.ext.push_back(0);
    t.ops.extra.push_back(kNone);
    return OpId{static_cast<std::uint32_t>(t.ops.size() - 1)};
  }
};

std::string exported_text(const TraceSet& traces, const ExecGraph& g, const std::vector<NodeId>& path = {}) {
  const test::TempDir dir;
  Replay r;
  replay(g, r);
  const Status ok = write_chrome_trace(dir / "out.json", traces, g, r, path);
  EXPECT_TRUE(ok) << (ok ? "" : ok.error().line());
  return test::read_file(dir / "out.json");
}

Json exported(const TraceSet& traces, const ExecGraph& g, const std::vector<NodeId>& path = {}) {
  return Json::parse(exported_text(traces, g, path));
}

std::vector<Json> slices(const Json& j, const std::string& cat = {}) {
  std::vector<Json> out;
  for (const Json& e : j["traceEvents"])
    if (e["ph"] == "X" && (cat.empty() || e["cat"] == cat)) out.push_back(e);
  return out;
}

std::int64_t ns(const Json& microseconds) { return std::llround(microseconds.get<double>() * 1'000); }

std::map<std::pair<std::int64_t, std::int64_t>, std::string> thread_names(const Json& j) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> out;
  for (const Json& e : j["traceEvents"])
    if (e["ph"] == "M" && e["name"] == "thread_name") out[{e["pid"], e["tid"]}] = e["args"]["name"];
  return out;
}

// aten::add 10..40 us holds a launch call 15..20; its kernel 22..52 on stream 7 was seen at 23..50. The next kernel of
// the stream begins 2 us before that ends.
struct LaunchAndOverlap {
  OneRank trace;
  GraphMaker m{1, 4};
  NodeId launch, kernel, second;
  LaunchAndOverlap() {
    const OpId add = trace.add(OpKind::cpu_op, 0, "aten::add", 1'010'000, 30'000);
    const OpId call = trace.add(OpKind::runtime, 0, "cudaLaunchKernel", 1'015'000, 5'000, 77);
    const OpId k1 = trace.add(OpKind::kernel, 1, "k1", 1'023'000, 27'000, 77);
    const OpId k2 = trace.add(OpKind::kernel, 1, "k2", 1'049'000, 8'000, 78);
    m.g.ranks[0].rank = 3;
    m.g.ranks[0].origin = trace.set.ranks[0].window_start = 1'000'000;
    const NodeId begin = m.host(0, 10'000, {root()}, add, true);
    launch = m.host(0, 5'000, {{begin, EdgeKind::thread}}, call, true);
    const NodeId returned = m.host(0, 5'000, {{launch, EdgeKind::thread}}, call);
    m.host(0, 20'000, {{returned, EdgeKind::thread}}, add);
    kernel = m.add(NodeKind::kernel, 1, 30'000, {{launch, EdgeKind::launch, 7'000}}, k1);
    second = m.add(NodeKind::kernel, 1, 8'000, {{kernel, EdgeKind::stream, -2'000}}, k2);
  }
};

TEST(ChromeTrace, SlicesAreTheReplayedTimes) {
  const LaunchAndOverlap run;
  const Json j = exported(run.trace.set, run.m.g);
  EXPECT_EQ(j["baseTimeNanoseconds"], 1'000'000);
  EXPECT_EQ(j["orrery"]["version"], ORRERY_VERSION);
  EXPECT_EQ(j["distributedInfo"]["rank"], 3);
  const auto all = slices(j);
  ASSERT_EQ(all.size(), 4u);
  std::map<std::string, Json> by_name;
  for (const Json& e : all) by_name[e["name"]] = e;
  EXPECT_EQ(by_name["aten::add"]["cat"], "cpu_op");
  EXPECT_EQ(ns(by_name["aten::add"]["ts"]), 10'000);
  EXPECT_EQ(ns(by_name["aten::add"]["dur"]), 30'000);
  EXPECT_EQ(ns(by_name["cudaLaunchKernel"]["ts"]), 15'000);
  EXPECT_EQ(by_name["cudaLaunchKernel"]["args"]["correlation"], 77);
  const Json& k1 = by_name["k1"];
  EXPECT_EQ(k1["cat"], "kernel");
  EXPECT_EQ(ns(k1["ts"]), 22'000);
  EXPECT_EQ(ns(k1["dur"]), 30'000);
  EXPECT_EQ(ns(k1["args"]["observed ts"]), 23'000);
  EXPECT_EQ(ns(k1["args"]["observed dur"]), 27'000);
  EXPECT_EQ(k1["args"]["released by"], "launch");
  EXPECT_EQ(k1["args"]["stream"], 7);
  // Times have exactly three decimals.
  EXPECT_NE(exported_text(run.trace.set, run.m.g).find("\"ts\":22.000,\"dur\":30.000"), std::string::npos);
}

TEST(ChromeTrace, OverlapOnAStreamGetsATrackOfItsOwn) {
  const LaunchAndOverlap run;
  const Json j = exported(run.trace.set, run.m.g);
  const auto names = thread_names(j);
  std::map<std::string, std::string> track;
  for (const Json& e : slices(j)) track[e["name"]] = names.at({e["pid"], e["tid"]});
  EXPECT_EQ(track["k1"], "stream 7");
  EXPECT_EQ(track["k2"], "stream 7 (overlap)");
  EXPECT_EQ(track["aten::add"], "thread 501");
}

TEST(ChromeTrace, ArrowsFromLaunchesAndFromWaits) {
  LaunchAndOverlap run;
  const OpId waiter = run.trace.add(OpKind::kernel, 2, "waiter", 1'060'000, 1'000, 79);
  run.m.add(NodeKind::kernel, 2, 1'000, {{run.launch, EdgeKind::launch, 7'000}, {run.kernel, EdgeKind::event, 1'500}},
            waiter);
  std::map<std::int64_t, std::map<std::string, Json>> flows;
  const Json j = exported(run.trace.set, run.m.g);
  for (const Json& e : j["traceEvents"])
    if (e["ph"] == "s" || e["ph"] == "f") flows[e["id"]][e["ph"]] = e;
  ASSERT_EQ(flows.size(), 3u);  // two launches, one wait
  std::map<std::string, int> kinds;
  for (const auto& [id, ends] : flows) {
    ASSERT_EQ(ends.size(), 2u);
    const Json &s = ends.at("s"), &f = ends.at("f");
    ++kinds[s["cat"]];
    EXPECT_EQ(s["cat"], f["cat"]);
    EXPECT_EQ(f["bp"], "e");
    if (s["cat"] != "event") continue;
    EXPECT_EQ(ns(s["ts"]), 52'000 - 1);  // still inside the kernel that it waits for
    EXPECT_EQ(ns(f["ts"]), 53'500);
  }
  EXPECT_EQ(kinds["ac2g"], 2);
  EXPECT_EQ(kinds["event"], 1);
}

TEST(ChromeTrace, StallsAreNamedAndAreNotWork) {
  OneRank trace;
  GraphMaker m(1, 4);
  const OpId k1 = trace.add(OpKind::kernel, 1, "k1", 0, 10), k2 = trace.add(OpKind::kernel, 1, "k2", 2'010, 10);
  const NodeId a = m.task(NodeKind::kernel, 1, 0, 10, k1);
  const NodeId pause = m.add(NodeKind::stall, 1, 2'000, {{a, EdgeKind::stream}}, k2);
  m.add(NodeKind::kernel, 1, 10, {{pause, EdgeKind::stall}}, k2);
  const Json j = exported(trace.set, m.g);
  ASSERT_EQ(slices(j, "stall").size(), 1u);
  const Json stall = slices(j, "stall")[0];
  EXPECT_EQ(ns(stall["ts"]), 10);
  EXPECT_EQ(ns(stall["dur"]), 2'000);
  EXPECT_EQ(stall["args"]["before"], "k2");
  const auto again = import_kineto_bytes(j.dump(), "again.json");
  ASSERT_TRUE(again);
  EXPECT_EQ(std::count(again->ops.kind.begin(), again->ops.kind.end(), OpKind::kernel), 2);
}

TEST(ChromeTrace, AnyNameGivesValidJson) {
  OneRank trace;
  GraphMaker m(1, 4);
  const std::string names[] = {"a\"b\\c",           std::string("nul\0byte", 8), "line\nbreak\ttab\x01",
                               "caf\xc3\xa9",       "latin \xe9 byte",           "cut \xe2\x82",
                               "overlong \xc0\xaf", "half pair \xed\xa0\x80",    "beyond \xf4\x90\x80\x80",
                               "\xf0\x9f\x94\xad"};
  Ns t = 0;
  for (const std::string& n : names) {
    m.task(NodeKind::kernel, 1, t, 10, trace.add(OpKind::kernel, 1, n, t, 10));
    t += 100;
  }
  const std::string replaced = "\xef\xbf\xbd";
  const std::string expected[] = {names[0],
                                  names[1],
                                  names[2],
                                  names[3],
                                  "latin " + replaced + " byte",
                                  "cut " + replaced + replaced,
                                  "overlong " + replaced + replaced,
                                  "half pair " + replaced + replaced + replaced,
                                  "beyond " + replaced + replaced + replaced + replaced,
                                  names[9]};
  const auto all = slices(exported(trace.set, m.g));  // throws on JSON or UTF-8 that is not valid
  ASSERT_EQ(all.size(), std::size(names));
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i]["name"], expected[i]);
}

// ---- arrows: each begins and ends inside a slice of its track ----

// Arrows of an exported file that do not; reads line by line, as the writer writes, because a file may be large.
struct Arrows {
  std::size_t ends = 0, outside = 0;
  std::string first;
};
Arrows arrows_of(const std::string& path) {
  using Place = std::pair<std::int64_t, std::int64_t>;
  std::map<Place, std::vector<std::pair<Ns, Ns>>> slices;
  std::map<Place, std::vector<Ns>> arrows;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("{\"ph\":", 0) != 0) continue;
    if (line.back() == ',') line.pop_back();
    const Json e = Json::parse(line);
    const Place place{e["pid"], e["tid"]};
    if (e["ph"] == "X") slices[place].emplace_back(ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]));
    if (e["ph"] == "s" || e["ph"] == "f") arrows[place].push_back(ns(e["ts"]));
  }
  Arrows found;
  for (auto& [place, times] : arrows) {
    auto& on_track = slices[place];
    std::sort(on_track.begin(), on_track.end());
    std::sort(times.begin(), times.end());
    std::size_t k = 0;
    Ns open_until = std::numeric_limits<Ns>::min(), empty_at = open_until;  // of the slices begun so far
    for (const Ns t : times) {
      for (; k < on_track.size() && on_track[k].first <= t; ++k) {
        open_until = std::max(open_until, on_track[k].second);
        if (on_track[k].first == on_track[k].second) empty_at = on_track[k].first;
      }
      ++found.ends;
      if (open_until > t || empty_at == t) continue;
      if (found.outside++ == 0)
        found.first = path + ": pid " + std::to_string(place.first) + " tid " + std::to_string(place.second) + " ts " +
                      std::to_string(t) + " ns";
    }
  }
  return found;
}

void expect_arrows_inside(const std::string& trace) {
  SCOPED_TRACE(trace);
  const test::TempDir dir;
  const test::Outcome o = test::orrery("replay --json --export " + (dir / "out.json") + " " + trace);
  ASSERT_EQ(o.status, 0) << o.err;
  const Arrows a = arrows_of(dir / "out.json");
  EXPECT_GT(a.ends, 0u);
  EXPECT_EQ(a.ends % 2, 0u);
  EXPECT_EQ(a.outside, 0u) << a.first;
}

// A call of no length that hands over to another thread, a kernel of no length behind a wait, a transfer of no length.
TEST(ChromeTrace, ArrowsOfSlicesWithoutLength) {
  OneRank trace;
  GraphMaker m(1, 4);
  const OpId call = trace.add(OpKind::runtime, 0, "call", 10'000, 0);
  const OpId later = trace.add(OpKind::cpu_op, 1, "later", 20'000, 5'000);
  const OpId empty = trace.add(OpKind::kernel, 2, "empty", 12'000, 0),
             after = trace.add(OpKind::kernel, 3, "after", 14'000, 9);
  const NodeId begin = m.host(0, 10'000, {root()}, call, true);
  const NodeId end = m.host(0, 0, {{begin, EdgeKind::thread}}, call);
  const NodeId woken = m.host(1, 0, {{end, EdgeKind::handoff, 5'000}}, later, true);
  m.host(1, 5'000, {{woken, EdgeKind::thread}}, later);
  const NodeId k = m.add(NodeKind::kernel, 2, 0, {{end, EdgeKind::launch, 2'000}}, empty);
  m.add(NodeKind::kernel, 3, 9, {{k, EdgeKind::event, 2'000}}, after);
  const test::TempDir dir;
  Replay r;
  replay(m.g, r);
  ASSERT_TRUE(write_chrome_trace(dir / "out.json", trace.set, m.g, r, {}));
  const Arrows a = arrows_of(dir / "out.json");
  EXPECT_EQ(a.ends, 6u);  // a hand-off, a launch, an event
  EXPECT_EQ(a.outside, 0u) << a.first;
}

TEST(ChromeTrace, ArrowsOfTheSample) { expect_arrows_inside("samples/gpt-tp2-pp2-dp2"); }

TEST(ChromeTrace, ArrowsOfRecordedTraces) {
  const std::filesystem::path data = ORRERY_SOURCE_DIR "/../shared/data/traces";
  if (!std::filesystem::is_directory(data)) {
    std::cout << "SKIP: no traces in ../shared/data\n";
    return;
  }
  for (const auto& e : std::filesystem::directory_iterator(data)) {
    const std::string name = e.path().filename().string();
    if (!e.is_directory() || name == "odd") continue;
    if (name != "single") {
      expect_arrows_inside(e.path().string());
      continue;
    }
    for (const auto& one : std::filesystem::directory_iterator(e.path()))
      if (one.path().filename() != "cpu-only.json.gz" && one.path().filename().string().rfind("no-", 0) != 0)
        expect_arrows_inside(one.path().string());
  }
}

// ---- on a made-up job of eight ranks ----

struct Job {
  SyntheticRun run;
  Json json;
  std::vector<CriticalPath> paths;
  Job() {
    SyntheticJob job;
    job.layers = 2;
    job.hidden = job.seq_length = 512;
    job.heads = 8;
    job.vocab = 8'192;
    run = std::move(*run_job(job));
    paths = critical_paths(run.graph, run.replay, *select_steps(run.graph, {}));
    std::vector<NodeId> nodes;
    for (const CriticalPath& p : paths)
      for (const NodeId n : nodes_of(p)) nodes.push_back(n);
    json = exported(run.traces, run.graph, nodes);
  }
  static const Job& get() {
    static const Job job;
    return job;
  }
};

TEST(ChromeTrace, EveryTrackNests) {
  const Job& job = Job::get();
  const auto names = thread_names(job.json);
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> open;
  for (const Json& e : slices(job.json)) {
    const std::pair<std::int64_t, std::int64_t> track{e["pid"], e["tid"]};
    ASSERT_TRUE(names.contains(track));
    auto& ends = open[track];
    const std::int64_t begin = ns(e["ts"]), end = begin + ns(e["dur"]);
    while (!ends.empty() && ends.back() <= begin) ends.pop_back();
    if (!ends.empty()) {
      ASSERT_LE(end, ends.back()) << e.dump();
    }
    ends.push_back(end);
  }
  EXPECT_EQ(open.size(), names.size());
}

TEST(ChromeTrace, ImportsAgainWithTheReplayedTimes) {
  const Job& job = Job::get();
  Json recording = job.json;  // by its looks: what --export wrote of several ranks is not taken for one
  EXPECT_FALSE(import_kineto_bytes(recording.dump(), "again.json"));
  recording.erase("orrery");
  const auto again = import_kineto_bytes(recording.dump(), "again.json");
  ASSERT_TRUE(again) << again.error().line();
  std::multimap<Ns, std::pair<Ns, std::string>> want, got;
  std::size_t host_rows = 0, host_again = 0;
  for (const RankTrace& t : job.run.traces.ranks)
    for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
      const OpKind k = t.ops.kind[i];
      if (is_gpu_task(k)) want.insert({t.ops.start[i], {t.ops.dur[i], std::string(t.name_of(OpId{i}))}});
      host_rows += k == OpKind::cpu_op || k == OpKind::user_annotation || k == OpKind::python || k == OpKind::runtime;
    }
  for (std::uint32_t i = 0; i < again->ops.size(); ++i) {
    const OpKind k = again->ops.kind[i];
    if (is_gpu_task(k)) got.insert({again->ops.start[i], {again->ops.dur[i], std::string(again->name_of(OpId{i}))}});
    host_again += k == OpKind::cpu_op || k == OpKind::user_annotation || k == OpKind::python || k == OpKind::runtime;
  }
  EXPECT_EQ(host_again, host_rows);
  EXPECT_EQ(got.size(), want.size());
  const auto sorted = [](const auto& rows) {
    std::vector<std::pair<Ns, std::pair<Ns, std::string>>> out(rows.begin(), rows.end());
    std::sort(out.begin(), out.end());
    return out;
  };
  EXPECT_TRUE(sorted(got) == sorted(want));
}

TEST(ChromeTrace, CriticalPathHasNoGap) {
  const Job& job = Job::get();
  const auto hops = slices(job.json, "critical_path");
  const auto names = thread_names(job.json);
  ASSERT_EQ(job.paths.size(), 2u);
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  for (const Json& e : hops) {
    EXPECT_EQ(names.at({e["pid"], e["tid"]}).substr(0, 13), "critical path");
    EXPECT_TRUE(e["args"].contains("released by"));
    EXPECT_TRUE(e["args"].contains("rank"));
    const std::int64_t begin = ns(e["ts"]), end = begin + ns(e["dur"]);
    if (spans.empty() || spans.back().second != begin)
      spans.push_back({begin, end});
    else
      spans.back().second = end;
  }
  // One unbroken span a step (two where the steps do not touch), each as long as the step.
  ASSERT_LE(spans.size(), 2u);
  Ns covered = 0, lengths = 0;
  for (const auto& [begin, end] : spans) covered += end - begin;
  for (const CriticalPath& p : job.paths) {
    lengths += p.length;
    for (const Hop& h : p.hops) lengths -= h.how == EdgeKind::root ? h.wait : 0;  // before a rank began: not drawn
  }
  EXPECT_GE(covered, lengths);
  EXPECT_LE(covered, lengths + lengths / 20);  // a first hop may have begun before the step
  // Marked in place too.
  std::size_t marked = 0;
  for (const Json& e : slices(job.json)) marked += e["args"].contains("critical") && e["cname"] == "terrible";
  EXPECT_GT(marked, hops.size() / 4);
}

TEST(ChromeTrace, ProcessesAreNamedByRank) {
  std::map<std::string, std::int64_t> pid;
  for (const Json& e : Job::get().json["traceEvents"])
    if (e["ph"] == "M" && e["name"] == "process_name") {
      EXPECT_TRUE(pid.emplace(e["args"]["name"], e["pid"]).second);
    }
  EXPECT_EQ(pid.size(), 9u);  // one a rank, and the critical path
  EXPECT_TRUE(pid.contains("rank 7 (NVIDIA H100 80GB HBM3)"));
}

// ---- files ----

TEST(ChromeTrace, GzipHoldsTheSameText) {
  const LaunchAndOverlap run;
  const test::TempDir dir;
  Replay r;
  replay(run.m.g, r);
  ASSERT_TRUE(write_chrome_trace(dir / "out.json.gz", run.trace.set, run.m.g, r, {}));
  ASSERT_TRUE(write_chrome_trace(dir / "out.json", run.trace.set, run.m.g, r, {}));
  EXPECT_EQ(test::read_file(dir / "out.json.gz").substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(test::shell("gzip -dc '" + (dir / "out.json.gz") + "'").out, test::read_file(dir / "out.json"));
}

TEST(ChromeTrace, FailuresAreErrorsAndLeaveNothing) {
  const LaunchAndOverlap run;
  const test::TempDir dir;
  Replay r;
  replay(run.m.g, r);
  const auto error = [&](const std::string& path) {
    const Status s = write_chrome_trace(path, run.trace.set, run.m.g, r, {});
    return s ? std::string() : s.error().line();
  };
  EXPECT_NE(error("/dev/full").find("No space left"), std::string::npos);
  EXPECT_NE(error(dir / "no/such/directory.json"), "");
  EXPECT_NE(error(dir.path.string()), "");
  EXPECT_FALSE(write_chrome_trace(dir / "out.json", run.trace.set, run.m.g, {}, {}));
  EXPECT_FALSE(write_chrome_trace(dir / "out.json", run.trace.set, run.m.g, r, {NodeId{99}}));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path));
}

}  // namespace
}  // namespace orrery
