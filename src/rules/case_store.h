// Past diagnosed cases, and what healthy runs of a job look like, in one SQLite file. Cases are found again by what
// their kept lines have in common with those of a new log: hashed words and pairs of words, weighed by how rare they
// are (TF-IDF, cosine). No network, no model.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "rules/compress.h"
#include "store/sqlite.h"

namespace orrery {

struct PastCase {
  std::int64_t id = 0;
  std::string label, reason, category, restart, root_cause, advice;
  double similarity = 0;  // 0 to 1
};

class CaseStore {
 public:
  // Makes the file where there is none. Errors: not an SQLite file, cannot be written.
  static Result<CaseStore> open(const std::string& path);

  // Nothing happens where the same kept lines are already a case of the same reason. Errors: of the file.
  Status remember(const PastCase& c, const std::vector<KeptLine>& lines);
  // The most similar case, none without cases.
  Result<std::optional<PastCase>> nearest(const std::vector<KeptLine>& lines) const;

  Status learn(const std::string& job, const std::vector<std::pair<std::uint64_t, std::string>>& shapes, bool healthy);
  Result<KnownShapes> known(const std::string& job) const;
  // First lines of kinds that healthy runs had, of all jobs.
  Result<std::vector<std::string>> healthy_lines() const;

 private:
  explicit CaseStore(Store store) : store_(std::move(store)) {}
  Store store_;
};

}  // namespace orrery
