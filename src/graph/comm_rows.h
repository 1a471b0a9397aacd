// One rank's communication as the graph of that rank sees it: before ranks are joined.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "data/trace.h"
#include "graph/communication.h"

namespace orrery {

struct Draft;

struct GroupSeen {  // a process group as the metadata of a call write it
  std::string name, desc, ranks;
  std::int64_t size = 0;
};

struct RankComm {
  std::int64_t rank = 0, device = -1, world_size = 0;
  std::string host;
  std::array<Ns, 2> window{};
  bool absolute = false;    // times count from 1970: the file has its base time
  std::string device_name;  // "" = not recorded
  std::vector<ProcessGroup> configured;
  std::vector<CommRow> rows;  // group: row of `groups`; op_name: row of `op_names`; node, last: of the draft
  std::vector<CommPart> parts;
  std::vector<GroupSeen> groups;
  std::vector<std::string> op_names;
};

// After add_steps. Rows in launch order; those without a launch in the trace first, by start.
void collect_communication(Draft& d, RankComm& out);

}  // namespace orrery
