// Rows of one window (a block), and the rank's tables that blocks are appended to, in file order.
// Inside a block, strings and lanes have numbers of the block's own; appending renames them in order of first use, so
// the tables do not depend on who parsed which window.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "data/trace.h"
#include "importers/trace_text.h"

namespace orrery {

// What can be odd about an event. Names, severities and advice are in kineto_notes.cc.
enum class Oddity : std::uint8_t {
  missing_value,
  time_as_text,
  no_time,
  open_event,
  unknown_category,
  unused_instant,
  unused_counter,
  unused_async,
  unused_flow_step,
  unknown_phase,
  not_an_object,
  flow_without_id,
  unpaired_begin_end,
  invalid_utf8,
  control_characters,
  repeated_key,
  odd_rank,
  odd_number,
  broken_escape,
  lone_surrogate,
  outside_window,
  far_event,
  zero_time,
  overrun,
  fraction_not_padded,
  count_
};
struct Tally {
  std::uint64_t count = 0;
  std::string first;
};
class Tallies {
 public:
  // True when this is the first of its kind: then the caller gives an example with `example`.
  bool count(Oddity what, std::uint64_t n = 1) {
    Tally& t = rows_[static_cast<std::size_t>(what)];
    t.count += n;
    return t.count == n && n != 0;
  }
  void example(Oddity what, std::string text) { rows_[static_cast<std::size_t>(what)].first = std::move(text); }
  void merge(const Tallies& later);
  void clear();
  void write(Notes& notes) const;

 private:
  std::array<Tally, static_cast<std::size_t>(Oddity::count_)> rows_;
};

// Strings of one window: views into its text, or into `unescaped_` where the text had escapes.
class LocalStrings {
 public:
  LocalStrings();
  void clear();
  StrId intern(std::string_view s);       // s must live as long as the block
  StrId intern_copy(std::string_view s);  // copied
  std::string_view view(StrId id) const { return views_[raw(id)]; }
  std::size_t size() const { return views_.size(); }

 private:
  void grow();
  std::vector<std::string_view> views_;
  std::vector<std::uint32_t> hashes_;
  std::vector<std::uint32_t> slots_;  // id + 1
  std::deque<std::string> copies_;
};

struct LaneKey {
  LaneKind kind = LaneKind::other;
  std::int32_t rank = -1;  // args.rank of its events: several ranks may be fused in one file; -1 = they name none
  std::int64_t pid = 0, tid = 0;
  StrId pid_text{}, tid_text{};
  bool operator==(const LaneKey&) const = default;
};

struct LaneHash {
  std::size_t operator()(const LaneKey& k) const {
    std::uint64_t h = static_cast<std::uint64_t>(k.pid) * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(k.tid);
    h += static_cast<std::uint64_t>(k.rank + 1) << 32;
    h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ull + raw(k.pid_text) * 31 + raw(k.tid_text) * 7;
    return static_cast<std::size_t>(h ^ (h >> 32)) + static_cast<std::size_t>(k.kind);
  }
};

// Every column of each table.
inline constexpr std::tuple kOpColumns{&OpTable::start, &OpTable::dur,  &OpTable::name, &OpTable::lane,
                                       &OpTable::kind,  &OpTable::corr, &OpTable::ext,  &OpTable::extra};
inline constexpr std::tuple kOpArgsColumns{&OpArgs::sequence,    &OpArgs::fwd_thread,      &OpArgs::input_dims,
                                           &OpArgs::input_types, &OpArgs::concrete_inputs, &OpArgs::comm};
inline constexpr std::tuple kPythonColumns{&PythonArgs::id, &PythonArgs::parent};
inline constexpr std::tuple kKernelColumns{
    &KernelArgs::grid_blocks,   &KernelArgs::block_threads, &KernelArgs::shared_bytes, &KernelArgs::registers,
    &KernelArgs::occupancy_pct, &KernelArgs::blocks_per_sm, &KernelArgs::comm};
inline constexpr std::tuple kCopyColumns{&CopyArgs::bytes};
inline constexpr std::tuple kCommColumns{
    &CommArgs::collective, &CommArgs::dtype,      &CommArgs::in_elems,    &CommArgs::out_elems, &CommArgs::group_size,
    &CommArgs::group_name, &CommArgs::group_desc, &CommArgs::group_ranks, &CommArgs::seq,       &CommArgs::src_rank,
    &CommArgs::dst_rank,   &CommArgs::in_split,   &CommArgs::out_split};
inline constexpr std::tuple kSyncColumns{&SyncArgs::kind, &SyncArgs::stream, &SyncArgs::wait_stream,
                                         &SyncArgs::wait_record_corr, &SyncArgs::wait_event};
inline constexpr std::tuple kLaneColumns{&LaneTable::kind,     &LaneTable::pid,      &LaneTable::tid,
                                         &LaneTable::pid_text, &LaneTable::tid_text, &LaneTable::name};
inline constexpr std::tuple kFlowColumns{&FlowTable::id, &FlowTable::ts, &FlowTable::lane, &FlowTable::kind,
                                         &FlowTable::is_finish};
inline constexpr std::tuple kMemoryColumns{&MemoryTable::ts,
                                           &MemoryTable::lane,
                                           &MemoryTable::bytes,
                                           &MemoryTable::total_allocated,
                                           &MemoryTable::total_reserved,
                                           &MemoryTable::device_type,
                                           &MemoryTable::device};

// A "B" or "E" event: half of a row.
struct HalfEvent {
  Ns ts;
  StrId name;
  LaneId lane;
  OpKind kind;
  bool end;
};

// process_name and thread_name metadata.
struct LaneName {
  bool process;
  LaneId lane;  // kind other: pid and tid as written
  StrId name;
};

// What GPU events that name a rank give as pid and tid, which a tool may have rewritten, and the stream they are on.
struct LaneAlias {
  LaneId written;  // kind other
  LaneId stream;
};

struct RowBlock {
  EventWindow window;
  std::string repaired;     // copy of the window with its characters repaired; empty = not needed
  std::uint64_t taken = 0;  // bytes the source had taken when the window was full
  LocalStrings strings;
  std::vector<LaneKey> lanes;

