// One rank. Every step: gradients of this rank's micro-batches, their sum over all ranks, Adam on this rank's share of
// the weights, the weights of all ranks.
//
// Why killing and restarting changes no bit, on any number of ranks: each micro-batch's gradient is rounded to a 64-bit
// fixed-point number before it is added, so the sum does not depend on order or on who computed what; Adam works number
// by number; and a sample follows from its number alone.
#include "train.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "data.h"
#include "faults.h"

namespace trainer {
namespace {

using namespace orrery;
using Clock = std::chrono::steady_clock;

// A handler can reach nothing else.
volatile sig_atomic_t stop_signal = 0;
std::atomic<ckpt::Writer*> open_writer{nullptr};
std::atomic<double> grace_s{0};
static_assert(std::atomic<ckpt::Writer*>::is_always_lock_free && std::atomic<double>::is_always_lock_free);

// A save that waits for slow storage must not outlast what the scheduler grants before SIGKILL.
void on_stop(int signal) {
  if (stop_signal != 0) return;
  stop_signal = signal;
  if (ckpt::Writer* w = open_writer) w->hurry(grace_s);
}
constexpr std::int64_t interrupted = std::int64_t{1} << 32;  // a rank's wish to stop after SIGINT; 1 after SIGTERM

constexpr double fixed_point = 1099511627776.0;  // 2^40: gradients in steps of 2^-40
constexpr float too_large = 1024.0f;  // no gradient of a healthy model; the sum of 4,096 of them has room in 63 bits

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// "iteration, Unix nanoseconds, what it does, node": one line of one write, read by whoever watches the job.
class Heartbeat {
 public:
  Heartbeat(const std::string& directory, int rank) {
    if (directory.empty()) return;
    const std::string path = fmt::format("{}/rank-{:05}", directory, rank);
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) throw std::runtime_error(path + ": cannot write the heartbeat");
    const char* const node = std::getenv("SLURMD_NODENAME");  // NOLINT: nobody changes it
    char host[256] = {};
    if (node == nullptr && ::gethostname(host, sizeof host - 1) != 0) host[0] = '-';
    node_ = node != nullptr ? node : host;
  }
  ~Heartbeat() {
    if (fd_ >= 0) ::close(fd_);
  }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  void beat(std::int64_t step, const char* phase) const {
    if (fd_ < 0) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::string line =
        fmt::format("{:10} {:20} {:<12} {}\n", step, std::chrono::nanoseconds(now).count(), phase, node_);
    (void)!::pwrite(fd_, line.data(), line.size(), 0);
  }

 private:
  int fd_ = -1;
  std::string node_;
};

struct Step {
  double loss = 0, gradient_norm = 0;
  bool finite = true, save = false;
  const char* stop = nullptr;  // the signal that some rank was sent
};

class Trainer {
 public:
  Trainer(const Settings& settings, int rank, Ring& ring)
      : s_(settings),
        rank_(rank),
        ring_(ring),
        model_(settings.shape),
        faults_(settings, rank),
        heartbeat_(settings.heartbeat, rank),
        weights_(model_.initial(settings.seed)),
        gradient_(model_.size()),
        sums_(model_.size() + 4) {
    std::tie(begin_, end_) = ring.share(model_.size(), rank);
    mean_.resize(end_ - begin_);
    square_.resize(end_ - begin_);
  }

  ~Trainer() { open_writer = nullptr; }
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  int run();
  // After an error: what is written stays, but a dead peer's part is not waited for.
  void give_up() {
    if (writer_) (void)writer_->close(5);
  }

 private:
  void print(const std::string& line) const {
    if (rank_ != 0) return;
    std::puts(line.c_str());
    std::fflush(stdout);
  }
  void open_checkpoints();
  ckpt::Metadata fixed_settings() const;
  bool resume();
  Step step(std::int64_t number);
  void update(std::int64_t number, std::span<const double> gradient);
  void save(std::int64_t done, ckpt::Slot slot);
  void tell_of_lost_saves();
  void finish();

