#include "trials/templates.h"

#include <algorithm>

namespace orrery {
namespace {

const std::vector<EvalTemplate>& templates() {
  static const std::vector<EvalTemplate> all = [] {
    std::vector<EvalTemplate> t(2);
    // 0.4.9. It scores in the process that infers: no job follows, the scores are in its results file. Tasks, no
    // groups: of those --samples is not heeded (suite_counts.h).
    t[0].name = "lm-evaluation-harness";
    t[0].inference.argv = {"lm-eval",
                           "--model",
                           "hf",
                           "--model_args",
                           "pretrained={model}",
                           "--tasks",
                           "{tasks}",
                           "--device",
                           "cuda:0",
                           "--batch_size",
                           "auto",
                           "--samples",
                           "{samples_file}",
                           "--output_path",
                           "{outputs}",
                           "--log_samples"};
    t[0].metric.scores_file = "{outputs}/*/results_*.json";
    t[0].metric.scores_at = "/results/{task}";
    // 0.4. Inference and scoring are modes of the same command; a piece of a dataset cannot be asked for.
    t[1].name = "opencompass";
    t[1].inference.argv = {"opencompass", "--datasets",        "{tasks...}", "--hf-type",     "base",
                           "--hf-path",   "{model}",           "--work-dir", "{outputs}",     "--mode",
                           "infer",       "--max-num-workers", "1",          "--hf-num-gpus", "1"};
    t[1].inference.splits = false;
    t[1].inference.dumped = "{outputs}/*/predictions/*/{results}.json";
    t[1].inference.dumped_directories = 2;  // the time of the start; the model
    t[1].metric.argv = {"opencompass", "--datasets", "{task}",     "--hf-type",         "base",
                        "--hf-path",   "{model}",    "--work-dir", "{outputs}",         "--mode",
                        "eval",        "--reuse",    "latest",     "--max-num-workers", "1"};
    t[1].metric.scores_file = "{outputs}/*/results/*/{results}.json";
    return t;
  }();
  return all;
}

}  // namespace

const EvalTemplate* find_eval_template(std::string_view name) {
  const auto it =
      std::find_if(templates().begin(), templates().end(), [&](const EvalTemplate& t) { return t.name == name; });
  return it == templates().end() ? nullptr : &*it;
}

std::string eval_template_names() {
  std::string names;
  for (const EvalTemplate& t : templates()) names += (names.empty() ? "" : ", ") + std::string(t.name);
  return names;
}

}  // namespace orrery
