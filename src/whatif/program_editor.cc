#include "whatif/program_editor.h"

#include <algorithm>
#include <cmath>

#include "base/text_match.h"

namespace orrery {
namespace {

// Host work of a collective when the trace has none to copy: c10d's operators, NCCL's launch and the waiting for it
// take twice what the job's launches of kernels take with all that leads up to them. In simulated jobs, which take it
// from profiles of PyTorch 2, 1.7 to 2.1 times.
constexpr double kOfLaunch = 2;
constexpr Ns kLaunchWork = 60'000;
constexpr std::uint32_t kOwn = 0x80000000u;  // a reference to an item of the same block

}  // namespace

ProgramEditor::ProgramEditor(const TraceSet& t, const GraphBuild& b, const JobModel& j, std::vector<std::string>& m)
    : traces(t), g(b.graph), c(b.communication), job(j), old(j.base), modelled(m), p(j.program) {
  edits.resize(p.pieces.size());
  for (std::size_t r = 0; r < p.pieces.size(); ++r) edits[r].resize(p.pieces[r].size());
  take_sample();
}

// ---- looking at the traced job ----

const Item& ProgramEditor::item_at(std::uint32_t r, std::uint32_t piece, std::uint32_t i) const {
  return p.items[p.pieces[r][piece].first + i];
}

bool ProgramEditor::is_host(const Item& item) const { return g.kind[item.node] == NodeKind::host; }

std::string_view ProgramEditor::name(std::uint32_t node) const {
  return traces.ranks[g.ranks[g.rank[node]].trace].name_of(g.source[node]);
}

GroupRole ProgramEditor::role_of(const Item& item) const {
  if (item.made != kNone) return p.made[item.made].role;
  const CommRow& row = c.rows[item.comm];
  if (row.parts != 0 || is_point_to_point(row.op) || row.group == kNone) return GroupRole::pipeline;
  return old.layout.role.size() > row.group ? old.layout.role[row.group] : GroupRole::other;
}

CommOp ProgramEditor::op_of(const Item& item) const {
  return item.made != kNone ? p.made[item.made].op : c.rows[item.comm].op;
}

double ProgramEditor::bytes_of(const Item& item) const {
  if (item.comm != kNone) return static_cast<double>(c.rows[item.comm].bytes);
  const MadeTask& m = p.made[item.made];
  return m.size == MadeTask::Size::term ? m.elements.value(old.dims) * m.bytes_each : 1e9;
}

bool ProgramEditor::communicates(const Item& item) const {
  if (item.marks || item.transfer) return false;
  return item.comm != kNone || (item.made != kNone && !p.made[item.made].computes && !is_host(item));
}

ProgramEditor::Span ProgramEditor::span_of(std::uint32_t r, std::uint32_t piece, std::uint32_t at) const {
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

void ProgramEditor::take_sample() {
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

Ns ProgramEditor::time_of(const Item& item) const { return item.took >= 0 ? item.took : g.duration[item.node]; }

// ---- what is put in ----

std::uint32_t ProgramEditor::role_row(LaneRole::Kind kind, std::uint8_t role, std::uint8_t ordinal) {
  const LaneRole wanted{kind, role, ordinal};
  for (std::uint32_t k = 0; k < p.roles.size(); ++k)
    if (p.roles[k] == wanted) return k;
  p.roles.push_back(wanted);
  return static_cast<std::uint32_t>(p.roles.size() - 1);
}

std::uint32_t ProgramEditor::compute() { return role_row(LaneRole::Kind::compute, 0); }

std::uint32_t ProgramEditor::thread(std::uint8_t ordinal) { return role_row(LaneRole::Kind::thread, 0, ordinal); }

std::uint32_t ProgramEditor::lane_of(GroupRole role) {
  return role_row(LaneRole::Kind::collective, static_cast<std::uint8_t>(role));
}

std::uint32_t ProgramEditor::add_made(MadeTask m) {
  for (std::uint32_t k = 0; k < p.made.size(); ++k) {
    const MadeTask& x = p.made[k];
    if (x.replaces == m.replaces && x.computes == m.computes && x.op == m.op && x.role == m.role && x.lane == m.lane &&
        x.name == m.name && x.size == m.size && x.elements == m.elements && x.bytes_each == m.bytes_each &&
        x.ns_each == m.ns_each)
      return k;
  }
  p.made.push_back(std::move(m));
  return static_cast<std::uint32_t>(p.made.size() - 1);
}

std::string ProgramEditor::kernel_name(CommOp op) {
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

std::uint32_t ProgramEditor::collective(GroupRole role, CommOp op, MadeTask::Size size, const Term& elements,
                                        double bytes) {
  MadeTask m;
  m.op = op, m.role = role, m.lane = lane_of(role), m.name = kernel_name(op);
  m.size = size, m.elements = elements, m.bytes_each = bytes;
  return add_made(std::move(m));
}

Item ProgramEditor::host_item(const Item& from, std::uint32_t lane, std::uint32_t queue) {
  Item item = from;
  item.lane = lane;
  item.queue = from.queue == kNone ? kNone : queue;
  item.in_order = true;
  item.root = false;
  item.first_edge = item.edges = 0;
  return item;
}

void ProgramEditor::launch_made(ItemBlock& block, std::uint32_t made, std::uint32_t host) {
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

void ProgramEditor::launch_kernel(ItemBlock& block, std::uint32_t made, std::uint32_t host) {
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

void ProgramEditor::wait_for(ItemBlock& block, std::uint32_t lane, std::uint32_t host) {
  for (const Item& x : sample.wait) block.items.push_back({host_item(x, host, kNone), {}});
  Item mark;
  mark.node = sample.kernel;
  mark.lane = compute();
  mark.marks = true;
  block.items.push_back({mark, {{EdgeKind::event, false, lane, 0, sample.wait_lag}}});
}

PieceEdit& ProgramEditor::edit(std::uint32_t r, std::uint32_t piece) { return edits[r][piece]; }

ItemBlock& ProgramEditor::block_before(std::uint32_t r, std::uint32_t piece, std::uint32_t item) {
  ItemBlock b;
  b.before = item;
  edit(r, piece).blocks.push_back(std::move(b));
  return edit(r, piece).blocks.back();
}

void ProgramEditor::put(std::uint32_t r, std::uint32_t piece, std::uint32_t before, std::uint32_t made,
                        std::uint32_t host) {
  ItemBlock& block = block_before(r, piece, before);
  launch_made(block, made, host);
  wait_for(block, p.made[made].lane, host);
}

void ProgramEditor::remove(std::uint32_t r, std::uint32_t piece, std::uint32_t at) {
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

void ProgramEditor::each_collective(const std::function<void(std::uint32_t, std::uint32_t, std::uint32_t)>& f) {
  for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
    for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k) {
      if (p.anatomy.ranks[r].pieces[k].step < 0 || p.anatomy.ranks[r].pieces[k].kind == PieceKind::exchange) continue;
      for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i)
        if (communicates(item_at(r, k, i))) f(r, k, i);
    }
}

// The kernel that scales gradients right before they are reduced goes with their reduction.
void ProgramEditor::remove_scaling(std::uint32_t r, std::uint32_t piece, std::uint32_t at) {
  const CommOp op = op_of(item_at(r, piece, at));
  if ((op != CommOp::all_reduce && op != CommOp::reduce_scatter) || bytes_of(item_at(r, piece, at)) <= 64) return;
  for (std::uint32_t i = at; i-- > 0;) {
    const Item& x = item_at(r, piece, i);
    if (is_host(x) || x.marks) continue;
    if (x.made != kNone || communicates(x) || x.transfer || job.parameter[x.node] == 0 ||
        name(x.node).find("elementwise") == std::string_view::npos)
      return;
    PieceEdit& e = edit(r, piece);
    if (e.removed.empty()) e.removed.assign(p.pieces[r][piece].count, 0);
    e.removed[i] = 1;
    return;
  }
}

void ProgramEditor::drop(GroupRole role) {
  each_collective([&](std::uint32_t r, std::uint32_t k, std::uint32_t i) {
    if (role_of(item_at(r, k, i)) != role || p.anatomy.ranks[r].pieces[k].kind == PieceKind::bucket) return;
    if (role == GroupRole::data) remove_scaling(r, k, i);
    remove(r, k, i);
  });
}

void ProgramEditor::replace(std::uint32_t r, std::uint32_t piece, std::uint32_t i, CommOp op, GroupRole role) {
  Item& item = p.items[p.pieces[r][piece].first + i];
  MadeTask m;
  if (item.comm == kNone) m = p.made[item.made];
  m.replaces = item.comm != kNone;
  m.op = op, m.role = role;
  if (!m.replaces) m.name = kernel_name(op);
  item.made = add_made(std::move(m));
}

// ---- places ----

std::uint32_t ProgramEditor::call_of(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const {
  const Item& x = item_at(r, piece, task);
  for (std::uint32_t e = x.first_edge; e < x.first_edge + x.edges; ++e)
    if (p.edges[e].kind == EdgeKind::launch && p.edges[e].inside) return p.edges[e].ref;
  return kNone;
}

std::uint32_t ProgramEditor::behind(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const {
  const std::uint32_t call = call_of(r, piece, task);
  const PieceItems& items = p.pieces[r][piece];
  if (call == kNone) return task + 1;
  for (std::uint32_t i = call + 1; i < items.count; ++i)
    if (item_at(r, piece, i).lane == item_at(r, piece, call).lane) return std::max(i, task) + 1;
  return task + 1;
}

std::uint32_t ProgramEditor::ahead(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const {
  const std::uint32_t call = call_of(r, piece, task);
  return call == kNone ? task : call;
}

std::uint32_t ProgramEditor::host_of(std::uint32_t r, std::uint32_t piece, std::uint32_t task) {
  const std::uint32_t call = call_of(r, piece, task);
  return call == kNone ? thread(0) : item_at(r, piece, call).lane;
}

void ProgramEditor::add_piece(std::uint32_t r, const Piece& piece, ItemBlock block) {
  p.anatomy.ranks[r].pieces.push_back(piece);
  p.pieces[r].push_back({});
  PieceEdit e;
  e.blocks.push_back(std::move(block));
  edits[r].push_back(std::move(e));
}

void ProgramEditor::each_pass_piece(const std::function<void(std::uint32_t, std::uint32_t, PieceKind)>& f) {
  for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
    for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k) {
      const Piece& piece = p.anatomy.ranks[r].pieces[k];
      if (piece.step < 0 || piece.pass < 0 || piece.kind == PieceKind::bucket || piece.kind == PieceKind::exchange)
        continue;
      f(r, k, piece.kind);
    }
}

void ProgramEditor::each_end(const std::function<void(std::uint32_t, std::uint32_t)>& f) {
  for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
    for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k)
      if (p.anatomy.ranks[r].pieces[k].kind == PieceKind::step_end && p.anatomy.ranks[r].pieces[k].step >= 0) f(r, k);
}

// ---- the program anew ----

void ProgramEditor::rewrite() {
  std::vector<Item> items;
  std::vector<ItemEdge> edges;
  std::vector<std::uint8_t> weight;
  items.reserve(p.items.size());
  edges.reserve(p.edges.size());
  for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
    for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k) {
      const PieceItems was = p.pieces[r][k];
      PieceEdit& e = edits[r][k];
      std::stable_sort(e.blocks.begin(), e.blocks.end(),
                       [](const ItemBlock& x, const ItemBlock& y) { return x.before < y.before; });
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
            weight.push_back(0);
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
        weight.push_back(p.weight.empty() ? 0 : p.weight[was.first + i]);
      }
      out.count = static_cast<std::uint32_t>(items.size()) - out.first;
      p.pieces[r][k] = out;
    }
  p.items = std::move(items);
  p.edges = std::move(edges);
  p.weight = std::move(weight);
}

void ProgramEditor::say(const std::string& what) {
  modelled.push_back(what + (assumed ? ": the traced job has no collective; host work taken as " +
                                           std::to_string(assumed_us) + " us each"
                                     : ": host work as of the traced job's other collectives"));
}

}  // namespace orrery
