// The whole tool on small inputs: what it prints, what it writes, and with which status it leaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

// One step of one rank: two operators, each launching a kernel; the second runs on after its launch.
std::string tiny_trace(int rank, const std::string& more_events = "") {
  return R"({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": )" + std::to_string(rank) +
         R"(, "world_size": 2},
"deviceProperties": [{"id": 0, "name": "Test GPU", "totalGlobalMem": 1000000000, "numSms": 100}],
"traceEvents": [
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 1000.000, "dur": 500.000},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1010.000, "dur": 40.000, "args": {"External id": 1}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1020.000, "dur": 10.000, "args": {"correlation": 7}},
{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1030.000, "dur": 100.000, "args": {"device": 0, "stream": 7, "correlation": 7}},
{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1060.000, "dur": 30.000, "args": {"External id": 2}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1070.000, "dur": 10.000, "args": {"correlation": 8}},
)" + more_events +
         R"({"ph": "X", "cat": "kernel", "name": "add", "pid": 0, "tid": 7, "ts": 1131.000, "dur": 50.000, "args": {"device": 0, "stream": 7, "correlation": 8}}
]})";
}

struct CliReplay : ::testing::Test {
  TempDir dir;
  std::string trace = dir / "rank-0.json";
  void SetUp() override { write_text(trace, tiny_trace(0)); }
};

void expect_one_line(const Outcome& o, const std::string& says) {
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_EQ(o.err.substr(0, 8), "orrery: ") << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << o.err;
}

TEST_F(CliReplay, PrintsTablesForPeople) {
  const Outcome o = orrery("replay " + trace);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.err, "");
  for (const char* heading : {"\nSteps", "\nRanks", "\nCritical path", "\nGPU busy"}) {
    EXPECT_NE(o.out.find(heading), std::string::npos) << heading << "\n" << o.out;
  }
  EXPECT_EQ(o.out.rfind("Summary", 0), 0u) << "the answer comes first";
  EXPECT_EQ(o.out.find('\x1b'), std::string::npos) << "no colours outside a terminal";
}

TEST_F(CliReplay, JsonKeepsTheContract) {
  const Outcome o = orrery("replay --json " + trace);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.err, "");
  const Json j = Json::parse(o.out);
  std::vector<std::string> first;
  for (const auto& [key, value] : j.items()) first.push_back(key);
  first.resize(4);
  EXPECT_EQ(first, (std::vector<std::string>{"orrery", "command", "inputs", "notes"}));
  EXPECT_EQ(j["command"], "replay");
  EXPECT_EQ(j["inputs"], Json::array({trace}));
  const auto has = [&](const Json& object, const std::string& where, std::vector<std::string> keys) {
    for (const std::string& key : keys) EXPECT_TRUE(object.contains(key)) << where << "." << key;
  };
  const std::vector<std::string> four = {"exposed_compute_ms", "overlapped_ms", "exposed_comm_ms", "other_ms",
                                         "memory_ms"};
  has(j, "document",
      {"ranks", "steps", "summary", "quality", "idle", "stragglers", "collectives", "communication", "critical_path",
       "gpu_busy"});
  has(j["ranks"][0], "ranks",
      {"rank", "file", "host", "events", "gpu_tasks", "cpu_tasks", "device", "clock_offset_ns", "clock_drift_ppm"});
  has(j["steps"][0], "steps", {"step", "rank", "measured_ms", "replayed_ms", "error_pct", "measured", "replayed"});
  has(j["steps"][0]["measured"], "steps.measured", four);
  has(j["steps"][0]["replayed"], "steps.replayed", four);
  has(j["summary"], "summary",
      {"iteration_measured_ms", "iteration_replayed_ms", "mean_abs_error_pct", "max_abs_error_pct",
       "class_mean_abs_error_pct"});
  has(j["summary"]["class_mean_abs_error_pct"], "classes", four);
  has(j["quality"], "quality", {"explained_idle_pct", "matched_collectives_pct", "edges", "dropped_edges"});
  has(j["idle"][0], "idle",
      {"rank", "host_late_ms", "launch_ms", "sync_ms", "peer_late_ms", "dependency_ms", "unexplained_ms"});
  has(j["critical_path"][0], "critical_path", {"kind", "rank", "name", "ms", "pct"});
  has(j["gpu_busy"][0], "gpu_busy", {"rank", "measured", "replayed"});
  EXPECT_TRUE(j["stragglers"].is_array());
  EXPECT_TRUE(j["communication"].is_array());
  // The numbers of the hand-made trace.
  EXPECT_EQ(j["steps"][0]["step"], 3);
  EXPECT_EQ(j["steps"][0]["measured_ms"], 0.5);
  EXPECT_EQ(j["steps"][0]["measured"]["exposed_compute_ms"], 0.15);
  EXPECT_EQ(j["steps"][0]["measured"]["other_ms"], 0.35);
  EXPECT_EQ(j["ranks"][0]["gpu_tasks"], 2);
}

