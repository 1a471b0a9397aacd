// orrery jobs: the whole tool on made files, and on the full-size tables beside this checkout where they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::ordered_json;

Json jobs(const std::string& arguments, int status = 0) {
  const Outcome o = orrery("jobs --json " + arguments);
  EXPECT_EQ(o.status, status) << arguments << ": " << o.err;
  return o.out.empty() ? Json() : Json::parse(o.out);
}

void expect_refused(const std::string& arguments, const std::string& says) {
  const Outcome o = orrery("jobs " + arguments);
  EXPECT_EQ(o.status, 2) << arguments;
  EXPECT_EQ(o.out, "") << arguments;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << arguments << ": " << o.err;
  EXPECT_NE(o.err.find(says), std::string::npos) << arguments << ": " << o.err;
}

const Json& named(const Json& list, const std::string& name) {
  static const Json none;
  for (const Json& e : list)
    if (e["name"] == name) return e;
  ADD_FAILURE() << "no " << name;
  return none;
}

const std::string kTwo =
    "job_id,user,type,state,gpus,duration,queue\n1,a,Eval.v2,COMPLETED,1,10,2\n2,b,Pretrain,FAILED,16,1000,3\n";

TEST(CliJobs, TheKeysOfTheContract) {
  const TempDir dir;
  write_text(dir / "small.csv", kTwo);
  write_text(dir / "other.csv", "gpus,duration\n4,100\n");
  const Json d = jobs((dir / "small.csv") + " " + (dir / "other.csv"));
  ASSERT_EQ(d["clusters"].size(), 2u);
  const Json& c = d["clusters"][0];
  EXPECT_EQ(c["name"], "small");
  EXPECT_EQ(d["clusters"][1]["name"], "other");
  EXPECT_EQ(c["jobs"], 2);
  EXPECT_EQ(c["gpu_jobs"], 2);
  EXPECT_EQ(c["cpu_jobs"], 0);
  EXPECT_EQ(c["gpu_time_s"], 16010);
  EXPECT_EQ(c["types"][0], Json::parse(R"({"name": "Pretrain", "count": 1, "count_pct": 50.0, "gpu_time_s": 16000,
                                           "gpu_time_pct": 99.937539})"));
  EXPECT_EQ(named(c["states"], "FAILED")["gpu_time_s"], 16000);
  for (const char* key : {"mean", "p25", "p50", "p75", "p90", "p99", "max"}) {
    EXPECT_TRUE(c["duration_s"].contains(key)) << key;
    EXPECT_TRUE(c["queue_s"].contains(key)) << key;
  }
  EXPECT_EQ(c["duration_s"]["p50"], 505);
  const Json& eval = c["by_type"]["Eval.v2"];
  EXPECT_EQ(eval["duration_counts"].size(), 22u);
  EXPECT_EQ(eval["queue_counts"].size(), 23u);
  EXPECT_EQ(eval["duration_counts"][3], Json::parse("[8, 0]"));
  EXPECT_EQ(eval["duration_counts"][4], Json::parse("[16, 1]"));
  for (const char* key : {"p5", "p25", "p50", "p75", "p95"}) EXPECT_EQ(eval["gpus"][key], 1) << key;
  EXPECT_EQ(c["by_type"]["ALL"]["duration_counts"][21], Json::parse("[2097152, 2]"));
  ASSERT_EQ(c["gpus_counts"].size(), 1024u);
  EXPECT_EQ(c["gpus_counts"][14][1], 1);
  EXPECT_EQ(c["gpus_counts"][15], Json::parse("[16, 2, 1.0]"));
}

