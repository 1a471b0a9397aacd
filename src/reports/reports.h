// What `orrery replay` and `orrery diff` say: one file per answer, each a pure function of tables -> Section.
// Nothing here prints. Times inside are nanoseconds; the key of each column carries the unit of what is shown.
// Shares and errors of nothing (0 of 0) are null, never 0 or NaN.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/table.h"
#include "data/trace.h"
#include "facts/models.h"
#include "facts/platforms.h"
#include "graph/build.h"
#include "graph/exec_graph.h"
#include "replay/replay.h"
#include "reports/intervals.h"
#include "whatif/edits.h"
#include "whatif/layout.h"
#include "whatif/search.h"

namespace orrery {

// ---- which steps ----

using StepRows = std::vector<std::uint32_t>;  // rows of ExecGraph::steps, by (number, rank)

// The rows whose number is among `numbers`; all when `numbers` is empty. Error: a number that no rank has (the message
// lists those that exist).
Result<StepRows> select_steps(const ExecGraph& g, const std::vector<std::int64_t>& numbers);

// Begin and end of a step in the replayed run.
struct Window {
  Ns begin = 0, end = 0;
};
Window replayed_window(const Replay& r, const Step& s);

// ---- when the device works (device_time.cc) ----

// A GPU task: one node, or two of one source where it meets other ranks: it arrives (`first`, at_begin = 1, no
// duration), then it transfers (`last`). It starts with the first and ends with the last.
struct DeviceTask {
  std::uint32_t first = 0, last = 0;
  std::uint32_t lane = 0;  // graph lane of both
  NodeKind kind = NodeKind::kernel;
};
// All of them, rank by rank in the order of nodes; stalls are none.
struct DeviceTasks {
  std::vector<DeviceTask> rows;
  std::vector<std::uint32_t> first_of_rank;  // by row of ExecGraph::ranks, and one past the last
  std::span<const DeviceTask> of(std::uint32_t rank) const {
    return std::span(rows).subspan(first_of_rank[rank], first_of_rank[rank + 1] - first_of_rank[rank]);
  }
};
DeviceTasks device_tasks(const ExecGraph& g);

struct DeviceTime {  // one rank, unions over all its streams
  Intervals compute, comm, memory;
  Intervals both;    // compute and comm
  Intervals active;  // compute or comm
  Intervals busy;    // any of the three

