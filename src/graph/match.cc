// Collectives and point-to-point of different ranks -> meetings.
//
// A communicator runs its collectives in one order on all members. So each member has a sequence of kernels for it, in
// launch order, and only the place of one sequence against another is to be found: windows may open in the middle of a
// step, at another collective on each rank. With `Seq` it is read. Without, the sequences are laid beside each other
// where operation, shape and profiler step agree and, of several such places, where the ends differ by the same time
// throughout. Kernels from before the window (no launch, no metadata) are laid in front, by their stream.
// A send meets its receive in the same way: one sequence for each source and destination, whatever the communicator.
// Without any metadata a stream of communication is a sequence; streams of different ranks that agree in operations and
// always overlap in time are taken for one communicator.
#include "graph/match.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <unordered_map>

#include "base/median.h"

namespace orrery {
namespace {

constexpr std::int64_t kReach = 512;  // how far from the likely places another one is looked for
constexpr Ns kSkew = 20'000;          // between the ends of one collective on two ranks, at the median

struct Item {  // one kernel, or one part of it, in a sequence
  std::uint32_t row;
  CommOp op;
  std::uint64_t shape;
  std::int64_t step;
  Ns start, end;
};
using Sequence = std::vector<Item>;

bool agree(const Item& a, const Item& b) {
  return a.op == b.op && (a.shape == b.shape || a.shape == 0 || b.shape == 0) &&
         (a.step == b.step || a.step < 0 || b.step < 0);
}

struct Place {
  std::int64_t shift = 0;  // b[j] lies beside a[j + shift]
  std::size_t overlap = 0, wrong = 0;
  bool found = false;
  bool by_time = false;  // other places agree as well, only the times speak for this one
};

// Median distance of the differences of ends from their median (and from zero on one clock), over at most 256 pairs.
Ns unevenness(const Sequence& a, const Sequence& b, std::int64_t shift, bool same_clock) {
  const std::int64_t first = std::max<std::int64_t>(0, -shift);
  const std::int64_t last = std::min<std::int64_t>(std::ssize(b), std::ssize(a) - shift);
  const std::int64_t stride = std::max<std::int64_t>(1, (last - first) / 256);
  std::vector<Ns> diff;
  for (std::int64_t j = first; j < last; j += stride)
    diff.push_back(b[static_cast<std::size_t>(j)].end - a[static_cast<std::size_t>(j + shift)].end);
  if (diff.empty()) return 0;
  const Ns middle = same_clock ? 0 : median(diff);
  for (Ns& x : diff) x = x > middle ? x - middle : middle - x;
  return median(diff);
}

Place align(const Sequence& a, const Sequence& b, bool same_clock) {
  const std::int64_t la = std::ssize(a), lb = std::ssize(b);
  Place best;
  if (la == 0 || lb == 0) return best;
  const std::int64_t least = std::max<std::int64_t>(1, std::min(la, lb) / 2);
  // from the end, from the start, and what lies between and around
  const std::int64_t from = std::max(std::min<std::int64_t>(0, la - lb) - kReach, least - lb);
  const std::int64_t to = std::min(std::max<std::int64_t>(0, la - lb) + kReach, la - least);
  std::vector<Place> places;
  std::size_t fewest = SIZE_MAX;
  for (std::int64_t s = from; s <= to; ++s) {
    const std::int64_t first = std::max<std::int64_t>(0, -s), last = std::min(lb, la - s);
    Place p{s, static_cast<std::size_t>(last - first), 0, true};
    const std::size_t bound = std::min(fewest, p.overlap / 10);
    for (std::int64_t j = first; j < last && p.wrong <= bound; ++j)
      p.wrong += !agree(a[static_cast<std::size_t>(j + s)], b[static_cast<std::size_t>(j)]);
    if (p.wrong > bound) continue;
    if (p.wrong < fewest) fewest = p.wrong, places.clear();
    places.push_back(p);
  }
  if (places.size() == 1) return places.front();
  double least_uneven = 0;
  for (const Place& p : places) {
    // A short overlap fits by chance, and the differences of two that drift apart grow with its length: it must be as
    // much better as it is shorter, beyond the skew with which collectives complete.
    const double uneven =
        static_cast<double>(unevenness(a, b, p.shift, same_clock) + kSkew) / static_cast<double>(p.overlap);
    if (!best.found || uneven < least_uneven) best = p, least_uneven = uneven;
  }
  best.by_time = true;
  return best;
}

class Matcher {
 public:
  Matcher(const std::vector<RankGraph>& all, const Clocks* known, Communication& comm, Notes& n)
      : ranks(all), clocks(known), out(comm), notes(n) {
    std::map<std::string, std::uint32_t> hosts;
    for (std::uint32_t r = 0; r < ranks.size(); ++r) {
      row_of_rank.emplace(ranks[r].communication.rank, r);
      host.push_back(
          hosts.try_emplace(host_of(ranks[r].communication), static_cast<std::uint32_t>(hosts.size())).first->second);
    }
  }

