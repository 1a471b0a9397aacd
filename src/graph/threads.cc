// CPU threads: cut at every begin and end of their rows. The node of a boundary carries the host work up to it.
#include <algorithm>
#include <iterator>
#include <string>

#include "graph/draft.h"

namespace orrery {
namespace {

constexpr std::uint8_t kAsked = 1, kCommOp = 2, kNcclRange = 4;

bool is_host(OpKind k) {
  return k == OpKind::cpu_op || k == OpKind::user_annotation || k == OpKind::python || k == OpKind::runtime;
}

std::uint8_t flags_of(Draft& d, std::uint32_t op) {
  std::uint8_t& f = d.name_flags[raw(d.trace->ops.name[op])];
  if (f == 0) {
    const std::string_view name = d.trace->name_of(OpId{op});
    f = kAsked;
    if (name == "record_param_comms") f |= kCommOp;
    if (name.substr(0, 5) == "nccl:") f |= kNcclRange;
    d.call_of_name[raw(d.trace->ops.name[op])] = classify_call(name);
  }
  return f;
}

// A thread whose rows are nothing but event polls (NCCL's watchdog) is no part of the job's work.
using RowIt = std::vector<Draft::RowKey>::const_iterator;

// Calls of one thread are in order already; a stable merge keeps that where begins are equal.
bool call_order(const CallRow& a, const CallRow& b) { return a.begin < b.begin; }

// Several calls may begin in one microsecond of an old trace: their correlation ids tell which came first.
void order_equal_begins(const OpTable& ops, std::vector<Draft::RowKey>::iterator from,
                        std::vector<Draft::RowKey>::iterator to) {
  std::vector<Draft::RowKey> calls;
  for (auto run = from; run != to;) {
    auto end = run + 1;
    while (end != to && end->start == run->start) ++end;
    if (end - run > 1) {
      auto is_call = [&](const Draft::RowKey& k) { return ops.kind[k.op] == OpKind::runtime && ops.corr[k.op] != 0; };
      calls.clear();
      std::copy_if(run, end, std::back_inserter(calls), is_call);
      std::stable_sort(calls.begin(), calls.end(),
                       [&](const Draft::RowKey& a, const Draft::RowKey& b) { return ops.corr[a.op] < ops.corr[b.op]; });
      auto next = calls.begin();
      for (auto it = run; it != end; ++it) {
        if (is_call(*it)) *it = *next++;
      }
    }
    run = end;
  }
}

bool only_polls(Draft& d, RowIt from, RowIt to) {
  const OpTable& ops = d.trace->ops;
  bool polls = false;
  for (; from != to; ++from) {
    if (ops.kind[from->op] != OpKind::runtime) return false;
    flags_of(d, from->op);
    const Call c = d.call_of_name[raw(ops.name[from->op])];
    if (c == Call::poll)
      polls = true;
    else if (c != Call::other || d.find_group(ops.corr[from->op]) != nullptr)
      return false;
  }
  return polls;
}

struct Walk {
  Draft& d;
  std::uint32_t thread;
  std::uint32_t lane;
  Ns origin;
  std::uint32_t previous = kNone;
  std::uint32_t root_edge = kNone;
  Ns at = 0;

  std::uint32_t boundary(std::uint32_t op, Ns time, bool begin) {
    const bool first = previous == kNone;
    const Ns from = first ? time : at;
    const std::uint32_t node = d.add_node(time - from, from, lane, NodeKind::host, begin ? 1 : 0, op, !first);
    if (first) {
      root_edge = static_cast<std::uint32_t>(d.edges.size());
      d.add_edge(kNone, node, EdgeKind::root, time - origin);
    }
    previous = node;
    at = time;
    (begin ? d.begin_node : d.end_node)[op] = node;
    return node;
  }

