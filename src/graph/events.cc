// Event records and waits between streams.
//
// Records and waits are zero-length entries of their stream's queue, in host order: a record captures the tail of its
// stream (the last task, and whatever the stream still waits for: waits are transitive); a wait makes the next task of
// its stream depend on the capture. With cuda_sync events both streams are read. Without them they are inferred from
// the place of the calls (docs/model.md lists the rules), and an edge that the times contradict is dropped and counted.
#include <algorithm>
#include <array>

#include "graph/draft.h"

namespace orrery {
namespace {

constexpr Ns kClockTolerance = 2'000;  // ends and starts on one device compare to about this (whole-microsecond traces)
constexpr Ns kTight = 12'000;          // a wait releases its stream within this
constexpr Ns kUnexplained = 20'000;    // a later start than this is not the launch's or the stream's doing
constexpr std::uint32_t kLookBack = 256;

struct Capture {
  std::uint32_t first = 0, count = 0;  // rows of the pool
};

struct StreamName {  // the same number on two devices is two streams
  std::int64_t device = 0, number = 0;
  bool operator==(const StreamName&) const = default;
};

struct Record {  // a record that some cuda_sync event names
  std::int64_t corr = 0;
  StreamName stream;
  Capture captured;
};

struct StreamState {
  std::uint32_t last = kNone;          // last task enqueued
  std::vector<std::uint32_t> pending;  // tasks that the next task must wait for
};

struct ThreadState {
  std::uint32_t last_launch = kNone;     // call
  std::uint32_t compute_stream = kNone;  // stream of the thread's last launch that does not communicate
  std::uint32_t last_record = kNone;     // call
  bool record_is_adjacent = false;       // nothing but that record since
  bool collective_unrecorded = false;    // a collective was launched and its end record not seen yet
  bool last_record_ends_collective = false;
};

class Walker {
 public:
  explicit Walker(Draft& draft) : d(draft), streams(d.streams.size()), threads(d.threads.size()) {
    read_sync_events();
    for (std::uint32_t s = 0; s < d.streams.size(); ++s) {  // work from before the window is already queued
      const StreamRow& row = d.streams[s];
      for (std::uint32_t i = row.first_task; i < row.first_task + row.tasks && d.tasks[i].call == kNone; ++i) {
        streams[s].last = i;
      }
    }
    // The next launch of the same thread; when it launches no more (the end of a data-parallel backward), of any.
    std::vector<std::uint32_t> next(d.threads.size(), kNone);
    std::uint32_t next_of_any = kNone;
    for (std::uint32_t c = static_cast<std::uint32_t>(d.calls.size()); c-- > 0;) {
      std::uint32_t& mine = next[d.calls[c].thread];
      d.calls[c].next_launch = mine == kNone ? next_of_any : mine;
      if (d.calls[c].tasks != 0) mine = next_of_any = c;
    }
    find_main_stream();
  }

  void run() {
    for (std::uint32_t c = 0; c < d.calls.size(); ++c) {
      const CallRow& call = d.calls[c];
      if (is_blocking(call.kind)) save_frontiers(c);
      if (call.tasks != 0) {
        launch(c);
      } else if (call.kind == Call::record) {
        record(c);
      } else if (call.kind == Call::wait) {
        wait(c);
      }
    }
    d.notes.add("waits-unresolved", Severity::info, unresolved,
                unresolved == 0 ? "" : d.trace->example_of(OpId{first_unresolved}),
                "stream waits whose event could not be told (no cuda_sync event, several candidates or none): no edge");
  }

 private:
  Draft& d;
  std::vector<StreamState> streams;
  std::vector<ThreadState> threads;
  std::vector<std::uint32_t> pool;                                   // captured tasks
  std::vector<std::pair<std::int64_t, std::uint32_t>> sync_by_corr;  // correlation -> row of SyncArgs
  std::vector<Record> records;                                       // by correlation
  std::vector<StreamName> idle_streams;   // streams without tasks (NCCL's own): they pass waits on
  std::vector<std::int64_t> sync_device;  // by row of SyncArgs
  std::vector<std::uint32_t> open;        // collectives launched and not waited for, oldest first
  std::uint32_t main_stream = kNone;      // stream with most compute time
  std::uint64_t unresolved = 0;
  std::uint32_t first_unresolved = kNone;  // row of the trace

