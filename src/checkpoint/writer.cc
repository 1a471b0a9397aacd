// Two threads beside the one that trains. The writer takes jobs in order: shard, checks, receipt. The committer (rank 0
// only) looks for the receipts of all ranks and writes manifests. Both hold the state by a shared pointer: when storage
// hangs, close() lets go of them and the process can end.
#include <fmt/core.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <system_error>
#include <thread>

#include "checkpoint/buffers.h"
#include "checkpoint/commit.h"
#include "checkpoint/lock.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/storage.h"

namespace orrery::ckpt {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

std::uint64_t ns_since(Clock::time_point start) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - start).count());
}

constexpr unsigned max_buffers = 64;
constexpr double max_seconds = 1e9;                           // 31 years: what a clock can hold
constexpr auto signal_look = std::chrono::milliseconds(50);   // a signal handler can wake nobody
constexpr auto peer_look = std::chrono::milliseconds(300);    // apart: it asks the storage more than a receipt does
constexpr auto peer_grace = std::chrono::milliseconds(1000);  // its last files may be seen later than its end
constexpr std::int64_t never_ns = std::numeric_limits<std::int64_t>::max();

Clock::time_point after_seconds(double s) {
  return Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(std::clamp(s, 0.0, max_seconds) * 1e3));
}

Status check_seconds(double s, const char* name) {
  if (s >= 0 && s <= max_seconds) return {};
  return fail(fmt::format("{} is {}: it is a number of seconds from 0 to 1e9", name, s));
}

struct Job {
  ShardJob shard;
  int buffer = -1;      // -1: nothing to write, only `gave_up` to tell
  std::string gave_up;  // why
  Clock::time_point accepted;
};

struct Pending {
  Attempt attempt;
  std::string gave_up;  // this rank itself has no shard
  Clock::time_point deadline;
  Clock::time_point next_look;                        // at what costs more
  int ended_rank = -1;                                // whose part is missing, and which has ended
  std::optional<Clock::time_point> ended_rank_since;  // seen
};

struct State {
  Options options;
  Directory root;
  RankLock lock;
  std::shared_ptr<CudaRuntime> cuda;
  std::vector<std::unique_ptr<HostBuffer>> buffers;

  std::mutex mutex;
  std::condition_variable work, room, idle, more_pending;
  std::vector<int> free;  // buffers
  std::deque<Job> queue;  // not begun
  bool writing = false;   // a job is with the writer
  Clock::time_point writing_since;
  std::deque<Pending> pending;  // rank 0: written here, not committed
  std::vector<Pending> doomed;  // rank 0: to be removed once no rank writes to them
  Stats stats;
  std::string failure;  // the first since the last wait()
  bool stopping = false;
  int threads = 0;                               // that have not ended
  std::atomic<bool> abandon{false};              // stop in the middle of a shard
  std::atomic<std::int64_t> hurry_ns{never_ns};  // of the steady clock: when waiting ends, set in a signal handler

  std::optional<Catalogue> catalogue;  // the committer's alone once it runs

  void note(const std::string& error) {
    stats.last_error = error;
    if (failure.empty()) failure = error;
  }
  bool done() const { return queue.empty() && !writing && pending.empty(); }
  bool hurried() const { return hurry_ns != never_ns; }
  bool hurry_is_over() const { return Clock::now().time_since_epoch() >= std::chrono::nanoseconds(hurry_ns.load()); }

  // Until `done`, false when `deadline` or `stop` came first.
  template <class Done, class Stop>
  bool wait(Lock& guard, std::condition_variable& changed, Clock::time_point deadline, Done&& is_done, Stop&& stop) {
    while (!is_done()) {
      if (Clock::now() >= deadline || stop()) return false;
      changed.wait_until(guard, std::min(deadline, Clock::now() + signal_look));
    }
    return true;
  }
};

// The storage that was opened, with no other writer on it.
Status still_ours(const State& s) {
  if (s.root.still_at_its_path()) return s.lock.still_excludes();
  return fail("is not the directory that was opened", s.root.path(), "is its file system still mounted?");
}