TEST_F(CliReplay, ReadsStandardInputAndDirectories) {
  const Outcome o = shell("cat " + trace + " | \"$orrery\" replay - --json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(Json::parse(o.out)["steps"][0]["measured_ms"], 0.5);
  write_text(dir / "rank-1.json", tiny_trace(1));
  const Outcome all = orrery("replay --json " + dir.path.string());
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_EQ(Json::parse(all.out)["ranks"].size(), 2u);
}

TEST_F(CliReplay, ThreadsDoNotChangeTheAnswer) {
  write_text(dir / "rank-1.json", tiny_trace(1));
  const std::string command = "replay --json " + dir.path.string() + " --threads ";
  EXPECT_EQ(orrery(command + "1").out, orrery(command + "3").out);
}

TEST_F(CliReplay, ChoosesSteps) {
  EXPECT_EQ(orrery("replay --steps 3 " + trace).status, 0);
  const Outcome o = orrery("replay --steps 3,99 " + trace);
  expect_one_line(o, "99");
  EXPECT_NE(o.err.find('3'), std::string::npos) << "says which there are";
}

TEST_F(CliReplay, RankCanBeGiven) {
  const Outcome o = orrery("replay --json --rank " + trace + "=5 " + trace);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(Json::parse(o.out)["ranks"][0]["rank"], 5);
  // The same rank twice names both files.
  write_text(dir / "other.json", tiny_trace(0));
  const Outcome twice = orrery("replay " + trace + " " + (dir / "other.json"));
  expect_one_line(twice, trace);
  EXPECT_NE(twice.err.find(dir / "other.json"), std::string::npos);
}

TEST_F(CliReplay, CutInputIsAnsweredWithStatusOne) {
  const std::string text = tiny_trace(0);
  write_text(trace, text.substr(0, text.find("\"add\"")));
  const Outcome o = orrery("replay --json " + trace);
  EXPECT_EQ(o.status, 1) << o.err;
  const Json j = Json::parse(o.out);
  const auto lost = [](const Json& note) { return note["severity"] == "data-loss"; };
  EXPECT_TRUE(std::any_of(j["notes"].begin(), j["notes"].end(), lost)) << j["notes"];
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  const Outcome people = orrery("replay --quiet " + trace);
  EXPECT_EQ(people.status, 1);
  EXPECT_NE(people.out.find("\ndata lost: "), std::string::npos) << people.out;
}

TEST_F(CliReplay, RecoversOnlyWhenAsked) {
  write_text(trace, tiny_trace(0, R"({"ph": "X", "cat": "python_function", "name": "{"device": "cpu"}(12): run",)"
                                  R"( "pid": 1, "tid": 1, "ts": 1090.000, "dur": 1.000},)"
                                  "\n"));
  expect_one_line(orrery("replay " + trace), "--recover");
  const Outcome o = orrery("replay --json --recover " + trace);
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_EQ(Json::parse(o.out)["ranks"][0]["gpu_tasks"], 2);
}

// What the answer notes under a name; null when it does not.
Json note_of(const Outcome& o, const std::string& name) {
  const Json all = Json::parse(o.out)["notes"];
  for (const Json& n : all) {
    if (n["name"] == name) return n;
  }
  return {};
}

TEST_F(CliReplay, OddTracesAreToldOf) {
  const std::string call = R"({"ph": "X", "cat": "cuda_runtime", "name": "NAME", "pid": 1, "tid": 1, "ts": TS,)"
                           R"( "dur": DUR, "args": {"correlation": 7}},)";
  const auto with = [&](std::string name, const std::string& ts, const std::string& dur) {
    std::string s = call;
    s.replace(s.find("NAME"), 4, name).replace(s.find("TS,"), 2, ts).replace(s.find("DUR"), 3, dur);
    write_text(trace, tiny_trace(0, s));
    return orrery("replay --json " + trace);
  };
  // The kernel "gemm" under 7 belongs to the first call, 1020 to 1030.
  const Json shared = note_of(with("cudaLaunchKernel", "1085", "3"), "correlation-shared");
  EXPECT_EQ(shared["count"], 1);
  EXPECT_EQ(shared["severity"], "warning");
  EXPECT_EQ(shared["first"], "cudaLaunchKernel at ts 1085 us under 7");
  EXPECT_TRUE(note_of(with("cuLaunchKernel", "1022", "5"), "correlation-shared").is_null())
      << "a runtime call and the driver call inside it are one launch";

  const auto marker = [&](const std::string& number) {
    std::string text = tiny_trace(0);
    text.replace(text.find("ProfilerStep#3"), 14, "ProfilerStep#" + number);
    write_text(trace, text);
    return orrery("replay --json " + trace);
  };
  for (const char* number : {"abc", "", "3x", "-3", "99999999999999999999"}) {
    const Outcome o = marker(number);
    ASSERT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(note_of(o, "step-marker-unreadable")["first"], "ProfilerStep#" + std::string(number) + " at ts 1000 us");
    EXPECT_EQ(Json::parse(o.out)["steps"][0]["step"], 0);
  }
  EXPECT_TRUE(note_of(marker("17"), "step-marker-unreadable").is_null());

  std::string host_only = tiny_trace(0);
  for (std::size_t at; (at = host_only.find("\"kernel\"")) != std::string::npos;)
    host_only.replace(at, 8, "\"cpu_op\"");
  write_text(trace, host_only);
  const Outcome o = orrery("replay --json " + trace);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(note_of(o, "no-gpu-tasks")["first"], trace);
  EXPECT_EQ(note_of(o, "no-gpu-tasks")["severity"], "info");
}

TEST_F(CliReplay, UnusableInputsAreOneLine) {
  expect_one_line(orrery("replay " + (dir / "missing.json")), dir / "missing.json");
  fs::create_directory(dir.path / "empty");
  expect_one_line(orrery("replay " + (dir / "empty")), dir / "empty");
  write_text(dir / "nothing.json", "");
  expect_one_line(orrery("replay " + (dir / "nothing.json")), dir / "nothing.json");
  write_text(dir / "text.json", "hello\n");
  expect_one_line(orrery("replay " + (dir / "text.json")), dir / "text.json");
  write_text(dir / "array.json", "[]");
  expect_one_line(orrery("replay " + (dir / "array.json")), dir / "array.json");
  write_text(dir / "object.json", R"({"traceEvents": []})");
  expect_one_line(orrery("replay " + (dir / "object.json")), dir / "object.json");
  expect_one_line(orrery("replay - - " + trace), "standard input");
  expect_one_line(orrery("replay '" + (dir / "*.nothing") + "'"), "*.nothing");
}

TEST_F(CliReplay, WritesCsvFiles) {
  const Outcome o = orrery("replay --csv " + (dir / "csv") + " " + trace);
  EXPECT_EQ(o.status, 0) << o.err;
  const std::string steps = read_file(dir / "csv/steps.csv");
  EXPECT_EQ(steps.substr(0, 10), "step,rank,") << steps;
  EXPECT_NE(steps.find("\r\n3,0,0.5,"), std::string::npos) << steps;
  EXPECT_TRUE(fs::exists(dir / "csv/critical_path_hops.csv"));
  for (const auto& e : fs::directory_iterator(dir / "csv")) EXPECT_EQ(e.path().extension(), ".csv") << e.path();
}

TEST_F(CliReplay, ExportsAWholeTraceOrNothing) {
  const Outcome o = orrery("replay --quiet --export " + (dir / "out/run.json") + " " + trace);
  expect_one_line(o, "run.json");
  fs::create_directory(dir.path / "out");
  EXPECT_EQ(orrery("replay --export " + (dir / "out/run.json") + " " + trace).status, 0);
  const Json run = Json::parse(read_file(dir / "out/run.json"));
  const auto is_gemm = [](const Json& e) { return e["name"] == "gemm" && e["ph"] == "X"; };
  EXPECT_EQ(std::count_if(run["traceEvents"].begin(), run["traceEvents"].end(), is_gemm), 1);
  EXPECT_EQ(orrery("replay --export " + (dir / "out/run.json.gz") + " " + trace).status, 0);
  EXPECT_EQ(read_file(dir / "out/run.json.gz").substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path / "out"), {}), 2) << "no temporary files";
  // What was exported can be read again.
  const Outcome again = orrery("replay --json " + (dir / "out/run.json.gz"));
  EXPECT_EQ(again.status, 0) << again.err;
}

