// Events of every kind -> rows: what is read from where.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "import_helpers.h"

namespace orrery {
namespace {

using namespace orrery::testing;

struct KindCase {
  const char* category;
  OpKind kind;
};

TEST(ImportRows, CategoriesOfAllYearsAndVendors) {
  const KindCase cases[] = {
      {"cpu_op", OpKind::cpu_op},
      {"Operator", OpKind::cpu_op},
      {"user_annotation", OpKind::user_annotation},
      {"python_function", OpKind::python},
      {"cuda_runtime", OpKind::runtime},
      {"cuda_driver", OpKind::runtime},
      {"Runtime", OpKind::runtime},
      {"hip_runtime", OpKind::runtime},
      {"kernel", OpKind::kernel},
      {"Kernel", OpKind::kernel},
      {"gpu_memcpy", OpKind::memcpy},
      {"Memcpy", OpKind::memcpy},
      {"gpu_memset", OpKind::memset},
      {"Memset", OpKind::memset},
      {"gpu_user_annotation", OpKind::gpu_annotation},
      {"cuda_sync", OpKind::sync},
      {"overhead", OpKind::overhead},
      {"Trace", OpKind::other},
      {"something new", OpKind::other},
  };
  std::vector<std::string> events;
  for (const KindCase& c : cases) events.push_back(event("x", c.category, "7", "1", "1"));
  const auto t = import_text(document(events));
  ORRERY_IMPORTED(t);
  for (std::size_t i = 0; i < std::size(cases); ++i) EXPECT_EQ(t->ops.kind[i], cases[i].kind) << cases[i].category;
  EXPECT_EQ(noted(t->notes, "unknown-category"), 1u);
}

TEST(ImportRows, OperatorsAndTheirArguments) {
  const auto t = import_text(document({
      event(
          "aten::mm", "cpu_op", "100", "1", "1",
          R"("args": {"External id": 1025, "Sequence number": 699, "Fwd thread id": 1, "Input Dims": [[8, 16], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "[1, 2]"], "Ev Idx": 0})"),
      event("bare", "cpu_op", "100", "3", "1", R"("args": {"External id": 4, "Ev Idx": 1})"),
      event("frame", "python_function", "100", "1", "5",
            R"("args": {"Python id": 12, "Python parent id": null, "Ev Idx": 1})"),
      event("call", "cuda_runtime", "100", "1", "5", R"("args": {"cbid": 211, "correlation": 77, "External id": 77})"),
  }));
  ORRERY_IMPORTED(t);
  const OpArgs& o = t->op_args;
  ASSERT_EQ(o.size(), 1u);  // the bare operator needs no row
  EXPECT_EQ(t->ops.extra[0], 0u);
  EXPECT_EQ(t->ops.extra[1], kNone);
  EXPECT_EQ(o.sequence[0], 699);
  EXPECT_EQ(o.fwd_thread[0], 1);
  EXPECT_EQ(t->strings.view(o.input_dims[0]), "[[8, 16], []]");
  EXPECT_EQ(t->strings.view(o.input_types[0]), R"(["float", "Scalar"])");
  EXPECT_EQ(t->strings.view(o.concrete_inputs[0]), R"(["", "[1, 2]"])");
  EXPECT_EQ(o.comm[0], kNone);
  EXPECT_EQ(t->ops.ext[0], 1025);
  ASSERT_EQ(t->python_args.size(), 1u);
  EXPECT_EQ(t->python_args.id[0], 12);
  EXPECT_EQ(t->python_args.parent[0], -1);
  EXPECT_EQ(t->ops.corr[3], 77);
  EXPECT_EQ(t->ops.extra[3], kNone);
  EXPECT_TRUE(t->notes.rows.empty()) << all_notes(t->notes);
}

TEST(ImportRows, KernelsCopiesAndSyncRecords) {
  const auto t = import_text(document({
      event(
          "k", "kernel", "7", "1", "2",
          R"("args": {"External id": 9, "queued": 0, "device": 1, "context": 1, "stream": 20, "correlation": 3, "registers per thread": 70000, "shared memory": 49152, "blocks per SM": 372.36, "warps per SM": 1.5, "grid": [65536, 65536, 2], "block": [32, 4, 1], "est. achieved occupancy %": 31})"),
      event(
          "amd", "kernel", "0", "2", "1",
          R"("args": {"device": 2, "stream": 0, "correlation": 5, "kind": "Dispatch Kernel", "grid": [3, 1, 1], "block": [64, 1, 1]})"),
      event("Memcpy HtoD", "gpu_memcpy", "7", "4", "1",
            R"("args": {"device": 0, "stream": 7, "correlation": 6, "bytes": 4096})"),
      event("Memset", "gpu_memset", "7", "5", "0", R"("args": {"device": 0, "stream": 7, "correlation": 7})"),
      event(
          "Stream Wait Event", "cuda_sync", "1000024", "6", "0",
          R"("args": {"cuda_sync_kind": "Stream Wait Event", "stream": 24, "correlation": 8, "device": 0, "context": 1, "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 100, "wait_on_cuda_event_id": 5})"),
      event("Context Sync", "cuda_sync", "-1", "7", "1",
            R"("args": {"cuda_sync_kind": "Context Sync", "stream": -1, "correlation": 9, "device": 0})"),
      event("Event Sync", "cuda_sync", "1", "8", "1"),
      event("Stream Synchronize", "cuda_sync", "1", "8", "1"),
  }));
  ORRERY_IMPORTED(t);
  const KernelArgs& k = t->kernel_args;
  ASSERT_EQ(k.size(), 2u);
  EXPECT_EQ(k.grid_blocks[0], 0xffffffffu);  // 2^33, saturated
  EXPECT_EQ(k.block_threads[0], 128u);
  EXPECT_EQ(k.shared_bytes[0], 49152u);
  EXPECT_EQ(k.registers[0], 0xffff);
  EXPECT_FLOAT_EQ(k.occupancy_pct[0], 31);
  EXPECT_FLOAT_EQ(k.blocks_per_sm[0], 372.36f);
  EXPECT_TRUE(std::isnan(k.occupancy_pct[1]));
  EXPECT_EQ(k.grid_blocks[1], 3u);
  const LaneTable& lanes = t->lanes;
  const std::size_t first = raw(t->ops.lane[0]);
  EXPECT_EQ(lanes.kind[first], LaneKind::stream);
  EXPECT_EQ(lanes.pid[first], 1);   // args.device and args.stream,
  EXPECT_EQ(lanes.tid[first], 20);  // not pid 1 and tid 7
  EXPECT_EQ(t->copy_args.bytes, (std::vector<std::int64_t>{4096, -1}));
  const SyncArgs& s = t->sync_args;
  EXPECT_EQ(s.kind, (std::vector<SyncKind>{SyncKind::stream_wait_event, SyncKind::context_sync, SyncKind::event_sync,
                                           SyncKind::stream_sync}));
  EXPECT_EQ(s.stream[0], 24);
  EXPECT_EQ(s.wait_stream[0], 20);
  EXPECT_EQ(s.wait_record_corr[0], 100);
  EXPECT_EQ(s.wait_event[0], 5);
  EXPECT_EQ(s.wait_record_corr[1], -1);
  EXPECT_EQ(lanes.tid[raw(t->ops.lane[4])], 24);
  EXPECT_EQ(lanes.kind[raw(t->ops.lane[5])], LaneKind::other);  // a context sync is on no stream
}

TEST(ImportRows, CollectivesOnTheOperatorAndOnTheKernel) {
  const auto t = import_text(document({
      event(
          "record_param_comms", "cpu_op", "100", "1", "1",
          R"("args": {"Collective name": "_reduce_scatter_base", "dtype": "BFloat16", "Rank": 0, "In msg nelems": 38633472, "Out msg nelems": 4829184, "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1, 2]", "Group size": 3, "In split size": "[]", "Out split size": "[1, 2]", "Seq": 7})"),
      event(
          "ncclDevKernel_SendRecv", "kernel", "20", "1", "1",
          R"("args": {"device": 0, "stream": 20, "Collective name": "send", "In msg size": 8, "Group size": 2, "Src Rank": 1, "Dst Rank": 5, "Process Group Ranks": [0, 1]})"),
      event("record_param_comms", "cpu_op", "100", "3", "1", R"("args": {"Input Dims": [[1]]})"),
  }));
  ORRERY_IMPORTED(t);
  const CommArgs& c = t->comm_args;
  ASSERT_EQ(c.size(), 2u);
  const auto text = [&](StrId s) { return std::string(t->strings.view(s)); };
  EXPECT_EQ(t->op_args.comm[t->ops.extra[0]], 0u);
  EXPECT_EQ(t->kernel_args.comm[t->ops.extra[1]], 1u);
  EXPECT_EQ(t->op_args.comm[t->ops.extra[2]], kNone);
  EXPECT_EQ(text(c.collective[0]), "_reduce_scatter_base");
  EXPECT_EQ(text(c.dtype[0]), "BFloat16");
  EXPECT_EQ(c.in_elems[0], 38633472);
  EXPECT_EQ(c.out_elems[0], 4829184);
  EXPECT_EQ(c.group_size[0], 3);
  EXPECT_EQ(text(c.group_name[0]), "0");
  EXPECT_EQ(text(c.group_desc[0]), "default_pg");
  EXPECT_EQ(text(c.group_ranks[0]), "[0, 1, 2]");
  EXPECT_EQ(text(c.out_split[0]), "[1, 2]");
  EXPECT_EQ(c.seq[0], 7);
  EXPECT_EQ(c.src_rank[0], -1);
  EXPECT_EQ(c.in_elems[1], 8);
  EXPECT_EQ(c.out_elems[1], -1);
  EXPECT_EQ(c.seq[1], -1);
  EXPECT_EQ(c.src_rank[1], 1);
  EXPECT_EQ(c.dst_rank[1], 5);
  EXPECT_EQ(text(c.group_ranks[1]), "[0, 1]");
}

