// orrery predict as a whole, on the sample and on a trace written by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

const std::string kSample = "samples/gpt-tp2-pp2-dp2";  // one step is enough: --steps 5

Json predict(const std::string& edits, const std::string& traces = kSample) {
  const Outcome o = orrery("predict --json --steps 5 " + traces + " " + edits);
  EXPECT_EQ(o.status, 0) << edits << ": " << o.err;
  return o.status == 0 ? Json::parse(o.out) : Json();
}
bool has_note(const Json& j, const std::string& name) {
  return std::any_of(j["notes"].begin(), j["notes"].end(), [&](const Json& n) { return n["name"] == name; });
}
double iteration(const Json& j) { return j["predicted"]["iteration_ms"].get<double>(); }
double baseline(const Json& j) { return j["baseline"]["iteration_ms"].get<double>(); }

void expect_refused(const std::string& arguments, const std::string& says) {
  const Outcome o = orrery("predict " + arguments);
  EXPECT_EQ(o.status, 2) << arguments;
  EXPECT_EQ(o.out, "") << arguments;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << arguments << ": " << o.err;
  EXPECT_EQ(o.err.substr(0, 8), "orrery: ") << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << arguments << ": " << o.err;
}

// One rank, one step, two kernels.
std::string tiny_trace() {
  return R"({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
"traceEvents": [
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "pid": 1, "tid": 1, "ts": 1000.000, "dur": 200.000},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1020.000, "dur": 10.000, "args": {"correlation": 7}},
{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1030.000, "dur": 100.000, "args": {"device": 0, "stream": 7, "correlation": 7}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1040.000, "dur": 10.000, "args": {"correlation": 8}},
{"ph": "X", "cat": "kernel", "name": "add", "pid": 0, "tid": 7, "ts": 1131.000, "dur": 50.000, "args": {"device": 0, "stream": 7, "correlation": 8}}
]})";
}

TEST(CliPredict, JsonKeepsTheContract) {
  const Json j = predict("--kernel gemm=0.5x");
  const auto has = [](const Json& object, std::vector<std::string> keys) {
    for (const std::string& key : keys) EXPECT_TRUE(object.contains(key)) << key;
  };
  const std::vector<std::string> four = {"exposed_compute_ms", "overlapped_ms", "exposed_comm_ms", "other_ms",
                                         "memory_ms"};
  std::vector<std::string> first;
  for (const auto& [key, value] : j.items()) first.push_back(key);
  first.resize(4);
  EXPECT_EQ(first, (std::vector<std::string>{"orrery", "command", "inputs", "notes"}));
  EXPECT_EQ(j["command"], "predict");
  EXPECT_EQ(j["inputs"], Json::array({kSample}));
  has(j, {"edits", "layout", "baseline", "predicted", "speedup", "explain"});
  ASSERT_EQ(j["edits"].size(), 1u);
  has(j["edits"][0], {"name", "value", "nodes_changed", "edges_changed", "assumes"});
  EXPECT_EQ(j["edits"][0]["name"], "--kernel");
  EXPECT_EQ(j["edits"][0]["value"], "gemm=0.5x");
  EXPECT_GT(j["edits"][0]["nodes_changed"], 0);
  for (const char* side : {"base", "new"}) {
    has(j["layout"][side], {"tp", "pp", "dp", "num_microbatches"});
    EXPECT_EQ(j["layout"][side]["tp"], 2);
    EXPECT_EQ(j["layout"][side]["pp"], 2);
    EXPECT_EQ(j["layout"][side]["dp"], 2);
  }
  has(j["layout"]["base"], {"confidence"});
  has(j["baseline"], {"iteration_ms", "breakdown"});
  has(j["baseline"]["breakdown"], four);
  has(j["predicted"], {"iteration_ms", "interval_ms", "breakdown", "per_rank", "memory_gib_per_gpu", "fits"});
  has(j["predicted"]["breakdown"], four);
  ASSERT_EQ(j["predicted"]["per_rank"].size(), 8u);
  has(j["predicted"]["per_rank"][0], {"rank", "iteration_ms"});
  ASSERT_FALSE(j["explain"].empty());
  has(j["explain"][0], {"kind", "name", "before_ms", "after_ms"});

  // and its numbers agree with each other
  const double t = iteration(j);
  EXPECT_LT(t, baseline(j));
  EXPECT_NEAR(j["speedup"].get<double>(), baseline(j) / t, 1e-6);
  const auto interval = j["predicted"]["interval_ms"].get<std::vector<double>>();
  ASSERT_EQ(interval.size(), 2u);
  EXPECT_LE(interval[0], t * 0.995 + 1e-6);  // never narrower than 0.5%
  EXPECT_GE(interval[1], t * 1.005 - 1e-6);
  double longest = 0, after = 0, sum = 0;
  for (const Json& rank : j["predicted"]["per_rank"]) longest = std::max(longest, rank["iteration_ms"].get<double>());
  EXPECT_NEAR(longest, t, 1e-6) << "one step: the iteration is the longest rank's";
  for (const Json& row : j["explain"]) {
    EXPECT_NEAR(row["after_ms"].get<double>() - row["before_ms"].get<double>(), row["delta_ms"], 1e-6);
    after += row["after_ms"].get<double>();
  }
  EXPECT_NEAR(after, t, 1e-3) << "the critical path is the iteration";
  double ranks = 0;
  for (std::size_t k = 0; k < 4; ++k) sum += j["predicted"]["breakdown"][four[k]].get<double>();
  for (const Json& rank : j["predicted"]["per_rank"]) ranks += rank["iteration_ms"].get<double>() / 8;
  EXPECT_NEAR(sum, ranks, 1e-3) << "classes add up to the mean rank";
}

