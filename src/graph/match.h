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

// Fills groups, rows (by rank; nodes still of the rank's own graph, times in the clock of its host), meetings and
// members. `ranks` as they are in the graph. What could not be matched has no meeting.
void match_communication(const std::vector<RankGraph>& ranks, Communication& out, Notes& notes);

// Offset and drift of each host against the first, from the ends of the meetings; rows are in the clock of their host.
// Ranks of one host share a clock: by host name, else by the place of the device (rank - device number).
Clocks fit_clocks(const std::vector<RankGraph>& ranks, const Communication& communication);
// Moves the rows to the common clock, and keeps the clocks in `out`.
void use_clocks(const std::vector<RankGraph>& ranks, Clocks clocks, Communication& out, Notes& notes);

// Arrival, transfer and who waits, of each meeting, from rows in the common clock; drops meetings that the times
// contradict. Error: the ranks cannot be of one job.
Status weigh_meetings(const std::vector<RankGraph>& ranks, Communication& out, Notes& notes);

// How far time `t` of a clock is ahead of the first host's; 0 where that is not known.
inline Ns ahead(const HostClock& clock, Ns t) {
  if (!clock.known) return 0;
  return clock.drift_ppm == 0 ? clock.offset : clock.offset_at(t - clock.offset);
}

// What tells its host: the recorded name, else the place of its device (rank - device number), else the rank itself.
std::string host_of(const RankComm& rank);

// What makes one doubt that the ranks are of one run, and which are missing. After use_clocks; at least one rank.
void note_oddities(const std::vector<RankGraph>& ranks, const Communication& c, Notes& notes);

// Ranks that cannot be of one job, told before anything is matched.
Status check_same_job(const std::vector<RankGraph>& ranks);

}  // namespace orrery
