// One pass over the lanes writes slices and remembers the track of every node; then flows; then the critical path.
#include "writers/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "writers/json_append.h"
#include "writers/slice_tracks.h"
#include "writers/text_sink.h"

namespace orrery {
namespace {

struct Track {
  std::int64_t pid = 0, tid = 0;
};

constexpr std::int64_t kStreamsBelow = 1'000'000;  // in the order of a process's tracks

// How a wait reads on the critical path.
std::string_view wait_name(EdgeKind k) {
  switch (k) {
    case EdgeKind::root:
      return "before the first known work";
    case EdgeKind::thread:
      return "next on the thread";
    case EdgeKind::launch:
      return "launch latency";
    case EdgeKind::stream:
      return "next on the stream";
    case EdgeKind::event:
      return "wait for an event";
    case EdgeKind::sync:
      return "return from a synchronisation";
    case EdgeKind::queue:
      return "full launch queue";
    case EdgeKind::handoff:
      return "wake-up of a thread";
    case EdgeKind::graph:
      return "order inside a graph launch";
    case EdgeKind::stall:
      return "device stall";
    case EdgeKind::collective:
      return "collective";
  }
  return "";
}

std::string_view category(OpKind k, std::string_view name) {
  switch (k) {
    case OpKind::cpu_op:
      return "cpu_op";
    case OpKind::user_annotation:
      return "user_annotation";
    case OpKind::python:
      return "python_function";
    case OpKind::runtime:
      return name.starts_with("cu") && !name.starts_with("cuda") ? "cuda_driver" : "cuda_runtime";
    case OpKind::kernel:
      return "kernel";
    case OpKind::memcpy:
      return "gpu_memcpy";
    case OpKind::memset:
      return "gpu_memset";
    case OpKind::gpu_annotation:
      return "gpu_user_annotation";
    case OpKind::sync:
      return "cuda_sync";
    case OpKind::overhead:
      return "overhead";
    case OpKind::other:
      return "other";
  }
  return "other";
}

bool is_task(NodeKind k) {
  return k == NodeKind::kernel || k == NodeKind::comm || k == NodeKind::memcpy || k == NodeKind::memset;
}

class ChromeTrace {
 public:
  ChromeTrace(TextSink& sink, const TraceSet& traces, const ExecGraph& g, const Replay& r,
              const std::vector<NodeId>& path)
      : sink_(sink), out_(sink.text), traces_(traces), g_(g), r_(r), path_(path) {}
  void write();

 private:
  void prepare();
  void header();
  void rank(std::uint32_t row);
  void lane(std::uint32_t row, std::uint32_t lane, bool host);
  void collect_host(std::uint32_t lane);
  void collect_device(std::uint32_t lane);
  std::vector<Track> name_tracks(std::uint32_t row, std::uint32_t lane, bool host, std::uint32_t tracks);
  Ns common(const RankTrace& t, std::uint32_t node) const;
  void host_slice(const RankTrace& t, const Slice& s);
  void device_slice(const RankTrace& t, const Slice& s);
  void comm_arguments(const RankTrace& t, std::uint32_t row);
  void flows();
  void launch_flow(std::uint32_t node);
  void wait_flow(std::uint32_t node);
  void flow(std::uint64_t id, std::string_view category, std::uint32_t from, std::uint32_t to);
  void critical_path();
  void hop(std::uint32_t node, const Slice& s, bool wait);

  // Pieces of text.
  void metadata(std::string_view name, std::int64_t pid, std::int64_t tid, std::string_view key, std::string_view text);
  void metadata(std::string_view name, std::int64_t pid, std::int64_t tid, std::string_view key, std::int64_t number);
  void slice_head(std::string_view cat, std::string_view name, const Slice& s, const std::string& place);
  void argument(std::string_view key);
  void argument(std::string_view key, std::int64_t v) {
    argument(key);
    append_int(out_, v);
  }
  void argument(std::string_view key, std::string_view v) {
    argument(key);
    append_quoted(out_, v);
  }
  void argument_us(std::string_view key, Ns t) {
    argument(key);
    append_us(out_, t);
  }
  void separate() {
    sink_.spill();
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
  }

