// Samples of hardware: columns that come and go, repeats, holes, and the arithmetic of quantiles and energy.
#include "importers/jobs_utilization.h"

#include <gtest/gtest.h>

#include "reports/jobs_utilization.h"

namespace orrery {
namespace {

UtilFile read(std::string_view text, const std::string& stem = "GPU_UTIL") {
  auto source = open_memory(text);
  auto f = import_utilization(*source, "made.csv", stem);
  EXPECT_TRUE(f) << (f ? "" : f.error().line());
  return f ? std::move(*f) : UtilFile{};
}

const Note* note(const UtilFile& f, std::string_view name) {
  for (const Note& n : f.notes.rows)
    if (n.name == name) return &n;
  return nullptr;
}

TEST(JobUtilization, DevicesAsColumnsThatComeAndGo) {
  const UtilFile f = read(
      "Time,10.0.0.1-0,10.0.0.1-1,10.0.0.1-1.1,10.0.0.2-0\n"
      "2023-07-01 00:00:00+08:00,0,100,99,\n"
      "2023-07-01 00:00:15+08:00,50,NaN,99,nan\n"
      "2023-07-01 00:00:15+08:00,1,1,1,1\n"
      "2023-07-01 00:00:30+08:00,x,100,99,\n"
      "2023-07-01 00:00:45+08:00,1\n"
      "Time,10.0.0.9-0\n"
      "2023-07-01 00:01:00+08:00,20\n");
  ASSERT_EQ(f.metrics.size(), 1u);
  const UtilMetric& m = f.metrics[0];
  EXPECT_EQ(m.name, "GPU_UTIL");
  EXPECT_EQ(m.samples, 5u) << "0 100 50 100 20";
  EXPECT_EQ(m.missing, 5u) << "empty; NaN, nan; x, empty";
  EXPECT_DOUBLE_EQ(m.mean, 54);
  EXPECT_DOUBLE_EQ(m.at(50), 50);
  EXPECT_DOUBLE_EQ(m.zero_pct, 20);
  EXPECT_DOUBLE_EQ(m.step_s, 15);
  EXPECT_EQ(note(f, "repeated-time")->count, 1u);
  EXPECT_EQ(note(f, "repeated-column")->first, "made.csv:1: 10.0.0.1-1.1");
  EXPECT_EQ(note(f, "not-a-number")->count, 1u);
  EXPECT_EQ(note(f, "bad-row")->count, 1u);
}

TEST(JobUtilization, SharesBecomePercent) {
  const UtilFile f = read("Time,10.0.0.1-0\n2023-07-01 00:00:00,0.25\n2023-07-01 00:00:15,0.75\n", "SM_ACTIVE");
  EXPECT_DOUBLE_EQ(f.metrics[0].mean, 50);
  EXPECT_DOUBLE_EQ(f.metrics[0].max, 75);
  ASSERT_NE(note(f, "fraction-as-percent"), nullptr);
  EXPECT_EQ(note(f, "fraction-as-percent")->severity, Severity::warning) << "what is shown is not what is there";
}

TEST(JobUtilization, PhillyAndIpmiAreByNode) {
  const UtilFile philly = read(
      "time,machineId,gpu0_util,gpu1_util\n2017-10-03 00:00:00,m1,10,NA\n2017-10-03 00:00:00,m2,30,50\n"
      "2017-10-03 00:01:00,m1,0,0\n");
  ASSERT_EQ(philly.metrics.size(), 1u);
  EXPECT_EQ(philly.metrics[0].name, "gpu_util");
  EXPECT_EQ(philly.metrics[0].samples, 5u);
  EXPECT_EQ(philly.metrics[0].devices, 2u);
  EXPECT_DOUBLE_EQ(philly.metrics[0].step_s, 60);

  const UtilFile ipmi = read(
      "Time,node,Sys_Total_Power,CPU_Power,Memory_Power\n2023-05-15 14:15:00+08:00,a,5000,600,400\n"
      "2023-05-15 14:15:00+08:00,b,3000,600,\n2023-05-15 14:20:00+08:00,a,5000,600,400\n",
      "GPU_AB_Power");
  ASSERT_EQ(ipmi.metrics.size(), 4u);
  EXPECT_EQ(ipmi.metrics[3].name, "Rest_Power");
  EXPECT_EQ(ipmi.metrics[3].samples, 2u) << "not where the memory's power is missing";
  EXPECT_DOUBLE_EQ(ipmi.metrics[3].mean, 4000);

  std::vector<Section> out;
  describe_utilization(ipmi.metrics, {.pue = 1.25, .carbon_kg_per_kwh = 0.5}, out);
  ASSERT_EQ(out.size(), 2u);
  const auto& row = out[1].table.rows[0];  // three samples of five minutes: 13,000 W / 12 h
  EXPECT_NEAR(std::get<double>(row[4]), 13.0 / 12, 1e-9);
  EXPECT_NEAR(std::get<double>(row[5]), 1.25 * 13.0 / 12, 1e-9);
  EXPECT_NEAR(std::get<double>(row[6]), 0.625 * 13.0 / 12, 1e-9);
}

TEST(JobUtilization, QuantileFunctions) {
  const UtilFile f = read("percentile,value\n0,0\n50,0\n75,10\n100,30\n", "gpu_util");
  const UtilMetric& m = f.metrics[0];
  EXPECT_DOUBLE_EQ(m.at(25), 0);
  EXPECT_DOUBLE_EQ(m.at(60), 4);
  EXPECT_DOUBLE_EQ(m.mean, (0 + 25 * 5 + 25 * 20) / 100.0);
  EXPECT_DOUBLE_EQ(m.zero_pct, 50);
  EXPECT_DOUBLE_EQ(m.max, 30);
  EXPECT_DOUBLE_EQ(m.share_at_most(20), 87.5);
  EXPECT_NE(note(read("percentile,value\n10,5\n20,3\n30,9\n"), "quantiles-reordered"), nullptr);
  EXPECT_EQ(note(read("percentile,value\n10,5\nx,3\n130,9\n"), "bad-row")->count, 2u);
}

TEST(JobUtilization, ManySamplesFallIntoNarrowClasses) {
  Distribution exact, folded;
  const std::size_t n = Distribution::kExact + 1000;
  for (std::size_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(i * 7919 % 100'000) / 100 - 5;
    folded.add(x);
    if (i < 100'000) exact.add(x);
  }
  UtilMetric a, b;
  exact.describe(a);
  folded.describe(b);
  EXPECT_FALSE(a.approximate);
  EXPECT_TRUE(b.approximate);
  for (const double p : {1., 10., 50., 90., 99.}) EXPECT_NEAR(b.at(p), a.at(p), 0.25 + 0.0005 * std::abs(a.at(p))) << p;
  EXPECT_NEAR(b.zero_pct, a.zero_pct, 0.01);
  EXPECT_DOUBLE_EQ(b.max, a.max);
}

TEST(JobUtilization, WhatIsNoneIsRefused) {
  for (const char* text : {"", "Time\n1\n", "a,b\n1,2\n", "Time,10.0.0.1-0\n", "percentile,value\n"}) {
    auto source = open_memory(text);
    EXPECT_FALSE(import_utilization(*source, "made.csv", "x")) << text;
  }
}

}  // namespace
}  // namespace orrery
