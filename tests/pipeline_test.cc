// Steps of pipelines: what is read, how it is replayed, and schedules of which the length can be worked out by hand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "importers/importers.h"
#include "importers/pipeline_steps.h"
#include "replay/replay.h"
#include "reports/pipeline_steps.h"
#include "whatif/pipeline_steps.h"

namespace orrery {
namespace {

// ---- pipelines with operations of whole milliseconds, played by the simplest means ----------------------------------

struct Played {
  std::vector<std::vector<std::array<double, 4>>> passes;  // by stage: pass (0 forward, 1 backward), start, end, chunk
  double end = 0;
};

// Stages in the order of the schedule, hand-over for free.
Played play(ScheduleKind kind, int stages, int chunks, int micro_batches,
            const std::function<double(int stage, Pass)>& length) {
  const auto schedule = make_schedule(kind, stages, chunks, micro_batches);
  EXPECT_TRUE(schedule);
  Played out;
  out.passes.resize(static_cast<std::size_t>(stages));
  std::map<std::tuple<int, Pass, int, int>, double> ended;
  std::vector<std::size_t> next(static_cast<std::size_t>(stages), 0);
  std::vector<double> now(static_cast<std::size_t>(stages), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < stages; ++s) {
      const auto at = static_cast<std::size_t>(s);
      while (next[at] < schedule->stage[at].size()) {
        const Slot& slot = schedule->stage[at][next[at]];
        if (slot.is_pass) {
          const int part = slot.chunk * stages + s + (slot.pass == Pass::forward ? -1 : 1);
          double start = now[at];
          if (slot.pass != Pass::weight && part >= 0 && part < stages * chunks) {
            const auto from = ended.find({part % stages, slot.pass, slot.micro_batch, part / stages});
            if (from == ended.end()) break;
            start = std::max(start, from->second);
          }
          now[at] = start + length(s, slot.pass);
          ended[{s, slot.pass, slot.micro_batch, slot.chunk}] = now[at];
          out.passes[at].push_back({slot.pass == Pass::forward ? 0.0 : 1.0, start, now[at], double(slot.chunk)});
          out.end = std::max(out.end, now[at]);
        }
        ++next[at];
        moved = true;
      }
    }
  }
  return out;
}

std::string passes_text(const std::vector<std::array<double, 4>>& passes, int iterations = 3) {
  nlohmann::json j;
  for (int i = 1; i <= iterations; ++i) {
    auto& one = j[std::to_string(i)];
    double end = 0;
    for (const auto& [pass, start, stop, chunk] : passes) {
      one[pass == 0 ? "fwd_start" : "bwd_start"].push_back(start);
      one[pass == 0 ? "fwd_end" : "bwd_end"].push_back(stop);
      end = std::max(end, stop);
    }
    one["total"] = end;
  }
  return j.dump();
}

Result<PipelineTrace> join_texts(const std::vector<std::string>& texts) {
  std::vector<PipelineFile> files;
  for (std::size_t k = 0; k < texts.size(); ++k) {
    auto file = read_pipeline_file(texts[k], "rank-" + std::to_string(k), false);
    if (!file) return tl::unexpected(file.error());
    file->rank = static_cast<std::int64_t>(k);
    files.push_back(std::move(*file));
  }
  return join_pipeline(std::move(files));
}

PipelineTrace trace_of(const Played& played) {
  std::vector<std::string> texts;
  for (const auto& passes : played.passes) texts.push_back(passes_text(passes));
  auto trace = join_texts(texts);
  EXPECT_TRUE(trace);
  return std::move(*trace);
}

// Mean over steps of the longest rank's, ms.
double length_of(const PipelineTrace& t, const PipelineModel& m, const PipelineProgram& p) {
  PipelineBuild built;
  const Status s = assemble_pipeline(t, m, p, built);
  EXPECT_TRUE(s) << (s ? "" : s.error().line());
  if (!s) return 0;
  Replay r;
  replay(built.build.graph, r);
  double sum = 0;
  const auto lengths = iterations(built.build.graph, &r, *select_steps(built.build.graph, {}));
  for (const Ns ns : lengths) sum += to_ms(ns);
  return sum / static_cast<double>(lengths.size());
}

double rescheduled(const PipelineTrace& t, const PipelineSchedule& to) {
  const PipelineRun run = learn_pipeline(t);
  const auto done = reschedule(t, run.model, run.program, to);
  EXPECT_TRUE(done) << (done ? "" : done.error().line());
  return done ? length_of(done->trace, run.model, done->program) : 0;
}

const auto kEqual = [](int, Pass p) { return p == Pass::forward ? 10.0 : 20.0; };

TEST(PipelineSchedules, EqualStagesTakeWhatTheyTakeOnPaper) {
  constexpr int p = 4, m = 8;
  const PipelineTrace t = trace_of(play(ScheduleKind::one_f_one_b, p, 1, m, kEqual));
  EXPECT_EQ(t.stages, p);
  EXPECT_EQ(t.chunks, 1);
  EXPECT_EQ(t.micro_batches, m);
  const PipelineRun run = learn_pipeline(t);
  EXPECT_DOUBLE_EQ(length_of(t, run.model, run.program), (m + p - 1) * 30.0);
  EXPECT_EQ(recognise_schedule(t, run.program), (PipelineSchedule{ScheduleKind::one_f_one_b, 1, m}));
  // A bubble of (p - 1)(f + b) / chunks.
  EXPECT_DOUBLE_EQ(rescheduled(t, {ScheduleKind::interleaved, 2, m}), m * 30.0 + (p - 1) * 30.0 / 2);
  // ZB-H1: (p - 1)(f + b - 2w), where b counts the weights'.
  EXPECT_DOUBLE_EQ(rescheduled(t, {ScheduleKind::zero_bubble, 1, m}), m * 30.0 + (p - 1) * (10 + 20 - 2 * 10.0));
  EXPECT_DOUBLE_EQ(rescheduled(t, {ScheduleKind::one_f_one_b, 1, 20}), (20 + p - 1) * 30.0);
  EXPECT_DOUBLE_EQ(rescheduled(t, {ScheduleKind::one_f_one_b, 1, 2}), (2 + p - 1) * 30.0);
}

TEST(PipelineSchedules, ChunksAreToldFromTheOrderAndPutTogetherAgain) {
  constexpr int p = 4, m = 8;
  const auto half = [](int, Pass pass) { return pass == Pass::forward ? 5.0 : 10.0; };
  const PipelineTrace t = trace_of(play(ScheduleKind::interleaved, p, 2, m, half));
  EXPECT_EQ(t.chunks, 2);
  EXPECT_EQ(t.micro_batches, m);
  const PipelineRun run = learn_pipeline(t);
  EXPECT_EQ(recognise_schedule(t, run.program), (PipelineSchedule{ScheduleKind::interleaved, 2, m}));
  EXPECT_DOUBLE_EQ(length_of(t, run.model, run.program), m * 30.0 + (p - 1) * 30.0 / 2);
  EXPECT_DOUBLE_EQ(rescheduled(t, {ScheduleKind::one_f_one_b, 1, m}), (m + p - 1) * 30.0);
}

TEST(PipelineSchedules, WhatOnlyTheLastStageHasStaysInItsLastChunk) {
  // The last stage takes 4 ms more forward (the output layer): its two chunks take 5 and 9, not 7 and 7.
  const PipelineTrace t = trace_of(play(ScheduleKind::one_f_one_b, 4, 1, 8, [](int s, Pass p) {
    return p == Pass::forward ? (s == 3 ? 14.0 : 10.0) : 20.0;
  }));
  const PipelineRun run = learn_pipeline(t);
  const auto done = reschedule(t, run.model, run.program, {ScheduleKind::interleaved, 2, 8});
  ASSERT_TRUE(done);
  int seen = 0;
  for (const PipelineRow& r : done->program.rows) {
    if (t.ranks[r.rank].pp != 3 || done->trace.types[r.type].kind != PipelineKind::forward) continue;
    ++seen;
    EXPECT_EQ(r.duration, r.chunk == 1 ? 9'000'000 : 5'000'000);
  }
  EXPECT_EQ(seen, 3 * 8 * 2);
}

TEST(PipelineSchedules, WhatAJobCannotHaveIsRefused) {
  const Played played = play(ScheduleKind::one_f_one_b, 4, 1, 6, kEqual);
  const PipelineTrace t = trace_of(played);
  const PipelineRun run = learn_pipeline(t);
  const auto uneven = reschedule(t, run.model, run.program, {ScheduleKind::interleaved, 2, 6});
  ASSERT_FALSE(uneven);
  EXPECT_NE(uneven.error().what.find("not a multiple"), std::string::npos);
  // Without the third stage.
  std::vector<PipelineFile> files;
  for (const std::size_t k : {0, 1, 3}) {
    auto f = read_pipeline_file(passes_text(played.passes[k]), "x", false);
    f->rank = static_cast<std::int64_t>(k);
    files.push_back(std::move(*f));
  }
  const auto part = join_pipeline(std::move(files));
  ASSERT_TRUE(part);
  EXPECT_EQ(part->notes.rows.front().name, "stages-missing");
  const PipelineRun alone = learn_pipeline(*part);
  EXPECT_FALSE(reschedule(*part, alone.model, alone.program, {ScheduleKind::zero_bubble, 1, 6}));
  EXPECT_FALSE(parse_schedule("interleaved:0"));
  EXPECT_FALSE(parse_schedule("interleaved:2x"));
  EXPECT_FALSE(parse_schedule("gpipe"));
  EXPECT_EQ(parse_schedule("interleaved:3")->chunks, 3);
}

TEST(PipelineStragglers, TheSlowStageIsNamedAndItsCostIsWhatItHoldsUp) {
  // One stage of four takes 40 instead of 30 a micro-batch; all ideal takes their mean, 32.5.
  const PipelineTrace t = trace_of(play(ScheduleKind::one_f_one_b, 4, 1, 8, [](int s, Pass p) {
    return (p == Pass::forward ? 10.0 : 20.0) + (s == 2 ? 5.0 : 0.0);
  }));
  PipelineRun run = learn_pipeline(t);
  const std::vector<SlowPart> slow = find_slow_parts(t, run.program);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].stage, 2);
  EXPECT_EQ(slow[0].rank, kNone);
  EXPECT_NEAR(slow[0].slower, 40.0 / 30, 1e-9);
  EXPECT_EQ(ideal_times(t, run.program), (std::vector<Ns>{11'250'000, 21'250'000}));
  make_ideal(
      ideal_times(t, run.program), [](const PipelineRow&) { return true; }, run.program);
  EXPECT_DOUBLE_EQ(length_of(t, run.model, run.program), (8 + 3) * 32.5);
}