  struct Run {  // working memory: one class on one stream
    Intervals rows, stray;
  };
  std::vector<Run> runs;
  Intervals spare;
};
// `times` holds begin and end of each task of the rank (begin = end is allowed). The buffers of `out` are reused.
void device_time(std::span<const DeviceTask> tasks, std::span<const Interval> times, const GraphRank& rank,
                 DeviceTime& out);

// One rank's device in both runs. Reports go from rank to rank with one of these: fresh memory costs more than the
// work.
struct DeviceRuns {
  std::uint32_t rank = 0;
  std::span<const DeviceTask> tasks;
  std::vector<Interval> measured_times, replayed_times;  // by task
  DeviceTime measured, replayed;
};
void look_at_device(const ExecGraph& g, const Replay& r, const DeviceTasks& tasks, std::uint32_t rank, DeviceRuns& out);

// ---- classes of time (breakdown.cc) ----

struct ClassTimes {  // ns; exposed_compute + overlapped + exposed_comm + other = the window
  Ns exposed_compute = 0, overlapped = 0, exposed_comm = 0, other = 0;
  Ns memory = 0;  // the part of `other` in which only copies and memsets run
  Ns idle() const { return other - memory; }
};
ClassTimes class_times(const DeviceTime& d, Ns begin, Ns end);

struct StepTimes {         // one step of one rank, ns
  std::uint32_t step = 0;  // row of ExecGraph::steps
  Ns measured = 0, replayed = 0;
  ClassTimes measured_classes, replayed_classes;
  // First start to last end of the GPU tasks launched in the step; -1 when there are none.
  Ns measured_makespan = -1, replayed_makespan = -1;
};
// Fills those of `times` that are steps of the rank; times[i] is the step rows[i].
void add_step_times(const ExecGraph& g, const Replay& r, const DeviceRuns& device, const StepRows& rows,
                    std::vector<StepTimes>& times);
Section steps_section(const ExecGraph& g, const std::vector<StepTimes>& times);
Section summary_section(const ExecGraph& g, const std::vector<StepTimes>& times);

// ---- how good the graph is (quality.cc) ----

// Of the whole traces, whatever steps are chosen.
Section quality_section(const std::vector<RankQuality>& quality, const Communication& c);
// Warns of ranks of whose idle time the graph explains less than 90 %, where there is idle time to speak of: 0.1 ms and
// 1 % of the rank's steps.
void note_unexplained_idle(const ExecGraph& g, const std::vector<RankQuality>& quality, Notes& notes);

// ---- why the device was idle (idle.cc) ----

enum class IdleCause : std::uint8_t { host_late, launch, sync, peer_late, dependency, unexplained };
inline constexpr std::size_t kIdleCauses = 6;

struct IdleTimes {  // one rank, ns, in the replayed run, inside the chosen steps
  std::array<Ns, kIdleCauses> by_cause{};
  Ns host_late_after_sync = 0;  // of host_late: the host had waited for the device in the same pause
  Ns idle = 0;                  // the sum of by_cause
  Ns peers_late = 0;            // nothing ran but communication that waited for other ranks; by_cause[peer_late] in it
  bool has_device = false;      // the rank ran GPU tasks at all
};
IdleTimes idle_times(const ExecGraph& g, const Replay& r, const DeviceRuns& device, const StepRows& rows);
// `times` by row of ExecGraph::ranks.
Section idle_section(const ExecGraph& g, const std::vector<IdleTimes>& times, const std::vector<StepTimes>& steps);

// ---- what the step's time was made of (critical_path.cc) ----

struct Hop {  // time on the path, ns; wait + run of all hops of a step add up to the step
  NodeId node = kNoNode;
  EdgeKind how = EdgeKind::root;  // what released the node
  Ns wait = 0;                    // lag between the release and the start of the node
  Ns run = 0;                     // the node's own time
};
struct CriticalPath {
  std::uint32_t step = 0;  // row of ExecGraph::steps: that of the rank whose replayed step is the longest
  Ns length = 0;           // that step's replayed time
  std::vector<Hop> hops;   // from the end of the step back to its begin
};
// One per step number among `rows`.
std::vector<CriticalPath> critical_paths(const ExecGraph& g, const Replay& r, const StepRows& rows);
Section critical_path_section(const TraceSet& traces, const ExecGraph& g, const std::vector<CriticalPath>& paths);
// Every hop, one row each, in order of time: long; meant for CSV.
Section critical_path_hops_section(const TraceSet& traces, const ExecGraph& g, const Replay& r,
                                   const std::vector<CriticalPath>& paths);
// The path's nodes in order of time, for the exported trace.
std::vector<NodeId> nodes_of(const CriticalPath& path);

// The innermost row of the rank's OpTable whose work a host node is (time inside a call or operator, or between its
// children); kNoOp between top-level rows. Asked for every host node, in order.
class HostOwner {
 public:
  explicit HostOwner(const ExecGraph& graph);
  OpId next(std::uint32_t host_node);