TEST(CliJobs, BothDefinitionsOfDuration) {
  const TempDir dir;
  write_text(dir / "k.csv",
             "job_id,gpus,submit_time,start_time,end_time,duration\n"
             "1,8,2024-01-01 00:00:00,2024-01-01 00:00:10,2024-01-01 00:00:18,18\n");
  const Json file = jobs(dir / "k.csv"), run = jobs("--duration run " + (dir / "k.csv"));
  EXPECT_EQ(file["clusters"][0]["duration_s"]["max"], 18);
  EXPECT_EQ(file["clusters"][0]["duration_kind"], "file");
  EXPECT_NE(std::find_if(file["notes"].begin(), file["notes"].end(),
                         [](const Json& n) { return n["name"] == "duration-counts-waiting"; }),
            file["notes"].end());
  EXPECT_EQ(run["clusters"][0]["duration_s"]["max"], 8);
  EXPECT_EQ(run["clusters"][0]["gpu_time_s"], 64);
  EXPECT_EQ(run["clusters"][0]["duration_kind"], "run");
  EXPECT_NE(orrery("jobs --duration run " + (dir / "k.csv")).out.find("Clusters (durations: start to end)"),
            std::string::npos);
}

TEST(CliJobs, BadRowsAreExitOne) {
  const TempDir dir;
  write_text(dir / "b.csv", kTwo + "3,a,Eval,COMPLETED,x,1,1\n");
  const Json d = jobs(dir / "b.csv", 1);
  EXPECT_EQ(d["clusters"][0]["jobs"], 2);
  EXPECT_EQ(d["notes"][0]["name"], "bad-row");
  EXPECT_EQ(d["notes"][0]["count"], 1);
}

TEST(CliJobs, FilesOfOneClusterAreOneTable) {
  const TempDir dir;
  write_text(dir / "march.csv", kTwo);
  write_text(dir / "april.csv", kTwo);
  const Json d = jobs("--cluster march.csv=C --cluster april.csv=C " + (dir / "march.csv") + " " + (dir / "april.csv"));
  ASSERT_EQ(d["clusters"].size(), 1u);
  EXPECT_EQ(d["clusters"][0]["jobs"], 4);
  EXPECT_EQ(named(d["notes"], "duplicate-row")["count"], 2) << "rows of april that march has, too";
  EXPECT_NE(named(d["notes"], "duplicate-row")["first"].get<std::string>().find("april.csv: job 1"), std::string::npos);
  const std::string march = dir / "march.csv";
  EXPECT_EQ(named(jobs("--cluster march.csv=C " + march + " " + march)["notes"], "duplicate-row")["count"], 2);
  const Json all = jobs(dir.path.string());
  EXPECT_EQ(all["clusters"].size(), 2u);
  expect_refused("--cluster may.csv=C " + march, "no file may.csv among the inputs");
}

TEST(CliJobs, AnEmptyMonthAndABrokenOne) {
  const TempDir dir;
  write_text(dir / "march.csv", kTwo);
  write_text(dir / "april.csv", "job_id,gpus,duration\n");
  const Json d = jobs((dir / "april.csv") + " " + (dir / "march.csv"));
  EXPECT_EQ(d["clusters"].size(), 1u);
  EXPECT_EQ(named(d["notes"], "no-jobs")["count"], 1);
  expect_refused(dir / "april.csv", "a header and no jobs");
  write_text(dir / "notes.txt", "nothing of this kind\n");
  EXPECT_EQ(jobs(dir.path.string())["clusters"].size(), 1u) << "what is no job record is left out";
  write_text(dir / "may.csv", "1,ada,8,COMPLETED,2024-01-01T00:00:00\n");
  write_text(dir / "june.txt", "JobID|State|Start|End|Elapsed\n1|COMPLETED|Unknown|Unknown|00:00:01\n");
  write_text(dir / "july.csv", "job_id,gpus,duration\n1,many,3\n");
  EXPECT_EQ(shell("gzip -c samples/jobs.csv | head -c 12 > " + (dir / "august.csv.gz")).status, 0);
  const Json broken = jobs(dir.path.string(), 1);
  EXPECT_EQ(broken["clusters"].size(), 1u);
  EXPECT_EQ(named(broken["notes"], "unusable-file")["count"], 4);
  EXPECT_EQ(named(broken["notes"], "unusable-file")["severity"], "data-loss");
}