// ---- a timeline with transfers and collectives
// -----------------------------------------------------------------------

// Two stages, two replicas, two micro-batches; a hop takes 1 ms and blocks both ends, gradients are reduced over the
// replicas of a stage in 6 ms, then every rank steps its optimizer for 3 ms. Lags are those of a host: 0.5 ms before
// the reduction. `late` rank's backward passes take twice as long. A recorder starts transfers either when both are
// there, or when each side begins to wait.
struct TimelineEvent {
  std::string name;
  int pid, tid;
  double start, end;
  int sequence;
};
std::vector<TimelineEvent> timeline(bool with_waiting, double late = 1) {
  std::vector<TimelineEvent> out;
  double reduce_ready[2][2] = {};
  for (int dp = 0; dp < 2; ++dp) {
    const double f = 10, b = dp == 1 ? 20 * late : 20, hop = 1;
    double t[2] = {0, 0};
    std::map<std::string, int> count;
    const auto pass = [&](const char* name, int stage, double length) {
      const int k = count[std::string(name) + char('0' + stage)]++;
      out.push_back({name, dp, stage * 10, t[stage], t[stage] + length, k});
      t[stage] += length;
    };
    const auto transfer = [&](const char* word, int from) {
      const double met = std::max(t[0], t[1]);
      for (const int stage : {from, 1 - from}) {
        const std::string name = std::string(word) + (stage == from ? "-send" : "-recv");
        const int k = count[name]++;
        out.push_back({name, dp, stage * 10 + 1, with_waiting ? t[stage] : met, met + hop, k});
        t[stage] = met + hop;
      }
    };
    // 1F1B of two stages: F0 F1 B0 B1 and F0 B0 F1 B1.
    pass("forward-compute", 0, f);
    transfer("forward", 0);
    pass("forward-compute", 1, f);
    pass("backward-compute", 1, b);
    pass("forward-compute", 0, f);
    transfer("forward", 0);  // waits for the second stage's backward
    transfer("backward", 1);
    pass("backward-compute", 0, b);
    pass("forward-compute", 1, f);
    pass("backward-compute", 1, b);
    transfer("backward", 1);
    pass("backward-compute", 0, b);
    for (int s = 0; s < 2; ++s) reduce_ready[s][dp] = t[s] + 0.5;
  }
  for (int s = 0; s < 2; ++s) {
    const double met = std::max(reduce_ready[s][0], reduce_ready[s][1]);
    for (int dp = 0; dp < 2; ++dp) {
      out.push_back({"grads-reduce-scatter", dp, s * 10 + 3, with_waiting ? reduce_ready[s][dp] : met, met + 6, 0});
      out.push_back({"optimizer", dp, s * 10, met + 6, met + 9, 0});
    }
  }
  return out;
}

