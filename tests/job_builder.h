// Jobs of a few ranks written by hand, and what their joined graph says of a kernel. For tests.
// Every rank's clock reads microseconds from one zero, so times of different ranks can be compared as they are written.
// As in the other graph tests a kernel starts 6 us after its launch call begins or 1 us after the task ahead of it:
// these are the constants that are learnt, and an undisturbed replay of what waits for these is exact.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "trace_builder.h"

namespace orrery::testing {

class RankBuilder : public TraceBuilder {
 public:
  explicit RankBuilder(std::int64_t rank, std::string host = "a", std::int64_t world_size = 0) : TraceBuilder(rank) {
    t.host = std::move(host);
    t.world_size = world_size;
  }

  // A kernel from `start` to `end`, launched by a call of 4 us that begins at `call`.
  OpId task(std::string_view name, double call, double start, double end, std::int64_t stream = 7) {
    return launched(name, call, 4, stream, start, end - start);
  }
  // The same with a collective's arguments.
  OpId meet(std::string_view name, double call, double start, double end, const Comm& c, std::int64_t stream = 7) {
    return describe(task(name, call, start, end, stream), c);
  }
  // As meet(), launched just in time: nothing but its launch holds it.
  OpId free_meet(std::string_view name, double start, double end, const Comm& c, std::int64_t stream = 20) {
    return meet(name, start - 6, start, end, c, stream);
  }
  // Sends and receives that a thread collects and then launches as one kernel without arguments. The operators take the
  // 10 us each before the launch.
  OpId batch(std::string_view name, double call, double start, double end, const std::vector<Comm>& parts,
             std::int64_t stream = 7) {
    double at = call - 10 * static_cast<double>(parts.size());
    for (const Comm& c : parts) {
      comm_op(at, 5, c);
      at += 10;
    }
    return task(name, call, start, end, stream);
  }
};

template <class... Ranks>
TraceSet job(Ranks... ranks) {
  TraceSet set;
  (set.ranks.push_back(ranks.finish()), ...);
  return set;
}

inline TraceBuilder::Comm all_reduce(const char* ranks = "[0, 1]", std::int64_t size = 2, std::int64_t elems = 64) {
  return {.collective = "allreduce", .elems = elems, .group = "1", .desc = "dp", .ranks = ranks, .size = size};
}
// A rank of two that only reduces: every ms one all-reduce of 20 us.
inline RankBuilder steady(std::int64_t rank, std::string host, std::int64_t world, double from, int calls = 10) {
  RankBuilder b(rank, std::move(host), world);
  for (int i = 0; i < calls; ++i) {
    const double at = from + 100 + 1000 * i;
    b.free_meet("ar" + std::to_string(i), at, at + 20, all_reduce());
  }
  return b;
}

// A joined graph, looked at by the names of communication kernels.
class Joined : public Built {
 public:
  using Built::Built;

  const Communication& comm() const { return build.communication; }
  const CommGroup& group(const CommRow& row) const { return comm().groups[row.group]; }

  // The first communication kernel of that name; a failure where there is none.
  std::uint32_t row_index(std::string_view name, std::uint32_t rank = 0) const {
    for (std::uint32_t i = 0; i < comm().rows.size(); ++i) {
      const CommRow& c = comm().rows[i];
      if (c.rank == rank && traces.ranks[rank].name_of(graph().source[c.node]) == name) return i;
    }
    ADD_FAILURE() << "no communication kernel " << name << " on rank " << rank;
    return 0;
  }
  const CommRow& row(std::string_view name, std::uint32_t rank = 0) const { return comm().rows[row_index(name, rank)]; }

  // Replayed times of any GPU task, us from the common zero: when it starts (a collective: arrives) and when it ends.
  double starts(std::string_view name, std::uint32_t rank = 0) const { return to_us(run.start[raw(node(name, rank))]); }
  double ends(std::string_view name, std::uint32_t rank = 0) const { return to_us(run.end[last_of(name, rank)]); }
  // What was measured, in the common clock.
  double waited(std::string_view name, std::uint32_t rank = 0) const {
    const CommRow& c = row(name, rank);
    return to_us(c.end - c.start - c.transfer);
  }
  double transfer(std::string_view name, std::uint32_t rank = 0) const { return to_us(row(name, rank).transfer); }

  // Makes a task longer by so many us, and runs again.
  Joined& delay(std::string_view name, std::uint32_t rank, double by) {
    build.graph.duration[last_of(name, rank)] += us(by);
    again();
    return *this;
  }

  // The names of those that meet, by rank: "ar1@0 ar1@1"; one string a meeting, in the order of the first's launch.
  std::vector<std::string> meetings() const {
    std::vector<std::string> all;
    for (const Meeting& m : comm().meetings) {
      std::vector<std::string> names;
      for (std::uint32_t k = 0; k < m.members; ++k) {
        const CommRow& c = comm().rows[comm().members[m.first + k].row];
        names.push_back(std::string(traces.ranks[c.rank].name_of(graph().source[c.node])) + "@" +
                        std::to_string(graph().ranks[c.rank].rank));
      }
      std::string s;
      for (const std::string& n : names) s += (s.empty() ? "" : " ") + n;
      all.push_back(s);
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  std::string note(std::string_view name) const {  // "" = there is none
    for (const Note& n : build.notes.rows)
      if (n.name == name) return n.first;
    return "";
  }

 private:
  std::uint32_t last_of(std::string_view name, std::uint32_t rank) const {
    std::uint32_t last = raw(node(name, rank));
    for (const CommRow& c : comm().rows)
      if (c.node == last) last = c.last;
    return last;
  }
};

// Why the ranks cannot be joined; "" = they can.
inline std::string refusal(const TraceSet& set) {
  const Result<GraphBuild> b = build_graph(set);
  return b ? "" : b.error().line();
}

}  // namespace orrery::testing
