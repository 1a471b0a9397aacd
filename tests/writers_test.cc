// Exact outputs of the table writers on small documents.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/output.h"
#include "base/progress.h"
#include "writers/csv.h"
#include "writers/json.h"
#include "writers/text.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

struct TempDir {
  fs::path path;
  TempDir() {
    std::string name = (fs::temp_directory_path() / "orrery-writers-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code ignored;  // what still writes there
    fs::remove_all(path, ignored);
  }
};

Document small() {
  Document d;
  d.command = "replay";
  d.inputs = {"a.json", "b.json"};
  Section summary;
  summary.key = "summary";
  summary.title = "Summary";
  summary.single = true;
  summary.table.columns = {{.key = "iteration_ms", .title = "iteration, ms"},
                           {.key = "error_pct", .title = "error, %", .digits = 2},
                           {.key = "class.compute_pct", .json_only = true}};
  summary.table.rows = {{150.5, -0.001, 2.25}};
  Section steps;
  steps.key = "steps";
  steps.title = "Steps";
  steps.table.columns = {
      {.key = "step"}, {.key = "name"}, {.key = "measured.total_ms", .digits = 1}, {.key = "bar", .text_only = true}};
  steps.table.rows = {{std::int64_t{1}, std::string("warm, \"up\""), 1.25, std::string("#")},
                      {std::int64_t{12}, std::string("b"), std::monostate{}, std::string("##")}};
  d.sections = {summary, steps};
  return d;
}

TEST(JsonWriter, ContractKeysFirstThenSectionsNested) {
  Document d = small();
  d.notes.add("assumed-rank", Severity::info, 1, "a.json", "give --rank");
  const std::string text = to_json(d);
  const auto j = nlohmann::ordered_json::parse(text);
  std::vector<std::string> keys;
  for (const auto& [key, value] : j.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"orrery", "command", "inputs", "notes", "summary", "steps"}));
  EXPECT_EQ(j["orrery"], ORRERY_VERSION);
  EXPECT_EQ(j["inputs"].dump(), R"(["a.json","b.json"])");
  EXPECT_EQ(j["notes"].dump(),
            R"([{"name":"assumed-rank","severity":"info","count":1,"first":"a.json","advice":"give --rank"}])");
  EXPECT_EQ(j["summary"].dump(), R"({"iteration_ms":150.5,"error_pct":-0.001,"class":{"compute_pct":2.25}})");
  EXPECT_EQ(j["steps"].dump(), R"([{"step":1,"name":"warm, \"up\"","measured":{"total_ms":1.25}},)"
                               R"({"step":12,"name":"b","measured":{"total_ms":null}}])");
  EXPECT_EQ(text.back(), '\n');
}

TEST(JsonWriter, NumbersAndBytes) {
  Document d;
  d.command = "x";
  Section s;
  s.table.columns = {{.key = "nan"}, {.key = "inf"},  {.key = "ns"},   {.key = "tiny"},
                     {.key = "big"}, {.key = "zero"}, {.key = "list"}, {.key = "bytes"}};
  s.table.rows = {{std::nan(""), -std::numeric_limits<double>::infinity(), 649.0090000001 + 1e-10, 1.23456789e-7,
                   std::int64_t{9007199254740993}, -0.0, std::vector<double>{0.5, std::nan(""), 1.0 / 3},
                   std::string("a\xff"
                               "b\n")}};
  d.sections = {s};
  const std::string text = to_json(d);
  const auto j = nlohmann::ordered_json::parse(text);
  EXPECT_TRUE(j["nan"].is_null());
  EXPECT_TRUE(j["inf"].is_null());
  EXPECT_EQ(j["ns"].dump(), "649.009");
  EXPECT_EQ(j["tiny"].dump(), "1.23457e-07");
  EXPECT_EQ(j["big"].dump(), "9007199254740993");
  EXPECT_EQ(j["zero"].dump(), "0.0");
  EXPECT_EQ(j["list"].dump(), "[0.5,null,0.333333]");
  EXPECT_EQ(j["bytes"],
            "a\xef\xbf\xbd"
            "b\n");
}

