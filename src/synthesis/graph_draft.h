// Nodes in the order in which they were thought of, and where ranks meet; ordered into an ExecGraph at the end.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "base/result.h"
#include "graph/exec_graph.h"

namespace orrery::synth {

struct GraphDraft {
  struct Edge {
    NodeId from;  // kNoNode: root
    NodeId to;
    Ns lag;
    EdgeKind kind;
  };
  // A collective, or one exchange between two pipeline stages: {group, number of the call in it}.
  using MeetingKey = std::array<std::int64_t, 2>;

  std::vector<Ns> duration;
  std::vector<std::uint32_t> lane;  // of the rank's LaneTable; kNone for a rendezvous
  std::vector<NodeKind> kind;
  std::vector<std::uint8_t> at_begin;
  std::vector<std::uint32_t> rank;
  std::vector<OpId> source;
  std::vector<Edge> edges;
  std::map<MeetingKey, NodeId> meetings;

  std::uint32_t size() const { return static_cast<std::uint32_t>(duration.size()); }
  NodeId add(NodeKind node_kind, std::uint32_t rank_row, std::uint32_t rank_lane, Ns dur, OpId op, bool begin);
  void link(NodeId from, NodeId to, EdgeKind edge_kind, Ns lag) { edges.push_back({from, to, lag, edge_kind}); }
  NodeId meeting(MeetingKey key, std::uint32_t rank_row);

  struct Ordered {
    ExecGraph graph;                 // nodes and edges only
    std::vector<NodeId> new_number;  // of a draft node
  };
  // `first_lane`: by rank, what to add to a lane. The error is a cycle: ranks that wait for each other for ever.
  Result<Ordered> in_order(const std::vector<std::uint32_t>& first_lane) const;
};

}  // namespace orrery::synth
