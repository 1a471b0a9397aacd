// Collectives and point-to-point
//   group                         op             bytes  count  kernels  transfer ms  skew ms  bus GB/s  measured ms
//   TENSOR_MODEL_PARALLEL_GROUP   allreduce    8388608    144     1152        0.053    0.160     158.3        0.213
//   DATA_PARALLEL_GROUP           allreduce  134217728      8       64        3.902    0.597      34.4        4.499
//
// Communication kernels by process group (its description, else its name, else its ranks), operation and size of the
// message (the larger of input and output: what NCCL's tests call the size). Group and size come from the metadata of
// the kernel, else of the operators whose launch it was; without either only the operation is known, from the name of
// the kernel, which can mislead. `kernels` counts kernels of all traced ranks, `count` collectives: of each process
// group behind the row, the number that its busiest rank ran (every kernel where the group is unknown). A kernel's
// measured time is waiting for partners and transfer; where it met them, transfer is the time after the last had
// arrived, skew the time from the first arrival to the last (both means of one). Bus bandwidth is what NCCL's tests
// call it: bytes over transfer, times 2(n-1)/n for an all-reduce and (n-1)/n for all-gather, reduce-scatter and
// all-to-all. Null where nobody was met.
//
// Communication by step: of each rank and process group the sums over the kernels that started in the step.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "reports/reports.h"

namespace orrery {
namespace {

std::string label_of(const Communication& c, const CommRow& row) {
  return row.group == kNone ? std::string() : c.groups[row.group].label;
}

Cell text_or_null(const std::string& s) { return s.empty() ? Cell{} : Cell{s}; }

struct Key {
  std::string group;  // "" = unknown
  std::uint32_t op_name;
  std::int64_t bytes;  // -1 = unknown
  auto operator<=>(const Key&) const = default;
};

struct Row {
  std::int64_t kernels = 0, met = 0, meetings = 0;
  Ns ns = 0, transfer = 0, skew = 0;
  double bus_bytes = 0;
  CommOp op = CommOp::other;
  std::map<std::uint32_t, std::map<std::uint32_t, std::int64_t>> by_group;  // process group -> rank -> kernels
};

}  // namespace

Section collectives_section(const Communication& c) {
  std::map<Key, Row> rows;
  std::vector<Row*> row_of(c.rows.size());
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>, Row*> seen;  // kernels are many, kinds of them few
  for (std::size_t i = 0; i < c.rows.size(); ++i) {
    const CommRow& k = c.rows[i];
    Row*& row = seen[{k.group, k.op_name, k.bytes}];
    if (row == nullptr) row = &rows[{label_of(c, k), k.op_name, k.bytes}];
    row_of[i] = row;
    row->op = k.op;
    ++row->kernels;
    row->ns += k.end - k.start;
    ++row->by_group[k.group][k.rank];
    if (k.transfer < 0) continue;
    ++row->met;
    row->transfer += k.transfer;
    const std::int64_t size = k.group == kNone ? 0 : c.groups[k.group].size;
    row->bus_bytes += static_cast<double>(std::max<std::int64_t>(k.bytes, 0)) * bus_factor(k.op, size);
  }
  for (const Meeting& m : c.meetings) {
    Ns first = INT64_MAX;
    for (std::uint32_t k = 0; k < m.members; ++k) first = std::min(first, c.rows[c.members[m.first + k].row].start);
    Row& row = *row_of[c.members[m.first].row];
    ++row.meetings;
    row.skew += m.arrival - first;
  }

  std::vector<std::pair<const Key*, const Row*>> order;
  for (const auto& [key, row] : rows) order.emplace_back(&key, &row);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second->ns > b.second->ns; });

  const bool met = !c.meetings.empty();
  Section s{.key = "collectives", .title = "Collectives and point-to-point", .table = {}};
  s.text_rows = 20;
  s.table.columns = {{.key = "group"},
                     {.key = "op"},
                     {.key = "bytes"},
                     {.key = "count"},
                     {.key = "kernels"},
                     {.key = "transfer_ms", .title = "transfer ms", .json_only = !met},
                     {.key = "skew_ms", .title = "skew ms", .json_only = !met},
                     {.key = "bus_gb_per_s", .title = "bus GB/s", .json_only = !met, .digits = 1},
                     {.key = "measured_ms", .title = "measured ms (mean)"}};
  for (const auto& [key, row] : order) {
    std::int64_t count = 0;
    for (const auto& [group, by_rank] : row->by_group) {
      std::int64_t most = 0, all = 0;
      for (const auto& [rank, kernels] : by_rank) {
        most = std::max(most, kernels);
        all += kernels;
      }
      count += group == kNone ? all : most;  // of unknown members none can be told to belong together
    }
    const auto mean = [](Ns sum, std::int64_t n) {
      return n == 0 ? Cell{} : Cell{to_ms(sum) / static_cast<double>(n)};
    };
    s.table.rows.push_back({text_or_null(key->group), c.op_names[key->op_name],
                            key->bytes < 0 ? Cell{} : Cell{key->bytes}, count, row->kernels,
                            mean(row->transfer, row->met), mean(row->skew, row->meetings),
                            row->bus_bytes > 0 && row->transfer > 0
                                ? Cell{row->bus_bytes / static_cast<double>(row->transfer)}  // bytes a ns
                                : Cell{},
                            mean(row->ns, row->kernels)});
  }
  return s;
}

Section communication_section(const ExecGraph& g, const Communication& c, const StepRows& rows) {
  struct Sum {
    Ns transfer = 0, waiting = 0, unmatched = 0;
    bool met = false;
  };
  std::map<std::tuple<std::uint32_t, std::string>, Sum> sums;  // row of `rows`, group
  std::vector<std::vector<std::uint32_t>> steps_of(g.ranks.size());
  for (std::uint32_t k = 0; k < rows.size(); ++k) steps_of[g.steps[rows[k]].rank].push_back(k);
  for (const CommRow& k : c.rows) {
    for (const std::uint32_t at : steps_of[k.rank]) {
      const Step& step = g.steps[rows[at]];
      if (k.start < step.begin || k.start >= step.end) continue;
      Sum& sum = sums[{at, label_of(c, k)}];
      if (k.transfer < 0) {
        sum.unmatched += k.end - k.start;
      } else {
        sum.met = true;
        sum.transfer += k.transfer;
        sum.waiting += k.end - k.start - k.transfer;
      }
    }
  }
  Section s{.key = "communication",
            .title = c.meetings.empty() ? "" : "Communication by step (ms, measured, sums over kernels)",
            .table = {}};
  s.text_rows = 24;
  s.table.columns = {{.key = "rank"},
                     {.key = "step"},
                     {.key = "group"},
                     {.key = "transfer_ms", .title = "transfer"},
                     {.key = "waiting_ms", .title = "waiting"},
                     {.key = "unmatched_ms", .title = "not matched"}};
  for (const auto& [key, sum] : sums) {
    const auto& [at, group] = key;
    const Step& step = g.steps[rows[at]];
    s.table.rows.push_back({g.ranks[step.rank].rank, step.number, text_or_null(group),
                            sum.met ? Cell{to_ms(sum.transfer)} : Cell{}, sum.met ? Cell{to_ms(sum.waiting)} : Cell{},
                            to_ms(sum.unmatched)});
  }
  return s;
}

}  // namespace orrery