 private:
  const ExecGraph& g_;
  std::vector<std::vector<OpId>> open_;  // by thread: rows that have begun and not ended
};

// ---- how busy the device was (gpu_busy.cc) ----

struct BusyShares {  // one rank in one run
  std::vector<double> shares;
  Ns busy = 0, length = 0;  // of the chosen steps
  bool too_long = false;    // over a million milliseconds: no shares
};
BusyShares busy_shares(const DeviceTime& device, const std::vector<Window>& steps);
struct RankBusy {
  std::uint32_t rank = 0;
  BusyShares measured, replayed;
};
RankBusy gpu_busy(const ExecGraph& g, const Replay& r, const DeviceRuns& device, const StepRows& rows);
Section gpu_busy_section(const ExecGraph& g, std::vector<RankBusy> busy);

// ---- who and what (ranks.cc, stragglers.cc, collectives.cc) ----

Section ranks_section(const TraceSet& traces, const ExecGraph& g, const Communication& c);
Section stragglers_section(const TraceSet& traces, const GraphBuild& build, const Replay& r, const StepRows& rows);
Section collectives_section(const Communication& c);
// Only kernels that started in one of the steps.
Section communication_section(const ExecGraph& g, const Communication& c, const StepRows& rows);

// ---- whole documents ----

struct ReplayReportOptions {
  std::vector<std::int64_t> steps;  // --steps; empty = all
  bool critical_path_hops = false;  // add the section "critical_path_hops" (long)
  unsigned threads = 0;             // ranks are looked at side by side; 0 = all cores
};
// Everything `orrery replay` answers, in the order that people read. Document::inputs is left to the caller.
// Error: a step that does not exist.
Result<Document> replay_document(const TraceSet& traces, const GraphBuild& build, const Replay& r,
                                 const ReplayReportOptions& options = {});

struct PredictReportOptions {
  std::vector<std::int64_t> steps;  // --steps; empty = all
  bool explain = false;             // people see every row of the explanation
  // How the ranks share the work, before and after; nullptr where it could not be told.
  const JobLayout* layout = nullptr;
  const JobLayout* new_layout = nullptr;
  // The same with the model and its schedule; nullptr where they could not be told.
  const JobShape* shape = nullptr;
  const JobShape* new_shape = nullptr;
  const TraceSet* new_traces = nullptr;  // of `changed` where it has others than the base
  const MemoryParts* memory = nullptr;   // of a GPU of the fullest stage, GiB
  double capacity_gib = 0;               // of a GPU; 0 = not known
  const SearchResult* search = nullptr;  // --search
  const Section* stragglers = nullptr;   // those that were taken out
};
// What `orrery predict` answers: `base` as replayed in `before`, `changed` (other ranks and nodes, perhaps) in `after`.
// Document::inputs is left to the caller. Error: a step that does not exist.
Result<Document> predict_document(const TraceSet& traces, const GraphBuild& base, const Replay& before,
                                  const GraphBuild& changed, const Replay& after, const std::vector<AppliedEdit>& edits,
                                  const PredictReportOptions& options = {});

// The GPUs that --platform knows.
Section gpus_section(const std::vector<GpuFacts>& gpus);

struct DissectReportOptions {
  std::vector<std::int64_t> steps;  // --steps; empty = all
  std::string by;                   // --by: people see this level alone, in full; "" = all of them
  unsigned threads = 0;             // ranks are looked at side by side; 0 = all cores
};
// What `orrery dissect` answers: where the time of a step goes, from phases to kernels (dissect.h). Needs the rows of
// the traces, not their names alone. Document::inputs is left to the caller. Error: a step that does not exist.
Result<Document> dissect_document(const TraceSet& traces, const GraphBuild& build,
                                  const DissectReportOptions& options = {});

struct DiffSide {
  const TraceSet& traces;
  const GraphBuild& build;
  const Replay& replay;
};
// What `orrery diff A B` answers. Document::inputs is left to the caller.
Document diff_document(const DiffSide& a, const DiffSide& b);
// The name under which rows of two runs meet: addresses, hashes and step numbers become '*'; template arguments stay.
std::string diff_name(std::string_view name);

// ---- shared by the above ----

inline double to_ms(Ns t) { return static_cast<double>(t) / 1e6; }
// 100 * part / whole; null when whole is 0.
Cell percent(double part, double whole);
// The measured end of a node, and the measured time of a task.
inline Ns observed_end(const ExecGraph& g, std::uint32_t node) { return g.observed_start[node] + g.duration[node]; }
inline Ns observed_time(const ExecGraph& g, const DeviceTask& t) {
  return observed_end(g, t.last) - g.observed_start[t.first];
}

// ---- what is known without a trace (facts.cc) ----

Section models_section(const std::vector<ModelFacts>& models);
Section platforms_section(const std::vector<PlatformFacts>& platforms);

}  // namespace orrery
