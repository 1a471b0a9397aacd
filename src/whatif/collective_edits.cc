#include "whatif/collective_edits.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "whatif/operators.h"

namespace orrery {
namespace {

// Host work of a collective when the trace has none to copy: c10d's operators, NCCL's launch and the waiting for it
// take twice what the job's launches of kernels take with all that leads up to them. In simulated jobs, which take it
// from profiles of PyTorch 2, 1.7 to 2.1 times.
constexpr double kOfLaunch = 2;
constexpr Ns kLaunchWork = 60'000, kLaunchLag = 6'000, kWaitLag = 1'500;
// Each send or receive that is collected before their common launch.
constexpr Ns kSendWork = 20'000;
constexpr std::uint32_t kOwn = 0x80000000u;  // a reference to an item of the same block

bool has(std::string_view s, std::string_view part) { return s.find(part) != std::string_view::npos; }

// Host work and waits round a collective, to be put elsewhere.
struct Sample {
  std::vector<Item> launch;  // host work up to its end; the kernel is launched by `call`
  std::size_t call = 0;
  std::vector<Item> wait;  // host work of waiting for it
  Ns launch_lag = kLaunchLag, event_lag = kWaitLag, order_lag = 0, wait_lag = kWaitLag;
  std::uint32_t kernel = kNone;  // a node
  Ns took = 0;                   // host work of all
};

struct BlockItem {
  Item item;
  std::vector<ItemEdge> edges;
};
struct Block {
  std::uint32_t before = 0;  // item of the piece
  std::vector<BlockItem> items;
};
struct PieceEdit {
  std::vector<std::uint8_t> removed;                     // by item; empty = none
  std::vector<Block> blocks;                             // those before one item in their order
  std::vector<std::pair<std::uint32_t, ItemEdge>> more;  // edges of an item
  bool empty() const { return removed.empty() && blocks.empty() && more.empty(); }
};

// What a matrix product is to tensor parallelism.
struct Product {
  enum class Side : std::uint8_t { none, column, row } side = Side::none;
  enum class Use : std::uint8_t { output, input_gradient, weight_gradient } use = Use::output;
};

class Editor {
 public:
  Editor(const TraceSet& t, const GraphBuild& b, const JobModel& j, const JobShape& to, std::vector<std::string>& m,
         const CollectiveOptions& o)
      : traces(t),
        g(b.graph),
        c(b.communication),
        job(j),
        old(j.base),
        now(to),
        modelled(m),
        options(o),
        p(j.program) {}

  Result<Program> run() {
    edits.resize(p.pieces.size());
    for (std::size_t r = 0; r < p.pieces.size(); ++r) edits[r].resize(p.pieces[r].size());
    const bool tensor = now.layout.tp > 1, data = now.layout.dp > 1, stages = now.layout.pp > 1;
    const bool split = now.dims.sequence_parallel && tensor,
               was_split = old.dims.sequence_parallel && old.layout.tp > 1;
    take_sample();
    if (!tensor && old.layout.tp > 1) drop(GroupRole::tensor);
    if (!stages && old.layout.pp > 1) drop(GroupRole::embedding);
    if (!data && old.layout.dp > 1) {
      drop(GroupRole::data);
      for (auto& rank : p.anatomy.ranks)
        for (Piece& piece : rank.pieces)
          if (piece.kind == PieceKind::bucket) piece.step = -1;
    }
    if (tensor && old.layout.tp == 1) {
      if (Status s = add_tensor(split); !s) return tl::unexpected(s.error());
    } else if (split && !was_split) {
      if (Status s = split_by_sequence(); !s) return tl::unexpected(s.error());
    } else if (was_split && tensor && !split) {
      join_sequence();
    }
    if (data && old.layout.dp == 1) {
      add_data();
      if (now.layout.distributed_optimizer) gather_parameters();
    } else if (data && now.layout.distributed_optimizer != old.layout.distributed_optimizer) {
      shard_optimizer(now.layout.distributed_optimizer);
    }
    if (stages && old.layout.pp == 1) add_stages();
    change_norm();
    rewrite();
    return std::move(p);
  }

 private:
  // ---- looking at the traced job ----

  const Item& item_at(std::uint32_t r, std::uint32_t piece, std::uint32_t i) const {
    return p.items[p.pieces[r][piece].first + i];
  }
  bool is_host(const Item& item) const { return g.kind[item.node] == NodeKind::host; }
  std::string_view name(std::uint32_t node) const {
    return traces.ranks[g.ranks[g.rank[node]].trace].name_of(g.source[node]);
  }
  GroupRole role_of(const Item& item) const {
    if (item.made != kNone) return p.made[item.made].role;
    const CommRow& row = c.rows[item.comm];
    if (row.parts != 0 || is_point_to_point(row.op) || row.group == kNone) return GroupRole::pipeline;
    return old.layout.role.size() > row.group ? old.layout.role[row.group] : GroupRole::other;
  }
  CommOp op_of(const Item& item) const { return item.made != kNone ? p.made[item.made].op : c.rows[item.comm].op; }
  double bytes_of(const Item& item) const {
    if (item.comm != kNone) return static_cast<double>(c.rows[item.comm].bytes);
    const MadeTask& m = p.made[item.made];
    return m.size == MadeTask::Size::term ? m.elements.value(old.dims) * m.bytes_each : 1e9;
  }
  bool communicates(const Item& item) const {
    if (item.marks || item.transfer) return false;
    return item.comm != kNone || (item.made != kNone && !p.made[item.made].computes && !is_host(item));
  }

  // Items of a piece that belong to a collective: host work of its launch and of the waiting for it.
  struct Span {
    std::uint32_t call = kNone;  // the item that leads up to its launch
    std::vector<std::uint32_t> launch, wait;
  };

