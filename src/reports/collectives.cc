// Collectives and point-to-point
//   group                         op             bytes  count  kernels  measured ms (mean)
//   TENSOR_MODEL_PARALLEL_GROUP   allreduce    8388608    144     1152               0.213
//   DATA_PARALLEL_GROUP           allreduce  134217728      8       64               4.499
//   n/a                           sendrecv         n/a     32       64               3.120
//
// Communication kernels by process group (its description, else its name, else its ranks), operation and size of the
// message (the larger of input and output: what NCCL's tests call the size). Group and size come from the metadata of
// the kernel, else of the collective operator whose launch it was; without either only the operation is known, from the
// name of the kernel, which can mislead. `kernels` counts kernels of all traced ranks, `count` collectives: of each
// process group behind the row, the number that its busiest rank ran (every kernel where the group is unknown). A
// kernel's measured time holds waiting for peers and transfer; one rank alone cannot tell them apart, so transfer, skew
// and bandwidth are null until ranks are joined.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>

#include "reports/reports.h"

namespace orrery {
namespace {

std::string lowered(std::string_view s) {
  std::string out(s);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
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

// What a kernel says it does. Order matters: "ReduceScatter" and "AllReduce" contain "Reduce".
std::string op_of_kernel(std::string_view kernel) {
  struct Row {
    std::string_view part, op;
  };
  static constexpr std::array<Row, 13> kParts = {{{"allreduce", "allreduce"},
                                                  {"all_reduce", "allreduce"},
                                                  {"cross_device_reduce", "allreduce"},
                                                  {"allgather", "allgather"},
                                                  {"all_gather", "allgather"},
                                                  {"reducescatter", "reduce_scatter"},
                                                  {"reduce_scatter", "reduce_scatter"},
                                                  {"alltoall", "all_to_all"},
                                                  {"all_to_all", "all_to_all"},
                                                  {"sendrecv", "sendrecv"},
                                                  {"broadcast", "broadcast"},
                                                  {"_reduce_", "reduce"},
                                                  {"_send", "send"}}};
  const std::string name = lowered(kernel);
  for (const Row& r : kParts)
    if (name.find(r.part) != std::string::npos) return std::string(r.op);
  return diff_name(kernel.substr(0, kernel.find_first_of("(<")));
}

// "[0, 1, 2]" -> "ranks:0,1,2"
std::string group_of_ranks(std::string_view ranks) {
  std::string s = "ranks:";
  for (char c : ranks)
    if (c != '[' && c != ']' && c != ' ') s += c;
  return s;
}

// torch writes "undefined" where a group was given no description.
bool given(std::string_view s) { return !s.empty() && s != "undefined"; }

struct Key {
  std::string group;  // "" = unknown
  std::string op;
  std::int64_t bytes;  // -1 = unknown
  auto operator<=>(const Key&) const = default;
};

Key key_of(const RankTrace& t, std::uint32_t comm, std::string_view kernel) {
  Key k{"", "", -1};
  if (comm != kNone) {
    const CommArgs& c = t.comm_args;
    const std::string_view desc = t.strings.view(c.group_desc[comm]), name = t.strings.view(c.group_name[comm]);
    const std::string_view ranks = t.strings.view(c.group_ranks[comm]);
    if (given(desc))
      k.group = desc;
    else if (given(name))
      k.group = name;
    else if (!ranks.empty() && ranks != "[]")
      k.group = group_of_ranks(ranks);
    k.op = t.strings.view(c.collective[comm]);
    const std::int64_t elems = std::max(c.in_elems[comm], c.out_elems[comm]);
    const std::int64_t each = bytes_of(t.strings.view(c.dtype[comm]));
    if (elems >= 0 && each > 0) k.bytes = elems * each;
  }
  if (k.op.empty()) k.op = op_of_kernel(kernel);
  return k;
}

// Collective operators of one rank by (thread, begin), to find the one that a launch lies in.
struct CommOp {
  std::uint32_t lane;
  Ns begin, end;
  std::uint32_t comm;
};
std::vector<CommOp> comm_ops(const RankTrace& t) {
  std::vector<CommOp> out;
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    const OpKind k = t.ops.kind[i];
    if ((k != OpKind::cpu_op && k != OpKind::user_annotation) || t.ops.extra[i] == kNone) continue;
    const std::uint32_t comm = t.op_args.comm[t.ops.extra[i]];
    if (comm != kNone) out.push_back({raw(t.ops.lane[i]), t.ops.start[i], t.ops.end(i), comm});
  }
  std::sort(out.begin(), out.end(),
            [](const CommOp& a, const CommOp& b) { return std::tie(a.lane, a.begin) < std::tie(b.lane, b.begin); });
  return out;
}

// The CommArgs row of the operator that encloses the launch of `task`, kNone = none.
std::uint32_t comm_of_launch(const ExecGraph& g, const RankTrace& t, const std::vector<CommOp>& ops,
                             std::uint32_t task) {
  for (std::uint32_t e = g.first_pred[task]; e < g.first_pred[task + 1]; ++e) {
    if (g.pred_kind[e] != EdgeKind::launch) continue;
    const std::uint32_t call = raw(g.source[raw(g.pred[e])]);
    if (call >= t.ops.size()) return kNone;
    const std::uint32_t lane = raw(t.ops.lane[call]);
    const Ns at = t.ops.start[call];
    auto o = std::partition_point(ops.begin(), ops.end(),
                                  [&](const CommOp& x) { return x.lane < lane || (x.lane == lane && x.begin <= at); });
    return o != ops.begin() && (--o)->lane == lane && o->end > at ? o->comm : kNone;
  }
  return kNone;
}

using Small = std::array<std::int64_t, 8>;
struct SmallHash {
  std::size_t operator()(const Small& s) const {
    std::uint64_t h = 0;
    for (std::int64_t x : s) h = (h ^ static_cast<std::uint64_t>(x)) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
    return h;
  }
};

struct Row {
  std::int64_t kernels = 0;
  Ns ns = 0;
  std::map<std::string, std::map<std::int64_t, std::int64_t>> by_group;  // process group -> rank -> kernels
};

}  // namespace

Section collectives_section(const TraceSet& traces, const ExecGraph& g, const DeviceTasks& tasks) {
  std::map<Key, Row> rows;
  std::vector<std::vector<CommOp>> ops(g.ranks.size());
  std::vector<std::uint8_t> have_ops(g.ranks.size(), 0);
  // Kernels are many and kinds of them few: by rank, name and the ids of what the metadata say.
  struct Seen {
    Row* row;
    std::int64_t* kernels;
  };
  std::unordered_map<Small, Seen, SmallHash> seen;

  for (const DeviceTask& task : tasks.rows) {
    const std::uint32_t i = task.first;
    const GraphRank& rank = g.ranks[g.rank[i]];
    if (task.kind != NodeKind::comm || rank.trace >= traces.ranks.size()) continue;
    const RankTrace& t = traces.ranks[rank.trace];
    const std::uint32_t op = raw(g.source[i]);
    if (op >= t.ops.size()) continue;
    std::uint32_t comm = t.ops.extra[op] == kNone ? kNone : t.kernel_args.comm[t.ops.extra[op]];
    if (comm == kNone) {
      if (!have_ops[g.rank[i]]) {
        ops[g.rank[i]] = comm_ops(t);
        have_ops[g.rank[i]] = 1;
      }
      comm = comm_of_launch(g, t, ops[g.rank[i]], i);
    }
    Small small{g.rank[i], raw(t.ops.name[op]), -1, 0, 0, 0, 0, 0};
    if (comm != kNone) {
      const CommArgs& c = t.comm_args;
      small = {g.rank[i],
               raw(t.ops.name[op]),
               raw(c.collective[comm]),
               raw(c.dtype[comm]),
               std::max(c.in_elems[comm], c.out_elems[comm]),
               raw(c.group_name[comm]),
               raw(c.group_desc[comm]),
               raw(c.group_ranks[comm])};
    }
    auto it = seen.find(small);
    if (it == seen.end()) {
      Row& row = rows[key_of(t, comm, t.name_of(OpId{op}))];
      std::string group;
      if (comm != kNone) {
        const std::string_view name = t.strings.view(t.comm_args.group_name[comm]);
        const std::string_view members = t.strings.view(t.comm_args.group_ranks[comm]);
        if (!name.empty() || !members.empty()) group = fmt::format("{}/{}", name, members);
      }
      it = seen.emplace(small, Seen{&row, &row.by_group[group][rank.rank]}).first;
    }
    ++*it->second.kernels;
    ++it->second.row->kernels;
    it->second.row->ns += observed_time(g, task);
  }

  std::vector<std::pair<const Key*, const Row*>> order;
  for (const auto& [key, row] : rows) order.emplace_back(&key, &row);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second->ns > b.second->ns; });

  Section s{.key = "collectives", .title = "Collectives and point-to-point", .table = {}};
  s.text_rows = 20;
  s.table.columns = {{.key = "group"},
                     {.key = "op"},
                     {.key = "bytes"},
                     {.key = "count"},
                     {.key = "kernels"},
                     {.key = "transfer_ms", .json_only = true},
                     {.key = "skew_ms", .json_only = true},
                     {.key = "bus_gb_per_s", .json_only = true},
                     {.key = "measured_ms", .title = "measured ms (mean)"}};
  for (const auto& [key, row] : order) {
    std::int64_t count = 0;
    for (const auto& [group, by_rank] : row->by_group) {
      std::int64_t most = 0, all = 0;
      for (const auto& [rank, kernels] : by_rank) {
        most = std::max(most, kernels);
        all += kernels;
      }
      count += group.empty() ? all : most;  // of unknown members none can be told to belong together
    }
    s.table.rows.push_back({key->group.empty() ? Cell{} : Cell{key->group}, key->op,
                            key->bytes < 0 ? Cell{} : Cell{key->bytes}, count, row->kernels, Cell{}, Cell{}, Cell{},
                            to_ms(row->ns) / static_cast<double>(row->kernels)});
  }
  return s;
}

Section communication_section() {
  Section s{.key = "communication", .title = "", .table = {}};
  s.table.columns = {{.key = "rank"}, {.key = "step"}, {.key = "group"}, {.key = "transfer_ms"}, {.key = "waiting_ms"}};
  return s;
}

}  // namespace orrery
