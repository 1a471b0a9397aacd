// Which nodes of a cluster are bad: all-gathers between small groups, suspects again beside nodes that passed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery {

using NodeGroup = std::vector<std::size_t>;  // indices of nodes, each once

struct GroupOutcome {
  bool passed = false;
  double gb_per_s = 0;   // 0 = not told
  std::string why = {};  // where it failed and something was said of it
  bool absent = false;   // it failed since a member never came: whoever starts them may be at fault
};

// Runs one round: the groups have no node in common and may run at once. An outcome for each, in order. An error (no
// such program, told to end meanwhile) is no verdict on any node.
using RunGroups = std::function<Result<std::vector<GroupOutcome>>(const std::vector<NodeGroup>&)>;

enum class NodeVerdict : std::uint8_t {
  good,
  bad,   // fails beside a node that passed, or alone
  slow,  // passes, at less than half of the median rate whoever is beside it
  link   // fails or is slow beside some node, yet not beside another: what is between them, or a fault that passes
};
std::string_view name_of(NodeVerdict verdict);

struct GroupTest {
  int round = 1;
  NodeGroup nodes;
  GroupOutcome outcome;
  bool slow = false;
};

struct NodeCheck {
  std::vector<NodeVerdict> verdicts;  // of each node
  std::vector<GroupTest> tests;       // in the order of their rounds
  bool no_good_node = false;          // no group of two or three passed: nodes were tested alone
  std::vector<bool> untested;         // of each node: never passed, and the last test of it had no member come
};

// Round 1 pairs neighbours (an odd number: the last three). Round 2 pairs each suspect, of a group that failed or was
// slow, with a node that passed, in as many turns as it takes; what was slow but once is tried once more after it.
// Where none passed, round 2 pairs other neighbours, and round 3 what still fails with those that passed now, or else
// each node is tested alone.
Result<NodeCheck> check_nodes(std::size_t nodes, const RunGroups& run);

}  // namespace orrery