TEST_F(CliReplay, AnswerAndExportNeverMix) {
  const std::string says = "the exported trace cannot go to standard output";
  expect_one_line(shell("\"$orrery\" replay " + trace + " --export /dev/stdout | cat; exit ${PIPESTATUS[0]}"), says);
  const Outcome same =
      shell("\"$orrery\" replay --json " + trace + " --export " + (dir / "one.json") + " > " + (dir / "one.json"));
  expect_one_line(same, says);
  EXPECT_EQ(read_file(dir / "one.json"), "");
  EXPECT_EQ(shell("\"$orrery\" replay " + trace + " --export /dev/null > /dev/null").status, 0);
}

TEST_F(CliReplay, ABrokenTraceInADirectoryIsNamedWithAWayOut) {
  write_text(dir / "rank-1.json", tiny_trace(1).substr(0, 200));
  const Outcome o = orrery("replay " + dir.path.string());
  expect_one_line(o, dir / "rank-1.json");
  EXPECT_NE(o.err.find("name the other files, or a pattern, to leave this one out"), std::string::npos) << o.err;
  EXPECT_EQ(orrery("replay '" + (dir / "rank-[0]*") + "'").status, 0);
  const Outcome named = orrery("replay " + (dir / "rank-1.json"));
  EXPECT_EQ(named.err.find("leave this one out"), std::string::npos) << named.err;
}