TEST(ImportRows, FlowsMemoryAndWhatIsNotUsed) {
  const auto t = import_text(document({
      launch("cudaLaunchKernel", "1", "1", "5"),
      R"({"ph": "s", "id": 5, "pid": 1, "tid": 100, "ts": 1, "cat": "ac2g", "name": "ac2g"})",
      kernel("k", "7", "3", "1", "5"),
      R"({"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 3, "cat": "ac2g", "name": "ac2g", "bp": "e"})",
      R"({"ph": "s", "id": "0x1f", "pid": 1, "tid": 100, "ts": 1, "cat": "forward_backward", "name": "fwd"})",
      R"({"ph": "f", "id": 18446744073709551615, "pid": 1, "tid": 100, "ts": 1, "cat": "other", "name": "x"})",
      R"({"ph": "f", "pid": 1, "tid": 100, "ts": 1, "cat": "ac2g", "name": "x"})",
      R"({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": 1, "tid": 100, "ts": 2.5, "args": {"Total Reserved": 300, "Total Allocated": 200, "Bytes": -100, "Addr": 1, "Device Id": 0, "Device Type": 1}})",
      R"({"ph": "i", "name": "note", "s": "t", "pid": 1, "tid": 100, "ts": 2})",
      R"({"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 9})",
      R"({"ph": "C", "name": "power", "pid": 0, "ts": 2, "args": {"W": 5}})",
      R"({"ph": "b", "name": "async", "id": 1, "pid": 0, "ts": 2})",
      R"({"ph": "t", "name": "ac2g", "cat": "ac2g", "id": 1, "pid": 0, "ts": 2})",
      R"({"ph": "?", "name": "x", "pid": 0, "ts": 2})",
      "{}",
      "5",
  }));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->events, 16u);
  EXPECT_EQ(t->ops.size(), 2u);
  const FlowTable& f = t->flows;
  ASSERT_EQ(f.size(), 4u);
  EXPECT_EQ(f.id, (std::vector<std::int64_t>{5, 5, 31, -1}));
  EXPECT_EQ(f.kind, (std::vector<FlowKind>{FlowKind::ac2g, FlowKind::ac2g, FlowKind::fwdbwd, FlowKind::other}));
  EXPECT_EQ(f.is_finish, (std::vector<std::uint8_t>{0, 1, 0, 1}));
  EXPECT_EQ(f.lane[0], t->ops.lane[0]);  // the thread
  EXPECT_EQ(f.lane[1], t->ops.lane[1]);  // the stream
  ASSERT_EQ(t->memory.size(), 1u);
  EXPECT_EQ(t->memory.ts[0], 2500);
  EXPECT_EQ(t->memory.bytes[0], -100);
  EXPECT_EQ(t->memory.total_allocated[0], 200);
  EXPECT_EQ(t->memory.total_reserved[0], 300);
  EXPECT_EQ(t->memory.device_type[0], 1);
  EXPECT_EQ(t->memory.lane[0], t->ops.lane[0]);
  EXPECT_EQ(t->lanes.size(), 2u);
  for (const char* n : {"flow-without-id", "unused-instants", "unused-counters", "unused-async-events",
                        "unused-flow-steps", "not-an-object"})
    EXPECT_EQ(noted(t->notes, n), 1u) << n;
  EXPECT_EQ(noted(t->notes, "unknown-phase"), 2u);
  for (const Note& n : t->notes.rows) EXPECT_FALSE(n.advice.empty()) << n.name;
}

