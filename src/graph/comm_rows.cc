// One rank's communication kernels: what the metadata of the kernel say, else of the operator that launched it, else of
// the operators recorded on its thread since the launch before (a batch of sends and receives is launched at its end,
// without metadata), else the kernel's name.
#include "graph/comm_rows.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <unordered_map>

#include "graph/draft.h"

namespace orrery {
namespace {

std::string lowered(std::string_view s) {
  std::string out(s);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

struct NamedOp {
  std::string_view part;
  CommOp op;
};

// Order matters: "reduce_scatter" and "allreduce" contain "reduce", "all_gather" contains "gather".
constexpr std::array<NamedOp, 18> kOps = {{{"allreduce", CommOp::all_reduce},
                                           {"all_reduce", CommOp::all_reduce},
                                           {"cross_device_reduce", CommOp::all_reduce},
                                           {"allgather", CommOp::all_gather},
                                           {"all_gather", CommOp::all_gather},
                                           {"reducescatter", CommOp::reduce_scatter},
                                           {"reduce_scatter", CommOp::reduce_scatter},
                                           {"alltoall", CommOp::all_to_all},
                                           {"all_to_all", CommOp::all_to_all},
                                           {"barrier", CommOp::all_reduce},
                                           {"sendrecv", CommOp::exchange},
                                           {"broadcast", CommOp::broadcast},
                                           {"reduce", CommOp::reduce},
                                           {"gather", CommOp::gather},
                                           {"scatter", CommOp::scatter},
                                           {"send", CommOp::send},
                                           {"recv", CommOp::recv},
                                           {"coalesced", CommOp::exchange}}};

CommOp find_op(const std::string& name) {
  for (const NamedOp& o : kOps)
    if (name.find(o.part) != std::string::npos) return o.op;
  return CommOp::other;
}

// Bytes of one element of a c10d type; 0 = unknown.
std::int64_t bytes_of(std::string_view dtype) {
  struct Row {
    std::string_view name;
    std::int64_t bytes;
  };
  static constexpr std::array<Row, 24> kTypes = {{{"double", 8},
                                                  {"float64", 8},
                                                  {"long", 8},
                                                  {"int64", 8},
                                                  {"complexfloat", 8},
                                                  {"float", 4},
                                                  {"float32", 4},
                                                  {"int", 4},
                                                  {"int32", 4},
                                                  {"half", 2},
                                                  {"float16", 2},
                                                  {"bfloat16", 2},
                                                  {"short", 2},
                                                  {"int16", 2},
                                                  {"byte", 1},
                                                  {"uint8", 1},
                                                  {"char", 1},
                                                  {"int8", 1},
                                                  {"bool", 1},
                                                  {"float8_e4m3fn", 1},
                                                  {"float8_e5m2", 1},
                                                  {"float8_e4m3fnuz", 1},
                                                  {"float8_e5m2fnuz", 1},
                                                  {"complexdouble", 16}}};
  const std::string name = lowered(dtype);
  for (const Row& r : kTypes)
    if (r.name == name) return r.bytes;
  return 0;
}

std::uint64_t mix(std::uint64_t h, std::uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

struct CommRecord {  // a record_param_comms on a thread
  std::uint32_t lane;
  Ns begin;
  std::uint32_t comm;  // row of CommArgs
};

class Collector {
 public:
  Collector(Draft& draft, RankComm& rank_comm) : d(draft), t(*draft.trace), out(rank_comm) {}

  void run() {
    std::vector<std::uint32_t> order;  // tasks
    for (std::uint32_t i = 0; i < d.tasks.size(); ++i)
      if (d.tasks[i].kind == NodeKind::comm) order.push_back(i);
    if (order.empty()) return;
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const auto key = [&](const Task& x) {
        return std::tuple(x.call == kNone ? 0u : 1u, x.call == kNone ? 0u : x.call, x.start, x.op);
      };
      return key(d.tasks[a]) < key(d.tasks[b]);
    });
    find_records();
    for (const std::uint32_t i : order) add(d.tasks[i]);
  }

 private:
  void find_records() {
    for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
      if (t.ops.extra[i] == kNone || (t.ops.kind[i] != OpKind::cpu_op && t.ops.kind[i] != OpKind::user_annotation))
        continue;
      const std::uint32_t comm = t.op_args.comm[t.ops.extra[i]];
      if (comm != kNone) records.push_back({raw(t.ops.lane[i]), t.ops.start[i], comm});
    }
    std::sort(records.begin(), records.end(), [](const CommRecord& a, const CommRecord& b) {
      return std::tie(a.lane, a.begin, a.comm) < std::tie(b.lane, b.begin, b.comm);
    });
    last_launch.assign(t.lanes.size(), std::numeric_limits<Ns>::min());
  }

