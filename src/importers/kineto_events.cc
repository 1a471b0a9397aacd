#include "importers/kineto_events.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/json_text.h"
#include "base/json_tokens.h"
#include "base/number_text.h"
#include "importers/kineto_fields.h"

namespace orrery {
namespace {

// A duration beyond this is no duration but an end that was never written.
constexpr Ns kAbsurd = 1'000'000'000'000'000;  // 10^15 ns, 11.6 days
constexpr std::size_t kExample = 120;

bool quoted(std::string_view s) { return s.size() >= 2 && s.front() == '"' && s.back() == '"'; }
std::string_view unquoted(std::string_view s) { return quoted(s) ? s.substr(1, s.size() - 2) : s; }

// Up to eight bytes as one number, 0 for more. Eight bytes can always be read: the window is padded.
std::uint64_t packed(std::string_view s) {
  if (s.empty() || s.size() > 8) return 0;
  std::uint64_t v;
  std::memcpy(&v, s.data(), 8);
  return v & (~std::uint64_t{0} >> (64 - 8 * s.size()));
}

std::uint32_t saturated(double v) {
  return v >= 4294967295.0 ? 0xffffffffu : (v <= 0 ? 0u : static_cast<std::uint32_t>(v));
}

// "[65536, 1, 1]" -> 65536; 0 = not a list of whole numbers.
std::uint32_t product_of(std::string_view list) {
  double product = 1;
  bool any = false;
  for (std::size_t i = 0; i < list.size();) {
    if (list[i] < '0' || list[i] > '9') {
      if (list[i] != ',' && list[i] != '[' && list[i] != ']' && !is_json_space(list[i])) return 0;
      ++i;
      continue;
    }
    double v = 0;
    while (i < list.size() && list[i] >= '0' && list[i] <= '9') v = v * 10 + (list[i++] - '0');
    product *= v;
    any = true;
  }
  return any ? saturated(product) : 0;
}

SyncKind sync_kind_of(std::string_view s) {
  if (s.starts_with("Stream Wait")) return SyncKind::stream_wait_event;
  if (s.starts_with("Event Sync")) return SyncKind::event_sync;
  if (s.starts_with("Stream Sync")) return SyncKind::stream_sync;
  if (s.starts_with("Context Sync") || s.starts_with("Device Sync")) return SyncKind::context_sync;
  return SyncKind::unknown;
}

bool is_gpu_row(OpKind k) { return is_gpu_task(k) || k == OpKind::gpu_annotation || k == OpKind::sync; }

}  // namespace

struct EventParser::State {
  JsonTokens tokens;
  const char* json = nullptr;  // the window being read
  RowBlock* b = nullptr;
  std::string buffer;  // for unescaping

  // The event being read: raw text of each field seen.
  std::uint64_t seen = 0, repeated = 0;
  std::array<std::string_view, kFields> text;

  // Categories repeat: the last ones are remembered.
  std::string last_cat;
  Category last_category;

  // Its args.rank; -1 = none. And how many events of that rank there were.
  std::int32_t rank = -1;
  std::int32_t last_rank = -1;
  std::uint64_t* last_rank_events = nullptr;

  // The last lanes met, by the text of the two numbers that name them.
  struct RecentLane {
    std::uint64_t first = 0, second = 0;
    std::int32_t rank = -1;
    LaneKind kind = LaneKind::other;
    bool gpu = false;
    LaneId id = kNoLane;
  };
  std::array<RecentLane, 4> recent_lanes;
  std::size_t next_recent = 0;
  std::unordered_map<LaneKey, LaneId, LaneHash> lane_ids;
  std::vector<bool> has_alias;  // by lane

  const char* walk(const char* window, std::size_t size);
  std::uint32_t read_object(std::uint32_t i, const FieldTable& table);
  std::uint32_t skip(std::uint32_t i, std::size_t outer) const;
  void event();
  void complete(Ns ts);
  void instant(Ns ts);
  void flow(Ns ts, bool finish);
  void half(Ns ts, bool end);
  void metadata();