  Span span_of(std::uint32_t r, std::uint32_t piece, std::uint32_t at) const {
    Span out;
    const PieceItems& items = p.pieces[r][piece];
    const Item& kernel = item_at(r, piece, at);
    for (std::uint32_t e = kernel.first_edge; e < kernel.first_edge + kernel.edges; ++e)
      if (p.edges[e].kind == EdgeKind::launch && p.edges[e].inside) out.call = p.edges[e].ref;
    if (out.call == kNone) return out;
    const std::uint32_t lane = item_at(r, piece, out.call).lane;
    // the thread's items of the piece, and which of them launch something
    std::vector<std::uint32_t> own;
    std::vector<std::uint8_t> launches;
    for (std::uint32_t i = 0; i < items.count; ++i) {
      const Item& x = item_at(r, piece, i);
      if (x.lane == lane && is_host(x) && !x.marks) own.push_back(i);
    }
    launches.assign(own.size(), 0);
    const auto row_of = [&](std::uint32_t i) {
      return static_cast<std::size_t>(std::lower_bound(own.begin(), own.end(), i) - own.begin());
    };
    for (std::uint32_t i = 0; i < items.count; ++i) {
      const Item& x = item_at(r, piece, i);
      if (is_host(x) || x.marks || x.transfer) continue;
      for (std::uint32_t e = x.first_edge; e < x.first_edge + x.edges; ++e)
        if (p.edges[e].kind == EdgeKind::launch && p.edges[e].inside && item_at(r, piece, p.edges[e].ref).lane == lane)
          launches[row_of(p.edges[e].ref)] = 1;
    }
    const std::size_t call = row_of(out.call);
    // operators that are open at the call, from the inside out; their begin and end
    std::vector<std::pair<std::size_t, std::size_t>> round;
    std::size_t from = call, to = call + 1 < own.size() ? call + 1 : call;
    round.emplace_back(from, to);
    while (true) {
      std::int32_t depth = 0;
      std::size_t low = from;
      bool found = false;
      while (low-- > 0) {
        const bool begin = g.at_begin[item_at(r, piece, own[low]).node] != 0;
        if (begin && depth == 0) {
          found = true;
          break;
        }
        depth += begin ? -1 : 1;
      }
      if (!found) break;
      depth = 0;
      std::size_t high = to + 1;
      found = false;
      for (; high < own.size(); ++high) {
        const bool begin = g.at_begin[item_at(r, piece, own[high]).node] != 0;
        if (!begin && depth == 0) {
          found = true;
          break;
        }
        depth += begin ? 1 : -1;
      }
      if (!found) break;
      bool others = false;
      for (std::size_t k = low; k <= high; ++k) others |= launches[k] != 0 && k != call;
      if (others) break;
      from = low, to = high;
      round.emplace_back(from, to);
    }
    // a wait within the outermost, after the operator that launches: that is where it is waited for
    const auto waits_at = [&](std::size_t k) { return has(name(item_at(r, piece, own[k]).node), "WaitEvent"); };
    std::size_t launch_end = to;
    if (round.size() >= 3) {
      const std::size_t inner = round[round.size() - 2].second;
      for (std::size_t k = inner + 1; k < to; ++k)
        if (waits_at(k)) launch_end = inner;
    }
    for (std::size_t k = from; k <= launch_end; ++k) out.launch.push_back(own[k]);
    for (std::size_t k = launch_end + 1; k <= to; ++k) out.wait.push_back(own[k]);
    if (!out.wait.empty()) return out;
    // else ahead of the first task that waits for it: the last wait call, with the operator of it alone
    std::uint32_t waiting = kNone;
    for (std::uint32_t i = at + 1; i < items.count && waiting == kNone; ++i) {
      const Item& x = item_at(r, piece, i);
      if (is_host(x) || x.marks || x.transfer || x.comm != kNone) continue;
      for (std::uint32_t e = x.first_edge; e < x.first_edge + x.edges; ++e) {
        if (p.edges[e].kind != EdgeKind::event || !p.edges[e].inside) continue;
        const Item& on = item_at(r, piece, p.edges[e].ref);
        if (p.edges[e].ref == at || (on.transfer && on.comm == kernel.comm && kernel.comm != kNone)) waiting = i;
      }
    }
    if (waiting == kNone) return out;
    std::size_t limit = own.size();
    const Item& task = item_at(r, piece, waiting);
    for (std::uint32_t e = task.first_edge; e < task.first_edge + task.edges; ++e)
      if (p.edges[e].kind == EdgeKind::launch && p.edges[e].inside && item_at(r, piece, p.edges[e].ref).lane == lane)
        limit = row_of(p.edges[e].ref);
    for (std::size_t k = std::min(limit, own.size()); k-- > to + 1;) {
      if (!waits_at(k)) continue;
      if (k > to + 2 && k + 2 < limit && g.at_begin[item_at(r, piece, own[k - 2]).node] != 0 &&
          g.at_begin[item_at(r, piece, own[k + 1]).node] == 0) {
        for (std::size_t x = k - 2; x <= k + 1; ++x) out.wait.push_back(own[x]);
      }
      break;
    }
    return out;
  }

