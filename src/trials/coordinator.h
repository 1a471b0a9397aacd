// The trial coordinator: checkpoints as they appear, trials on free GPUs, metrics on CPUs, until every dataset of every
// checkpoint has its scores or a reason why not. All it knows is in its store (run_store.h): killed at any moment and
// started again, it goes on, with the jobs that still run.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/notes.h"
#include "trials/config.h"
#include "trials/run_store.h"
#include "trials/runner.h"

namespace orrery {

struct FailureCause {
  std::string reason;  // "File Not Found Error"; "" = not told
  bool again = true;   // a restart may help
  std::string line;    // of the log: the one that says why, else its last
};

// "KIND: WHY", each said once.
std::string reason_text(const std::string& kind, const std::string& why);

// One more of a cause whose note has the first one's whole reason: its name is added.
void name_another(Note& note, const std::string& who);

struct EvalProgress {
  std::int64_t scored = 0, datasets = 0, trials = 0, metrics = 0, failed = 0;  // trials, metrics: running now
  std::string absent;   // a directory of checkpoints that is not there (yet)
  std::string refused;  // why starts are not taken now: they are asked for again
};

struct EvalHooks {
  std::function<FailureCause(const std::string& log)> cause;  // why a command failed
  std::function<bool()> stop;                                 // asked to end
  std::function<void(const EvalProgress&)> progress;
  bool watch = false;  // go on when everything is done, unless nothing more is begun: checkpoints may appear
  double poll_s = 0.1;
};

struct ScoredDataset {
  std::int64_t checkpoint = 0;  // StoredCheckpoint::id
  std::string dataset;
  std::string state;  // scored, failed, vanished, not tried
  std::string why;
  std::int64_t scored_items = 0, parts = 0;  // parts: scored by themselves
  std::string left_out;                      // values that are no numbers
  Scores scores;
};

struct EvalOutcome {
  std::vector<StoredCheckpoint> checkpoints;
  std::vector<StoredTrial> trials;
  std::vector<StoredPiece> pieces;
  std::vector<StoredMetric> metrics;
  std::vector<ScoredDataset> datasets;
  std::vector<StoredCheckpoint> incomplete;  // never begun; id 0
  // (model, dataset): by the jobs themselves, without the time in which they waited for their turn
  std::map<std::pair<std::string, std::string>, MeasuredTimes> measured;
  Notes notes;
  bool complete = false;  // everything is scored
  bool stopped = false;   // asked to end before
};

// The directory of the state, absolute.
std::string state_directory(const EvalConfig& config);

// Measured times by model and dataset; empty where there is no state yet.
Result<std::map<std::pair<std::string, std::string>, MeasuredTimes>> measured_times(const EvalConfig& config);

// Errors: another coordinator works on this state; the state is of another configuration; it cannot be written.
Result<EvalOutcome> coordinate(const EvalConfig& config, TrialRunner& runner, const EvalHooks& hooks);

}  // namespace orrery
