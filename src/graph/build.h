// Trace rows -> ExecGraph: what waited for what inside each rank (docs/model.md says how each edge is found).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "data/trace.h"
#include "graph/comm_rows.h"
#include "graph/communication.h"
#include "graph/exec_graph.h"

namespace orrery {

struct GraphOptions {
  bool hide_sync_events = false;    // pretend the trace has no cuda_sync events (to score the inference)
  std::uint32_t without_edges = 0;  // bit 1 << EdgeKind: leave these out (to show that each matters)
  Ns stall_threshold = 0;           // 0 = default; a pause shorter than this stays unexplained idle
  unsigned threads = 0;             // ranks are built side by side; 0 = all cores
};

// Per rank, what the construction saw. Shown by every report.
struct RankQuality {
  std::array<std::uint64_t, kEdgeKinds> edges{};
  std::array<std::uint64_t, kEdgeKinds> dropped{};  // inferred, then contradicted by the times, by kind
  std::uint64_t stalls = 0;
  Ns stall_ns = 0;
  Ns idle_ns = 0;                         // device idle inside the steps, measured
  Ns unexplained_idle_ns = 0;             // of it, what no edge explains (stalls included)
  std::uint64_t event_edges_by_sync = 0;  // from cuda_sync events
  std::uint64_t event_edges_inferred = 0;
};

struct GraphBuild {
  ExecGraph graph;
  std::vector<RankQuality> quality;  // by row of graph.ranks
  Communication communication;
  Notes notes;
};

// One rank by itself, before the ranks are joined. Its times are in its own host's clock.
struct RankGraph {
  ExecGraph graph;
  RankQuality quality;
  RankComm communication;
  Notes notes;
};

// Builds graphs one after the other with the same buffers: first touch of memory costs more than the work itself.
class GraphBuilder {
 public:
  GraphBuilder();
  ~GraphBuilder();
  GraphBuilder(GraphBuilder&&) noexcept;
  GraphBuilder& operator=(GraphBuilder&&) noexcept;

  // `out` is overwritten; its buffers are reused. Ranks are drafted side by side on options.threads threads, then
  // joined where their collectives meet. Without EdgeKind::collective they stay apart, each in its own clock.
  // Errors: no CPU or GPU work at all; too many nodes for 32 bits; times that no graph holds; ranks of different jobs
  // or runs.
  Status build(const TraceSet& traces, const GraphOptions& options, GraphBuild& out);

  // The two halves of build, for rows that need not stay: nothing after `draft` reads more of a trace than its names.
  // draft: one rank; several threads may draft at once, each as another `worker` < workers (see reserve).
  // join: all ranks, in the order of traces.ranks; a single rank's graph moves into `out`.
  void reserve(unsigned workers);
  Status draft(const RankTrace& trace, const GraphOptions& options, unsigned worker, RankGraph& out);
  Status join(const TraceSet& traces, const GraphOptions& options, std::vector<RankGraph>& ranks, GraphBuild& out);

 private:
  struct Room;
  std::vector<std::unique_ptr<Room>> rooms_;  // one a worker
  std::vector<RankGraph> ranks_;              // of build
};

// The same for one graph.
Result<GraphBuild> build_graph(const TraceSet& traces, const GraphOptions& options = {});

// True where the kernel communicates: NCCL metadata first, then the name (NCCL, RCCL, MSCCL, NVSHMEM, DeepEP, vLLM's
// custom all-reduce ...), in any case of letters.
bool is_communication(const RankTrace& t, OpId kernel);
bool is_communication_name(std::string_view kernel_name);

}  // namespace orrery
