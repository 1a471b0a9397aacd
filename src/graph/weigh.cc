// Transfer and waiting of each meeting.
//
// A collective ends when the last member has arrived and the data are through: a member's transfer is its end less the
// latest start. Members end together but for the skew with which a ring completes, so each has a transfer of its own;
// a common one (the least duration, say) would lose that skew, and what waits for the slowest member with it. On the
// last arrival's host that needs no clocks. Across hosts it needs them to be better than a twentieth of the transfer;
// where they are not, members of another host take the transfer of the last arrival's host, and of their own ends only
// the differences among themselves. Where a member may end before another has arrived (the root of a broadcast, the
// sources of a reduce, a buffered send), those that did are told by the times and do not wait.
// A member without a trace is taken to have arrived when the end says so: at the end less the transfer that the same
// operation, size and group take elsewhere.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/median.h"
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

// The transfer of each member, from the arrival of the last.
void share_out(Communication& out, Meeting& m) {
  const auto row = [&](std::uint32_t k) -> const CommRow& { return out.rows[out.members[m.first + k].row]; };
  const auto host = [&](std::uint32_t k) { return out.clock_of_rank[row(k).rank]; };
  std::uint32_t last = 0;
  Ns error = 0;
  for (std::uint32_t k = 0; k < m.members; ++k) {
    if (row(k).start > row(last).start) last = k;
    error = std::max(error, host(k) == 0 ? 0 : out.clocks[host(k)].error());
  }
  const bool exact = error <= std::max<Ns>(2'000, m.transfer / 20);
  std::vector<Ns> there, waiting;
  for (std::uint32_t k = 0; k < m.members; ++k) {
    Member& member = out.members[m.first + k];
    const CommRow& c = row(k);
    member.transfer = member.waits ? std::clamp<Ns>(c.end - m.arrival, 0, c.end - c.start) : c.end - c.start;
    if (member.waits && host(k) == host(last)) there.push_back(member.transfer);
  }
  for (std::uint32_t k = 0; k < m.members; ++k) {
    Member& member = out.members[m.first + k];
    if (!member.waits) continue;
    if (!exact && host(k) != host(last) && !there.empty()) {
      std::vector<Ns> ends;
      for (std::uint32_t j = 0; j < m.members; ++j)
        if (host(j) == host(k)) ends.push_back(row(j).end);
      const Ns own = median(there) + row(k).end - median(std::move(ends));
      member.transfer = std::clamp<Ns>(own, 0, row(k).end - row(k).start);
    }
    waiting.push_back(member.transfer);
  }
  if (!waiting.empty()) m.transfer = median(std::move(waiting));
}

// A kernel that meets several partners ends after the last of them: what it took after the others is no transfer of
// theirs. Those take no longer than on the partner's side, and the last to arrive keeps the measured end.
void cap_earlier_meetings(Communication& out) {
  std::vector<Ns> latest(out.rows.size(), INT64_MIN);  // by row: last arrival of its meetings
  for (const Meeting& m : out.meetings)
    for (std::uint32_t k = 0; k < m.members; ++k) {
      const Member& member = out.members[m.first + k];
      if (member.waits) latest[member.row] = std::max(latest[member.row], m.arrival);
    }
  for (const Meeting& m : out.meetings) {
    if (m.op != CommOp::send || m.members != 2) continue;
    Member &a = out.members[m.first], &b = out.members[m.first + 1];
    if (!a.waits || !b.waits) continue;
    const Ns least = std::min(a.transfer, b.transfer);
    for (Member* x : {&a, &b})
      if (m.arrival < latest[x->row]) x->transfer = least;
  }
}

}  // namespace