std::string timeline_text(const std::vector<TimelineEvent>& events, int steps = 2) {
  std::string s = "[";
  for (int step = 0; step < steps; ++step)
    for (const TimelineEvent& e : events)
      s += fmt::format(
          R"({{"name":"{}","pid":{},"tid":{},"ts":{},"dur":{},"ph":"X","args":{{"step":{},"model_chunk":-1,"mb_id":-1,"seq_id":{}}}}},)"
          "\n",
          e.name, e.pid, e.tid + 5 * e.pid, step * 1e6 + 1000 * e.start, 1000 * (e.end - e.start), 7 + step,
          e.sequence);
  for (int dp = 0; dp < 2; ++dp)
    for (int pp = 0; pp < 2; ++pp)
      for (const auto& [lane, tid] : {std::pair("compute", 0), std::pair("pp-comm", 1), std::pair("dp-comm", 3)})
        s += fmt::format(
            R"({{"name":"thread_name","pid":{},"tid":{},"ph":"M","args":{{"name":"PP rank {}, TP rank 0, {}"}}}},)", dp,
            pp * 10 + tid + 5 * dp, pp, lane);
  s.back() = ']';
  return s;
}

PipelineTrace timeline_trace(bool with_waiting, double late = 1) {
  auto trace = join_texts({timeline_text(timeline(with_waiting, late))});
  EXPECT_TRUE(trace) << (trace ? "" : trace.error().line());
  return std::move(*trace);
}

