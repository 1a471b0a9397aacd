// Layouts and techniques side by side, the best first, and the command that shows the best one whole.
#include "reports/plan.h"

#include <fmt/format.h>

namespace orrery {

Document plan_document(const Plan& plan, double seconds, const std::string& command) {
  Document d;
  d.command = "plan";
  Section s{.key = "candidates", .title = "Candidates, the fastest that fits first", .table = {}};
  s.text_rows = 20;
  // For people the layout as columns: one word of it all would not fit.
  const auto text = [](std::string key, std::string title) {
    return Column{.key = std::move(key), .title = std::move(title), .text_only = true};
  };
  s.table.columns = {{.key = "layout", .json_only = true},
                     text("tp", ""),
                     text("pp", ""),
                     text("dp", ""),
                     text("ep", ""),
                     text("batch", "micro-batches"),
                     text("chunks", ""),
                     text("sp", "seq. parallel"),
                     text("zero", ""),
                     text("recompute", ""),
                     {.key = "techniques", .json_only = true},
                     {.key = "iteration_ms", .digits = 1},
                     {.key = "interval_ms", .json_only = true},
                     {.key = "interval_half_ms", .title = "+- ms", .digits = 1},
                     {.key = "tokens_per_s", .digits = 0},
                     {.key = "memory_gib_per_gpu.weights", .json_only = true},
                     {.key = "memory_gib_per_gpu.gradients", .json_only = true},
                     {.key = "memory_gib_per_gpu.optimizer", .json_only = true},
                     {.key = "memory_gib_per_gpu.activations", .json_only = true},
                     {.key = "memory_gib_per_gpu.workspace", .json_only = true},
                     {.key = "memory_gib_per_gpu.total", .title = "GiB a GPU", .digits = 1},
                     {.key = "memory_gib_per_gpu.capacity", .json_only = true},
                     {.key = "binds"},
                     {.key = "fits"},
                     {.key = "options", .json_only = true}};
  for (const PlanCandidate& c : plan.candidates) {
    const double ms = c.iteration_ns / 1e6, half = kHalfOf90 * c.relative_error * ms;
    const MemoryParts& m = c.memory;
    const double capacity = c.job.platform.gpu.memory_gib;
    s.table.rows.push_back({layout_text(c.job),
                            c.job.tp,
                            c.job.pp,
                            c.job.dp,
                            c.job.ep,
                            fmt::format("{} of {}", c.job.num_microbatches, c.job.micro_batch_size),
                            c.job.chunks,
                            c.job.sequence_parallel,
                            std::int64_t{c.job.zero},
                            std::string(name_of(c.job.recompute)),
                            techniques_text(c.job),
                            ms,
                            std::vector<double>{std::max(0.0, ms - half), ms + half},
                            half,
                            c.tokens_per_s,
                            m.weights,
                            m.gradients,
                            m.optimizer,
                            m.activations,
                            m.workspace,
                            m.total,
                            capacity > 0 ? Cell{capacity} : Cell{},
                            std::string(name_of(c.binds)),
                            c.fits,
                            options_text(c.job)});
  }
  Section counts{.key = "", .title = "Search", .single = true, .table = {}};
  counts.table.columns = {
      {.key = "evaluated"}, {.key = "pruned", .title = "too large to be timed"}, {.key = "seconds", .digits = 2}};
  counts.table.rows = {{static_cast<std::int64_t>(plan.evaluated), static_cast<std::int64_t>(plan.pruned), seconds}};
  if (plan.candidates.empty())
    d.notes.add("nothing-fits", Severity::warning, 1, "", "no layout comes near the memory of a GPU: take more GPUs");
  else if (!plan.candidates.front().fits)
    d.notes.add(
        "nothing-fits", Severity::warning, 1, layout_text(plan.candidates.front().job),
        "the candidates shown need more memory than a GPU has: take more GPUs, smaller micro-batches, or offload, "
        "quantise");
  else
    d.notes.add("best", Severity::info, 1, command + " " + options_text(plan.candidates.front().job),
                "shows the best candidate whole");
  d.sections.push_back(std::move(s));
  d.sections.push_back(std::move(counts));
  return d;
}

}  // namespace orrery