  // The result: places that only times speak for, of hosts whose clocks were not known.
  std::uint64_t run() {
    gather();
    infer_groups();
    attach_unlaunched();
    match_groups();
    match_pairs();
    count();
    return unsure;
  }

 private:
  Item item(std::uint32_t row) const {
    const CommRow& c = out.rows[row];
    const Ns shift = shift_of(c);
    return {row, c.op, c.shape, c.step, c.start - shift, c.end - shift};
  }
  const HostClock* clock_of(const CommRow& c) const {
    return clocks == nullptr ? nullptr : &clocks->clocks[clocks->of_rank[c.rank]];
  }
  Ns shift_of(const CommRow& c) const {
    const HostClock* k = clock_of(c);
    return k != nullptr ? ahead(*k, c.start) : 0;
  }
  bool same_clock(std::uint32_t a, std::uint32_t b) const {
    const HostClock *x = clock_of(out.rows[a]), *y = clock_of(out.rows[b]);
    if (x != nullptr && x->known && y->known) return true;
    return host[out.rows[a].rank] == host[out.rows[b].rank];
  }

  void gather() {
    const auto global = resolve_groups(ranks, out);
    std::map<std::string, std::uint32_t> names;
    for (std::uint32_t r = 0; r < ranks.size(); ++r) {
      first_row.push_back(static_cast<std::uint32_t>(out.rows.size()));
      const auto group = [&](std::uint32_t local) { return local == kNone ? kNone : global[r][local]; };
      const auto first_part = static_cast<std::uint32_t>(out.parts.size());
      for (CommPart p : ranks[r].communication.parts) {
        p.group = group(p.group);
        out.parts.push_back(p);
      }
      for (CommRow row : ranks[r].communication.rows) {
        row.rank = r;
        row.group = group(row.group);
        row.first_part += first_part;
        const bool pair = row.group != kNone && out.groups[row.group].ranks.size() == 2;
        if ((row.op == CommOp::send || row.op == CommOp::recv) && row.parts == 0 && pair) {
          // without Src or Dst Rank (older PyTorch): in a group of two the peer is the other
          const auto& both = out.groups[row.group].ranks;
          const std::int64_t own = ranks[r].communication.rank;
          row.first_part = static_cast<std::uint32_t>(out.parts.size());
          row.parts = 1;
          out.parts.push_back({both[0] == own ? both[1] : both[0], row.bytes, row.group, row.op == CommOp::send});
        }
        const std::string& name = ranks[r].communication.op_names[row.op_name];
        const auto [it, fresh] = names.try_emplace(name, static_cast<std::uint32_t>(out.op_names.size()));
        if (fresh) out.op_names.push_back(name);
        row.op_name = it->second;
        out.rows.push_back(row);
      }
    }
    first_row.push_back(static_cast<std::uint32_t>(out.rows.size()));
    index.assign(out.rows.size(), kNoIndex);
    met.assign(out.rows.size(), 0);
    outside.assign(out.rows.size(), 0);
  }

  // ---- without metadata ----