TEST(PipelineTimelines, RanksKindsAndPlacesAreRead) {
  const PipelineTrace t = timeline_trace(false);
  EXPECT_EQ(t.stages, 2);
  EXPECT_EQ(t.dp, 2);
  EXPECT_EQ(t.micro_batches, 2);
  EXPECT_TRUE(t.has_transfers);
  ASSERT_EQ(t.ranks.size(), 4u);  // tp fastest, then dp, then pp
  EXPECT_EQ(t.ranks[2].rank, 2);
  EXPECT_EQ(t.ranks[2].pp, 1);
  EXPECT_EQ(t.ranks[2].dp, 0);
  ASSERT_EQ(t.steps.size(), 2u);
  EXPECT_EQ(t.steps[1].number, 8);
  EXPECT_EQ(t.steps[1].begin, 1'000'000'000);
  EXPECT_TRUE(t.notes.rows.empty());
}

TEST(PipelineTimelines, BothWaysOfRecordingWaitingReplayAlike) {
  for (const bool with_waiting : {false, true}) {
    const PipelineTrace t = timeline_trace(with_waiting);
    const PipelineRun run = learn_pipeline(t);
    EXPECT_EQ(run.model.starts_together, !with_waiting);
    std::uint32_t reduce = 0;
    while (t.types[reduce].name != "grads-reduce-scatter") ++reduce;
    EXPECT_EQ(run.model.scope[reduce], PipelineScope::data);
    // F0, hop, F0 and B0 of the second stage, two hops, F1 and B1 there, hop, B1 of the first, lag, reduce, optimizer.
    EXPECT_DOUBLE_EQ(length_of(t, run.model, run.program), 10 + 1 + 30 + 2 + 30 + 1 + 20 + 0.5 + 6 + 3) << with_waiting;
    PipelineBuild built;
    ASSERT_TRUE(assemble_pipeline(t, run.model, run.program, built));
    Replay r;
    replay(built.build.graph, r);
    for (std::uint32_t i = 0; i < t.rows.size(); ++i)
      EXPECT_EQ(r.end[built.node_of_row[i]], t.rows.end[i]) << t.types[t.rows.type[i]].name;
    for (const PipelineIdle& i : run.idle) EXPECT_EQ(i.unexplained, 0);
    EXPECT_EQ(built.build.communication.matched, built.build.communication.expected);
  }
}

TEST(PipelineTimelines, OneSlowReplicaHoldsTheOtherUpInTheReduction) {
  const PipelineTrace t = timeline_trace(false, 2);
  PipelineRun run = learn_pipeline(t);
  const double before = length_of(t, run.model, run.program);
  EXPECT_DOUBLE_EQ(before, 10 + 1 + 50 + 2 + 50 + 1 + 40 + 0.5 + 6 + 3);
  const std::vector<SlowPart> slow = find_slow_parts(t, run.program);
  ASSERT_EQ(slow.size(), 2u);  // of each stage
  EXPECT_EQ(t.ranks[slow[0].rank].dp, 1);
  EXPECT_NEAR(slow[0].slower, 100.0 / 60, 1e-9);
  // Backward takes 30 in the mean: everything is even, and as long as in a job without a slow replica but for that.
  make_ideal(
      ideal_times(t, run.program), [](const PipelineRow&) { return true; }, run.program);
  EXPECT_DOUBLE_EQ(length_of(t, run.model, run.program), 10 + 1 + 40 + 2 + 40 + 1 + 30 + 0.5 + 6 + 3);
}

TEST(PipelineTimelines, TransfersAreMadeForAnotherSchedule) {
  const PipelineTrace t = timeline_trace(false);
  const PipelineRun run = learn_pipeline(t);
  EXPECT_EQ(recognise_schedule(t, run.program), (PipelineSchedule{ScheduleKind::one_f_one_b, 1, 2}));
  const auto done = reschedule(t, run.model, run.program, {ScheduleKind::interleaved, 2, 2});
  ASSERT_TRUE(done);
  int sends = 0, reductions = 0;
  for (const PipelineRow& r : done->program.rows) {
    sends += done->trace.types[r.type].kind == PipelineKind::send_forward;
    reductions += done->trace.types[r.type].kind == PipelineKind::collective;
  }
  EXPECT_EQ(sends, 2 * 2 * 2 * 3);  // steps, replicas, micro-batches; three borders between four chunks
  EXPECT_EQ(reductions, 2 * 4);
  const double length = length_of(done->trace, run.model, done->program);
  EXPECT_GT(length, 60 + 9);  // the work of a stage, and its end
  EXPECT_LT(length, length_of(t, run.model, run.program) + 8);
}

// ---- what is not as it should be
// -------------------------------------------------------------------------------------

TEST(PipelineFiles, AreToldByContent) {
  EXPECT_EQ(pipeline_form(R"( {"1": {"total": 3, "fwd_start": [0)"), PipelineForm::passes);
  EXPECT_EQ(pipeline_form(R"([{"name":"optimizer","args":{"step":1,"seq_id":0}})"), PipelineForm::timeline);
  EXPECT_EQ(pipeline_form(R"({"traceEvents":[{"ph":"M","args":{"name":"PP rank 0, TP rank 0, compute"}})"),
            PipelineForm::timeline);
  EXPECT_EQ(pipeline_form(R"({"pp_size": 8, "vp_size": 1, "num_mbs": 16})"), PipelineForm::settings);
  EXPECT_EQ(pipeline_form(R"({"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel")"), PipelineForm::none);
  EXPECT_EQ(pipeline_form(R"({"job_meta": {"pp_size": 4, "vpp_size": 1}})"), PipelineForm::none);
  EXPECT_EQ(pipeline_form(""), PipelineForm::none);
}

std::string note_of(const Result<PipelineFile>& f) {
  if (!f) return "error: " + f.error().line();
  return f->notes.rows.empty() ? "" : fmt::format("{} {}", f->notes.rows[0].name, f->notes.rows[0].count);
}

TEST(PipelineFiles, WhatCannotBeUsedIsCounted) {
  const std::string whole = timeline_text(timeline(false), 1);
  EXPECT_EQ(note_of(read_pipeline_file(whole, "f", false)), "");
  // Cut in the second event: the names of the threads are gone, and with them everything.
  const auto cut = read_pipeline_file(whole.substr(0, 250), "f", false);
  ASSERT_FALSE(cut);
  EXPECT_NE(cut.error().line().find("f: no usable operation"), std::string::npos);
  EXPECT_NE(cut.error().line().find("truncated"), std::string::npos) << cut.error().line();
  // Cut among the names: the ranks whose names are there are used.
  const auto most = read_pipeline_file(whole.substr(0, whole.size() - 90), "f", false);
  ASSERT_TRUE(most);
  EXPECT_TRUE(most->notes.lost_data());
  EXPECT_GT(most->operations.size(), 30u);

  const auto with = [&](const std::string& event) { return "[" + event + "," + whole.substr(1); };
  EXPECT_EQ(note_of(read_pipeline_file(with(R"({"ph":"X","name":"a","ts":1,"dur":-2,"args":{"step":1,"seq_id":1}})"),
                                       "f", false)),
            "operation-without-time 1");
  EXPECT_EQ(
      note_of(read_pipeline_file(with(R"({"ph":"X","name":"a","ts":1,"dur":2,"args":{"seq_id":1}})"), "f", false)),
      "operation-without-step 1");
  EXPECT_EQ(
      note_of(read_pipeline_file(
          with(R"({"ph":"X","name":"a","pid":9,"tid":9,"ts":1,"dur":2,"args":{"step":1,"seq_id":1}})"), "f", false)),
      "operation-without-rank 1");
  const std::string broken = with(R"({"ph":"X","name":"a","ts":N/A,"dur":2})");
  ASSERT_FALSE(read_pipeline_file(broken, "f", false));
  EXPECT_NE(note_of(read_pipeline_file(broken, "f", false)).find("at byte 1 (--recover"), std::string::npos)
      << note_of(read_pipeline_file(broken, "f", false));
  EXPECT_EQ(note_of(read_pipeline_file(broken, "f", true)), "broken-json 1");

  const char* uneven = R"({"1": {"fwd_start": [0], "fwd_end": [1], "bwd_start": [1], "bwd_end": [2]},
                           "2": {"fwd_start": [0, 1], "fwd_end": [1], "bwd_start": [1], "bwd_end": [2]}})";
  EXPECT_EQ(note_of(read_pipeline_file(uneven, "f", false)), "iteration-not-usable 1");
  EXPECT_FALSE(read_pipeline_file(R"({"1": {"fwd_start": "no"}})", "f", false));
}

