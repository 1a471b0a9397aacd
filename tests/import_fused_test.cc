// Files in which a tool fused the traces of several ranks: every event says args.rank, and each rank reads as if it had
// a file of its own.
#include <gtest/gtest.h>

#include <sstream>

#include "fused_traces.h"
#include "importers/kineto.h"

namespace orrery {
namespace {

using namespace orrery::testing;

Result<std::vector<RankTrace>> import_ranks(std::string_view text, unsigned threads = 1) {
  ImportOptions options;
  options.threads = threads;
  return import_kineto_ranks(text, "fused.json", options);
}

// Everything that the rows of a rank say, one a line, without the numbers of strings, lanes and side rows.
std::string told(const RankTrace& t) {
  std::ostringstream out;
  const auto text = [&](StrId s) { return '"' + std::string(t.strings.view(s)) + '"'; };
  const auto lane = [&](LaneId l) {
    const std::size_t i = raw(l);
    std::string s = " lane ";
    s += std::to_string(static_cast<int>(t.lanes.kind[i]));
    s += ' ' + std::to_string(t.lanes.pid[i]) + ' ' + std::to_string(t.lanes.tid[i]);
    return s + text(t.lanes.pid_text[i]) + text(t.lanes.tid_text[i]) + text(t.lanes.name[i]) + ' ';
  };
  const auto comm = [&](std::uint32_t c) {
    if (c == kNone) return;
    const CommArgs& a = t.comm_args;
    out << " comm " << text(a.collective[c]) << text(a.dtype[c]) << a.in_elems[c] << ' ' << a.out_elems[c] << ' '
        << a.group_size[c] << text(a.group_name[c]) << text(a.group_desc[c]) << text(a.group_ranks[c]) << a.seq[c]
        << ' ' << a.src_rank[c] << ' ' << a.dst_rank[c] << text(a.in_split[c]) << text(a.out_split[c]);
  };
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    out << static_cast<int>(t.ops.kind[i]) << text(t.ops.name[i]) << lane(t.ops.lane[i]) << t.ops.start[i] << ' '
        << t.ops.dur[i] << ' ' << t.ops.corr[i] << ' ' << t.ops.ext[i];
    if (const std::uint32_t x = t.ops.extra[i]; x != kNone) {
      switch (t.ops.kind[i]) {
        case OpKind::cpu_op:
        case OpKind::user_annotation:
          out << " args " << t.op_args.sequence[x] << ' ' << t.op_args.fwd_thread[x] << text(t.op_args.input_dims[x])
              << text(t.op_args.input_types[x]) << text(t.op_args.concrete_inputs[x]);
          comm(t.op_args.comm[x]);
          break;
        case OpKind::python:
          out << " args " << t.python_args.id[x] << ' ' << t.python_args.parent[x];
          break;
        case OpKind::kernel:
          out << " args " << t.kernel_args.grid_blocks[x] << ' ' << t.kernel_args.block_threads[x] << ' '
              << t.kernel_args.shared_bytes[x] << ' ' << t.kernel_args.registers[x];
          comm(t.kernel_args.comm[x]);
          break;
        case OpKind::memcpy:
        case OpKind::memset:
          out << " args " << t.copy_args.bytes[x];
          break;
        case OpKind::sync:
          out << " args " << static_cast<int>(t.sync_args.kind[x]) << ' ' << t.sync_args.stream[x] << ' '
              << t.sync_args.wait_stream[x] << ' ' << t.sync_args.wait_record_corr[x] << ' '
              << t.sync_args.wait_event[x];
          break;
        default:
          out << " args?";
      }
    }
    out << '\n';
  }
  for (std::size_t i = 0; i < t.flows.size(); ++i)
    out << "flow " << t.flows.id[i] << ' ' << t.flows.ts[i] << lane(t.flows.lane[i])
        << static_cast<int>(t.flows.kind[i]) << int{t.flows.is_finish[i]} << '\n';
  for (std::size_t i = 0; i < t.memory.size(); ++i)
    out << "memory " << t.memory.ts[i] << lane(t.memory.lane[i]) << t.memory.bytes[i] << ' '
        << t.memory.total_allocated[i] << ' ' << t.memory.total_reserved[i] << ' ' << t.memory.device_type[i] << ' '
        << t.memory.device[i] << '\n';
  for (const OpId i : t.open_ops) out << "open " << raw(i) << '\n';
  out << "window " << t.window_start << ' ' << t.window_end << " events " << t.events << " rank " << t.rank << " lanes "
      << t.lanes.size() << '\n';
  return out.str();
}

RankTrace alone(const Json& document, unsigned threads = 1) {
  auto t = import_text(document.dump(), false, threads);
  EXPECT_TRUE(t.has_value()) << (t ? "" : t.error().line());
  return t ? std::move(*t) : RankTrace{};
}

TEST(ImportFused, EachRankReadsAsIfItHadAFileOfItsOwn) {
  const std::vector<Json> documents = {small_rank(0), small_rank(1)};
  for (const bool as_text : {false, true}) {
    const auto ranks = import_ranks(fused(documents, {.rank_as_text = as_text}));
    ORRERY_IMPORTED(ranks);
    ASSERT_EQ(ranks->size(), 2u);
    for (std::size_t k = 0; k < 2; ++k) {
      const RankTrace& t = (*ranks)[k];
      EXPECT_EQ(told(t), told(alone(documents[k])));
      EXPECT_EQ(t.file, "fused.json");
      EXPECT_EQ(t.base_ns, 1'700'000'000'000'000'000);
      EXPECT_EQ(t.open_ops.size(), 1u);
      EXPECT_EQ(raw(t.strings.find("gemm")) == kNone, k == 1) << "a rank has the strings of its own rows";
    }
    const RankTrace &first = (*ranks)[0], &second = (*ranks)[1];
    EXPECT_EQ(first.world_size, 2) << "of the rank that distributedInfo names";
    EXPECT_EQ(second.world_size, 0) << "not known of the other";
    EXPECT_EQ(first.devices.size(), 1u);
    EXPECT_TRUE(second.devices.empty());
    EXPECT_EQ(noted(first.notes, "fused-ranks"), 2u) << all_notes(first.notes);
    EXPECT_EQ(note(first.notes, "fused-ranks")->first, "ranks 0, 1");
    EXPECT_EQ(note(first.notes, "fused-ranks")->severity, Severity::info);
    EXPECT_EQ(noted(first.notes, "fused-without-rank"), 0u);
    EXPECT_EQ(noted(first.notes, "open-event") + noted(second.notes, "open-event"), 2u) << "said once of the file";
  }
}

TEST(ImportFused, RewrittenProcessesStillHaveTheirStreamsAndNames) {
  const std::vector<Json> documents = {small_rank(0), small_rank(1)};
  for (const Style::Pids pids : {Style::shifted, Style::text}) {
    for (const bool only_slices : {false, true}) {
      const auto ranks = import_ranks(fused(documents, {.pids = pids, .only_slices = only_slices}));
      ORRERY_IMPORTED(ranks);
      ASSERT_EQ(ranks->size(), 2u);
      for (const RankTrace& t : *ranks) {
        SCOPED_TRACE(told(t));
        EXPECT_EQ(noted(t.notes, "fused-without-rank"), 0u);
        ASSERT_EQ(t.flows.size(), 2u);
        std::size_t gemm = 0;
        while (!name(t, gemm).starts_with("gemm")) ++gemm;
        EXPECT_EQ(t.flows.is_finish[1], 1);
        EXPECT_EQ(t.flows.lane[1], t.ops.lane[gemm]) << "the flow ends on the stream, not on a lane of its own";
        EXPECT_EQ(t.flows.lane[0], t.ops.lane[0]);
        const std::size_t stream = raw(t.ops.lane[gemm]);
        EXPECT_EQ(t.lanes.pid[stream], 0) << "the device";
        EXPECT_EQ(t.lanes.tid[stream], 7);
        EXPECT_EQ(t.strings.view(t.lanes.name[stream]), "stream 7");
        EXPECT_EQ(t.strings.view(t.lanes.name[raw(t.ops.lane[0])]), "main");
      }
    }
  }
}

// Nothing but slices says its rank, and both ranks use the same processes: what has a name is known to both, what is
// drawn between two lanes belongs to neither.
TEST(ImportFused, EventsWithoutARankGoWhereAllOthersGo) {
  const std::vector<Json> documents = {small_rank(0), small_rank(1)};
  const auto ranks = import_ranks(fused(documents, {.only_slices = true}));
  ORRERY_IMPORTED(ranks);
  ASSERT_EQ(ranks->size(), 2u);
  const Note* lost = note((*ranks)[0].notes, "fused-without-rank");
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->count, 4u) << "the two flows of each rank";
  EXPECT_EQ(lost->first, "flow 7");
  EXPECT_EQ(lost->severity, Severity::warning);
  EXPECT_EQ(noted((*ranks)[1].notes, "fused-without-rank"), 0u);
  for (const RankTrace& t : *ranks) {
    EXPECT_EQ(t.flows.size(), 0u);
    EXPECT_EQ(t.strings.view(t.lanes.name[raw(t.ops.lane[0])]), "main");
  }
  // A slice: of a thread that one rank uses, of another thread of its process, of a thread of both.
  const auto in = [](int pid, int tid, int ts, const char* args) {
    return slice("X", "cpu_op", "op" + std::to_string(ts), pid, tid, ts,
                 R"("dur": 1, "args": {)" + std::string(args) + "}");
  };
  const auto more =
      import_ranks(document({in(1, 1, 1, R"("rank": 3)"), in(1, 1, 2, ""), in(1, 9, 3, ""), in(2, 2, 4, R"("rank": 5)"),
                             in(2, 2, 5, R"("rank": 3)"), in(2, 2, 6, ""), in(2, 8, 7, ""), in(4, 4, 8, "")}));
  ORRERY_IMPORTED(more);
  ASSERT_EQ(more->size(), 2u);
  EXPECT_EQ((*more)[0].rank, 3);
  EXPECT_EQ((*more)[1].rank, 5);
  std::string names;
  for (const RankTrace& t : *more)
    for (std::size_t i = 0; i < t.ops.size(); ++i) names += name(t, i) + (i + 1 < t.ops.size() ? " " : "; ");
  EXPECT_EQ(names, "op1 op2 op3 op5; op4; ");
  EXPECT_EQ((*more)[0].lanes.size(), 3u) << "with and without a rank, a thread is one lane";
  EXPECT_EQ((*more)[0].events, 4u);
  EXPECT_EQ((*more)[1].events, 1u);
  const Note* slices = note((*more)[0].notes, "fused-without-rank");
  ASSERT_NE(slices, nullptr);
  EXPECT_EQ(slices->count, 3u);
  EXPECT_EQ(slices->first, "op6 at ts 6 us");
  EXPECT_EQ(slices->severity, Severity::data_loss);
}