TEST(ImportRows, LanesAndTheirNames) {
  const auto t = import_text(document({
      R"({"name": "process_name", "ph": "M", "ts": 1, "pid": 1, "tid": 0, "args": {"name": "python"}})",
      R"({"name": "thread_name", "ph": "M", "ts": 1, "pid": 0, "tid": 7, "args": {"name": "stream 7 "}})",
      R"({"name": "thread_sort_index", "ph": "M", "ts": 1, "pid": 0, "tid": 7, "args": {"sort_index": 7}})",
      kernel("k", "7", "3", "1", "5"),
      cpu_op("a", "1", "1"),
      event("b", "cpu_op", "200", "1", "1"),
      R"({"name": "thread_name", "ph": "M", "ts": 1, "pid": 1, "tid": 200, "args": {"name": "old"}})",
      R"({"name": "thread_name", "ph": "M", "ts": 1, "pid": 1, "tid": 200, "args": {"name": "pt_autograd_0"}})",
      R"({"name": "thread_name", "ph": "M", "ts": 1, "pid": 1, "tid": 999, "args": {"name": "never used"}})",
      R"j({"ph": "X", "cat": "Trace", "ts": 0.5, "dur": 9, "pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)"})j",
      kernel("k1", "7", "9", "1", "5"),
      event("k2", "kernel", "7", "11", "1", R"("args": {"device": 1, "stream": 7})"),
  }));
  ORRERY_IMPORTED(t);
  const LaneTable& l = t->lanes;
  ASSERT_EQ(l.size(), 5u);
  const auto named = [&](std::size_t op) { return std::string(t->strings.view(l.name[raw(t->ops.lane[op])])); };
  EXPECT_EQ(named(0), "stream 7");
  EXPECT_EQ(named(1), "python");  // no name of its own: its process's
  EXPECT_EQ(named(2), "pt_autograd_0");
  EXPECT_EQ(t->strings.view(l.pid_text[raw(t->ops.lane[3])]), "Spans");
  EXPECT_EQ(t->strings.view(l.tid_text[raw(t->ops.lane[3])]), "PyTorch Profiler");
  EXPECT_EQ(t->ops.lane[4], t->ops.lane[0]);
  EXPECT_NE(t->ops.lane[5], t->ops.lane[0]);  // stream 7 of another device
  EXPECT_EQ(l.kind[raw(t->ops.lane[5])], LaneKind::stream);
}