TEST(JsonWriter, EmptySections) {
  Document d;
  d.command = "x";
  Section list, object;
  list.key = "stragglers";
  list.table.columns = {{.key = "rank"}};
  object.key = "summary";
  object.single = true;
  object.table.columns = {{.key = "ms"}};
  d.sections = {list, object};
  const auto j = nlohmann::ordered_json::parse(to_json(d));
  EXPECT_EQ(j["inputs"].dump(), "[]");
  EXPECT_EQ(j["notes"].dump(), "[]");
  EXPECT_EQ(j["stragglers"].dump(), "[]");
  EXPECT_EQ(j["summary"].dump(), R"({"ms":null})");
}

TEST(CsvWriter, QuotesAsRfc4180) {
  const Document d = small();
  EXPECT_EQ(to_csv(d.sections[1].table),
            "step,name,measured.total_ms\r\n"
            "1,\"warm, \"\"up\"\"\",1.25\r\n"
            "12,b,\r\n");
  EXPECT_EQ(to_csv(d.sections[0].table), "iteration_ms,error_pct,class.compute_pct\r\n150.5,-0.001,2.25\r\n");
}

TEST(CsvWriter, OneFileASectionAndNothingElse) {
  TempDir dir;
  Document d = small();
  d.sections.push_back(d.sections[1]);
  d.sections.back().key = "";  // the top level: named after the command
  d.notes.add("n", Severity::warning, 3, "line\nbreak");
  const std::string where = (dir.path / "deep" / "out").string();
  ASSERT_TRUE(write_csv(where, d));
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(where)) names.push_back(e.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"notes.csv", "replay.csv", "steps.csv", "summary.csv"}));
  EXPECT_EQ(read(where + "/notes.csv"), "name,severity,count,first,advice\r\nn,warning,3,\"line\nbreak\",\r\n");
  EXPECT_EQ(read(where + "/steps.csv"), to_csv(d.sections[1].table));
}

TEST(CsvWriter, SaysWhyItCannot) {
  TempDir dir;
  const std::string file = (dir.path / "file").string();
  ASSERT_TRUE(write_file(file, "x"));
  const auto status = write_csv(file, small());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().where, file);
  EXPECT_EQ(read(file), "x");
}

TEST(TextWriter, AlignsAndNamesUnits) {
  Document d = small();
  d.notes.add("assumed-rank", Severity::info, 1, "a.json", "give --rank FILE=N");
  d.notes.add("cut-short", Severity::data_loss, 1, "b.json at byte 17");
  d.notes.add("kernel-before-launch", Severity::warning, 12, "", "the delay is taken as zero");
  EXPECT_EQ(to_text(d),
            "Summary\n"
            "  iteration, ms  150.500\n"
            "  error, %          0.00\n"
            "\n"
            "Steps\n"
            "                    measured\n"
            "  step  name        total ms  bar\n"
            "     1  warm, \"up\"       1.2  #\n"
            "    12  b                n/a  ##\n"
            "\n"
            "note: assumed-rank (1): a.json; give --rank FILE=N\n"
            "warning: kernel-before-launch (12): the delay is taken as zero\n"
            "data lost: cut-short (1): b.json at byte 17\n");
  EXPECT_EQ(to_text(d, {.quiet = true}).find("assumed-rank"), std::string::npos);
  EXPECT_NE(to_text(d, {.quiet = true}).find("cut-short"), std::string::npos);
  EXPECT_NE(to_text(d, {.color = true}).find("\x1b[1mSteps\x1b[0m"), std::string::npos);
}

TEST(TextWriter, LongNamesAreCutInTheMiddleToTheWidth) {
  Document d;
  Section s;
  s.title = "Kernels";
  s.text_rows = 1;
  s.table.columns = {{.key = "name"}, {.key = "ms", .digits = 0}};
  s.table.rows = {{std::string(100, 'a') + "END", 7.0}, {std::string("b"), 1.0}, {std::string("c"), 1.0}};
  d.sections = {s};
  EXPECT_EQ(to_text(d, {.width = 30}),
            "Kernels\n"
            "  name                      ms\n"
            "  " +
                std::string(15, 'a') +
                "..aaaaEND   7\n"
                "  ... and 2 more (--json or --csv DIR has them all)\n");
  EXPECT_NE(to_text(d, {.width = 200}).find(std::string(100, 'a') + "END"), std::string::npos);
}

