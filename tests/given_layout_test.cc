// What is said of a job by hand, and what becomes of it.
#include "whatif/given_layout.h"

#include <gtest/gtest.h>

namespace orrery {
namespace {

std::string refused(std::string_view text) {
  const auto given = parse_layout(text);
  return given ? "" : given.error().line();
}

TEST(GivenLayout, ReadsEveryKey) {
  const auto g = parse_layout(
      "tp=2,pp=4,dp=8,layers=48,num-microbatches=16,schedule=interleaved:3,gpus-per-node=4,hidden=6144,ffn=16384,"
      "heads=48,kv-heads=8,head-dim=128,seq-length=4096,micro-batch-size=2,vocab=50257,sequence-parallel=on,"
      "recompute=full,distributed-optimizer=off");
  ASSERT_TRUE(g.has_value()) << g.error().line();
  EXPECT_EQ(g->tp, 2);
  EXPECT_EQ(g->pp, 4);
  EXPECT_EQ(g->dp, 8);
  EXPECT_EQ(g->layers, 48);
  EXPECT_EQ(g->num_microbatches, 16);
  EXPECT_EQ(g->schedule, ScheduleKind::interleaved);
  EXPECT_EQ(g->chunks, 3);
  EXPECT_EQ(g->gpus_per_node, 4);
  EXPECT_EQ(g->dims.hidden, 6144);
  EXPECT_EQ(g->dims.ffn, 16384);
  EXPECT_EQ(g->dims.heads, 48);
  EXPECT_EQ(g->dims.kv_heads, 8);
  EXPECT_EQ(g->dims.head_dim, 128);
  EXPECT_EQ(g->dims.seq, 4096);
  EXPECT_EQ(g->dims.mbs, 2);
  EXPECT_EQ(g->dims.vocab, 50257);
  EXPECT_EQ(g->sequence_parallel, true);
  EXPECT_EQ(g->recompute, "full");
  EXPECT_EQ(g->distributed_optimizer, false);
  EXPECT_FALSE(g->empty());
  EXPECT_TRUE(GivenLayout{}.empty());
}

TEST(GivenLayout, ShortNames) {
  const auto g = parse_layout("seq=1024,microbatches=3,schedule=1f1b");
  ASSERT_TRUE(g.has_value());
  EXPECT_EQ(g->dims.seq, 1024);
  EXPECT_EQ(g->num_microbatches, 3);
  EXPECT_EQ(g->chunks, 1);
  EXPECT_FALSE(g->tp.has_value());
}

TEST(GivenLayout, Refusals) {
  EXPECT_NE(refused("colour=3").find("there are tp, pp, dp"), std::string::npos);
  for (const char* text :
       {"", "tp", "=2", "tp=", "tp=0", "tp=-2", "tp=2.5", "tp=two", "tp=99999999999999999999", "tp=2000000000", "tp=2,",
        ",tp=2", "tp=2,,pp=2", "schedule=zero-bubble", "schedule=interleaved:0",
        "schedule=interleaved:", "recompute=some", "sequence-parallel=yes"})
    EXPECT_NE(refused(text), "") << text;
  EXPECT_NE(refused("tp=2,pp=2,tp=4").find("twice"), std::string::npos);
  EXPECT_NE(refused("seq=2,seq-length=2").find("twice"), std::string::npos);  // one key by two names
}

JobLayout told() {  // 2 x 2 x 2, of which the degrees of tensor and data parallelism are inferred
  JobLayout l;
  l.world = 8;
  l.tp = l.pp = l.dp = 2;
  l.doubts = {"GPUs of a server: taken as 8", "tensor parallel 2: the neighbours that call each other most",
              "data parallel 2: what is left of the ranks"};
  l.confidence = 0.7;
  return l;
}

Status said(const char* text, JobLayout& l) { return apply(*parse_layout(text), l); }

TEST(GivenLayout, WhatIsSaidWinsOverWhatIsInferred) {
  JobLayout l = told();
  ASSERT_TRUE(said("tp=4,dp=1,gpus-per-node=4,num-microbatches=6", l).has_value());
  EXPECT_EQ(l.tp, 4);
  EXPECT_EQ(l.dp, 1);
  EXPECT_EQ(l.gpus_per_node, 4);
  EXPECT_EQ(l.num_microbatches, 6);
  EXPECT_TRUE(l.doubts.empty());
  EXPECT_EQ(l.confidence, 1);
}

TEST(GivenLayout, TheSameTakesTheDoubtAway) {
  JobLayout l = told();
  ASSERT_TRUE(said("tp=2", l).has_value());
  EXPECT_EQ(l.doubts.size(), 2u);
}

TEST(GivenLayout, ContradictsWhatIsSure) {
  JobLayout l = told();
  const Status pipeline = said("pp=4,dp=1", l);  // the peers of sends are no inference
  ASSERT_FALSE(pipeline.has_value());
  EXPECT_NE(pipeline.error().what.find("--layout says pp=4, the traces 2"), std::string::npos);
  const Status world = said("tp=4", l);  // 4 * 2 * 2
  ASSERT_FALSE(world.has_value());
  EXPECT_NE(world.error().what.find("8 ranks"), std::string::npos);
  EXPECT_FALSE(said("tp=1000000000,pp=1000000000,dp=1000000000", l).has_value());  // overflows nothing
}

}  // namespace
}  // namespace orrery