  const Settings& s_;
  int rank_;
  Ring& ring_;
  Model model_;
  Faults faults_;
  Heartbeat heartbeat_;
  std::vector<float> weights_, gradient_;
  std::vector<std::int64_t> sums_;    // gradients, then loss, numbers that are none, wish to stop, wish to save
  std::size_t begin_ = 0, end_ = 0;   // this rank's share of the weights
  std::vector<float> mean_, square_;  // Adam's, of that share
  std::int64_t done_ = 0;             // iterations
  std::optional<ckpt::Writer> writer_;
  Clock::time_point last_save_ = Clock::now();
  std::int64_t nan_iterations_ = 0, skipped_iterations_ = 0;
  std::uint64_t lost_saves_ = 0;
};

void Trainer::open_checkpoints() {
  if (s_.save.empty()) return;
  std::random_device random;
  std::string session = fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
  ring_.broadcast(session);
  ckpt::Options o;
  o.directory = s_.save;
  o.rank = rank_;
  o.world = s_.world;
  o.session = session;
  o.keep_full = o.keep_snapshot = s_.keep;
  o.write_bytes_per_second = s_.write_bytes_per_second;
  o.buffer_bytes = model_.size() * 12 / static_cast<std::size_t>(s_.world) + (1 << 20);
  if (s_.wait_for_saves) o.peer_timeout_s = s_.timeout_s / 2;  // the others wait in the next collective meanwhile
  o.fault = [this](std::string_view operation, const std::string&) {
    return faults_.storage_full() && operation == "write" ? ENOSPC : 0;
  };
  auto writer = ckpt::Writer::open(o);
  if (!writer) throw std::runtime_error(writer.error().line());
  writer_ = std::move(*writer);
  grace_s = s_.grace_s;
  open_writer = &*writer_;
  if (stop_signal != 0) writer_->hurry(s_.grace_s);
}

// What must be as it was for the weights to be those of an undisturbed run; shapes are compared with the tensors.
ckpt::Metadata Trainer::fixed_settings() const {
  return {{"seed", std::to_string(s_.seed)},
          {"heads", std::to_string(s_.shape.heads)},
          {"micro_batches", std::to_string(s_.micro_batches)},
          {"micro_batch", std::to_string(s_.micro_batch)}};
}

// Rank 0 chooses; all load the same.
bool Trainer::resume() {
  if (s_.save.empty()) return false;
  std::string id;
  if (rank_ == 0) {
    if (!s_.load.empty()) {
      id = s_.load;
    } else {
      const auto found = ckpt::Checkpoint::newest_good(s_.save);
      if (!found) throw std::runtime_error(found.error().line());
      if (*found) {
        id = (*found)->id();
        for (const std::string& why : (*found)->rejected()) print("WARNING: checkpoint rejected: " + why);
      }
    }
    if (s_.forget_later) {
      if (const auto n = ckpt::withdraw_after(s_.save, id); !n) throw std::runtime_error(n.error().line());
    }
  }
  ring_.broadcast(id);
  if (id.empty()) return false;
  print(fmt::format(" loading checkpoint from {} ({})", s_.save, id));
  const auto c = ckpt::Checkpoint::open(s_.save, id);
  if (!c) throw std::runtime_error(c.error().line());
  for (const auto& [key, value] : fixed_settings()) {
    const auto was = c->metadata().find(key);
    if (was != c->metadata().end() && was->second != value) {
      throw std::runtime_error(fmt::format("{}: was trained with {} {}, not {}", id, key, was->second, value));
    }
  }
  const auto good = [](const Status& ok) {
    if (!ok) throw std::runtime_error(ok.error().line());
  };
  const auto same = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const ckpt::TensorInfo* info = c->find(name);
    if (info == nullptr || info->dtype != ckpt::DType::f32 || info->shape != shape)
      throw std::runtime_error(id + ": is of another model: " + name);
  };
  for (const Parameter& p : model_.parameters()) {
    same(p.name, p.shape);
    good(c->read(p.name, weights_.data() + p.begin));
  }
  for (const char* const name : {"adam.mean", "adam.square"}) same(name, {static_cast<std::int64_t>(model_.size())});
  const auto b = static_cast<std::int64_t>(begin_), e = static_cast<std::int64_t>(end_);
  good(c->read_part("adam.mean", 0, b, e, mean_.data()));
  good(c->read_part("adam.square", 0, b, e, square_.data()));
  done_ = c->step();
  print(fmt::format("  successfully loaded checkpoint from {} at iteration {}", s_.save, done_));
  return true;
}