TEST(TextWriter, NamesCannotDriveTheTerminal) {
  Document d;
  Section s;
  s.title = "Kernels";
  s.table.columns = {{.key = "name"}};
  s.table.rows = {{std::string("\x1b[31mred\x9b\xc2\x9b µs\n")}};
  d.sections = {s};
  EXPECT_EQ(to_text(d), "Kernels\n  name\n  ?[31mred?? µs?\n");
}

TEST(TextWriter, SparklinesStandUnderEachOther) {
  EXPECT_EQ(sparkline({0, 0.001, 0.5, 0.99, 1}, 1, false), " .=%#");
  EXPECT_EQ(sparkline({0, 1, 1, 1, 0.5}, 2, true), "▄█▄");
  EXPECT_EQ(sparkline({5, 10}, 1, false), "=#");  // a scale of its own above one
  Document d;
  Section s;
  s.title = "GPU busy";
  s.table.columns = {{.key = "rank"}, {.key = "measured"}, {.key = "replayed"}};
  s.table.rows = {{std::int64_t{0}, std::vector<double>{1, 0, 1}, std::vector<double>{1, 1}},
                  {std::int64_t{10}, std::vector<double>{1}, std::monostate{}}};
  d.sections = {s};
  EXPECT_EQ(to_text(d, {.unicode = false}),
            "GPU busy\n"
            "  rank 0   measured  # #\n"
            "           replayed  ##\n"
            "  rank 10  measured  #\n"
            "           replayed  n/a\n");
  s.table.columns.insert(s.table.columns.begin() + 1, {.key = "measured_pct", .digits = 1});
  s.table.rows[0].insert(s.table.rows[0].begin() + 1, 66.7);
  s.table.rows[1].insert(s.table.rows[1].begin() + 1, std::monostate{});
  d.sections = {s};
  EXPECT_EQ(to_text(d, {.unicode = false}),
            "GPU busy\n"
            "  rank 0   measured  66.7%  # #\n"
            "           replayed         ##\n"
            "  rank 10  measured    n/a  #\n"
            "           replayed         n/a\n");
  s.table.columns.erase(s.table.columns.begin() + 1);
  s.table.rows = {{std::int64_t{0}, std::vector<double>(100, 1.0), std::vector<double>(98, 1.0)}};
  d.sections = {s};
  EXPECT_EQ(to_text(d, {.width = 63, .unicode = false}),
            "GPU busy\n"
            "  rank 0  measured  " +
                std::string(34, '#') + "\n          replayed  " + std::string(33, '#') +
                "\n  (each mark is the mean of 3 values)\n");
}

TEST(OutputFile, NothingIsLeftWithoutCommit) {
  TempDir dir;
  const std::string path = (dir.path / "out.json").string();
  ASSERT_TRUE(write_file(path, "old"));
  {
    auto file = OutputFile::create(path);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write("new"));
    EXPECT_EQ(read(path), "old");
  }
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), {}), 1);
  ASSERT_TRUE(write_file(path, "new"));
  EXPECT_EQ(read(path), "new");
  fs::create_symlink("out.json", dir.path / "link");
  ASSERT_TRUE(write_file((dir.path / "link").string(), "through"));
  EXPECT_TRUE(fs::is_symlink(dir.path / "link"));
  EXPECT_EQ(read(path), "through");
}

TEST(OutputFile, ErrorsNameTheFile) {
  const auto full = write_file("/dev/full", "x");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().line(),
            "/dev/full: cannot write: No space left on device (free some space or write elsewhere)");
  const auto missing = write_file("/nonexistent-orrery/x", "x");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().where, "/nonexistent-orrery/x");
  EXPECT_FALSE(write_file("/", "x"));
}

TEST(Progress, LineFitsItsWidth) {
  EXPECT_EQ(progress_line("reading", 50, 100, 3.4, 40), "reading  [#########.........]  50%  3 s");
  EXPECT_EQ(progress_line("building", 0, 0, 12.0, 80), "building  12 s");
  EXPECT_LT(progress_line("a long name of a stage", 5, 4, 1e6, 20).size(), 20u);
}

}  // namespace
}  // namespace orrery