  static bool is_blocking(Call k) {
    return k == Call::stream_sync || k == Call::device_sync || k == Call::event_sync || k == Call::free_memory;
  }

  void read_sync_events() {
    if (d.options->hide_sync_events) return;
    const RankTrace& t = *d.trace;
    sync_device.assign(t.sync_args.size(), 0);
    for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
      if (t.ops.kind[i] != OpKind::sync || t.ops.extra[i] == kNone || t.ops.corr[i] == 0) continue;
      const std::uint32_t s = t.ops.extra[i];
      const std::int64_t device = sync_device[s] = t.lanes.pid[raw(t.ops.lane[i])];
      sync_by_corr.emplace_back(t.ops.corr[i], s);
      const std::int64_t rec = t.sync_args.wait_record_corr[s];
      if (rec > 0 && t.sync_args.wait_stream[s] >= 0)
        records.push_back({rec, {device, t.sync_args.wait_stream[s]}, {}});
      for (const std::int64_t number : {t.sync_args.wait_stream[s], t.sync_args.stream[s]}) {
        if (number < 0 || find_stream({device, number}) != kNone) continue;
        idle_streams.push_back({device, number});
        streams.emplace_back();
      }
    }
    std::sort(sync_by_corr.begin(), sync_by_corr.end());
    std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.corr < b.corr; });
    records.erase(
        std::unique(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.corr == b.corr; }),
        records.end());
  }

  void find_main_stream() {
    std::vector<Ns> busy(streams.size(), 0);
    for (const Task& t : d.tasks) {
      if (t.kind == NodeKind::kernel) busy[t.stream] += t.end - t.start;
    }
    for (std::uint32_t s = 0; s < busy.size(); ++s) {
      if (main_stream == kNone || busy[s] > busy[main_stream]) main_stream = s;
    }
  }

  std::uint32_t find_stream(StreamName name) const {
    for (std::uint32_t s = 0; s < d.streams.size(); ++s) {
      if (StreamName{d.streams[s].device, d.streams[s].number} == name) return s;
    }
    for (std::uint32_t i = 0; i < idle_streams.size(); ++i) {
      if (idle_streams[i] == name) return static_cast<std::uint32_t>(d.streams.size()) + i;
    }
    return kNone;
  }

  const std::uint32_t* sync_row(std::int64_t corr) const {
    const auto it = std::lower_bound(sync_by_corr.begin(), sync_by_corr.end(), corr,
                                     [](const auto& a, std::int64_t k) { return a.first < k; });
    return it != sync_by_corr.end() && it->first == corr ? &it->second : nullptr;
  }

  Capture capture(std::uint32_t s) {
    const Capture c{static_cast<std::uint32_t>(pool.size()), 0};
    if (streams[s].last != kNone) pool.push_back(streams[s].last);
    pool.insert(pool.end(), streams[s].pending.begin(), streams[s].pending.end());
    return {c.first, static_cast<std::uint32_t>(pool.size()) - c.first};
  }

  // What a blocking call may wait for: all that is queued, or just what its cuda_sync event names.
  void save_frontiers(std::uint32_t c) {
    CallRow& call = d.calls[c];
    std::uint32_t only = kNone;
    if (const std::uint32_t* row = sync_row(d.trace->ops.corr[call.op])) {
      const SyncArgs& sync = d.trace->sync_args;
      if (call.kind == Call::stream_sync && sync.stream[*row] >= 0) {
        only = find_stream({sync_device[*row], sync.stream[*row]});
        call.exact = true;
        if (only == kNone) return;
      }
      if (call.kind == Call::event_sync && sync.wait_record_corr[*row] > 0) {
        call.exact = true;
        const Capture* got = capture_of(sync.wait_record_corr[*row]);
        for (std::uint32_t k = 0; got != nullptr && k < got->count; ++k) {
          const std::uint32_t t = pool[got->first + k] & ~kInferred;
          d.frontiers.push_back({c, d.tasks[t].stream, t});
        }
        return;
      }
    }
    for (std::uint32_t s = 0; s < streams.size(); ++s) {
      if (only != kNone && s != only) continue;
      if (streams[s].last != kNone) d.frontiers.push_back({c, s, streams[s].last});
      for (const std::uint32_t t : streams[s].pending) d.frontiers.push_back({c, s, t & ~kInferred});
    }
  }

  // The next task that will be enqueued on stream `s`, kNone if none.
  std::uint32_t next_task(std::uint32_t s) const {
    if (s >= d.streams.size()) return kNone;
    const StreamRow& row = d.streams[s];
    std::uint32_t i = streams[s].last == kNone ? row.first_task : streams[s].last + 1;
    while (i < row.first_task + row.tasks && d.tasks[i].call == kNone) ++i;
    return i < row.first_task + row.tasks ? i : kNone;
  }

  bool contradicted(std::uint32_t from, std::uint32_t to) const {
    return d.tasks[from].end > d.tasks[to].start + kClockTolerance;
  }

  // The next task of `stream` waits for `task` (flagged kInferred or not). A later task of the same source stream
  // stands for the earlier one.
  void wait_for(std::uint32_t stream, std::uint32_t task) {
    for (std::uint32_t& p : streams[stream].pending) {
      if (d.tasks[p & ~kInferred].stream != d.tasks[task & ~kInferred].stream) continue;
      if ((p & ~kInferred) < (task & ~kInferred)) p = task;
      return;
    }
    streams[stream].pending.push_back(task);
  }
  static constexpr std::uint32_t kInferred = 0x80000000u;

  void launch(std::uint32_t c) {
    const CallRow& call = d.calls[c];
    ThreadState& thread = threads[call.thread];
    const std::uint32_t first = d.launched[call.first_task];
    std::uint32_t last_of_first_stream = first;
    for (std::uint32_t k = 0; k < call.tasks; ++k) {
      const std::uint32_t i = d.launched[call.first_task + k];
      StreamState& s = streams[d.tasks[i].stream];
      for (const std::uint32_t p : s.pending) {
        const std::uint32_t from = p & ~kInferred;
        if (d.tasks[from].stream == d.tasks[i].stream) continue;  // its own order holds it already
        if (contradicted(from, i)) {
          ++d.quality.dropped[static_cast<std::size_t>(EdgeKind::event)];
          continue;
        }
        if (p & kInferred) {
          ++d.quality.event_edges_inferred;
        } else {
          ++d.quality.event_edges_by_sync;
        }
        d.add_edge(d.tasks[from].node, d.tasks[i].node, EdgeKind::event, 0);
      }
      s.pending.clear();
      if (s.last == kNone || i > s.last) s.last = i;
      if (d.tasks[i].stream == d.tasks[first].stream) last_of_first_stream = i;
    }
    if (call.tasks > 1) {  // a graph launch: what follows on its stream waits for all branches
      for (std::uint32_t k = 0; k < call.tasks; ++k) {
        const std::uint32_t i = d.launched[call.first_task + k];
        const bool last_on_stream = streams[d.tasks[i].stream].last == i;
        if (last_on_stream && d.tasks[i].stream != d.tasks[first].stream)
          wait_for(d.tasks[first].stream, i | kInferred);
      }
    }
    const NodeKind kind = d.tasks[first].kind;
    if (kind == NodeKind::comm) {
      open.push_back(first);
      thread.collective_unrecorded = true;
    } else {
      thread.compute_stream = d.tasks[last_of_first_stream].stream;
      thread.collective_unrecorded = false;
    }
    thread.last_launch = c;
    thread.record_is_adjacent = false;
  }

  void record(std::uint32_t c) {
    const CallRow& call = d.calls[c];
    ThreadState& thread = threads[call.thread];
    thread.last_record = c;
    thread.record_is_adjacent = true;
    thread.last_record_ends_collective = false;
    if (call.nccl_range == kNone && thread.collective_unrecorded) {
      thread.last_record_ends_collective = true;
      thread.collective_unrecorded = false;
    }
    const std::int64_t corr = d.trace->ops.corr[call.op];
    const auto it = std::lower_bound(records.begin(), records.end(), corr,
                                     [](const Record& r, std::int64_t k) { return r.corr < k; });
    if (it != records.end() && it->corr == corr) it->captured = capture(find_stream(it->stream));
  }

  void wait(std::uint32_t c) {
    const CallRow& call = d.calls[c];
    ThreadState& thread = threads[call.thread];
    const bool adjacent = thread.record_is_adjacent;
    thread.record_is_adjacent = false;
    const std::int64_t corr = d.trace->ops.corr[call.op];
    if (const std::uint32_t* row = sync_row(corr)) {
      if (read_wait(*row, corr)) return;
    }
    infer_wait(c, adjacent);
  }

  // A wait whose streams are in the trace. False when its record is unknown and must be inferred after all.
  bool read_wait(std::uint32_t row, std::int64_t wait_corr) {
    const SyncArgs& sync = d.trace->sync_args;
    if (sync.kind[row] != SyncKind::stream_wait_event) return false;
    const std::int64_t rec = sync.wait_record_corr[row];
    if (rec < 0) return false;
    const std::uint32_t to = find_stream({sync_device[row], sync.stream[row]});
    if (rec == 0 || rec > wait_corr || to == kNone) return true;  // never recorded, or recorded later: a no-op
    if (const Capture* got = capture_of(rec)) {
      for (std::uint32_t k = 0; k < got->count; ++k) wait_for(to, pool[got->first + k]);
    }  // else the record lies before the window: already satisfied
    return true;
  }

  const Capture* capture_of(std::int64_t record_corr) const {
    const auto it = std::lower_bound(records.begin(), records.end(), record_corr,
                                     [](const Record& r, std::int64_t k) { return r.corr < k; });
    return it != records.end() && it->corr == record_corr ? &it->captured : nullptr;
  }

  // Rules without cuda_sync events, by the place of the wait among the calls of its thread.
  void infer_wait(std::uint32_t c, bool adjacent) {
    const CallRow& call = d.calls[c];
    ThreadState& thread = threads[call.thread];
    if (call.nccl_range != kNone) return;  // NCCL's own stream: no task of ours is on it
    const std::uint32_t next = call.next_launch;
    const bool next_is_comm = next != kNone && d.tasks[d.launched[d.calls[next].first_task]].kind == NodeKind::comm;
    const CallRow* rec = thread.last_record == kNone ? nullptr : &d.calls[thread.last_record];
    const bool pair = adjacent && rec != nullptr && rec->parent == call.parent && rec->comm_op == call.comm_op;

    // (1) before a collective's kernel: NCCL's stream waits for the thread's current compute stream
    const bool same_comm_op = call.comm_op != kNone && next != kNone && d.calls[next].comm_op == call.comm_op;
    if (next_is_comm && (same_comm_op || (pair && !thread.last_record_ends_collective &&
                                          (d.calls[next].nccl_range != kNone || d.calls[next].comm_op != kNone)))) {
      const std::uint32_t to = d.tasks[d.launched[d.calls[next].first_task]].stream;
      collective_waits(thread, to);
      return;
    }
    // after the kernel, inside the same operator: NCCL's own stream again, whether or not an nccl:* range says so
    if (call.comm_op != kNone && thread.last_launch != kNone && d.calls[thread.last_launch].comm_op == call.comm_op)
      return;
    // (2) Work.wait(): the compute stream waits for a collective
    if (call.comm_op != kNone || (rec != nullptr && !pair) || thread.last_record_ends_collective) {
      if (compute_waits(c, thread)) return;
    }
    // (3) between two streams of the program (prefetch, side streams): only on evidence of the times
    plain_wait(c);
  }

  void collective_waits(const ThreadState& thread, std::uint32_t to) {
    const std::uint32_t target = next_task(to);
    const std::uint32_t from = thread.compute_stream == kNone ? main_stream : thread.compute_stream;
    if (target == kNone || from == kNone || from == to) return;
    StreamState& source = streams[from];
    if (source.last != kNone && contradicted(source.last, target)) {
      ++d.quality.dropped[static_cast<std::size_t>(EdgeKind::event)];
      return;
    }
    if (source.last != kNone) wait_for(to, source.last | kInferred);
    for (const std::uint32_t p : source.pending) wait_for(to, p | kInferred);
  }

  // The stream that the thread computes on after this wait; kNone if nothing tells.
  std::uint32_t stream_after(std::uint32_t c) const {
    const ThreadState& thread = threads[d.calls[c].thread];
    for (std::uint32_t n = d.calls[c].next_launch, hops = 0; n != kNone && hops < 64;
         n = d.calls[n].next_launch, ++hops) {
      const Task& t = d.tasks[d.launched[d.calls[n].first_task]];
      if (t.kind != NodeKind::comm) return t.stream;
    }
    return thread.compute_stream == kNone ? main_stream : thread.compute_stream;
  }

  bool compute_waits(std::uint32_t c, const ThreadState&) {
    const std::uint32_t to = stream_after(c);
    if (to == kNone) return false;
    const std::uint32_t target = next_task(to);
    const std::size_t floor = open.size() > kLookBack ? open.size() - kLookBack : 0;
    for (std::size_t i = open.size(); i-- > floor;) {
      const std::uint32_t task = open[i];
      if (d.tasks[task].stream == to) continue;
      if (target != kNone && contradicted(task, target)) continue;
      wait_for(to, task | kInferred);
      forget(task);
      return true;
    }
    return false;
  }

  // A wait between two streams of the program. It belongs to one of the streams that the thread launches on next; its
  // source is told by the times: the task of another stream, queued before the wait, that ends right before the target
  // starts, where nothing else explains the target's start. Failing that, the only other stream still at work.
  void plain_wait(std::uint32_t c) {
    const CallRow& call = d.calls[c];
    std::array<std::uint32_t, 3> waiting{};
    std::size_t count = 0;
    std::uint32_t next = call.next_launch;
    for (int hops = 0; next != kNone && hops < 12 && count < waiting.size(); ++hops, next = d.calls[next].next_launch) {
      const std::uint32_t s = d.tasks[d.launched[d.calls[next].first_task]].stream;
      const auto end = waiting.begin() + static_cast<std::ptrdiff_t>(count);
      if (std::find(waiting.begin(), end, s) == end) waiting[count++] = s;
    }
    for (std::size_t k = 0; k < count; ++k) {
      const std::uint32_t target = next_task(waiting[k]);
      if (target == kNone || explained_without_wait(target)) continue;
      const std::uint32_t from = ends_right_before(target, waiting[k]);
      if (from == kNone) continue;
      wait_for(waiting[k], from | kInferred);
      forget(from);
      return;
    }
    if (count != 0 && wait_for_only_candidate(call, waiting[0])) return;
    if (unresolved++ == 0) first_unresolved = call.op;
  }

  // The task's launch or the task ahead of it accounts for its start.
  bool explained_without_wait(std::uint32_t i) const {
    const Task& t = d.tasks[i];
    Ns ready = d.calls[t.call].begin + 10'000;
    if (i > d.streams[t.stream].first_task) ready = std::max(ready, d.tasks[i - 1].end);
    return t.start <= ready + kUnexplained;
  }

  // Of the tasks queued on other streams so far, the one that ended last before `target` starts; kNone unless tight.
  std::uint32_t ends_right_before(std::uint32_t target, std::uint32_t on) const {
    const Ns start = d.tasks[target].start;
    std::uint32_t best = kNone;
    for (std::uint32_t s = 0; s < d.streams.size(); ++s) {
      if (s == on || streams[s].last == kNone) continue;
      std::uint32_t lo = d.streams[s].first_task, hi = streams[s].last + 1;
      while (lo < hi) {
        const std::uint32_t mid = (lo + hi) / 2;
        if (d.tasks[mid].end <= start + kClockTolerance) {
          lo = mid + 1;
        } else {
          hi = mid;
        }
      }
      if (lo == d.streams[s].first_task) continue;
      if (start - d.tasks[lo - 1].end > kTight) continue;
      if (best == kNone || d.tasks[lo - 1].end > d.tasks[best].end) best = lo - 1;
    }
    return best;
  }

  bool wait_for_only_candidate(const CallRow& call, std::uint32_t to) {
    const std::uint32_t target = next_task(to);
    if (target == kNone) return true;  // nothing of ours waits
    std::uint32_t found = kNone;
    for (std::uint32_t s = 0; s < d.streams.size(); ++s) {
      const std::uint32_t last = streams[s].last;
      if (s == to || last == kNone || d.tasks[last].end <= call.begin || contradicted(last, target)) continue;
      if (found != kNone) return false;
      found = last;
    }
    if (found == kNone) return false;
    wait_for(to, found | kInferred);
    forget(found);
    return true;
  }

  // A collective that something waits for is no longer open.
  void forget(std::uint32_t task) {
    const std::size_t floor = open.size() > kLookBack ? open.size() - kLookBack : 0;
    for (std::size_t i = open.size(); i-- > floor;) {
      if (open[i] != task) continue;
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }
};

}  // namespace

void add_events(Draft& d) { Walker(d).run(); }

}  // namespace orrery