  bool one_group(const Sequence& a, const Sequence& b) const {
    const bool same = same_clock(a.front().row, b.front().row);
    const Place p = align(a, b, same);
    if (!p.found || p.wrong != 0 || p.overlap < 3) return false;
    std::vector<Ns> diff;
    const std::int64_t first = std::max<std::int64_t>(0, -p.shift);
    const std::int64_t last = std::min<std::int64_t>(std::ssize(b), std::ssize(a) - p.shift);
    for (std::int64_t j = first; j < last; ++j)
      diff.push_back(b[static_cast<std::size_t>(j)].end - a[static_cast<std::size_t>(j + p.shift)].end);
    const Ns offset = same ? 0 : median(diff);
    // Members of one collective are at it at one time, but for the skew with which it completes; where collectives
    // follow each other closely, other groups in lockstep must not pass for that.
    const Ns spacing = (a.back().end - a.front().end) / std::max<Ns>(1, std::ssize(a) - 1);
    const Ns skew = std::min<Ns>(200'000, spacing / 8);
    std::size_t apart = 0;
    for (std::int64_t j = first; j < last; ++j) {
      const Item &x = a[static_cast<std::size_t>(j + p.shift)], &y = b[static_cast<std::size_t>(j)];
      apart += y.end - offset + skew < x.start || x.end + skew < y.start - offset;
    }
    return apart * 50 <= p.overlap;
  }

  void infer_groups() {
    std::map<std::pair<std::uint32_t, std::uint32_t>, Sequence> streams;  // rank, stream
    for (std::uint32_t i = 0; i < out.rows.size(); ++i) {
      const CommRow& c = out.rows[i];
      if (c.group == kNone && c.parts == 0 && c.launched && c.op != CommOp::other)
        streams[{c.rank, c.stream}].push_back(item(i));
    }
    struct Cluster {
      std::vector<const Sequence*> of;
      std::vector<std::uint32_t> rank;
    };
    std::vector<Cluster> clusters;
    for (const auto& [key, sequence] : streams) {
      Cluster* home = nullptr;
      for (Cluster& c : clusters) {
        if (std::find(c.rank.begin(), c.rank.end(), key.first) != c.rank.end()) continue;
        bool fits = true;
        for (std::size_t k = 0; k < std::min<std::size_t>(c.of.size(), 4) && fits; ++k)
          fits = one_group(*c.of[k], sequence);
        if (fits) {
          home = &c;
          break;
        }
      }
      if (home == nullptr) home = &clusters.emplace_back();
      home->of.push_back(&sequence);
      home->rank.push_back(key.first);
    }
    std::uint64_t inferred = 0;
    std::string first;
    for (const Cluster& c : clusters) {
      if (c.of.size() < 2) continue;
      CommGroup g;
      g.inferred = true;
      g.label = "ranks:";
      for (const std::uint32_t r : c.rank) g.ranks.push_back(ranks[r].communication.rank);
      std::sort(g.ranks.begin(), g.ranks.end());
      for (std::size_t k = 0; k < g.ranks.size(); ++k) g.label += (k == 0 ? "" : ",") + std::to_string(g.ranks[k]);
      g.size = std::ssize(g.ranks);
      for (const Sequence* s : c.of)
        for (const Item& i : *s) out.rows[i.row].group = static_cast<std::uint32_t>(out.groups.size());
      if (first.empty()) first = g.label;
      out.groups.push_back(std::move(g));
      ++inferred;
    }
    notes.add("groups-inferred", Severity::info, inferred, first,
              "process groups told from times and order of kernels: the traces have no NCCL metadata");
  }

  // Kernels from before the window belong to the communicator that their stream serves, if it is one.
  void attach_unlaunched() {
    for (std::uint32_t r = 0; r < ranks.size(); ++r) {
      std::unordered_map<std::uint32_t, std::uint32_t> group_of_stream;  // kNone - 1: several
      for (std::uint32_t i = first_row[r]; i < first_row[r + 1]; ++i) {
        const CommRow& c = out.rows[i];
        const bool inferred = c.group != kNone && out.groups[c.group].inferred;
        if (!c.launched || c.parts != 0 || (is_point_to_point(c.op) && !inferred)) continue;
        const auto [it, fresh] = group_of_stream.try_emplace(c.stream, c.group);
        if (!fresh && it->second != c.group) it->second = kNone;
      }
      for (std::uint32_t i = first_row[r]; i < first_row[r + 1]; ++i) {
        CommRow& c = out.rows[i];
        if (c.launched || c.group != kNone) continue;
        const auto it = group_of_stream.find(c.stream);
        if (it != group_of_stream.end()) c.group = it->second;
      }
    }
  }

  // ---- whole groups ----

  void match_groups() {
    // by group, then by rank: rows in launch order
    std::vector<std::map<std::uint32_t, std::vector<std::uint32_t>>> of_group(out.groups.size());
    for (std::uint32_t i = 0; i < out.rows.size(); ++i) {
      const CommRow& c = out.rows[i];
      if (c.group == kNone || c.parts != 0) continue;
      if (is_point_to_point(c.op) && !out.groups[c.group].inferred) continue;
      of_group[c.group][c.rank].push_back(i);
    }
    for (std::uint32_t g = 0; g < of_group.size(); ++g) {
      if (of_group[g].size() < 2) continue;
      if (!index_by_seq(of_group[g]) && !index_by_order(of_group[g])) continue;
      meet(g, of_group[g]);
    }
  }

  using ByRank = std::map<std::uint32_t, std::vector<std::uint32_t>>;
  static constexpr std::int64_t kNoIndex = std::numeric_limits<std::int64_t>::min();
  static constexpr std::int64_t kOccurrences = 64;  // collectives of one rank that share a number

  bool index_by_seq(const ByRank& by_rank) {
    for (const auto& [rank, rows] : by_rank)
      for (const std::uint32_t i : rows)
        if (out.rows[i].launched && (out.rows[i].seq < 0 || out.rows[i].seq > INT64_MAX / kOccurrences / 2))
          return false;
    std::map<std::int64_t, std::uint32_t> first_of;  // index -> row of the first rank
    std::size_t shared = 0, wrong = 0;
    bool apart = false;
    for (const auto& [rank, rows] : by_rank) {
      std::size_t own = 0, met_others = 0;
      std::unordered_map<std::int64_t, std::int64_t> times;
      for (const std::uint32_t i : rows) {
        if (!out.rows[i].launched) continue;
        const std::int64_t seq = out.rows[i].seq;
        index[i] = seq * kOccurrences + std::min(times[seq]++, kOccurrences - 1);
        ++own;
        const auto [it, fresh] = first_of.try_emplace(index[i], i);
        if (fresh) continue;
        ++shared;
        ++met_others;
        wrong += !agree(item(it->second), item(i)) || never_met(out.rows[it->second], out.rows[i]);
      }
      place_unlaunched(rows, kOccurrences);
      // windows of one run overlap: numbers that do not are not of one count
      apart |= first_of.size() > own && own >= 8 && met_others * 4 < own;
    }
    if (wrong * 5 <= shared && !apart) return true;
    notes.add("sequence-numbers-disagree", Severity::warning, 1, label(by_rank),
              "Seq of a process group pairs collectives of different kind, size or time: matched by order instead");
    return false;
  }

  // On one clock: one ended before the other began.
  bool never_met(const CommRow& a, const CommRow& b) const {
    constexpr Ns kTolerance = 50'000;
    return is_barrier(a.op) && host[a.rank] == host[b.rank] &&
           (a.end + kTolerance < b.start || b.end + kTolerance < a.start);
  }

  std::string label(const ByRank& by_rank) const {
    return out.groups[out.rows[by_rank.begin()->second.front()].group].label;
  }

  // The last kernel from before the window comes right before the first launched one.
  void place_unlaunched(const std::vector<std::uint32_t>& rows, std::int64_t stride) {
    std::size_t first = 0;
    while (first < rows.size() && !out.rows[rows[first]].launched) ++first;
    if (first == rows.size()) return;
    for (std::size_t k = 0; k < first; ++k)
      index[rows[k]] = index[rows[first]] - stride * static_cast<std::int64_t>(first - k);
  }

  Place lay(const Sequence& a, const Sequence& b) {
    const bool same = same_clock(a.front().row, b.front().row);
    const Place p = align(a, b, same);
    unsure += p.found && p.by_time && !same;
    return p;
  }

  bool index_by_order(const ByRank& by_rank) {
    std::vector<Sequence> sequences;
    std::vector<const std::vector<std::uint32_t>*> rows_of;
    for (const auto& [rank, rows] : by_rank) {
      Sequence s;
      for (const std::uint32_t i : rows)
        if (out.rows[i].launched) s.push_back(item(i));
      for (const std::uint32_t i : rows) index[i] = kNoIndex;
      if (s.empty()) continue;
      sequences.push_back(std::move(s));
      rows_of.push_back(&rows);
    }
    if (sequences.size() < 2) return false;
    // The longest is the yardstick.
    std::size_t yard = 0;
    for (std::size_t k = 1; k < sequences.size(); ++k)
      if (sequences[k].size() > sequences[yard].size()) yard = k;
    for (std::size_t k = 0; k < sequences.size(); ++k) {
      Place p;
      p.found = true;
      if (k != yard) p = lay(sequences[yard], sequences[k]);
      if (!p.found) {
        notes.add("sequences-disagree", Severity::warning, 1,
                  label(by_rank) + " on rank " +
                      std::to_string(ranks[out.rows[sequences[k].front().row].rank].communication.rank),
                  "a rank's collectives of a process group do not fit those of the others: kept at their measured "
                  "duration");
        continue;
      }
      for (std::size_t j = 0; j < sequences[k].size(); ++j)
        index[sequences[k][j].row] = static_cast<std::int64_t>(j) + p.shift;
      place_unlaunched(*rows_of[k], 1);
    }
    return true;
  }

  void meet(std::uint32_t group, const ByRank& by_rank) {
    std::vector<std::pair<std::int64_t, std::uint32_t>> order;
    for (const auto& [rank, rows] : by_rank)
      for (const std::uint32_t i : rows)
        if (index[i] != kNoIndex) order.emplace_back(index[i], i);
    std::sort(order.begin(), order.end());
    mark_outside(by_rank);
    for (std::size_t first = 0; first < order.size();) {
      std::size_t last = first;
      while (last < order.size() && order[last].first == order[first].first) ++last;
      // those that agree with the launched majority
      std::uint32_t model = order[first].second;
      std::size_t most = 0;
      for (std::size_t k = first; k < last; ++k) {
        std::size_t votes = 0;
        for (std::size_t j = first; j < last; ++j) votes += agree(item(order[k].second), item(order[j].second));
        if (votes > most) most = votes, model = order[k].second;
        if (most == last - first) break;
      }
      Meeting m{.first = static_cast<std::uint32_t>(out.members.size()), .group = group, .op = out.rows[model].op};
      std::uint32_t previous = kNone;
      for (std::size_t k = first; k < last; ++k) {
        const std::uint32_t i = order[k].second;
        if (!agree(item(model), item(i)) || out.rows[i].rank == previous) continue;
        previous = out.rows[i].rank;
        out.members.push_back({i, true});
        ++m.members;
      }
      if (m.members >= 2) {
        const std::int64_t size = out.groups[group].size;
        m.missing = size > m.members ? static_cast<std::uint32_t>(size - m.members) : 0;
        for (std::uint32_t k = 0; k < m.members; ++k) met[out.members[m.first + k].row] = 1;
        out.meetings.push_back(m);
      } else {
        out.members.resize(m.first);
      }
      first = last;
    }
  }

  // Kernels that lie before the first or after the last of every other rank: their partners were not recorded.
  void mark_outside(const ByRank& by_rank) {
    struct Span {
      std::uint32_t rank;
      std::int64_t first, last;
    };
    std::vector<Span> spans;
    for (const auto& [rank, rows] : by_rank) {
      Span s{rank, INT64_MAX, INT64_MIN};
      for (const std::uint32_t i : rows)
        if (index[i] != kNoIndex) s.first = std::min(s.first, index[i]), s.last = std::max(s.last, index[i]);
      spans.push_back(s);
    }
    for (const auto& [rank, rows] : by_rank) {
      Span others{rank, INT64_MAX, INT64_MIN};
      for (const Span& s : spans)
        if (s.rank != rank) others.first = std::min(others.first, s.first), others.last = std::max(others.last, s.last);
      for (const std::uint32_t i : rows)
        outside[i] = index[i] != kNoIndex && (index[i] < others.first || index[i] > others.last);
    }
  }

  // ---- pairs ----

  void match_pairs() {
    std::map<std::pair<std::int64_t, std::int64_t>, std::array<Sequence, 2>> pairs;  // source, destination: send, recv
    for (std::uint32_t i = 0; i < out.rows.size(); ++i) {
      const CommRow& c = out.rows[i];
      for (std::uint32_t k = 0; k < c.parts; ++k) {
        const CommPart& p = out.parts[c.first_part + k];
        const std::int64_t own = ranks[c.rank].communication.rank;
        const std::pair key = p.send ? std::pair(own, p.peer) : std::pair(p.peer, own);
        pairs[key][p.send ? 0 : 1].push_back({i, CommOp::send, static_cast<std::uint64_t>(p.bytes + 1), c.step,
                                              c.start - shift_of(c), c.end - shift_of(c)});
      }
    }
    for (const auto& [key, ends] : pairs) {
      const auto& [sends, receives] = ends;
      if (sends.empty() || receives.empty()) continue;
      const Place p = lay(sends, receives);
      if (!p.found) {
        notes.add("sequences-disagree", Severity::warning, 1,
                  "sends from rank " + std::to_string(key.first) + " to rank " + std::to_string(key.second),
                  "sends and receives of two ranks do not fit each other: kept at their measured duration");
        continue;
      }
      for (std::int64_t j = 0; j < std::ssize(receives); ++j)
        outside[receives[static_cast<std::size_t>(j)].row] |= j + p.shift < 0 || j + p.shift >= std::ssize(sends);
      for (std::int64_t j = 0; j < std::ssize(sends); ++j)
        outside[sends[static_cast<std::size_t>(j)].row] |= j - p.shift < 0 || j - p.shift >= std::ssize(receives);
      for (std::int64_t j = std::max<std::int64_t>(0, -p.shift);
           j < std::min<std::int64_t>(std::ssize(receives), std::ssize(sends) - p.shift); ++j) {
        const Item& to = receives[static_cast<std::size_t>(j)];
        const Item& from = sends[static_cast<std::size_t>(j + p.shift)];
        if (!agree(from, to)) continue;
        Meeting m{.first = static_cast<std::uint32_t>(out.members.size()), .members = 2, .op = CommOp::send};
        m.group = out.rows[from.row].group;
        out.members.push_back({from.row, true});
        out.members.push_back({to.row, true});
        met[from.row] = met[to.row] = 1;
        out.meetings.push_back(m);
      }
    }
  }

  // ---- what is left ----

  // Whether a trace of another member is here at all.
  bool has_company(std::uint32_t i) const {
    const CommRow& c = out.rows[i];
    for (std::uint32_t k = 0; k < c.parts; ++k)
      if (row_of_rank.contains(out.parts[c.first_part + k].peer)) return true;
    if (c.parts != 0) return false;
    if (c.group == kNone) return ranks.size() > 1;
    for (const std::int64_t r : out.groups[c.group].ranks)
      if (r != ranks[c.rank].communication.rank && row_of_rank.contains(r)) return true;
    return out.groups[c.group].ranks.empty() && ranks.size() > 1;
  }

  void count() {
    enum Reason { unmatched, unrecorded, before, reasons };
    std::array<std::uint64_t, reasons> counts{};
    std::array<std::string, reasons> first;
    for (std::uint32_t i = 0; i < out.rows.size(); ++i) {
      const CommRow& c = out.rows[i];
      const bool company = met[i] != 0 || has_company(i);
      const bool expected = c.launched && company && (met[i] != 0 || outside[i] == 0);
      out.expected += expected;
      out.matched += expected && met[i];
      if (met[i]) continue;
      if (!company) {
        ++out.alone;
        continue;
      }
      const Reason reason = outside[i] ? unrecorded : c.launched ? unmatched : before;
      if (counts[reason]++ != 0) continue;
      first[reason] = out.op_names[c.op_name] + " on rank " + std::to_string(ranks[c.rank].communication.rank);
      if (c.group != kNone) first[reason] += " in " + out.groups[c.group].label;
    }
    if (ranks.size() < 2) return;
    notes.add("collectives-unmatched", Severity::warning, counts[unmatched], first[unmatched],
              "communication kernels whose partners were not found: they keep their measured duration, waiting "
              "included");
    notes.add("collectives-outside-window", Severity::info, counts[unrecorded], first[unrecorded],
              "communication kernels whose partners lie outside of what the other ranks recorded: they keep their "
              "measured duration");
    notes.add("collectives-before-window", Severity::info, counts[before], first[before],
              "communication kernels launched before the trace began, without partners: they keep their measured "
              "duration");
  }

  const std::vector<RankGraph>& ranks;
  const Clocks* clocks;
  Communication& out;
  Notes& notes;
  std::unordered_map<std::int64_t, std::uint32_t> row_of_rank;
  std::vector<std::uint32_t> host;       // by rank: ranks of one host share a clock
  std::vector<std::uint32_t> first_row;  // by rank, and one past the last
  std::vector<std::int64_t> index;       // by row: its place in the order of its communicator
  std::vector<std::uint8_t> met, outside;
  std::uint64_t unsure = 0;
};

}  // namespace

std::string host_of(const RankComm& rank) {
  if (!rank.host.empty()) return rank.host;
  return rank.device < 0 ? "rank " + std::to_string(rank.rank)
                         : "devices from " + std::to_string(rank.rank - rank.device);
}

void match_communication(const std::vector<RankGraph>& ranks, Communication& out, Notes& notes) {
  Notes first_notes;
  if (Matcher(ranks, nullptr, out, first_notes).run() == 0) {
    notes.merge(first_notes);
    return;
  }
  // Some places between hosts were told by times alone, without a common clock. What is sure gives one: once more.
  const Clocks clocks = fit_clocks(ranks, out);
  out.clear();
  Matcher(ranks, &clocks, out, notes).run();
}

}  // namespace orrery