TEST(PipelineFiles, OfDifferentJobsAreNotPutTogether) {
  const Played played = play(ScheduleKind::one_f_one_b, 2, 1, 2, kEqual);
  auto a = read_pipeline_file(passes_text(played.passes[0]), "a", false), b = a;
  a->rank = b->rank = 0;
  b->file = "b";
  EXPECT_EQ(join_pipeline({*a, *b}).error().line(),
            "a, b: both are rank 0 (leave one out, or tell them apart with --rank FILE=N)");
  const auto t = read_pipeline_file(timeline_text(timeline(false)), "t", false);
  EXPECT_FALSE(join_pipeline({*a, *t}));
  EXPECT_FALSE(join_pipeline({*t, *t}));
  EXPECT_FALSE(join_pipeline({}));
}

// Times that contradict themselves: an answer all the same, and never a cycle.
TEST(PipelineFiles, ContradictoryTimesStillGiveAGraph) {
  auto events = timeline(false);
  for (TimelineEvent& e : events)
    if (e.name == "forward-recv") e.start += 1000, e.end += 1000;
  const auto t = join_texts({timeline_text(events)});
  ASSERT_TRUE(t);
  const PipelineRun run = learn_pipeline(*t);
  EXPECT_GT(length_of(*t, run.model, run.program), 0);
}

