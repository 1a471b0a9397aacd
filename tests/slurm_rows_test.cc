// Lists of hosts, and what Slurm's commands print (22.05, recorded), as rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "slurm/host_list.h"
#include "slurm/rows.h"

namespace orrery::slurm {
namespace {

using Names = std::vector<std::string>;

Names expanded(std::string_view list) {
  const auto hosts = expand_hosts(list);
  EXPECT_TRUE(hosts.has_value()) << list << ": " << (hosts ? "" : hosts.error().line());
  return hosts ? *hosts : Names{};
}

TEST(SlurmHostList, Expands) {
  EXPECT_EQ(expanded("node[0-3,7],a1"), (Names{"node0", "node1", "node2", "node3", "node7", "a1"}));
  EXPECT_EQ(expanded("n[08-10]"), (Names{"n08", "n09", "n10"}));
  EXPECT_EQ(expanded("n[8-10]"), (Names{"n8", "n9", "n10"}));
  EXPECT_EQ(expanded("r[1-2]n[1-2]x"), (Names{"r1n1x", "r1n2x", "r2n1x", "r2n2x"}));
  EXPECT_EQ(expanded("gpu-a.b_c:9"), Names{"gpu-a.b_c:9"});
  EXPECT_EQ(expanded("[3-4]"), (Names{"3", "4"}));
  EXPECT_EQ(expanded(""), Names{});
  EXPECT_EQ(expanded("(null)"), Names{});
  EXPECT_EQ(expanded("n[0-65535]").size(), kMostHosts);
}

TEST(SlurmHostList, RefusesWhatIsNone) {
  for (const char* list : {"a,,b",
                           ",",
                           "a[",
                           "a]",
                           "a[1",
                           "a[1]]",
                           "a[[1]]",
                           "a[]",
                           "a[x]",
                           "a[3-1]",
                           "a[-1]",
                           "a[1-]",
                           "a[1,]",
                           "a b",
                           "a;b",
                           "-N1",
                           "a/b",
                           "a[0-65536]",
                           "a[0-300]b[0-300]",
                           "n[0-40000],m[0-40000]",
                           "a[0-99999999999999999999]",
                           "a$b"}) {
    const auto hosts = expand_hosts(list);
    ASSERT_FALSE(hosts.has_value()) << list;
    EXPECT_NE(hosts.error().line().find("as in node[0-3,7],a1"), std::string::npos) << list;
  }
}

TEST(SlurmHostList, Compresses) {
  EXPECT_EQ(compress_hosts({"node3", "node1", "node0", "node2", "node7", "a1", "login"}), "a1,login,node[0-3,7]");
  EXPECT_EQ(compress_hosts({"n10", "n09", "n08"}), "n10,n[08-09]");
  EXPECT_EQ(compress_hosts({"n1", "n01", "n001", "n1"}), "n1,n01,n001");
  EXPECT_EQ(compress_hosts({"r1n1", "r1n2", "r2n1"}), "r1n[1-2],r2n1");
  EXPECT_EQ(compress_hosts({}), "");
}

TEST(SlurmHostList, CompressedItHasTheSameHosts) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    Names hosts;
    for (unsigned i = 0; i < random() % 40; ++i) {
      const std::string number = std::to_string(random() % 30);
      hosts.push_back(std::string(random() % 2 ? "a" : "bb-") + std::string(random() % 3, '0') + number +
                      (random() % 8 ? "" : "x"));
    }
    Names back = expanded(compress_hosts(hosts));
    std::sort(hosts.begin(), hosts.end());
    hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
    std::sort(back.begin(), back.end());
    EXPECT_EQ(back, hosts);
  }
}

TEST(SlurmRows, States) {
  EXPECT_EQ(state_of("CANCELLED by 1000"), State::cancelled);
  EXPECT_EQ(state_of("CANCELLED+"), State::cancelled);
  EXPECT_EQ(state_of("CONFIGURING"), State::running);
  EXPECT_EQ(state_of("REQUEUE_HOLD"), State::pending);
  EXPECT_EQ(state_of("COMPLETELY_NEW"), State::unknown);
  EXPECT_EQ(name_of(State::node_fail), "NODE_FAIL");
  EXPECT_EQ(name_of(State::unknown), "UNKNOWN");
  for (const State s : {State::unknown, State::pending, State::running, State::completing}) EXPECT_FALSE(is_over(s));
  for (const State s : {State::completed, State::timeout, State::deadline}) EXPECT_TRUE(is_over(s));
}

TEST(SlurmRows, Squeue) {
  const auto jobs = read_squeue(
      "1|RUNNING|None|1796077181|1827613181|node[0-1]|we ird|name\n"
      "2|PENDING|BeginTime|1796077301|N/A||orrery\n"
      "3|FAILED|NonZeroExitCode|1796077566|1796077567|node[0-3]|wrap\n"
      "slurm_load_jobs error: something\n"
      "|RUNNING|None|1|2|a|b\n");
  ASSERT_EQ(jobs.size(), 3u);
  EXPECT_EQ(jobs[0].id, JobId{1});
  EXPECT_EQ(jobs[0].state, State::running);
  EXPECT_EQ(jobs[0].nodes, (Names{"node0", "node1"}));
  EXPECT_EQ(jobs[0].name, "we ird|name");
  EXPECT_EQ(jobs[0].reason, "");
  EXPECT_EQ(jobs[0].start_s, 1796077181);
  EXPECT_EQ(jobs[0].end_s, 0) << "it has not ended";
  EXPECT_EQ(jobs[1].reason, "BeginTime");
  EXPECT_EQ(jobs[1].nodes, Names{});
  EXPECT_EQ(jobs[2].end_s, 1796077567);
}