void write_one(State& s, Job& job) {
  const auto start = Clock::now();
  Result<std::uint64_t> bytes = 0u;
  if (job.buffer >= 0) {
    try {
      if (const auto ok = still_ours(s); !ok) {
        bytes = tl::unexpected(ok.error());
      } else {
        bytes = write_shard(s.root, job.shard, s.options.read_back, s.options.write_bytes_per_second, s.abandon);
      }
    } catch (const std::exception& e) {  // no memory for names: not a reason to end the training
      bytes = fail(e.what(), s.options.directory);
    }
    if (!bytes) job.gave_up = bytes.error().line();
  }
  if (!job.gave_up.empty() && s.options.world > 1) {
    // If this fails too rank 0 hears nothing and waits for peer_timeout_s; no more can be done from here.
    try {
      (void)write_refusal(s.root, job.shard.attempt, s.options.rank, job.gave_up);
    } catch (const std::exception&) {  // as above
    }
  }
  const Lock guard(s.mutex);
  if (job.buffer >= 0) {
    if (bytes) {
      ++s.stats.written;
      s.stats.bytes_written += *bytes;
      s.stats.write_last_ns = ns_since(start);
      s.stats.write_ns += s.stats.write_last_ns;
    } else {
      ++s.stats.failed;
      s.note(job.gave_up);
    }
    s.free.push_back(job.buffer);
    s.room.notify_all();
  }
  if (s.options.rank == 0) {
    s.pending.push_back({job.shard.attempt, job.gave_up, after_seconds(s.options.peer_timeout_s), {}, -1, {}});
    s.more_pending.notify_all();
  }
  s.writing = false;
  s.idle.notify_all();
}

void write_loop(const std::shared_ptr<State>& s) {
  for (;;) {
    Job job;
    {
      Lock guard(s->mutex);
      s->work.wait(guard, [&] { return s->stopping || !s->queue.empty(); });
      if (s->queue.empty()) return;
      job = std::move(s->queue.front());
      s->queue.pop_front();
      s->writing = true;
      s->writing_since = job.accepted;
    }
    write_one(*s, job);
  }
}

// What rank 0 has found out about one attempt. Without the lock: it touches storage.
struct Verdict {
  bool settled = false, committed = false;
  unsigned removed = 0;
  std::string error;
  bool ready = false;  // all parts are there, and it was not to be committed yet
};

// Why nothing will come any more of the rank that is waited for; "" while it may. A rank's lock goes with its process.
std::string why_never(State& s, Pending& p, const Gathered& g) {
  if (g.missing < 0 || !has_ended(s.options.directory, g.missing, p.attempt.session)) {
    p.ended_rank = -1;
    return {};
  }
  if (p.ended_rank != g.missing) {
    p.ended_rank = g.missing;
    p.ended_rank_since = Clock::now();
  }
  if (Clock::now() - *p.ended_rank_since < peer_grace) return {};
  return fmt::format("rank {} has ended and left no part of it", g.missing);
}

Verdict judge(State& s, Pending& p, bool may_commit) try {
  Verdict v;
  const auto lost = [](std::string why) {
    Verdict out;
    out.settled = true;
    out.error = std::move(why);
    return out;
  };
  if (!p.gave_up.empty()) return lost({});  // a failure was noted when it happened
  const bool thorough = Clock::now() >= p.next_look;
  if (thorough) p.next_look = Clock::now() + peer_look;
  Gathered g = gather(s.root, p.attempt, thorough);
  if (g.state == Gathered::State::waiting) {
    const std::string never = thorough ? why_never(s, p, g) : std::string();
    if (!never.empty()) return lost(fmt::format("step {}: not complete: {}", p.attempt.step, never));
    if (Clock::now() < p.deadline && !s.abandon) return v;
    if (s.abandon) return lost(fmt::format("step {}: closed before it was complete: {}", p.attempt.step, g.why));
    return lost(fmt::format("step {}: not complete after {} s: {}", p.attempt.step, s.options.peer_timeout_s, g.why));
  }
  if (g.state == Gathered::State::given_up)
    return lost(fmt::format("step {}: not complete: {}", p.attempt.step, g.why));
  if (!may_commit) {
    v.ready = true;
    return v;
  }
  v.settled = true;
  if (auto ok = still_ours(s); !ok) {
    v.error = ok.error().line();
    return v;
  }
  if (auto ok = s.catalogue->commit(s.root, std::move(g.manifest)); !ok) {
    v.error = ok.error().line();
    return v;
  }
  v.committed = true;
  const bool full = p.attempt.slot == Slot::full;
  const auto removed =
      s.catalogue->keep_newest(s.root, p.attempt.slot, full ? s.options.keep_full : s.options.keep_snapshot);
  if (removed) v.removed = *removed;
  if (!removed) v.error = removed.error().line();
  return v;
} catch (const std::exception& e) {
  Verdict v;
  v.settled = true;
  v.error = fmt::format("step {}: {}", p.attempt.step, e.what());
  return v;
}

