// Labelled failure logs, where a checkout of them lies beside this one: how often reason, category, restart and root
// line agree. bench/diagnose_score.py does the same with the logs buried in benign output.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "log_helpers.h"

namespace orrery::test {
namespace {

TEST(DiagnoseLabels, ReasonCategoryRestartAndRootLine) {
  const std::string root = ORRERY_SOURCE_DIR "/../shared/data/faults/";
  std::ifstream labels(root + "LABELS.tsv");
  if (!labels) {
    std::cout << "SKIP: no failure logs in ../shared/data\n";
    return;
  }
  std::string line;
  std::getline(labels, line);
  const auto fields = [](const std::string& row) {
    std::vector<std::string> out;
    std::istringstream in(row);
    for (std::string f; std::getline(in, f, '\t');) out.push_back(f);
    return out;
  };
  const std::vector<std::string> names = fields(line);
  double n = 0, reason = 0, category = 0, restart = 0, found = 0;
  while (std::getline(labels, line)) {
    std::map<std::string, std::string> l;
    const std::vector<std::string> row = fields(line);
    for (std::size_t i = 0; i < row.size() && i < names.size(); ++i) l[names[i]] = row[i];
    std::ifstream in(root + "logs/" + l["file"], std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const Diagnosis d = diagnose_text(text);
    if (l["reason"] == "None") {
      EXPECT_EQ(d.verdict, Verdict::healthy) << l["file"];
    }
    if (l["cause_basis"] == "inferred") continue;
    ++n;
    reason += d.reason == l["reason"];
    category += d.category == l["category"];
    restart += d.restart == l["restart"];
    const auto at = static_cast<std::int64_t>(d.evidence.empty() ? 0 : d.evidence[0].line);
    found += l["reason"] == "None" ? at == 0 : std::abs(at - std::stoll(l["root_line"])) <= 2;
  }
  EXPECT_GE(reason / n, 0.95);
  EXPECT_GE(category / n, 0.98);
  EXPECT_GE(restart / n, 0.95);
  EXPECT_GE(found / n, 0.90);
}

}  // namespace
}  // namespace orrery::test
