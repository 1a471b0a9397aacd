// CPU threads: cut at every begin and end of their rows. The node of a boundary carries the host work up to it.
#include <algorithm>

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
bool only_polls(Draft& d, const std::uint32_t* from, const std::uint32_t* to) {
  const OpTable& ops = d.trace->ops;
  bool polls = false;
  for (; from != to; ++from) {
    if (ops.kind[*from] != OpKind::runtime) return false;
    flags_of(d, *from);
    const Call c = d.call_of_name[raw(ops.name[*from])];
    if (c == Call::poll)
      polls = true;
    else if (c != Call::other || d.find_group(ops.corr[*from]) != nullptr)
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
    const std::uint32_t node = d.add_node(time - from, from, lane, NodeKind::host, begin ? 1 : 0, op);
    if (first) {
      root_edge = static_cast<std::uint32_t>(d.edges.size());
      d.add_edge(kNone, node, EdgeKind::root, time - origin);
    } else {
      d.add_edge(previous, node, EdgeKind::thread, 0);
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
    for (auto it = d.stack.rbegin(); it != d.stack.rend(); ++it) {
      if (call.parent == kNone) call.parent = *it;
      const std::uint8_t f = d.name_flags[raw(ops.name[*it])];
      if (call.nccl_range == kNone && (f & kNcclRange) != 0) call.nccl_range = *it;
      if ((f & kCommOp) != 0) {
        call.comm_op = *it;
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
  d.order.resize(total);
  for (std::uint32_t i = 0; i < rows; ++i) {
    if (is_host(ops.kind[i])) d.order[d.bucket[raw(ops.lane[i])]++] = i;
  }
  // after the fill, bucket[l] is the end of lane l
  auto earlier = [&](std::uint32_t a, std::uint32_t b) {
    if (ops.start[a] != ops.start[b]) return ops.start[a] < ops.start[b];
    if (ops.dur[a] != ops.dur[b]) return ops.dur[a] > ops.dur[b];  // the parent first
    return a < b;
  };
  std::uint64_t poll_threads = 0;
  std::uint32_t from = 0;
  for (std::uint32_t l = 0; l < lanes; ++l) {
    std::uint32_t* const begin = d.order.data() + from;
    std::uint32_t* const end = d.order.data() + d.bucket[l];
    from = d.bucket[l];
    if (begin == end) continue;
    if (only_polls(d, begin, end)) {
      ++poll_threads;
      continue;
    }
    if (!std::is_sorted(begin, end, earlier)) std::sort(begin, end, earlier);
    Walk walk{d, static_cast<std::uint32_t>(d.threads.size()), l, t.window_start};
    const std::uint32_t first_node = d.nodes();
    d.stack.clear();  // open rows, the earliest end on top
    for (const std::uint32_t* it = begin; it != end; ++it) {
      const std::uint32_t op = *it;
      while (!d.stack.empty() && ops.end(d.stack.back()) <= ops.start[op]) {
        walk.boundary(d.stack.back(), ops.end(d.stack.back()), false);
        d.stack.pop_back();
      }
      walk.boundary(op, ops.start[op], true);
      flags_of(d, op);
      if (ops.kind[op] == OpKind::runtime) {
        const Call kind = d.call_of_name[raw(ops.name[op])];
        if (kind != Call::other || d.find_group(ops.corr[op]) != nullptr) {
          if (kind != Call::poll) walk.add_call(op, kind);
        }
      }
      // a child may end after its parent (lost or late ends): keep the stack ordered by end
      std::size_t pos = d.stack.size();
      d.stack.push_back(op);
      while (pos > 0 && ops.end(d.stack[pos - 1]) < ops.end(op)) {
        d.stack[pos] = d.stack[pos - 1];
        --pos;
      }
      d.stack[pos] = op;
    }
    while (!d.stack.empty()) {
      walk.boundary(d.stack.back(), ops.end(d.stack.back()), false);
      d.stack.pop_back();
    }
    d.threads.push_back({l, first_node, d.nodes() - first_node, walk.root_edge});
  }
  d.notes.add("poll-threads", Severity::info, poll_threads, {},
              "threads that only poll events (NCCL's watchdog): left out of the graph");

  for (CallRow& c : d.calls) c.end_node = d.end_node[c.op];
  auto call_order = [](const CallRow& a, const CallRow& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.op < b.op;
  };
  if (!std::is_sorted(d.calls.begin(), d.calls.end(), call_order))
    std::sort(d.calls.begin(), d.calls.end(), call_order);
}

}  // namespace orrery
