// Which communication kernels of different ranks belong together, and what their times say of clocks and waiting.
#pragma once
#include <vector>

#include "base/result.h"
#include "data/notes.h"
#include "graph/build.h"
#include "graph/communication.h"

namespace orrery {

// Fills out.groups; the result is, by rank and row of RankComm::groups, the row of out.groups.
std::vector<std::vector<std::uint32_t>> resolve_groups(const std::vector<RankGraph>& ranks, Communication& out);

// Fills groups, rows (by rank; nodes still of the rank's own graph), meetings and members; clocks are not looked at.
// `ranks` as they are in the graph. What could not be matched has no meeting.
void match_communication(const std::vector<RankGraph>& ranks, Communication& out, Notes& notes);

// Offset and drift of each host against the first, from the ends of the meetings; moves the rows to the common clock.
// Ranks of one host share a clock: by host name, else by the place of the device (rank - device number).
void fit_clocks(const std::vector<RankGraph>& ranks, Communication& out, Notes& notes);

// Arrival, transfer and who waits, of each meeting, from rows in the common clock; drops meetings that the times
// contradict. Error: the ranks cannot be of one job.
Status weigh_meetings(const std::vector<RankGraph>& ranks, Communication& out, Notes& notes);

// What tells its host: the recorded name, else the place of its device (rank - device number), else the rank itself.
std::string host_of(const RankComm& rank);

// Ranks that cannot be of one job, told before anything is matched.
Status check_same_job(const std::vector<RankGraph>& ranks);

}  // namespace orrery
