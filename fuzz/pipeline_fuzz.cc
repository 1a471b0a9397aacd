// libFuzzer target of the steps of pipelines: any bytes must give operations or an error; operations must give a graph
// that holds, a replay, and other schedules of the same work. The first byte chooses the options; the rest are
// documents, one a rank, with 0x1e between them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "graph/pipeline_graph.h"
#include "importers/pipeline_steps.h"
#include "replay/replay.h"
#include "whatif/pipeline_steps.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

void check(const PipelineTrace& t) {
  const PipelineRows& rows = t.rows;
  const std::size_t n = rows.size();
  require(rows.step.size() == n && rows.type.size() == n && rows.micro_batch.size() == n && rows.chunk.size() == n);
  require(rows.start.size() == n && rows.end.size() == n);
  for (std::size_t i = 0; i < n; ++i) {
    require(rows.rank[i] < t.ranks.size() && rows.step[i] < t.steps.size() && rows.type[i] < t.types.size());
    require(rows.end[i] >= rows.start[i] && rows.start[i] >= t.steps[rows.step[i]].begin);
    require(rows.end[i] <= t.steps[rows.step[i]].end[rows.rank[i]]);
    if (i > 0 && rows.step[i] == rows.step[i - 1] && rows.rank[i] == rows.rank[i - 1])
      require(rows.start[i] >= rows.start[i - 1]);
  }
  for (std::size_t k = 0; k < t.ranks.size(); ++k) {
    require(k == 0 || t.ranks[k].rank > t.ranks[k - 1].rank);
    require(t.ranks[k].pp < t.stages && t.ranks[k].pp >= 0);
  }
}

void run(const PipelineTrace& t, const PipelineModel& m, const PipelineProgram& p, const TraceSet& names) {
  PipelineBuild built;
  require(assemble_pipeline(t, m, p, built).has_value());  // which checks the graph
  require(built.node_of_row.size() == p.rows.size());
  const ExecGraph& g = built.build.graph;
  for (std::uint32_t i = 0; i < g.size(); ++i)
    require(g.source[i] == kNoOp || raw(g.source[i]) < names.ranks[g.rank[i]].ops.size());
  Replay r;
  replay(g, r);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t choice = data[0];
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<PipelineFile> files;
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    const std::size_t end = rest.find('\x1e');
    if (auto f = read_pipeline_file(rest.substr(0, end), "fuzz", (choice & 1) != 0)) {
      f->rank = rank;
      files.push_back(std::move(*f));
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  const auto t = join_pipeline(std::move(files));
  if (!t) return 0;
  check(*t);
  PipelineRun job = learn_pipeline(*t);
  const TraceSet names = pipeline_rows(*t);
  run(*t, job.model, job.program, names);
  (void)find_slow_parts(*t, job.program);
  (void)recognise_schedule(*t, job.program);
  if ((choice & 2) != 0)
    make_ideal(
        ideal_times(*t, job.program), [](const PipelineRow&) { return true; }, job.program);
  const PipelineSchedule to{static_cast<ScheduleKind>((choice >> 2) % 3), (choice & 12) == 4 ? 2 : 1,
                            (choice & 64) != 0 ? 4 : std::max(1, t->micro_batches)};
  if (const auto changed = reschedule(*t, job.model, job.program, to))
    run(changed->trace, job.model, changed->program, names);
  return 0;
}
