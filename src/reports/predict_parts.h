// Sections of predict_document, one file each.
#pragma once
#include <optional>
#include <string>

#include "reports/reports.h"

namespace orrery {

// ---- predict_interval.cc ----

// Half-widths (90%) in ms, by cause, of a prediction of `predicted` ms for a run of `replayed` and `measured` ms. The
// replay's own error on the run as it was; of each edit a share of the time that it moved, the more the less the trace
// tells of it (AppliedEdit::doubt), and of edits of the layout a share of the whole (AppliedEdit::floor); `unknown` ms
// of waiting. Never under 0.5% of the prediction in all.
Doubt interval_of(const std::vector<AppliedEdit>& edits, double measured, double replayed, double predicted,
                  double unknown);
// One row a cause, the largest first, with its share of the square of the half-width.
Section interval_section(const Doubt& parts);

// ---- predict_candidates.cc ----

// The best first; those that could not be put together are counted in `notes`.
Section candidates_section(const SearchResult& found, double capacity, Notes& notes);

// The command that predicts the best alone.
Section winner_for_people(const SearchResult& found);

// ---- predict_layout.cc ----

// Both configurations, for programs; and side by side, for people.
Section layout_section(const PredictReportOptions& options);
Section layout_for_people(const Section& layout);

// What a job does in a step; empty = not known.
struct Throughput {
  std::optional<std::int64_t> gpus, global_batch;  // GPUs; sequences
  std::optional<double> tokens_per_s;
};
Throughput throughput_of(const JobLayout* layout, const JobShape* shape, double iteration_ms);

// The edits, what they assume filled into lines.
Section edits_for_people(const std::vector<AppliedEdit>& edits);

void add_column(Section& s, Column column, Cell cell);  // to a section of one row

}  // namespace orrery