TEST(CliJobs, NoOutputIsAnInput) {
  const TempDir dir;
  write_text(dir / "types.csv", kTwo);
  write_text(dir / "why.csv", "job_id,reason\n2,ECC Error\n");
  const std::string in = dir / "types.csv";
  fs::create_symlink(in, dir / "link.html");
  expect_refused("--html " + in + " " + in, "would be written over an input");
  expect_refused("--html " + (dir / "link.html") + " " + in, "would be written over an input");
  expect_refused("--html " + in + " " + dir.path.string(), "would be written over an input");
  expect_refused("--html " + (dir / "why.csv") + " --reasons " + (dir / "why.csv") + " " + in,
                 "would be written over an input");
  expect_refused("--csv " + dir.path.string() + " " + in, "would be written over an input");
  expect_refused("progress --html " + in + " " + in, "would be written over an input");
  EXPECT_EQ(read_file(in), kTwo);
  EXPECT_EQ(orrery("jobs --html " + (dir / "new.html") + " " + in).status, 0);
}

TEST(CliJobs, TheOrderOfRowsDoesNotMatter) {
  const TempDir dir;
  const Outcome shuffled =
      shell("{ head -1 samples/jobs.csv; tail -n +2 samples/jobs.csv | sort -t, -k10n; } > " + (dir / "jobs.csv"));
  EXPECT_EQ(shuffled.status, 0);
  const Json a = jobs("samples/jobs.csv"), b = jobs(dir / "jobs.csv");
  EXPECT_EQ(a["clusters"], b["clusters"]);
}

TEST(CliJobs, ContainersAndStandardInput) {
  const Outcome o = shell("gzip -c samples/jobs.csv | \"$orrery\" jobs --json - | sed -n '/\"gpu_jobs\"/p'");
  EXPECT_NE(o.out.find("300"), std::string::npos) << o.out << o.err;
  EXPECT_EQ(shell("zstd -qc samples/jobs.csv | \"$orrery\" jobs -").status, 0);
  const Outcome cut = shell("gzip -c samples/jobs.csv | head -c 6000 | \"$orrery\" jobs --json -");
  EXPECT_EQ(cut.status, 1);
  EXPECT_NE(cut.out.find("truncated"), std::string::npos);
}

TEST(CliJobs, TablesAsFilesAndByOneKey) {
  const TempDir dir;
  write_text(dir / "small.csv", kTwo);
  const Outcome o = orrery("jobs --by user --csv " + (dir / "out") + " " + (dir / "small.csv"));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.out.find("By user\n"), std::string::npos);
  EXPECT_EQ(read_file(dir / "out/types.csv"),
            "cluster,name,count,count_pct,gpu_time_s,gpu_time_pct\r\nsmall,Pretrain,1,50,16000,99.93753904\r\n"
            "small,Eval.v2,1,50,10,0.0624609619\r\n");
  EXPECT_NE(read_file(dir / "out/duration_counts.csv").find("small,ALL,16,1\r\n"), std::string::npos);
}

TEST(CliJobs, WhatCannotBeUsedIsRefused) {
  expect_refused("samples/gpt-tp2-pp2-dp2/rank-0.json.gz", "not job records");
  expect_refused("no-such-file.csv", "no such file or directory");
  expect_refused("--schema acm samples/jobs.csv", "did you mean acme?");
  expect_refused("--schema acme samples/jobs.csv", "not a file of schema acme");
  expect_refused("--duration walltime samples/jobs.csv", "no such duration");
  expect_refused("--by colour samples/jobs.csv", "no grouping by colour");
  expect_refused("--cluster x samples/jobs.csv", "not FILE=NAME");
  expect_refused("--html - samples/jobs.csv", "the page cannot go to standard output");
  expect_refused("--time-zone CET samples/jobs.csv", "not a time zone");
}

