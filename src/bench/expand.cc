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

// What of this model the shipped programs have no code for: they would measure another one. "" = they have all.
std::string unbuilt(const BenchRun& r) {
  const ModelFacts& m = r.model;
  if (m.experts > 0) return "the workers have no mixture of experts: a command of your own may";
  if (m.kv_lora_rank > 0) return "the workers have no latent attention: a command of your own may";
  if (m.qk_norm) return "the workers have no norms of queries and keys: a command of your own may";
  if (m.layer_norms != 2)
    return fmt::format("the workers' layers have 2 norms, this model's {}: a command of your own may", m.layer_norms);
  // A prompt that is learned stands before the text.
  const std::int64_t most = r.seq_length + r.output_tokens + (r.techniques.has("P") ? 1 : 0);
  if (m.sliding_window > 0 && most > m.sliding_window)
    return fmt::format(
        "the workers attend to all tokens, this model to {}: shorter sequences, or a command of your own",
        m.sliding_window);
  if (r.framework != BenchFramework::trainer) return "";
  if (m.ffn != 4 * m.hidden) return "the example trainer's feed-forward layers are 4 times as wide as its hidden ones";
  if (m.kv_heads != m.heads || m.heads * m.head_dim != m.hidden)
    return "the example trainer's heads have keys of their own and share the hidden width";
  if (m.gated_mlp) return "the example trainer has no gated MLP: gated_mlp = false";
  if (m.rms_norm) return "the example trainer has LayerNorm: rms_norm = false";
  return "";
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
    if (reason.empty() && r.framework != BenchFramework::command && r.framework != BenchFramework::orrery)
      reason = unbuilt(r);
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