TEST(CliPredict, NoEditIsTheReplay) {
  const Outcome replay = orrery("replay --json --steps 5 " + kSample);
  ASSERT_EQ(replay.status, 0) << replay.err;
  const double replayed = Json::parse(replay.out)["summary"]["iteration_replayed_ms"].get<double>();
  const Json none = predict("");
  EXPECT_TRUE(has_note(none, "no-edit"));
  EXPECT_EQ(iteration(none), replayed);
  for (const char* same : {"--kernel gemm=1x", "--host 1x", "--launch 1", "--network intra=1x", "--without-stragglers",
                           "--dp 2", "--num-microbatches 4", "--microbatches 4", "--dp 2 --host 1x"}) {
    const Json j = predict(same);
    EXPECT_EQ(j["predicted"], none["predicted"]) << same;
    EXPECT_EQ(j["speedup"], 1.0) << same;
    EXPECT_TRUE(has_note(j, "edit-without-effect")) << same;
    EXPECT_EQ(j["layout"]["new"]["dp"], 2) << same;
  }
}

TEST(CliPredict, EditsCompose) {
  const Json gemm = predict("--kernel gemm=0.5x"), comm = predict("--kernel nccl=0.5x");
  const Json both = predict("--kernel gemm=0.5x --kernel nccl=0.5x");
  EXPECT_EQ(both["edits"].size(), 2u);
  EXPECT_LE(iteration(both), std::min(iteration(gemm), iteration(comm)));
  EXPECT_EQ(predict("--kernel nccl=0.5x --kernel gemm=0.5x")["predicted"], both["predicted"]) << "in any order";
  const Json twice = predict("--kernel gemm=0.5x --kernel gemm=2x");
  EXPECT_NEAR(iteration(twice), baseline(twice), 1e-3) << "what is halved and doubled";
  const Json all = predict("--dp 4 --num-microbatches 8 --kernel gemm=0.5x --network intra=2x --perfect-overlap");
  EXPECT_EQ(all["edits"].size(), 5u);
  EXPECT_EQ(all["layout"]["new"]["dp"], 4);
  EXPECT_EQ(all["layout"]["new"]["num_microbatches"], 8);
  EXPECT_EQ(all["layout"]["base"]["num_microbatches"], 4);
}