Status check_same_job(const std::vector<RankGraph>& ranks) {
  if (ranks.size() < 2) return {};
  const RankComm* first = nullptr;
  for (const RankGraph& g : ranks) {
    const RankComm& r = g.communication;
    if (r.world_size == 0) continue;
    if (first == nullptr) first = &r;
    if (r.world_size != first->world_size) {
      return fail("traces of different jobs: rank " + std::to_string(first->rank) + " is one of " +
                      std::to_string(first->world_size) + ", rank " + std::to_string(r.rank) + " one of " +
                      std::to_string(r.world_size),
                  "", "give the ranks of one job; `orrery diff` compares two");
    }
  }
  // Groups that one rank lists with another must be the other's as well.
  const auto listed = [](const RankComm& r) {
    std::set<std::vector<std::int32_t>> lists;
    for (const ProcessGroup& g : r.configured) {
      std::vector<std::int32_t> list = g.ranks;
      std::sort(list.begin(), list.end());
      if (list.size() > 1) lists.insert(std::move(list));
    }
    return lists;
  };
  const auto steps_of = [](const RankGraph& g) {
    std::set<std::int64_t> steps;
    for (const Step& s : g.graph.steps)
      if (g.graph.kind[raw(s.begin_node)] == NodeKind::host) steps.insert(s.number);
    return steps;
  };
  const auto lists_of_first = listed(ranks.front().communication);
  const auto steps_of_first = steps_of(ranks.front());
  for (std::size_t k = 1; k < ranks.size(); ++k) {
    const RankComm &a = ranks.front().communication, &b = ranks[k].communication;
    const auto lists = listed(b);
    std::size_t together = 0, agreed = 0;
    const auto count = [&](const auto& own, const auto& other, std::int64_t rank) {
      for (const auto& l : own) {
        if (!std::binary_search(l.begin(), l.end(), rank)) continue;
        ++together;
        agreed += other.contains(l);
      }
    };
    if (!lists.empty() && !lists_of_first.empty()) {
      count(lists_of_first, lists, b.rank);
      count(lists, lists_of_first, a.rank);
    }
    if (agreed * 2 < together) {
      return fail("traces of different jobs: rank " + std::to_string(a.rank) + " and rank " + std::to_string(b.rank) +
                      " list different process groups with each other",
                  "", "give the ranks of one job; `orrery diff` compares two");
    }
    const auto steps = steps_of(ranks[k]);
    const bool shared = std::any_of(steps.begin(), steps.end(), [&](auto n) { return steps_of_first.contains(n); });
    if (!steps.empty() && !steps_of_first.empty() && !shared) {
      return fail("traces of different steps: rank " + std::to_string(a.rank) + " has ProfilerStep#" +
                      std::to_string(*steps_of_first.begin()) + " to #" + std::to_string(*steps_of_first.rbegin()) +
                      ", rank " + std::to_string(b.rank) + " #" + std::to_string(*steps.begin()) + " to #" +
                      std::to_string(*steps.rbegin()),
                  "", "record all ranks over the same steps");
    }
  }
  // Differences of times, and of those, stay inside 64 bits. (Old traces count from the start of the machine, others
  // from 1970: that is no fault.)
  const RankComm *early = nullptr, *late = nullptr;
  for (const RankGraph& piece : ranks) {
    const RankComm& r = piece.communication;
    if (r.window[1] <= r.window[0]) continue;
    if (early == nullptr || r.window[0] < early->window[0]) early = &r;
    if (late == nullptr || r.window[0] > late->window[0]) late = &r;
  }
  Ns span = 0;
  if (early != nullptr && (__builtin_sub_overflow(late->window[0], early->window[0], &span) || span > INT64_MAX / 4)) {
    return fail("traces of different runs: those of rank " + std::to_string(early->rank) + " and rank " +
                    std::to_string(late->rank) + " lie more than 70 years apart",
                "", "one broken time stamp can do this: see baseTimeNanoseconds and the events with the smallest ts");
  }
  // On one host one clock: recordings of one run overlap.
  std::map<std::string, const RankComm*> hosts;
  for (const RankGraph& g : ranks) {
    const RankComm& r = g.communication;
    if (r.window[1] <= r.window[0]) continue;
    const auto [it, fresh] = hosts.try_emplace(host_of(r), &r);
    if (fresh) continue;
    const RankComm& other = *it->second;
    const Ns apart = std::max(r.window[0] - other.window[1], other.window[0] - r.window[1]);
    if (r.absolute == other.absolute && apart > 10'000'000'000) {
      return fail("traces of different runs: those of rank " + std::to_string(other.rank) + " and rank " +
                      std::to_string(r.rank) + " on one host lie " + std::to_string(apart / 1'000'000'000) + " s apart",
                  "", "give the ranks of one run; `orrery diff` compares two");
    }
  }
  return {};
}

void note_oddities(const std::vector<RankGraph>& ranks, const Communication& c, Notes& notes) {
  const RankComm& first = ranks.front().communication;
  // Steps of one number end together: ranks wait for each other at least once in most.
  std::map<std::int64_t, std::pair<Ns, Ns>> spans;  // shortest, longest
  std::set<std::int64_t> present;
  std::int64_t world = 0;
  for (const RankGraph& g : ranks) {
    const RankComm& r = g.communication;
    present.insert(r.rank);
    world = std::max(world, r.world_size);
    for (const Step& s : g.graph.steps) {
      if (g.graph.kind[raw(s.begin_node)] != NodeKind::host) continue;
      const auto [it, fresh] = spans.try_emplace(s.number, s.end - s.begin, s.end - s.begin);
      it->second.first = std::min(it->second.first, s.end - s.begin);
      it->second.second = std::max(it->second.second, s.end - s.begin);
    }
    if (!r.device_name.empty() && !first.device_name.empty() && r.device_name != first.device_name)
      notes.add("devices-differ", Severity::warning, 1,
                r.device_name + " on rank " + std::to_string(r.rank) + ", " + first.device_name + " on rank " +
                    std::to_string(first.rank),
                "are these files from one job?");
  }
  for (const auto& [number, span] : spans)
    if (span.second > 2 * span.first && span.second - span.first > 1'000'000)
      notes.add("steps-differ", Severity::warning, 1,
                "step " + std::to_string(number) + ": " + std::to_string(span.first / 1'000'000) + " to " +
                    std::to_string(span.second / 1'000'000) + " ms",
                "one step takes over twice as long on one rank as on another: are these files from one run?");
  for (const HostClock& h : c.clocks)
    if (h.known && h.observations >= 4 && h.spread > 1'000'000)
      notes.add("clock-uncertain", Severity::warning, 1,
                "host of rank " + std::to_string(ranks[h.ranks.front()].communication.rank) + ": " +
                    std::to_string(h.spread / 1000) + " us",
                "collectives do not end together on the host and the first: are these files from one run?");
  std::string missing;
  std::int64_t absent = 0;
  for (std::int64_t r = 0; r < world && world <= 1'000'000; ++r) {
    if (present.contains(r)) continue;
    if (absent++ < 8) missing += (missing.empty() ? "" : ",") + std::to_string(r);
  }
  if (absent > 8) missing += ",...";
  if (absent > 0)
    notes.add("ranks-missing", Severity::info, static_cast<std::uint64_t>(absent), missing,
              "ranks of the job whose traces are not here: how long others waited for them is known only from the ends "
              "of collectives");
}

Status weigh_meetings(const std::vector<RankGraph>& ranks, Communication& out, Notes& notes) {
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
    m.transfer = least;  // until the arrivals of those without a trace are told
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
            "collectives of which some members' kernels are not in the traces given: those are taken to arrive when "
            "the observed end says so, and keep that pace whatever else changes");
  for (Meeting& m : out.meetings) share_out(out, m);
  cap_earlier_meetings(out);
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