TEST(CliJobs, ExamplesOfTheHelpPageWork) {
  const TempDir dir;
  std::istringstream lines(orrery("help jobs").out);
  int examples = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("      orrery jobs ", 0) != 0) continue;
    ++examples;
    std::string arguments = line.substr(13);
    if (const auto at = arguments.find("--html "); at != std::string::npos)
      arguments.insert(at + 7, dir.path.string() + "/");
    const Outcome o = orrery(arguments);
    EXPECT_EQ(o.status, 0) << line << "\n" << o.err;
  }
  EXPECT_EQ(examples, 3);
  const std::string page = read_file(dir / "jobs.html");
  EXPECT_EQ(page.rfind("<!DOCTYPE html>", 0), 0u);
  EXPECT_NE(page.find("</html>"), std::string::npos);
  EXPECT_NE(page.find("GPU time of failed jobs, by reason"), std::string::npos);
}

TEST(CliJobs, ReasonsAndWhatIf) {
  const TempDir dir;
  write_text(dir / "small.csv",
             "job_id,user,type,state,gpus,submit_time,start_time,end_time\n"
             "11,a,Pretrain,FAILED,8,2024-01-01 00:00:00,2024-01-01 00:00:00,2024-01-01 01:00:00\n"
             "12,a,Eval,COMPLETED,8,2024-01-01 00:10:00,2024-01-01 00:10:00,2024-01-01 00:20:00\n");
  write_text(dir / "why.csv", "job_id,reason,category\n11,ECC Error,Infrastructure\n");
  const Json d =
      jobs((dir / "small.csv") + " --reasons " + (dir / "why.csv") + " --what-if gpus=8,policy=easy")["clusters"][0];
  EXPECT_EQ(d["failures"][0]["reason"], "ECC Error");
  EXPECT_EQ(d["failures"][0]["category"], "Infrastructure");
  EXPECT_EQ(d["failures"][0]["lost_gpu_time_s"], 28800);
  EXPECT_EQ(d["failure_categories"][0]["lost_gpu_time_pct"], 100);
  EXPECT_EQ(d["infrastructure_mtbf_h"], 1);
  EXPECT_EQ(d["reliability"][0]["type"], "ALL");
  EXPECT_EQ(d["what_if"][0]["mean_queue_s"], 1500) << "fifty minutes of the second";
  EXPECT_EQ(d["what_if"][0]["gpu_used_pct"], 100);
  expect_refused((dir / "small.csv") + " --what-if gpus=8,reserve=Pretain:4", "no GPU job of type Pretain");
  EXPECT_EQ(d["what_if_queue"][0]["policy"], "as recorded");
  EXPECT_EQ(d["what_if_queue"].back()["max_s"], 3000);
  expect_refused((dir / "small.csv") + " --what-if policy=easy", "how many GPUs? gpus=N");
  expect_refused((dir / "small.csv") + " --what-if gpus=8,gpus=16", "given twice: gpus");
  expect_refused((dir / "small.csv") + " --what-if gpus=8 --what-if gpus=8", "given twice: gpus=8");
  write_text(dir / "none.csv", "job_id,reason\n99,x\n");
  expect_refused((dir / "small.csv") + " --reasons " + (dir / "none.csv"), "no job has an id of this file");
  // Two policies are told apart in what people read, however long they are.
  const std::string terms = "gpus=8,policy=conservative,reserve=Pretrain:4,preempt=on,checkpoint=";
  const Outcome o = orrery("jobs " + (dir / "small.csv") + " --what-if " + terms + "1800 --what-if " + terms + "3600");
  EXPECT_NE(o.out.find("conservative  Pretrain     4  on             1800"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("conservative  Pretrain     4  on             3600"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("conservative-depth"), std::string::npos) << o.out;
}

TEST(CliJobs, ReasonsOfNoJobAndTwoOfOne) {
  const TempDir dir;
  write_text(dir / "small.csv", kTwo);
  write_text(dir / "why.csv", "job_id,reason\n2,ECC Error\n2 , NaN Loss\n77,ECC Error\n");
  const Json d = jobs((dir / "small.csv") + " --reasons " + (dir / "why.csv"));
  EXPECT_EQ(d["clusters"][0]["failures"][0]["reason"], "NaN Loss");
  EXPECT_EQ(named(d["notes"], "reasons-joined")["count"], 1);
  EXPECT_EQ(named(d["notes"], "reasons-unmatched")["count"], 1);
  EXPECT_NE(named(d["notes"], "reasons-unmatched")["first"].get<std::string>().find("77"), std::string::npos);
  EXPECT_EQ(named(d["notes"], "several-reasons")["count"], 1);
}

TEST(CliJobs, WhatNoColumnTellsIsNull) {
  const TempDir dir;
  write_text(dir / "bare.csv", "gpus,duration\n4,100\n2,10\n");
  const Json c = jobs(dir / "bare.csv")["clusters"][0];
  EXPECT_TRUE(c["failures_total"].is_null());
  EXPECT_TRUE(c["top5_users_pct"].is_null());
  EXPECT_TRUE(c["reliability"][0]["failures"].is_null());
  for (const char* key : {"users", "gini_gpu_time", "jain_gpu_time", "jain_slowdown"})
    EXPECT_TRUE(c["fairness"][key].is_null()) << key;
  write_text(dir / "full.csv", kTwo);
  const Json f = jobs(dir / "full.csv")["clusters"][0];
  EXPECT_EQ(f["failures_total"], 1);
  EXPECT_EQ(f["fairness"]["users"], 2);
  EXPECT_TRUE(f["fairness"]["jain_slowdown"].is_number());
}

TEST(CliJobs, MetricsAreToldApart) {
  const TempDir dir;
  write_text(dir / "x.csv",
             "Time,node,nvidia_smi_utilization_gpu,nvidia_smi_utilization_memory\n"
             "2024-01-01 00:00:00,n1,1,2\n2024-01-01 00:01:00,n1,3,4\n");
  const Outcome o = orrery("jobs " + (dir / "x.csv"));
  EXPECT_NE(o.out.find("nvidia_smi_utilization_gpu "), std::string::npos) << o.out << o.err;
  EXPECT_NE(o.out.find("nvidia_smi_utilization_memory "), std::string::npos) << o.out;
}

TEST(CliJobs, LogsOfRunsAndTrials) {
  const TempDir dir;
  const auto line = [](const char* time, int step) {
    return std::string("2024-01-01 ") + time + " step=" + std::to_string(step) + " loss=1.0\n";
  };
  write_text(dir / "a.log", line("00:00:00", 1) + line("00:00:10", 2) + line("00:00:20", 3));
  write_text(dir / "b.log", line("00:01:00", 1) + line("00:01:10", 2) + line("00:01:20", 3) + line("00:01:30", 4));
  const Json d = jobs("progress " + (dir / "b.log") + " " + (dir / "a.log"));
  EXPECT_EQ(d["run"]["rollbacks"], 1);
  EXPECT_EQ(d["rollbacks"][0]["lost_steps"], 3);
  EXPECT_EQ(d["curve"].size(), 7u);
  write_text(
      dir / "t.log",
      "01/02 00:00:00 load\n01/02 00:00:30 Start inferencing\n01/02 00:01:30 Start evaluating\n01/02 00:01:40 end\n");
  const Json t = jobs("trials --html " + (dir / "t.html") + " " + (dir / "t.log"));
  EXPECT_EQ(t["trials"][0]["load_pct"], 30);
  EXPECT_EQ(t["trials"][0]["gpu_idle_pct"], 40);
  EXPECT_NE(read_file(dir / "t.html").find("<svg"), std::string::npos);
  expect_refused("progress", "which logs?");
  write_text(dir / "bare.log", "step: 1 loss: 3.0\nstep: 2 loss: 2.9\nstep: 3 loss: 2.8\n");
  const Json bare = jobs("progress " + (dir / "bare.log"));
  EXPECT_EQ(bare["run"]["last_step"], 3);
  for (const char* key : {"wall_s", "down_s", "ettr_pct"}) EXPECT_TRUE(bare["run"][key].is_null()) << key;
  EXPECT_TRUE(bare["standstills"].empty());
  expect_refused("progress --by user " + (dir / "a.log"), "--by is for job records");
  expect_refused("--stage metric=x samples/jobs.csv", "is for the logs of trials");
  expect_refused("trials --stage load=x " + (dir / "t.log"), "not inference=REGEX or metric=REGEX");
  expect_refused("progress " + (dir / "t.log"), "no line that names a training step");
}

// ---- the full-size tables

struct Checker {
  int checks = 0;
  void near(const Json& got, double want, double slack, const std::string& what) {
    ++checks;
    ASSERT_TRUE(got.is_number()) << what;
    EXPECT_LE(std::fabs(got.get<double>() - want), slack) << what << ": " << got << ", not " << want;
  }
  void same(const Json& got, const Json& want, const std::string& what) { near(got, want.get<double>(), 0, what); }
};

void compare(const Json& gold, const std::string& cluster, const Json& c, Checker& check) {
  check.same(c["jobs"], gold["rows"][cluster], "rows");
  check.same(c["gpu_jobs"], gold["gpu_jobs"][cluster], "GPU jobs");
  check.same(c["cpu_jobs"], gold["cpu_jobs"][cluster], "CPU jobs");
  for (const auto& [type, n] : gold["gpu_jobs_by_type"][cluster].items())
    check.same(named(c["types"], type)["count"], n, type);
  for (const auto& [key, curve] : gold["cdf_counts"].items()) {
    if (key.rfind(cluster + "/", 0) != 0) continue;
    const std::size_t slash = key.rfind('/');
    const std::string type = key.substr(cluster.size() + 1, slash - cluster.size() - 1), what = key.substr(slash + 1);
    for (const auto& [threshold, n] : curve.items()) {
      const auto t = static_cast<std::size_t>(std::stoul(threshold));
      if (what == "gpu_num") {
        check.same(c["gpus_counts"][t - 1][1], n, key + " " + threshold);
        continue;
      }
      std::size_t k = 0;
      while ((std::size_t{1} << k) < t) ++k;
      check.same(c["by_type"][type][what + "_counts"][k][1], n, key + " " + threshold);
    }
  }
  for (const auto& [gpus, pct] : gold["gpu_time_cdf_percent_by_gpu_num/" + cluster].items())
    check.near(c["gpus_counts"][std::stoul(gpus) - 1][2], pct.get<double>() / 100, 0.51e-6, "GPU time up to " + gpus);
  for (const auto& [type, box] : gold["boxplot_gpu_num"][cluster].items())
    for (const auto& [ours, theirs] :
         {std::pair{"low", "wl"}, {"p25", "q1"}, {"p50", "med"}, {"p75", "q3"}, {"high", "wh"}})
      check.same(c["by_type"][type]["gpus"][ours], box[theirs], type + " " + theirs);
}

TEST(CliJobs, EveryCountOfTheReleasedTrace) {
  const fs::path data = fs::path(ORRERY_SOURCE_DIR) / "../shared/data/acme";
  if (!fs::exists(data / "golden.json")) {
    std::cout << "SKIP: no job traces in ../shared/data\n";
    return;
  }
  const Json gold = Json::parse(read_file(data / "golden.json"));
  const Json d = jobs((data / "acme_like_seren.csv.gz").string() + " " + (data / "acme_like_kalos.csv.gz").string());
  ASSERT_EQ(d["clusters"].size(), 2u);
  const Json &seren = d["clusters"][0], &kalos = d["clusters"][1];
  Checker check;
  compare(gold, "seren", seren, check);
  compare(gold, "kalos", kalos, check);
  for (const auto& [type, pct] : gold["gpu_time_share_percent_by_type"]["seren"].items())
    check.near(named(seren["types"], type)["gpu_time_pct"], pct.get<double>(), 0.51e-5, "Seren " + type);
  const double total = kalos["gpu_time_s"].get<double>();
  const double rest = total - named(kalos["types"], "SFT")["gpu_time_s"].get<double>();
  for (const auto& [type, pct] : gold["gpu_time_share_percent_by_type"]["kalos_excluding_SFT"].items())
    check.near(Json(100 * named(kalos["types"], type)["gpu_time_s"].get<double>() / rest), pct.get<double>(), 0.51e-5,
               "Kalos " + type);
  const Json& time = gold["kalos_gpu_time_seconds"];
  check.same(kalos["gpu_time_s"], time["total"], "GPU time");
  const Json &done = named(kalos["states"], "COMPLETED")["gpu_time_s"],
             &gone = named(kalos["states"], "CANCELLED")["gpu_time_s"];
  check.same(done, time["COMPLETED"], "COMPLETED");
  check.same(gone, time["CANCELLED"], "CANCELLED");
  check.near(Json(total - done.get<double>() - gone.get<double>()), time["other(FAILED+RUNNING)"].get<double>(), 0,
             "other");
  for (const auto& [state, n] : gold["state_counts_all_jobs"]["kalos"].items())
    check.same(named(kalos["all_states"], state)["count"], n, state);
  EXPECT_GT(check.checks, 600);
}

TEST(CliJobs, QuantilesOfTheReleasedSamples) {
  const fs::path data = fs::path(ORRERY_SOURCE_DIR) / "../shared/data/acme";
  if (!fs::exists(data / "golden.json")) {
    std::cout << "SKIP: no samples in ../shared/data\n";
    return;
  }
  const Json gold = Json::parse(read_file(data / "golden.json"))["pkl_quantiles"];
  int checks = 0;
  for (const auto& [key, want] : gold.items()) {
    const std::size_t colon = key.find(".pkl:");
    const std::string metric = key.substr(colon + 5);
    const fs::path file = data / "util_quantiles_csv" / (key.substr(0, colon) + "__" + metric + ".csv");
    if (!fs::exists(file)) continue;
    const Json got =
        jobs("--cluster " + file.filename().string() + "=C " + file.string())["clusters"][0]["utilization"];
    for (const auto& [name, value] : want.items()) {
      // As printed: half a unit of the last digit, or the six digits that the samples have.
      const std::string printed = value.dump();
      const std::size_t dot = printed.find('.');
      const double v = value.get<double>(),
                   half = dot == std::string::npos ? 0.5 : 0.5 * std::pow(10, double(dot) + 1 - double(printed.size()));
      EXPECT_NEAR(got[metric][name].get<double>(), v, std::max(half * (1 + 1e-9), std::fabs(v) * 1e-5 + 6e-5))
          << key << " " << name;
      ++checks;
    }
  }
  EXPECT_GT(checks, 200);
}

TEST(CliJobs, SamplesGoToTheClusterOfTheirName) {
  const TempDir dir;
  write_text(dir / "trace_alpha.csv", kTwo);
  write_text(dir / "trace_beta.csv", kTwo);
  write_text(dir / "util_gpu_beta__gpu_util.csv", "percentile,value\n0,0\n100,100\n");
  fs::create_directory(dir / "gamma");
  write_text(dir / "gamma/POWER_USAGE.csv", "Time,10.0.0.1-0\n2024-01-01 00:00:00,60\n2024-01-01 01:00:00,400\n");
  const Json d = jobs(dir.path.string());
  ASSERT_EQ(d["clusters"].size(), 3u);
  EXPECT_EQ(named(d["clusters"], "trace_beta")["utilization"]["gpu_util"]["mean"], 50);
  const Json& gamma = named(d["clusters"], "gamma");
  EXPECT_EQ(gamma["utilization"]["POWER_USAGE"]["idle_pct"].get<double>() > 0, true);
  EXPECT_NEAR(gamma["energy"]["POWER_USAGE"]["energy_kwh"].get<double>(), 0.46, 1e-9);
}

}  // namespace
}  // namespace orrery::test