  // The median of the traced collectives by host work, of those that are waited for at once where there are any.
  void take_sample() {
    std::vector<Sample> with, without;
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r) {
      std::size_t taken = 0;
      for (std::uint32_t k = 0; k < p.pieces[r].size() && taken < 200; ++k) {
        const Piece& piece = p.anatomy.ranks[r].pieces[k];
        if (piece.step < 0 || piece.kind == PieceKind::exchange) continue;
        for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
          const Item& kernel = item_at(r, k, i);
          if (kernel.comm == kNone || kernel.transfer || kernel.marks) continue;
          const Span span = span_of(r, k, i);
          if (span.call == kNone || span.launch.size() < 2) continue;
          Sample s;
          for (const std::uint32_t x : span.launch) {
            if (x == span.call) s.call = s.launch.size();
            s.launch.push_back(item_at(r, k, x));
            s.took += time_of(item_at(r, k, x));
          }
          for (const std::uint32_t x : span.wait) {
            s.wait.push_back(item_at(r, k, x));
            s.took += time_of(item_at(r, k, x));
          }
          for (std::uint32_t e = kernel.first_edge; e < kernel.first_edge + kernel.edges; ++e) {
            if (p.edges[e].kind == EdgeKind::launch) s.launch_lag = p.edges[e].lag;
            if (p.edges[e].kind == EdgeKind::event) s.event_lag = s.wait_lag = p.edges[e].lag;
          }
          s.order_lag = kernel.order_lag;
          s.kernel = kernel.node;
          (span.wait.empty() ? without : with).push_back(std::move(s));
          ++taken;
        }
      }
    }
    auto& samples = with.empty() ? without : with;
    if (!samples.empty()) {
      const auto mid = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
      std::nth_element(samples.begin(), mid, samples.end(),
                       [](const Sample& x, const Sample& y) { return x.took < y.took; });
      sample = *mid;
      return;
    }
    // any launch, and the job's pace
    assumed = true;
    double host = 0, launches = 0;
    each_pass_piece([&](std::uint32_t r, std::uint32_t k, PieceKind kind) {
      if (kind != PieceKind::forward_layer) return;
      for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
        const Item& x = item_at(r, k, i);
        if (is_host(x)) host += static_cast<double>(g.duration[x.node]);
        launches += is_host(x) ? 0 : 1;
      }
    });
    const Ns work = launches > 0 ? std::max<Ns>(10'000, std::llround(kOfLaunch * host / launches)) : kLaunchWork;
    assumed_us = std::llround(static_cast<double>(work) / 1000);
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k)
        for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
          const Item& kernel = item_at(r, k, i);
          if (is_host(kernel) || kernel.marks) continue;
          const Span span = span_of(r, k, i);
          if (span.call == kNone) continue;
          for (std::uint32_t x = span.call + 1; x < p.pieces[r][k].count; ++x) {
            if (item_at(r, k, x).lane != item_at(r, k, span.call).lane) continue;
            sample.launch = {item_at(r, k, span.call), item_at(r, k, x)};
            sample.launch[0].took = work - 5'000;
            sample.launch[1].took = 5'000;
            sample.kernel = kernel.node;
            return;
          }
        }
  }
  Ns time_of(const Item& item) const { return item.took >= 0 ? item.took : g.duration[item.node]; }

  // ---- what is put in ----

  std::uint32_t role_row(LaneRole::Kind kind, std::uint8_t role, std::uint8_t ordinal = 0) {
    const LaneRole wanted{kind, role, ordinal};
    for (std::uint32_t k = 0; k < p.roles.size(); ++k)
      if (p.roles[k] == wanted) return k;
    p.roles.push_back(wanted);
    return static_cast<std::uint32_t>(p.roles.size() - 1);
  }
  std::uint32_t compute() { return role_row(LaneRole::Kind::compute, 0); }
  std::uint32_t thread(std::uint8_t ordinal) { return role_row(LaneRole::Kind::thread, 0, ordinal); }
  std::uint32_t lane_of(GroupRole role) {
    return role_row(LaneRole::Kind::collective, static_cast<std::uint8_t>(role));
  }

  std::uint32_t add_made(MadeTask m) {
    for (std::uint32_t k = 0; k < p.made.size(); ++k) {
      const MadeTask& x = p.made[k];
      if (x.replaces == m.replaces && x.computes == m.computes && x.op == m.op && x.role == m.role &&
          x.lane == m.lane && x.name == m.name && x.size == m.size && x.elements == m.elements &&
          x.bytes_each == m.bytes_each && x.ns_each == m.ns_each)
        return k;
    }
    p.made.push_back(std::move(m));
    return static_cast<std::uint32_t>(p.made.size() - 1);
  }

  static std::string kernel_name(CommOp op) {
    switch (op) {
      case CommOp::all_reduce:
        return "ncclDevKernel_AllReduce (modelled)";
      case CommOp::all_gather:
        return "ncclDevKernel_AllGather (modelled)";
      case CommOp::reduce_scatter:
        return "ncclDevKernel_ReduceScatter (modelled)";
      case CommOp::broadcast:
        return "ncclDevKernel_Broadcast (modelled)";
      default:
        return "ncclDevKernel_SendRecv (modelled)";
    }
  }

  std::uint32_t collective(GroupRole role, CommOp op, MadeTask::Size size, const Term& elements, double bytes) {
    MadeTask m;
    m.op = op, m.role = role, m.lane = lane_of(role), m.name = kernel_name(op);
    m.size = size, m.elements = elements, m.bytes_each = bytes;
    return add_made(std::move(m));
  }

  static Item host_item(const Item& from, std::uint32_t lane, std::uint32_t queue) {
    Item item = from;
    item.lane = lane;
    item.queue = from.queue == kNone ? kNone : queue;
    item.in_order = true;
    item.root = false;
    item.first_edge = item.edges = 0;
    return item;
  }

  // Host work that launches a made task, and the task.
  void launch_made(Block& block, std::uint32_t made, std::uint32_t host) {
    const std::uint32_t lane = p.made[made].lane;
    std::uint32_t call = 0;
    for (std::size_t k = 0; k < sample.launch.size(); ++k) {
      if (k == sample.call) call = static_cast<std::uint32_t>(block.items.size());
      block.items.push_back({host_item(sample.launch[k], host, lane), {}});
      if (k != sample.call) continue;
      Item task;
      task.node = sample.kernel;
      task.lane = lane;
      task.made = made;
      task.in_order = true;
      task.order_lag = sample.order_lag;
      BlockItem put{task, {{EdgeKind::launch, true, kOwn | call, 0, sample.launch_lag}}};
      if (lane != compute()) put.edges.push_back({EdgeKind::event, false, compute(), 0, sample.event_lag});
      block.items.push_back(std::move(put));
    }
  }
  // A kernel that is launched by a call alone.
  void launch_kernel(Block& block, std::uint32_t made, std::uint32_t host) {
    const std::size_t at = sample.call;
    const auto call = static_cast<std::uint32_t>(block.items.size());
    block.items.push_back({host_item(sample.launch[at], host, kNone), {}});
    block.items.back().item.took = 10'000;
    Item task;
    task.node = sample.kernel;
    task.lane = p.made[made].lane;
    task.made = made;
    task.in_order = true;
    block.items.push_back({task, {{EdgeKind::launch, true, kOwn | call, 0, sample.launch_lag}}});
    block.items.push_back({host_item(sample.launch[std::min(at + 1, sample.launch.size() - 1)], host, task.lane), {}});
    block.items.back().item.took = 5'000;
    block.items.back().item.queue = task.lane;
  }
  // The compute stream waits for what is on `lane`.
  void wait_for(Block& block, std::uint32_t lane, std::uint32_t host) {
    for (const Item& x : sample.wait) block.items.push_back({host_item(x, host, kNone), {}});
    Item mark;
    mark.node = sample.kernel;
    mark.lane = compute();
    mark.marks = true;
    block.items.push_back({mark, {{EdgeKind::event, false, lane, 0, sample.wait_lag}}});
  }

  PieceEdit& edit(std::uint32_t r, std::uint32_t piece) { return edits[r][piece]; }
  Block& block_before(std::uint32_t r, std::uint32_t piece, std::uint32_t item) {
    Block b;
    b.before = item;
    edit(r, piece).blocks.push_back(std::move(b));
    return edit(r, piece).blocks.back();
  }
  // A collective that is waited for at once.
  void put(std::uint32_t r, std::uint32_t piece, std::uint32_t before, std::uint32_t made, std::uint32_t host) {
    Block& block = block_before(r, piece, before);
    launch_made(block, made, host);
    wait_for(block, p.made[made].lane, host);
  }

  void remove(std::uint32_t r, std::uint32_t piece, std::uint32_t at) {
    PieceEdit& e = edit(r, piece);
    const PieceItems& items = p.pieces[r][piece];
    if (e.removed.empty()) e.removed.assign(items.count, 0);
    const Span span = span_of(r, piece, at);
    for (const std::uint32_t x : span.launch) e.removed[x] = 1;
    for (const std::uint32_t x : span.wait) e.removed[x] = 1;
    e.removed[at] = 1;
    const Item& kernel = item_at(r, piece, at);
    for (std::uint32_t i = 0; i < items.count; ++i) {
      const Item& x = item_at(r, piece, i);
      if (x.transfer && x.comm == kernel.comm && kernel.comm != kNone) e.removed[i] = 1;
      if (!x.marks) continue;  // of a made one
      for (std::uint32_t k = x.first_edge; k < x.first_edge + x.edges; ++k)
        if (!p.edges[k].inside && p.edges[k].ref == kernel.lane) e.removed[i] = 1;
    }
  }

  template <class F>
  void each_collective(F f) {
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k) {
        if (p.anatomy.ranks[r].pieces[k].step < 0 || p.anatomy.ranks[r].pieces[k].kind == PieceKind::exchange) continue;
        for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i)
          if (communicates(item_at(r, k, i))) f(r, k, i);
      }
  }

  void drop(GroupRole role) {
    each_collective([&](std::uint32_t r, std::uint32_t k, std::uint32_t i) {
      if (role_of(item_at(r, k, i)) == role && p.anatomy.ranks[r].pieces[k].kind != PieceKind::bucket) remove(r, k, i);
    });
  }

  void replace(std::uint32_t r, std::uint32_t piece, std::uint32_t i, CommOp op, GroupRole role) {
    Item& item = p.items[p.pieces[r][piece].first + i];
    MadeTask m;
    if (item.comm == kNone) m = p.made[item.made];
    m.replaces = item.comm != kNone;
    m.op = op, m.role = role;
    if (!m.replaces) m.name = kernel_name(op);
    item.made = add_made(std::move(m));
  }

  // ---- places ----

  std::uint32_t call_of(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const {
    const Item& x = item_at(r, piece, task);
    for (std::uint32_t e = x.first_edge; e < x.first_edge + x.edges; ++e)
      if (p.edges[e].kind == EdgeKind::launch && p.edges[e].inside) return p.edges[e].ref;
    return kNone;
  }
  // The item before which something stands right behind the launch of `task`.
  std::uint32_t behind(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const {
    const std::uint32_t call = call_of(r, piece, task);
    const PieceItems& items = p.pieces[r][piece];
    if (call == kNone) return task + 1;
    for (std::uint32_t i = call + 1; i < items.count; ++i)
      if (item_at(r, piece, i).lane == item_at(r, piece, call).lane) return std::max(i, task) + 1;
    return task + 1;
  }
  std::uint32_t ahead(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const {
    const std::uint32_t call = call_of(r, piece, task);
    return call == kNone ? task : call;
  }
  std::uint32_t host_of(std::uint32_t r, std::uint32_t piece, std::uint32_t task) {
    const std::uint32_t call = call_of(r, piece, task);
    return call == kNone ? thread(0) : item_at(r, piece, call).lane;
  }

  Product product_of(const Item& item, bool backward) const {
    Product out;
    if (item.made != kNone || item.node >= job.sample_of.size() || job.sample_of[item.node] == kNone) return out;
    const Work& w = job.work[job.sample_of[item.node]];
    if (w.kind != WorkKind::gemm || w.parameters || w.batch != Term{}) return out;
    const auto divided = [](const Term& t) { return t.seq == 0 && t.tp < 0; };
    if (w.k.seq > 0) {
      out.use = Product::Use::weight_gradient;
      return out;
    }
    if (divided(w.k)) {
      out.side = backward ? Product::Side::column : Product::Side::row;
    } else if (divided(w.m) || divided(w.n)) {
      out.side = backward ? Product::Side::row : Product::Side::column;
    } else {
      return out;
    }
    out.use = backward ? Product::Use::input_gradient : Product::Use::output;
    return out;
  }

  struct Spot {
    Product product;
    std::uint32_t item;
  };
  // The linear layers of a piece in their order. What is recomputed in a backward pass is forward: all before the last
  // product ahead of the first weight's gradient.
  std::vector<Spot> products_of(std::uint32_t r, std::uint32_t piece) const {
    const PieceKind kind = p.anatomy.ranks[r].pieces[piece].kind;
    const bool backward =
        kind == PieceKind::backward_begin || kind == PieceKind::backward_layer || kind == PieceKind::backward_end;
    std::vector<std::uint32_t> all;
    std::size_t first = SIZE_MAX;
    for (std::uint32_t i = 0; i < p.pieces[r][piece].count; ++i) {
      const Item& x = item_at(r, piece, i);
      if (is_host(x) || x.marks) continue;
      const Product q = product_of(x, backward);
      if (q.side == Product::Side::none && q.use != Product::Use::weight_gradient) continue;
      if (q.use == Product::Use::weight_gradient && first == SIZE_MAX) first = all.size();
      all.push_back(i);
    }
    const std::size_t again = !backward || first == SIZE_MAX || first == 0 ? 0 : first - 1;
    std::vector<Spot> out;
    for (std::size_t k = 0; k < all.size(); ++k)
      out.push_back({product_of(item_at(r, piece, all[k]), backward && k >= again), all[k]});
    return out;
  }

  Term whole() const {  // an activation
    Term t;
    t.seq = t.mbs = t.hidden = 1;
    return t;
  }
  double element_bytes() const { return job.shape.dtype_bytes > 0 ? static_cast<double>(job.shape.dtype_bytes) : 2; }

  template <class F>
  void each_pass_piece(F f) {
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k) {
        const Piece& piece = p.anatomy.ranks[r].pieces[k];
        if (piece.step < 0 || piece.pass < 0 || piece.kind == PieceKind::bucket || piece.kind == PieceKind::exchange)
          continue;
        f(r, k, piece.kind);
      }
  }
  // Where two products have no other between them but weights' gradients, they share their input: q, k and v.
  static bool shares_input(const std::vector<Spot>& spots, std::size_t k, int step) {
    for (std::size_t x = k; step > 0 ? ++x < spots.size() : x-- > 0;) {
      if (spots[x].product.use == Product::Use::weight_gradient) continue;
      return spots[x].product.side == Product::Side::column && spots[x].product.use == spots[k].product.use;
    }
    return false;
  }
  std::size_t weight_after(const std::vector<Spot>& spots, std::size_t k) const {
    return k + 1 < spots.size() && spots[k + 1].product.use == Product::Use::weight_gradient ? k + 1 : SIZE_MAX;
  }
  // Behind a product and what adds up its parts.
  std::uint32_t behind_product(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const {
    for (std::uint32_t i = task + 1; i < p.pieces[r][piece].count; ++i) {
      const Item& x = item_at(r, piece, i);
      if (is_host(x) || x.marks) continue;
      if (x.lane == item_at(r, piece, task).lane && is_split_reduction(name(x.node))) return behind(r, piece, i);
      break;
    }
    return behind(r, piece, task);
  }

  // ---- tensor parallelism ----

  // Megatron-LM's f and g: sums after the products that are split by row, and of the input's gradients of those that
  // are split by column; there while the weight's gradient is computed.
  Status add_tensor(bool split) {
    const double bytes = element_bytes();
    const std::uint32_t sum = collective(GroupRole::tensor, split ? CommOp::reduce_scatter : CommOp::all_reduce,
                                         MadeTask::Size::term, whole(), bytes);
    const std::uint32_t gather =
        collective(GroupRole::tensor, CommOp::all_gather, MadeTask::Size::term, whole(), bytes);
    std::size_t columns = 0;
    each_pass_piece([&](std::uint32_t r, std::uint32_t k, PieceKind kind) {
      const std::vector<Spot> spots = products_of(r, k);
      for (std::size_t s = 0; s < spots.size(); ++s) {
        const Product& q = spots[s].product;
        const std::uint32_t task = spots[s].item, host = host_of(r, k, task);
        if (q.side == Product::Side::column) ++columns;
        if (q.use == Product::Use::output && q.side == Product::Side::row)
          put(r, k, behind_product(r, k, task), sum, host);
        if (q.use == Product::Use::input_gradient && q.side == Product::Side::column && !shares_input(spots, s, 1)) {
          launch_made(block_before(r, k, behind_product(r, k, task)), sum, host);
          const std::size_t weight = weight_after(spots, s);
          const std::uint32_t until = weight == SIZE_MAX ? task : spots[weight].item;
          wait_for(block_before(r, k, behind_product(r, k, until)), lane_of(GroupRole::tensor), host);
        }
        if (split) add_gathers(r, k, spots, s, gather);
      }
      if (kind == PieceKind::forward_begin || kind == PieceKind::forward_end) add_vocabulary(r, k, kind, sum);
    });
    if (columns == 0)
      return fail(
          "the linear layers are not recognised in the trace, so the collectives of tensor parallelism have no place",
          "", "give the model's dimensions with --layout");
    if (split) add_norm_sum();
    say("tensor-parallel collectives");
    return {};
  }

  // Sequence parallelism: inputs are gathered before the products that are split by column, and again for the gradients
  // of their weights; gradients of outputs before those that are split by row.
  void add_gathers(std::uint32_t r, std::uint32_t k, const std::vector<Spot>& spots, std::size_t s,
                   std::uint32_t gather) {
    const Product& q = spots[s].product;
    const std::uint32_t task = spots[s].item, host = host_of(r, k, task);
    if (q.use == Product::Use::output) {
      if (q.side == Product::Side::column && !shares_input(spots, s, -1)) put(r, k, ahead(r, k, task), gather, host);
      return;
    }
    if (q.use != Product::Use::input_gradient) return;
    if (q.side == Product::Side::row) {
      put(r, k, ahead(r, k, task), gather, host);
    } else if (!shares_input(spots, s, -1)) {
      launch_made(block_before(r, k, ahead(r, k, task)), gather, host);
      Block& wait = block_before(r, k, behind_product(r, k, task));
      wait_for(wait, lane_of(GroupRole::tensor), host);
      // it is waited for before the sum is launched
      auto& blocks = edit(r, k).blocks;
      for (std::size_t b = 0; b + 1 < blocks.size(); ++b)
        if (blocks[b].before == blocks.back().before) {
          std::rotate(blocks.begin() + static_cast<std::ptrdiff_t>(b), blocks.end() - 1, blocks.end());
          break;
        }
    }
  }

  // Copies of a micro-batch from the host.
  std::vector<std::uint32_t> loads_of(std::uint32_t r, std::uint32_t k) const {
    std::vector<std::uint32_t> out;
    for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
      const Item& x = item_at(r, k, i);
      if (!x.marks && g.kind[x.node] == NodeKind::memcpy && has(name(x.node), "HtoD")) out.push_back(i);
    }
    return out;
  }
  // The most of any pass and rank of the stage: all of them must take part.
  std::size_t most_loads(std::uint32_t rank) {
    const std::int64_t stage = p.stage[rank];
    const auto [it, fresh] = loads.try_emplace(stage, 0);
    if (!fresh) return it->second;
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k)
        if (p.stage[r] == stage && p.anatomy.ranks[r].pieces[k].kind == PieceKind::forward_begin)
          it->second = std::max(it->second, loads_of(r, k).size());
    return it->second;
  }
  // The embedding's sum; the loss's three numbers a token (largest logit, the target's, sum of exponentials).
  void add_vocabulary(std::uint32_t r, std::uint32_t k, PieceKind kind, std::uint32_t sum) {
    const PieceItems& items = p.pieces[r][k];
    if (kind == PieceKind::forward_begin) {
      // what one rank has loaded goes to all that share the layers
      Term numbers;
      numbers.seq = numbers.mbs = 1;
      const std::uint32_t spread = collective(GroupRole::tensor, CommOp::broadcast, MadeTask::Size::term, numbers, 8);
      std::uint32_t behind_load = 0;
      for (const std::uint32_t i : loads_of(r, k)) behind_load = behind(r, k, i);
      for (std::size_t n = 0; options.broadcast_batch && n < most_loads(r); ++n)
        put(r, k, behind_load, spread, thread(0));
      std::uint32_t table = kNone;
      for (std::uint32_t i = 0; i < items.count && table == kNone; ++i) {
        const Item& x = item_at(r, k, i);
        if (!is_host(x) && !x.marks && x.node < job.sample_of.size() && job.sample_of[x.node] != kNone &&
            job.work[job.sample_of[x.node]].m == whole())
          table = i;
      }
      if (table != kNone) put(r, k, behind(r, k, table), sum, host_of(r, k, table));
      return;
    }
    Term tokens;
    tokens.seq = tokens.mbs = 1;
    const std::uint32_t number = collective(GroupRole::tensor, CommOp::all_reduce, MadeTask::Size::term, tokens, 4);
    std::vector<std::uint32_t> logits;  // kernels over them, after their product
    bool after = false;
    for (std::uint32_t i = 0; i < items.count; ++i) {
      const Item& x = item_at(r, k, i);
      if (is_host(x) || x.marks || x.node >= job.sample_of.size() || job.sample_of[x.node] == kNone) continue;
      const Work& w = job.work[job.sample_of[x.node]];
      if (w.kind == WorkKind::gemm) after = true;
      if (after && w.kind == WorkKind::memory && w.m.vocab == 1) logits.push_back(i);
    }
    if (logits.empty()) return;
    const auto sums = static_cast<std::size_t>(std::max(0, options.loss_sums));
    for (std::size_t n = 1; n <= sums; ++n) {
      const std::uint32_t at = logits[std::min(logits.size() - 1, logits.size() * n / (sums + 1))];
      put(r, k, behind(r, k, at), number, host_of(r, k, at));
    }
  }

  // Gradients of norms, which every rank has of its own tokens only.
  void add_norm_sum() {
    Term t;
    t.hidden = 1;
    t.factor = 4.0 * static_cast<double>(now.layout.layers) / static_cast<double>(now.layout.pp);
    const std::uint32_t made = collective(GroupRole::tensor, CommOp::all_reduce, MadeTask::Size::term, t, 4);
    each_end([&](std::uint32_t r, std::uint32_t k) { put(r, k, first_update(r, k), made, thread(0)); });
  }

  bool is_activation(double bytes) const { return std::abs(bytes - whole().value(old.dims) * element_bytes()) < 0.5; }

  Status split_by_sequence() {
    std::size_t sums = 0;
    each_collective([&](std::uint32_t r, std::uint32_t k, std::uint32_t i) {
      const Item& x = item_at(r, k, i);
      if (role_of(x) != GroupRole::tensor || op_of(x) != CommOp::all_reduce || !is_activation(bytes_of(x))) return;
      replace(r, k, i, CommOp::reduce_scatter, GroupRole::tensor);
      ++sums;
    });
    const std::uint32_t gather =
        collective(GroupRole::tensor, CommOp::all_gather, MadeTask::Size::term, whole(), element_bytes());
    std::size_t columns = 0;
    each_pass_piece([&](std::uint32_t r, std::uint32_t k, PieceKind) {
      const std::vector<Spot> spots = products_of(r, k);
      for (std::size_t s = 0; s < spots.size(); ++s) {
        if (spots[s].product.side == Product::Side::column) ++columns;
        add_gathers(r, k, spots, s, gather);
      }
    });
    if (sums == 0 || columns == 0)
      return fail(
          "the sums of tensor parallelism are not recognised in the trace, so sequence parallelism cannot be put in");
    add_norm_sum();
    say("gathers of sequence parallelism");
    return {};
  }

  void join_sequence() {
    each_collective([&](std::uint32_t r, std::uint32_t k, std::uint32_t i) {
      const Item& x = item_at(r, k, i);
      if (role_of(x) != GroupRole::tensor) return;
      const PieceKind kind = p.anatomy.ranks[r].pieces[k].kind;
      if (op_of(x) == CommOp::reduce_scatter) {
        replace(r, k, i, CommOp::all_reduce, GroupRole::tensor);
      } else if (op_of(x) == CommOp::all_gather || (kind == PieceKind::step_end && bytes_of(x) > 64)) {
        remove(r, k, i);
      }
    });
  }

  // ---- data parallelism ----

  template <class F>
  void each_end(F f) {
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k)
        if (p.anatomy.ranks[r].pieces[k].kind == PieceKind::step_end && p.anatomy.ranks[r].pieces[k].step >= 0) f(r, k);
  }
  // The item before which the first kernel over parameters is launched, failing that the first kernel.
  std::uint32_t first_update(std::uint32_t r, std::uint32_t k) const {
    std::uint32_t any = kNone;
    for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
      const Item& x = item_at(r, k, i);
      if (is_host(x) || x.marks || x.comm != kNone) continue;
      if (any == kNone) any = ahead(r, k, i);
      if (x.node < job.parameter.size() && job.parameter[x.node] != 0) return ahead(r, k, i);
    }
    return any == kNone ? 0 : any;
  }
  std::uint32_t after_update(std::uint32_t r, std::uint32_t k) const {
    std::uint32_t last = kNone;
    for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
      const Item& x = item_at(r, k, i);
      if (!is_host(x) && !x.marks && x.node < job.parameter.size() && job.parameter[x.node] != 0) last = i;
    }
    return last == kNone ? p.pieces[r][k].count : behind(r, k, last);
  }

  double stage_parameters_of(const JobShape& s, std::int64_t stage) const {
    return stage_parameters(s.dims, static_cast<double>(s.layout.layers) / static_cast<double>(s.layout.pp), stage == 0,
                            stage == s.layout.pp - 1 && !(stage == 0 && s.tied_embedding), s.gated_mlp, s.positions);
  }

  // Buckets of gradients, reduced while backward goes on, as Megatron-LM has them (overlap_grad_reduce): scaled by the
  // number of replicas, then reduced; waited for at the end.
  void add_data() {
    // reads and writes all gradients, which the zeroing of them writes
    double zeroing = 0, parameters = 0;
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k) {
        if (p.anatomy.ranks[r].pieces[k].kind != PieceKind::step_begin) continue;
        parameters += stage_parameters_of(old, p.stage[r]);
        for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
          const Item& x = item_at(r, k, i);
          if (!is_host(x) && x.node < job.parameter.size() && job.parameter[x.node] != 0)
            zeroing += static_cast<double>(g.duration[x.node]);
        }
      }
    std::uint32_t scale = kNone;
    if (options.scale_gradients && zeroing > 0 && parameters > 0) {
      MadeTask m;
      m.computes = true;
      m.lane = compute();
      m.name = "scaling of gradients (modelled)";
      m.size = MadeTask::Size::bucket;
      m.ns_each = 2 * zeroing / parameters;
      scale = add_made(std::move(m));
    }
    const std::uint32_t reduce =
        collective(GroupRole::data, now.layout.distributed_optimizer ? CommOp::reduce_scatter : CommOp::all_reduce,
                   MadeTask::Size::bucket, {}, 4);
    p.bucket_parameters = std::max(40e6, 1e6 * static_cast<double>(now.layout.dp));
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r) {
      Block block;
      if (scale != kNone) launch_kernel(block, scale, thread(1));
      launch_made(block, reduce, thread(1));
      add_piece(r, {PieceKind::bucket, 0, 0, -1}, std::move(block));
    }
    each_end([&](std::uint32_t r, std::uint32_t k) {
      wait_for(block_before(r, k, first_update(r, k)), lane_of(GroupRole::data), thread(0));
    });
    say("reductions of gradients");
  }

  void add_piece(std::uint32_t r, const Piece& piece, Block block) {
    p.anatomy.ranks[r].pieces.push_back(piece);
    p.pieces[r].push_back({});
    PieceEdit e;
    e.blocks.push_back(std::move(block));
    edits[r].push_back(std::move(e));
  }

  // After the optimizer, bucket by bucket, all parameters in the type that they are used in.
  void gather_parameters() {
    each_end([&](std::uint32_t r, std::uint32_t k) {
      const std::int32_t step = p.anatomy.ranks[r].pieces[k].step;
      double buckets = 0;
      for (const Piece& piece : p.anatomy.ranks[r].pieces)
        buckets += piece.kind == PieceKind::bucket && piece.step == step ? 1 : 0;
      if (p.bucket_parameters > 0 || buckets == 0) {
        const double size = std::max(40e6, 1e6 * static_cast<double>(now.layout.dp));
        buckets = std::max(1.0, std::round(stage_parameters_of(now, 0) / size));
      }
      const std::uint32_t made = collective(GroupRole::data, CommOp::all_gather, MadeTask::Size::stage_parameters, {},
                                            element_bytes() / buckets);
      const std::uint32_t at = after_update(r, k), lane = lane_of(GroupRole::data);
      Block& block = block_before(r, k, at);
      for (int n = 0; n < static_cast<int>(buckets); ++n) launch_made(block, made, thread(0));
      wait_for(block, lane, thread(0));
      for (std::uint32_t i = at; i < p.pieces[r][k].count; ++i)
        if (is_host(item_at(r, k, i)) && has(name(item_at(r, k, i).node), "DeviceSynchronize") &&
            g.at_begin[item_at(r, k, i).node] == 0)
          edit(r, k).more.push_back({i, {EdgeKind::sync, false, lane, 0, kWaitLag}});
    });
    say("gathers of parameters");
  }

  void shard_optimizer(bool on) {
    bool gathered = false;
    each_collective([&](std::uint32_t r, std::uint32_t k, std::uint32_t i) {
      const Item& x = item_at(r, k, i);
      if (role_of(x) != GroupRole::data || bytes_of(x) <= 1024) return;
      if (on && op_of(x) == CommOp::all_reduce) replace(r, k, i, CommOp::reduce_scatter, GroupRole::data);
      if (on && op_of(x) == CommOp::all_gather) gathered = true;
      if (!on && op_of(x) == CommOp::reduce_scatter) replace(r, k, i, CommOp::all_reduce, GroupRole::data);
      if (!on && op_of(x) == CommOp::all_gather) remove(r, k, i);
    });
    if (on && !gathered) gather_parameters();
  }

  // ---- pipeline ----

  void add_stages() {
    Term message = whole();
    message.split = -1;
    MadeTask m;
    m.op = CommOp::exchange, m.role = GroupRole::pipeline, m.lane = role_row(LaneRole::Kind::exchange, 2);
    m.name = kernel_name(m.op), m.elements = message, m.bytes_each = element_bytes();
    const std::uint32_t made = add_made(std::move(m));
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r) {
      Block block;
      block.items.push_back({host_item(sample.launch.front(), thread(0), kNone), {}});
      block.items.back().item.took = kSendWork * 3 / 2;
      launch_made(block, made, thread(0));
      wait_for(block, p.made[made].lane, thread(0));
      if (options.exchange_sync) {
        block.items.push_back({host_item(sample.launch.front(), thread(0), kNone), {}});
        block.items.back().item.took = 7'000;
        block.items.push_back({host_item(sample.launch.back(), thread(0), kNone),
                               {{EdgeKind::sync, false, p.made[made].lane, 0, kWaitLag},
                                {EdgeKind::sync, false, compute(), 0, kWaitLag}}});
        block.items.back().item.took = 3'000;
      }
      add_piece(r, {PieceKind::exchange, 0, 0, -1}, std::move(block));
    }
    say("exchanges between stages");
    if (!now.tied_embedding) return;
    Term table;
    table.vocab = table.hidden = 1;
    table.tp = -1;
    const std::uint32_t sum = collective(GroupRole::embedding, CommOp::all_reduce, MadeTask::Size::term, table, 4);
    const std::uint32_t data = lane_of(GroupRole::data);
    each_end([&](std::uint32_t r, std::uint32_t k) {
      const std::uint32_t at = first_update(r, k);
      put(r, k, at, sum, thread(0));
      for (BlockItem& x : edit(r, k).blocks.back().items)
        if (x.item.made == sum && now.layout.dp > 1)
          x.edges.push_back({EdgeKind::event, false, data, 0, sample.event_lag});
    });
    say("the sum of the shared embedding's gradients");
  }

  // The norm of all gradients is summed over the ranks that have parts of it.
  void change_norm() {
    const bool sharded = now.layout.distributed_optimizer && now.layout.dp > 1;
    const std::int64_t model = now.layout.tp * now.layout.pp, was_model = old.layout.tp * old.layout.pp;
    const bool was_sharded = old.layout.distributed_optimizer && old.layout.dp > 1;
    const GroupRole wanted = sharded ? GroupRole::world : GroupRole::model;
    const bool needed = sharded ? model * now.layout.dp > 1 : model > 1, was = was_sharded || was_model > 1;
    if (needed == was && sharded == was_sharded) return;
    Term one;
    const std::uint32_t made =
        needed && !was ? collective(wanted, CommOp::all_reduce, MadeTask::Size::term, one, 4) : 0;
    each_end([&](std::uint32_t r, std::uint32_t k) {
      // it is read by the host: a copy, before the update
      std::uint32_t copy = kNone;
      for (std::uint32_t i = 0; i < p.pieces[r][k].count && copy == kNone; ++i) {
        const Item& x = item_at(r, k, i);
        if (!x.marks && g.kind[x.node] == NodeKind::memcpy && has(name(x.node), "DtoH")) copy = i;
      }
      if (needed && !was) {
        const std::uint32_t at = copy == kNone ? after_update(r, k) : ahead(r, k, copy);
        put(r, k, at, made, thread(0));
        return;
      }
      for (std::uint32_t i = 0; i < std::min(copy, p.pieces[r][k].count); ++i) {
        const Item& x = item_at(r, k, i);
        if (!communicates(x) || bytes_of(x) > 64) continue;
        const GroupRole role = role_of(x);
        if (role != GroupRole::model && role != GroupRole::world) continue;
        if (needed) {
          replace(r, k, i, op_of(x), wanted);
        } else {
          remove(r, k, i);
        }
      }
    });
  }

  void say(const std::string& what) {
    modelled.push_back(what + (assumed ? ": the traced job has no collective; host work taken as " +
                                             std::to_string(assumed_us) + " us each"
                                       : ": host work as of the traced job's other collectives"));
  }

  // ---- the program anew ----

  void rewrite() {
    std::vector<Item> items;
    std::vector<ItemEdge> edges;
    items.reserve(p.items.size());
    edges.reserve(p.edges.size());
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k) {
        const PieceItems was = p.pieces[r][k];
        PieceEdit& e = edits[r][k];
        std::stable_sort(e.blocks.begin(), e.blocks.end(),
                         [](const Block& x, const Block& y) { return x.before < y.before; });
        // numbers of the items that stay
        std::vector<std::uint32_t> number(was.count, kNone);
        std::uint32_t next = 0;
        std::size_t b = 0;
        for (std::uint32_t i = 0; i <= was.count; ++i) {
          for (; b < e.blocks.size() && (e.blocks[b].before <= i || i == was.count); ++b)
            next += static_cast<std::uint32_t>(e.blocks[b].items.size());
          if (i < was.count && (e.removed.empty() || e.removed[i] == 0)) number[i] = next++;
        }
        PieceItems out;
        out.first = static_cast<std::uint32_t>(items.size());
        b = 0;
        for (std::uint32_t i = 0; i <= was.count; ++i) {
          for (; b < e.blocks.size() && (e.blocks[b].before <= i || i == was.count); ++b) {
            const auto first = static_cast<std::uint32_t>(items.size()) - out.first;
            for (const BlockItem& x : e.blocks[b].items) {
              Item item = x.item;
              item.first_edge = static_cast<std::uint32_t>(edges.size());
              for (ItemEdge edge : x.edges) {
                if (edge.inside) edge.ref = (edge.ref & ~kOwn) + first;
                edges.push_back(edge);
              }
              item.edges = static_cast<std::uint32_t>(x.edges.size());
              items.push_back(item);
            }
          }
          if (i == was.count || number[i] == kNone) continue;
          Item item = p.items[was.first + i];
          const std::uint32_t from = item.first_edge, count = item.edges;
          item.first_edge = static_cast<std::uint32_t>(edges.size());
          for (std::uint32_t x = from; x < from + count; ++x) {
            ItemEdge edge = p.edges[x];
            if (edge.inside) edge.ref = number[edge.ref];
            if (edge.inside && edge.ref == kNone) continue;
            edges.push_back(edge);
          }
          for (const auto& [of, edge] : e.more)
            if (of == i) edges.push_back(edge);
          item.edges = static_cast<std::uint32_t>(edges.size()) - item.first_edge;
          items.push_back(item);
        }
        out.count = static_cast<std::uint32_t>(items.size()) - out.first;
        p.pieces[r][k] = out;
      }
    p.items = std::move(items);
    p.edges = std::move(edges);
  }

  const TraceSet& traces;
  const ExecGraph& g;
  const Communication& c;
  const JobModel& job;
  const JobShape &old, &now;
  std::vector<std::string>& modelled;
  const CollectiveOptions& options;
  Program p;
  std::map<std::int64_t, std::size_t> loads;  // by stage
  std::vector<std::vector<PieceEdit>> edits;  // by rank and piece
  Sample sample;
  bool assumed = false;
  Ns assumed_us = 0;
};

}  // namespace

