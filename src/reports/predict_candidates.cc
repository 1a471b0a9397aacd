// Layouts that a search tried, the fastest that fit first.
#include "reports/predict_parts.h"
#include "whatif/target.h"

namespace orrery {

Section candidates_section(const SearchResult& found, double capacity, Notes& notes) {
  Section s{.key = "candidates", .title = "Layouts, the fastest that fit first", .table = {}};
  s.text_rows = 24;
  s.table.columns = {{.key = "layout.tp", .title = "tp"},
                     {.key = "layout.pp", .title = "pp"},
                     {.key = "layout.dp", .title = "dp"},
                     {.key = "layout.micro_batch_size", .title = "micro batch size"},
                     {.key = "layout.num_microbatches", .title = "micro batches"},
                     {.key = "layout.schedule", .title = "schedule"},
                     {.key = "iteration_ms"},
                     {.key = "interval_ms", .json_only = true},
                     {.key = "interval_half_ms", .title = "+- ms"},
                     {.key = "memory_gib_per_gpu.weights", .json_only = true},
                     {.key = "memory_gib_per_gpu.gradients", .json_only = true},
                     {.key = "memory_gib_per_gpu.optimizer", .json_only = true},
                     {.key = "memory_gib_per_gpu.activations", .json_only = true},
                     {.key = "memory_gib_per_gpu.workspace", .json_only = true},
                     {.key = "memory_gib_per_gpu.total", .title = "GiB a GPU"},
                     {.key = "memory_gib_per_gpu.capacity", .json_only = true},
                     {.key = "fits"},
                     {.key = "binds"},
                     {.key = "time_pct.compute", .json_only = true},
                     {.key = "time_pct.communication", .json_only = true},
                     {.key = "time_pct.bubble", .json_only = true},
                     {.key = "time_pct.other", .json_only = true},
                     {.key = "repeat", .json_only = true}};
  for (const Candidate& c : found.candidates) {
    if (!c.why_not.empty()) {
      notes.add("candidate-left-out", Severity::info, 1, c.why_not, "a layout that could not be put together");
      continue;
    }
    const JobLayout& l = c.shape.layout;
    s.table.rows.push_back({l.tp,
                            l.pp,
                            l.dp,
                            static_cast<std::int64_t>(c.shape.dims.mbs),
                            l.num_microbatches,
                            schedule_text(c.shape),
                            c.iteration_ms,
                            std::vector<double>{c.iteration_ms - c.half_ms, c.iteration_ms + c.half_ms},
                            c.half_ms,
                            c.memory.weights,
                            c.memory.gradients,
                            c.memory.optimizer,
                            c.memory.activations,
                            c.memory.workspace,
                            c.memory.total,
                            capacity > 0 ? Cell{capacity} : Cell{},
                            capacity > 0 ? Cell{c.fits} : Cell{},
                            std::string(binds(c)),
                            c.shares.compute,
                            c.shares.communication,
                            c.shares.bubble,
                            c.shares.other,
                            c.repeat});
  }
  if (found.left_out > 0)
    notes.add("candidates-left-out", Severity::warning, found.left_out, "",
              "more layouts than are tried: give max-tp, max-pp or max-dp");
  return s;
}

Section winner_for_people(const SearchResult& found) {
  Section s{.key = "winner", .title = "The first of them again, alone", .single = true, .table = {}};
  if (!found.candidates.empty() && found.candidates.front().why_not.empty())
    add_column(s, {.key = "command", .text_only = true}, found.candidates.front().repeat);
  return s;
}

}  // namespace orrery
