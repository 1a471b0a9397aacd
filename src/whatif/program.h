// A traced job taken apart: for every piece of every rank the nodes it runs, with waits written so that the piece can
// stand somewhere else: on nodes of its own, or on whatever was last on a lane before it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "costs/work.h"
#include "graph/build.h"
#include "whatif/anatomy.h"
#include "whatif/layout.h"

namespace orrery {

// What a thread or a stream is for, the same on all ranks.
struct LaneRole {
  enum class Kind : std::uint8_t { thread, compute, collective, exchange } kind = Kind::thread;
  std::uint8_t role = 0;  // collective: GroupRole; exchange: 0 towards the next stage, 1 towards the previous, 2 both
  std::uint8_t ordinal = 0;  // of several: threads and compute streams in the order of their work
  auto operator<=>(const LaneRole&) const = default;
};

struct ItemEdge {
  EdgeKind kind;
  bool inside;  // `ref` is an item of the same piece; else a row of Program::roles
  std::uint32_t ref;
  std::uint32_t back;  // of that lane: how many before its last
  Ns lag;
};

struct Item {
  std::uint32_t node;  // of the traced job: duration, kind, source
  std::uint32_t lane;  // row of Program::roles
  std::uint32_t first_edge = 0, edges = 0;
  std::uint32_t comm = kNone;   // row of Communication::rows
  std::uint32_t queue = kNone;  // end of a launch call: the lane on which it may wait for a free place
  Ns order_lag = 0;             // to what is before it on its lane
  Ns root_lag = 0;
  bool root = false;           // starts by itself when it is the first of its lane
  bool in_order = false;       // follows what is before it on its lane
  bool transfer = false;       // of `comm`: its second half
  bool waits = true;           // of a transfer
  std::uint32_t made = kNone;  // row of Program::made
  bool marks = false;          // no node: whatever comes next on `lane` waits for what the edges lead from
  Ns took = -1;                // host work that the node did not have; -1 = as the node
};

// A task that the traced job does not have, or has as another collective (collective_edits.h).
struct MadeTask {
  // Elements: by `elements`; a stage's, without experts or of these alone; a bucket's.
  enum class Size : std::uint8_t { term, stage_parameters, expert_parameters, bucket };
  bool replaces = false;  // of a traced collective: its operation and role, no more
  bool computes = false;  // a kernel over the elements, `ns_each`; else a collective
  CommOp op = CommOp::other;
  GroupRole role = GroupRole::other;
  std::uint32_t lane = kNone;  // row of Program::roles
  std::string name;
  Size size = Size::term;
  Term elements;
  double bytes_each = 0, ns_each = 0;  // of an element
};

// What waits for an exchange after it: a stream, or a thread.
struct ExchangeWait {
  std::uint32_t lane;  // row of Program::roles
  EdgeKind kind;
  Ns lag;
};

struct PieceItems {
  std::uint32_t first = 0, count = 0;  // rows of Program::items
};

struct Program {
  Anatomy anatomy;
  std::vector<std::int64_t> stage;  // by rank
  std::vector<LaneRole> roles;
  std::vector<std::map<std::uint32_t, std::uint32_t>> lane_of;  // by rank: row of roles -> lane of the rank
  std::vector<std::vector<PieceItems>> pieces;                  // by rank, as anatomy.ranks[r].pieces
  std::vector<Item> items;
  std::vector<ItemEdge> edges;
  std::vector<std::uint8_t> weight;               // by item: 1 = gradients of weights (zero_bubble.h)
  std::vector<std::vector<ExchangeWait>> waited;  // by row of Communication::rows
  std::uint32_t queue_depth = 1024;
  std::vector<MadeTask> made;
  double bucket_parameters = 0;         // of made buckets: parameters at which one is full; 0 = as the traced ones
  double expert_bucket_parameters = 0;  // the same, of experts
  std::uint64_t unlike = 0;             // waits on something later in the program, put to the nearest
};

Result<Program> learn_program(const TraceSet& traces, const GraphBuild& build, const JobLayout& layout,
                              const std::vector<std::uint8_t>* packs);

}  // namespace orrery
