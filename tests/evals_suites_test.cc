// What suites leave behind, as it is read: numbers that JSON has not, counts that are not those asked for.
#include <gtest/gtest.h>

#include "temp_dir.h"
#include "trials/loose_json.h"
#include "trials/scores.h"
#include "trials/suite_counts.h"

namespace orrery::test {
namespace {

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

TEST(EvalsSuites, PythonsNumbersAreRead) {
  const auto j = loose_json(R"({"a": NaN, "b": [-Infinity, 1e999, -2.5e-1], "c": "NaN \" Infinity", "d": Infinity})");
  ASSERT_TRUE(j.is_object());
  EXPECT_EQ(j["a"], "NaN");
  EXPECT_EQ(j["b"][0], "-Infinity");
  EXPECT_EQ(j["b"][1], "Infinity");
  EXPECT_EQ(j["b"][2], -0.25);
  EXPECT_EQ(j["c"], "NaN \" Infinity");
  EXPECT_EQ(j["d"], "Infinity");
  for (const char* bad : {"", "{", "{\"a\": nan}", "{\"a\": \"", "{\"a\": \\", "-"})
    EXPECT_TRUE(loose_json(bad).is_discarded());
}

TEST(EvalsSuites, AValueThatIsNoNumberIsLeftOutAndTheOthersStand) {
  const ScratchDir dir;
  write_text(dir / "r.json", R"({"results": {"a": {"acc": 0.5, "ppl": Infinity}, "b": {"acc": NaN}}})");
  const auto a = scores_of_files({dir / "r.json"}, "/results/a");
  ASSERT_TRUE(a) << a.error().line();
  EXPECT_EQ(a->scores, (Scores{{"acc", 0.5}}));
  EXPECT_EQ(a->left_out, (std::vector<std::string>{"ppl is Infinity"}));
  EXPECT_EQ(scores_of_files({dir / "r.json"}, "/results/b").error().what, "has no score: acc is NaN");
}

TEST(EvalsSuites, StandardErrorsAreKnownByTheirNames) {
  for (const char* name : {"acc_stderr,none", "exact_match_stderr", "acc_std_err", "Standard_Error"})
    EXPECT_TRUE(is_standard_error(name)) << name;
  for (const char* name : {"acc,none", "stdev", "error_rate"}) EXPECT_FALSE(is_standard_error(name)) << name;
}

TEST(EvalsSuites, CountsOfLmEvaluationHarness) {
  const ScratchDir dir;
  const std::string results = dir / "results_2026-01-01T00-00-00.json";
  write_text(results, R"({"results": {"t": {"acc": 0.5}}, "group_subtasks": {"g": ["h"], "h": ["t", "u"], "t": []},
 "n-samples": {"t": {"original": 100, "effective": 100}, "u": {"original": 50, "effective": 50}}})");
  EXPECT_EQ(samples_differ(results, "t", 100), "");
  EXPECT_EQ(samples_differ(results, "g", 150), "");
  EXPECT_EQ(samples_differ(results, "not-there", 5), "") << "it does not say";
  EXPECT_EQ(samples_differ(results, "g", 40),
            "150 samples of g were evaluated, and 40 were asked for: it is a group, name its tasks, or split = false "
            "and its items");
  EXPECT_EQ(samples_differ(results, "t", 40), "100 samples of t were evaluated, and 40 were asked for");
  // --samples does not show in n-samples: what was logged does. Two filters a document.
  write_text(dir / "samples_t_hard_2026.jsonl", "{\"doc_id\": 1}\n");
  std::string lines;
  for (int i = 10; i < 50; ++i)
    for (const char* filter : {"a", "b"})
      lines += "{\"doc_id\": " + std::to_string(i) + ", \"filter\": \"" + filter + "\", \"x\": NaN}\n";
  write_text(dir / "samples_t_2026-01-01T00-00-00.jsonl", lines);
  EXPECT_EQ(samples_differ(results, "t", 40), "");
  EXPECT_EQ(samples_differ(results, "t", 41), "40 samples of t were evaluated, and 41 were asked for");
}

TEST(EvalsSuites, CountsOfOpenCompass) {
  const ScratchDir dir;
  write_text(dir / "a.json", R"({"0": {"prediction": "x"}, "1": {}})");
  write_text(dir / "b.json", R"({"0": {}})");
  EXPECT_EQ(outputs_short_of("opencompass", {dir / "a.json", dir / "b.json"}, 3), "");
  EXPECT_EQ(outputs_short_of("opencompass", {dir / "a.json"}, 3).rfind("its outputs are of 2 items, and items = 3", 0),
            0u);
  EXPECT_EQ(outputs_short_of("", {dir / "a.json"}, 3), "");
}

}  // namespace
}  // namespace orrery::test