Step Trainer::step(std::int64_t number) {
  std::fill(sums_.begin(), sums_.end(), 0);
  std::int64_t* const extra = &sums_[model_.size()];
  const bool skipped = number >= s_.skip_from && number < s_.skip_to;
  for (std::size_t m = static_cast<std::size_t>(rank_); m < s_.micro_batches && !skipped;
       m += static_cast<std::size_t>(s_.world)) {
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    float loss = 0;
    for (std::size_t i = 0; i < s_.micro_batch; ++i) {
      const auto sequence = (static_cast<std::uint64_t>(number) * s_.micro_batches + m) * s_.micro_batch + i;
      const auto tokens = sample(s_.seed, sequence, s_.shape.sequence, s_.shape.vocabulary);
      loss += model_.loss(weights_, tokens, 1.0f / static_cast<float>(s_.micro_batch * s_.micro_batches), gradient_);
    }
    if (faults_.poisoned()) gradient_[0] = NAN;
    for (std::size_t i = 0; i < gradient_.size(); ++i) {
      const bool usable = std::fabs(gradient_[i]) < too_large;  // false for NaN
      sums_[i] += usable ? std::llround(static_cast<double>(gradient_[i]) * fixed_point) : 0;
      extra[1] += usable ? 0 : 1;
    }
    const double part = static_cast<double>(loss) / static_cast<double>(s_.micro_batch * s_.micro_batches);
    if (std::isfinite(part)) extra[0] += std::llround(part * fixed_point);
  }
  if (faults_.delay_ms() > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(faults_.delay_ms() * 1e3)));
  }
  extra[2] = stop_signal == 0 ? 0 : stop_signal == SIGINT ? interrupted : 1;
  extra[3] = rank_ == 0 && s_.save_seconds > 0 && ms_since(last_save_) >= s_.save_seconds * 1e3 ? 1 : 0;
  heartbeat_.beat(number, "all_reduce");
  ring_.all_reduce(sums_);
  Step out;
  out.loss = static_cast<double>(extra[0]) / fixed_point;
  out.finite = extra[1] == 0;
  if (extra[2] > 0) out.stop = extra[2] >= interrupted ? "SIGINT" : "SIGTERM";
  out.save = extra[3] > 0;
  if (skipped) {
    ++skipped_iterations_;
    return out;
  }
  if (!out.finite) {  // as it would be without fixed point: what is not a number spreads
    ++nan_iterations_;
    out.loss = out.gradient_norm = NAN;
    std::fill(weights_.begin(), weights_.end(), NAN);
    return out;
  }
  std::vector<double> gradient(model_.size());
  double square = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = static_cast<double>(sums_[i]) / fixed_point;
    square += gradient[i] * gradient[i];
  }
  out.gradient_norm = std::sqrt(square);
  if (out.gradient_norm > 1) {
    for (double& g : gradient) g /= out.gradient_norm;
  }
  update(number, gradient);
  return out;
}

