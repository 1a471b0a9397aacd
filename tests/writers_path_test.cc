// Sections whose key is a path: one flat table for people and CSV, nested in the JSON.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "writers/csv.h"
#include "writers/json.h"
#include "writers/text.h"

namespace orrery {
namespace {

using Json = nlohmann::ordered_json;

TEST(WriterPaths, RowsGoToTheElementThatTheyName) {
  Document d;
  d.command = "jobs";
  Section clusters{.key = "clusters[]", .title = "Clusters", .table = {}};
  clusters.table.columns = {{.key = "name"}, {.key = "jobs"}, {.key = "duration_s.p50"}};
  clusters.table.rows = {{std::string("a"), std::int64_t{3}, 1.5}, {std::string("b"), std::int64_t{4}, 2.5}};
  Section types{.key = "clusters[].types", .title = "Types", .table = {}};
  types.table.columns = {{.key = "cluster"}, {.key = "name"}, {.key = "count"}, {.key = "people", .text_only = true}};
  types.table.rows = {{std::string("b"), std::string("Eval"), std::int64_t{1}, true},
                      {std::string("a"), std::string("SFT"), std::int64_t{2}, true},
                      {std::string("b"), std::string("SFT"), std::int64_t{3}, true}};
  Section by{.key = "clusters[].by_type{}", .title = "", .table = {}};
  by.table.columns = {{.key = "cluster"}, {.key = "type"}, {.key = "queue_s.mean"}};
  by.table.rows = {{std::string("a"), std::string("v1.5[]{}"), 7.0}};
  Section counts{.key = "clusters[].by_type{}.counts", .title = "", .table = {}, .values = true};
  counts.table.columns = {{.key = "cluster"}, {.key = "type"}, {.key = "threshold"}, {.key = "jobs"}};
  counts.table.rows = {{std::string("a"), std::string("v1.5[]{}"), std::int64_t{1}, std::int64_t{10}},
                       {std::string("a"), std::string("v1.5[]{}"), std::int64_t{2}, std::int64_t{11}}};
  Section none{.key = "others[].x", .title = "", .table = {}};
  none.table.columns = {{.key = "name"}, {.key = "y"}};
  d.sections = {clusters, types, by, counts, none};
  const Json j = Json::parse(to_json(d));
  EXPECT_EQ(j["clusters"], Json::parse(R"([
    {"name": "a", "jobs": 3, "duration_s": {"p50": 1.5}, "types": [{"name": "SFT", "count": 2}],
     "by_type": {"v1.5[]{}": {"queue_s": {"mean": 7.0}, "counts": [[1, 10], [2, 11]]}}},
    {"name": "b", "jobs": 4, "duration_s": {"p50": 2.5},
     "types": [{"name": "Eval", "count": 1}, {"name": "SFT", "count": 3}]}])"));
  EXPECT_EQ(j["others"], Json::array());
  EXPECT_NE(to_text(d).find("cluster"), std::string::npos);

  std::string directory = (std::filesystem::temp_directory_path() / "orrery-paths-XXXXXX").string();
  directory = ::mkdtemp(directory.data());
  ASSERT_TRUE(write_csv(directory, d));
  for (const char* name : {"clusters.csv", "types.csv", "by_type.csv", "counts.csv"})
    EXPECT_TRUE(std::filesystem::exists(directory + "/" + name)) << name;
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace orrery
