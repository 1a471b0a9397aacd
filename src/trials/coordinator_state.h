// The coordinator's parts: what its files share. Rows of the store are held in memory as they stand there.
#pragma once
#include <deque>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/unix_time.h"
#include "trials/checkpoint_files.h"
#include "trials/coordinator.h"
#include "trials/coverage.h"
#include "trials/job.h"
#include "trials/plan.h"
#include "trials/words.h"

namespace orrery {

inline constexpr int kMostLost = 5;  // tries that ended without a trace, beside those that failed
// Not by this process: its own interrupt() says "stopped" beforehand.
inline constexpr const char* kToldToStop = "somebody else told it to stop (the time limit of its Slurm job?)";
inline constexpr double kRefusedFor = 300;  // seconds without anything that runs: nobody waits any longer
inline constexpr double kStopping = 10;     // seconds: what has not ended by then is killed
inline constexpr int kSameFailures = 3;     // of the same kind, and nothing has ever worked: no more are begun

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Before it is believed that a file is not there: a client of NFS remembers names that were absent for up to a minute,
// unless the directory is opened, which asks the server.
void look_afresh(const std::string& directory);

class Coordinator {
 public:
  Coordinator(const EvalConfig& config, TrialRunner& runner, const EvalHooks& hooks, RunStore store, std::string state)
      : config_(config), runner_(runner), hooks_(hooks), store_(std::move(store)), state_(std::move(state)) {}

  Status open();         // reads the rows, agrees on what must not change, takes up what a predecessor left
  Result<bool> round();  // false: nothing is left to do
  Status interrupt();    // stops the jobs; their items are free again
  EvalOutcome outcome() const;
  void let_copies_go();  // at the end
  EvalProgress progress() const;

 private:
  // coordinator.cc
  Status agree_on_commands();
  MeasuredTimes measured(const std::string& model, const std::string& dataset) const;
  Status remember(const std::string& model, const std::string& dataset, const std::string& kind, std::int64_t items,
                  double seconds);
  Status scan();
  Status scan_model(const EvalModel& model);
  std::string checkpoints_directory(const EvalModel& model) const;
  std::vector<const EvalModel*> without_directory() const;
  Status mark(StoredCheckpoint& c, const std::string& state, const std::string& why);
  void keep_copies();

  // coordinator_trials.cc
  void plan();
  Status keep_words_short();
  Status dispatch();
  Status begin_trials(const std::vector<std::pair<const EvalTrial*, JobPlace>>& now);
  // Starts that the runner did not take, one round after the other.
  struct Refused {
    int times = 0;
    double since = 0, until = 0, pause_s = 0;
    std::string why;
    bool waits() const { return unix_seconds() < until; }
  };
  Status count_refused(const std::vector<Result<std::string>>& handles, Refused& refused);
  bool anything_runs() const;
  Status watch_trials();
  Status look_for_outputs(StoredTrial& t, const std::optional<JobResult>& result, std::vector<StoredPiece*>& changed);
  void look_again_at_outputs(const StoredTrial& t, bool good, std::vector<StoredPiece*>& changed,
                             std::vector<StoredMetric>& voided);
  Status end_trial(StoredTrial& t, const JobResult* result);
  Status give_up(const StoredCheckpoint& c, const std::string& dataset, ItemRange range, const std::string& why);
  Status give_up_if_over(const StoredSetback& b, bool for_good);  // after so many tries of it
  Status remember_times(const StoredTrial& t, const JobResult& r);
  double waited_for_room(std::int64_t checkpoint);
  double last_seen(const std::string& directory, double begun) const;
  std::string trial_directory(std::int64_t trial) const;
  CommandWords words_of(const StoredTrial& t, const std::vector<const StoredPiece*>& pieces) const;
  std::vector<StoredPiece*> pieces_of(std::int64_t trial, const char* state);
  bool has_free_items(const StoredCheckpoint& c) const;
  std::vector<ItemRange> taken(std::int64_t checkpoint, const std::string& dataset) const;

  // coordinator_metrics.cc
  Status want_metrics();
  Status want_metric(const StoredCheckpoint& c, const EvalDataset& d, ItemRange range);
  Status begin_metrics();
  Status begin_metric(StoredMetric& m);
  Status watch_metrics();
  Status end_metric(StoredMetric& m, const JobResult* result);
  Status infer_again(const StoredMetric& m);
  void void_metrics(const StoredPiece& p, std::vector<StoredMetric>& voided);
  Result<FoundScores> read_scores(const StoredMetric& m) const;
  std::string metric_directory(std::int64_t metric) const;
  CommandWords words_of(const StoredMetric& m) const;
  ScoredDataset standing(const StoredCheckpoint& c, const EvalDataset& d) const;

  bool by_item(const EvalDataset& d) const { return d.metric_by_item; }
  // Rows of one dataset of one checkpoint.
  struct Rows {
    std::vector<const StoredPiece*> pieces;
    std::vector<std::size_t> metrics;  // indices of metrics_
  };
  const Rows& rows(std::int64_t checkpoint, const std::string& dataset) const;
  void add_piece(StoredPiece p);
  void index_rows();
  bool is_scored(const Rows& rows, const EvalDataset& d) const;
  const EvalDataset* dataset(const std::string& name) const;
  StoredCheckpoint* checkpoint(std::int64_t id);
  const StoredCheckpoint* checkpoint(std::int64_t id) const;
  std::string dumped_rule() const;              // "" = outputs are complete when the trial has ended
  bool seen_early(const StoredPiece& p) const;  // ... or seen before, one piece after the other

  const EvalConfig& config_;
  TrialRunner& runner_;
  const EvalHooks& hooks_;
  RunStore store_;
  const std::string state_;

  std::vector<StoredCheckpoint> checkpoints_;
  std::vector<StoredTrial> trials_;
  std::deque<StoredPiece> pieces_;  // addresses stay
  std::vector<StoredSetback> setbacks_;
  std::vector<StoredMetric> metrics_;
  std::map<std::pair<std::int64_t, std::string>, Rows> rows_;  // by checkpoint and dataset: there may be many of both
  std::map<std::int64_t, Scores> scores_;
  std::map<std::pair<std::string, std::string>, std::map<std::string, StoredPrior>> priors_;
  Notes notes_;

  // Of this process alone.
  struct Seen {
    std::string fingerprint;
    double since = 0;
    std::string why;
    bool given_up = false;
  };
  std::map<std::pair<std::string, std::string>, Seen> waiting_;  // (model, name): not complete yet
  std::set<std::string> looked_in_;                              // models whose directory could be read
  std::map<std::string, std::string> unreadable_;                // model -> why its directory cannot be read now
  std::vector<EvalUnit> units_;                                  // of the plan
  std::vector<std::string> unit_datasets_;
  std::deque<EvalTrial> planned_;
  bool replan_ = true;
  double last_scan_ = 0;
  const double opened_ = unix_seconds();
  std::map<std::int64_t, double> waits_for_room_;                   // checkpoint -> since when
  std::map<std::pair<std::int64_t, std::string>, CopyLock> holds_;  // (checkpoint, node)
  std::map<std::string, std::pair<std::uintmax_t, double>> sizes_;  // of outputs that are not made whole
  std::string hopeless_;                                            // why no trial is begun any more
  std::string metrics_hopeless_;
  std::map<std::string, int> kinds_;  // failures by kind while nothing has succeeded
  std::map<std::string, int> metric_kinds_;
  Refused refused_trials_, refused_metrics_;
  bool any_begun_ = false;  // the runner has taken something
};

}  // namespace orrery