void Trainer::update(std::int64_t number, std::span<const double> gradient) {
  const double t = static_cast<double>(number + 1);
  const double mean_scale = 1 / (1 - std::pow(0.9, t)), square_scale = 1 / (1 - std::pow(0.95, t));
  for (std::size_t i = begin_; i < end_; ++i) {
    const auto g = static_cast<float>(gradient[i]);
    float& m = mean_[i - begin_];
    float& v = square_[i - begin_];
    m = 0.9f * m + 0.1f * g;
    v = 0.95f * v + 0.05f * g * g;
    const double change = faults_.too_far() * m * mean_scale / (std::sqrt(v * square_scale) + 1e-8);
    weights_[i] -= static_cast<float>(s_.learning_rate * change);
  }
  ring_.all_gather(weights_);
}

void Trainer::save(std::int64_t done, ckpt::Slot slot) {
  heartbeat_.beat(done, "save");
  print(fmt::format("saving checkpoint at iteration {:7d} to {}", done, s_.save));
  std::vector<ckpt::TensorView> tensors;
  const auto& all = model_.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {  // every rank has all weights; each writes some
    if (i % static_cast<std::size_t>(s_.world) != static_cast<std::size_t>(rank_)) continue;
    tensors.push_back({all[i].name, ckpt::DType::f32, all[i].shape, weights_.data() + all[i].begin});
  }
  const auto b = static_cast<std::int64_t>(begin_), n = static_cast<std::int64_t>(end_ - begin_);
  const auto whole = static_cast<std::int64_t>(model_.size());
  tensors.push_back({"adam.mean", ckpt::DType::f32, {n}, mean_.data(), ckpt::Place::host, 0, b, whole});
  tensors.push_back({"adam.square", ckpt::DType::f32, {n}, square_.data(), ckpt::Place::host, 0, b, whole});
  const auto samples = static_cast<std::uint64_t>(done) * s_.micro_batches * s_.micro_batch;
  ckpt::Metadata metadata = fixed_settings();
  metadata["consumed_samples"] = std::to_string(samples);
  const auto saved = writer_->save(done, slot, tensors, metadata);
  if (!saved) throw std::runtime_error(saved.error().line());
  if (*saved == ckpt::Outcome::skipped) print("WARNING: checkpoint skipped: the storage is slow");
  last_save_ = Clock::now();
  if (!s_.wait_for_saves) return;
  if (const auto ok = writer_->wait(0.8 * s_.timeout_s); !ok) print("WARNING: " + ok.error().line());
}

// Each rank of its own parts: the others can only tell that they never came.
void Trainer::tell_of_lost_saves() {
  if (!writer_) return;
  const ckpt::Stats s = writer_->stats();
  if (s.failed + s.abandoned == std::exchange(lost_saves_, s.failed + s.abandoned)) return;
  std::printf("WARNING: checkpoint not saved: rank %d: %s\n", rank_, s.last_error.c_str());
  std::fflush(stdout);
}

void Trainer::finish() {
  if (writer_) {
    const auto ok = writer_->close();
    tell_of_lost_saves();
    const ckpt::Stats s = writer_->stats();
    if (!ok) print("WARNING: checkpoint not saved: " + ok.error().line());
    if (rank_ == 0 && s.saves > 0) {
      print(fmt::format(
          "checkpoints: {} saves, {} complete, {} skipped, {} failed, {} abandoned; blocked {:.3f} ms in all, "
          "{:.3f} ms at most; written {:.3f} MB in {:.3f} ms",
          s.saves, s.committed, s.skipped, s.failed, s.abandoned, static_cast<double>(s.blocked_ns) * 1e-6,
          static_cast<double>(s.blocked_max_ns) * 1e-6, static_cast<double>(s.bytes_written) * 1e-6,
          static_cast<double>(s.write_ns) * 1e-6));
    }
  }
  if (rank_ == 0 && !s_.weights_out.empty() && done_ >= s_.steps) {
    ckpt::SafetensorsHeader header;
    for (const Parameter& p : model_.parameters()) {
      header.tensors.push_back({p.name, ckpt::DType::f32, p.shape, p.begin * 4, (p.begin + p.size) * 4});
    }
    const auto text = ckpt::write_safetensors_header(header);
    std::ofstream out(s_.weights_out, std::ios::binary);
    out << text.value();
    out.write(reinterpret_cast<const char*>(weights_.data()), static_cast<std::streamsize>(weights_.size() * 4));
    out.close();
    if (!out) throw std::runtime_error(s_.weights_out + ": cannot write the weights");
  }
  print(fmt::format("weights after iteration {}: crc32c {:08x}", done_,
                    ckpt::crc32c(weights_.data(), weights_.size() * 4)));
}