TEST(ImportRows, BeginAndEndEvents) {
  const auto t = import_text("[" + std::string() +
                             R"({"ph": "B", "name": "a", "cat": "cpu_op", "pid": 1, "tid": 2, "ts": 10},)"
                             R"({"ph": "B", "name": "b", "pid": 1, "tid": 3, "ts": 11},)"
                             R"({"ph": "E", "name": "b", "pid": 1, "tid": 3, "ts": 20},)"
                             R"({"ph": "B", "name": "c", "pid": 1, "tid": 2, "cat": "cpu_op", "ts": 12},)"
                             R"({"ph": "E", "pid": 1, "tid": 2, "cat": "cpu_op", "ts": 15},)"
                             R"({"ph": "E", "pid": 1, "tid": 2, "cat": "cpu_op", "ts": 30.5},)"
                             R"({"ph": "B", "name": "lost", "pid": 1, "tid": 2, "ts": 40},)"
                             R"({"ph": "E", "name": "never begun", "pid": 1, "tid": 9, "ts": 40}])");
  ORRERY_IMPORTED(t);
  ASSERT_EQ(t->ops.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string n = name(*t, i);
    EXPECT_EQ(t->ops.dur[i], n == "a" ? 20500 : n == "b" ? 9000 : 3000) << n;
    EXPECT_EQ(t->ops.kind[i], n == "b" ? OpKind::other : OpKind::cpu_op);
  }
  EXPECT_EQ(noted(t->notes, "unpaired-begin-end"), 2u);
}

