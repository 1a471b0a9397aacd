// orrery evals run with programs that leave what the suites leave.
#include "evals_fixture.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

// Six subjects, one after the other with pauses in which a size stays; `subjects` of them come. Of 800 items.
struct Subjects : Evaluation {
  explicit Subjects(int subjects, bool with_scores = true) {
    fs::create_directories(dir / "bin");
    datasets = {"name = \"mmlu\"\nitems = 800\nitem_s = 0.01\ntask = \"mmlu_gen\"\nresults = \"lukaemon_mmlu_*\"\n"};
    inference = "template = \"opencompass\"\n";
    metric = "limit_s = 60\n";
    trial += "retries = 0\n";
    write_text(dir / "bin/opencompass", R"(#!/bin/sh
while test $# -gt 0; do
  case $1 in --work-dir) work=$2;; --mode) mode=$2;; esac; shift
done
s=1
while test $s -le )" + std::to_string(subjects) +
                                            R"(; do
  if test $mode = infer; then
    if test $s = 2; then sleep 3; fi
    mkdir -p $work/2026/predictions/m_hf
    items=133; if test $s = 6; then items=135; fi
    awk -v n=$items 'BEGIN {printf "{"; for (i = 0; i < n; ++i) printf "%s\"%d\": {}", i ? ", " : "", i; print "}"}' \
      > $work/2026/predictions/m_hf/lukaemon_mmlu_$s.json
  else
    mkdir -p $work/2026/results/m_hf
    echo "{\"accuracy\": $s}" > $work/2026/results/m_hf/lukaemon_mmlu_$s.json)" +
                                            std::string(with_scores ? "" : "; exit 0") + R"(
  fi
  s=$((s + 1))
done
)");
    fs::permissions(dir / "bin/opencompass", fs::perms::owner_all);
  }
  Outcome answer_of() {
    return shell("PATH='" + (dir / "bin") + "':\"$PATH\" \"$orrery\" evals run '" + config() + "' --json");
  }
};

TEST(CliEvalsSuites, ADatasetOfSeveralFilesIsScoredWhenAllAreThere) {
  Subjects e(6);
  const Outcome o = e.answer_of();
  ASSERT_EQ(o.status, 0) << o.err << o.out;
  const Json scores = Json::parse(o.out)["scores"]["step-1"]["mmlu"];
  ASSERT_EQ(scores.size(), 6u) << scores;
  for (int s = 1; s <= 6; ++s) EXPECT_EQ(scores["lukaemon_mmlu_" + std::to_string(s) + ".accuracy"], s);
}

TEST(CliEvalsSuites, NoScoreOfItemsThatWereNotInferred) {
  Subjects e(5);
  const Outcome o = e.answer_of();
  EXPECT_EQ(o.status, 1) << o.err;
  const Json d = Json::parse(o.out);
  EXPECT_EQ(d["scored"], 0);
  EXPECT_NE(d["results"][0]["why"].get<std::string>().find("outputs are of 665 items, and items = 800"),
            std::string::npos)
      << d["results"];
}

TEST(CliEvalsSuites, NoScoreOfFilesThatWereNotScored) {
  Subjects e(6, false);
  const Outcome o = e.answer_of();
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_NE(Json::parse(o.out)["results"][0]["why"].get<std::string>().find("scores of 1 of 6 files of outputs"),
            std::string::npos)
      << o.out;
}

// lm-eval as it is: of a group it does all, whatever --samples says; n-samples counts the tasks below it.
struct Group : Evaluation {
  Group() {
    fs::create_directories(dir / "bin");
    inference = "template = \"lm-evaluation-harness\"\n";
    metric = "limit_s = 60\n";
    trial += "retries = 0\n";
    write_text(dir / "bin/lm-eval", R"(#!/bin/sh
while test $# -gt 0; do case $1 in --output_path) out=$2;; esac; shift; done
mkdir -p $out/m
echo '{"results": {"mmlu": {"acc,none": 0.5}, "mmlu_law": {"acc,none": 0.5, "ppl,none": Infinity, "bad": NaN}},
  "group_subtasks": {"mmlu": ["mmlu_law", "mmlu_art"]},
  "n-samples": {"mmlu_law": {"original": 60, "effective": 60}, "mmlu_art": {"original": 40, "effective": 40}}}' \
  > $out/m/results_2026.json
)");
    fs::permissions(dir / "bin/lm-eval", fs::perms::owner_all);
  }
  Json answer_of(int status) {
    const Outcome o = shell("PATH='" + (dir / "bin") + "':\"$PATH\" \"$orrery\" evals run '" + config() + "' --json");
    EXPECT_EQ(o.status, status) << o.err << o.out;
    return Json::parse(o.out);
  }
};