// Removes what will never be complete, once every rank has said its word, has ended or had its time.
void sweep(State& s, std::vector<Pending>& doomed) {
  std::erase_if(doomed, [&](Pending& p) {
    if (Clock::now() < p.deadline && p.attempt.world > 1) {
      if (Clock::now() < p.next_look) return false;
      p.next_look = Clock::now() + peer_look;
      const Gathered g = gather(s.root, p.attempt, true);
      if (g.state == Gathered::State::waiting && why_never(s, p, g).empty()) return false;
    }
    remove_attempt(s.root, p.attempt);  // what is left the next session's start takes away
    return true;
  });
}

void commit_loop(const std::shared_ptr<State>& s) {
  auto nap = std::chrono::milliseconds(5);
  Lock guard(s->mutex);
  for (;;) {
    if (s->pending.empty()) {
      if (s->stopping && s->queue.empty() && !s->writing) return;
      s->more_pending.wait_for(guard, std::chrono::milliseconds(200));
    }
    bool moved = false, sure = false;
    for (std::size_t i = 0; i < s->pending.size();) {
      Pending p = s->pending[i];
      guard.unlock();
      const Verdict v = judge(*s, p, i == 0 || sure);
      guard.lock();
      s->pending[i] = p;  // this thread alone takes any away
      if (v.ready) {
        // What is still to come of those before it came before this one's last part: they are looked at once more.
        sure = true;
        i = 0;
        continue;
      }
      if (!v.settled) {
        ++i;
        continue;
      }
      moved = true;
      s->stats.removed += v.removed;
      if (!v.error.empty()) s->note(v.error);
      // A rank writes in order: who wrote this one will not write an earlier one any more.
      const std::size_t passed = v.committed ? i : 0;
      for (std::size_t k = 0; k < passed; ++k) {
        s->note(fmt::format("step {}: overtaken by step {}", s->pending[k].attempt.step, p.attempt.step));
        s->doomed.push_back(s->pending[k]);
        ++s->stats.abandoned;
      }
      if (v.committed) {
        ++s->stats.committed;
        s->stats.committed_step = p.attempt.step;
      } else {
        p.next_look = {};  // it may go at once
        s->doomed.push_back(p);
        ++s->stats.abandoned;
      }
      const auto at = s->pending.begin();
      s->pending.erase(at + static_cast<std::ptrdiff_t>(i - passed), at + static_cast<std::ptrdiff_t>(i + 1));
      break;
    }
    if (!s->doomed.empty()) {
      std::vector<Pending> doomed = std::move(s->doomed);
      s->doomed.clear();
      guard.unlock();
      sweep(*s, doomed);
      guard.lock();
      s->doomed.insert(s->doomed.end(), doomed.begin(), doomed.end());
    }
    s->idle.notify_all();
    nap = moved ? std::chrono::milliseconds(5) : std::min(nap * 2, std::chrono::milliseconds(200));
    if (!s->pending.empty()) s->more_pending.wait_for(guard, moved ? std::chrono::milliseconds(0) : nap);
  }
}

// Text that JSON and C can hold.
Status check_text(const std::string& text, const char* what) {
  if (text.find('\0') != std::string::npos) return fail(fmt::format("{} has a zero byte in it", what), printable(text));
  if (!is_utf8(text)) return fail(fmt::format("{} is not UTF-8", what), printable(text));
  return {};
}

