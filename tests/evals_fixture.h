// A made-up evaluation for the tests of `orrery evals run`: a checkpoint of a few bytes, a command that "infers" by
// writing what it was asked for, and one that "scores" by counting it.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli_run.h"

namespace orrery::test {

struct Evaluation {
  TempDir dir;
  std::string cluster = "gpus_per_node = 4\ncpu_jobs_per_node = 3\n", trial = "start_s = 0.05\nleast_s = 0.1\n", more;
  std::string model = "settle_s = 0\n", state = "state";
  std::string inference = "command = [\"sh\", \"infer.sh\", \"{model}\", \"{output...}\"]\n";
  std::string metric = "command = [\"sh\", \"metric.sh\", \"{output...}\"]\n";
  std::vector<std::string> datasets;  // text of [[dataset]] tables

  Evaluation() {
    fs::create_directories(dir / "checkpoints/step-1");
    fs::create_directories(dir / "memory");
    write_text(dir / "checkpoints/step-1/weights", std::string(100'000, 'w'));
    // Fails for a dataset when a file fail-DATASET is there, which may say how; hangs while hang-DATASET is.
    // Any process of these may be killed: what one did not do ends the whole (a mv that && follows would not).
    write_text(dir / "infer.sh", R"(set -e
model=$1; shift
test -f "$model/weights" || { echo "no weights in $model"; exit 3; }
echo "$model" >> models
for output in "$@"; do
  name=$(basename "$output" .out); dataset=${name%%-*}
  if test -f "fail-$dataset"; then cat "fail-$dataset"; exit 1; fi
  while test -f "hang-$dataset"; do sleep 0.1; done
  sleep 0.1
  echo "$name" > "$output.tmp"
  mv "$output.tmp" "$output"
  echo "$name" >> completed
done
)");
    write_text(dir / "metric.sh", R"(set -e
items=0
for output in "$@"; do
  name=$(cat "$output"); dataset=${name%%-*}; items=$((items + ${name##*-}))
  if test -f "metric-fail-$dataset"; then cat "metric-fail-$dataset"; exit 1; fi
  while test -f "metric-hang-$dataset"; do sleep 0.1; done
done
sleep 0.05
echo "$dataset $items" >> scored
echo "{\"items\": $items}"
)");
  }

  // d1 ... dN of `items` items each, 10 ms an item.
  void plain(int n, int items) {
    for (int i = 1; i <= n; ++i)
      datasets.push_back("name = \"d" + std::to_string(i) + "\"\nitems = " + std::to_string(items) +
                         "\nitem_s = 0.01\nmetric_s = 0.1\n");
  }

  std::string config() {
    std::string text = "[evals]\nstate = \"" + state + "\"\n[cluster]\nshared_memory = \"" + (dir / "memory") + "\"\n" +
                       cluster + "[trial]\n" + trial + "[[model]]\nname = \"m\"\ncheckpoints = \"checkpoints\"\n" +
                       model + "[inference]\n" + inference + "[metric]\n" + metric + more;
    for (const std::string& d : datasets) text += "[[dataset]]\n" + d;
    write_text(dir / "c.toml", text);
    return dir / "c.toml";
  }

  Outcome run(const std::string& options = "") { return orrery("evals run '" + config() + "' --json " + options); }

  nlohmann::json answer(int status = 0, const std::string& options = "") {
    const Outcome o = run(options);
    EXPECT_EQ(o.status, status) << o.err << o.out;
    return o.out.empty() ? nlohmann::json::object() : nlohmann::json::parse(o.out);
  }

  std::vector<std::string> lines(const std::string& file) const {
    std::vector<std::string> all;
    std::istringstream in(read_file(dir / file));
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }

  bool memory_is_empty() const { return fs::is_empty(dir / "memory"); }
};

inline bool has_note(nlohmann::json d, const std::string& name) {
  for (const auto& n : d["notes"])
    if (n["name"] == name) return true;
  return false;
}

// The pieces that have outputs cover every dataset once; each is scored with all of its items.
inline void expect_scored_once(nlohmann::json d, const std::string& checkpoint, int datasets, int items) {
  std::map<std::string, std::vector<std::pair<int, int>>> covered;
  for (const auto& t : d["trials"])
    if (t["checkpoint"] == checkpoint && t.contains("pieces"))
      for (const auto& p : t["pieces"])
        if (p["state"] == "dumped") covered[p["dataset"].get<std::string>()].emplace_back(p["first"], p["items"]);
  EXPECT_EQ(covered.size(), static_cast<std::size_t>(datasets));
  for (auto& [dataset, ranges] : covered) {
    std::sort(ranges.begin(), ranges.end());
    int at = 0;
    for (const auto& [first, n] : ranges) {
      EXPECT_EQ(first, at) << dataset;
      at += n;
    }
    EXPECT_EQ(at, items) << dataset;
    EXPECT_EQ(d["scores"][checkpoint][dataset]["items"], items)
        << dataset << " of " << d["results"].dump(1) << d["trials"].dump(1);
  }
}

}  // namespace orrery::test