TEST(SlurmRows, SacctOfSeveralAttemptsTakesTheLast) {
  const auto jobs = read_sacct(
      "7|NODE_FAIL|0:0|1796077181|1796077200|node[0-3]|tok\n"
      "7|CANCELLED by 0|0:15|1796077210|1796077220|node[0-2,4]|tok\n"
      "8|OUT_OF_MEMORY|0:125|1796077210|1796077220|node1|other|name\n");
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].state, State::cancelled);
  EXPECT_EQ(jobs[0].state_text, "CANCELLED");
  EXPECT_EQ(jobs[0].restarts, 1);
  EXPECT_EQ(jobs[0].signal, 15);
  EXPECT_EQ(jobs[0].nodes, (Names{"node0", "node1", "node2", "node4"}));
  EXPECT_EQ(jobs[1].name, "other|name");
  EXPECT_EQ(jobs[1].restarts, 0);
}

constexpr const char* kShowJob =
    "JobId=12 JobName=a   JobState=FAILED\n"
    "   UserId=root(0) GroupId=root(0) MCS_label=N/A\n"
    "   Priority=4294901759 Nice=0 Account=(null) QOS=(null)\n"
    "   JobState=RUNNING Reason=None Dependency=(null)\n"
    "   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:11\n"
    "   SubmitTime=1796077181 EligibleTime=1796077181\n"
    "   StartTime=1796077185 EndTime=1827613181 Deadline=N/A\n"
    "   PreemptEligibleTime=1796077185 PreemptTime=1796077300\n"
    "   ReqNodeList=(null) ExcNodeList=node7\n"
    "   NodeList=node[0-1]\n"
    "   BatchHost=node0\n"
    "   Comment=Requeue=1 Restarts=9 JobState=FAILED\n";

TEST(SlurmRows, ShowJob) {
  Job j;
  read_job_details(kShowJob, j);
  EXPECT_EQ(j.id, JobId{12});
  EXPECT_EQ(j.state, State::running) << "not what the name says";
  EXPECT_EQ(j.restarts, 2);
  EXPECT_EQ(j.signal, 11);
  EXPECT_EQ(j.exit_status, 0);
  EXPECT_EQ(j.start_s, 1796077185);
  EXPECT_EQ(j.end_s, 0);
  EXPECT_EQ(j.limit_s, 1827613181);
  EXPECT_EQ(j.preempted_s, 1796077300);
  read_job_details("JobId=12\n   PreemptEligibleTime=1796077185 PreemptTime=None\n", j);
  EXPECT_EQ(j.preempted_s, 0);
  EXPECT_EQ(j.nodes, (Names{"node0", "node1"}));
}

TEST(SlurmRows, Nodes) {
  const auto nodes = read_nodes(
      "NodeName=node0 Arch=x86_64 CoresPerSocket=8 \n"
      "   CPUAlloc=1 CPUEfctv=8 CPUTot=8 CPULoad=2.48\n"
      "   NodeAddr=127.0.0.1 NodeHostName=h Port=17401 Version=22.05.8\n"
      "   State=MIXED+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
      "   Partitions=train,eval \n"
      "   Reason=orrery: rank 3 | Xid 79 [x] [root@1796077182]\n"
      "\n"
      "NodeName=node1 CoresPerSocket=8 \n"
      "   NodeAddr=10.1.2.3 NodeHostName=h\n"
      "   State=DOWN*+CLOUD ThreadsPerCore=1\n"
      "   Reason=Not responding [slurm@1796077182]\n"
      "NodeName=node2\n   State=IDLE ThreadsPerCore=1\n"
      "NodeName=node3\n   State=ALLOCATED+COMPLETING+NOT_RESPONDING ThreadsPerCore=1\n");
  ASSERT_EQ(nodes.size(), 4u);
  EXPECT_EQ(nodes[0].state, "mixed");
  EXPECT_TRUE(nodes[0].drained);
  EXPECT_FALSE(nodes[0].usable());
  EXPECT_EQ(nodes[0].reason, "orrery: rank 3 | Xid 79 [x]");
  EXPECT_EQ(nodes[0].port, 17401);
  EXPECT_EQ(nodes[0].partitions, (Names{"train", "eval"}));
  EXPECT_EQ(nodes[1].state, "down");
  EXPECT_FALSE(nodes[1].responding);
  EXPECT_EQ(nodes[1].address, "10.1.2.3");
  EXPECT_EQ(nodes[1].port, 6818) << "Slurm's own";
  EXPECT_TRUE(nodes[2].usable());
  EXPECT_EQ(nodes[2].reason, "");
  EXPECT_EQ(nodes[3].state, "allocated");
  EXPECT_TRUE(nodes[3].completing);
  EXPECT_FALSE(nodes[3].usable());
}

TEST(SlurmRows, Steps) {
  const auto steps = read_steps("1.0|node[0-1]|sleep|x\n1.batch|node0|batch\n");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].id, "1.0");
  EXPECT_EQ(steps[0].name, "sleep|x");
  EXPECT_EQ(steps[1].nodes, Names{"node0"});
}

}  // namespace
}  // namespace orrery::slurm