// Where each tensor goes: larger types first, so that all are aligned; else in the order given.
Result<std::vector<TensorRecord>> lay_out(std::span<const TensorView> tensors, std::vector<std::size_t>& order,
                                          std::uint64_t& total, bool cuda) {
  std::set<std::string_view> names;
  order.resize(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return dtype_bytes(tensors[a].dtype) > dtype_bytes(tensors[b].dtype);
  });
  std::vector<TensorRecord> records;
  records.reserve(tensors.size());
  total = 0;
  for (const std::size_t i : order) {
    const TensorView& t = tensors[i];
    if (auto ok = check_text(t.name, "the name of a tensor"); !ok) return tl::unexpected(ok.error());
    if (t.name.empty() || t.name == "__metadata__") return fail("a tensor has no name, or a reserved one");
    if (!names.insert(t.name).second) return fail("two tensors have one name", printable(t.name));
    if (t.shape.size() > max_dims) return fail("has more than eight dimensions", printable(t.name));
    if (t.split_dim < -1) return fail("its split_dim is negative, but not -1", printable(t.name), "-1 is: not split");
    const auto bytes = tensor_bytes(t.dtype, t.shape);
    if (!bytes) return fail(bytes.error().what, printable(t.name));
    if (*bytes > 0 && t.data == nullptr) return fail("has no data", printable(t.name));
    if (t.place == Place::cuda && !cuda)
      return fail("is on a GPU, but CUDA's runtime was not found", printable(t.name));
    if (t.split_dim >= 0) {
      const auto dim = static_cast<std::size_t>(t.split_dim);
      if (dim >= t.shape.size() || t.offset < 0 || t.whole < t.offset || t.shape[dim] > t.whole - t.offset) {
        return fail("lies outside of the tensor that it is a piece of", printable(t.name),
                    "see split_dim, offset and whole");
      }
    }
    if (__builtin_add_overflow(total, *bytes, &total) || total > INT64_MAX) return fail("tensors are too large");
    records.push_back(
        {t.name, t.dtype, t.shape, t.split_dim < 0 ? -1 : t.split_dim, t.offset, t.whole, total - *bytes, total, 0});
  }
  return records;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

Result<std::string> session_of(const Options& o) {
  if (!o.session.empty()) return o.session;
  if (o.world == 1) {
    std::random_device random;  // the kernel's
    return fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
  }
  const std::string job = environment("SLURM_JOB_ID");
  if (job.empty()) {
    return fail("no session", o.directory,
                "give all ranks of a run the same text, and every run another: rank 0 can draw and send it");
  }
  return fmt::format("slurm-{}.{}.{}", job, environment("SLURM_STEP_ID"), environment("SLURM_RESTART_COUNT"));
}

}  // namespace

struct Writer::Impl {
  std::shared_ptr<State> state;
  std::thread writer, committer;
  std::uint64_t sequence = 0;
  std::string session;
  pid_t owner = ::getpid();
  bool closed = false;

  bool forked() const { return owner != ::getpid(); }  // a child has neither the threads nor the lock

  Job next_job(std::int64_t step, Slot slot);  // takes this rank's next turn
  void tell_none(Job job, std::string why);
  tl::unexpected<Error> refuse(Job job, Error why);
};

Writer::Writer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&& other) noexcept {
  if (this == &other) return *this;
  const Writer before(std::move(*this));  // is closed
  impl_ = std::move(other.impl_);
  return *this;
}

Writer::~Writer() {
  if (!impl_) return;
  (void)close();
  if (impl_->forked()) (void)impl_.release();  // its threads are not this process's to join
}