  std::string_view collective(std::uint32_t comm) const { return t.strings.view(t.comm_args.collective[comm]); }
  static bool says(std::string_view name) { return !name.empty() && name != "wait"; }
  // False for words that frame others or do not communicate: "coalesced", "init".
  static bool is_operation(std::string_view name) {
    const CommOp op = comm_op_of_collective(name);
    return says(name) && op != CommOp::other && op != CommOp::exchange;
  }

  std::uint32_t group_of(std::uint32_t comm) {
    const CommArgs& c = t.comm_args;
    const std::array<std::uint32_t, 3> key{raw(c.group_name[comm]), raw(c.group_desc[comm]), raw(c.group_ranks[comm])};
    for (std::uint32_t k = 0; k < keys.size(); ++k)
      if (keys[k] == key) return k;
    GroupSeen seen{std::string(t.strings.view(c.group_name[comm])), std::string(t.strings.view(c.group_desc[comm])),
                   std::string(t.strings.view(c.group_ranks[comm])), c.group_size[comm]};
    if (seen.name.empty() && seen.ranks.empty()) return kNone;
    keys.push_back(key);
    out.groups.push_back(std::move(seen));
    return static_cast<std::uint32_t>(out.groups.size() - 1);
  }

  std::int64_t bytes(std::uint32_t comm) const {
    const std::int64_t elems = std::max(t.comm_args.in_elems[comm], t.comm_args.out_elems[comm]);
    const std::int64_t each = bytes_of(t.strings.view(t.comm_args.dtype[comm]));
    std::int64_t product = 0;
    return elems < 0 || each == 0 || __builtin_mul_overflow(elems, each, &product) ? -1 : product;
  }

  std::uint32_t op_name(std::string_view name) {
    for (std::uint32_t k = 0; k < out.op_names.size(); ++k)
      if (out.op_names[k] == name) return k;
    out.op_names.emplace_back(name);
    return static_cast<std::uint32_t>(out.op_names.size() - 1);
  }

  void add_part(CommRow& row, std::uint32_t comm, bool send) {
    const CommArgs& c = t.comm_args;
    out.parts.push_back({send ? c.dst_rank[comm] : c.src_rank[comm], bytes(comm), group_of(comm), send});
    ++row.parts;
  }

  // From the arguments of one call.
  void describe(CommRow& row, std::uint32_t comm) {
    const CommArgs& c = t.comm_args;
    row.op = comm_op_of_collective(collective(comm));
    row.op_name = op_name(collective(comm));
    row.group = group_of(comm);
    row.bytes = bytes(comm);
    row.seq = c.seq[comm];
    const bool uneven = row.op == CommOp::all_to_all || row.op == CommOp::gather || row.op == CommOp::scatter;
    if (!uneven && (c.in_elems[comm] >= 0 || c.out_elems[comm] >= 0)) {
      row.shape = 1;
      for (const char ch : t.strings.view(c.dtype[comm])) row.shape = mix(row.shape, static_cast<unsigned char>(ch));
      row.shape = mix(row.shape, static_cast<std::uint64_t>(c.in_elems[comm]));
      row.shape = mix(row.shape, static_cast<std::uint64_t>(c.out_elems[comm]));
    }
    if (row.op == CommOp::send && c.dst_rank[comm] >= 0) add_part(row, comm, true);
    if (row.op == CommOp::recv && c.src_rank[comm] >= 0) add_part(row, comm, false);
  }

  // From what was recorded on the thread since its last communication launch.
  bool describe_batch(CommRow& row, std::uint32_t lane, Ns from, Ns to) {
    auto r = std::partition_point(records.begin(), records.end(), [&](const CommRecord& x) {
      return std::tie(x.lane, x.begin) <= std::tie(lane, from);
    });
    std::uint32_t described = 0;
    std::array<std::int64_t, 2> sizes{};  // of receives, of sends
    for (; r != records.end() && r->lane == lane && r->begin < to; ++r) {
      if (!is_operation(collective(r->comm))) continue;
      const CommOp op = comm_op_of_collective(collective(r->comm));
      if (op == CommOp::send || op == CommOp::recv) {
        const std::uint32_t group = group_of(r->comm);
        if (row.group == kNone) row.group = group;
        add_part(row, r->comm, op == CommOp::send);
        std::int64_t& sum = sizes[op == CommOp::send];
        if (const std::int64_t size = bytes(r->comm); size >= 0 && size < INT64_MAX - sum) sum += size;
        continue;
      }
      if (described++ == 0) {
        describe(row, r->comm);
      } else {  // several collectives launched as one kernel
        const std::int64_t size = bytes(r->comm);
        if (row.bytes >= 0 && size >= 0) row.bytes += size;
        row.shape = mix(row.shape, static_cast<std::uint64_t>(t.comm_args.in_elems[r->comm]));
      }
    }
    if (described != 0) return true;
    if (row.parts == 0) return false;
    row.bytes = std::max(sizes[0], sizes[1]);
    row.op = row.parts > 1 ? CommOp::exchange : out.parts[row.first_part].send ? CommOp::send : CommOp::recv;
    row.op_name = op_name(row.parts > 1 ? "sendrecv" : row.op == CommOp::send ? "send" : "recv");
    return true;
  }

