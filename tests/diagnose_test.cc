// The causal order: what is the cause and what follows from it; and what is no failure at all.
#include "rules/diagnose.h"

#include <gtest/gtest.h>

#include "log_helpers.h"

namespace orrery::test {
namespace {

std::string timeout(int rank, int work = 40, const std::string& time = "02:07:08") {
  const std::string r = std::to_string(rank);
  return "[rank" + r + "]:[E0321 " + time + ".1 ProcessGroupNCCL.cpp:607] [Rank " + r +
         "] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=" + std::to_string(work) +
         ", OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n";
}
std::string steps(int from, int to) {
  std::string s;
  for (int i = from; i < to; ++i) s += "step " + std::to_string(i) + " loss 2.1\n";
  return s;
}
const char* kOom = "[rank7]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.12 GiB.\n";
const char* kTeardown =
    "srun: error: node3: task 7: Exited with exit code 1\nSending process 12 closing signal SIGTERM\n";

void expect(const Diagnosis& d, const std::string& reason, const std::string& restart, std::uint64_t line) {
  EXPECT_EQ(d.reason, reason);
  EXPECT_EQ(d.restart, restart);
  ASSERT_FALSE(d.evidence.empty());
  EXPECT_EQ(d.evidence[0].line, line);
}

TEST(Diagnose, TimeoutsOfManyRanksEchoTheOneThatRanOutOfMemory) {
  std::string echoes;
  for (int r = 0; r < 511; ++r) echoes += timeout(r + 8);
  const Diagnosis d = diagnose_text(kOom + echoes + kTeardown);
  expect(d, "Out of Memory Error", "no", 1);
  EXPECT_EQ(d.where, "rank7");
  // ... also where its words come last
  expect(diagnose_text(echoes + kOom + kTeardown), "Out of Memory Error", "no", 512);
}

// The same traceback as collectors hand it on.
TEST(Diagnose, ATracebackBehindAnyCollectorsPrefix) {
  const std::vector<std::string> lines = {"Traceback (most recent call last):", "  File \"/w/t.py\", line 3, in main",
                                          "    raise ValueError(n)", "ValueError: bad"};
  for (const char* lead : {"", "2025-01-01T00:00:00.000000000Z stderr F ", "Jan 01 00:00:00 n3 python3[991]: ",
                           "2025-01-01T00:00:00+0000 n3 train[9]: ", "[pod/train-3/trainer] ", "train-3  | ",
                           "trainer-0 ", "train-worker-3 trainer ", "n3: ", "10.0.0.3: ", "  | "}) {
    std::string log;
    for (const std::string& l : lines) log += lead + l + "\n";
    const Diagnosis d = diagnose_text(log);
    SCOPED_TRACE(lead);
    expect(d, "Value Error", "no", 4);
    EXPECT_EQ(d.category, "Script");
    EXPECT_EQ(d.root_cause, "ValueError: bad");
  }
}

TEST(Diagnose, ATracebackInRecords) {
  const std::string docker =
      "{\"log\":\"Traceback (most recent call last):\\n\",\"stream\":\"stderr\",\"time\":\"2025-01-01T00:00:00Z\"}\n"
      "{\"log\":\"  File \\\"/w/t.py\\\", line 3, in main\\n\",\"stream\":\"stderr\"}\n"
      "{\"log\":\"ValueError: bad\\n\",\"stream\":\"stderr\"}\n";
  expect(diagnose_text(docker), "Value Error", "no", 3);
  for (const char* key : {"message", "msg"}) {
    const std::string logger = "{\"level\":\"error\",\"" + std::string(key) +
                               "\":\"Traceback (most recent call last):\\n  File "
                               "\\\"/w/t.py\\\", line 3, in main\\nValueError: bad\",\"rank\":5}\n";
    const Diagnosis d = diagnose_text("{\"msg\":\"started\"}\n" + logger);
    expect(d, "Value Error", "no", 2);
    EXPECT_EQ(d.root_cause, "ValueError: bad");
    EXPECT_EQ(d.where, "rank5");
  }
  EXPECT_EQ(read_text_log("{\"msg\":\"x\",\"step\":4,\"loss\":2.5}\n").files[0].steps, 1u);
}

TEST(Diagnose, HyperlinksOfATerminalAreLeftOut) {
  expect(diagnose_text("  File \"a.py\", line 3, in f\n\x1b]8;;http://x\aKeyError\x1b]8;;\x1b\\: 'x'\n"), "Key Error",
         "no", 2);
}

TEST(Diagnose, NoEvidenceIsNoHealth) {
  for (const char* text : {"foo\n", "", "loading config\nlistening on port 80\n"})
    EXPECT_EQ(diagnose_text(text).verdict, Verdict::unknown) << text;
  EXPECT_EQ(diagnose_text(std::string(200, '\0')).verdict, Verdict::unknown);
  EXPECT_EQ(diagnose_text("step 1 loss 2.1\n").verdict, Verdict::healthy);
  EXPECT_EQ(diagnose_text("Training completed successfully\n").verdict, Verdict::healthy);
}

TEST(Diagnose, ALineOfSuccessOutweighsWhatWasSurvived) {
  const std::string end = "step 9 loss 2\nTraining complete.\n";
  for (const char* scary : {"kernel: Out of memory: Killed process 991 (tensorboard) total-vm:100kB\n",
                            "kernel: NVRM: Xid (PCI:0000:3b:00): 13, pid=8801, name=other_job, Graphics Exception\n",
                            "sbatch: time limit is 2-00:00:00; will be CANCELLED DUE TO TIME LIMIT at that time\n"}) {
    EXPECT_EQ(diagnose_text(steps(0, 4) + scary + end).verdict, Verdict::healthy) << scary;
    EXPECT_NE(diagnose_text(steps(0, 4) + scary).verdict, Verdict::healthy) << scary;
  }
  EXPECT_EQ(diagnose_text(steps(0, 4) + end + "Sending process 12 closing signal SIGTERM\n").verdict, Verdict::healthy);
  // what fails after it, fails; and another rank's success is not this one's
  EXPECT_EQ(diagnose_text(end + "ValueError: bad metric\n").reason, "Value Error");
  EXPECT_EQ(diagnose_text("[rank3]: ValueError: x\n[rank0]: step 9 loss 2\n[rank0]: Training complete.\n").reason,
            "Value Error");
}

TEST(Diagnose, WordsOfRuntimesAndSchedulers) {
  const auto is = [](const std::string& text, const char* reason) {
    EXPECT_EQ(diagnose_text(steps(0, 2) + text + "\n").reason, reason) << text;
  };
  is("[rank3]:[W TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=89): failed to recv, got 0 bytes",
     "Connection Error");
  is("OCI runtime create failed: nvidia-container-cli: initialization error: nvml error: driver not loaded",
     "Node Failure");
  is("Warning  DeadlineExceeded  1s  job-controller  Job was active longer than specified deadline", "Time Limit");
  is("Warning  Preempted  12s  default-scheduler  Preempted by pod ns/a-0 on node n1\ncommand terminated with exit "
     "code "
     "137",
     "Preemption");
  is("panic: runtime error: index out of range", "Runtime Error");
  const std::string flush =
      "n4:10:99 [2] NCCL WARN NET/IB: Got completion from peer 10.1.1.8<5511> with status=5 opcode=129 len=0 vendor "
      "err "
      "244\n";
  const Diagnosis d = diagnose_text(flush + "[rank20]: RuntimeError: NCCL communicator: ncclRemoteError\n");
  EXPECT_EQ(d.reason, "Network Error");
  EXPECT_EQ(d.where, "10.1.1.8");
}

// Steps of 5 s, then nothing but heartbeats for hours.
TEST(Diagnose, NoMoreStepsWhileOtherLinesGoOn) {
  std::string log;
  for (int i = 0; i < 10; ++i)
    log += "[2025-01-01 10:00:" + std::to_string(10 + 5 * i) + "] step " + std::to_string(i) + " loss 2.5\n";
  EXPECT_EQ(diagnose_text(log).verdict, Verdict::healthy);
  std::string beats;
  for (int m = 10; m < 60; ++m) beats += "[2025-01-01 12:" + std::to_string(m) + ":00] monitor: 140 W\n";
  const Diagnosis d = diagnose_text(log + beats);
  EXPECT_EQ(d.reason, "NCCL Timeout Error");
  EXPECT_EQ(d.evidence.at(0).line, 10u);
  EXPECT_EQ(diagnose_text(log + "Training complete.\n" + beats).verdict, Verdict::healthy);
}

TEST(Diagnose, TimeoutsAloneAreTheCauseAndNobodysFault) {
  const Diagnosis d = diagnose_text(timeout(0) + timeout(1) + timeout(2) + kTeardown);
  expect(d, "NCCL Timeout Error", "auto", 1);
  EXPECT_EQ(d.where, "-");
}

// Rank 2 had been given the same work as the others (last enqueued 40) and is still at an earlier one.
TEST(Diagnose, OneRankBehindTheOthersIsAGpuThatStopped) {
  const auto at = [](int rank, int work) {
    const std::string r = std::to_string(rank);
    return "[rank" + r + "]:[E x.cpp:1] [PG 3 Rank " + r + "] Timeout at NCCL work: " + std::to_string(work) +
           ", last enqueued NCCL work: 40, last completed NCCL work: " + std::to_string(work - 1) + ".\n";
  };
  const Diagnosis d = diagnose_text(at(0, 40) + at(1, 40) + at(2, 31) + at(3, 40));
  expect(d, "CUDA Error", "auto-exclude", 3);
  EXPECT_EQ(d.where, "rank2");
}

TEST(Diagnose, TheFirstOfLinkTroubleAndHungWatchdogWins) {
  const std::string link =
      "node5:771:990 [1] x.cc:1 NCCL WARN NET/IB: Got completion from peer 10.1.2.19<51012> with status=12 "
      "opcode=129\n";
  const std::string hung =
      "[rank17]:[F x.cpp:1] [PG 2 Rank 17] ProcessGroupNCCL's watchdog got stuck for 480 seconds\n";
  expect(diagnose_text(hung + link), "NCCL Timeout Error", "auto", 1);
  const Diagnosis d = diagnose_text(link + hung);
  expect(d, "Network Error", "auto-exclude", 1);
  EXPECT_EQ(d.where, "10.1.2.19");
}

TEST(Diagnose, AMachinesFaultExplainsWhatTheProgramSaw) {
  const std::string xid = "[node03 kmsg] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus.\n";
  const Diagnosis d =
      diagnose_text("[rank1]: RuntimeError: CUDA error: unspecified launch failure\n" + timeout(0) + xid);
  expect(d, "CUDA Error", "auto-exclude", 3);
  EXPECT_EQ(d.where, "node03");
}

TEST(Diagnose, WhatTrainingSurvivedIsNotWhatKilledIt) {
  const std::string reset = "[rank3]: ConnectionResetError: [Errno 104] Connection reset by peer\n";
  EXPECT_EQ(diagnose_text(steps(0, 10) + reset + steps(10, 30)).verdict, Verdict::healthy);
  const Diagnosis d = diagnose_text(steps(0, 10) + reset + steps(10, 30) + "[rank1]: KeyError: 'a'\n" + kTeardown);
  expect(d, "Key Error", "no", 32);
}

TEST(Diagnose, NegatedWordsAreNoFailure) {
  for (const char* line :
       {"INFO health check on node3: no Xid errors, 0 failed checks, NVLink ok\n", "uncorrectable ECC errors: 0\n",
        "job ended without CUDA out of memory\n", "[metrics] nccl_timeouts=0 ecc_uncorrected=0\n",
        "INFO:hypercorn.error:Running on http://0.0.0.0:51470\n", "0: INFO:workload:error budget 0 of 10 used\n",
        "mlx5_3:1 Got non-fatal async event: port error(10)\n"})
    EXPECT_EQ(diagnose_text(steps(0, 5) + line).verdict, Verdict::healthy) << line;
}

TEST(Diagnose, LossScaleSkipsAndInformationalXidsAreNoFailure) {
  EXPECT_EQ(diagnose_text(steps(0, 4) +
                          "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to "
                          "32768\nNVRM: Xid (PCI:0000:10:1c): 63, pid=1, Row Remapper: New row marked\n")
                .verdict,
            Verdict::healthy);
}

TEST(Diagnose, Interruptions) {
  const auto of = [](const std::string& due) {
    return diagnose_text(
        steps(0, 9) + "slurmstepd: error: *** JOB 9 ON node9 CANCELLED AT 2026-08-30T10:11:40 DUE TO " + due +
        " ***\n[rank0]: RuntimeError: DataLoader worker (pid 3) is killed by signal: Terminated.\n" + timeout(1));
  };
  for (const auto& [due, reason] :
       {std::pair{"TIME LIMIT", "Time Limit"}, {"PREEMPTION", "Preemption"}, {"JOB REQUEUE", "Requeue"}}) {
    const Diagnosis d = of(due);
    EXPECT_EQ(d.verdict, Verdict::interrupted) << due;
    EXPECT_EQ(d.reason, reason);
    EXPECT_EQ(d.category, "None");
    EXPECT_EQ(d.restart, "auto");
  }
  EXPECT_EQ(of("NODE FAILURE").reason, "Node Failure");
  EXPECT_EQ(of("NODE FAILURE").verdict, Verdict::failed);
}

TEST(Diagnose, EndedWithoutAReasonIsUnknown) {
  EXPECT_EQ(diagnose_text(steps(0, 9) + kTeardown).verdict, Verdict::unknown);
  EXPECT_EQ(diagnose_text("").verdict, Verdict::unknown);
  EXPECT_EQ(diagnose_text(steps(0, 9)).verdict, Verdict::healthy);
}

TEST(Diagnose, WhoRaisedAnExceptionDecidesItsCategory) {
  const auto of = [](const std::string& file, const std::string& code, const std::string& error) {
    return diagnose_text("Traceback (most recent call last):\n  File \"" + file + "\", line 3, in f\n    " + code +
                         "\n" + error + "\n");
  };
  EXPECT_EQ(of("/d/train.py", "raise ValueError(x)", "ValueError: x").category, "Script");
  EXPECT_EQ(of("/d/lib/python3.10/site-packages/torch/a.py", "raise ValueError(x)", "ValueError: x").category,
            "Framework");
  EXPECT_EQ(of("/d/train.py", "assert a == b", "AssertionError").category, "Script");
  EXPECT_EQ(of("/d/train.py", "torch.dot(a, b)", "RuntimeError: x").category, "Framework");
  EXPECT_EQ(of("/d/train.py", "raise RuntimeError(x)", "RuntimeError: x").category, "Script");
}

TEST(Diagnose, InnerExceptionsAndWhatReadsCheckpoints) {
  EXPECT_EQ(diagnose_text("a.b.WrapperError: FileNotFoundError: [Errno 2] No such file or directory: 'x'\n").reason,
            "File Not Found Error");
  const Diagnosis d = diagnose_text(
      "Traceback (most recent call last):\n  File \"/d/a.py\", line 3, in load_checkpoint\n"
      "    it = state['iteration']\nKeyError: 'iteration'\n");
  EXPECT_EQ(d.reason, "Model Loading Error");
}

TEST(Diagnose, ExceptionsThatPythonIgnoresEndedNothing) {
  EXPECT_EQ(
      diagnose_text(steps(0, 5) +
                    "Exception ignored in: <function Iter.__del__ at 0x1>\nTraceback (most recent call last):\n"
                    "  File \"/d/a.py\", line 3, in __del__\n    self.x\nAttributeError: 'NoneType' object has no "
                    "attribute 'x'\n")
          .verdict,
      Verdict::healthy);
}

TEST(Diagnose, AnotherTracebackAfterAnIgnoredExceptionCounts) {
  EXPECT_EQ(diagnose_text("Exception ignored in: <function Iter.__del__ at 0x1>\nTraceback (most recent call last):\n"
                          "  File \"/d/a.py\", line 3, in forward\n    self.x\nAttributeError: x\n")
                .reason,
            "Attribute Error");
}

TEST(Diagnose, PreprocessingOnOneRankWhileTheOthersWait) {
  const Diagnosis d =
      diagnose_text("Running tokenizer on dataset:   9%|###  | 280000/2969526 [29:55<4:48:08, 155.57 ex/s]\n" +
                    timeout(1) + timeout(2));
  expect(d, "Runtime Error", "no", 1);
  EXPECT_EQ(d.category, "Script");
  EXPECT_EQ(d.where, "rank0");
  EXPECT_EQ(diagnose_text("Running tokenizer on dataset:  90%|###  | 2800/2969 [29:55<4:48:08, 155.57 ex/s]\n").verdict,
            Verdict::healthy);
}

TEST(Diagnose, SilentTrouble) {
  const auto took = [](std::initializer_list<double> seconds) {
    std::string s;
    int i = 0;
    for (const double x : seconds)
      s += "step " + std::to_string(++i) + " loss 2.1 step_time: " + std::to_string(x) + "\n";
    return diagnose_text(s);
  };
  EXPECT_EQ(took({10, 10.1, 10, 10, 12.5, 12.6, 12.4}).reason, "Straggler");
  EXPECT_EQ(took({10, 10.1, 10, 10, 12.5, 10, 10}).verdict, Verdict::healthy);   // one slow step
  EXPECT_EQ(took({10, 13, 9, 12, 12.5, 12.6, 12.4}).verdict, Verdict::healthy);  // they always vary so
  const auto losses = [](const std::string& tail) {
    std::string s;
    for (int i = 0; i < 40; ++i) s += "{'loss': 2.1" + std::to_string(i % 7) + "}\n";
    return diagnose_text(s + tail);
  };
  const Diagnosis nan = losses("{'loss': nan}\n{'loss': nan}\n");
  EXPECT_EQ(nan.restart, "auto-rollback");
  EXPECT_EQ(nan.evidence.at(0).line, 41u);
  EXPECT_EQ(losses("{'loss': nan}\n{'loss': 2.11}\n").verdict, Verdict::healthy);
  std::string high;
  for (int i = 0; i < 12; ++i) high += "{'loss': 6." + std::to_string(i) + "}\n";
  EXPECT_EQ(losses(high).restart, "auto-rollback");
  EXPECT_EQ(losses(high + "{'loss': 2.12}\n").verdict, Verdict::healthy);  // a spike that recovers
}

TEST(Diagnose, NoMoreStepsWhileTheLogGoesOn) {
  std::string s;
  for (int i = 0; i < 20; ++i)
    s += "[2024-05-14 03:00:" + std::to_string(10 + i) + "] iteration " + std::to_string(i) +
         "/ 100 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.1E+00 |\n";
  const std::string later = "[2024-05-14 04:00:00] wandb: Network error (ReadTimeout), entering retry loop.\n";
  const Diagnosis d = diagnose_text(s + "[2024-05-14 04:00:00] WARNING SIGTERM ignored\n" + later);
  EXPECT_EQ(d.reason, "NCCL Timeout Error");
  EXPECT_EQ(d.evidence.at(0).line, 20u);
}

// One job in several files: by their times, the first cause of all of them.
TEST(Diagnose, FilesOfOneJobAreReadTogether) {
  LogTable job;
  append_log(job, read_text_log(timeout(0, 40, "02:17:08"), {}, "rank-0.log"));
  append_log(job, read_text_log("[rank1]:[E0321 02:07:00.1 x.py:3] KeyError: 'a'\n", {}, "rank-1.log"));
  append_log(job, read_text_log("W0321 02:07:05.1 x.py:3] ConnectionResetError: [Errno 104] Connection reset by peer\n",
                                {}, "rank-2.log"));
  const Diagnosis d = diagnose(job, built_in_matcher());
  EXPECT_EQ(d.reason, "Key Error");
  EXPECT_EQ(d.evidence.at(0).file, 1u);
  EXPECT_EQ(d.where, "rank1");
  EXPECT_GE(d.symptoms.size(), 2u);
}

// The order of evidence from different files does not matter.
TEST(Diagnose, RootDoesNotDependOnTheOrderOfFiles) {
  const std::string a = "[rank1]:[E0321 02:07:00.1 x.py:3] KeyError: 'a'\n", b = timeout(0, 40, "02:17:08"),
                    c = "[rank2]:[E0321 02:07:05.1 x.py:3] ncclRemoteError: A call failed\n";
  for (const auto& order : {std::vector{a, b, c}, {c, b, a}, {b, a, c}, {b, c, a}}) {
    LogTable job;
    for (const std::string& text : order) append_log(job, read_text_log(text));
    EXPECT_EQ(diagnose(job, built_in_matcher()).reason, "Key Error");
  }
}

TEST(Diagnose, WhatAHealthyRunSaidAsWellIsNotTheCause) {
  const LogTable t = read_text_log("[rank0]: KeyError: 'optional'\n" + std::string(kTeardown));
  KnownShapes known;
  EXPECT_EQ(diagnose(t, built_in_matcher(), known).reason, "Key Error");
  for (const auto& [shape, text] : taught_shapes(read_text_log("[rank0]: KeyError: 'optional'\n" + steps(0, 9)), true))
    known.insert(shape);
  EXPECT_EQ(diagnose(t, built_in_matcher(), known).verdict, Verdict::unknown);
}

}  // namespace
}  // namespace orrery::test
