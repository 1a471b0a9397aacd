// How a group of nodes is tested: back-ends of check_nodes (node_check.h).
#pragma once
#include <string>
#include <vector>

#include "supervisor/node_check.h"

namespace orrery {

struct GroupRunTerms {
  double timeout_s = 60;          // of a group; then its processes are killed and it has failed
  std::vector<std::string> argv;  // of an external command; {hosts} in an argument becomes the group's nodes, a,b
  std::size_t bytes = 16 << 20;   // of the ring: what each node gives
  // Of rings elsewhere:
  std::vector<std::string> launch;     // starts a program on {host} and passes on its input and output
  std::vector<std::string> worker;     // runs run_ring_worker(); {index} is the member's number
  std::vector<std::string> addresses;  // of each node, in digits
};

// Runs a program for each group, all at once, without a shell: its status 0 is a pass. Where no argument has {hosts}
// the nodes are the last arguments. The last number on its standard output, if the last line has one, is GB/s. Errors:
// a program that cannot be started.
Result<std::vector<GroupOutcome>> run_commands(const GroupRunTerms& terms, const std::vector<std::string>& nodes,
                                               const std::vector<NodeGroup>& groups);

// An all-gather in a ring over TCP: a process a node, each bound to its node's address, which must be one of this
// machine's loopback (127.0.0.0/8). What arrives is compared. GB/s as of bus bandwidth. Errors: other addresses.
Result<std::vector<GroupOutcome>> run_rings(const GroupRunTerms& terms, const std::vector<std::string>& nodes,
                                            const std::vector<NodeGroup>& groups);

// The same ring with its members on the nodes themselves (ring_worker.h), each bound to its node's address alone, with
// a token made for this group. A group whose launcher fails or whose members do not come in time has failed (`absent`);
// `why` says what was said. Errors: a launcher that cannot be started.
Result<std::vector<GroupOutcome>> run_remote_rings(const GroupRunTerms& terms, const std::vector<std::string>& nodes,
                                                   const std::vector<NodeGroup>& groups);

}  // namespace orrery
