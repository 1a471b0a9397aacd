// What the ranks of a job said to each other: communication kernels, the process groups that they belong to, which of
// them met, and the clocks of the hosts, which those meetings tell. Few rows beside the graph's nodes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace orrery {

enum class CommOp : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  reduce,
  gather,
  scatter,
  send,
  recv,
  exchange,  // several sends and receives in one kernel; without metadata possibly an all-to-all
  other
};

// Nobody can end before everybody has arrived: the data of every member are in every result.
bool is_barrier(CommOp op);
// Between two ranks, not by a whole group.
bool is_point_to_point(CommOp op);
// What "Collective name" or, failing that, the name of a kernel says.
CommOp comm_op_of_collective(std::string_view collective);
CommOp comm_op_of_kernel(std::string_view kernel);
// Bytes on the busiest link a byte of message, by NCCL's tests (doc/PERFORMANCE.md): 2(n-1)/n for an all-reduce,
// (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for the others.
double bus_factor(CommOp op, std::int64_t group_size);

struct CommGroup {                  // one communicator
  std::string label;                // its description, else its name, else "ranks:0,1,..."
  std::vector<std::int64_t> ranks;  // ascending; empty = not known in whole
  std::int64_t size = 0;            // 0 = not known
  bool inferred = false;            // told by times and order, the trace has no metadata
  bool operator==(const CommGroup&) const = default;
};

struct CommPart {  // one send or receive of a kernel
  std::int64_t peer = -1;
  std::int64_t bytes = -1;
  std::uint32_t group = kNone;  // row of Communication::groups
  bool send = false;
};

struct CommRow {               // one communication kernel
  std::uint32_t rank = 0;      // row of ExecGraph::ranks
  std::uint32_t node = kNone;  // where it arrives
  std::uint32_t last = kNone;  // where it ends: `node` itself unless it meets others
  CommOp op = CommOp::other;
  std::uint32_t op_name = 0;  // row of Communication::op_names
  std::uint32_t group = kNone;
  std::int64_t bytes = -1;  // the larger of input and output, all parts together; -1 = not known
  std::uint64_t shape = 0;  // equal on all members: element type and count; 0 = not known
  std::int64_t seq = -1;
  std::int64_t step = -1;    // profiler step that launched it, -1 = none
  std::uint32_t stream = 0;  // graph lane
  bool launched = false;     // its launch is in the trace; rows before the window have no metadata
  Ns start = 0, end = 0;     // measured, in the common clock
  Ns transfer = -1;          // of its duration, after the last partner had arrived; -1 = it met nobody
  std::uint32_t first_part = 0, parts = 0;
};

struct Member {
  std::uint32_t row = 0;  // row of Communication::rows
  bool waits = true;      // false: it left before the last arrived (root of a broadcast, a buffered send)
  Ns transfer = 0;        // its time from the last arrival (from its own where it does not wait) to its end
};

struct Meeting {                         // one collective, or one send with its receive
  std::uint32_t first = 0, members = 0;  // rows of Communication::members
  std::uint32_t group = kNone;
  CommOp op = CommOp::other;
  std::uint32_t missing = 0;  // members without a trace
  Ns arrival = 0;             // of the last member, measured; of a missing one as its end told
  Ns transfer = 0;            // from there to the end, median of the members that wait
  NodeId node = kNoNode;      // the rendezvous
};

struct HostClock {
  std::string host;                  // "" = not recorded
  std::vector<std::uint32_t> ranks;  // rows of ExecGraph::ranks
  bool known = false;                // false: nothing ties it to the first host; taken as it is
  Ns offset = 0;                     // this clock minus the first host's, at `at`
  double drift_ppm = 0;              // growth of the offset, microseconds a second
  Ns at = 0;
  std::uint32_t observations = 0;  // ends of collectives that it was fitted on
  Ns spread = 0;                   // median distance of those from the fit
  Ns error() const;                // standard error of the offset, from the spread and their number
  Ns offset_at(Ns t) const { return offset + static_cast<Ns>(drift_ppm * 1e-6 * static_cast<double>(t - at)); }
};

struct Clocks {
  std::vector<HostClock> clocks;       // the first host's first
  std::vector<std::uint32_t> of_rank;  // by row of ExecGraph::ranks
};

struct Communication {
  std::vector<CommGroup> groups;
  std::vector<std::string> op_names;  // as the trace says
  std::vector<CommRow> rows;          // by rank, then in launch order
  std::vector<CommPart> parts;
  std::vector<Meeting> meetings;
  std::vector<Member> members;
  std::uint64_t expected = 0;                // kernels launched in the window whose partners' traces are here
  std::uint64_t matched = 0;                 // of those, the ones that met their partners
  std::vector<HostClock> clocks;             // the first host's first
  std::vector<std::uint32_t> clock_of_rank;  // by row of ExecGraph::ranks; kNone with one rank
  std::uint64_t alone = 0;                   // kernels of groups of which no other rank's trace is here
  void clear() { *this = {}; }
};

}  // namespace orrery
