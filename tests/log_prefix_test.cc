// What stands before a message: rank, node, time, as launchers, schedulers, libraries and kernels write them.
#include "importers/log_prefix.h"

#include <gtest/gtest.h>

namespace orrery {
namespace {

struct Case {
  const char* line;
  int rank;
  const char* node;
  const char* message;
};

TEST(LogPrefix, RankAndNodeAreTakenOff) {
  const Case cases[] = {
      {"[rank3]: ValueError: x", 3, "", "ValueError: x"},
      {"[default3]:iteration 7", -1, "", "iteration 7"},
      {"7: [rank7]: torch.OutOfMemoryError: x", 7, "", "torch.OutOfMemoryError: x"},
      {" 12: iteration 418 completed", 12, "", "iteration 418 completed"},
      {"[1,3]<stderr>:Traceback", 3, "", "Traceback"},
      {"node12:2201:2388 [3] transport/net_ib.cc:93 NCCL WARN x", -1, "node12", "transport/net_ib.cc:93 NCCL WARN x"},
      {"(RayTrainWorker pid=123, ip=10.0.0.1) KeyError: 'a'", -1, "10.0.0.1", "KeyError: 'a'"},
      {"(raylet) memory_monitor: x", -1, "", "memory_monitor: x"},
      {"node06: OSError: [Errno 24] Too many open files", -1, "node06", "OSError: [Errno 24] Too many open files"},
      {"[node09 kmsg] NVRM: Xid (PCI:0000:9b:00): 94, x", -1, "node09", "NVRM: Xid (PCI:0000:9b:00): 94, x"},
      {"[rank0]:[E0321 02:07:08.408271 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught", 0, "", "Watchdog caught"},
      {"[E ProcessGroupNCCL.cpp:737] [Rank 6] Watchdog", 6, "", "Watchdog"},
      {"[PG ID 0 PG GUID 0(default_pg) Rank 2] Exception", 2, "", "Exception"},
      {"slurmstepd-node15: error: Detected 1 oom-kill", -1, "node15", "slurmstepd-node15: error: Detected 1 oom-kill"},
      {"May  4 01:02:03 node3 kernel: NVRM: x", -1, "node3", "kernel: NVRM: x"},
      {"[ 1843.308145] NVRM: The NVIDIA GPU", -1, "", "NVRM: The NVIDIA GPU"},
      {"2025-01-01T00:00:00.000000000Z stderr F   File \"a.py\", line 3", -1, "", "  File \"a.py\", line 3"},
      {"Jan 01 00:00:00 n3 python3[991]: KeyError: 1", -1, "n3", "KeyError: 1"},
      {"2025-01-01T00:00:00+0000 gpu-77 torchrun[9]:   File", -1, "gpu-77", "  File"},
      {"Jan  1 10:00:08 gpu-77 kernel: NVRM: x", -1, "gpu-77", "kernel: NVRM: x"},
      {"gpu-77: NVRM: Xid", -1, "gpu-77", "NVRM: Xid"},
      {"[pod/train-3/trainer] KeyError: 1", -1, "train-3", "KeyError: 1"},
      {"train-3  | KeyError: 1", -1, "train-3", "KeyError: 1"},
      {"train-worker-3 trainer KeyError: 1", -1, "train-worker-3", "KeyError: 1"},
      {"n3: KeyError: 1", -1, "n3", "KeyError: 1"},
      {"10.0.0.3:     x = 1", -1, "10.0.0.3", "    x = 1"},
      {"    | ValueError: bad", -1, "", "ValueError: bad"},
      // what only looks like a prefix stays
      {"gpu-77: 81 C", -1, "", "gpu-77: 81 C"},
      {"multi-node training started", -1, "", "multi-node training started"},
      {"10.0.0.3 joined", -1, "", "10.0.0.3 joined"},
      {"RuntimeError: CUDA error: x", -1, "", "RuntimeError: CUDA error: x"},
      {"mlx5_0: link down", -1, "", "mlx5_0: link down"},
      {"[local_rank 3] x", -1, "", "[local_rank 3] x"},
      {"    raise ValueError(x)", -1, "", "    raise ValueError(x)"},
      {"", -1, "", ""},
  };
  for (const Case& c : cases) {
    const LinePrefix p = split_prefix(c.line);
    EXPECT_EQ(p.rank, c.rank) << c.line;
    EXPECT_EQ(p.node, c.node) << c.line;
    EXPECT_EQ(p.message, c.message) << c.line;
  }
  EXPECT_EQ(split_prefix("[default3]:x").local_rank, 3);
}

// Seconds since the start of the year: 1 January has 0, also without a year (which counts as a leap year).
TEST(LogPrefix, TimesOfManyForms) {
  const Ns second = 1000000000;
  const Ns march_second = Ns{61} * 86400 * second;  // 31 + 29 + 1 days before it
  const auto time = [](const char* line) { return split_prefix(line).time; };
  EXPECT_EQ(time("2024-03-02 00:00:01,500 INFO x").in_year, march_second + second * 3 / 2);
  EXPECT_EQ(time("2024-03-02T00:00:01Z x").in_year, march_second + second);
  EXPECT_EQ(time("[2024-03-02 00:00:01] x").year, 2024);
  EXPECT_EQ(time("2024/03/02 00:00:01 x").in_year, march_second + second);
  EXPECT_EQ(time("E0302 00:00:01.250000 7712 torch/x.py:833] failed").in_year, march_second + second * 5 / 4);
  EXPECT_EQ(time("[E302 00:00:01.25 x.cpp:1] y").in_year, march_second + second * 5 / 4);
  EXPECT_EQ(time("[Sat Mar  2 00:00:01 2024] NVRM: x").in_year, march_second + second);
  EXPECT_EQ(time("Mar  2 00:00:01 node3 kernel: x").year, 0);
  EXPECT_FALSE(time("[ 1843.308145] x").known());
  EXPECT_FALSE(time("2024-13-02 00:00:01 x").known());
}

TEST(LogPrefix, TimesCompareWithoutAYear) {
  const LogTime a{2024, 10}, b{0, 20}, c{2023, 30}, none;
  EXPECT_LT(compare(a, b), 0);  // one does not say its year
  EXPECT_GT(compare(a, c), 0);
  EXPECT_EQ(compare(a, none), 0);
}

}  // namespace
}  // namespace orrery