TEST(CliPredict, SlowerIsSlowerAndFasterIsFaster) {
  EXPECT_GT(iteration(predict("--kernel .=2x")), iteration(predict("--kernel .=1.5x")));
  EXPECT_GT(iteration(predict("--num-microbatches 8")), iteration(predict("--num-microbatches 5")));
  const Json late = predict("--delay rank=3,ms=20");
  EXPECT_GT(iteration(late), baseline(late));
  EXPECT_LE(iteration(late), baseline(late) + 20 + 1e-6) << "never later than the delay itself";
  EXPECT_LE(iteration(predict("--perfect-overlap")), iteration(predict("--network intra=100x")));
}

TEST(CliPredict, BadValuesAreOneLine) {
  const TempDir dir;
  write_text(dir / "rank-0.json", tiny_trace());
  const std::string trace = (dir / "rank-0.json") + " ";
  expect_refused(trace + "--kernel nothing_like_it=0.5x", "no kernel matches");
  expect_refused(trace + "--kernel gemm", "no factor");
  expect_refused(trace + "--kernel gemm=fast", "not a factor");
  expect_refused(trace + "--kernel '(=2x'", "not a regular expression");
  expect_refused(trace + "--fuse gemm", "two patterns");
  expect_refused(trace + "--fuse add,gemm", "no kernel of the second pattern");
  expect_refused(trace + "--host 0", "not a factor");
  expect_refused(trace + "--launch -1x", "not a factor");
  expect_refused(trace + "--network inter=2x", "inter");
  expect_refused(trace + "--network wifi=2x", "not a part of the network");
  expect_refused(trace + "--delay rank=7,ms=1", "no trace of rank 7");
  expect_refused(trace + "--delay ms=1", "no rank");
  expect_refused(trace + "--dp 0", "--dp");
  expect_refused(trace + "--dp two", "--dp");
  expect_refused(trace + "--dp 2", "no data parallelism");
  expect_refused(trace + "--num-microbatches 1.5", "--num-microbatches");
  expect_refused(trace + "--num-microbatches 2", "layers cannot be told");
  expect_refused(trace + "--steps 99", "99");
  expect_refused(trace + "--absent 1", "--absent");
  expect_refused((dir / "absent.json") + " --host 2x", "absent.json");
  expect_refused("", "TRACE");
  expect_refused(kSample + " --layers 5", "5 layers are not divisible by 2 stages");
  expect_refused(kSample + " --tp 3", "not divisible by 3 tensor-parallel ranks");
  expect_refused(kSample + " --schedule gpipe", "not a schedule: gpipe");
  expect_refused(kSample + " --schedule interleaved:2 --num-microbatches 3", "3 micro-batches are not divisible");
  expect_refused(kSample + " --recompute some", "not a way to recompute");
  expect_refused(kSample + " --global-batch-size 3", "not divisible by 2 replicas");
  expect_refused(kSample + " --platform Z80", "nothing is known of this GPU");
  expect_refused(kSample + " --seq 1024 --seq-length 2048", "given too");
  expect_refused(kSample + " --dp 1000000000", "above 100,000,000");
  expect_refused(kSample + " --search max-tp=2", "no number of GPUs");
  expect_refused(kSample + " --search gpus=7", "no layout of 7 GPUs is feasible");
  expect_refused(kSample + " --cost-table absent.csv", "absent.csv");
}