Result<Writer> Writer::open(const Options& given) {
  Options o = given;
  if (o.directory.empty()) return fail("no directory for checkpoints");
  if (o.directory.find('\0') != std::string::npos) return fail("a directory's name has a zero byte in it");
  // Its path is looked at again at each write, and a job may go to another working directory.
  std::error_code nowhere;
  o.directory = std::filesystem::absolute(o.directory, nowhere).string();
  if (nowhere) return fail("has no absolute path: " + nowhere.message(), given.directory);
  if (o.world < 1 || o.world > max_world) return fail(fmt::format("world is not from 1 to {}", max_world), o.directory);
  if (o.rank < 0 || o.rank >= o.world) return fail("rank is not one of the world", o.directory);
  if (o.buffers < 1 || o.buffers > max_buffers) {
    return fail(fmt::format("buffers is {}: it is from 1 to {}", o.buffers, max_buffers), o.directory);
  }
  const std::pair<double, const char*> times[] = {{o.wait_timeout_s, "wait_timeout_s"},
                                                  {o.peer_timeout_s, "peer_timeout_s"},
                                                  {o.close_timeout_s, "close_timeout_s"}};
  for (const auto& [seconds, name] : times) {
    if (auto ok = check_seconds(seconds, name); !ok) return tl::unexpected(ok.error());
  }
  if (auto ok = check_text(o.session, "the session"); !ok) return tl::unexpected(ok.error());
  auto session = session_of(o);
  if (!session) return tl::unexpected(session.error());
  if (session->size() > 4096) return fail("session is longer than 4096 bytes", o.directory);
  if (auto ok = make_durably(o.directory); !ok) return tl::unexpected(ok.error());
  auto root = Directory::open(o.directory, o.fault);
  if (!root) return tl::unexpected(root.error());
  auto s = std::make_shared<State>();
  s->options = o;
  s->root = std::move(*root);
  if (o.lock) {
    auto lock = RankLock::take(o.directory, o.rank, *session);
    if (!lock) return tl::unexpected(lock.error());
    s->lock = std::move(*lock);
  }
  if (o.rank == 0) {
    auto catalogue = Catalogue::open(s->root, *session);
    if (!catalogue) return tl::unexpected(catalogue.error());
    s->catalogue = std::move(*catalogue);
  }
  if (o.pin) s->cuda = CudaRuntime::find(o.cuda_runtime);  // else once a tensor is on a GPU
  for (unsigned i = 0; i < o.buffers; ++i) {
    auto buffer = std::make_unique<HostBuffer>();
    if (auto ok = buffer->reserve(o.buffer_bytes, s->cuda); !ok) return tl::unexpected(ok.error());
    s->stats.pinned = buffer->pinned();
    s->buffers.push_back(std::move(buffer));
    s->free.push_back(static_cast<int>(i));
  }
  auto impl = std::make_unique<Impl>();
  impl->state = s;
  impl->session = *session;
  // The job's signals are for its own threads. SIGXFSZ blocked makes a file size limit an error of write().
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto start = [&s](void (*loop)(const std::shared_ptr<State>&)) {
    {
      const Lock guard(s->mutex);
      ++s->threads;
    }
    try {
      return std::thread([s, loop] {
        loop(s);
        const Lock guard(s->mutex);
        --s->threads;
        s->idle.notify_all();
      });
    } catch (...) {
      const Lock guard(s->mutex);
      --s->threads;
      throw;
    }
  };
  Status started;
  try {
    impl->writer = start(write_loop);
    if (o.rank == 0) impl->committer = start(commit_loop);
  } catch (const std::exception& e) {
    started = fail(fmt::format("cannot start a thread: {}", e.what()), o.directory, "is there a limit of processes?");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  Writer writer(std::move(impl));  // closes what was started
  if (!started) return tl::unexpected(started.error());
  return writer;
}

Job Writer::Impl::next_job(std::int64_t step, Slot slot) {
  Job job;
  job.accepted = Clock::now();
  job.shard.rank = state->options.rank;
  // A step or slot that there is not has no name; rank 0 finds the turn by its number.
  const Slot named = slot == Slot::snapshot ? Slot::snapshot : Slot::full;
  job.shard.attempt = {std::max<std::int64_t>(step, 0), named, state->options.world, session, ++sequence};
  const Lock guard(state->mutex);
  ++state->stats.saves;
  return job;
}

// The other ranks must hear that nothing will come from here.
void Writer::Impl::tell_none(Job job, std::string why) {
  job.buffer = -1;
  job.gave_up = why.empty() ? "refused, without a reason" : std::move(why);
  job.shard.tensors.clear();
  job.shard.data = nullptr;
  const Lock guard(state->mutex);
  state->queue.push_back(std::move(job));
  state->work.notify_all();
}

tl::unexpected<Error> Writer::Impl::refuse(Job job, Error why) {
  {
    const Lock guard(state->mutex);
    ++state->stats.refused;
  }
  tell_none(std::move(job), why.line());
  return tl::unexpected(std::move(why));
}

Status Writer::usable() const {
  const std::string& directory = impl_->state->options.directory;
  if (impl_->closed) return fail("the writer is closed", directory);
  if (impl_->forked())
    return fail("the writer belongs to the process that forked this one", directory, "open one here");
  return {};
}

Status Writer::refuse(std::int64_t step, Slot slot, const std::string& why) {
  if (auto ok = usable(); !ok) return ok;
  return impl_->refuse(impl_->next_job(step, slot), Error{why, {}, {}});
}

Result<Outcome> Writer::save(std::int64_t step, Slot slot, std::span<const TensorView> tensors,
                             const Metadata& metadata) {
  const auto start = Clock::now();
  if (auto ok = usable(); !ok) return tl::unexpected(ok.error());
  State& s = *impl_->state;
  Job job = impl_->next_job(step, slot);
  std::vector<std::size_t> order;
  const bool on_gpu = std::any_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.place == Place::cuda; });
  try {
    if (on_gpu && !s.cuda) s.cuda = CudaRuntime::find(s.options.cuda_runtime);
    if (step < 0) return impl_->refuse(std::move(job), Error{fmt::format("step {} is negative", step), {}, {}});
    if (slot != Slot::full && slot != Slot::snapshot) {
      return impl_->refuse(std::move(job), Error{"there is no such slot", {}, {}});
    }
    for (const auto& [key, value] : metadata) {
      auto ok = check_text(key, "a key of the metadata");
      if (ok) ok = check_text(value, "a value of the metadata");
      if (!ok) return impl_->refuse(std::move(job), ok.error());
    }
    auto records = lay_out(tensors, order, job.shard.bytes, s.cuda != nullptr);
    if (!records) return impl_->refuse(std::move(job), records.error());
    job.shard.tensors = std::move(*records);
    job.shard.metadata = metadata;
  } catch (const std::exception& e) {  // no memory: the others must hear of that as well
    return impl_->refuse(std::move(job), Error{e.what(), s.options.directory, {}});
  }
  {
    Lock guard(s.mutex);
    if (s.free.empty() && s.options.when_busy == WhenBusy::wait) {
      (void)s.wait(
          guard, s.room, after_seconds(s.options.wait_timeout_s), [&] { return !s.free.empty(); },
          [&] { return s.hurried(); });
      s.stats.waited_ns += ns_since(start);
    }
    if (s.free.empty() && s.options.when_busy == WhenBusy::drop) {
      const auto oldest = std::find_if(s.queue.begin(), s.queue.end(), [](const Job& j) { return j.buffer >= 0; });
      if (oldest != s.queue.end()) {
        s.free.push_back(std::exchange(oldest->buffer, -1));
        oldest->gave_up = "dropped for a newer one, storage is slow";
        ++s.stats.dropped;
      }
    }
    if (s.free.empty()) {
      ++s.stats.skipped;
      s.stats.blocked_last_ns = ns_since(start);
      s.stats.blocked_ns += s.stats.blocked_last_ns;
      s.stats.blocked_max_ns = std::max(s.stats.blocked_max_ns, s.stats.blocked_last_ns);
      guard.unlock();
      impl_->tell_none(std::move(job), "skipped, storage is slow");
      return Outcome::skipped;
    }
    job.buffer = s.free.back();
    s.free.pop_back();
  }
  HostBuffer& buffer = *s.buffers[static_cast<std::size_t>(job.buffer)];
  const bool grew = buffer.capacity() < job.shard.bytes;
  Status copied = buffer.reserve(job.shard.bytes, s.options.pin ? s.cuda : nullptr);
  if (copied && on_gpu) copied = s.cuda->wait();
  for (std::size_t i = 0; copied && i < order.size(); ++i) {
    const TensorView& t = tensors[order[i]];
    const TensorRecord& r = job.shard.tensors[i];
    if (r.end == r.begin) continue;
    if (t.place == Place::cuda) {
      copied = s.cuda->copy(buffer.data() + r.begin, t.data, r.end - r.begin);
    } else {
      std::memcpy(buffer.data() + r.begin, t.data, r.end - r.begin);
    }
  }
  if (!copied) {
    {
      const Lock guard(s.mutex);
      s.free.push_back(job.buffer);
    }
    return impl_->refuse(std::move(job), copied.error());
  }
  job.shard.data = buffer.data();
  const Lock guard(s.mutex);
  ++s.stats.accepted;
  s.stats.buffer_growths += grew ? 1 : 0;
  s.stats.pinned = buffer.pinned();
  s.stats.bytes_copied += job.shard.bytes;
  s.queue.push_back(std::move(job));
  s.work.notify_all();
  s.stats.blocked_last_ns = ns_since(start);
  s.stats.blocked_ns += s.stats.blocked_last_ns;
  s.stats.blocked_max_ns = std::max(s.stats.blocked_max_ns, s.stats.blocked_last_ns);
  return Outcome::accepted;
}

