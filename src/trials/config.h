// What is to be evaluated, where and how: the TOML file of `orrery evals`. docs/formats/evals.md describes it.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery {

inline constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();

// When a checkpoint that appeared may be read.
enum class CompleteRule : std::uint8_t {
  automatic,    // manifest, else safetensors, else marker-free settling, by what lies there
  manifest,     // of liborrery_ckpt: all shards with the sizes that it states
  safetensors,  // every *.safetensors has the size that its header states; of an index all shards are there
  marker,       // a file of the name `complete_marker` lies in it
  settled       // nothing but the time since the last change
};

struct EvalModel {
  std::string name;
  double size_gb = kNotKnown;  // 10^9 bytes of a checkpoint, for plans; measured once there is one
  std::string checkpoints;     // a directory in which checkpoints appear, files or directories; "" = only plans
  std::string only = "*";      // glob of their names
  CompleteRule complete = CompleteRule::automatic;
  std::string complete_marker;
  double settle_s = 10;  // size and time of change have stayed for so long
};

struct EvalDataset {
  std::string name;
  std::string task, results;  // what the suite calls it, and its results; "" = name
  std::int64_t items = 1;
  double item_s = kNotKnown;    // prior of inference, seconds an item on one GPU
  double prepare_s = 0;         // tokens and prompts, of all items
  double metric_s = kNotKnown;  // prior of the metric, on CPUs
  std::string judge;            // who scores; "" = a program. Judges have a limit of their own
  bool split = true;            // items may go to several trials
  bool metric_by_item = false;  // pieces can be scored by themselves; the score is the mean over items
};

struct EvalJudge {
  std::string name;
  std::int64_t at_once = 4;  // metric jobs that may ask it at the same time
};

// Datasets of a plan that are drawn from a law: `orrery evals simulate` alone.
struct DrawnDatasets {
  std::string name;
  std::int64_t count = 1;
  double busy_median_s = 0, busy_sigma = 0, busy_most_s = 0;  // inference + metric, log-normal, cut
  double item_s = 1, prepare_s = 0;
  double metric_share_least = 0, metric_share_most = 0;  // of busy, even between both
  double metric_most_s = std::numeric_limits<double>::infinity();
  std::string judge;
  bool split = true, metric_by_item = false;
};

enum class RunsOn : std::uint8_t { local, slurm, steps };  // this machine; arrays of jobs; steps of an allocation

struct EvalCluster {
  RunsOn runs = RunsOn::local;
  std::int64_t nodes = 1, gpus_per_node = 1, cpu_jobs_per_node = 4;
  bool metrics_on_gpus = false;  // when no trial is left for a GPU, its place may run a metric beside the CPU jobs
  double link_gbit_per_s = 25;   // of a node to storage
  std::string shared_memory = "/dev/shm";  // where a node keeps a model
  double shared_memory_gb = 0;             // at most so much of it; 0 = what is free
  bool storage_when_full = true;  // a model that does not fit is read from storage by each trial; else an error
  double load_bytes_per_s = 0;    // reading from storage is slowed down to it, all of a node together; 0 = not
  std::vector<std::string> slurm_options, slurm_cpu_options;  // of sbatch, for trials and for metric jobs
};

struct TrialTerms {
  double start_s = 10;       // prior: from the start of a command to its first item, a model in shared memory
  double least_s = 30;       // a piece of a dataset is no shorter
  double limit_s = 86'400;   // a trial that runs longer has failed
  std::int64_t retries = 2;  // further tries of a piece, elsewhere where there is an elsewhere
};

// argv with placeholders: docs/formats/evals.md has the list.
struct EvalCommand {
  std::vector<std::string> argv;
  std::string suite;           // the template's name; "" = the commands are the file's own
  std::string dumped;          // a file whose appearance says that a piece's outputs are complete; "" = the trial's end
  int dumped_directories = 0;  // wildcards of `dumped` that stand for one directory of the suite's own naming
  std::string scores_file;     // glob of the file that has the scores; "" = {scores}, else the last line
  std::string scores_at;       // JSON pointer in it to the object of the scores
  double limit_s = 3600;       // of the metric
  bool splits = true;          // can be told to do some items of a dataset alone
  bool several = true;         // can do several datasets with one load of the model
};

struct DefaultPrior {
  double item_s = 1, metric_s = 10;
};

// What was measured before, one a dataset; kNotKnown where nothing was.
struct MeasuredTimes {
  double item_s = kNotKnown, item_fixed_s = 0;           // item_fixed_s: of a trial, beside the start that is believed
  double metric_item_s = kNotKnown, metric_fixed_s = 0;  // metric_fixed_s: of each job, whatever its items
  double metric_known_items = 0;                         // > 0: only jobs of about so many items were seen
};

struct SimulateTerms {
  std::int64_t seeds = 20;
  std::vector<std::int64_t> nodes;  // empty = cluster.nodes
  double prior_error = 0.05;        // sigma of the natural logarithm of true over prior time, of a dataset
};

struct EvalConfig {
  std::string where;      // the file, named in errors
  std::string directory;  // of the file: relative paths begin there
  std::string name = "evals", state;
  EvalCluster cluster;
  TrialTerms trial;
  std::vector<EvalModel> models;
  std::vector<EvalDataset> datasets;
  std::vector<EvalJudge> judges;
  std::vector<DrawnDatasets> drawn;
  EvalCommand inference, metric;
  DefaultPrior prior;
  SimulateTerms simulate;

  const EvalJudge* judge(std::string_view name) const;
  // No metric command: the scores are those of a trial, over all that it did of a dataset.
  bool scored_by_trials() const { return !inference.argv.empty() && metric.argv.empty(); }
  // Whether items of a dataset or of drawn ones may go to several trials. Scores of a trial are those of its items
  // alone.
  template <class Dataset>
  bool may_split(const Dataset& d) const {
    return d.split && inference.splits && (!scored_by_trials() || d.metric_by_item);
  }
};

// Errors, with the line: not TOML; an unknown key (with the nearest one); a value that is not possible; a name given
// twice. What only `run` needs (commands, checkpoints) is looked at by check_runnable.
Result<EvalConfig> parse_eval_config(std::string_view text, const std::string& where);
Result<EvalConfig> read_eval_config(const std::string& path);
Status check_runnable(const EvalConfig& config);

}  // namespace orrery
