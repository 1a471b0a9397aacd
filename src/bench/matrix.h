// A matrix of runs as a file describes it: what is varied, how a run is measured, where; and the runs that come of it.
// docs/formats/bench.md describes the file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "bench/techniques.h"
#include "facts/models.h"

namespace orrery {

enum class BenchTask : std::uint8_t { pretrain, finetune, inference, operators };
enum class BenchFramework : std::uint8_t {
  pytorch,  // plain; on several GPUs DistributedDataParallel
  fsdp,
  deepspeed,
  megatron,
  trainer,  // the example job of this project
  command,  // the user's own
  orrery    // operators, measured by this tool
};
std::string_view name_of(BenchTask t);
std::string_view name_of(BenchFramework f);

// A command of the user's: words with placeholders, and how it reports.
struct BenchCommand {
  std::string name;
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;
  // What stands for {technique_words}, letter by letter.
  std::vector<std::pair<std::string, std::vector<std::string>>> technique_words;
  enum class Reports : std::uint8_t {
    lines,   // JSON lines of docs/formats/bench.md
    log,     // step times in the log, as `orrery diagnose` reads them
    pattern  // `step_ms`
  } reports = Reports::lines;
  std::string step_ms;  // regular expression; its first group is a step's milliseconds
};

// One run of the matrix. What it is measured with (steps, limits) is the config's.
struct BenchRun {
  BenchTask task = BenchTask::pretrain;
  BenchFramework framework = BenchFramework::pytorch;
  std::string command;  // of framework command: its name
  ModelFacts model;
  Techniques techniques;
  std::string precision = "bf16";
  std::int64_t batch = 1;  // sequences of a rank; 0 = the largest that fits
  std::int64_t seq_length = 512, output_tokens = 0, gpus = 1;

  // "pretrain/llama-2-7b/F+R/b4/s512/g8/bf16/deepspeed": what tells it from the others of its matrix.
  std::string id() const;
  std::string techniques_text() const { return to_text(techniques); }
};

// One [[matrix]]: the product of its lists.
struct MatrixAxes {
  std::vector<BenchTask> tasks;
  std::vector<ModelFacts> models;
  std::vector<Techniques> techniques;
  bool mix = false;  // techniques: every mix of those listed
  std::vector<std::int64_t> batches, seq_lengths, gpus;
  std::vector<std::string> precisions;                             // empty: fp32 of the trainer, bf16 of others
  std::vector<std::pair<BenchFramework, std::string>> frameworks;  // with a command's name
};

struct SlurmWishes {
  bool asked = false;
  std::string partition, account;
  std::int64_t gpus_per_node = 8;
  std::vector<std::string> options;  // further words of sbatch
};

struct BenchConfig {
  std::string path, name;
  std::string store;                   // file; its directory is the config's
  std::string platform;                // name or file of facts; "" = nothing is estimated
  std::string facts;                   // directory of the user's facts; "" = none
  std::vector<std::string> calibrate;  // tables of `orrery bench ops`
  std::int64_t calibrate_runs = 0;     // measured runs that factors of the estimate are fitted to
  bool compare_cpu = false;            // with processor time instead of wall time
  std::string python = "python3", trainer;
  std::vector<std::pair<std::string, std::string>> environment;
  std::int64_t warmup_steps = 5, steps = 10, trace_steps = 2;
  std::int64_t lora_rank = 64, prompt_tokens = 32, output_tokens = 64;
  std::int64_t threads = 0;           // of a rank on the CPU; 0 = cores / ranks
  std::int64_t largest_batch = 1024;  // where the search for the largest batch ends
  std::int64_t reference_every = 8;   // runs between two of the reference; 0 = no noise check
  double time_limit_s = 1800, silence_limit_s = 300;
  double budget_s = 0;                        // 0 = none
  double memory_limit_gib = 0;                // of the host, all ranks together; 0 = none
  std::vector<std::string> operator_options;  // of `orrery bench ops`
  std::string device = "auto";                // or cpu, cuda
  std::vector<MatrixAxes> matrices;
  std::vector<BenchCommand> commands;
  SlurmWishes slurm;
};

// Errors, with the line: not TOML; unknown keys, names or values; no matrix; more runs than can be meant.
Result<BenchConfig> parse_bench_config(std::string_view text, const std::string& path);
Result<BenchConfig> read_bench_config(const std::string& path);

struct RefusedRun {
  BenchRun run;
  std::string reason;
};
struct ExpandedMatrix {
  std::vector<BenchRun> runs;       // in the order of the file, each once
  std::vector<RefusedRun> refused;  // mixes that the rules refuse
  std::int64_t doubles = 0;         // runs that more than one matrix names
};
ExpandedMatrix expand(const BenchConfig& config);

inline constexpr std::int64_t kMostRuns = 20'000;

}  // namespace orrery
