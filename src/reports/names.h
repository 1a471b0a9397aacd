// Small things that several reports ask of a graph.
#pragma once
#include <algorithm>
#include <string_view>

#include "data/table.h"
#include "data/trace.h"
#include "graph/exec_graph.h"

namespace orrery {

// What "CPU tasks" counts: operators and CUDA or HIP calls.
inline bool is_cpu_task(OpKind k) { return k == OpKind::cpu_op || k == OpKind::runtime; }

// Graph lanes of all ranks together.
inline std::uint32_t lane_count(const ExecGraph& g) {
  std::uint32_t lanes = 0;
  for (const GraphRank& rank : g.ranks) lanes = std::max(lanes, rank.first_lane + rank.lanes);
  return lanes;
}

// The name of row `op` of the trace that belongs to rank row `rank`; "" when there is no such row.
inline std::string_view op_name(const TraceSet& traces, const ExecGraph& g, std::uint32_t rank, OpId op) {
  const std::uint32_t t = g.ranks[rank].trace;
  if (op == kNoOp || t >= traces.ranks.size() || raw(op) >= traces.ranks[t].ops.size()) return {};
  return traces.ranks[t].name_of(op);
}

// The name of the event that node `i` came from; of a stall or rendezvous without one, its kind.
inline std::string_view node_name(const TraceSet& traces, const ExecGraph& g, std::uint32_t i) {
  const std::string_view name = op_name(traces, g, g.rank[i], g.source[i]);
  return name.empty() ? name_of(g.kind[i]) : name;
}

// A section of one row upright, a key and a value a row, for people; the JSON has the object.
inline Section upright(const Section& wide, std::string title) {
  Section s{.key = wide.key, .title = std::move(title), .table = {}};
  s.table.columns = {{.key = "of the job", .text_only = true}, {.key = "value", .text_only = true}};
  for (std::size_t k = 0; k < wide.table.columns.size(); ++k) {
    const Column& c = wide.table.columns[k];
    if (!c.json_only) s.table.rows.push_back({c.title.empty() ? c.key : c.title, wide.table.rows.front()[k]});
  }
  return s;
}

}  // namespace orrery
