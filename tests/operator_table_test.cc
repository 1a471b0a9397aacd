// The table of measured operators: written, read again, refused with its line.
#include "costs/operator_table.h"

#include <gtest/gtest.h>

#include "costs/cost_table.h"
#include "facts/library.h"
#include "operators/machine.h"

namespace orrery {
namespace {

OperatorTable made_table() {
  OperatorTable t;
  t.machine = "A \"CPU\", made";
  OperatorRow r;
  r.size = {2, 3, 5, 7};
  r.flops = 420, r.bytes = 552, r.ns = 1'234.5, r.least_ns = 1'200, r.spread = 0.015, r.repetitions = 50, r.threads = 2;
  r.library = "own";
  t.rows.push_back(r);
  r.kind = OperatorKind::attention, r.way = AttentionWay::tiled, r.causal = true, r.size = {1, 64, 64, 32};
  t.rows.push_back(r);
  r = {};
  r.kind = OperatorKind::all_reduce, r.size[0] = 1024, r.bytes = 4096, r.ns = 9'000, r.ranks = 4, r.noisy = true;
  t.rows.push_back(r);
  r = {};
  r.kind = OperatorKind::peak, r.flops = 1e6, r.ns = 1e4, r.least_ns = 0.5e4;
  t.rows.push_back(r);
  r.kind = OperatorKind::stream, r.bytes = 3e6, r.flops = 0, r.size[0] = 250'000, r.ns = 1e5, r.least_ns = 0;
  t.rows.push_back(r);
  return t;
}

TEST(OperatorTable, IsReadAsItWasWritten) {
  const OperatorTable t = made_table();
  const std::string text = write_operator_table(t);
  EXPECT_TRUE(looks_like_operator_table(text));
  const auto read = parse_operator_table(text, "t.csv");
  ASSERT_TRUE(read) << read.error().line();
  ASSERT_EQ(read->rows.size(), t.rows.size());
  EXPECT_EQ(read->machine, t.machine);
  for (std::size_t i = 0; i < t.rows.size(); ++i) {
    const OperatorRow &a = t.rows[i], &b = read->rows[i];
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(a.way, b.way);
    EXPECT_EQ(a.causal, b.causal);
    EXPECT_EQ(a.size, b.size);
    EXPECT_EQ(a.precision, b.precision);
    EXPECT_EQ(a.ranks, b.ranks);
    EXPECT_EQ(a.threads, b.threads);
    EXPECT_EQ(a.noisy, b.noisy);
    EXPECT_EQ(a.library, b.library);
    EXPECT_NEAR(a.ns, b.ns, 1e-5 * a.ns);
    EXPECT_NEAR(a.spread, b.spread, 1e-6);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(a.flops, b.flops);
    EXPECT_EQ(b.line, i + 2);
  }
  EXPECT_EQ(write_operator_table(*read), text);
}

TEST(OperatorTable, IsACostTableAsWell) {
  const auto costs = parse_cost_table(write_operator_table(made_table()), "t.csv");
  ASSERT_TRUE(costs) << costs.error().line();
  const CostRow* row = costs->lookup("gemm-fp32", "2x3x5x7");
  ASSERT_NE(row, nullptr);
  EXPECT_NEAR(row->ns, 1'234.5, 0.01);
}

TEST(OperatorTable, FloorsAreTheQuickestBatch) {
  const OperatorTable t = made_table();
  EXPECT_DOUBLE_EQ(t.best_flop_per_ns(OperatorKind::peak, Precision::fp32), 200);
  EXPECT_DOUBLE_EQ(t.best_bytes_per_ns(OperatorKind::stream), 30);
  EXPECT_EQ(t.best_flop_per_ns(OperatorKind::peak, Precision::bf16), 0);
}

TEST(OperatorTable, JsonOfTheCommand) {
  const std::string text = R"({"orrery": "0.1.0", "command": "bench ops", "operators": [
    {"operator": "gemm", "shape": "8x8x8", "dtype": "bf16", "time_us": 2.5, "noisy": false, "ranks": 1, "way": null},
    {"operator": "copy", "shape": "4096", "dtype": "fp32", "time_us": 1}]})";
  EXPECT_TRUE(looks_like_operator_table(text));
  const auto t = parse_operator_table(text, "t.json");
  ASSERT_TRUE(t) << t.error().line();
  ASSERT_EQ(t->rows.size(), 2u);
  EXPECT_EQ(t->rows[0].precision, Precision::bf16);
  EXPECT_DOUBLE_EQ(t->rows[0].ns, 2'500);
  EXPECT_EQ(t->rows[1].size[0], 4'096);
}

struct Refused {
  const char *text, *says;
};
class OperatorTableErrors : public ::testing::TestWithParam<Refused> {};
TEST_P(OperatorTableErrors, NameTheLine) {
  const auto t = parse_operator_table(GetParam().text, "t");
  ASSERT_FALSE(t);
  EXPECT_NE(t.error().line().find(GetParam().says), std::string::npos) << t.error().line();
  EXPECT_EQ(t.error().line().find('\n'), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(
    All, OperatorTableErrors,
    ::testing::Values(Refused{"", "no operators in it"}, Refused{"{", "not a table of operators"},
                      Refused{"operator,shape,dtype,time_us\n", "no operators in it"},
                      Refused{"operator,shape,time_us\n", "line 1: no column dtype"},
                      Refused{"operator,shape,dtype,time_us\ngemm,8x8x8,fp32\n", "line 2: 3 fields, the header has 4"},
                      Refused{"operator,shape,dtype,time_us\nfft,8,fp32,1\n", "line 2: 'fft' is not an operator"},
                      Refused{"operator,shape,dtype,time_us\ngemm,8x8,fp32,1\n", "line 2: '8x8' is not a shape"},
                      Refused{"operator,shape,dtype,time_us\ncopy,8x8x8,fp32,1\n", "'8x8x8' is not a shape"},
                      Refused{"operator,shape,dtype,time_us\ngemm,8x0x8,fp32,1\n", "'8x0x8' is not a shape"},
                      Refused{"operator,shape,dtype,time_us\ngemm,8x8x8,fp12,1\n", "'fp12' is not a precision"},
                      Refused{"operator,shape,dtype,time_us\ngemm,8x8x8,fp32,0\n", "'0' is not a time"},
                      Refused{"operator,shape,dtype,time_us\ngemm,8x8x8,fp32,nan\n", "'nan' is not a time"},
                      Refused{"operator,shape,dtype,time_us,ranks\ngemm,8x8x8,fp32,1,-2\n",
                              "'-2' is not a number of ranks"},
                      Refused{"operator,shape,dtype,time_us,device\ngemm,8x8x8,fp32,1,tpu\n", "'tpu' is not a device"},
                      Refused{"operator,shape,dtype,time_us,device\ngemm,8x8x8,fp32,1,cpu\ngemm,9x9x9,fp32,1,cuda\n",
                              "line 3: another device"},
                      Refused{"operator,shape,dtype,time_us\ngemm,8x8x8,fp32,1\ngemm,1x8x8x8,fp32,2\n",
                              "the same operator as in t, line 2"},
                      Refused{"operator,shape,dtype,time_us\n\"gemm,8x8x8,fp32,1\n", "a quoted field has no end"},
                      Refused{R"({"command": "bench ops", "operators": [1]})", "row 1: '' is not an operator"}));

TEST(PlatformFacts, OfATableAreAPlatform) {
  Machine machine;
  machine.cpu = "made", machine.cores = 8, machine.memory_gib = 32, machine.cache_mib = 16;
  OperatorTable t = made_table();
  const auto text = platform_facts(t, machine, "here");
  ASSERT_TRUE(text) << text.error().line();
  EXPECT_NE(text->find("gpus_per_node = 4"), std::string::npos) << *text;  // as many as the ranks that exchanged
  EXPECT_NE(text->find("sms = 2"), std::string::npos);
  EXPECT_NE(text->find("fp32_tflops = 0.2\n"), std::string::npos) << *text;
  EXPECT_NE(text->find("memory_gib = 8\n"), std::string::npos);
  EXPECT_NE(text->find("\\\"CPU\\\""), std::string::npos);
  t.rows.pop_back();
  EXPECT_FALSE(platform_facts(t, machine, "here"));  // no floor of memory
}

}  // namespace
}  // namespace orrery