TEST(ImportRows, DuplicateKeysTheLastCounts) {
  const auto t = import_text(
      R"({"traceEvents": [{"ph": "M", "ph": "X", "cat": "kernel", "cat": "cpu_op", "name": "a", "name": "b", "pid": 1, "tid": 2, "ts": 1, "ts": 2, "dur": 3, "args": {"External id": 1}, "args": {"External id": 5}}]})");
  ORRERY_IMPORTED(t);
  ASSERT_EQ(t->ops.size(), 1u);
  EXPECT_EQ(name(*t, 0), "b");
  EXPECT_EQ(t->ops.start[0], 2000);
  EXPECT_EQ(t->ops.kind[0], OpKind::cpu_op);
  EXPECT_EQ(t->ops.ext[0], 5);
  const auto twice = import_text("{\"traceEvents\": [" + cpu_op("a", "1", "1") + "], \"x\": 0, \"traceEvents\": [" +
                                 cpu_op("b", "2", "1") + "]}");
  ORRERY_IMPORTED(twice);
  EXPECT_EQ(twice->ops.size(), 2u);
  EXPECT_EQ(noted(twice->notes, "several-event-arrays"), 2u);
}

TEST(ImportRows, Metadata) {
  const std::string events = "\"traceEvents\": [" + cpu_op("a", "1", "1") + "]";
  const auto t = import_text(
      "{"
      R"("deviceProperties": [{"id": 0, "name": "H100", "totalGlobalMem": 85028372480, "computeMajor": 9, "computeMinor": 0, "numSms": 132}],)" +
      events +
      R"(, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_count": 1, "pg_config": [{"pg_name": "1", "pg_desc": "TENSOR", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [2, 3]}]},)"
      R"("traceName": "./log/ip-172-31_21147.1698955063520869240.pt.trace.json"})");
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->rank, 3);
  EXPECT_EQ(t->world_size, 8);
  ASSERT_EQ(t->devices.size(), 1u);
  EXPECT_EQ(t->devices[0].name, "H100");
  EXPECT_EQ(t->devices[0].memory_bytes, 85028372480);
  EXPECT_EQ(t->devices[0].sms, 132);
  EXPECT_EQ(t->devices[0].compute_major, 9);
  ASSERT_EQ(t->groups.size(), 1u);
  EXPECT_EQ(t->groups[0].desc, "TENSOR");
  EXPECT_EQ(t->groups[0].backend, "cuda:nccl");
  EXPECT_EQ(t->groups[0].size, 2);
  EXPECT_EQ(t->groups[0].ranks, (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(t->host, "ip-172-31");
  EXPECT_EQ(t->trace_name, "./log/ip-172-31_21147.1698955063520869240.pt.trace.json");

  struct Shape {
    const char* text;
    std::int64_t rank;
    std::size_t groups;
  };
  for (
      const Shape& s : {
          Shape{R"("distributedInfo": {"rank": "5", "world_size": "16"})", 5, 0},
          Shape{R"("distributedInfo": "{\"rank\": 6, \"world_size\": 16}")", 6, 0},
          Shape{R"("metadata": {"distributedInfo": {"rank": 7, "world_size": 16}})", 7, 0},
          Shape{R"("distributedInfo": {"backend": "nccl"})", -1, 0},
          Shape{R"("distributedInfo": {"rank": -1})", -1, 0},
          Shape{R"("distributedInfo": {"rank": 1, "pg_config": {"default_pg": {"ranks": "[0, 1]"}}})", 1, 1},
          Shape{
              R"("distributedInfo": {"rank": 1, "pg_config": "[{\"pg_name\": \"0\", \"ranks\": {\"0\": 0, \"1\": 1}}]"})",
              1, 1},
          Shape{R"("distributedInfo": null)", -1, 0},
          Shape{R"("distributedInfo": [1], "deviceProperties": 5, "traceName": 7, "metadata": 3)", -1, 0},
          Shape{R"("distributedInfo": {"rank": NaN})", -1, 0},
      }) {
    const auto m = import_text("{" + events + ", " + s.text + "}");
    ORRERY_IMPORTED(m);
    EXPECT_EQ(m->rank, s.rank) << s.text;
    ASSERT_EQ(m->groups.size(), s.groups) << s.text;
    if (s.groups == 1) {
      EXPECT_EQ(m->groups[0].size, 2);
    }
  }
}

// HOST_PID.TIME names a host, unless it is a worker's name of the same form: one with the rank's own number, and a PID
// that no event has.
TEST(ImportRows, AWorkersNameIsNoHost) {
  const auto host = [](const std::string& name, const std::string& rank = "3", const char* events_pid = "1") {
    std::string op = cpu_op("op", "1", "1");
    op.replace(op.find("\"pid\": 1"), 8, "\"pid\": " + std::string(events_pid));
    const auto t = import_text(document({op}, (rank.empty() ? "" : "\"distributedInfo\": {\"rank\": " + rank + "}, ") +
                                                  "\"traceName\": \"./log/" + name + ".1694128201545.pt.trace.json\""));
    return t ? t->host : t.error().line();
  };
  for (const char* worker : {"worker3_step_12", "rank3_0", "worker-3_12", "rank_03_12", "dp-3.run_12"})
    EXPECT_EQ(host(worker), "") << worker;
  EXPECT_EQ(host("worker3_step_12", ""), "") << "no rank is known";
  EXPECT_EQ(host("worker3_step"), "") << "no PID at all";
  EXPECT_EQ(host("node3_77", "3", "77"), "node3") << "the process is that of the events";
  EXPECT_EQ(host("node0_77", "0", "77"), "node0");
  EXPECT_EQ(host("node3_77", "4"), "node3") << "the number is not the rank's";
  EXPECT_EQ(host("ip-10-0-0-3_77"), "ip-10-0-0-3");
  EXPECT_EQ(host("3b44bd29b3f0_77"), "3b44bd29b3f0");
  EXPECT_EQ(host("gpu3a_77"), "gpu3a");
  EXPECT_EQ(host("login_77"), "login");
}

}  // namespace
}  // namespace orrery