  bool has(Field f) const { return (seen >> static_cast<unsigned>(f)) & 1; }
  std::string_view get(Field f) const { return has(f) ? text[static_cast<std::size_t>(f)] : std::string_view{}; }
  std::string example() const;
  [[gnu::cold]] void count(Oddity what) {
    if (b->tallies.count(what)) b->tallies.example(what, example());
  }
  void count_repeated();
  void count_odd_number(std::string_view number) {
    if (!plainly_written(number)) count(Oddity::odd_number);
  }
  bool time(Field f, Ns& ns);
  std::int64_t integer(Field f, std::int64_t missing);
  std::uint32_t volume(Field f);
  float real(Field f);
  StrId string(Field f);
  StrId intern(std::string_view between_quotes);
  bool number_or_text(Field f, std::int64_t& number, StrId& text_id);
  LaneId lane(const LaneKey& key);
  LaneId recent_lane(std::string_view first, std::string_view second, LaneKind kind, bool gpu);
  LaneId raw_lane(LaneKind kind);
  LaneId gpu_lane();
  LaneId new_raw_lane(LaneKind kind);
  LaneId new_gpu_lane();
  [[gnu::cold]] void read_rank();
  void add_alias(LaneId stream);
  Category category();
  std::uint32_t comm_row();
  std::uint32_t extra(OpKind kind);
};

EventParser::EventParser(JsonTokens* kept) : state_(std::make_unique<State>()), kept_(kept) {
  if (kept_ != nullptr) std::swap(state_->tokens, *kept_);
}
EventParser::~EventParser() {
  if (kept_ != nullptr) std::swap(state_->tokens, *kept_);
}

std::string EventParser::State::example() const {
  std::string s = quote_for_people(get(Field::name), kExample);
  if (s.empty()) s = "event";
  if (has(Field::ts)) s += " at ts " + quote_for_people(get(Field::ts), 30);
  if (has(Field::dur)) s += " dur " + quote_for_people(get(Field::dur), 30);
  return s;
}

void EventParser::State::count_repeated() {
  if (!b->tallies.count(Oddity::repeated_key)) return;
  const std::string_view key = key_of(static_cast<Field>(std::countr_zero(repeated)));
  b->tallies.example(Oddity::repeated_key, '"' + std::string(key) + "\" of " + example());
}

// False when the field holds no usable time.
bool EventParser::State::time(Field f, Ns& ns) {
  std::string_view s = get(f);
  if (quoted(s)) {
    s = unquoted(s);
    count(Oddity::time_as_text);
  }
  const NumberState state = read_us(s, ns);
  if (state != NumberState::ok) {
    if (state == NumberState::not_a_number && s != "null") count(Oddity::missing_value);
    return false;
  }
  count_odd_number(s);
  // How many decimals: three is the rule.
  const std::size_t n = s.size();
  const auto dot_before = [&](std::size_t decimals) { return n > decimals && s[n - 1 - decimals] == '.'; };
  if (dot_before(1) || dot_before(2)) {
    if (b->short_fractions++ == 0) b->tallies.example(Oddity::fraction_not_padded, example());
  }
  if (n != 0 && s.back() == '0' && !dot_before(1) && s.find('.') != std::string_view::npos) ++b->zero_padded;
  return true;
}

std::int64_t EventParser::State::integer(Field f, std::int64_t missing) {
  if (!has(f)) return missing;
  const std::string_view s = unquoted(get(f));
  std::int64_t v = 0;
  if (read_int(s, v) == NumberState::ok) {
    count_odd_number(s);
    return v;
  }
  if (s != "null" && !s.empty()) count(Oddity::missing_value);
  return missing;
}

// Of a grid or a block; 0 = unknown.
std::uint32_t EventParser::State::volume(Field f) {
  const std::string_view s = unquoted(get(f));
  const std::uint32_t v = product_of(s);
  if (v == 0 && !s.empty() && s != "null") count(Oddity::missing_value);
  return v;
}

float EventParser::State::real(Field f) {
  if (!has(f)) return std::numeric_limits<float>::quiet_NaN();
  const std::string_view s = unquoted(get(f));
  double v = 0;
  if (read_double(s, v) == NumberState::ok) {
    count_odd_number(s);
    return static_cast<float>(v);
  }
  if (s != "null" && !s.empty()) count(Oddity::missing_value);
  return std::numeric_limits<float>::quiet_NaN();
}

StrId EventParser::State::intern(std::string_view s) {
  if (s.empty() || std::memchr(s.data(), '\\', s.size()) == nullptr) return b->strings.intern(s);
  const JsonEscapes odd = unescape_json(s, buffer);
  if (odd.broken) count(Oddity::broken_escape);
  if (odd.lone_surrogate) count(Oddity::lone_surrogate);
  return b->strings.intern_copy(buffer);
}

StrId EventParser::State::string(Field f) {
  const std::string_view s = get(f);
  if (s.empty()) return StrId{};
  if (quoted(s)) return intern(unquoted(s));
  return s == "null" ? StrId{} : b->strings.intern(s);  // a list or a number, as written
}

// pid and tid: a number, or text when it is not one or does not fit.
bool EventParser::State::number_or_text(Field f, std::int64_t& number, StrId& text_id) {
  const std::string_view s = unquoted(get(f));
  if (!has(f) || s.empty() || s == "null") return false;
  if (read_int(s, number) == NumberState::ok) {
    count_odd_number(s);
    return true;
  }
  number = 0;
  text_id = intern(s);
  return true;
}

LaneId EventParser::State::lane(const LaneKey& key) {
  const auto [at, added] = lane_ids.try_emplace(key, LaneId{static_cast<std::uint32_t>(b->lanes.size())});
  if (added) b->lanes.push_back(key);
  return at->second;
}

// The lane of these two texts; kNoLane when they are too long to be compared at a glance. It is remembered for the next
// time.
LaneId EventParser::State::recent_lane(std::string_view first, std::string_view second, LaneKind kind, bool gpu) {
  const std::uint64_t a = packed(first), c = packed(second);
  if (a == 0 || c == 0) return kNoLane;
  for (const RecentLane& r : recent_lanes)
    if (r.first == a && r.second == c && r.kind == kind && r.gpu == gpu && r.rank == rank) return r.id;
  recent_lanes[next_recent] = {a, c, rank, kind, gpu, gpu ? new_gpu_lane() : new_raw_lane(kind)};
  const LaneId id = recent_lanes[next_recent].id;
  next_recent = (next_recent + 1) % recent_lanes.size();
  return id;
}

LaneId EventParser::State::raw_lane(LaneKind kind) {
  const LaneId id = recent_lane(get(Field::pid), get(Field::tid), kind, false);
  return id != kNoLane ? id : new_raw_lane(kind);
}

LaneId EventParser::State::gpu_lane() {
  // Anything but plain numbers falls back on pid and tid.
  const std::string_view device = get(Field::device), stream = get(Field::stream);
  const auto plain = [](std::string_view t) {
    return std::all_of(t.begin(), t.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  const LaneId id = plain(device) && plain(stream) ? recent_lane(device, stream, LaneKind::stream, true) : kNoLane;
  return id != kNoLane ? id : new_gpu_lane();
}

LaneId EventParser::State::new_raw_lane(LaneKind kind) {
  LaneKey key;
  key.kind = kind;
  key.rank = rank;
  number_or_text(Field::pid, key.pid, key.pid_text);
  number_or_text(Field::tid, key.tid, key.tid_text);
  return lane(key);
}

// Streams are told apart by args.device and args.stream, else by pid and tid.
LaneId EventParser::State::new_gpu_lane() {
  LaneKey key;
  key.kind = LaneKind::stream;
  key.rank = rank;
  if (!has(Field::device) || (key.pid = integer(Field::device, -1)) < 0) {
    key.pid = 0;
    number_or_text(Field::pid, key.pid, key.pid_text);
  }
  constexpr std::int64_t kMissing = std::numeric_limits<std::int64_t>::min();
  key.tid = integer(Field::stream, kMissing);
  if (key.tid != kMissing) {
    if (key.tid < 0) key.kind = LaneKind::other;  // Context Sync: all streams
  } else {
    key.tid = 0;
    number_or_text(Field::tid, key.tid, key.tid_text);
  }
  return lane(key);
}

// The rank that a tool which fuses files wrote into the event.
void EventParser::State::read_rank() {
  const std::string_view s = unquoted(get(Field::rank));
  if (s.empty() || s == "null") return;
  std::int64_t v = 0;
  if (read_int(s, v) != NumberState::ok || v < 0 || v > std::numeric_limits<std::int32_t>::max()) {
    if (b->tallies.count(Oddity::odd_rank))
      b->tallies.example(Oddity::odd_rank, quote_for_people(get(Field::rank), 30) + " of " + example());
    return;
  }
  count_odd_number(s);
  rank = static_cast<std::int32_t>(v);
  if (rank != last_rank || last_rank_events == nullptr) {
    last_rank = rank;
    last_rank_events = &b->events_of_rank[rank];
  }
  ++*last_rank_events;
}

// Flows and names give the pid and tid of a GPU event, not its device and stream.
void EventParser::State::add_alias(LaneId stream) {
  if (b->lanes[raw(stream)].kind != LaneKind::stream) return;
  const LaneId written = raw_lane(LaneKind::other);
  if (has_alias.size() < b->lanes.size()) has_alias.resize(b->lanes.size(), false);
  if (has_alias[raw(written)]) return;
  has_alias[raw(written)] = true;
  b->aliases.push_back({written, stream});
}

Category EventParser::State::category() {
  const std::string_view cat = unquoted(get(Field::cat));
  if (cat != last_cat) {
    last_cat = cat;
    last_category = category_of(cat);
  }
  return last_category;
}

std::uint32_t EventParser::State::comm_row() {
  constexpr auto bit = [](Field f) { return std::uint64_t{1} << static_cast<unsigned>(f); };
  constexpr std::uint64_t any = bit(Field::collective) | bit(Field::in_elems) | bit(Field::out_elems) |
                                bit(Field::group_size) | bit(Field::group_name) | bit(Field::seq);
  if ((seen & any) == 0) return kNone;
  CommArgs& c = b->comm_args;
  auto peer = [&](Field f) {
    const std::int64_t v = integer(f, -1);
    return v >= 0 && v <= 0x7fffffff ? static_cast<std::int32_t>(v) : -1;
  };
  c.collective.push_back(string(Field::collective));
  c.dtype.push_back(string(Field::dtype));
  c.in_elems.push_back(integer(Field::in_elems, -1));
  c.out_elems.push_back(integer(Field::out_elems, -1));
  c.group_size.push_back(std::max<std::int64_t>(0, integer(Field::group_size, 0)));
  c.group_name.push_back(string(Field::group_name));
  c.group_desc.push_back(string(Field::group_desc));
  c.group_ranks.push_back(string(Field::group_ranks));
  c.seq.push_back(integer(Field::seq, -1));
  c.src_rank.push_back(peer(Field::src_rank));
  c.dst_rank.push_back(peer(Field::dst_rank));
  c.in_split.push_back(string(Field::in_split));
  c.out_split.push_back(string(Field::out_split));
  return static_cast<std::uint32_t>(c.size() - 1);
}

// The row of the kind's own table.
std::uint32_t EventParser::State::extra(OpKind kind) {
  switch (kind) {
    case OpKind::cpu_op:
    case OpKind::user_annotation: {
      const std::uint32_t comm = comm_row();
      constexpr auto bit = [](Field f) { return std::uint64_t{1} << static_cast<unsigned>(f); };
      constexpr std::uint64_t any = bit(Field::sequence) | bit(Field::fwd_thread) | bit(Field::input_dims) |
                                    bit(Field::input_types) | bit(Field::concrete_inputs);
      if (comm == kNone && (seen & any) == 0) return kNone;
      OpArgs& o = b->op_args;
      o.sequence.push_back(integer(Field::sequence, -1));
      o.fwd_thread.push_back(integer(Field::fwd_thread, 0));
      o.input_dims.push_back(string(Field::input_dims));
      o.input_types.push_back(string(Field::input_types));
      o.concrete_inputs.push_back(string(Field::concrete_inputs));
      o.comm.push_back(comm);
      return static_cast<std::uint32_t>(o.size() - 1);
    }
    case OpKind::python: {
      if (!has(Field::python_id) && !has(Field::python_parent)) return kNone;
      b->python_args.id.push_back(integer(Field::python_id, -1));
      b->python_args.parent.push_back(integer(Field::python_parent, -1));
      return static_cast<std::uint32_t>(b->python_args.size() - 1);
    }
    case OpKind::kernel: {
      KernelArgs& k = b->kernel_args;
      k.grid_blocks.push_back(volume(Field::grid));
      k.block_threads.push_back(volume(Field::block));
      k.shared_bytes.push_back(saturated(static_cast<double>(integer(Field::shared_memory, 0))));
      k.registers.push_back(
          static_cast<std::uint16_t>(std::clamp<std::int64_t>(integer(Field::registers, 0), 0, 0xffff)));
      k.occupancy_pct.push_back(real(Field::occupancy));
      k.blocks_per_sm.push_back(real(Field::blocks_per_sm));
      k.comm.push_back(comm_row());
      return static_cast<std::uint32_t>(k.size() - 1);
    }
    case OpKind::memcpy:
    case OpKind::memset:
      b->copy_args.bytes.push_back(std::max<std::int64_t>(-1, integer(Field::bytes, -1)));
      return static_cast<std::uint32_t>(b->copy_args.size() - 1);
    case OpKind::sync: {
      SyncArgs& s = b->sync_args;
      std::string_view what = unquoted(get(Field::sync_kind));
      if (what.empty()) what = unquoted(get(Field::name));
      s.kind.push_back(sync_kind_of(what));
      std::int64_t stream = -1;  // what is odd about it was counted with the lane
      if (has(Field::stream) && read_int(unquoted(get(Field::stream)), stream) != NumberState::ok) stream = -1;
      s.stream.push_back(stream);
      s.wait_stream.push_back(integer(Field::wait_stream, -1));
      s.wait_record_corr.push_back(integer(Field::wait_record_corr, -1));
      s.wait_event.push_back(integer(Field::wait_event, -1));
      return static_cast<std::uint32_t>(s.size() - 1);
    }
    default:
      return kNone;
  }
}

void EventParser::State::complete(Ns ts) {
  const Category cat = category();
  if (cat.kind != CategoryKind::op) count(Oddity::unknown_category);
  const OpKind kind = cat.op;
  Ns dur = -1;
  if (!has(Field::dur) || !time(Field::dur, dur) || dur < 0 || dur > kAbsurd) {
    dur = -1;
    count(Oddity::open_event);
  }
  if (Ns end; dur > 0 && __builtin_add_overflow(ts, dur, &end)) {
    dur = -1;
    count(Oddity::open_event);
  }
  LaneId l;
  if (is_gpu_row(kind)) {
    l = gpu_lane();
    if (rank >= 0) add_alias(l);
  } else {
    l = raw_lane(kind == OpKind::overhead || kind == OpKind::other ? LaneKind::other : LaneKind::thread);
  }
  OpTable& o = b->ops;
  o.start.push_back(ts);
  o.dur.push_back(dur);
  o.name.push_back(string(Field::name));
  o.lane.push_back(l);
  o.kind.push_back(kind);
  const std::int64_t corr = integer(Field::correlation, 0);
  o.corr.push_back(corr == -1 ? 0 : corr);
  const std::int64_t ext = integer(Field::external_id, 0);
  o.ext.push_back(ext == -1 ? 0 : ext);
  o.extra.push_back(extra(kind));
}

void EventParser::State::instant(Ns ts) {
  if (has(Field::memory_bytes) &&
      (category().kind == CategoryKind::memory || unquoted(get(Field::name)) == "[memory]")) {
    MemoryTable& m = b->memory;
    auto small = [&](Field f) {
      const std::int64_t v = integer(f, -1);
      return v >= -1 && v <= 0x7fffffff ? static_cast<std::int32_t>(v) : -1;
    };
    m.ts.push_back(ts);
    m.lane.push_back(raw_lane(LaneKind::other));
    m.bytes.push_back(integer(Field::memory_bytes, 0));
    m.total_allocated.push_back(integer(Field::total_allocated, -1));
    m.total_reserved.push_back(integer(Field::total_reserved, -1));
    m.device_type.push_back(small(Field::device_type));
    m.device.push_back(small(Field::device_id));
    return;
  }
  const std::string_view name = unquoted(get(Field::name));
  // The profiler's own marks are no news.
  if (name != "Record Window End" && !name.starts_with("Iteration Start")) count(Oddity::unused_instant);
}

void EventParser::State::flow(Ns ts, bool finish) {
  const Category cat = category();
  std::int64_t id = 0;
  const std::string_view s = unquoted(get(Field::id));
  if (!has(Field::id) || read_int(s, id) != NumberState::ok) {
    // "0x1f" and ids over int64 (taken modulo 2^64: they only have to be equal)
    std::uint64_t v = 0;
    const bool hex = s.starts_with("0x") && s.size() > 2 && s.size() <= 18;
    bool ok = !s.empty() && s.size() <= 20;
    for (const char c : s.substr(hex ? 2 : 0)) {
      const bool digit = c >= '0' && c <= '9';
      const char low = static_cast<char>(c | 0x20);
      if (digit)
        v = v * (hex ? 16 : 10) + static_cast<std::uint64_t>(c - '0');
      else if (hex && low >= 'a' && low <= 'f')
        v = v * 16 + static_cast<std::uint64_t>(low - 'a' + 10);
      else
        ok = false;
    }
    if (!ok) {
      count(Oddity::flow_without_id);
      return;
    }
    id = static_cast<std::int64_t>(v);
  } else {
    count_odd_number(s);
  }
  b->flows.id.push_back(id);
  b->flows.ts.push_back(ts);
  b->flows.lane.push_back(raw_lane(LaneKind::other));
  b->flows.kind.push_back(cat.flow);
  b->flows.is_finish.push_back(finish ? 1 : 0);
}

void EventParser::State::half(Ns ts, bool end) {
  const Category cat = category();
  const LaneId l =
      is_gpu_row(cat.op) ? gpu_lane() : raw_lane(cat.op == OpKind::other ? LaneKind::other : LaneKind::thread);
  b->halves.push_back({ts, string(Field::name), l, cat.op, end});
}

void EventParser::State::metadata() {
  const std::string_view name = unquoted(get(Field::name));
  const bool process = name == "process_name";
  if (!process && name != "thread_name") return;  // sort orders and labels say nothing that is needed
  std::string_view value = unquoted(get(Field::name_arg));
  while (!value.empty() && value.back() == ' ') value.remove_suffix(1);
  if (value.empty()) return;
  b->names.push_back({process, raw_lane(LaneKind::other), intern(value)});
}

void EventParser::State::event() {
  const std::string_view ph = unquoted(get(Field::ph));
  if (has(Field::ph)) ++b->phases;
  rank = -1;
  if (has(Field::rank)) [[unlikely]]
    read_rank();
  if (ph.size() != 1) {
    count(Oddity::unknown_phase);
    return;
  }
  Oddity unused;
  switch (ph[0]) {
    case 'M':
      metadata();
      return;
    case 'X':
    case 'i':
    case 'I':
    case 'R':
    case 's':
    case 'f':
    case 'B':
    case 'E': {
      Ns ts = 0;
      if (!has(Field::ts) || !time(Field::ts, ts)) {
        count(Oddity::no_time);
        return;
      }
      if (ph[0] == 'X')
        complete(ts);
      else if (ph[0] == 's' || ph[0] == 'f')
        flow(ts, ph[0] == 'f');
      else if (ph[0] == 'B' || ph[0] == 'E')
        half(ts, ph[0] == 'E');
      else
        instant(ts);
      return;
    }
    case 'C':
      unused = Oddity::unused_counter;
      break;
    case 't':
      unused = Oddity::unused_flow_step;
      break;
    case 'b':
    case 'e':
    case 'n':
    case 'S':
    case 'T':
    case 'p':
    case 'F':
    case 'N':
    case 'O':
    case 'D':
    case 'P':
    case 'v':
    case 'V':
    case 'c':
    case '(':
    case ')':
      unused = Oddity::unused_async;
      break;
    default:
      unused = Oddity::unknown_phase;
  }
  count(unused);
}

// One past the bracket that closes the one at token i, around which `outer` are open. 0: there is none, or what is in
// between is no JSON (it need not be read, but a stray quote in it must not pass) or nested too deep.
std::uint32_t EventParser::State::skip(std::uint32_t i, std::size_t outer) const {
  const std::uint32_t* at = tokens.at();
  std::uint64_t braces = 0;  // kinds of the open brackets
  std::size_t depth = outer;
  bool after_value = false;
  for (; i < tokens.count(); ++i) {
    const char c = json[at[i]];
    switch (c) {
      case '{':
      case '[':
        if (after_value) return 0;
        braces = braces << 1 | (c == '{' ? 1 : 0);
        if (++depth > kDeepestJson) return 0;
        break;
      case '}':
      case ']':
        if ((braces & 1) != (c == '}' ? 1u : 0u)) return 0;
        braces >>= 1;
        if (--depth == outer) return i + 1;
        after_value = true;
        break;
      case ',':
      case ':':
        if (!after_value) return 0;
        after_value = false;
        break;
      default:
        if (after_value) return 0;
        after_value = true;
    }
  }
  return 0;
}

// The members of the object whose bracket is token i, noted in `text`. Returns one past its end; 0 = no JSON.
std::uint32_t EventParser::State::read_object(std::uint32_t i, const FieldTable& table) {
  const std::uint32_t* at = tokens.at();
  const char* const t = json;
  const std::size_t outer = &table == &kEventFields ? 1 : 2;  // levels of brackets around a value
  constexpr std::uint64_t kArgsBit = std::uint64_t{1} << static_cast<unsigned>(Field::args);
  ++i;
  if (t[at[i]] == '}') return i + 1;
  for (;;) {
    // "key" : value. Beyond the last token t[at[i]] is a blank, which is none of what is asked for.
    const char* const key = t + at[i];
    const char* key_end = t + at[i + 1];
    if (*key != '"' || *key_end != ':') return 0;
    --key_end;
    while (*key_end != '"') {
      if (!is_json_space(*key_end)) return 0;
      --key_end;
    }
    const Field f = table.find({key + 1, static_cast<std::size_t>(key_end - key - 1)});
    const std::uint32_t value = i + 2;
    const char c = t[at[value]];
    std::uint32_t next = value + 1;
    std::size_t end = at[next];
    switch (c) {
      case '{':
        if (f == Field::args) {
          repeated |= seen & kArgsBit;
          seen |= kArgsBit;
          next = read_object(value, kArgFields);
        } else {
          if (f != Field::none) count(Oddity::missing_value);
          next = skip(value, outer);
        }
        if (next == 0) return 0;
        end = 0;
        break;
      case '[':
        next = skip(value, outer);
        if (next == 0) return 0;
        end = at[next - 1] + 1;
        break;
      case '}':
      case ']':
      case ',':
      case ':':
        return 0;
      default:
        break;
    }
    if (f != Field::none && end != 0) {
      const char* const from = t + at[value];
      const char* to = t + end;
      while (is_json_space(to[-1])) --to;
      const std::uint64_t bit = std::uint64_t{1} << static_cast<unsigned>(f);
      repeated |= seen & bit;
      seen |= bit;
      text[static_cast<std::size_t>(f)] = {from, static_cast<std::size_t>(to - from)};
    }
    const char after = t[at[next]];
    i = next + 1;
    if (after == '}') return i;
    if (after != ',') return 0;
  }
}

// "[event, event]" -> rows. Null, or why it is no JSON.
const char* EventParser::State::walk(const char* window, std::size_t size) {
  constexpr const char* kMalformed = "malformed JSON";
  b->clear();
  recent_lanes.fill({});
  lane_ids.clear();
  has_alias.clear();
  last_rank_events = nullptr;
  if (const char* error = tokens.find(window, size)) return error;
  json = window;
  const std::uint32_t* at = tokens.at();
  const std::uint32_t n = tokens.count();
  if (n < 2 || json[at[n - 1]] != ']') return kMalformed;
  for (std::uint32_t i = 1; i < n;) {
    const char c = json[at[i]];
    ++b->events;
    seen = repeated = 0;
    if (c == '{') {
      i = read_object(i, kEventFields);
      if (i == 0) return kMalformed;
      if (repeated != 0) count_repeated();
      event();
    } else if (c == ',' || c == ':' || c == '}' || c == ']') {
      return kMalformed;
    } else {
      if (b->tallies.count(Oddity::not_an_object))
        b->tallies.example(Oddity::not_an_object, quote_for_people({json + at[i], at[i + 1] - at[i]}, kExample));
      i = c == '[' ? skip(i, 0) : i + 1;
      if (i == 0) return kMalformed;
    }
    const char after = json[at[i]];
    if (after != ',' && !(after == ']' && i + 1 == n)) return kMalformed;
    ++i;
  }
  return nullptr;
}

std::optional<TextError> EventParser::parse(RowBlock& block) {
  State& s = *state_;
  s.b = &block;
  EventWindow& w = block.window;
  char* const text = w.text.get();
  text[w.begin - 1] = '[';
  text[w.end] = ']';
  static_assert(EventWindow::kPadding >= JsonTokens::kPadding + 2);
  std::memset(text + w.end + 1, ' ', JsonTokens::kPadding);
  block.repaired.clear();
  const char* error = s.walk(text + w.begin - 1, w.end - w.begin + 2);
  if (error == nullptr) return {};

  // simdjson refused: find the event that is no JSON, or else the characters that are not allowed, and repair those.
  const std::string_view view = w.view();
  for (std::size_t i = 0; i < view.size();) {
    while (i < view.size() && is_json_space(view[i])) ++i;
    if (i == view.size()) break;
    const JsonScan scan = scan_json_value(view, i);
    const bool last = scan.state == JsonScan::State::cut;  // a scalar runs up to the end
    if (scan.state == JsonScan::State::bad)
      return TextError{w.offset + scan.at, "malformed event: " + json_problem(scan),
                       quote_for_people(view.substr(i, 160), 160), false};
    if (last) break;
    std::size_t next = scan.at;
    while (next < view.size() && is_json_space(view[next])) ++next;
    if (next < view.size() && view[next] != ',')
      return TextError{w.offset + next, "malformed JSON: expected ',' between events",
                       quote_for_people(view.substr(i, 160), 160), false};
    i = next + 1;
  }
  block.repaired = "[";
  const JsonRepair repair = repair_json_characters(view, block.repaired);
  block.repaired += ']';
  const std::size_t size = block.repaired.size();
  block.repaired.append(JsonTokens::kPadding, ' ');
  error = s.walk(block.repaired.data(), size);
  if (error != nullptr)
    return TextError{w.offset, std::string("cannot be parsed: ") + error, quote_for_people(view.substr(0, 160), 160),
                     false};
  auto note = [&](Oddity what, std::uint64_t n, std::size_t at) {
    if (n != 0 && block.tallies.count(what, n))
      block.tallies.example(what, "byte " + std::to_string(w.offset + at) + ": " +
                                      quote_for_people(view.substr(at > 30 ? at - 30 : 0, 60), 60));
  };
  note(Oddity::invalid_utf8, repair.invalid_utf8, repair.first_invalid_utf8);
  note(Oddity::control_characters, repair.control_characters, repair.first_control_character);
  return {};
}

}  // namespace orrery
