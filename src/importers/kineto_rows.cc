#include "importers/kineto_rows.h"

#include <algorithm>
#include <cstring>

namespace orrery {
namespace {

std::uint32_t hash_of(std::string_view s) {
  const char* p = s.data();
  std::size_t n = s.size();
  std::uint64_t a = 0x9e3779b97f4a7c15ull ^ n, b = 0xe7037ed1a0b428dbull;
  auto load = [](const char* q) {
    std::uint64_t v;
    std::memcpy(&v, q, 8);
    return v;
  };
  auto mix = [](std::uint64_t x, std::uint64_t y) {
    const auto m = static_cast<unsigned __int128>(x) * y;
    return static_cast<std::uint64_t>(m) ^ static_cast<std::uint64_t>(m >> 64);
  };
  for (; n > 16; n -= 16, p += 16) a = mix(load(p) ^ a, load(p + 8) ^ b);
  std::uint64_t x = 0, y = 0;
  if (n >= 8) {
    x = load(p);
    y = load(p + n - 8);
  } else if (n > 0) {
    std::memcpy(&x, p, n);
  }
  const std::uint64_t h = mix(x ^ a, y ^ b);
  return static_cast<std::uint32_t>(h ^ (h >> 32));
}

template <class T>
void add_all(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void add_shifted(std::vector<std::uint32_t>& to, const std::vector<std::uint32_t>& from, std::size_t by) {
  for (const std::uint32_t v : from) to.push_back(v == kNone ? kNone : v + static_cast<std::uint32_t>(by));
}

// Every column of the tables that a block and a rank share.
template <class Tables, class Function>
void each_column(Tables& t, Function f) {
  const auto all = [&f](auto& table, const auto& columns) {
    std::apply([&](auto... column) { (f(table.*column), ...); }, columns);
  };
  all(t.ops, kOpColumns);
  all(t.op_args, kOpArgsColumns);
  all(t.python_args, kPythonColumns);
  all(t.kernel_args, kKernelColumns);
  all(t.copy_args, kCopyColumns);
  all(t.comm_args, kCommColumns);
  all(t.sync_args, kSyncColumns);
  all(t.flows, kFlowColumns);
  all(t.memory, kMemoryColumns);
}

}  // namespace

LocalStrings::LocalStrings() : slots_(4096, 0) { clear(); }

void LocalStrings::clear() {
  views_.clear();
  hashes_.clear();
  copies_.clear();
  std::fill(slots_.begin(), slots_.end(), 0);
  intern({});
}

StrId LocalStrings::intern(std::string_view s) {
  const std::uint32_t h = hash_of(s);
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = h & mask;
  for (; slots_[i] != 0; i = (i + 1) & mask) {
    const std::uint32_t id = slots_[i] - 1;
    if (hashes_[id] == h && views_[id] == s) return StrId{id};
  }
  const auto id = static_cast<std::uint32_t>(views_.size());
  views_.push_back(s);
  hashes_.push_back(h);
  slots_[i] = id + 1;
  if (views_.size() * 2 > slots_.size()) grow();
  return StrId{id};
}

StrId LocalStrings::intern_copy(std::string_view s) {
  const std::size_t before = views_.size();
  const StrId id = intern(s);
  if (views_.size() != before) views_[raw(id)] = copies_.emplace_back(s);
  return id;
}

void LocalStrings::grow() {
  slots_.assign(slots_.size() * 2, 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::uint32_t id = 0; id < views_.size(); ++id) {
    std::size_t i = hashes_[id] & mask;
    while (slots_[i] != 0) i = (i + 1) & mask;
    slots_[i] = id + 1;
  }
}

void RowBlock::clear() {
  strings.clear();
  lanes.clear();
  each_column(*this, [](auto& column) { column.clear(); });
  halves.clear();
  names.clear();
  aliases.clear();
  events_of_rank.clear();
  events = phases = short_fractions = zero_padded = 0;
  tallies.clear();
}

StrId RankBuilder::global(StrId local, const RowBlock& block) {
  std::uint32_t& id = string_map_[raw(local)];
  if (id == kNone) id = raw(trace_.strings.intern(block.strings.view(local)));
  return StrId{id};
}

LaneId RankBuilder::global(LaneId local, const RowBlock& block) {
  std::uint32_t& id = lane_map_[raw(local)];
  if (id != kNone) return LaneId{id};
  LaneKey key = block.lanes[raw(local)];
  key.pid_text = global(key.pid_text, block);
  key.tid_text = global(key.tid_text, block);
  LaneTable& lanes = trace_.lanes;
  const auto [at, added] = lane_ids_.try_emplace(key, LaneId{static_cast<std::uint32_t>(lanes.size())});
  if (added) {
    lanes.kind.push_back(key.kind);
    lanes.pid.push_back(key.pid);
    lanes.tid.push_back(key.tid);
    lanes.pid_text.push_back(key.pid_text);
    lanes.tid_text.push_back(key.tid_text);
    lanes.name.push_back(StrId{});
  }
  id = raw(at->second);
  return at->second;
}

std::vector<std::int32_t> RankBuilder::lane_ranks() const {
  std::vector<std::int32_t> ranks(trace_.lanes.size(), -1);
  for (const auto& [key, lane] : lane_ids_) ranks[raw(lane)] = key.rank;
  return ranks;
}

void RankBuilder::reserve(double times) {
  each_column(trace_, [times](auto& column) {
    column.reserve(static_cast<std::size_t>(static_cast<double>(column.size()) * times));
  });
}

void RankBuilder::append(RowBlock& b) {
  RankTrace& t = trace_;
  string_map_.assign(b.strings.size(), kNone);
  lane_map_.assign(b.lanes.size(), kNone);
  auto strings = [&](std::vector<StrId>& to, const std::vector<StrId>& from) {
    for (const StrId s : from) to.push_back(global(s, b));
  };
  auto lanes = [&](std::vector<LaneId>& to, const std::vector<LaneId>& from) {
    for (const LaneId l : from) to.push_back(global(l, b));
  };

  // The rows that `extra` of each kind points to stand behind those of earlier blocks.
  const std::size_t op_base = t.op_args.size(), python_base = t.python_args.size(), kernel_base = t.kernel_args.size(),
                    copy_base = t.copy_args.size(), sync_base = t.sync_args.size(), comm_base = t.comm_args.size();
  std::array<std::uint32_t, 16> base{};
  auto set_base = [&](OpKind k, std::size_t v) { base[static_cast<std::size_t>(k)] = static_cast<std::uint32_t>(v); };
  set_base(OpKind::cpu_op, op_base);
  set_base(OpKind::user_annotation, op_base);
  set_base(OpKind::python, python_base);
  set_base(OpKind::kernel, kernel_base);
  set_base(OpKind::memcpy, copy_base);
  set_base(OpKind::memset, copy_base);
  set_base(OpKind::sync, sync_base);

  add_all(t.ops.start, b.ops.start);
  add_all(t.ops.dur, b.ops.dur);
  strings(t.ops.name, b.ops.name);
  lanes(t.ops.lane, b.ops.lane);
  add_all(t.ops.kind, b.ops.kind);
  add_all(t.ops.corr, b.ops.corr);
  add_all(t.ops.ext, b.ops.ext);
  for (std::size_t i = 0; i < b.ops.size(); ++i)
    t.ops.extra.push_back(b.ops.extra[i] == kNone ? kNone
                                                  : b.ops.extra[i] + base[static_cast<std::size_t>(b.ops.kind[i])]);

  add_all(t.op_args.sequence, b.op_args.sequence);
  add_all(t.op_args.fwd_thread, b.op_args.fwd_thread);
  strings(t.op_args.input_dims, b.op_args.input_dims);
  strings(t.op_args.input_types, b.op_args.input_types);
  strings(t.op_args.concrete_inputs, b.op_args.concrete_inputs);
  add_shifted(t.op_args.comm, b.op_args.comm, comm_base);

  add_all(t.python_args.id, b.python_args.id);
  add_all(t.python_args.parent, b.python_args.parent);

  add_all(t.kernel_args.grid_blocks, b.kernel_args.grid_blocks);
  add_all(t.kernel_args.block_threads, b.kernel_args.block_threads);
  add_all(t.kernel_args.shared_bytes, b.kernel_args.shared_bytes);
  add_all(t.kernel_args.registers, b.kernel_args.registers);
  add_all(t.kernel_args.occupancy_pct, b.kernel_args.occupancy_pct);
  add_all(t.kernel_args.blocks_per_sm, b.kernel_args.blocks_per_sm);
  add_shifted(t.kernel_args.comm, b.kernel_args.comm, comm_base);

  add_all(t.copy_args.bytes, b.copy_args.bytes);

  strings(t.comm_args.collective, b.comm_args.collective);
  strings(t.comm_args.dtype, b.comm_args.dtype);
  add_all(t.comm_args.in_elems, b.comm_args.in_elems);
  add_all(t.comm_args.out_elems, b.comm_args.out_elems);
  add_all(t.comm_args.group_size, b.comm_args.group_size);
  strings(t.comm_args.group_name, b.comm_args.group_name);
  strings(t.comm_args.group_desc, b.comm_args.group_desc);
  strings(t.comm_args.group_ranks, b.comm_args.group_ranks);
  add_all(t.comm_args.seq, b.comm_args.seq);
  add_all(t.comm_args.src_rank, b.comm_args.src_rank);
  add_all(t.comm_args.dst_rank, b.comm_args.dst_rank);
  strings(t.comm_args.in_split, b.comm_args.in_split);
  strings(t.comm_args.out_split, b.comm_args.out_split);

  add_all(t.sync_args.kind, b.sync_args.kind);
  add_all(t.sync_args.stream, b.sync_args.stream);
  add_all(t.sync_args.wait_stream, b.sync_args.wait_stream);
  add_all(t.sync_args.wait_record_corr, b.sync_args.wait_record_corr);
  add_all(t.sync_args.wait_event, b.sync_args.wait_event);

  add_all(t.flows.id, b.flows.id);
  add_all(t.flows.ts, b.flows.ts);
  lanes(t.flows.lane, b.flows.lane);
  add_all(t.flows.kind, b.flows.kind);
  add_all(t.flows.is_finish, b.flows.is_finish);

  add_all(t.memory.ts, b.memory.ts);
  lanes(t.memory.lane, b.memory.lane);
  add_all(t.memory.bytes, b.memory.bytes);
  add_all(t.memory.total_allocated, b.memory.total_allocated);
  add_all(t.memory.total_reserved, b.memory.total_reserved);
  add_all(t.memory.device_type, b.memory.device_type);
  add_all(t.memory.device, b.memory.device);

  for (HalfEvent h : b.halves) {
    h.name = global(h.name, b);
    h.lane = global(h.lane, b);
    rest.halves.push_back(h);
  }
  for (LaneName n : b.names) {
    n.lane = global(n.lane, b);
    n.name = global(n.name, b);
    rest.names.push_back(n);
  }
  for (const LaneAlias& a : b.aliases) rest.aliases.push_back({global(a.written, b), global(a.stream, b)});
  for (const auto& [rank, events] : b.events_of_rank) events_of_rank[rank] += events;
  t.events += b.events;
  phases += b.phases;
  rest.short_fractions += b.short_fractions;
  rest.zero_padded += b.zero_padded;
  rest.tallies.merge(b.tallies);
}

}  // namespace orrery