TEST(CliEvalsSuites, AGroupThatWasNotEvaluatedAsAskedHasNoScore) {
  Group e;
  e.datasets = {"name = \"mmlu\"\nitems = 100\nitem_s = 0.01\nmetric_by_item = true\n",
                "name = \"mmlu_law\"\nitems = 60\nitem_s = 0.01\n"};
  Json d = e.answer_of(1);
  EXPECT_EQ(d["scored"], 1) << "the other one is";
  EXPECT_NE(d["results"][0]["why"].get<std::string>().find("100 samples of mmlu were evaluated, and "),
            std::string::npos)
      << d["results"];
  Group whole;
  whole.datasets = {"name = \"mmlu\"\nitems = 100\nitem_s = 0.01\nsplit = false\n"};
  EXPECT_EQ(whole.answer_of(0)["scores"]["step-1"]["mmlu"]["acc,none"], 0.5);
}

// lm-eval puts samples of one task together, from wherever they come: its score is over all of a trial.
TEST(CliEvalsSuites, PiecesOfOneDatasetDoNotMeetInATrialThatScores) {
  Group e;
  e.datasets = {"name = \"gsm8k\"\nitems = 973\nitem_s = 0.01\nmetric_by_item = true\n",
                "name = \"long\"\nitems = 545\nitem_s = 0.01\nmetric_by_item = true\n"};
  e.more = "[simulate]\nprior_error = 0.1\n";  // some of it is left for later trials, in which pieces could meet
  e.cluster = "gpus_per_node = 2\ncpu_jobs_per_node = 2\n";
  write_text(e.dir / "bin/lm-eval", R"(#!/bin/sh
while test $# -gt 0; do case $1 in --output_path) out=$2;; --tasks) tasks=$2;; --samples) samples=$2;; esac; shift; done
mkdir -p $out/m
for t in $(echo $tasks | tr , ' '); do
  n=$(tr '}' '\n' < $samples | grep -o "\"$t\":[^]]*" | tr , '\n' | wc -l)
  scores="$scores${scores:+,} \"$t\": {\"acc\": 0.5}"
  counts="$counts${counts:+,} \"$t\": {\"original\": 1319, \"effective\": $n}"
done
echo "{\"results\": {$scores}, \"n-samples\": {$counts}}" > $out/m/results_2026.json
)");
  const Json d = e.answer_of(0);
  EXPECT_EQ(d["scored"], 2) << d["results"];
  std::size_t pieces = 0;
  for (const Json& t : d["trials"]) pieces += t["pieces"].size();
  EXPECT_GT(pieces, 2u) << "they are split";
}

TEST(CliEvalsSuites, InfinityInOneValueSpoilsNoOther) {
  Group e;
  e.datasets = {"name = \"mmlu_law\"\nitems = 60\nitem_s = 0.01\n"};
  const Json d = e.answer_of(0);
  EXPECT_EQ(d["scores"]["step-1"]["mmlu_law"], Json::parse(R"({"acc,none": 0.5})"));
  ASSERT_TRUE(has_note(d, "value-left-out"));
  EXPECT_NE(d["notes"].dump().find("mmlu_law of step-1: no number: bad is NaN, ppl,none is Infinity"),
            std::string::npos)
      << d["notes"];
}

// Two pieces of 30 and 70 items with standard errors of 0.2 and 0.1: sqrt(6^2 + 7^2) / 100.
TEST(CliEvalsSuites, StandardErrorsOfPiecesAreThoseOfTheirMean) {
  Evaluation e;
  e.datasets = {"name = \"d1\"\nitems = 100\nitem_s = 0.01\nmetric_s = 0.1\nmetric_by_item = true\n"};
  e.metric = "command = [\"sh\", \"m.sh\", \"{items}\"]\n";
  write_text(e.dir / "m.sh", "echo \"{\\\"acc\\\": $1, \\\"acc_stderr,none\\\": 0.2, \\\"ppl\\\": Infinity}\"\n");
  const Json d = e.answer();
  double n = 0, squares = 0, mean = 0;
  for (const auto& m : d["metrics"]) {
    const double items = m["items"];
    n += items;
    squares += 0.04 * items * items;
    mean += items * items;
  }
  ASSERT_GT(d["metrics"].size(), 1u);
  ASSERT_EQ(n, 100);
  EXPECT_NEAR(d["scores"]["step-1"]["d1"]["acc_stderr,none"], std::sqrt(squares) / 100, 1e-6);
  EXPECT_NEAR(d["scores"]["step-1"]["d1"]["acc"], mean / 100, 1e-4);
  EXPECT_TRUE(has_note(d, "scores-of-pieces"));
}

}  // namespace
}  // namespace orrery::test
