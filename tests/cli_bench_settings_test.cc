// orrery bench: settings that cannot work are refused before anything is measured; those that can, do.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kTiny = "[models.tiny]\nlayers = 1\nhidden = 16\nffn = 64\nheads = 2\nvocab = 32\n";

Json document(const Outcome& o) {
  const Json j = Json::parse(o.out, nullptr, false);
  EXPECT_TRUE(j.is_object()) << o.out << o.err;
  return j;
}

// The command starts this program again, through others where there is a limit of memory.
TEST(CliBenchSettings, OperatorsUnderALimitOfMemory) {
  const TempDir dir;
  const std::string config = dir / "m.toml";
  write_text(config,
             "[bench]\nmemory_limit_gib = 8\noperator_options = [\"--sizes\", \"tiny\", \"--budget\", \"0.5\", "
             "\"--only\", \"copy\", \"--dtypes\", \"fp32\", \"--threads\", \"1\"]\n[[matrix]]\ntask = \"operators\"\n");
  const Json d = document(orrery("bench run '" + config + "' --json --quiet"));
  ASSERT_EQ(d["runs"].size(), 1u);
  const Json& run = d["runs"][0];
  EXPECT_EQ(run["state"], "done") << run;
  for (const char* const of_training : {"batch", "seq_length", "precision", "techniques"})
    EXPECT_TRUE(run[of_training].is_null()) << of_training;
  EXPECT_FALSE(document(orrery("bench report '" + config + "' --json"))["operators"].empty());
}

}  // namespace
}  // namespace orrery::test