  OpTable ops;  // dur -1 = open
  OpArgs op_args;
  PythonArgs python_args;
  KernelArgs kernel_args;
  CopyArgs copy_args;
  CommArgs comm_args;
  SyncArgs sync_args;
  FlowTable flows;
  MemoryTable memory;
  std::vector<HalfEvent> halves;
  std::vector<LaneName> names;
  std::vector<LaneAlias> aliases;
  std::unordered_map<std::int32_t, std::uint64_t> events_of_rank;  // of those that name one

  std::uint64_t events = 0;
  std::uint64_t phases = 0;           // elements that had a "ph"
  std::uint64_t short_fractions = 0;  // times with one or two decimals
  std::uint64_t zero_padded = 0;      // times with two or more decimals that end in 0
  Tallies tallies;

  void clear();  // keeps the memory
};

// What `finish_rank` makes rows, names and notes of.
struct Unfinished {
  std::vector<HalfEvent> halves;
  std::vector<LaneName> names;
  std::vector<LaneAlias> aliases;
  std::uint64_t short_fractions = 0, zero_padded = 0;
  Tallies tallies;
};

// The tables of a file while they grow.
class RankBuilder {
 public:
  explicit RankBuilder(RankTrace& trace) : trace_(trace) {}
  void append(RowBlock& block);
  // Room for `times` the rows there are now. What is not filled later is never touched, so it costs no memory.
  void reserve(double times);
  std::vector<std::int32_t> lane_ranks() const;  // by lane: LaneKey::rank

  Unfinished rest;
  std::uint64_t phases = 0;
  std::map<std::int32_t, std::uint64_t> events_of_rank;  // empty: no event names a rank

 private:
  StrId global(StrId local, const RowBlock& block);
  LaneId global(LaneId local, const RowBlock& block);

  RankTrace& trace_;
  std::unordered_map<LaneKey, LaneId, LaneHash> lane_ids_;
  std::vector<std::uint32_t> string_map_, lane_map_;  // of the block being appended; kNone = not named yet
};

}  // namespace orrery