bool collectives_differ(const JobModel& job, const JobShape& next) {
  const JobLayout &a = job.base.layout, &b = next.layout;
  const auto differs = [](std::int64_t x, std::int64_t y) { return (x > 1) != (y > 1); };
  return differs(a.tp, b.tp) || differs(a.pp, b.pp) || differs(a.dp, b.dp) ||
         a.distributed_optimizer != b.distributed_optimizer ||
         job.base.dims.sequence_parallel != next.dims.sequence_parallel;
}

Result<Program> edit_collectives(const TraceSet& traces, const GraphBuild& build, const JobModel& job,
                                 const JobShape& next, std::vector<std::string>& modelled,
                                 const CollectiveOptions& options) {
  if (Status s = check_sharding(build, job.base.layout, job.program); !s) return tl::unexpected(s.error());
  const JobLayout& l = next.layout;
  for (const GroupRole role : {GroupRole::tensor, GroupRole::data, GroupRole::embedding}) {
    const Placement where = l.placement(role);
    if (where.members < 2 || job.base.layout.placement(role).members > 1) continue;
    if (transfer_ns(job.net, Pattern::all_reduce, 1e6, where) < 0)
      return fail("nothing tells how fast the network " +
                      std::string(where.one_server() ? "inside a server" : "between servers") +
                      " is: no collective of the trace, and the GPU is not known",
                  "", "--network intra=GB_PER_S,inter=GB_PER_S");
  }
  return Editor(traces, build, job, next, modelled, options).run();
}