TEST(CliPredict, AJobOfOneRankHasItsOwnDegree) {
  const TempDir dir;
  write_text(dir / "rank-0.json", tiny_trace());
  const Json same = predict("--dp 1", dir / "rank-0.json");
  EXPECT_EQ(iteration(same), baseline(same));
  EXPECT_TRUE(has_note(same, "edit-without-effect"));
  // by hand: the second kernel starts 1 us after the first, the step ends with its thread
  const Json j = predict("--kernel gemm=0.5x", dir / "rank-0.json");
  EXPECT_EQ(j["baseline"]["breakdown"]["exposed_compute_ms"], 0.15);
  EXPECT_EQ(j["predicted"]["breakdown"]["exposed_compute_ms"], 0.1);
  EXPECT_EQ(iteration(j), 0.2);
}

TEST(CliPredict, ExportNeverOverwritesAnInput) {
  const TempDir dir;
  const std::string trace = dir / "rank-0.json";
  write_text(trace, tiny_trace());
  expect_refused(trace + " --host 0.5x --export " + trace, "would overwrite a trace");
  EXPECT_EQ(read_file(trace), tiny_trace());
  const Outcome o = orrery("predict --json " + trace + " --kernel gemm=0.5x --export " + (dir / "out.json"));
  EXPECT_EQ(o.status, 0) << o.err;
  double gemm_us = 0;
  const Json written = Json::parse(read_file(dir / "out.json"));
  for (const Json& e : written["traceEvents"])
    if (e["name"] == "gemm" && e["ph"] == "X") gemm_us = e["dur"].get<double>();
  EXPECT_EQ(gemm_us, 50);
}

TEST(CliPredict, ExportsMicrobatchesThatAreNotInTheTrace) {
  const TempDir dir;
  const Outcome o = orrery("predict --quiet " + kSample + " --num-microbatches 6 --export " + (dir / "out.json"));
  EXPECT_EQ(o.status, 0) << o.err;
  // every run of a kernel is a slice of its own, as long as the kernel: 6 micro-batches for 4
  const auto attention = [&](const std::string& file) {
    std::pair<int, double> seen{0, 0};
    const Json trace = Json::parse(read_file(dir / file), nullptr, false);
    EXPECT_FALSE(trace.is_discarded());
    for (const Json& e : trace["traceEvents"]) {
      if (e["ph"] != "X" || e["name"].get<std::string>().find("flash_fwd") == std::string::npos) continue;
      ++seen.first;
      seen.second = std::max(seen.second, e["dur"].get<double>());
    }
    return seen;
  };
  ASSERT_EQ(orrery("predict --quiet " + kSample + " --export " + (dir / "base.json")).status, 0);
  const auto base = attention("base.json"), more = attention("out.json");
  EXPECT_GT(base.first, 0);
  EXPECT_EQ(4 * more.first, 6 * base.first);
  EXPECT_LT(more.second, 2 * base.second);
}

TEST(CliPredict, ThreadsDoNotChangeTheAnswer) {
  const std::string command = "predict --json --num-microbatches 6 --dp 4 " + kSample + " --threads ";
  EXPECT_EQ(orrery(command + "1").out, orrery(command + "3").out);
}

TEST(CliPredict, ExamplesOfTheHelpRun) {
  const Outcome help = orrery("predict --help");
  EXPECT_EQ(help.status, 0);
  std::istringstream lines(help.out);
  int run = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find("orrery predict samples/");
    if (at == std::string::npos) continue;
    ++run;
    const Outcome o = orrery(line.substr(at + 7));
    EXPECT_EQ(o.status, 0) << line << ": " << o.err;
    EXPECT_NE(o.out.find("Predicted"), std::string::npos) << o.out;
  }
  EXPECT_GE(run, 3);
  // every edit that the page names is one that it takes
  for (const char* option : {"--dp", "--num-microbatches", "--kernel", "--fuse", "--host", "--launch", "--cuda-graphs",
                             "--network", "--without-stragglers", "--delay", "--perfect-overlap", "--explain"})
    EXPECT_NE(help.out.find(std::string("  ") + option), std::string::npos) << option;
}

}  // namespace
}  // namespace orrery::test
