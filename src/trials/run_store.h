// The state of an evaluation: one SQLite file in which every step is written before it is taken and after it was, each
// whole. Whoever finds it after a kill knows what may still be running and what is done.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/sqlite.h"
#include "trials/scores.h"

namespace orrery {

struct StoredCheckpoint {
  std::int64_t id = 0;
  std::string model, name, path, fingerprint;
  std::uint64_t bytes = 0;
  std::string state = "ready";  // ready, vanished, altered
  std::string why;
};

// intended: written before its process is started. started: has one, `handle`. ended, failed, lost: has none.
struct StoredTrial {
  std::int64_t id = 0, checkpoint = 0, gpu = -1;
  std::string node, state = "intended", handle, kind, why, load_from;
  double begun = 0, loaded = 0, ended = 0, load_s = 0;
};

// assigned: to a trial that goes on. dumped: its outputs are there, for good unless they are altered before the trial
// ends. failed: given up, for good. released: its trial ended without it; its items are free for another.
struct StoredPiece {
  std::int64_t id = 0, trial = 0, checkpoint = 0, first = 0, items = 0;
  std::string dataset, state = "assigned", output, why;
  double ended = 0;
  std::string seen{};  // sizes and times of change of the outputs when they were taken as dumped
};

// Kept for people: whoever starts again may have mended the cause, so a coordinator begins without them.
struct StoredSetback {
  std::int64_t checkpoint = 0, first = 0, items = 0, gpu = -1, trial = 0;
  bool counts = true;  // towards the tries
  std::string dataset, node, kind, why;
};

struct StoredMetric {
  std::int64_t id = 0, checkpoint = 0, first = 0, items = 0;
  std::string dataset, state = "intended", handle, kind, why;  // states as of trials
  double begun = 0, ended = 0;
};

struct StoredPrior {
  double value = 0;
  std::int64_t count = 0;
};

class RunStore {
 public:
  static Result<RunStore> open(const std::string& path);
  // Only to read; absent where there is no such file.
  static Result<std::optional<RunStore>> look(const std::string& path);

  // What must not change between runs; remembered the first time. Error: another value.
  Status agree(const std::string& key, const std::string& value, const std::string& advice);
  Status agree_anew(const std::string& key, const std::string& value);  // where nothing came of the old value
  // Of this state alone, random, made the first time: another one at the same path has another.
  Result<std::string> token();

  Result<std::vector<StoredCheckpoint>> checkpoints();
  Result<std::vector<StoredTrial>> trials();
  Result<std::vector<StoredPiece>> pieces();
  Result<std::vector<StoredMetric>> metrics();
  Result<std::map<std::int64_t, Scores>> scores();  // of each metric
  // (model, dataset) -> name of the mean (measured.h) -> its value
  Result<std::map<std::pair<std::string, std::string>, std::map<std::string, StoredPrior>>> priors();

  Status add(StoredCheckpoint& c);
  Status update(const StoredCheckpoint& c);  // where it lies, and its state
  // The intent: the trial and its pieces, all or none. Gives them their ids.
  Status add(StoredTrial& t, std::vector<StoredPiece>& pieces);
  Status update(const StoredTrial& t);
  // How a trial went on: itself, its pieces, what went wrong, metrics that are void (their scores go), all or none.
  Status settle(const StoredTrial& t, const std::vector<StoredPiece>& pieces,
                const std::vector<StoredSetback>& setbacks, const std::vector<StoredMetric>& voided = {});
  Status add(StoredPiece& p);  // given up: of no trial
  Status update(const StoredPiece& p);
  Status add(StoredMetric& m);
  Status update(const StoredMetric& m);
  Status settle(const StoredMetric& m, const Scores& scores);  // with its scores, all or none
  // A measurement, into the mean of that name: weight_of_newest() (measured.h).
  Status measured(const std::string& model, const std::string& dataset, const std::string& what, double value);

 private:
  explicit RunStore(Store store) : store_(std::move(store)) {}
  Status write(const StoredTrial& t);
  Status write(const StoredPiece& p);
  Status write(const StoredMetric& m);
  std::int64_t last_id() const;
  Store store_;
};

}  // namespace orrery
