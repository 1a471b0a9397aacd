// What fails and what it costs, when jobs come, and how fair a cluster is: by hand.
#include <gtest/gtest.h>

#include "cluster/failures.h"
#include "cluster/patterns.h"
#include "importers/jobs.h"
#include "importers/jobs_reasons.h"

namespace orrery {
namespace {

JobTable read(const std::string& text) {
  auto t = import_jobs_bytes(text, "made.csv");
  EXPECT_TRUE(t) << (t ? "" : t.error().line());
  return t ? std::move(*t) : JobTable{};
}

const std::string kHeader = "job_id,user,type,state,gpus,nodes,submit_time,start_time,end_time,reason\n";

// Two hours of 16 GPUs fail, start again half an hour later and complete; another user's job loses a node.
const std::string kRun =
    kHeader +
    "1,a,Pretrain,FAILED,16,2,2024-01-01 00:00:00,2024-01-01 00:00:00,2024-01-01 02:00:00,NVLink Error\n"
    "2,b,Pretrain,COMPLETED,16,2,2024-01-01 02:05:00,2024-01-01 02:06:00,2024-01-01 02:07:00,\n"
    "3,a,Pretrain,COMPLETED,16,2,2024-01-01 02:20:00,2024-01-01 02:30:00,2024-01-01 06:30:00,\n"
    "4,b,Eval,NODE_FAIL,1,1,2024-01-01 03:00:00,2024-01-01 04:00:00,2024-01-01 05:00:00,\n"
    "5,b,CPU,FAILED,0,1,2024-01-01 03:00:00,2024-01-01 04:00:00,2024-01-01 05:00:00,\n";

TEST(JobFailures, ReasonsWithTheirCost) {
  const FailureStats s = failure_stats(read(kRun), {}, {{"NVLink Error", "Infrastructure"}});
  EXPECT_EQ(s.failures, 2u) << "GPU jobs alone";
  EXPECT_EQ(s.infrastructure, 2u);
  ASSERT_EQ(s.reasons.size(), 2u);
  const ReasonRow& r = s.reasons[0];
  EXPECT_EQ(r.reason, "NVLink Error");
  EXPECT_EQ(r.category, "Infrastructure");
  EXPECT_DOUBLE_EQ(gpu_seconds(r.lost), 16 * 7200);
  EXPECT_DOUBLE_EQ(r.to_failure_s.p50, 7200);
  EXPECT_EQ(r.restarts, 1u);
  EXPECT_DOUBLE_EQ(r.to_restart_s.p50, 1800) << "the same user, type and size";
  EXPECT_EQ(s.reasons[1].reason, "");
  EXPECT_EQ(s.reasons[1].restarts, 0u);
  EXPECT_DOUBLE_EQ(s.span_h, 6.5);
  EXPECT_DOUBLE_EQ(s.mtbf_h(), 3.25);
}

TEST(JobFailures, ReliabilityByClass) {
  const FailureStats all = failure_stats(read(kRun), {}, {});
  ASSERT_EQ(all.types.size(), 3u);
  const ReliabilityRow& p = all.types[1];
  EXPECT_EQ(p.name, "Pretrain");
  EXPECT_EQ(p.runs, 3u);
  EXPECT_EQ(p.failures, 1u);
  EXPECT_NEAR(p.run_hours, 2 + 1.0 / 60 + 4, 1e-9);
  EXPECT_NEAR(p.wait_hours, (1 + 10) / 60.0, 1e-9);
  EXPECT_NEAR(p.node_mttf_h(), 2 * (6 + 1.0 / 60), 1e-9);
  EXPECT_NEAR(p.ettr_pct(), 100 * (4 + 1.0 / 60) / (6 + 12.0 / 60), 1e-9) << "two hours of work are lost";
  EXPECT_NEAR(p.goodput_pct(), 100 * (4 + 1.0 / 60) / (6 + 1.0 / 60), 1e-9);
  // a checkpoint every half hour: a quarter of an hour is lost; two minutes to restart
  const FailureStats c = failure_stats(read(kRun), {.checkpoint_s = 1800, .restart_s = 120}, {});
  const ReliabilityRow& q = c.types[1];
  EXPECT_NEAR(q.lost_gpu_hours, 16 * 0.25, 1e-9);
  EXPECT_NEAR(q.productive_hours, (2 - 0.25 - 2 / 60.0) + 0 + (4 - 2 / 60.0), 1e-9)
      << "a minute is over before it is of use";
  EXPECT_EQ(all.sizes.front().name, "1");
  EXPECT_EQ(all.sizes.back().name, "9-16");
}

TEST(JobFailures, FairnessOverUsers) {
  EXPECT_DOUBLE_EQ(gini({5, 5, 5}), 0);
  EXPECT_DOUBLE_EQ(gini({0, 0, 9}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(jain({5, 5, 5}), 1);
  EXPECT_DOUBLE_EQ(jain({0, 0, 9}), 1.0 / 3);
  EXPECT_DOUBLE_EQ(jain({1, 3}), 16.0 / 20);
  EXPECT_DOUBLE_EQ(gini({}), 0);
}

ReasonFile reasons(std::string_view text) {
  const SourcePtr source = open_memory(text);
  auto r = import_reasons(*source, "why");
  EXPECT_TRUE(r) << (r ? "" : r.error().line());
  return r ? std::move(*r) : ReasonFile{};
}

TEST(JobFailures, ReasonsAreJoinedByJobOrByLog) {
  JobTable t = read(kRun);
  EXPECT_EQ(join_reasons(t, reasons("job_id,reason,category\n4,ECC Error,Infrastructure\n99,x,\n")), 1u);
  EXPECT_EQ(t.names.view(t.reason[3]), "ECC Error");
  JobTable u = read(kRun);
  const ReasonFile answer = reasons(
      R"({"orrery": "0.1.0", "command": "diagnose", "logs": [
        {"file": "logs/slurm-4.out", "verdict": "failed", "reason": "CUDA Error", "category": "Infrastructure"},
        {"file": "logs/train_3_rank0.log", "verdict": "healthy", "reason": "None", "category": "None"}]})");
  EXPECT_TRUE(answer.by_file);
  EXPECT_EQ(join_reasons(u, answer), 1u) << "a healthy log has no reason";
  EXPECT_EQ(u.names.view(u.reason[3]), "CUDA Error");
  EXPECT_EQ(failure_stats(u, {}, answer.categories).reasons[1].category, "Infrastructure");
  for (const char* bad : {"", "a,b\n1,2\n", "{\"logs\": 5}", "{"}) {
    const SourcePtr source = open_memory(bad);
    EXPECT_FALSE(import_reasons(*source, "why")) << bad;
  }
}

TEST(JobPatterns, HoursOfTheDayAreLocal) {
  const Patterns p =
      patterns(read("gpus,submit_time,start_time,end_time\n"
                    // Monday 2024-01-01, 23:30 to 25:15 in the file's zone
                    "4,2024-01-01 23:30:00+08:00,2024-01-01 23:30:00+08:00,2024-01-02 01:15:00+08:00\n"
                    "0,2024-01-01 23:59:59+08:00,2024-01-02 00:00:00+08:00,2024-01-02 00:00:10+08:00\n"));
  EXPECT_EQ(p.utc_offset_s, 8 * 3600);
  EXPECT_EQ(p.hours[23].gpu_jobs, 1u);
  EXPECT_EQ(p.hours[23].cpu_jobs, 1u);
  EXPECT_EQ(p.week[23].gpu_jobs, 1u) << "Monday";
  ASSERT_EQ(p.days.size(), 2u);
  EXPECT_DOUBLE_EQ(p.hours[23].gpus, 4 * 0.5 / 2) << "half an hour of one of two days";
  EXPECT_DOUBLE_EQ(p.week[23].gpus, 2);
  EXPECT_DOUBLE_EQ(p.week[24].gpus, 4);
  EXPECT_DOUBLE_EQ(p.week[25].gpus, 1);
  EXPECT_DOUBLE_EQ(p.days[1].gpus, 5.0 / 24);
}

TEST(JobPatterns, WorkIsConserved) {
  const JobTable t = read(kRun);
  const Patterns p = patterns(t);
  double gpu_hours = 0;
  for (const HourRow& d : p.days) gpu_hours += d.gpus * 24;
  EXPECT_NEAR(gpu_hours, 16 * (2 + 1.0 / 60 + 4) + 1, 1e-9);
}

TEST(JobPatterns, TimesThatCannotBeAreLeftOut) {
  const Patterns p = patterns(read("gpus,submit_time,duration\n1,1970-01-01 00:00:00,5\n1,2024-01-01 00:00:00,5\n"));
  EXPECT_TRUE(p.days.empty()) << "half a century is no trace";
}

}  // namespace
}  // namespace orrery