  std::int64_t step_at(Ns time) const {
    for (const Step& s : d.steps)
      if (s.begin <= time && time < s.end && d.node[raw(s.begin_node)].kind == NodeKind::host) return s.number;
    return -1;
  }

  void add(const Task& task) {
    CommRow row;
    row.node = row.last = task.node;
    row.stream = d.streams[task.stream].lane;
    row.launched = task.call != kNone;
    row.start = task.start;
    row.end = task.end;
    row.first_part = static_cast<std::uint32_t>(out.parts.size());
    const std::uint32_t extra = t.ops.extra[task.op];
    std::uint32_t comm = extra == kNone ? kNone : t.kernel_args.comm[extra];
    if (comm != kNone && !says(collective(comm))) comm = kNone;
    Ns since = std::numeric_limits<Ns>::min();
    std::uint32_t lane = kNone;
    if (row.launched) {
      const CallRow& call = d.calls[task.call];
      row.step = step_at(call.begin);
      lane = d.threads[call.thread].lane;
      since = last_launch[lane];
      if (call.tasks == 1) last_launch[lane] = call.begin;
      if (comm == kNone && call.comm_op != kNone && t.ops.extra[call.comm_op] != kNone) {
        const std::uint32_t by_op = t.op_args.comm[t.ops.extra[call.comm_op]];
        if (by_op != kNone && says(collective(by_op))) comm = by_op;
      }
    }
    if (comm != kNone && is_operation(collective(comm))) {
      describe(row, comm);
    } else if (lane == kNone || d.calls[task.call].tasks != 1 ||
               !describe_batch(row, lane, since, d.calls[task.call].begin)) {
      const std::string_view name = t.name_of(OpId{task.op});
      row.op = comm_op_of_kernel(name);
      row.op_name = op_name(name_of_op(row.op, name));
    }
    out.rows.push_back(row);
  }

  // What to call an operation that only a kernel's name tells.
  static std::string name_of_op(CommOp op, std::string_view kernel) {
    switch (op) {
      case CommOp::all_reduce:
        return "allreduce";
      case CommOp::all_gather:
        return "allgather";
      case CommOp::reduce_scatter:
        return "reduce_scatter";
      case CommOp::all_to_all:
        return "all_to_all";
      case CommOp::broadcast:
        return "broadcast";
      case CommOp::reduce:
        return "reduce";
      case CommOp::gather:
        return "gather";
      case CommOp::scatter:
        return "scatter";
      case CommOp::send:
        return "send";
      case CommOp::recv:
        return "recv";
      case CommOp::exchange:
        return "sendrecv";
      case CommOp::other:
        break;
    }
    return std::string(kernel.substr(0, kernel.find_first_of("(<")));
  }

  Draft& d;
  const RankTrace& t;
  RankComm& out;
  std::vector<CommRecord> records;
  std::vector<Ns> last_launch;                     // by lane: begin of the last call that launched communication
  std::vector<std::array<std::uint32_t, 3>> keys;  // of out.groups
};

}  // namespace

bool is_barrier(CommOp op) {
  return op == CommOp::all_reduce || op == CommOp::all_gather || op == CommOp::reduce_scatter;
}

bool is_point_to_point(CommOp op) { return op == CommOp::send || op == CommOp::recv || op == CommOp::exchange; }

CommOp comm_op_of_collective(std::string_view collective) { return find_op(lowered(collective)); }

CommOp comm_op_of_kernel(std::string_view kernel) {
  const CommOp op = find_op(lowered(kernel.substr(0, kernel.find('('))));
  return op == CommOp::gather || op == CommOp::scatter ? CommOp::other : op;  // words of ordinary kernels
}

double bus_factor(CommOp op, std::int64_t group_size) {
  if (group_size < 2) return 1;
  const double n = static_cast<double>(group_size);
  switch (op) {
    case CommOp::all_reduce:
      return 2 * (n - 1) / n;
    case CommOp::all_gather:
    case CommOp::reduce_scatter:
    case CommOp::all_to_all:
      return (n - 1) / n;
    default:
      return 1;
  }
}

void collect_communication(Draft& d, RankComm& out) {
  out.rows.clear();
  out.parts.clear();
  out.groups.clear();
  out.op_names.clear();
  out.rank = d.trace->rank;
  out.host = d.trace->host;
  out.configured = d.trace->groups;
  out.world_size = d.trace->world_size;
  out.window = {d.trace->window_start, d.trace->window_end};
  out.absolute = d.trace->base_ns != 0;
  out.device_name = d.trace->devices.empty() ? std::string() : d.trace->devices.front().name;
  out.device = d.streams.empty() ? -1 : d.streams.front().device;
  Collector(d, out).run();
}

}  // namespace orrery
