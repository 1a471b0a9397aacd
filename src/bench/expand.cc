// What a matrix names, run by run.
#include <fmt/format.h>

#include <set>

#include "bench/launch.h"
#include "bench/matrix.h"

namespace orrery {
namespace {

std::string tokens_of(const BenchRun& r) {
  return r.task == BenchTask::inference ? fmt::format("s{}+{}", r.seq_length, r.output_tokens)
                                        : fmt::format("s{}", r.seq_length);
}

}  // namespace

std::string BenchRun::id() const {
  if (task == BenchTask::operators) return fmt::format("operators/g{}", gpus);
  const std::string letters = techniques_text();
  return fmt::format("{}/{}/{}/{}/{}/g{}/{}/{}", name_of(task), model.name, letters.empty() ? "none" : letters,
                     batch == 0 ? "max" : fmt::format("b{}", batch), tokens_of(*this), gpus, precision,
                     framework == BenchFramework::command ? command : std::string(name_of(framework)));
}

ExpandedMatrix expand(const BenchConfig& config) {
  ExpandedMatrix out;
  std::set<std::string> seen;
  const auto add = [&](BenchRun r) {
    if (!seen.insert(r.id()).second) {
      ++out.doubles;
      return;
    }
    std::string reason = refused_because(r.techniques, name_of(r.task), name_of(r.framework));
    if (reason.empty() && !r.model.unsupported.empty()) reason = r.model.unsupported;
    if (const BenchCommand* k = command_named(config, r.command); reason.empty() && k != nullptr)
      if (const std::string letter = untold_technique(*k, r.techniques); !letter.empty())
        reason = "command " + k->name + " does not say how it takes technique " + letter;
    if (reason.empty() && r.framework == BenchFramework::trainer && r.precision != "fp32")
      reason = "the example trainer computes in fp32";
    if (reason.empty() && r.framework != BenchFramework::command && r.model.experts > 0)
      reason = "the workers have no mixture of experts: a command of your own may";
    if (reason.empty() && r.framework != BenchFramework::command && r.model.kv_lora_rank > 0)
      reason = "the workers have no latent attention: a command of your own may";
    if (reason.empty()) {
      out.runs.push_back(std::move(r));
    } else {
      out.refused.push_back({std::move(r), std::move(reason)});
    }
  };
  for (const MatrixAxes& a : config.matrices)
    for (const BenchTask task : a.tasks) {
      if (task == BenchTask::operators) {
        for (const std::int64_t gpus : a.gpus) {
          BenchRun r;
          r.task = task;
          r.framework = BenchFramework::orrery;
          r.gpus = gpus;
          add(std::move(r));
        }
        continue;
      }
      for (const auto& [framework, command] : a.frameworks) {
        std::vector<std::string> precisions = a.precisions;
        if (precisions.empty()) precisions = {framework == BenchFramework::trainer ? "fp32" : "bf16"};
        for (const ModelFacts& model : a.models)
          for (const std::string& precision : precisions)
            for (const Techniques& techniques : a.techniques)
              for (const std::int64_t batch : a.batches)
                for (const std::int64_t length : a.seq_lengths)
                  for (const std::int64_t gpus : a.gpus)
                    add({task, framework, command, model, techniques, precision, batch, length,
                         task == BenchTask::inference ? config.output_tokens : 0, gpus});
      }
    }
  return out;
}

}  // namespace orrery