// ---- measured pipelines
// ----------------------------------------------------------------------------------------------

std::string measured(const std::string& name) {
  const std::string path = std::string(ORRERY_SOURCE_DIR) + "/../shared/data/pipelines/" + name;
  if (std::filesystem::exists(path)) return path;
  std::printf("no ../shared/data/pipelines/%s here: skipped\n", name.c_str());
  return {};
}

struct Measured {
  PipelineTrace trace;
  PipelineRun run;
  PipelineBuild built;
  Replay replayed;
  StepRows rows;
};
Measured replay_measured(const std::string& path, const std::vector<std::int64_t>& steps) {
  Measured m;
  auto trace = import_pipeline({path});
  EXPECT_TRUE(trace && trace->has_value());
  m.trace = std::move(**trace);
  m.run = learn_pipeline(m.trace);
  EXPECT_TRUE(assemble_pipeline(m.trace, m.run.model, m.run.program, m.built));
  replay(m.built.build.graph, m.replayed);
  m.rows = *select_steps(m.built.build.graph, steps);
  return m;
}
double middle_ms(std::vector<Ns> v) {
  std::sort(v.begin(), v.end());
  return to_ms(v[v.size() / 2]);
}
double mean_ms(const std::vector<Ns>& v) {
  double sum = 0;
  for (const Ns t : v) sum += to_ms(t);
  return sum / static_cast<double>(v.size());
}

