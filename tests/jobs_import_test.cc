// Readers of job records: every schema on rows made here, and what is not as it should be.
#include <gtest/gtest.h>

#include <string>

#include "importers/jobs.h"
#include "importers/jobs_csv.h"
#include "importers/jobs_rows.h"
#include "importers/jobs_time.h"

namespace orrery {
namespace {

JobTable read(std::string_view text, const JobImportOptions& options = {}) {
  auto t = import_jobs_bytes(text, "made.csv", options);
  EXPECT_TRUE(t) << (t ? "" : t.error().line());
  return t ? std::move(*t) : JobTable{};
}

std::string refusal(std::string_view text, const JobImportOptions& options = {}) {
  const auto t = import_jobs_bytes(text, "made.csv", options);
  return t ? "read" : t.error().line();
}

const Note* note(const JobTable& t, std::string_view name) {
  for (const Note& n : t.notes.rows)
    if (n.name == name) return &n;
  return nullptr;
}

std::int64_t utc(const char* text) {
  TimeReader r;
  std::int64_t ms = 0;
  EXPECT_EQ(r.read(text, ms), TimeReader::State::ok) << text;
  return ms;
}

TEST(JobTimes, DatesZonesAndSeconds) {
  EXPECT_EQ(utc("1970-01-02T00:00:01Z"), 86'401'000);
  EXPECT_EQ(utc("2023-03-01 00:18:22+08:00"), utc("2023-02-28 16:18:22+00:00"));
  EXPECT_EQ(utc("2023-03-01 00:18:22.25-0530"), utc("2023-03-01 05:48:22Z") + 250);
  EXPECT_EQ(utc("2024-02-29 23:59"), utc("2024-03-01 00:00:00") - 60'000);
  EXPECT_EQ(utc("1709251200"), utc("2024-03-01 00:00:00"));
  EXPECT_EQ(date_text(utc("2024-02-29 23:59:59") / 86'400'000), "2024-02-29");
  TimeReader east(8 * 3600);
  std::int64_t ms = 0;
  EXPECT_EQ(east.read("2023-03-01 08:00:00", ms), TimeReader::State::ok);
  EXPECT_EQ(ms, utc("2023-03-01 00:00:00"));
  for (const char* none : {"", "None", "Unknown", "NA", "nan", "null"})
    EXPECT_EQ(east.read(none, ms), TimeReader::State::none) << none;
  for (const char* bad : {"2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-03-01 24:00:00", "2023-03-01 00:00:00+8",
                          "yesterday", "-5", "2023-03-01 00:00:00 CET", "1e30"})
    EXPECT_EQ(east.read(bad, ms), TimeReader::State::bad) << bad;
  EXPECT_TRUE(read_clock("1-02:03:04", ms));
  EXPECT_EQ(ms, (86400 + 2 * 3600 + 3 * 60 + 4) * 1000);
  EXPECT_TRUE(read_clock("03:04", ms));
  EXPECT_EQ(ms, 184'000);
  EXPECT_FALSE(read_clock("UNLIMITED", ms));
}

TEST(JobCsv, QuotesLineEndsAndLongRows) {
  const std::string text = "a,b\r\n\"x,\"\"y\"\"\nz\",2\n\n\"open,3\nlast,4";
  auto source = open_memory(text);
  CsvReader r(*source, ',');
  std::vector<std::string_view> f;
  ASSERT_EQ(*r.next(f), CsvReader::Row::row);
  EXPECT_EQ(f[1], "b");
  ASSERT_EQ(*r.next(f), CsvReader::Row::row);
  EXPECT_EQ(f[0], "x,\"y\"\nz");
  EXPECT_EQ(r.line(), 2u);
  ASSERT_EQ(*r.next(f), CsvReader::Row::bad) << "a quote that does not end takes its own line only";
  EXPECT_EQ(r.line(), 5u);
  ASSERT_EQ(*r.next(f), CsvReader::Row::row);
  EXPECT_EQ(f[0], "last");
  EXPECT_EQ(f[1], "4");
  EXPECT_EQ(*r.next(f), CsvReader::Row::end);
  EXPECT_EQ(*r.next(f), CsvReader::Row::end);

  const std::string large = std::string(CsvReader::kLongest + (3 << 20), 'x') + "\n1,2\n";
  source = open_memory(large);
  CsvReader s(*source, ',');
  ASSERT_EQ(*s.next(f), CsvReader::Row::bad);
  ASSERT_EQ(*s.next(f), CsvReader::Row::row);
  EXPECT_EQ(f.size(), 2u);
  EXPECT_EQ(*s.next(f), CsvReader::Row::end);
  EXPECT_EQ(separator_of("a|b|c"), '|');
  EXPECT_EQ(separator_of("\"a|b|c\",d"), ',');
}

constexpr const char* kKalos =
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,"
    "fail_time,stop_time,duration,queue,gpu_time\n"
    "dlc1,u1,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 "
    "11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0\n"
    "dlc2,u2,1,0,8,32,,CPU,COMPLETED,2023-05-17 11:00:00+00:00,2023-05-17 11:00:05+00:00,2023-05-17 "
    "11:00:12+00:00,,,12,5.0,\n"
    "dlc3,u2,64,512,8,32,,Pretrain,RUNNING,2023-05-17 12:00:00+00:00,2023-05-17 12:00:20+00:00,,,,100,20.0,51200.0\n";

TEST(JobSchemas, AcmeKalosCountsTheWaiting) {
  const JobTable t = read(kKalos);
  EXPECT_EQ(t.schema, "acme");
  ASSERT_EQ(t.size(), 3u);
  EXPECT_TRUE(t.duration_counts_waiting());
  EXPECT_EQ(t.id(1), "dlc2");
  EXPECT_EQ(t.names.view(t.type[2]), "Pretrain");
  EXPECT_EQ(t.gpu_milli[0], 64'000);
  EXPECT_EQ(t.nodes[2], 64);
  EXPECT_EQ(duration_of(t, 0, DurationKind::file), 18'000);
  EXPECT_EQ(duration_of(t, 0, DurationKind::run), 8'000);
  EXPECT_EQ(duration_of(t, 0, DurationKind::total), 18'000);
  // without an end the column is all there is, and it counts the waiting
  EXPECT_EQ(duration_of(t, 2, DurationKind::run), 80'000);
  EXPECT_EQ(duration_of(t, 2, DurationKind::total), 100'000);
  EXPECT_EQ(outcome_of(t.names.view(t.state[2])), Outcome::active);
}

TEST(JobSchemas, AcmeSerenDoesNot) {
  const JobTable t = read(
      "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
      "5778432,u5907,1,8,128,Other,PREEMPTED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 "
      "00:20:51+08:00,117,32,936.0\n");
  ASSERT_EQ(t.size(), 1u);
  EXPECT_EQ(t.utc_offset_s, 8 * 3600);
  EXPECT_EQ(t.submit_ms[0], utc("2023-02-28 16:18:22Z"));
  EXPECT_FALSE(t.duration_counts_waiting());
  EXPECT_EQ(duration_of(t, 0, DurationKind::total), 149'000);
  EXPECT_EQ(outcome_of("PREEMPTED"), Outcome::preempted);
}

TEST(JobSchemas, SacctParsable) {
  const JobTable t = read(
      "JobID|Partition|Account|User|State|Submit|Start|End|ElapsedRaw|Timelimit|NNodes|NCPUS|ReqTRES|AllocTRES\n"
      "7|train|nlp|ada|CANCELLED by "
      "1000|2024-05-01T10:00:00|2024-05-01T10:01:00|2024-05-01T10:03:00|120|1-00:00:00|2|16|"
      "billing=16,cpu=16,gres/gpu=16,node=2|billing=16,cpu=16,gres/gpu:a100=16,gres/gpu=16,node=2\n"
      "7.batch||nlp||CANCELLED|2024-05-01T10:01:00|2024-05-01T10:01:00|2024-05-01T10:03:00|120||1|8||cpu=8,gres/gpu=8\n"
      "8|eval|nlp|bo|PENDING|2024-05-01T10:02:00|Unknown|Unknown|0|UNLIMITED|1|1|billing=1,cpu=1,gres/gpu=1,node=1|\n"
      "9|cpu|nlp|bo|COMPLETED|2024-05-01T10:02:00|2024-05-01T10:02:01|2024-05-01T10:02:05|4|60|1|1|cpu=1|cpu=1\n");
  EXPECT_EQ(t.schema, "sacct");
  ASSERT_EQ(t.size(), 3u) << "steps are no jobs";
  ASSERT_NE(note(t, "job-step"), nullptr);
  EXPECT_EQ(note(t, "job-step")->count, 1u);
  EXPECT_EQ(t.gpu_milli[0], 16'000);
  EXPECT_EQ(t.names.view(t.state[0]), "CANCELLED");
  EXPECT_EQ(t.limit_s[0], 86'400);
  EXPECT_EQ(t.queue_ms[0], 60'000);
  EXPECT_EQ(t.gpu_milli[1], 1'000) << "what a waiting job asks for";
  EXPECT_EQ(t.duration_ms[1], kNoTime) << "it has not run";
  EXPECT_EQ(t.gpu_milli[2], 0);
  EXPECT_EQ(t.names.view(t.type[0]), "train");
}

TEST(JobSchemas, SacctElapsedAsAClock) {
  const JobTable t = read(
      "JobID|State|Submit|Start|End|Elapsed|AllocTRES|\n"
      "1|COMPLETED|2024-05-01T10:00:00|2024-05-01T10:00:00|2024-05-01T10:00:50|00:00:50|gres/gpu=8|\n"
      "2|FAILED|2024-05-01T10:00:00|2024-05-01T10:00:00|2024-05-03T10:00:07|2-00:00:07|gres/gpu=8|\n"
      "3|PENDING|2024-05-01T10:00:00|Unknown|Unknown|00:00:00||\n");
  ASSERT_EQ(t.size(), 3u);
  EXPECT_EQ(t.duration_ms[0], 50'000);
  EXPECT_EQ(t.duration_ms[1], 172'807'000);
  EXPECT_EQ(t.duration_ms[2], kNoTime);
}

TEST(JobSchemas, GpusInListsOfResources) {
  EXPECT_EQ(gpus_of_tres("billing=8,cpu=8,gres/gpu=8,mem=1G"), 8);
  EXPECT_EQ(gpus_of_tres("gres/gpu:a100=4,gres/gpu:h100=2"), 6);
  EXPECT_EQ(gpus_of_tres("gres/gpu:a100=4,gres/gpu=4"), 4);
  EXPECT_EQ(gpus_of_tres("gpu:4"), 4);
  EXPECT_EQ(gpus_of_tres("gpu:a100:4(S:0-1)"), 4);
  EXPECT_EQ(gpus_of_tres("gpu:a100"), 1);
  EXPECT_EQ(gpus_of_tres("gpu"), 1);
  EXPECT_EQ(gpus_of_tres("cpu=8,gres/gpumem=80G"), 0);
  EXPECT_EQ(gpus_of_tres(""), 0);
  EXPECT_EQ(gpus_of_tres("gres/gpu=many"), -1);
  EXPECT_EQ(gpus_of_tres("gres:gpu:2"), 2);
  EXPECT_EQ(gpus_of_tres("gres:gpu:tesla:2"), 2);
  EXPECT_EQ(gpus_of_tres("GRES/GPU=4,CPU=2"), 4);
  EXPECT_EQ(gpus_of_tres("gpu:2K"), 2048);
  EXPECT_EQ(gpus_of_tres("gpu:1g.5gb"), 1);
  EXPECT_EQ(gpus_of_tres("gpu:a100:4(IDX:0-1,3),gpu:h100:2(IDX:5,7)"), 6);
  EXPECT_EQ(gpus_of_tres("PER_NODE:gpu:8", 3), 24);
  EXPECT_EQ(gpus_of_tres("PER_JOB:gpu:8", 3), 8);
  EXPECT_EQ(gpus_of_tres("1=8,2=500G,4=1"), 0) << "numbers that are the same everywhere";
  for (const char* unknown : {"PER_NODE:gpu:8", "PER_TASK:gpu:1", "7696487:4", "1=8,1001=4", "gpu:2X", "gpu:a100:many",
                              "gpu:a100:2:no", "four", "gpu=", "gpu:"})
    EXPECT_EQ(gpus_of_tres(unknown), -1) << unknown;
  std::string_view other;
  EXPECT_EQ(gpus_of_tres("cpu=8,gres/gpumem=80G,gpu_fast:2,tesla:2", 1, &other), 0);
  EXPECT_EQ(other, "gpu_fast:2");
}

TEST(JobSchemas, SacctWithoutStartsHasItsDurations) {
  for (const char* submit : {"2024-05-01T10:00:00", ""}) {
    const std::string at = submit;
    const JobTable t = read("JobID|State|" + std::string(at.empty() ? "" : "Submit|") +
                            "Elapsed|AllocTRES\n1|COMPLETED|" + (at.empty() ? "" : at + "|") +
                            "00:00:50|gres/gpu=8\n2|PENDING|" + (at.empty() ? "" : at + "|") + "00:00:00|\n");
    ASSERT_EQ(t.size(), 2u) << at;
    EXPECT_EQ(t.duration_ms[0], 50'000) << at;
    EXPECT_EQ(t.duration_ms[1], kNoTime) << at;
    EXPECT_EQ(note(t, "bad-row"), nullptr) << at;
  }
  const JobTable raw = read("JobID|Submit|ElapsedRaw|AllocTRES\n1|2024-05-01T10:00:00|70|gres/gpu=8\n");
  EXPECT_EQ(raw.duration_ms[0], 70'000);
}

TEST(JobSchemas, SacctResourcesThatCannotBeKnownAreBadRows) {
  const JobTable t = read(
      "JobID|State|Elapsed|NNodes|AllocGRES\n1|COMPLETED|00:00:50|2|PER_NODE:gpu:8\n2|COMPLETED|00:00:50|1|7696487:4\n"
      "3|COMPLETED|00:00:50|1|fpga:2\n4_[1-5,9,20-30:5%2]|PENDING|00:00:00|1|gpu:1\n");
  ASSERT_EQ(t.size(), 3u);
  EXPECT_EQ(t.gpu_milli[0], 16'000);
  ASSERT_NE(note(t, "bad-row"), nullptr);
  EXPECT_EQ(note(t, "bad-row")->first, "made.csv:3: not a number of GPUs: 7696487:4");
  ASSERT_NE(note(t, "resource-unknown"), nullptr);
  EXPECT_EQ(note(t, "resource-unknown")->first, "made.csv: fpga:2");
  ASSERT_NE(note(t, "array-as-one-job"), nullptr);
  EXPECT_EQ(note(t, "array-as-one-job")->count, 8u) << "5, 1 and 3 tasks, of which one is counted";
  const JobTable json = read(R"({"jobs": [
      {"job_id": 1, "time": {"elapsed": 5}, "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2},
                                                                   {"type": "gres", "name": "gpumem", "count": 80}]}},
      {"job_id": 2, "time": {"elapsed": 5}, "tres": {"allocated": [{"type": "gres", "name": null, "count": 2}]}},
      {"job_id": 3, "time": {"elapsed": 5}}]})");
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json.gpu_milli[0], 2'000);
  EXPECT_EQ(json.duration_ms[0], 5'000);
  EXPECT_EQ(note(json, "bad-row")->count, 1u);
  EXPECT_EQ(note(json, "gpus-missing")->count, 1u);
}

TEST(JobSchemas, SacctJsonOldAndNew) {
  const JobTable t = read(R"({"meta": {"Slurm": {"release": "22.05.8"}}, "jobs": [
    {"job_id": 7, "user": "ada", "account": "nlp", "partition": "train", "state": {"current": "FAILED", "reason": "None"},
     "time": {"elapsed": 120, "start": 1714557660, "end": 1714557780, "submission": 1714557600, "limit": 90},
     "allocation_nodes": 2, "required": {"CPUs": 16},
     "tres": {"allocated": [{"type": "cpu", "name": null, "count": 16}, {"type": "gres", "name": "gpu", "count": 16}],
              "requested": []}},
    {"job_id": 8, "user": "bo", "account": "nlp", "partition": "eval", "state": {"current": ["PENDING"]},
     "time": {"elapsed": 0, "start": 0, "end": 0, "submission": 1714557700,
              "limit": {"set": true, "infinite": false, "number": 60}},
     "tres": {"allocated": [], "requested": [{"type": "gres", "name": "gpu:a100", "count": 2}]}}], "errors": []})");
  EXPECT_EQ(t.schema, "sacct");
  ASSERT_EQ(t.size(), 2u);
  EXPECT_EQ(t.gpu_milli[0], 16'000);
  EXPECT_EQ(t.queue_ms[0], 60'000);
  EXPECT_EQ(t.duration_ms[0], 120'000);
  EXPECT_EQ(t.limit_s[0], 5'400);
  EXPECT_EQ(t.nodes[0], 2);
  EXPECT_EQ(t.names.view(t.state[1]), "PENDING");
  EXPECT_EQ(t.gpu_milli[1], 2'000);
  EXPECT_EQ(t.start_ms[1], kNoTime);
  EXPECT_EQ(t.limit_s[1], 3'600);
}

TEST(JobSchemas, PhillyOriginalAndFlattened) {
  const JobTable t = read(R"([
    {"status": "Pass", "vc": "6214e9", "jobid": "application_1", "user": "ce2f4c", "submitted_time": "2017-10-09 06:00:00",
     "attempts": [
       {"start_time": "2017-10-09 06:01:00", "end_time": "2017-10-09 06:02:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]},
       {"start_time": "2017-10-09 06:05:00", "end_time": "2017-10-09 06:10:00",
        "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu7"]}]}]},
    {"status": "Killed", "vc": "6214e9", "jobid": "application_2", "user": "x", "submitted_time": "2017-10-09 07:00:00",
     "attempts": []},
    {"status": "Failed", "vc": "6214e9", "jobid": "application_3", "user": "x", "submitted_time": "2017-10-09 07:00:00",
     "attempts": [{"start_time": "2017-10-09 07:00:00", "end_time": "None", "detail": []}]}])");
  EXPECT_EQ(t.schema, "philly");
  ASSERT_EQ(t.size(), 3u);
  EXPECT_EQ(t.duration_ms[0], 360'000) << "one minute and five";
  EXPECT_EQ(t.queue_ms[0], 60'000);
  EXPECT_EQ(t.gpu_milli[0], 3'000);
  EXPECT_EQ(t.nodes[0], 2);
  EXPECT_EQ(outcome_of(t.names.view(t.state[0])), Outcome::completed);
  EXPECT_EQ(outcome_of(t.names.view(t.state[1])), Outcome::cancelled);
  ASSERT_NE(note(t, "further-attempts"), nullptr);
  EXPECT_EQ(note(t, "further-attempts")->count, 1u);
  EXPECT_EQ(t.end_ms[2], kNoTime);

  const JobTable flat = read(
      "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
      "2017-10-09 06:13:03,2951.0,2,5902.0,6214e9\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n\n");
  EXPECT_EQ(flat.schema, "philly");
  ASSERT_EQ(flat.size(), 3u);
  EXPECT_EQ(flat.duplicates, 1u) << "counted, and kept";
  EXPECT_EQ(flat.names.view(flat.group[1]), "6214e9");
  EXPECT_EQ(flat.queue_ms[0], kNoTime);
}

TEST(JobSchemas, Helios) {
  const JobTable t = read(
      "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
      "1,u1,vc6YE,8,64,1,COMPLETED,2020-05-01 00:00:00,2020-05-01 00:00:10,2020-05-01 00:01:10,60,10\n"
      "2,u1,vc6YE,0,4,1,CANCELLED,2020-05-01 00:00:00,,2020-05-01 00:01:10,0,70\n");
  EXPECT_EQ(t.schema, "helios");
  ASSERT_EQ(t.size(), 2u);
  EXPECT_EQ(t.names.view(t.group[0]), "vc6YE");
  ASSERT_NE(note(t, "time-zone-assumed"), nullptr);
  JobImportOptions china;
  china.time_zone_s = 8 * 3600;
  china.time_zone_given = true;
  const JobTable local = read(
      "job_id,user,vc,gpu_num,state,submit_time,duration,queue\n1,u1,v,8,COMPLETED,2020-05-01 00:00:00,60,10\n", china);
  EXPECT_EQ(local.submit_ms[0], utc("2020-04-30 16:00:00Z"));
  EXPECT_EQ(note(local, "time-zone-assumed"), nullptr);
}

TEST(JobSchemas, AlibabaPaiAndOpenb) {
  const std::string rows =
      "j1,worker,4.0,Terminated,1000.0,1600.5,600,29.3,25.0,V100\n"
      "j1,ps,1.0,Failed,1000.0,1001.0,,,,\n"
      "j2,worker,1.0,Waiting,2000.0,,600,29.3,100.0,T4\n";
  const JobTable t =
      read("job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n" + rows);
  EXPECT_EQ(t.schema, "pai");
  ASSERT_EQ(t.size(), 3u);
  EXPECT_EQ(t.gpu_milli[0], 1'000) << "four instances of a quarter";
  EXPECT_EQ(t.cpu_milli[0], 24'000);
  EXPECT_EQ(duration_of(t, 0, DurationKind::file), 600'500);
  EXPECT_EQ(t.gpu_milli[1], 0);
  EXPECT_EQ(duration_of(t, 2, DurationKind::file), kNoTime);
  EXPECT_TRUE(t.relative_times);
  const JobTable bare = read(rows);
  ASSERT_EQ(bare.size(), 3u) << "as published, without a header";
  EXPECT_EQ(bare.gpu_milli[0], 1'000);

  const JobTable pods = read(
      "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
      "p0,12000,16384,1,460,,LS,Running,0,12537496,10\n"
      "p1,1000,16384,8,1000,V100M16,BE,Succeeded,427061,12902960,427061\n"
      "p2,1000,16384,0,0,,BE,Pending,427061,427100,\n");
  EXPECT_EQ(pods.schema, "openb");
  ASSERT_EQ(pods.size(), 3u);
  EXPECT_EQ(pods.gpu_milli[0], 460);
  EXPECT_EQ(pods.gpu_milli[1], 8'000);
  EXPECT_EQ(pods.cpu_milli[0], 12'000);
  EXPECT_EQ(pods.queue_ms[0], 10'000);
  EXPECT_EQ(duration_of(pods, 0, DurationKind::file), 12'537'486'000);
  EXPECT_EQ(pods.start_ms[2], kNoTime);
  EXPECT_EQ(duration_of(pods, 2, DurationKind::file), kNoTime) << "never scheduled";
}

TEST(JobSchemas, PlainCsvInAnyOrder) {
  const JobTable t = read(
      "\xef\xbb\xbfgpus;state;duration_s;name;submit_time\n0.5;COMPLETED;1.5;a;2024-01-01 00:00:00\n"
      "8;Sleeping;1:00:00;b;2024-01-01 00:00:00\n");
  EXPECT_EQ(t.schema, "plain");
  ASSERT_EQ(t.size(), 2u);
  EXPECT_EQ(t.gpu_milli[0], 500);
  EXPECT_EQ(t.duration_ms[0], 1'500);
  EXPECT_EQ(t.duration_ms[1], 3'600'000);
  ASSERT_NE(note(t, "unknown-state"), nullptr);
  EXPECT_EQ(note(t, "unknown-state")->count, 1u);
  EXPECT_EQ(t.names.view(t.state[1]), "Sleeping") << "kept under its own name";

  JobImportOptions by_queue;
  by_queue.type_column = "Queue_Name";
  EXPECT_EQ(read("gpus,duration,queue_name\n1,2,short\n", by_queue).names.size(), 2u);
  by_queue.type_column = "queue_nam";
  EXPECT_EQ(refusal("gpus,duration,queue_name\n1,2,short\n", by_queue),
            "made.csv: no column queue_nam (did you mean queue_name?)");
}

TEST(JobFaults, BadRowsAreCountedWithTheFirst) {
  const JobTable t = read(
      "job_id,gpus,duration,submit_time,start_time,end_time\n"
      "1,8,60,2024-01-01 00:00:00,2024-01-01 00:00:10,2024-01-01 00:01:10\n"
      "2,many,60,2024-01-01 00:00:00,,\n"
      "3,8,-5,2024-01-01 00:00:00,,\n"
      "4,8,60\n"
      "5,8,60,2024-01-01,,\n"
      "6,8,60,2024-01-01 00:00:00,2024-01-01 00:00:10,2024-01-01 00:00:09\n"
      "7,99999999,60,2024-01-01 00:00:00,,\n"
      "8,8,60,2024-01-01 00:00:10,2024-01-01 00:00:00,\n"
      "9,,60,2024-01-01 00:00:00,,\n"
      "10,8,,,,\n");
  EXPECT_EQ(t.size(), 3u);
  ASSERT_NE(note(t, "bad-row"), nullptr);
  EXPECT_EQ(note(t, "bad-row")->count, 7u);
  EXPECT_EQ(note(t, "bad-row")->severity, Severity::data_loss);
  EXPECT_EQ(note(t, "bad-row")->first, "made.csv:3: not a number of GPUs: many");
  ASSERT_NE(note(t, "start-before-submit"), nullptr);
  EXPECT_EQ(t.queue_ms[1], 0);
  ASSERT_NE(note(t, "gpus-missing"), nullptr);
}

TEST(JobFaults, ClocksSetBackAndDatesThatCannotBe) {
  const JobTable t = read(
      "job_id,gpus,duration,submit_time,start_time,end_time\n"
      "1,8,1800,2024-10-27 02:40:00,2024-10-27 02:45:00,2024-10-27 02:15:00\n"
      "2,8,60,0001-01-01T00:00:00Z,2024-01-01 00:00:10,9999-12-31 23:59:59\n"
      "3,8,60,2024-01-01 00:00:00,2024-01-01 00:00:10,1970-01-01T00:00:00\n");
  ASSERT_EQ(t.size(), 3u);
  EXPECT_EQ(note(t, "bad-row"), nullptr);
  ASSERT_NE(note(t, "clock-set-back"), nullptr);
  EXPECT_EQ(duration_of(t, 0, DurationKind::run), 1'800'000);
  ASSERT_NE(note(t, "absurd-time"), nullptr);
  EXPECT_EQ(note(t, "absurd-time")->count, 3u);
  EXPECT_EQ(note(t, "absurd-time")->first, "made.csv:3: 0001-01-01T00:00:00Z");
  EXPECT_EQ(t.submit_ms[1], kNoTime);
  EXPECT_EQ(t.end_ms[1], kNoTime);
  EXPECT_EQ(t.end_ms[2], kNoTime);
  // With a zone there is nothing to set back, and another gap than that of a clock is wrong.
  EXPECT_NE(refusal("gpus,duration,start_time,end_time\n8,1800,2024-10-27 02:45:00Z,2024-10-27 02:15:00Z\n")
                .find("ends before it starts"),
            std::string::npos);
  EXPECT_NE(refusal("gpus,duration,start_time,end_time\n8,100,2024-10-27 02:45:00,2024-10-27 02:15:00\n")
                .find("ends before it starts"),
            std::string::npos);
}

TEST(JobFaults, BlanksAroundCellsAndWhoCancelled) {
  const JobTable t =
      read("job_id, user, state, gpus, duration\n1, ada, CANCELLED by 12, 8, 60\n2,ada ,CANCELLED,8 ,60\n");
  ASSERT_EQ(t.size(), 2u);
  EXPECT_EQ(t.user[0], t.user[1]);
  EXPECT_EQ(t.state[0], t.state[1]);
  EXPECT_EQ(t.gpu_milli[0], 8'000);
  EXPECT_EQ(note(t, "unknown-state"), nullptr);
}

TEST(JobFaults, WhatIsNotJobsIsRefusedInOneLine) {
  EXPECT_EQ(refusal(""), "made.csv: an empty file");
  EXPECT_EQ(refusal("hello\nworld\n"), "made.csv: not job records: hello (docs/formats/jobs.md names the columns)");
  EXPECT_NE(refusal("job_id,duration\n1,2\n").find("without a number of GPUs"), std::string::npos);
  EXPECT_EQ(refusal("gpus,duration\nx,1\n"), "made.csv: no usable job: made.csv:2: not a number of GPUs: x");
  JobImportOptions helios;
  helios.schema = "helios";
  EXPECT_NE(refusal("gpus,duration\n1,1\n", helios).find("not a file of schema helios"), std::string::npos);
  EXPECT_NE(refusal(R"({"jobs": [{"job_id": 1}, )").find("no usable job"), std::string::npos);
  EXPECT_NE(refusal(R"([{"jobid": "a", "attempts": [)").find("no"), std::string::npos);
  EXPECT_NE(refusal("JobID|State|Start|End|Elapsed\n").find("sacct needs AllocTRES"), std::string::npos);
  EXPECT_EQ(unusable_jobs("1,ada,8,COMPLETED,2024-01-01T00:00:00\n").rfind("rows of jobs without a header", 0), 0u);
  EXPECT_EQ(unusable_jobs("a,b,c,d\n1,2,3,4\n"), "");
}

TEST(JobFaults, AFileWithoutJobsIsAnEmptyTable) {
  for (const char* text : {"gpus,duration\n", R"({"jobs": []})", "JobID|Elapsed|AllocTRES\n"}) {
    const JobTable t = read(text);
    EXPECT_EQ(t.size(), 0u) << text;
    EXPECT_NE(note(t, "no-jobs"), nullptr) << text;
  }
}

TEST(JobFaults, ACutDocumentKeepsItsJobs) {
  const JobTable t = read(
      R"({"jobs": [{"job_id": 1, "state": "FAILED", "time": {"elapsed": 5, "start": 1714557660, "end": 1714557665}},
      {"job_id": 2, "state")");
  EXPECT_EQ(t.size(), 1u);
  ASSERT_NE(note(t, "truncated"), nullptr);
  const JobTable broken = read(
      R"({"jobs": [{"job_id": 1, "state": "FAILED", "time": {"elapsed": 5, "start": 1714557660, "end": 1714557665}},
      {"job_id" 2}]})");
  EXPECT_EQ(broken.size(), 1u);
  ASSERT_NE(note(broken, "broken-json"), nullptr);
}

TEST(JobTables, AppendedRowsAreThoseOfBoth) {
  JobTable a = read(kKalos);
  const JobTable b = read("job_id,user,type,state,gpus,duration\n5,u2,Eval,COMPLETED,1,2\n6,zed,Eval,FAILED,1,3\n");
  append_jobs(a, b);
  ASSERT_EQ(a.size(), 5u);
  EXPECT_EQ(a.id(2), "dlc3");
  EXPECT_EQ(a.id(4), "6");
  EXPECT_EQ(a.user[3], a.user[1]) << "u2 of both";
  EXPECT_EQ(a.names.view(a.user[4]), "zed");
  EXPECT_EQ(a.names.view(a.type[3]), "Eval");
}

}  // namespace
}  // namespace orrery