  void add_call(std::uint32_t op, Call kind) {
    const OpTable& ops = d.trace->ops;
    CallRow call{ops.start[op], ops.end(op), op,   thread, d.begin_node[op], kNone, kNone, kNone, kNone, 0, 0,
                 kNone,         kind,        false};
    for (auto it = d.open.rbegin(); it != d.open.rend(); ++it) {
      if (call.parent == kNone && it->start < call.begin) call.parent = it->op;
      const std::uint8_t f = d.name_flags[raw(ops.name[it->op])];
      // a call that begins with the range, in whole microseconds, came before it (NCCL's first call takes a while),
      // but for the launch itself
      if (call.nccl_range == kNone && (f & kNcclRange) != 0 &&
          (it->start < call.begin || d.find_group(ops.corr[op]) != nullptr)) {
        call.nccl_range = it->op;
      }
      if ((f & kCommOp) != 0) {
        call.comm_op = it->op;
        break;
      }
    }
    d.calls.push_back(call);
  }
};

}  // namespace

void add_threads(Draft& d) {
  const RankTrace& t = *d.trace;
  const OpTable& ops = t.ops;
  const std::uint32_t rows = static_cast<std::uint32_t>(ops.size());
  const std::uint32_t lanes = static_cast<std::uint32_t>(t.lanes.size());
  d.name_flags.assign(t.strings.size(), 0);
  d.call_of_name.assign(t.strings.size(), Call::other);

  d.bucket.assign(lanes + 1, 0);
  std::uint32_t total = 0;
  for (std::uint32_t i = 0; i < rows; ++i) {
    if (!is_host(ops.kind[i])) continue;
    ++d.bucket[raw(ops.lane[i]) + 1];
    ++total;
  }
  for (std::uint32_t l = 0; l < lanes; ++l) d.bucket[l + 1] += d.bucket[l];
  d.rows.resize(total);
  for (std::uint32_t i = 0; i < rows; ++i) {
    if (is_host(ops.kind[i])) d.rows[d.bucket[raw(ops.lane[i])]++] = {ops.start[i], ops.end(i), i};
  }
  // after the fill, bucket[l] is the end of lane l
  auto earlier = [](const Draft::RowKey& a, const Draft::RowKey& b) {
    if (a.start != b.start) return a.start < b.start;
    if (a.end != b.end) return a.end > b.end;  // the parent first
    return a.op < b.op;
  };
  d.node.reserve(d.node.size() + 2 * std::size_t{total} + 2);
  // where GPU tasks have no correlation, any call may turn out to be a launch by its flow
  const bool flows = t.flows.size() != 0 && std::any_of(d.tasks.begin(), d.tasks.end(),
                                                        [&](const Task& task) { return ops.corr[task.op] == 0; });
  std::uint64_t poll_threads = 0;
  std::string poll_example;
  std::uint32_t from = 0;
  for (std::uint32_t l = 0; l < lanes; ++l) {
    const auto begin = d.rows.begin() + from;
    const auto end = d.rows.begin() + d.bucket[l];
    from = d.bucket[l];
    if (begin == end) continue;
    if (only_polls(d, begin, end)) {
      ++poll_threads;
      if (poll_example.empty()) poll_example = "thread " + std::to_string(t.lanes.tid[l]);
      continue;
    }
    if (!std::is_sorted(begin, end, earlier)) std::sort(begin, end, earlier);
    order_equal_begins(ops, begin, end);
    Walk walk{d, static_cast<std::uint32_t>(d.threads.size()), l, t.window_start};
    const std::uint32_t first_node = d.nodes();
    const auto first_call = static_cast<std::ptrdiff_t>(d.calls.size());
    d.open.clear();
    for (auto it = begin; it != end; ++it) {
      while (!d.open.empty() && d.open.back().end <= it->start) {
        walk.boundary(d.open.back().op, d.open.back().end, false);
        d.open.pop_back();
      }
      walk.boundary(it->op, it->start, true);
      flags_of(d, it->op);
      if (ops.kind[it->op] == OpKind::runtime) {
        const Call kind = d.call_of_name[raw(ops.name[it->op])];
        if (kind != Call::other || flows || d.find_group(ops.corr[it->op]) != nullptr) {
          if (kind != Call::poll) walk.add_call(it->op, kind);
        }
      }
      // a child may end after its parent (lost or late ends): keep the open rows ordered by end
      std::size_t pos = d.open.size();
      d.open.push_back(*it);
      while (pos > 0 && d.open[pos - 1].end < it->end) {
        d.open[pos] = d.open[pos - 1];
        --pos;
      }
      d.open[pos] = *it;
    }
    while (!d.open.empty()) {
      walk.boundary(d.open.back().op, d.open.back().end, false);
      d.open.pop_back();
    }
    d.threads.push_back({l, first_node, d.nodes() - first_node, walk.root_edge});
    std::inplace_merge(d.calls.begin(), d.calls.begin() + first_call, d.calls.end(), call_order);
  }
  d.notes.add("poll-threads", Severity::info, poll_threads, poll_example,
              "threads that only poll events (NCCL's watchdog): left out of the graph");

  for (CallRow& c : d.calls) c.end_node = d.end_node[c.op];
}

}  // namespace orrery