TEST(PipelineMeasured, InterleavingIsPredictedFromPlainOneFOneB) {
  const std::string path = measured("pp8-1f1b");
  if (path.empty()) GTEST_SKIP();
  std::vector<std::int64_t> steps;
  for (std::int64_t n = 5; n < 20; ++n) steps.push_back(n);
  const Measured m = replay_measured(path, steps);
  const ExecGraph& g = m.built.build.graph;
  EXPECT_NEAR(middle_ms(iterations(g, nullptr, m.rows)), 3248.2, 0.1);
  EXPECT_NEAR(middle_ms(iterations(g, &m.replayed, m.rows)), 3248.2, 3248.2 * 0.002);
  const auto done = reschedule(m.trace, m.run.model, m.run.program, {ScheduleKind::interleaved, 2, 16});
  ASSERT_TRUE(done);
  PipelineBuild built;
  ASSERT_TRUE(assemble_pipeline(done->trace, m.run.model, done->program, built));
  Replay r;
  replay(built.build.graph, r);
  EXPECT_NEAR(middle_ms(iterations(built.build.graph, &r, m.rows)), 2881.5, 2881.5 * 0.03);
}

TEST(PipelineMeasured, StepsAndSlowdownAreThePublishers) {
  const std::string path = measured("steps-dp2-pp4");
  if (path.empty()) GTEST_SKIP();
  const Measured m = replay_measured(path, {});  // a directory: the simulator's output in it is left out
  EXPECT_EQ(m.trace.notes.rows.front().name, "skipped-file");
  const ExecGraph& g = m.built.build.graph;
  const std::vector<Ns> was = iterations(g, nullptr, m.rows), is = iterations(g, &m.replayed, m.rows);
  ASSERT_EQ(was.size(), 32u);
  for (std::size_t k = 0; k < was.size(); ++k) EXPECT_NEAR(to_ms(is[k]), to_ms(was[k]), 0.02 * to_ms(was[k]));
  const auto slow = find_slow_parts(m.trace, m.run.program);
  ASSERT_FALSE(slow.empty());
  EXPECT_EQ(slow.front().stage, 3);
  EXPECT_EQ(slow.front().rank, kNone);
  // result.json: blocking_slowdown 1.1787, step_t_noblk 1.8433 s
  PipelineBuild plain = m.built;
  drop_launch_delays(plain.build.graph);
  PipelineProgram ideal = m.run.program;
  Replay r;
  replay(plain.build.graph, r);
  const double with = mean_ms(iterations(plain.build.graph, &r, m.rows));
  make_ideal(
      ideal_times(m.trace, ideal), [](const PipelineRow&) { return true; }, ideal);
  refresh_durations(ideal, plain);
  replay(plain.build.graph, r);
  const double without = mean_ms(iterations(plain.build.graph, &r, m.rows));
  EXPECT_NEAR(without, 1843.3, 1843.3 * 0.01);
  EXPECT_NEAR(with / without, 1.1787, 0.01);
}

}  // namespace
}  // namespace orrery