int Trainer::run() {
  heartbeat_.beat(0, "start");
  open_checkpoints();
  if (!resume()) print(fmt::format(" no checkpoint to go on from: starting from random, {} parameters", model_.size()));
  last_save_ = Clock::now();
  std::vector<double> times;
  const char* stopped = nullptr;
  while (done_ < s_.steps && stopped == nullptr) {
    const auto start = Clock::now();
    heartbeat_.beat(done_, "compute");
    faults_.strike(done_);
    const Step result = step(done_);
    ++done_;
    stopped = result.stop;
    const auto every = [&](std::int64_t interval) { return interval > 0 && done_ % interval == 0; };
    const bool last = done_ == s_.steps || stopped != nullptr;
    // What is not a number is not worth keeping, and would push out what is.
    if (writer_ && std::isfinite(weights_[0])) {
      if (every(s_.save_interval) || result.save || last) {
        save(done_, ckpt::Slot::full);
      } else if (every(s_.snapshot_interval)) {
        save(done_, ckpt::Slot::snapshot);
      }
    }
    tell_of_lost_saves();
    const double ms = ms_since(start);
    times.push_back(ms);
    if (rank_ == 0 && !s_.quiet && (done_ % s_.log_interval == 0 || last)) {  // as Megatron-LM writes it
      const auto samples = static_cast<std::uint64_t>(done_) * s_.micro_batches * s_.micro_batch;
      print(fmt::format(
          " [{:%Y-%m-%d %H:%M:%S}] iteration {:8d}/{:8d} | consumed samples: {:12d} | elapsed time per iteration (ms): "
          "{:.3f} "  // finer: its steps are short
          "| learning rate: {:.6E} | global batch size: {:5d} | lm loss: {:.6E} | grad norm: {:.3f} | number of "
          "skipped "
          "iterations: {:3d} | number of nan iterations: {:3d} |",
          fmt::localtime(std::time(nullptr)), done_, s_.steps, samples, ms, s_.learning_rate,
          s_.micro_batches * s_.micro_batch, result.loss, result.gradient_norm, skipped_iterations_, nan_iterations_));
    }
  }
  heartbeat_.beat(done_, "end");
  finish();
  if (stopped != nullptr) print(fmt::format("exiting program after receiving {} at iteration {}", stopped, done_));
  return 0;
}

}  // namespace

int run_rank(const Settings& settings, int rank, int listening, const std::vector<Address>& addresses) {
  struct sigaction action {};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  sigset_t held_back;  // by whoever forked it
  ::sigemptyset(&held_back);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) ::sigaddset(&held_back, signal);
  ::sigprocmask(SIG_UNBLOCK, &held_back, nullptr);
  const auto say = [rank](const std::exception& e) {
    const bool peer = dynamic_cast<const CommunicationError*>(&e) != nullptr;
    std::fprintf(stderr, "[rank%d]: %s: %s\n", rank, peer ? "DistBackendError" : "RuntimeError", e.what());
  };
  try {
    Ring ring(rank, listening, addresses, settings.timeout_s);
    Trainer trainer(settings, rank, ring);
    try {
      return trainer.run();
    } catch (const std::exception& e) {
      say(e);  // before anything that takes time
      trainer.give_up();
    }
  } catch (const std::exception& e) {
    say(e);
  }
  return 1;
}

}  // namespace trainer
