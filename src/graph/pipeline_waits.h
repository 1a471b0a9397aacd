// What waits for what among the operations of pipelines: shared by learning and assembling.
#pragma once
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "graph/pipeline_graph.h"

namespace orrery {

struct PipelineWait {
  std::uint32_t row = 0, from = kNone;  // kNone = the begin of the step
  bool hand_over = false;               // from another rank
};

inline PipelineKind kind_of(const PipelineTrace& t, const PipelineRow& r) { return t.types[r.type].kind; }

// Rows [first, last) of one rank in one step, for each.
template <class Use>
void for_each_run(const PipelineProgram& p, Use&& use) {
  for (std::uint32_t a = 0, b = 0; a < p.rows.size(); a = b) {
    while (b < p.rows.size() && p.rows[b].step == p.rows[a].step && p.rows[b].rank == p.rows[a].rank) ++b;
    use(a, b);
  }
}

// Transfers of a run are those of its passes in their order: the k-th send of activations carries what the k-th forward
// pass gave that has somebody to give it to. For rows as they were measured.
void number_transfers(const PipelineTrace& t, PipelineProgram& p);

const char* label_of(PipelineScope s);

// (step, type, which of the rank's own in the step, coordinates that the members share) -> rows
using PipelineGroup = std::tuple<std::int32_t, std::int32_t, std::int32_t>;
using PipelineOccurrence = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, PipelineGroup>;
std::map<PipelineOccurrence, std::vector<std::uint32_t>> collectives_of(const PipelineTrace& t,
                                                                        const PipelineProgram& p,
                                                                        const std::vector<PipelineScope>& scope,
                                                                        std::uint32_t only_type = kNone);

// By row. The order of the rank's own work, then what comes from other stages.
std::vector<PipelineWait> waits_of(const PipelineTrace& t, const PipelineModel& m, const PipelineProgram& p);
PipelineModel::LagKey key_of(const PipelineProgram& p, const PipelineWait& w);

// Lane of a type on its rank: 0 the steps, 1 what computes, then one for each kind of communication.
std::vector<std::uint32_t> lanes_of(const PipelineTrace& t, std::uint32_t& lanes);

}  // namespace orrery
