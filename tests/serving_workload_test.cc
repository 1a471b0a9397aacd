// Made-up requests, and files of them.
#include <cmath>

#include "serving_helpers.h"

namespace orrery::test {
namespace {

double mean_input(const Workload& w) {
  double sum = 0;
  for (const Request& r : w.requests) sum += static_cast<double>(r.input);
  return sum / static_cast<double>(w.requests.size());
}

WorkloadAsked asked(const std::string& input, std::int64_t n = 20'000) {
  WorkloadAsked a;
  a.requests = n;
  auto d = read_length_distribution(input, "--input-tokens");
  EXPECT_TRUE(d) << input;
  if (d) a.input = *d;
  return a;
}

TEST(Workloads, LengthsHaveTheMeanAskedForAndStayWithinTheirLimits) {
  struct Case {
    const char* text;
    double mean, least, most;
  };
  for (const Case& c :
       {Case{"300", 300, 300, 300}, Case{"fixed:7", 7, 7, 7}, Case{"uniform:100,299", 199.5, 100, 299},
        Case{"lognormal:500", 500, 1, 1 << 24}, Case{"lognormal:500,0.7,256,2048", 500, 256, 2048},
        Case{"lognormal:mean=500,sigma=1.5,max=4000", 500, 1, 4000}, Case{"exponential:850,256", 850, 256, 1 << 24},
        Case{"exponential:300:200:500", 300, 200, 500}}) {
    const Workload w = made_workload(asked(c.text));
    EXPECT_NEAR(mean_input(w), c.mean, 0.03 * c.mean) << c.text;
    for (const Request& r : w.requests) {
      ASSERT_GE(static_cast<double>(r.input), c.least) << c.text;
      ASSERT_LE(static_cast<double>(r.input), c.most) << c.text;
    }
  }
}

TEST(Workloads, DistributionsThatCannotBeAreRefused) {
  for (const char* text :
       {"", "0", "-3", "x", "normal:3", "uniform:5", "uniform:9,3", "lognormal:5,0", "lognormal:5,1,10",
        "exponential:500,1,400", "1e9", "lognormal:mean", "lognormal:size=3", "nan", "uniform:1,2,3"})
    EXPECT_FALSE(read_length_distribution(text, "o")) << text;
}

TEST(Workloads, TheSameSeedGivesTheSameAndTheRateLeavesLengths) {
  WorkloadAsked a = asked("lognormal:300", 500);
  a.rate = 5;
  const Workload one = made_workload(a), two = made_workload(a);
  a.rate = 50;
  const Workload faster = made_workload(a);
  a.seed = 2;
  const Workload other = made_workload(a);
  bool differs = false;
  for (std::size_t k = 0; k < 500; ++k) {
    ASSERT_EQ(one.requests[k].input, two.requests[k].input);
    ASSERT_EQ(one.requests[k].arrival_ns, two.requests[k].arrival_ns);
    ASSERT_EQ(one.requests[k].input, faster.requests[k].input);
    ASSERT_NEAR(one.requests[k].arrival_ns, 10 * faster.requests[k].arrival_ns, 10);
    differs |= one.requests[k].input != other.requests[k].input;
  }
  EXPECT_TRUE(differs);
}

TEST(Workloads, ArrivalsHaveTheRateAndTheBurstsAskedFor) {
  for (const double cv : {0.0, 1.0, 3.0}) {
    WorkloadAsked a = asked("10", 40'000);
    a.rate = 20, a.cv = cv;
    const Workload w = made_workload(a);
    std::vector<double> gaps;
    for (std::size_t k = 1; k < w.requests.size(); ++k)
      gaps.push_back((w.requests[k].arrival_ns - w.requests[k - 1].arrival_ns) / 1e9);
    double mean = 0, square = 0;
    for (const double g : gaps) mean += g / static_cast<double>(gaps.size());
    for (const double g : gaps) square += (g - mean) * (g - mean) / static_cast<double>(gaps.size());
    EXPECT_NEAR(mean, 0.05, 0.003);
    EXPECT_NEAR(std::sqrt(square) / mean, cv, 0.1 * cv + 1e-6);
  }
  for (const Request& r : made_workload(asked("10", 10)).requests) EXPECT_EQ(r.arrival_ns, 0);
}

Workload read(const std::string& text) {
  Notes notes;
  auto w = parse_workload(text, "f", notes);
  EXPECT_TRUE(w) << (w ? "" : w.error().line());
  return w ? *w : Workload{};
}

TEST(WorkloadFiles, BurstGpt) {
  Notes notes;
  const auto w = parse_workload(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,230,1317,API log\n118,ChatGPT,417,0,417,API log\n",
      "f", notes);
  ASSERT_TRUE(w);
  ASSERT_EQ(w->requests.size(), 2u);
  EXPECT_EQ(w->requests[1].arrival_ns, 40.5e9);
  EXPECT_EQ(w->requests[1].input, 1087);
  EXPECT_EQ(w->requests[1].output, 230);
  ASSERT_EQ(notes.rows.size(), 1u);
  EXPECT_EQ(notes.rows[0].name, "request-without-answer");
  EXPECT_EQ(notes.rows[0].first, "f:4");
}

TEST(WorkloadFiles, Azure) {
  const Workload w = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
      "2023-11-16 18:16:50.9951690,396,109\r\n");
  ASSERT_EQ(w.requests.size(), 2u);
  EXPECT_NEAR(w.requests[1].arrival_ns, 64.314579e9, 1e3);
  EXPECT_EQ(w.requests[0].input, 374);
}

TEST(WorkloadFiles, Mooncake) {
  const Workload w = read(
      "{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1, 2, 13]}\n"
      "{\"timestamp\": 3000, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [0, 1, 99]}\n");
  ASSERT_EQ(w.requests.size(), 2u);
  EXPECT_EQ(w.prefix_piece, 512);
  EXPECT_EQ(w.requests[1].arrival_ns, 3e9);
  EXPECT_EQ(w.requests[0].prefixes, 4u);
  EXPECT_EQ(w.requests[1].prefixes, 2u);  // the third piece is not whole
  EXPECT_EQ(w.prefixes[w.requests[1].first_prefix + 1], 1u);
}

TEST(WorkloadFiles, OwnColumnsInAnyOrderAndWithoutTimes) {
  const Workload w = read("output_tokens;input_tokens\n3;4\n5;6\n");
  EXPECT_FALSE(w.timed);
  ASSERT_EQ(w.requests.size(), 2u);
  EXPECT_EQ(w.requests[1].input, 6);
  const Workload ms = read("arrival_time_ms\tinput\toutput\n2000\t1\t1\n1000\t2\t2\n");
  EXPECT_TRUE(ms.timed);
  EXPECT_EQ(ms.requests[0].input, 2);  // by time, from 0 on
  EXPECT_EQ(ms.requests[0].arrival_ns, 0);
  EXPECT_EQ(ms.requests[1].arrival_ns, 1e9);
  const Workload lines = read("{\"input_toks\": 5, \"output_toks\": 6, \"arrival_time_ns\": 12}\n");
  EXPECT_EQ(lines.requests[0].output, 6);
}

TEST(WorkloadFiles, TextBesideItsTokensIsNotTheirNumber) {
  for (const char* text : {"input,input_tokens,output,output_tokens\nhello,5,you,6\n",
                           "input_tokens,input,output_tokens,output\n5,hello,6,you\n",
                           "{\"input\":\"hello\",\"input_tokens\":5,\"output\":\"you\",\"output_tokens\":6}\n"}) {
    Notes notes;
    const auto w = parse_workload(text, "f", notes);
    ASSERT_TRUE(w) << text;
    ASSERT_EQ(w->requests.size(), 1u);
    EXPECT_EQ(w->requests[0].input, 5);
    EXPECT_EQ(w->requests[0].output, 6);
    EXPECT_TRUE(notes.rows.empty());
  }
}

TEST(WorkloadFiles, WhatCannotBeUsedIsCounted) {
  Notes notes;
  const auto w = parse_workload("time,input,output\n1,2,3\n1,x,3\n1,-2,3\n,5,5\n2,1e12,1\n3,4\n4,1,1\n", "f", notes);
  ASSERT_TRUE(w);
  EXPECT_EQ(w->requests.size(), 2u);
  std::uint64_t lost = 0;
  for (const Note& n : notes.rows) lost += n.count;
  EXPECT_EQ(lost, 5u);
  EXPECT_TRUE(notes.lost_data());
}

TEST(WorkloadFiles, OtherFilesAreRefused) {
  for (const char* text : {"", "\n\n", "hello", "a,b\n1,2\n", "{}", "{\"a\": 1}\n", "[1,2]\n", "time,input,output\n",
                           "{\"input\": \"x\"}\n", "time,input\n1,2\n"}) {
    Notes notes;
    const auto w = parse_workload(text, "f", notes);
    ASSERT_FALSE(w) << text;
    EXPECT_EQ(w.error().line().find('\n'), std::string::npos);
  }
  Notes notes;
  EXPECT_FALSE(read_workload("no/such/file", notes));
}

}  // namespace
}  // namespace orrery::test