void Writer::hurry(double within_s) noexcept {
  const double ns = within_s > 0 ? std::min(within_s, max_seconds) * 1e9 : 0;  // not a number: at once
  const auto now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  impl_->state->hurry_ns = now + static_cast<std::int64_t>(ns);
}

Status Writer::wait(double timeout_s) {
  if (auto ok = check_seconds(timeout_s, "timeout_s"); !ok) return ok;
  if (impl_->forked()) return usable();
  const auto start = Clock::now();
  State& s = *impl_->state;
  Lock guard(s.mutex);
  const bool written = s.wait(
      guard, s.idle, after_seconds(timeout_s), [&] { return s.done(); }, [&] { return s.hurry_is_over(); });
  if (!written) {
    const double waited = std::min(timeout_s, static_cast<double>(ns_since(start)) * 1e-9);
    return fail(fmt::format("not written after {:.3g} s", waited), s.options.directory,
                s.pending.empty() ? "is the storage slow or gone?" : "do all ranks still run?");
  }
  if (s.failure.empty()) return {};
  return fail(std::exchange(s.failure, {}));
}

Stats Writer::stats() const {
  State& s = *impl_->state;
  if (impl_->forked()) return s.stats;  // as they were; who held the mutex is not here to let it go
  const Lock guard(s.mutex);
  Stats out = s.stats;
  if (s.writing) {
    out.oldest_unwritten_ns = ns_since(s.writing_since);
  } else if (!s.queue.empty()) {
    out.oldest_unwritten_ns = ns_since(s.queue.front().accepted);
  }
  return out;
}

Status Writer::close() { return close(impl_->state->options.close_timeout_s); }

Status Writer::close(double timeout_s) {
  if (impl_->closed || impl_->forked()) return {};
  if (auto ok = check_seconds(timeout_s, "timeout_s"); !ok) return ok;
  impl_->closed = true;
  State& s = *impl_->state;
  Status result = wait(timeout_s);
  bool quiet = false;
  {
    Lock guard(s.mutex);
    s.stopping = true;
    s.abandon = !s.done();
    s.work.notify_all();
    s.more_pending.notify_all();
    // What is not stuck inside the kernel stops at its next look.
    quiet = s.idle.wait_for(guard, std::chrono::seconds(2), [&] { return s.threads == 0; });
  }
  for (std::thread* t : {&impl_->writer, &impl_->committer}) {
    if (!t->joinable()) continue;
    if (quiet) {
      t->join();
    } else {
      t->detach();
    }
  }
  // The lock is the process's until its threads are gone: a stuck one may still write.
  if (quiet) s.lock = RankLock();
  return result;
}

}  // namespace orrery::ckpt