Status check_sharding(const GraphBuild& build, const JobLayout& layout, const Program& program) {
  const Communication& c = build.communication;
  for (std::uint32_t r = 0; r < program.pieces.size(); ++r)
    for (std::uint32_t k = 0; k < program.pieces[r].size(); ++k) {
      const Piece& piece = program.anatomy.ranks[r].pieces[k];
      if (piece.step < 0 || piece.pass < 0 || piece.kind == PieceKind::exchange) continue;
      // Megatron-LM's sharded optimizer gathers in the first forward pass of each part at most
      const bool forward = piece.kind == PieceKind::forward_begin || piece.kind == PieceKind::forward_layer ||
                           piece.kind == PieceKind::forward_end;
      const std::int32_t passes = program.anatomy.ranks[r].passes;
      if (forward && (passes == 1 || piece.pass != passes - 1)) continue;
      for (std::uint32_t i = 0; i < program.pieces[r][k].count; ++i) {
        const Item& item = program.items[program.pieces[r][k].first + i];
        if (item.comm == kNone || item.transfer) continue;
        const CommRow& row = c.rows[item.comm];
        if (row.op != CommOp::all_gather || row.group == kNone || row.group >= layout.role.size() ||
            layout.role[row.group] != GroupRole::data)
          continue;
        return fail(
            "parameters are sharded over replicas and gathered layer by layer in every pass (FSDP, ZeRO-3), which "
            "is not modelled");
      }
    }
  return {};
}

Work under_sequence_parallelism(const Work& w, std::string_view name) {
  Work out = w;
  for (const std::string_view part : {"indexSelect", "index_select", "embedding", "compute_grad_weight"})
    if (has(name, part)) return out;
  const Term& m = w.m;
  if (w.kind == WorkKind::memory && m.seq == 1 && m.mbs == 1 && m.hidden == 1 && m.tp == 0 && m.split == 0 &&
      m.ffn == 0 && m.attn == 0 && m.qkv == 0 && m.vocab == 0)
    out.m.split = -1;
  return out;
}

}  // namespace orrery