TEST_F(CliReplay, HowMuchIsExplainedIsSaidOfAllSteps) {
  const std::string all = orrery("replay " + trace).out, chosen = orrery("replay --steps 3 " + trace).out;
  for (const std::string& out : {all, chosen})
    EXPECT_NE(out.find("\nHow much the graph explains (all steps)\n"), std::string::npos) << out;
}

TEST_F(CliReplay, OutputThatCannotBeWrittenIsAnError) {
  expect_one_line(orrery("replay --export /dev/full " + trace), "/dev/full");
  expect_one_line(orrery("replay --csv " + trace + " " + trace), trace);
  const Outcome full = orrery("replay --json " + trace + " > /dev/full");
  expect_one_line(full, "standard output: cannot write");
  const Outcome closed = orrery("replay " + trace + " >&-");
  expect_one_line(closed, "standard output");
  // A reader that goes away is an error, not a signal.
  const Outcome gone = shell("{ until [ -e '" + (dir / "gone") + "' ]; do sleep 0.02; done; \"$orrery\" replay " +
                             trace + "; echo \"status $?\" >&2; } | { exec 0<&-; touch '" + (dir / "gone") + "'; }");
  EXPECT_NE(gone.err.find("status 2\n"), std::string::npos) << gone.err;
  EXPECT_EQ(std::count(gone.err.begin(), gone.err.end(), '\n'), 2) << gone.err;
}

TEST_F(CliReplay, DiffComparesTwoRuns) {
  std::string slower = tiny_trace(0);
  slower.replace(slower.find("\"dur\": 100.000"), 14, "\"dur\": 130.000");
  slower.replace(slower.find("1131.000"), 8, "1161.000");
  write_text(dir / "slower.json", slower);
  const Outcome o = orrery("diff --json " + trace + " " + (dir / "slower.json"));
  EXPECT_EQ(o.status, 0) << o.err;
  const Json j = Json::parse(o.out);
  EXPECT_EQ(j["command"], "diff");
  for (const char* key : {"a", "b"}) EXPECT_TRUE(j[key].is_object()) << key;
  for (const char* key : {"kernels", "operators", "classes", "edges"}) {
    ASSERT_TRUE(j[key].is_array()) << key;
    for (const char* column : {"name", "a_ms", "b_ms", "delta_ms", "a_count", "b_count"}) {
      EXPECT_TRUE(j[key][0].contains(column)) << key << "." << column;
    }
  }
  EXPECT_EQ(j["kernels"][0]["name"], "gemm");
  EXPECT_NEAR(j["kernels"][0]["delta_ms"].get<double>(), 0.03, 1e-9);
  const Outcome people = orrery("diff " + trace + " " + (dir / "slower.json"));
  EXPECT_EQ(people.status, 0);
  EXPECT_NE(people.out.find("gemm"), std::string::npos);
}

}  // namespace
}  // namespace orrery::test
