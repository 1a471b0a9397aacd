// Transfer and waiting of each meeting.
//
// A collective ends when the last member has arrived and the data are through: end = latest start + transfer. Its
// transfer is the least duration over the members (that of the last to arrive), which needs no clocks. Where a member
// may end before another has arrived (the root of a broadcast, the sources of a reduce, a buffered send), those that
// did are told by the times and do not wait. In an all-to-all each member has a transfer of its own.
// A member without a trace is taken to have arrived when the end says so: at the end less the transfer that the same
// operation, size and group take elsewhere.
#include <algorithm>
#include <map>
#include <tuple>

#include "graph/match.h"

namespace orrery {
namespace {

constexpr Ns kTolerance = 50'000;  // of the clocks and of the skew with which a ring completes

struct Kind {  // meetings that take alike
  CommOp op;
  std::int64_t bytes;
  std::uint32_t group;
  auto operator<=>(const Kind&) const = default;
};

}  // namespace

Status check_same_job(const std::vector<RankComm>& ranks) {
  if (ranks.size() < 2) return {};
  const RankComm* first = nullptr;
  for (const RankComm& r : ranks) {
    if (r.world_size == 0) continue;
    if (first == nullptr) first = &r;
    if (r.world_size != first->world_size) {
      return fail("traces of different jobs: rank " + std::to_string(first->rank) + " is one of " +
                      std::to_string(first->world_size) + ", rank " + std::to_string(r.rank) + " one of " +
                      std::to_string(r.world_size),
                  "", "give the ranks of one job; `orrery diff` compares two");
    }
  }
  // On one host one clock: recordings of one run overlap.
  std::map<std::string, const RankComm*> hosts;
  for (const RankComm& r : ranks) {
    if (r.window[1] <= r.window[0]) continue;
    const auto [it, fresh] = hosts.try_emplace(host_of(r), &r);
    if (fresh) continue;
    const RankComm& other = *it->second;
    const Ns apart = std::max(r.window[0] - other.window[1], other.window[0] - r.window[1]);
    if (apart > 10'000'000'000) {
      return fail("traces of different runs: those of rank " + std::to_string(other.rank) + " and rank " +
                      std::to_string(r.rank) + " on one host lie " + std::to_string(apart / 1'000'000'000) + " s apart",
                  "", "give the ranks of one run; `orrery diff` compares two");
    }
  }
  return {};
}

Status weigh_meetings(const std::vector<RankComm>& ranks, Communication& out, Notes& notes) {
  // what each kind takes, of meetings all of whose members are here
  std::map<Kind, std::vector<Ns>> complete, partial;
  const auto kind_of = [&](const Meeting& m) {
    const CommRow& c = out.rows[out.members[m.first].row];
    return Kind{m.op, c.bytes, m.group};
  };
  std::uint64_t barriers = 0, contradicted = 0;
  std::string first;
  std::size_t kept = 0;
  for (Meeting m : out.meetings) {
    m.arrival = INT64_MIN;
    Ns least = INT64_MAX, first_end = INT64_MAX;
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const CommRow& c = out.rows[out.members[m.first + k].row];
      m.arrival = std::max(m.arrival, c.start);
      least = std::min(least, c.end - c.start);
      first_end = std::min(first_end, c.end);
    }
    if (is_barrier(m.op)) {
      ++barriers;
      if (first_end < m.arrival - kTolerance) {
        for (std::uint32_t k = 0; k < m.members; ++k) out.matched -= out.rows[out.members[m.first + k].row].launched;
        ++contradicted;
        if (first.empty())
          first = out.op_names[out.rows[out.members[m.first].row].op_name] +
                  (m.group == kNone ? "" : " in " + out.groups[m.group].label) + ", by " +
                  std::to_string((m.arrival - first_end) / 1000) + " us";
        continue;
      }
    } else {
      // who was gone when the last came; a rank that came last of all has waited for nobody but counts as waiting
      Ns waited = INT64_MAX;
      for (std::uint32_t k = 0; k < m.members; ++k) {
        Member& member = out.members[m.first + k];
        const CommRow& c = out.rows[member.row];
        member.waits = c.end >= m.arrival - 2'000;
        if (member.waits) waited = std::min(waited, c.end - c.start);
      }
      if (waited != INT64_MAX) least = waited;
    }
    m.transfer = least;
    (m.missing == 0 ? complete : partial)[kind_of(m)].push_back(least);
    out.meetings[kept++] = m;
  }
  out.meetings.resize(kept);
  if (contradicted * 5 > barriers && contradicted >= 4) {
    return fail("traces of different runs: " + std::to_string(contradicted) + " of " + std::to_string(barriers) +
                    " collectives end on one rank before another has begun them (" + first + ")",
                "", "give the ranks of one run; `orrery diff` compares two");
  }
  notes.add("collectives-contradicted", Severity::warning, contradicted, first,
            "collectives that end on one rank before another has begun them: kept at their measured duration");

  const auto low = [](std::vector<Ns>& v) {
    const auto at = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 10);
    std::nth_element(v.begin(), at, v.end());
    return *at;
  };
  std::map<Kind, Ns> typical;
  std::uint64_t absent = 0;
  std::string first_absent;
  for (Meeting& m : out.meetings) {
    if (m.missing == 0) continue;
    ++absent;
    const Kind kind = kind_of(m);
    if (first_absent.empty() && m.group != kNone) first_absent = out.groups[m.group].label;
    auto it = typical.find(kind);
    if (it == typical.end()) {
      const auto c = complete.find(kind);
      it = typical.emplace(kind, low(c != complete.end() ? c->second : partial.at(kind))).first;
    }
    // by chance the rest of a transfer varies; a peer is late only beyond that
    if (m.transfer <= it->second + it->second / 4 + 20'000) continue;
    Ns end = INT64_MAX;
    for (std::uint32_t k = 0; k < m.members; ++k) end = std::min(end, out.rows[out.members[m.first + k].row].end);
    m.transfer = it->second;
    m.arrival = std::max(m.arrival, end - m.transfer);
  }
  notes.add("members-without-trace", Severity::warning, absent, first_absent,
            "collectives of which some members have no trace here: those are taken to arrive when the observed end "
            "says so, and keep that pace whatever else changes");
  if (out.alone != 0) {
    std::string example;
    for (const CommRow& c : out.rows)
      if (example.empty())
        example = out.op_names[c.op_name] + (c.group == kNone ? "" : " in " + out.groups[c.group].label);
    notes.add("waiting-inside-transfer", Severity::info, out.alone, example,
              ranks.size() == 1 ? "one rank alone: waiting for peers and transfer cannot be told apart; communication "
                                  "keeps its measured duration"
                                : "no other member's trace is here: waiting for peers and transfer cannot be told "
                                  "apart; the kernels keep their measured duration");
  }
  return {};
}

}  // namespace orrery
