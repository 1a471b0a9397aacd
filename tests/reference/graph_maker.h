// Execution graphs written by hand, one node a line. For tests.
#pragma once
#include <initializer_list>
#include <random>
#include <vector>

#include "graph/exec_graph.h"
#include "replay/replay.h"

namespace orrery {

struct Pred {
  NodeId from = kNoNode;
  EdgeKind how = EdgeKind::root;
  Ns lag = 0;
};
inline Pred root(Ns lag = 0) { return {kNoNode, EdgeKind::root, lag}; }

struct GraphMaker {
  ExecGraph g;

  // Every rank has the lanes first_lane .. first_lane + lanes - 1; lane k of rank r is r * lanes + k.
  explicit GraphMaker(std::uint32_t ranks = 1, std::uint32_t lanes_of_rank = 4);

  // `lane` is counted within the rank. The observed start is 0 until observe() or set_observed().
  NodeId add(NodeKind kind, std::uint32_t lane, Ns duration, const std::vector<Pred>& preds, OpId source = kNoOp,
             bool at_begin = false, std::uint32_t rank = 0);
  NodeId host(std::uint32_t lane, Ns duration, const std::vector<Pred>& preds, OpId source = kNoOp,
              bool at_begin = false, std::uint32_t rank = 0) {
    return add(NodeKind::host, lane, duration, preds, source, at_begin, rank);
  }
  // A GPU task that starts at `start` whatever happens.
  NodeId task(NodeKind kind, std::uint32_t lane, Ns start, Ns duration, OpId source = kNoOp, std::uint32_t rank = 0) {
    return add(kind, lane, duration, {root(start)}, source, false, rank);
  }
  // A step whose boundaries are two host nodes of no length on lane 0, at `begin` and `end`.
  void step(std::int64_t number, Ns begin, Ns end, std::uint32_t rank = 0);
  // The measured run is the replayed one.
  Replay observe();
};

// A random graph of `nodes` nodes that replay() can run; durations, lags (also negative) and shapes vary with `random`.
ExecGraph random_graph(std::uint32_t nodes, std::mt19937_64& random);

}  // namespace orrery
