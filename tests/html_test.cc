// The page of answers: self-contained, escaped, whole.
#include "writers/html.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace orrery {
namespace {

std::size_t count(const std::string& s, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = s.find(part); at != std::string::npos; at = s.find(part, at + 1)) ++n;
  return n;
}

// Every element that opens closes, in order.
void expect_well_formed(const std::string& page) {
  std::vector<std::string> open;
  for (std::size_t i = page.find('<'); i != std::string::npos; i = page.find('<', i + 1)) {
    const std::size_t end = page.find('>', i);
    ASSERT_NE(end, std::string::npos);
    std::string tag = page.substr(i + 1, end - i - 1);
    if (tag[0] == '!' || tag.back() == '/' || tag.rfind("meta", 0) == 0) continue;
    const bool closes = tag[0] == '/';
    tag = tag.substr(closes, tag.find(' ') - closes);
    if (!closes) {
      open.push_back(tag);
      continue;
    }
    ASSERT_FALSE(open.empty()) << tag;
    EXPECT_EQ(open.back(), tag) << page.substr(i > 80 ? i - 80 : 0, 160);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
}

Document document() {
  Document d;
  d.command = "jobs";
  d.notes.add("bad-row", Severity::data_loss, 2, "<x>:1", "advice");
  Section s{.key = "a", .title = "A & B", .table = {}};
  s.table.columns = {{.key = "name"}, {.key = "gpu_time_s"}, {.key = "hidden", .json_only = true}, {.key = "hours"}};
  for (int i = 0; i < 5; ++i)
    s.table.rows.push_back({std::string("<script>alert(1)</script>\x1b[31m\xff"), std::int64_t{i},
                            std::string("secret"), std::vector<double>{1, 2, 0}});
  d.sections.push_back(std::move(s));
  return d;
}

TEST(Html, OnePageWithoutANetwork) {
  Chart lines{.kind = Chart::Kind::lines, .title = "CDF", .log_x = true};
  lines.series = {{"one", {0, 1, 10, 1000}, {0, 5, 50, 100}}, {"<two>", {1, 2}, {3, std::nan("")}}};
  Chart bars{.kind = Chart::Kind::bars, .title = "Shares"};
  bars.labels = {"a", "b"};
  bars.series = {{"jobs", {}, {1, 2}}, {"time", {}, {3}}};
  Chart boxes{.kind = Chart::Kind::boxes, .title = "Boxes", .log_x = true};
  boxes.boxes = {{"Eval", 1, 1, 1, 4, 8}, {"none", 0, 0, 0, 0, 0}};
  Chart heat{.kind = Chart::Kind::heat, .title = "Week"};
  heat.rows = {"Mon"};
  heat.labels = {"0", "1"};
  heat.cells = {{0, 7}};
  const std::string page = to_html(document(), {lines, bars, boxes, heat}, {"Jobs <of> it", "sub", 3});
  expect_well_formed(page);
  for (const char* outside : {"http:", "https:", "<script", "src=", "href=", "@import", "url("})
    EXPECT_EQ(count(page, outside), 0u) << outside;
  EXPECT_EQ(count(page, "<svg"), 4u + 3u) << "four charts, a list in each row shown";
  EXPECT_EQ(count(page, "<figure>"), 4u);
  EXPECT_EQ(count(page, "<polyline"), 2u);
  EXPECT_EQ(count(page, "<tr>"), 1u + 3u);
  EXPECT_EQ(count(page, "secret"), 0u);
  EXPECT_NE(page.find("... and 2 more"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)&lt;/script&gt;?[31m?"), std::string::npos);
  EXPECT_NE(page.find("A &amp; B"), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("inf"), std::string::npos);
  EXPECT_NE(page.find("data-loss: bad-row (2)"), std::string::npos);
}

TEST(Html, ChartsOfNothingAreStillCharts) {
  for (const Chart::Kind kind : {Chart::Kind::lines, Chart::Kind::bars, Chart::Kind::boxes, Chart::Kind::heat}) {
    Chart empty{.kind = kind, .title = "empty"};
    const std::string svg = to_svg(empty);
    expect_well_formed(svg);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
  Chart far{.kind = Chart::Kind::lines, .title = "far"};
  far.series = {{"x", {-1e308, 1e308}, {std::numeric_limits<double>::infinity(), 1}}, {"y", {5}, {5}}};
  expect_well_formed(to_svg(far));
}

TEST(Html, LinesLieWhereTheAxesSay) {
  Chart c{.kind = Chart::Kind::lines, .title = "t", .log_x = true};
  c.series = {{"s", {1, 10, 100}, {0, 50, 100}}};
  const std::string svg = to_svg(c);
  // from 54 to 548 over two decades, from 258 up to 8
  EXPECT_NE(svg.find("points=\"54.0,258.0 301.0,133.0 548.0,8.0\""), std::string::npos) << svg;
}

TEST(Html, SpansStandInTheirRowsFromBeginToEnd) {
  Chart c{.kind = Chart::Kind::spans, .title = "Schedule"};
  c.x_title = "s";
  c.labels = {"load", "work"};
  c.rows = {"gpu 0", "gpu 1"};
  c.spans = {{0, 0, 50, 0, "a"}, {1, 50, 100, 1, "b<"}, {7, 0, 1, 0, "of no row"}};
  const std::string svg = to_svg(c);
  expect_well_formed(svg);
  EXPECT_EQ(count(svg, "<rect"), 2 + c.labels.size());
  EXPECT_NE(svg.find("b&lt;: 50 to 100"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("of no row"), std::string::npos);
}

}  // namespace
}  // namespace orrery