TEST(ImportFused, AnEndWithoutARankClosesItsBegin) {
  const auto ranks = import_ranks(document({slice("B", "cpu_op", "a", 1, 1, 10, R"("args": {"rank": 0})"),
                                            slice("E", "cpu_op", "a", 1, 1, 30, R"("z": 0)"),
                                            slice("B", "cpu_op", "b", 2, 1, 10, R"("args": {"rank": 1})"),
                                            slice("E", "cpu_op", "b", 2, 1, 40, R"("z": 0)")}));
  ORRERY_IMPORTED(ranks);
  ASSERT_EQ(ranks->size(), 2u);
  ASSERT_EQ((*ranks)[0].ops.size(), 1u);
  ASSERT_EQ((*ranks)[1].ops.size(), 1u);
  EXPECT_EQ((*ranks)[0].ops.dur[0], 20'000);
  EXPECT_EQ((*ranks)[1].ops.dur[0], 30'000);
}

TEST(ImportFused, GarbageRanksAreCountedAndNamed) {
  const auto op = [](const std::string& rank, int ts) {
    return slice("X", "cpu_op", "op", 1, 1, ts, R"("dur": 1, "args": {"rank": )" + rank + "}");
  };
  const std::vector<std::string> garbage = {"\"x\"", "1.5", "-1", "1000000000000", "true", "[0, 1]", "2147483648"};
  std::vector<std::string> events = {op("4", 1), op("\"4\"", 2), op("4.0", 3), op("null", 4), op("\"\"", 5)};
  for (std::size_t i = 0; i < garbage.size(); ++i) events.push_back(op(garbage[i], 10 + static_cast<int>(i)));
  const auto t = import_text(document(events));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->rank, 4) << "one rank: the file's";
  EXPECT_EQ(t->ops.size(), events.size());
  EXPECT_EQ(t->lanes.size(), 1u);
  const Note* odd = note(t->notes, "rank-unreadable");
  ASSERT_NE(odd, nullptr) << all_notes(t->notes);
  EXPECT_EQ(odd->count, garbage.size());
  EXPECT_NE(odd->first.find("x"), std::string::npos) << odd->first;
  EXPECT_EQ(odd->severity, Severity::warning);
  EXPECT_EQ(noted(t->notes, "odd-number"), 0u);
  EXPECT_EQ(noted(t->notes, "fused-ranks"), 0u);
  // In a fused file they count as events without one.
  const auto ranks = import_ranks(document({op("0", 1), op("1", 2), op("\"x\"", 3)}));
  ORRERY_IMPORTED(ranks);
  ASSERT_EQ(ranks->size(), 2u);
  EXPECT_EQ(noted((*ranks)[0].notes, "fused-without-rank"), 1u);
}

TEST(ImportFused, OneRankInTheEventsIsThatOfTheFile) {
  const std::string op = slice("X", "cpu_op", "op", 1, 1, 1, R"("dur": 1, "args": {"rank": 3})");
  const auto t = import_text(document({op}));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->rank, 3);
  EXPECT_TRUE(t->notes.rows.empty()) << all_notes(t->notes);
  const auto other = import_text(document({op}, R"("distributedInfo": {"rank": 5})"));
  ORRERY_IMPORTED(other);
  EXPECT_EQ(other->rank, 5) << "distributedInfo counts";
  EXPECT_EQ(noted(other->notes, "rank-differs-from-events"), 1u);
  // "Rank" is that in the process group, of a communication call.
  const auto group = import_text(document({slice("X", "cpu_op", "op", 1, 1, 1, R"("dur": 1, "args": {"Rank": 0})"),
                                           slice("X", "cpu_op", "op", 1, 1, 2, R"("dur": 1, "args": {"Rank": 1})")}));
  ORRERY_IMPORTED(group);
  EXPECT_EQ(group->rank, -1);
}

