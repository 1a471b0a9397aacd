// Past diagnosed cases, and what healthy runs of a job look like, in one SQLite file. Cases are found again by what
// their kept lines have in common with those of a new log: hashed words and pairs of words, weighed by how rare they
// are (TF-IDF, cosine). No network, no model.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "rules/compress.h"

struct sqlite3;

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
  struct Close {
    void operator()(sqlite3* db) const;
  };
  explicit CaseStore(sqlite3* db, std::string path) : db_(db), path_(std::move(path)) {}
  Status run(const char* sql) const;
  std::unique_ptr<sqlite3, Close> db_;
  std::string path_;
};

}  // namespace orrery
