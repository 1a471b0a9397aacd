// What communication kernels say of themselves, which communicators the ranks share, and which kernels met.
#include <gtest/gtest.h>

#include "job_builder.h"

namespace orrery {
namespace {

using testing::job;
using testing::Joined;
using testing::RankBuilder;
using testing::to_us;
using testing::TraceBuilder;
using testing::us;
using Comm = TraceBuilder::Comm;
using Meetings = std::vector<std::string>;

// ---- rows: where a kernel's description comes from ----

TEST(CommRows, KernelsOwnArguments) {
  RankBuilder b(0);
  b.meet(
      "k", 0, 6, 26,
      {.collective = "allreduce", .elems = 1024, .group = "1", .desc = "tp", .ranks = "[0, 1]", .size = 2, .seq = 7});
  const Joined g(std::move(b));
  ASSERT_EQ(g.comm().rows.size(), 1u);
  const CommRow& c = g.row("k");
  EXPECT_EQ(c.op, CommOp::all_reduce);
  EXPECT_EQ(g.comm().op_names[c.op_name], "allreduce");
  EXPECT_EQ(c.bytes, 4096);  // 1,024 of 4 bytes
  EXPECT_EQ(c.seq, 7);
  EXPECT_EQ(c.step, -1);
  EXPECT_TRUE(c.launched);
  EXPECT_EQ(c.start, us(6));
  EXPECT_EQ(c.end, us(26));
  EXPECT_EQ(c.parts, 0u);
  EXPECT_EQ(c.transfer, -1);  // it met nobody
  EXPECT_EQ(c.node, c.last);
  EXPECT_EQ(g.group(c), (CommGroup{"tp", {0, 1}, 2, false}));
}

// Older files have the arguments on the operator only.
TEST(CommRows, OperatorAroundTheLaunch) {
  RankBuilder b(0);
  b.comm_op(0, 20,
            {.collective = "_allgather_base",
             .elems = 100,
             .group = "2",
             .ranks = "[0, 3]",
             .size = 2,
             .seq = 3,
             .dtype = "BFloat16"});
  b.task("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 5, 11, 31);
  const Joined g(std::move(b));
  const CommRow& c = g.comm().rows.at(0);
  EXPECT_EQ(c.op, CommOp::all_gather);
  EXPECT_EQ(g.comm().op_names[c.op_name], "_allgather_base");
  EXPECT_EQ(c.bytes, 200);
  EXPECT_EQ(c.seq, 3);
  EXPECT_EQ(g.group(c), (CommGroup{"2", {0, 3}, 2, false}));
}

TEST(CommRows, KernelComesBeforeTheOperator) {
  RankBuilder b(0);
  b.comm_op(0, 20, {.collective = "broadcast", .elems = 1});
  b.meet("ncclDevKernel_AllReduce", 5, 11, 31, {.collective = "allreduce", .elems = 2});
  const Joined g(std::move(b));
  EXPECT_EQ(g.comm().rows.at(0).op, CommOp::all_reduce);
  EXPECT_EQ(g.comm().rows.at(0).bytes, 8);
}

// A batch of sends and receives is launched at its end, outside the operators: those of the thread since its launch
// before are its parts. Not the collective of that launch, not another thread's, not a wait.
TEST(CommRows, BatchWithoutArguments) {
  RankBuilder b(3);
  b.comm_op(0, 20, {.collective = "allreduce", .elems = 5});
  b.task("ncclDevKernel_AllReduce", 5, 11, 31);
  b.comm_op(30, 5, {.collective = "wait"});
  b.batch("ncclDevKernel_SendRecv_1", 100, 106, 126,
          {{.collective = "send", .elems = 10, .group = "4", .desc = "pp", .ranks = "[1, 3, 5]", .size = 3, .dst = 5},
           {.collective = "recv", .elems = 30, .group = "4", .desc = "pp", .ranks = "[1, 3, 5]", .size = 3, .src = 5},
           {.collective = "send", .elems = 40, .group = "4", .desc = "pp", .ranks = "[1, 3, 5]", .size = 3, .dst = 1}});
  b.batch("ncclDevKernel_SendRecv_2", 200, 206, 226,
          {{.collective = "recv", .elems = 2, .group = "4", .desc = "pp", .ranks = "[1, 3, 5]", .size = 3, .src = 1}});
  b.on(2).comm_op(90, 5, {.collective = "send", .elems = 1000, .dst = 7});
  const Joined g(std::move(b));

  const CommRow& first = g.row("ncclDevKernel_SendRecv_1");
  EXPECT_EQ(first.op, CommOp::exchange);
  EXPECT_EQ(g.comm().op_names[first.op_name], "sendrecv");
  EXPECT_EQ(first.bytes, 200);  // sent: (10 + 40) * 4; received: 30 * 4. The larger
  ASSERT_EQ(first.parts, 3u);
  const CommPart* p = &g.comm().parts[first.first_part];
  EXPECT_EQ(std::tuple(p[0].peer, p[0].send, p[0].bytes), std::tuple(5, true, 40));
  EXPECT_EQ(std::tuple(p[1].peer, p[1].send, p[1].bytes), std::tuple(5, false, 120));
  EXPECT_EQ(std::tuple(p[2].peer, p[2].send, p[2].bytes), std::tuple(1, true, 160));
  EXPECT_EQ(g.group(first).label, "pp");

  const CommRow& second = g.row("ncclDevKernel_SendRecv_2");
  EXPECT_EQ(second.op, CommOp::recv);
  EXPECT_EQ(second.bytes, 8);
  ASSERT_EQ(second.parts, 1u);
  EXPECT_EQ(g.comm().parts[second.first_part].peer, 1);
}

// A send of its own, with arguments on the kernel, is a part as well.
TEST(CommRows, SingleSend) {
  RankBuilder b(0);
  b.meet("k", 0, 6, 16, {.collective = "send", .elems = 8, .group = "1", .ranks = "[0, 1]", .dst = 1});
  const Joined g(std::move(b));
  const CommRow& c = g.row("k");
  EXPECT_EQ(c.op, CommOp::send);
  ASSERT_EQ(c.parts, 1u);
  EXPECT_EQ(g.comm().parts[c.first_part].peer, 1);
  EXPECT_EQ(g.comm().parts[c.first_part].bytes, 32);
}

// Collectives collected into one launch: their bytes together.
TEST(CommRows, CollectivesLaunchedAsOne) {
  RankBuilder b(0);
  b.batch("ncclDevKernel_AllGather", 50, 56, 76,
          {{.collective = "_allgather_base", .elems = 10, .group = "1", .ranks = "[0, 1]"},
           {.collective = "_allgather_base", .elems = 20, .group = "1", .ranks = "[0, 1]"}});
  const Joined g(std::move(b));
  const CommRow& c = g.comm().rows.at(0);
  EXPECT_EQ(c.op, CommOp::all_gather);
  EXPECT_EQ(c.bytes, 120);
  EXPECT_EQ(c.parts, 0u);
}

// Words that are no operation ("coalesced", "init") say nothing: the parts of the batch do.
TEST(CommRows, BatchUnderAWordThatIsNoOperation) {
  for (const char* word : {"coalesced", "init", "nccl:coalesced"}) {
    RankBuilder b(0);
    b.comm_op(0, 3, {.collective = word});
    b.comm_op(10, 5, {.collective = "send", .elems = 8, .group = "1", .ranks = "[0, 1]", .dst = 1});
    b.comm_op(20, 5, {.collective = "recv", .elems = 8, .group = "1", .ranks = "[0, 1]", .src = 1});
    b.meet("k", 30, 36, 46, {.collective = word});
    const Joined g(std::move(b));
    EXPECT_EQ(g.row("k").op, CommOp::exchange) << word;
    EXPECT_EQ(g.row("k").parts, 2u) << word;
  }
}

TEST(CommRows, KernelsNameAlone) {
  const struct {
    const char* kernel;
    CommOp op;
    const char* name;
  } cases[] = {
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", CommOp::all_reduce, "allreduce"},
      {"ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", CommOp::all_reduce, "allreduce"},
      {"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", CommOp::all_gather, "allgather"},
      {"ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", CommOp::reduce_scatter, "reduce_scatter"},
      {"ncclDevKernel_Broadcast_RING_LL", CommOp::broadcast, "broadcast"},
      {"ncclDevKernel_Reduce_Sum_f32_RING_LL", CommOp::reduce, "reduce"},
      {"ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", CommOp::exchange, "sendrecv"},
      {"void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)", CommOp::all_reduce, "allreduce"},
      {"ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", CommOp::other, "ncclDevKernel_Generic"},
      {"nvshmem_scatter_kernel<int>(int*)", CommOp::other, "nvshmem_scatter_kernel"},
  };
  for (const auto& c : cases) {
    RankBuilder b(0);
    b.task(c.kernel, 0, 6, 16);
    const Joined g(std::move(b));
    ASSERT_EQ(g.comm().rows.size(), 1u) << c.kernel;
    const CommRow& row = g.comm().rows[0];
    EXPECT_EQ(row.op, c.op) << c.kernel;
    EXPECT_EQ(g.comm().op_names[row.op_name], c.name);
    EXPECT_EQ(row.group, kNone);
    EXPECT_EQ(row.bytes, -1);
    EXPECT_EQ(row.seq, -1);
  }
}

TEST(CommRows, WordsOfTheMetadata) {
  const struct {
    const char* word;
    CommOp op;
  } cases[] = {{"allreduce", CommOp::all_reduce},
               {"allreduce_coalesced", CommOp::all_reduce},
               {"barrier", CommOp::all_reduce},
               {"all_gather", CommOp::all_gather},
               {"_allgather_base", CommOp::all_gather},
               {"allgather_into_tensor_coalesced", CommOp::all_gather},
               {"_reduce_scatter_base", CommOp::reduce_scatter},
               {"reduce_scatter_tensor_coalesced", CommOp::reduce_scatter},
               {"all_to_all", CommOp::all_to_all},
               {"all_to_allv", CommOp::all_to_all},
               {"ALLTOALL", CommOp::all_to_all},
               {"broadcast", CommOp::broadcast},
               {"_broadcast_oop", CommOp::broadcast},
               {"reduce", CommOp::reduce},
               {"_reduce_oop", CommOp::reduce},
               {"gather", CommOp::gather},
               {"scatter", CommOp::scatter},
               {"send", CommOp::send},
               {"recv", CommOp::recv},
               {"init", CommOp::other}};
  for (const auto& c : cases) EXPECT_EQ(comm_op_of_collective(c.word), c.op) << c.word;
}

// Kernels from before the window have neither launch nor arguments and come first, whatever their stream.
TEST(CommRows, KernelsFromBeforeTheWindow) {
  RankBuilder b(0);
  b.meet("late", 20, 60, 80, {.collective = "allreduce", .elems = 1}, 20);
  b.kernel("ncclDevKernel_AllReduce_before", 30, 40, 10);
  b.kernel("ncclDevKernel_AllGather_earliest", 20, 25, 10, 99);  // a correlation that no call has
  const Joined g(std::move(b));
  ASSERT_EQ(g.comm().rows.size(), 3u);
  EXPECT_EQ(g.row_index("ncclDevKernel_AllGather_earliest"), 0u);
  EXPECT_EQ(g.row_index("ncclDevKernel_AllReduce_before"), 1u);
  EXPECT_EQ(g.row_index("late"), 2u);
  EXPECT_FALSE(g.comm().rows[0].launched);
  EXPECT_FALSE(g.comm().rows[1].launched);
  EXPECT_TRUE(g.comm().rows[2].launched);
}

TEST(CommRows, LaunchOrderIsNotTheOrderOfStarts) {
  RankBuilder b(0);
  b.meet("second", 10, 20, 30, {.collective = "allreduce"}, 21);
  b.meet("first", 0, 40, 50, {.collective = "allreduce"}, 20);
  const Joined g(std::move(b));
  EXPECT_EQ(g.row_index("first"), 0u);
  EXPECT_EQ(g.row_index("second"), 1u);
}

TEST(CommRows, StepIsThatOfTheLaunch) {
  RankBuilder b(0);
  b.step(5, 0, 100);
  b.step(6, 100, 100);
  b.meet("k5", 90, 150, 160, {.collective = "allreduce"});  // runs in step 6
  b.meet("k6", 110, 161, 170, {.collective = "allreduce"});
  b.meet("after", 250, 256, 270, {.collective = "allreduce"});
  const Joined g(std::move(b));
  EXPECT_EQ(g.row("k5").step, 5);
  EXPECT_EQ(g.row("k6").step, 6);
  EXPECT_EQ(g.row("after").step, -1);
}

TEST(CommRows, BytesAreTheLargerSide) {
  const struct {
    std::int64_t in, out;
    const char* dtype;
    std::int64_t bytes;
  } cases[] = {{100, 800, "BFloat16", 1600},
               {800, 100, "Half", 1600},
               {5, 5, "Double", 40},
               {5, 5, "Byte", 5},
               {-1, 5, "Int", 20},
               {-1, -1, "Float", -1},
               {5, 5, "Float8_e4m3fn", 5},
               {5, 5, "SomethingNew", -1},
               {5, 5, "", -1},
               {0, 0, "Float", 0},
               {INT64_MAX, 1, "Float", -1}};  // no such size
  for (const auto& c : cases) {
    RankBuilder b(0);
    b.meet("k", 0, 6, 16, {.collective = "_allgather_base", .dtype = c.dtype});
    b.t.comm_args.in_elems[0] = c.in;
    b.t.comm_args.out_elems[0] = c.out;
    EXPECT_EQ(Joined(std::move(b)).row("k").bytes, c.bytes) << c.in << " " << c.out << " " << c.dtype;
  }
}

// NCCL's tests: an all-reduce of n ranks moves 2 (n - 1) / n bytes a byte of message, the halves of it half.
TEST(CommRows, BusFactor) {
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::all_reduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::all_gather, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::reduce_scatter, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::all_to_all, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::broadcast, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::send, 2), 1);
  EXPECT_DOUBLE_EQ(bus_factor(CommOp::all_reduce, 0), 1);  // size not known
}

// ---- groups ----

// One all-reduce a group on each of two ranks, at the same times.
struct Seen {
  std::string group, desc, ranks;
  std::int64_t size = 0;
};
RankBuilder with_groups(std::int64_t rank, const std::vector<Seen>& groups) {
  RankBuilder b(rank);
  double at = 10;
  std::int64_t stream = 20;
  for (const Seen& s : groups) {
    b.free_meet(
        "ar" + std::to_string(stream), at, at + 20,
        {.collective = "allreduce", .elems = 1, .group = s.group, .desc = s.desc, .ranks = s.ranks, .size = s.size},
        stream);
    at += 100;
    ++stream;
  }
  return b;
}
ProcessGroup configured(std::string name, std::string desc, std::vector<std::int32_t> ranks) {
  return {std::move(name), std::move(desc), "nccl", static_cast<std::int64_t>(ranks.size()), std::move(ranks)};
}
std::vector<std::int32_t> first_ranks(std::int32_t n, std::int32_t but = -1) {
  std::vector<std::int32_t> v;
  for (std::int32_t i = 0; std::ssize(v) < n; ++i)
    if (i != but) v.push_back(i);
  return v;
}

TEST(CommGroups, FullListsTellTheGroup) {
  // Names count what each process made: they differ. Order in the list does not matter.
  const Joined g(job(with_groups(0, {{"3", "tp", "[0, 1]", 2}, {"5", "dp", "[0, 2]", 2}}),
                     with_groups(1, {{"4", "tp", "[1, 0]", 2}, {"6", "dp", "[1, 3]", 2}})));
  EXPECT_EQ(g.row("ar20", 0).group, g.row("ar20", 1).group);
  EXPECT_NE(g.row("ar21", 0).group, g.row("ar21", 1).group);
  EXPECT_EQ(g.group(g.row("ar20", 0)), (CommGroup{"tp", {0, 1}, 2, false}));
  EXPECT_EQ(g.group(g.row("ar21", 1)), (CommGroup{"dp", {1, 3}, 2, false}));
  EXPECT_EQ(g.meetings(), (Meetings{"ar20@0 ar20@1"}));
}

constexpr const char* kCut =
    "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, "
    "...]";

TEST(CommGroups, CutListsAreReadFromTheConfiguration) {
  const auto rank = [](std::int64_t r) {
    // the same thirty ranks first, the same size, and not the same group
    RankBuilder b = with_groups(r, {{"0", "a", kCut, 63}, {"1", "b", kCut, 63}, {"2", "c", kCut, 64}});
    b.t.groups = {configured("0", "a", first_ranks(63, 40)), configured("1", "b", first_ranks(63, 50)),
                  configured("2", "c", first_ranks(64))};
    return b;
  };
  const Joined g(job(rank(0), rank(1)));
  EXPECT_EQ(g.meetings(), (Meetings{"ar20@0 ar20@1", "ar21@0 ar21@1", "ar22@0 ar22@1"}));
  EXPECT_EQ(g.group(g.row("ar20")).size, 63);
  EXPECT_EQ(g.group(g.row("ar20")).ranks.at(40), 41);
  EXPECT_EQ(g.group(g.row("ar21")).ranks.at(40), 40);
  EXPECT_EQ(g.group(g.row("ar22")).size, 64);
  EXPECT_EQ(g.comm().meetings.at(0).missing, 61u);
}

// Without a configuration the list as cut and the size tell the group; which ranks are in it is not known in whole.
TEST(CommGroups, CutListsWithoutConfiguration) {
  const auto rank = [](std::int64_t r) { return with_groups(r, {{"7", "", kCut, 63}, {"8", "", kCut, 64}}); };
  const Joined g(job(rank(0), rank(1)));
  EXPECT_EQ(g.meetings(), (Meetings{"ar20@0 ar20@1", "ar21@0 ar21@1"}));
  EXPECT_NE(g.row("ar20").group, g.row("ar21").group);
  EXPECT_TRUE(g.group(g.row("ar20")).ranks.empty());
  EXPECT_EQ(g.group(g.row("ar20")).size, 63);
}

TEST(CommGroups, TwoCommunicatorsOverTheSameRanks) {
  // told apart by description ...
  const Joined described(job(with_groups(0, {{"1", "tp", "[0, 1]", 2}, {"2", "ep", "[0, 1]", 2}}),
                             with_groups(1, {{"2", "ep", "[0, 1]", 2}, {"1", "tp", "[0, 1]", 2}})));
  EXPECT_EQ(described.row("ar20", 0).group, described.row("ar21", 1).group);
  EXPECT_EQ(described.row("ar21", 0).group, described.row("ar20", 1).group);
  EXPECT_NE(described.row("ar20", 0).group, described.row("ar21", 0).group);
  // ... without one by their order in the configuration, also where a window shows them in another order ...
  const auto named = [](std::int64_t rank, const std::string& first, const std::string& second,
                        const std::vector<std::string>& seen) {
    std::vector<Seen> groups;
    for (const std::string& name : seen) groups.push_back({name, "undefined", "[0, 1]", 2});
    RankBuilder b = with_groups(rank, groups);
    b.t.groups = {configured(first, "undefined", {0, 1}), configured(second, "undefined", {0, 1})};
    return b;
  };
  const Joined ordered(job(named(0, "1", "2", {"1", "2"}), named(1, "5", "6", {"6", "5"})));
  EXPECT_EQ(ordered.row("ar20", 0).group, ordered.row("ar21", 1).group);
  EXPECT_EQ(ordered.row("ar21", 0).group, ordered.row("ar20", 1).group);
  // ... and also where only one of them is in a window
  const Joined one(job(named(0, "1", "2", {"1", "2"}), named(1, "5", "6", {"6"})));
  EXPECT_EQ(one.row("ar21", 0).group, one.row("ar20", 1).group);
  // ... and failing all of that by the order in which they are first used.
  const Joined bare(job(with_groups(0, {{"1", "", "[0, 1]", 2}, {"2", "", "[0, 1]", 2}}),
                        with_groups(1, {{"8", "", "[0, 1]", 2}, {"9", "", "[0, 1]", 2}})));
  EXPECT_EQ(bare.meetings(), (Meetings{"ar20@0 ar20@1", "ar21@0 ar21@1"}));
  EXPECT_NE(bare.row("ar20").group, bare.row("ar21").group);
}

TEST(CommGroups, RanksThatDescribeAGroupDifferently) {
  const Joined g(job(with_groups(0, {{"1", "undefined", "[0, 1]", 2}}), with_groups(1, {{"1", "tp", "[0, 1]", 2}})));
  EXPECT_EQ(g.row("ar20", 0).group, g.row("ar20", 1).group);
  EXPECT_EQ(g.meetings(), (Meetings{"ar20@0 ar20@1"}));
  const Joined h(job(with_groups(0, {{"1", "tp-0", "[0, 1]", 2}}), with_groups(1, {{"1", "tp-1", "[0, 1]", 2}})));
  EXPECT_EQ(h.meetings(), (Meetings{"ar20@0 ar20@1"}));
  // but never two of one rank
  const Joined two(job(with_groups(0, {{"1", "tp", "[0, 1]", 2}, {"2", "ep", "[0, 1]", 2}}),
                       with_groups(1, {{"1", "tp", "[0, 1]", 2}})));
  EXPECT_NE(two.row("ar20", 0).group, two.row("ar21", 0).group);
  EXPECT_EQ(two.row("ar20", 0).group, two.row("ar20", 1).group);
}

// Some versions write a name and a size, and no ranks; a name counts what each process made. Of four ranks that all say
// "1, of two ranks" times must tell who belongs together.
TEST(CommGroups, NamesWithoutRanksThatTooManyUse) {
  const auto rank = [](std::int64_t number) {
    RankBuilder b(number);
    for (int i = 0; i < 10; ++i) {
      const double at = 100 + 100 * i + (number < 2 ? 0 : 50);
      b.free_meet("k" + std::to_string(i), at, at + 20,
                  {.collective = "allreduce", .elems = 1, .group = "1", .size = 2});
    }
    return b;
  };
  const Joined g(job(rank(0), rank(1), rank(2), rank(3)));
  EXPECT_EQ(g.comm().meetings.size(), 20u);
  for (const Meeting& m : g.comm().meetings) EXPECT_EQ(m.members, 2u);
  EXPECT_EQ(g.row("k0", 0).group, g.row("k0", 1).group);
  EXPECT_EQ(g.row("k0", 2).group, g.row("k0", 3).group);
  EXPECT_NE(g.row("k0", 0).group, g.row("k0", 2).group);
  EXPECT_EQ(g.noted("groups-inferred"), 2u);
  EXPECT_EQ(g.comm().matched, 40u);
  // two ranks that say so are those two
  const Joined two(job(rank(0), rank(1)));
  EXPECT_EQ(two.group(two.row("k0", 0)), (CommGroup{"1", {}, 2, false}));
  EXPECT_EQ(two.comm().meetings.size(), 10u);
}

TEST(CommGroups, LabelIsWhatTheReaderKnows) {
  EXPECT_EQ(Joined(with_groups(0, {{"3", "tp", "[0, 1]", 2}})).comm().groups.at(0).label, "tp");
  EXPECT_EQ(Joined(with_groups(0, {{"3", "undefined", "[0, 1]", 2}})).comm().groups.at(0).label, "3");
  EXPECT_EQ(Joined(with_groups(0, {{"", "", "[1, 0]", 2}})).comm().groups.at(0).label, "ranks:0,1");
}

// ---- matching ----

// One collective of a sequence: kernel "k<name>", launched just in time.
struct Call {
  int name;
  double start, end;
  std::int64_t elems = 1, seq = -1;
  const char* collective = "allreduce";
};
void add(RankBuilder& b, const std::vector<Call>& calls, const char* ranks = "[0, 1]", std::int64_t size = 2) {
  for (const Call& c : calls)
    b.free_meet("k" + std::to_string(c.name), c.start, c.end,
                {.collective = c.collective,
                 .elems = c.elems,
                 .group = "1",
                 .desc = "dp",
                 .ranks = ranks,
                 .size = size,
                 .seq = c.seq});
}
RankBuilder sequence(std::int64_t rank, const std::vector<Call>& calls, std::string host = "a") {
  RankBuilder b(rank, std::move(host));
  add(b, calls);
  return b;
}
// Every `period` us one that takes 20 us.
std::vector<Call> regular(int from, int to, double period = 100, double at = 0) {
  std::vector<Call> calls;
  for (int i = from; i < to; ++i) calls.push_back({i, at + period * i, at + period * i + 20});
  return calls;
}
// Kernels of the same number on ranks a and b.
Meetings pairs(int from, int to, int a = 0, int b = 1) {
  Meetings all;
  for (int i = from; i < to; ++i) {
    const std::string k = "k" + std::to_string(i) + "@";
    all.push_back(k + std::to_string(a) + " " + k + std::to_string(b));
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(CommMatching, BySequenceNumber) {
  std::vector<Call> a = regular(5, 12), b = regular(7, 15);
  for (Call& c : a) c.seq = 100 + c.name;
  for (Call& c : b)
    c.seq = 100 + c.name, c.start += 5e6, c.end += 5e6;  // another host, seconds apart: times say nothing
  const Joined g(job(sequence(0, a), sequence(1, b, "b")));
  EXPECT_EQ(g.meetings(), pairs(7, 12));
  EXPECT_EQ(g.comm().expected, 10u);  // the others lie outside of what the other rank recorded
  EXPECT_EQ(g.comm().matched, 10u);
  EXPECT_EQ(g.noted("collectives-outside-window"), 5u);
  EXPECT_EQ(g.note("collectives-outside-window"), "allreduce on rank 0 in dp");
  EXPECT_EQ(g.noted("collectives-unmatched"), 0u);
}

// Several collectives of one call share a number: the n-th of one rank meets the n-th of the other.
TEST(CommMatching, SharedSequenceNumbers) {
  std::vector<Call> calls = regular(0, 6);
  for (Call& c : calls) c.seq = c.name / 3;
  const Joined g(job(sequence(0, calls), sequence(1, calls)));
  EXPECT_EQ(g.meetings(), pairs(0, 6));
}

// Without numbers, operation, size and step tell the place where the window of one rank opens in mid-step.
TEST(CommMatching, WindowThatOpensInMidStep) {
  const auto rank = [](std::int64_t number, int from, double clock, const char* host) {
    std::vector<Call> calls;
    for (int i = from; i < 15; ++i) {  // five a step
      const double at = clock + 1000 * (i / 5) + 100 * (i % 5) + 10;
      calls.push_back({i, at, at + 20, std::array{8, 16, 32, 8, 16}[static_cast<std::size_t>(i % 5)]});
    }
    RankBuilder b = sequence(number, calls, host);
    for (int step = 0; step < 3; ++step) b.step(4 + step, clock + 1000 * step, 990);
    return b;
  };
  for (const int from : {0, 2, 3, 5, 7}) {
    const Joined g(job(rank(0, 0, 0, "a"), rank(1, from, 3e6, "b")));
    EXPECT_EQ(g.meetings(), pairs(from, 15)) << from;
    EXPECT_EQ(g.comm().matched, 2u * static_cast<unsigned>(15 - from));
    const Joined other(job(rank(0, from, 0, "a"), rank(1, 0, -3e6, "b")));
    EXPECT_EQ(other.meetings(), pairs(from, 15)) << from;
  }
}

// All alike and no step markers: on one host the times tell, on two the unevenness of the times.
TEST(CommMatching, AlikeCollectivesAreToldByTheirTimes) {
  const auto uneven = [](int from, int to, double clock) {
    std::vector<Call> calls;
    double at = clock + 50;
    for (int i = 0; i < to; ++i) {
      if (i >= from) calls.push_back({i, at, at + 20});
      at += 100 + 5 * (i * i * 13 % 29);
    }
    return calls;
  };
  EXPECT_EQ(Joined(job(sequence(0, regular(0, 10)), sequence(1, regular(3, 12)))).meetings(), pairs(3, 10));
  EXPECT_EQ(Joined(job(sequence(0, uneven(0, 20, 0)), sequence(1, uneven(4, 24, 7e6), "b"))).meetings(), pairs(4, 20));
}

// A Seq that pairs different sizes is not believed, and that is said.
TEST(CommMatching, MisleadingSequenceNumbers) {
  std::vector<Call> a = regular(0, 12), b = regular(0, 12);
  for (Call& c : a) c.elems = 10 + c.name % 3, c.seq = c.name;
  for (Call& c : b) c.elems = 10 + c.name % 3, c.seq = c.name + 1;
  const Joined g(job(sequence(0, a), sequence(1, b)));
  EXPECT_EQ(g.meetings(), pairs(0, 12));
  EXPECT_EQ(g.noted("sequence-numbers-disagree"), 1u);
  EXPECT_EQ(g.note("sequence-numbers-disagree"), "dp");
  EXPECT_EQ(g.noted("collectives-unmatched"), 0u);
}

// Of alike collectives only the times say that a Seq is off by one.
TEST(CommMatching, SequenceNumbersOffByOne) {
  std::vector<Call> a = regular(0, 12), b = regular(0, 12);
  for (Call& c : a) c.seq = c.name;
  for (Call& c : b) c.seq = c.name + 1;
  const Joined g(job(sequence(0, a), sequence(1, b)));
  EXPECT_EQ(g.meetings(), pairs(0, 12));
  EXPECT_EQ(g.noted("sequence-numbers-disagree"), 1u);
  // on two hosts nothing tells: the clocks are fitted to what Seq says
  const Joined h(job(sequence(0, a), sequence(1, b, "b")));
  EXPECT_EQ(h.comm().meetings.size(), 11u);
  EXPECT_EQ(h.comm().clocks.at(1).offset, us(-100));
}

// Kernels launched before the window: the last of one rank is the last of the other.
TEST(CommMatching, KernelsFromBeforeTheWindow) {
  for (const bool numbers : {true, false}) {
    std::vector<Call> calls = regular(10, 14);
    if (numbers)
      for (Call& c : calls) c.seq = c.name;
    const auto rank = [&](std::int64_t number, int before) {
      RankBuilder b = sequence(number, calls);
      for (int i = 10 - before; i < 10; ++i) b.kernel("ncclDevKernel_AllReduce_" + std::to_string(i), 20, 100 * i, 20);
      b.op("first of the window", 600, 10);
      return b;
    };
    const Joined g(job(rank(0, 1), rank(1, 3)));
    Meetings expected = pairs(10, 14);
    expected.push_back("ncclDevKernel_AllReduce_9@0 ncclDevKernel_AllReduce_9@1");
    EXPECT_EQ(g.meetings(), expected);
    EXPECT_EQ(g.noted("collectives-outside-window"), 2u);  // the other rank's window opened after those
    EXPECT_EQ(g.noted("collectives-unmatched"), 0u);
    EXPECT_EQ(g.comm().expected, 8u);  // what was launched in the window
    EXPECT_EQ(g.comm().matched, 8u);
  }
}

// One rank's window opened earlier: what it launched in it, the other has from before.
TEST(CommMatching, LaunchedHereAndBeforeThere) {
  std::vector<Call> a = regular(10, 14), b = regular(11, 14);
  for (Call& c : a) c.seq = c.name;
  for (Call& c : b) c.seq = c.name;
  RankBuilder late = sequence(1, b);
  late.kernel("ncclDevKernel_AllReduce", 20, 1000, 20);
  const Joined g(job(sequence(0, a), std::move(late)));
  Meetings expected = pairs(11, 14);
  expected.insert(expected.begin(), "k10@0 ncclDevKernel_AllReduce@1");
  EXPECT_EQ(g.meetings(), expected);
}

Comm p2p(bool send, std::int32_t peer, std::int64_t elems = 8) {
  return {.collective = send ? "send" : "recv",
          .elems = elems,
          .group = "1",
          .desc = "pp",
          .ranks = "[0, 1]",
          .size = 2,
          .src = send ? -1 : peer,
          .dst = send ? peer : -1};
}

TEST(CommMatching, SendsAndReceivesOfWindowsThatDifferByOne) {
  RankBuilder a(0), b(1);
  for (int i = 0; i < 6; ++i) {
    const std::string k = "k" + std::to_string(i);
    if (i != 5) a.free_meet(k, 100 + 100 * i, 150 + 100 * i, p2p(true, 1));
    if (i != 0) b.free_meet(k, 120 + 100 * i, 150 + 100 * i, p2p(false, 0));
  }
  const Joined g(job(std::move(a), std::move(b)));
  EXPECT_EQ(g.meetings(), pairs(1, 5));
  EXPECT_EQ(g.noted("collectives-outside-window"), 2u);
  EXPECT_EQ(g.noted("collectives-unmatched"), 0u);
}

// Older PyTorch writes neither Src nor Dst Rank: in a group of two the peer is the other.
TEST(CommMatching, SendsAndReceivesOfAGroupOfTwoNeedNoRanks) {
  RankBuilder a(0), b(1);
  for (int i = 0; i < 6; ++i) {
    const std::string k = "k" + std::to_string(i);
    a.free_meet(k, 100 + 100 * i, 150 + 100 * i, p2p(true, -1));
    b.free_meet(k, 120 + 100 * i, 150 + 100 * i, p2p(false, -1));
  }
  const Joined g(job(std::move(a), std::move(b)));
  EXPECT_EQ(g.meetings(), pairs(0, 6));
  EXPECT_EQ(g.noted("collectives-unmatched"), 0u);
}

// On two hosts sends that are all alike, as regular as these, say nothing of the place; the collectives, whose numbers
// are sure, tell the clocks, and these tell it.
TEST(CommMatching, AlikeSendsAreToldInTheCommonClock) {
  for (const double clock : {0.0, 3e6, -4e6}) {
    RankBuilder a(0, "a"), b(1, "b");
    for (int i = 0; i < 10; ++i) {
      const double at = 100 + 100 * i;
      const std::string k = "k" + std::to_string(i), ar = "ar" + std::to_string(i);
      Comm reduce = testing::all_reduce();
      reduce.seq = i;
      a.free_meet(ar, at, at + 10, reduce);
      b.free_meet(ar, clock + at, clock + at + 10, reduce);
      if (i != 9) a.free_meet(k, at + 30, at + 60, p2p(true, 1), 21);
      if (i != 0) b.free_meet(k, clock + at + 40, clock + at + 60, p2p(false, 0), 21);
    }
    const Joined g(job(std::move(a), std::move(b)));
    Meetings sends;
    for (const std::string& m : g.meetings())
      if (m[0] == 'k') sends.push_back(m);
    EXPECT_EQ(sends, pairs(1, 9)) << clock;
    EXPECT_EQ(g.comm().clocks.at(1).offset, us(clock));
  }
}

// Each sends and receives in one kernel: two meetings, of the same two kernels.
TEST(CommMatching, BatchedExchange) {
  RankBuilder a(0), b(1);
  a.batch("ncclDevKernel_SendRecv(x)", 50, 56, 100, {p2p(true, 1, 8), p2p(false, 1, 16)});
  b.batch("ncclDevKernel_SendRecv(y)", 50, 70, 100, {p2p(false, 0, 8), p2p(true, 0, 16)});
  const Joined g(job(std::move(a), std::move(b)));
  EXPECT_EQ(g.meetings(), (Meetings{"ncclDevKernel_SendRecv(x)@0 ncclDevKernel_SendRecv(y)@1",
                                    "ncclDevKernel_SendRecv(y)@1 ncclDevKernel_SendRecv(x)@0"}));
  EXPECT_EQ(g.comm().matched, 2u);
  EXPECT_EQ(g.row("ncclDevKernel_SendRecv(x)").op, CommOp::exchange);
  EXPECT_DOUBLE_EQ(g.ends("ncclDevKernel_SendRecv(x)"), 100);
  EXPECT_DOUBLE_EQ(g.waited("ncclDevKernel_SendRecv(x)"), 14);
}

// Of two sizes that do not fit each other nothing is made.
TEST(CommMatching, SendAndReceiveOfDifferentSizes) {
  RankBuilder a(0), b(1);
  a.free_meet("x", 50, 100, p2p(true, 1, 8));
  b.free_meet("y", 70, 100, p2p(false, 0, 16));
  const Joined g(job(std::move(a), std::move(b)));
  EXPECT_EQ(g.meetings(), Meetings{});
  EXPECT_EQ(g.noted("sequences-disagree"), 1u);
  EXPECT_EQ(g.note("sequences-disagree"), "sends from rank 0 to rank 1");
}

// Without any metadata.
RankBuilder bare(std::int64_t rank, const std::vector<Call>& calls, std::string host = "a") {
  RankBuilder b(rank, std::move(host));
  for (const Call& c : calls)
    b.task("ncclDevKernel_AllReduce_Sum_f32_RING_LL(k" + std::to_string(c.name) + ")", c.start - 6, c.start, c.end, 20);
  return b;
}

TEST(CommMatching, GroupToldByTimes) {
  const Joined g(job(bare(0, regular(0, 6)), bare(1, regular(0, 6))));
  EXPECT_EQ(g.comm().meetings.size(), 6u);
  EXPECT_EQ(g.noted("groups-inferred"), 1u);
  EXPECT_EQ(g.note("groups-inferred"), "ranks:0,1");
  EXPECT_EQ(g.comm().groups, (std::vector<CommGroup>{{"ranks:0,1", {0, 1}, 2, true}}));
}

TEST(CommMatching, TwoPairsAreNotOneGroup) {
  const std::vector<CommGroup> two = {{"ranks:0,1", {0, 1}, 2, true}, {"ranks:2,3", {2, 3}, 2, true}};
  const auto groups = [](const std::vector<Call>& first, const std::vector<Call>& second, const char* other_host) {
    const Joined g(job(bare(0, first), bare(1, first), bare(2, second, other_host), bare(3, second, other_host)));
    EXPECT_EQ(g.noted("groups-inferred"), g.comm().groups.size());
    return g.comm().groups;
  };
  EXPECT_EQ(groups(regular(0, 20), regular(0, 20, 100, 50), "a"), two);  // half a period apart
  EXPECT_EQ(groups(regular(0, 20), regular(0, 20, 104), "a"), two);      // at first together, then not
  EXPECT_EQ(groups(regular(0, 20), regular(0, 20, 104), "b"), two);      // the same with a clock of its own
  std::vector<Call> jitter = regular(0, 40);
  for (Call& c : jitter) {  // in lockstep, but not in the same collectives
    const double by = (c.name * 29 % 41 - 20) * 2;
    c.start += by;
    c.end += by;
  }
  EXPECT_EQ(groups(regular(0, 40), jitter, "a"), two);
  EXPECT_EQ(groups(regular(0, 40), jitter, "b"), two);
}

// Members of an all-to-all send what they have: their sizes differ.
TEST(CommMatching, UnevenAllToAll) {
  std::vector<Call> a = regular(0, 4), b = regular(0, 4);
  for (Call& c : a) c.collective = "all_to_allv", c.elems = 10 + c.name;
  for (Call& c : b) c.collective = "all_to_allv", c.elems = 99 - c.name;
  const Joined g(job(sequence(0, a), sequence(1, b)));
  EXPECT_EQ(g.meetings(), pairs(0, 4));
}

// One rank's collectives do not fit those of the others: these meet without it, and both are told.
TEST(CommMatching, RankWhoseSequenceDoesNotFit) {
  for (const bool numbers : {true, false}) {
    const auto rank = [&](std::int64_t number, const char* collective) {
      std::vector<Call> calls = regular(0, 6);
      for (Call& c : calls) {
        c.collective = collective;
        if (numbers) c.seq = c.name;
      }
      RankBuilder b(number);
      add(b, calls, "[0, 1, 2]", 3);
      return b;
    };
    const Joined g(job(rank(0, "allreduce"), rank(1, "allreduce"), rank(2, "broadcast")));
    EXPECT_EQ(g.meetings(), pairs(0, 6));
    EXPECT_EQ(g.noted("sequence-numbers-disagree"), numbers ? 1u : 0u);
    EXPECT_EQ(g.note("sequences-disagree"), "dp on rank 2");
    EXPECT_EQ(g.noted("collectives-unmatched"), 6u);
    EXPECT_EQ(g.comm().meetings.at(0).missing, 1u);
  }
}

TEST(CommMatching, WhatIsLeftOverIsCounted) {
  // the window of one rank closes one collective earlier
  const Joined g(job(sequence(0, regular(0, 6)), sequence(1, regular(0, 5))));
  EXPECT_EQ(g.meetings(), pairs(0, 5));
  EXPECT_EQ(g.noted("collectives-outside-window"), 1u);
  EXPECT_EQ(g.noted("collectives-unmatched"), 0u);
  EXPECT_EQ(g.comm().expected, 10u);
  EXPECT_EQ(g.comm().matched, 10u);
  EXPECT_EQ(g.comm().alone, 0u);
  // one is missing amid those of a rank
  std::vector<Call> all = regular(0, 6), hole = regular(0, 6);
  hole.erase(hole.begin() + 2);
  for (Call& c : all) c.seq = c.name;
  for (Call& c : hole) c.seq = c.name;
  const Joined lost(job(sequence(0, all), sequence(1, hole)));
  EXPECT_EQ(lost.comm().meetings.size(), 5u);
  EXPECT_EQ(lost.noted("collectives-unmatched"), 1u);
  EXPECT_EQ(lost.note("collectives-unmatched"), "allreduce on rank 0 in dp");
  EXPECT_EQ(lost.comm().expected, 11u);
  EXPECT_EQ(lost.comm().matched, 10u);
  // ranks of another pair have no company here
  RankBuilder far(2);
  add(far, regular(0, 3), "[2, 3]");
  const Joined h(job(sequence(0, regular(0, 6)), sequence(1, regular(0, 6)), std::move(far)));
  EXPECT_EQ(h.comm().alone, 3u);
  EXPECT_EQ(h.noted("collectives-unmatched"), 0u);
  EXPECT_EQ(h.noted("waiting-inside-transfer"), 3u);
}

// A list that does not name the ranks that use it: they meet all the same, and are counted as such, also where the
// times then contradict it.
TEST(CommMatching, RanksThatTheirGroupDoesNotName) {
  const auto rank = [](std::int64_t number, double late) {
    RankBuilder b(number);
    std::vector<Call> calls = regular(0, 10);
    calls[4].start += late, calls[4].end += late;
    add(b, calls, "[5, 6]");
    return b;
  };
  const Joined g(job(rank(0, 0), rank(1, 0)));
  EXPECT_EQ(g.meetings(), pairs(0, 10));
  EXPECT_EQ(g.comm().expected, 20u);
  EXPECT_EQ(g.comm().matched, 20u);
  EXPECT_EQ(g.comm().alone, 0u);
  const Joined h(job(rank(0, 0), rank(1, 75)));
  EXPECT_EQ(h.noted("collectives-contradicted"), 1u);
  EXPECT_EQ(h.comm().expected, 20u);
  EXPECT_EQ(h.comm().matched, 18u);
}

}  // namespace
}  // namespace orrery