// An annotation of the program's own with an argument of that name makes no file a fused one.
TEST(ImportFused, AFewEventsDoNotMakeRanks) {
  std::vector<std::string> events;
  for (int i = 0; i < 40; ++i) events.push_back(slice("X", "cpu_op", "op", 1, 1, 10 + i, R"("dur": 1)"));
  for (int i = 0; i < 2; ++i)
    events.push_back(slice("X", "user_annotation", "tensor", 1, 1, 60 + i,
                           R"("dur": 1, "args": {"rank": )" + std::to_string(i + 2) + "}"));
  const auto t = import_text(document(events, R"("distributedInfo": {"rank": 0})"));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->rank, 0);
  EXPECT_EQ(t->ops.size(), 42u);
  EXPECT_EQ(t->lanes.size(), 1u);
  const Note* few = note(t->notes, "rank-of-few-events");
  ASSERT_NE(few, nullptr);
  EXPECT_EQ(few->first, "ranks 2, 3 in 2 of 42 events");
  events.pop_back();
  const auto single = import_text(document(events));
  ORRERY_IMPORTED(single);
  EXPECT_EQ(single->rank, -1);
  EXPECT_EQ(noted(single->notes, "rank-of-few-events"), 1u);
  const auto known = import_text(document(events, R"("distributedInfo": {"rank": 2})"));
  ORRERY_IMPORTED(known);
  EXPECT_TRUE(known->notes.rows.empty()) << "says the same";
}