  const RankTrace* trace_of(std::uint32_t row) const {
    const std::uint32_t t = g_.ranks[row].trace;
    return t < traces_.ranks.size() ? &traces_.ranks[t] : nullptr;
  }
  bool has_source(const RankTrace& t, std::uint32_t node) const { return raw(g_.source[node]) < t.ops.size(); }
  Ns inside(std::uint32_t node, Ns t) const;  // `t`, moved into the node's slice
  Ns out_of(std::uint32_t node) const;        // when an arrow leaves it
  Ns in_to(std::uint32_t node) const;         // when an arrow reaches it
  std::string_view work_name(std::uint32_t node) const;

  TextSink& sink_;
  std::string& out_;
  const TraceSet& traces_;
  const ExecGraph& g_;
  const Replay& r_;
  const std::vector<NodeId>& path_;

  Ns base_ = 0;
  bool first_ = true, first_argument_ = true;
  std::vector<std::uint32_t> first_of_lane_, by_lane_;  // nodes by graph lane, in node order
  std::vector<std::uint32_t> track_of_;                 // by node, row of tracks_; kNone = not drawn
  std::vector<std::uint32_t> mate_;                     // by node drawn: at the other end of its slice, or itself
  std::vector<Track> tracks_;
  std::vector<std::uint8_t> critical_;             // by node
  std::vector<OpId> owner_;                        // by node, only where critical: what the host work is part of
  std::vector<std::set<std::int64_t>> used_tids_;  // by process of the file
  std::uint64_t unpaired_ = 0;                     // host rows with only one boundary in the graph
  // scratch of one rank, one lane
  std::vector<Slice> slices_;
  std::vector<std::uint32_t> slot_of_op_, track_;
  std::vector<std::uint32_t> open_;
};

void ChromeTrace::prepare() {
  const std::uint32_t n = g_.size();
  std::uint32_t lanes = 0;
  for (const GraphRank& k : g_.ranks) lanes = std::max(lanes, k.first_lane + k.lanes);
  first_of_lane_.assign(lanes + 1, 0);
  for (std::uint32_t i = 0; i < n; ++i)
    if (g_.lane[i] != kNone) ++first_of_lane_[g_.lane[i] + 1];
  for (std::uint32_t l = 0; l < lanes; ++l) first_of_lane_[l + 1] += first_of_lane_[l];
  by_lane_.resize(first_of_lane_[lanes]);
  std::vector<std::uint32_t> fill(first_of_lane_.begin(), first_of_lane_.end() - 1);
  for (std::uint32_t i = 0; i < n; ++i)
    if (g_.lane[i] != kNone) by_lane_[fill[g_.lane[i]]++] = i;

  track_of_.assign(n, kNone);
  mate_.assign(n, kNone);
  critical_.assign(n, 0);
  for (const NodeId p : path_) critical_[raw(p)] = 1;
  if (!path_.empty()) owner_.assign(n, kNoOp);
  used_tids_.resize(g_.ranks.size());

  base_ = std::numeric_limits<Ns>::max();
  for (const GraphRank& k : g_.ranks) base_ = std::min(base_, k.origin);
  for (std::uint32_t i = 0; i < n; ++i)
    if (g_.kind[i] != NodeKind::host) base_ = std::min(base_, r_.start[i]);
  if (base_ == std::numeric_limits<Ns>::max()) base_ = 0;
}

// ---- pieces of text ------------------------------------------------------------------------------------------------

void ChromeTrace::argument(std::string_view key) {
  out_ += first_argument_ ? "\"" : ",\"";
  first_argument_ = false;
  out_ += key;
  out_ += "\":";
}

void ChromeTrace::metadata(std::string_view name, std::int64_t pid, std::int64_t tid, std::string_view key,
                           std::string_view text) {
  separate();
  fmt::format_to(std::back_inserter(out_), R"({{"name":"{}","ph":"M","ts":0,"pid":{},"tid":{},"args":{{"{}":)", name,
                 pid, tid, key);
  append_quoted(out_, text);
  out_ += "}}";
}

void ChromeTrace::metadata(std::string_view name, std::int64_t pid, std::int64_t tid, std::string_view key,
                           std::int64_t number) {
  separate();
  fmt::format_to(std::back_inserter(out_), R"({{"name":"{}","ph":"M","ts":0,"pid":{},"tid":{},"args":{{"{}":{}}}}})",
                 name, pid, tid, key, number);
}

// Up to the opening brace of the arguments.
void ChromeTrace::slice_head(std::string_view cat, std::string_view name, const Slice& s, const std::string& place) {
  separate();
  out_ += "{\"ph\":\"X\",\"cat\":\"";
  out_ += cat;
  out_ += "\",\"name\":\"";
  append_escaped(out_, name);
  out_ += place;  // "pid":1,"tid":7,"ts":
  append_us(out_, s.begin - base_);
  out_ += ",\"dur\":";
  append_us(out_, s.end - s.begin);
  out_ += ",\"args\":{";
  first_argument_ = true;
}

void ChromeTrace::header() {
  fmt::format_to(
      std::back_inserter(out_),
      "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":{},\n\"orrery\":{{\"version\":\"{}\","
      "\"content\":\"replayed run: times are the model's, not measured\",\"ranks\":{},\"nodes\":{}}},\n",
      base_, ORRERY_VERSION, g_.ranks.size(), g_.size());
  if (g_.ranks.size() == 1)
    if (const RankTrace* t = trace_of(0))
      fmt::format_to(std::back_inserter(out_), "\"distributedInfo\":{{\"rank\":{},\"world_size\":{}}},\n",
                     g_.ranks[0].rank, std::max<std::int64_t>(t->world_size, 1));
  out_ += "\"traceEvents\":[";
}

// ---- lanes ---------------------------------------------------------------------------------------------------------

// Begin and end boundaries of the same row become one slice. The stack of open rows also tells whose work a node is.
void ChromeTrace::collect_host(std::uint32_t lane) {
  open_.clear();
  for (std::uint32_t k = first_of_lane_[lane]; k < first_of_lane_[lane + 1]; ++k) {
    const std::uint32_t i = by_lane_[k], op = raw(g_.source[i]);
    if (g_.kind[i] != NodeKind::host || op >= slot_of_op_.size()) continue;
    if (critical_[i] && !open_.empty()) owner_[i] = OpId{open_.back()};
    if (g_.at_begin[i]) {
      slot_of_op_[op] = static_cast<std::uint32_t>(slices_.size());
      slices_.push_back({r_.end[i], 0, i, kNone});
      open_.push_back(op);
      continue;
    }
    const auto found = std::find(open_.rbegin(), open_.rend(), op);  // a child may outlive its parent
    if (found != open_.rend()) open_.erase(found.base() - 1);
    if (slot_of_op_[op] == kNone) {
      ++unpaired_;
      continue;
    }
    slices_[slot_of_op_[op]].end = r_.end[i];
    slices_[slot_of_op_[op]].last_node = i;
  }
  unpaired_ += static_cast<std::uint64_t>(
      std::erase_if(slices_, [](const Slice& s) { return s.last_node == kNone || s.end < s.begin; }));
}

// A task is one node, or two of the same row: a collective's arrival and its transfer. In a job that was changed a row
// may have been run several times: an arrival begins another slice.
void ChromeTrace::collect_device(std::uint32_t lane) {
  for (std::uint32_t k = first_of_lane_[lane]; k < first_of_lane_[lane + 1]; ++k) {
    const std::uint32_t i = by_lane_[k], op = raw(g_.source[i]);
    if (g_.kind[i] == NodeKind::host) continue;
    const bool arrival = g_.kind[i] == NodeKind::comm && g_.at_begin[i] != 0;
    if (arrival || !is_task(g_.kind[i]) || op >= slot_of_op_.size() || slot_of_op_[op] == kNone) {
      if (arrival && op < slot_of_op_.size()) slot_of_op_[op] = static_cast<std::uint32_t>(slices_.size());
      slices_.push_back({r_.start[i], r_.end[i], i, i});
      continue;
    }
    Slice& s = slices_[std::exchange(slot_of_op_[op], kNone)];
    s.begin = std::min(s.begin, r_.start[i]);
    if (r_.end[i] >= s.end) {
      s.end = r_.end[i];
      s.last_node = i;
    }
  }
}

void ChromeTrace::comm_arguments(const RankTrace& t, std::uint32_t row) {
  const CommArgs& c = t.comm_args;
  if (row >= c.size()) return;
  if (c.collective[row] != StrId{}) argument("Collective name", t.strings.view(c.collective[row]));
  if (c.in_elems[row] >= 0) argument("In msg nelems", c.in_elems[row]);
  if (c.out_elems[row] >= 0) argument("Out msg nelems", c.out_elems[row]);
  if (c.dtype[row] != StrId{}) argument("dtype", t.strings.view(c.dtype[row]));
  if (c.group_size[row] > 0) argument("Group size", c.group_size[row]);
  if (c.group_desc[row] != StrId{}) argument("Process Group Description", t.strings.view(c.group_desc[row]));
  if (c.seq[row] >= 0) argument("Seq", c.seq[row]);
}

// When the row of a node began, in the common clock of the ranks.
Ns ChromeTrace::common(const RankTrace& t, std::uint32_t node) const {
  return t.ops.start[raw(g_.source[node])] - (t.window_start - g_.ranks[g_.rank[node]].origin);
}

void ChromeTrace::host_slice(const RankTrace& t, const Slice& s) {
  const std::uint32_t op = raw(g_.source[s.first_node]);
  if (t.ops.kind[op] == OpKind::runtime && t.ops.corr[op] != 0) argument("correlation", t.ops.corr[op]);
  if (t.ops.ext[op] != 0) argument("External id", t.ops.ext[op]);
  argument_us("observed ts", common(t, s.first_node) - base_);
  argument_us("observed dur", t.ops.dur[op]);
  if (r_.released_how[s.last_node] != EdgeKind::thread) argument("waited for", name_of(r_.released_how[s.last_node]));
}

void ChromeTrace::device_slice(const RankTrace& t, const Slice& s) {
  const std::uint32_t op = raw(g_.source[s.first_node]);
  const LaneId lane = t.ops.lane[op];
  argument("device", t.lanes.pid[raw(lane)]);
  argument("stream", t.lanes.tid[raw(lane)]);
  if (t.ops.corr[op] != 0) argument("correlation", t.ops.corr[op]);
  if (t.ops.ext[op] != 0) argument("External id", t.ops.ext[op]);
  const std::uint32_t row = t.ops.extra[op];
  const OpKind kind = t.ops.kind[op];
  if ((kind == OpKind::memcpy || kind == OpKind::memset) && row < t.copy_args.size() && t.copy_args.bytes[row] >= 0)
    argument("bytes", t.copy_args.bytes[row]);
  if (kind == OpKind::kernel && row < t.kernel_args.size()) comm_arguments(t, t.kernel_args.comm[row]);
  argument_us("observed ts", common(t, s.first_node) - base_);
  argument_us("observed dur", t.ops.dur[op]);
  argument("released by", name_of(r_.released_how[s.first_node]));
  if (r_.released_how[s.last_node] == EdgeKind::collective && s.first_node != s.last_node)
    argument_us("waiting for peers", r_.start[s.last_node] - s.begin);
}

std::vector<Track> ChromeTrace::name_tracks(std::uint32_t row, std::uint32_t lane, bool host, std::uint32_t tracks) {
  const RankTrace* t = trace_of(row);
  const std::uint32_t local = lane - g_.ranks[row].first_lane;
  const bool known = t != nullptr && local < t->lanes.size();
  std::set<std::int64_t>& used = used_tids_[row];
  const std::int64_t own = known ? t->lanes.tid[local] : 0;
  std::string name = known ? std::string(t->strings.view(t->lanes.name[local])) : "";
  while (name.ends_with(' ')) name.pop_back();
  if (name.empty()) name = fmt::format("{} {}", host ? "thread" : "stream", own);
  std::vector<Track> out;
  for (std::uint32_t k = 0; k < tracks; ++k) {
    Track track{row + 1, own};
    // The lane's own number where it is free; a number above all others where it is not.
    if (k > 0 || own < 0 || used.contains(own))
      track.tid = used.empty() ? 1 : std::max<std::int64_t>(*used.rbegin(), 0) + 1;
    used.insert(track.tid);
    const std::string suffix = k == 0 ? "" : k == 1 ? " (overlap)" : fmt::format(" (overlap {})", k);
    metadata("thread_name", track.pid, track.tid, "name", name + suffix);
    metadata("thread_sort_index", track.pid, track.tid, "sort_index",
             (host ? 0 : kStreamsBelow) + static_cast<std::int64_t>(local) * 4 + std::min(k, 3u));
    out.push_back(track);
  }
  return out;
}

// What the lane's host nodes, or its device nodes, make of it: a file may have both under one number.
void ChromeTrace::lane(std::uint32_t row, std::uint32_t lane, bool host) {
  const RankTrace* t = trace_of(row);
  if (t == nullptr) return;
  slices_.clear();
  host ? collect_host(lane) : collect_device(lane);
  if (slices_.empty()) return;
  sort_by_begin(slices_);
  const std::uint32_t count = assign_tracks(slices_, host, track_);
  const std::vector<Track> tracks = name_tracks(row, lane, host, count);
  const auto first_row = static_cast<std::uint32_t>(tracks_.size());
  std::vector<std::string> places;
  for (const Track& k : tracks) {
    tracks_.push_back(k);
    places.push_back(fmt::format("\",\"pid\":{},\"tid\":{},\"ts\":", k.pid, k.tid));
  }
  for (std::size_t i = 0; i < slices_.size() && sink_.ok(); ++i) {
    const Slice& s = slices_[i];
    track_of_[s.first_node] = track_of_[s.last_node] = first_row + track_[i];
    mate_[s.first_node] = s.last_node;
    mate_[s.last_node] = s.first_node;
    const bool sourced = has_source(*t, s.first_node);
    const std::uint32_t op = raw(g_.source[s.first_node]);
    const std::string_view name = sourced ? t->name_of(OpId{op}) : name_of(g_.kind[s.first_node]);
    const bool critical = critical_[s.last_node] || (!host && critical_[s.first_node]);
    if (g_.kind[s.first_node] == NodeKind::stall) {
      slice_head("stall", "device stall", s, places[track_[i]]);
      argument("before", name);
    } else {
      slice_head(sourced ? category(t->ops.kind[op], name) : "other", name, s, places[track_[i]]);
      if (sourced) host ? host_slice(*t, s) : device_slice(*t, s);
    }
    if (critical) argument("critical", 1);
    out_ += critical ? "},\"cname\":\"terrible\"}" : "}}";
  }
}

void ChromeTrace::rank(std::uint32_t row) {
  const GraphRank& k = g_.ranks[row];
  const RankTrace* t = trace_of(row);
  slot_of_op_.assign(t ? t->ops.size() : 0, kNone);
  const std::string host = t && !t->host.empty() ? " on " + t->host : "";
  const std::string gpu = t && !t->devices.empty() ? " (" + t->devices.front().name + ")" : "";
  const std::int64_t pid = std::int64_t{row} + 1;
  metadata("process_name", pid, 0, "name", fmt::format("rank {}{}{}", k.rank, host, gpu));
  metadata("process_sort_index", pid, 0, "sort_index", pid);
  for (std::uint32_t l = k.first_lane; l < k.first_lane + k.lanes; ++l) {
    lane(row, l, true);
    lane(row, l, false);
  }
}

// ---- flows ---------------------------------------------------------------------------------------------------------

// An arrow is drawn from the slice around its time; at the very end of a slice there is none any more, unless the slice
// has no length.
Ns ChromeTrace::inside(std::uint32_t i, Ns t) const {
  const std::vector<Ns>& boundary = g_.kind[i] == NodeKind::host ? r_.end : r_.start;
  const Ns begin = std::min(boundary[i], boundary[mate_[i]]);
  const Ns end = std::max(r_.end[i], r_.end[mate_[i]]);
  return std::max(begin, std::min(t, end - 1));
}

Ns ChromeTrace::out_of(std::uint32_t i) const {
  const bool starts = g_.kind[i] != NodeKind::host && g_.at_begin[i];
  return inside(i, starts ? r_.start[i] : r_.end[i]);
}

Ns ChromeTrace::in_to(std::uint32_t i) const {
  const bool begins = g_.kind[i] == NodeKind::host && g_.at_begin[i];
  return inside(i, begins ? r_.end[i] : r_.start[i]);
}

void ChromeTrace::flow(std::uint64_t id, std::string_view cat, std::uint32_t from, std::uint32_t to) {
  const Track& a = tracks_[track_of_[from]];
  const Track& b = tracks_[track_of_[to]];
  const auto end_of_arrow = [&](std::string_view head, const Track& t, Ns ts) {
    separate();
    out_ += head;
    append_int(out_, static_cast<std::int64_t>(id));
    append_int(out_ += ",\"pid\":", t.pid);
    append_int(out_ += ",\"tid\":", t.tid);
    append_us(out_ += ",\"ts\":", ts - base_);
    (out_ += ",\"cat\":\"") += cat;
    (out_ += "\",\"name\":\"") += cat;
    out_ += '"';
  };
  // a place in the launch queue is free when a task starts: its arrow must not end before it begins
  end_of_arrow("{\"ph\":\"s\",\"id\":", a, inside(from, std::min(out_of(from), in_to(to))));
  out_ += '}';
  end_of_arrow("{\"ph\":\"f\",\"id\":", b, in_to(to));
  out_ += ",\"bp\":\"e\"}";
}

void ChromeTrace::launch_flow(std::uint32_t node) {
  for (std::uint32_t e = g_.first_pred[node]; e < g_.first_pred[node + 1]; ++e) {
    if (g_.pred_kind[e] != EdgeKind::launch || g_.pred[e] == kNoNode) continue;
    if (track_of_[raw(g_.pred[e])] != kNone) flow(2 * std::uint64_t{node}, "ac2g", raw(g_.pred[e]), node);
    return;
  }
}

void ChromeTrace::wait_flow(std::uint32_t node) {
  const EdgeKind how = r_.released_how[node];
  if (how == EdgeKind::root || how == EdgeKind::thread || how == EdgeKind::launch || how == EdgeKind::stream) return;
  NodeId from = r_.released_by[node];
  // Through a rendezvous the arrow comes from the member that came last.
  while (from != kNoNode && g_.kind[raw(from)] == NodeKind::rendezvous) from = r_.released_by[raw(from)];
  if (from == kNoNode || track_of_[raw(from)] == kNone) return;
  if (g_.rank[raw(from)] == g_.rank[node] && g_.source[raw(from)] == g_.source[node]) return;  // its own arrival
  flow(2 * std::uint64_t{node} + 1, name_of(how), raw(from), node);
}

void ChromeTrace::flows() {
  for (std::uint32_t i = 0; i < g_.size() && sink_.ok(); ++i) {
    if (track_of_[i] == kNone) continue;
    if (is_task(g_.kind[i])) launch_flow(i);
    wait_flow(i);
  }
}

// ---- the critical path ---------------------------------------------------------------------------------------------

std::string_view ChromeTrace::work_name(std::uint32_t i) const {
  const RankTrace* t = trace_of(g_.rank[i]);
  const OpId op = g_.kind[i] == NodeKind::host ? owner_[i] : g_.source[i];
  if (g_.kind[i] == NodeKind::stall) return "device stall";
  if (t == nullptr || raw(op) >= t->ops.size())
    return g_.kind[i] == NodeKind::host ? "between operators" : name_of(g_.kind[i]);
  return t->name_of(op);
}

void ChromeTrace::hop(std::uint32_t i, const Slice& s, bool wait) {
  const EdgeKind how = r_.released_how[i];
  const std::string place = fmt::format("\",\"pid\":{},\"tid\":{},\"ts\":", tracks_.back().pid, tracks_.back().tid);
  slice_head("critical_path", wait ? wait_name(how) : work_name(i), s, place);
  argument("rank", g_.ranks[g_.rank[i]].rank);
  argument("kind", wait ? name_of(how) : name_of(g_.kind[i]));
  argument("released by", name_of(how));
  const RankTrace* t = trace_of(g_.rank[i]);
  if (t != nullptr && has_source(*t, i)) {
    argument(g_.kind[i] != NodeKind::host ? "task"
             : g_.at_begin[i]             ? "up to the begin of"
                                          : "up to the end of",
             t->name_of(g_.source[i]));
  }
  out_ += "}}";
}

// Hops follow each other without a gap: the lag between a node and the one that released it is a hop of its own, and a
// node that overlaps its releaser is shown from the releaser's end on. Another step's path may begin before this one's
// end; it then gets its own track.
void ChromeTrace::critical_path() {
  if (path_.empty()) return;
  struct Piece {
    std::uint32_t node;
    bool wait;
  };
  std::vector<Slice> slices;
  std::vector<Piece> pieces;
  NodeId previous = kNoNode;
  Ns t = 0;
  const auto take = [&](std::uint32_t node, Ns to, bool wait) {
    if (to <= t) return;
    slices.push_back({t, to, static_cast<std::uint32_t>(pieces.size()), kNone});
    pieces.push_back({node, wait});
    t = to;
  };
  for (const NodeId p : path_) {
    const std::uint32_t i = raw(p);
    if (previous == kNoNode || r_.released_by[i] != previous) t = r_.start[i];  // a path begins
    take(i, r_.start[i], true);
    take(i, r_.end[i], false);
    previous = p;
  }
  sort_by_begin(slices);
  const std::uint32_t count = assign_tracks(slices, false, track_);
  const std::int64_t pid = static_cast<std::int64_t>(g_.ranks.size()) + 1;
  metadata("process_name", pid, 0, "name", std::string_view("critical path"));
  metadata("process_sort_index", pid, 0, "sort_index", std::int64_t{-1});
  for (std::uint32_t k = 0; k < count; ++k) {
    tracks_.push_back({pid, 1 + std::int64_t{k}});
    metadata("thread_name", pid, 1 + k, "name",
             k == 0 ? std::string("critical path") : fmt::format("critical path {}", k + 1));
    for (std::size_t s = 0; s < slices.size() && sink_.ok(); ++s)
      if (track_[s] == k) hop(pieces[slices[s].first_node].node, slices[s], pieces[slices[s].first_node].wait);
  }
}

void ChromeTrace::write() {
  prepare();
  header();
  for (std::uint32_t row = 0; row < g_.ranks.size() && sink_.ok(); ++row) rank(row);
  flows();
  critical_path();
  out_ += "\n]";
  if (unpaired_ > 0)
    fmt::format_to(std::back_inserter(out_), ",\n\"orreryNotes\":{{\"rows-with-one-boundary\":{}}}", unpaired_);
  out_ += "}\n";
}

}  // namespace

Status write_chrome_trace(const std::string& path, const TraceSet& traces, const ExecGraph& graph, const Replay& replay,
                          const std::vector<NodeId>& critical_path) {
  if (replay.start.size() != graph.size() || replay.released_by.size() != graph.size())
    return fail("the replay is not one of this graph", path);
  for (const NodeId n : critical_path)
    if (raw(n) >= graph.size()) return fail("the critical path is not one of this graph", path);
  auto sink = TextSink::create(path);
  if (!sink) return tl::unexpected(sink.error());
  ChromeTrace(*sink, traces, graph, replay, critical_path).write();
  return sink->finish();
}

}  // namespace orrery