TEST(ImportFused, ATruncatedFileGivesWhatIsWhole) {
  const std::vector<Json> documents = {small_rank(0), small_rank(1)};
  const std::string text = fused(documents, {});
  const std::size_t cut = text.find("gemm_late") + 4;
  const auto ranks = import_ranks(std::string_view(text).substr(0, cut));
  ORRERY_IMPORTED(ranks);
  ASSERT_EQ(ranks->size(), 2u);
  EXPECT_EQ((*ranks)[0].ops.size(), alone(documents[0]).ops.size());
  EXPECT_EQ((*ranks)[1].ops.size(), 3u) << "step, operator, launch";
  EXPECT_EQ(noted((*ranks)[0].notes, "truncated"), 1u);
  EXPECT_EQ(noted((*ranks)[1].notes, "truncated"), 0u) << "said once";
}

TEST(ImportFused, TheSampleFusedReadsAsItsFiles) {
  const std::vector<Json> documents = sample();
  const std::string same = fused(documents, {});
  for (const unsigned threads : {1u, 4u}) {
    const auto ranks = import_ranks(same, threads);
    ORRERY_IMPORTED(ranks);
    ASSERT_EQ(ranks->size(), 8u);
    for (std::size_t k = 0; k < 8; ++k) EXPECT_TRUE(told((*ranks)[k]) == told(alone(documents[k]))) << "rank " << k;
  }
}

// The tables do not depend on who parsed what.
TEST(ImportFused, ThreadsAndWindowsDoNotMatter) {
  const std::vector<Json> documents = {small_rank(0), small_rank(1)};
  const std::string text = fused(documents, {});
  for (const unsigned threads : {1u, 3u}) {
    for (const std::size_t window : {100u, 1000u}) {
      const SourcePtr source = open_memory(text);
      KinetoOptions options;
      options.threads = threads;
      options.window_bytes = window;
      const auto ranks = read_kineto(*source, "fused.json", options);
      ASSERT_TRUE(ranks.has_value());
      ASSERT_EQ(ranks->size(), 2u);
      for (std::size_t k = 0; k < 2; ++k) EXPECT_EQ(told((*ranks)[k]), told(alone(documents[k])));
    }
  }
}

}  // namespace
}  // namespace orrery
