// How long does a save hold up the training?
//
//   ckpt_bench [MB 400] [SECONDS 60] [DIRECTORY]
//
// 1. Blocking time of save() against a synchronous save of the same tensors to the same storage, in one run. Storage is
//    held to 200 MB/s in the writer, the same for both. The synchronous one is a plain loop, straight from the tensors,
//    with one fsync: no copy, no checksums, no reading back. Floor: 10 times shorter, buffers warm. The cold first save
//    and one copy of memory stand beside it.
// 2. What saves cost the example job (build/orrery_trainer, two ranks), run for SECONDS with a save every five: the
// time
//    that steps from a save on take beyond the median of the others, a save; at one a minute. Floor: below 2%. The same
//    sum half way between saves says how large the noise is.
// The checkpoint is loaded and compared before anything is timed.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace {

using namespace orrery::ckpt;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t storage_bytes_per_second = 200'000'000;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "ckpt_bench: %s\n", why.c_str());
  std::exit(1);
}

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

struct State {
  std::vector<std::vector<float>> tensors;
  std::vector<TensorView> views;
  std::uint64_t bytes = 0;
  explicit State(std::uint64_t megabytes) {  // as a model has them: many small ones, most bytes in large ones
    const std::uint64_t layers = 32, each = megabytes * 1'000'000 / layers / 4;
    for (std::uint64_t i = 0; i < layers; ++i) {
      for (const std::uint64_t share : {1000u, 600u, 390u, 5u, 5u}) tensors.emplace_back(each * share / 2000);
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (std::size_t i = 0; i < tensors[t].size(); ++i) tensors[t][i] = static_cast<float>(i % 1000 + t);
      TensorView v;
      v.name = "layers." + std::to_string(t / 5) + ".weight." + std::to_string(t % 5);
      v.shape = {static_cast<std::int64_t>(tensors[t].size())};
      v.data = tensors[t].data();
      views.push_back(v);
      bytes += tensors[t].size() * 4;
    }
  }
};

// What a training loop does without a library, at the same speed of storage.
double plain_save_ms(const State& s, const std::string& path) {
  const auto start = Clock::now();
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) die(path + ": cannot write");
  auto next = Clock::now();
  for (const auto& t : s.tensors) {
    const char* at = reinterpret_cast<const char*>(t.data());
    for (std::size_t left = t.size() * 4; left > 0;) {
      const ssize_t n = ::write(fd, at, std::min<std::size_t>(left, 4 << 20));
      if (n <= 0) die(path + ": cannot write");
      at += n;
      left -= static_cast<std::size_t>(n);
      next += std::chrono::nanoseconds(static_cast<std::uint64_t>(n) * 1'000'000'000 / storage_bytes_per_second);
      std::this_thread::sleep_until(next);
    }
  }
  if (::fsync(fd) != 0 || ::close(fd) != 0) die(path + ": cannot write");
  const double ms = ms_since(start);
  fs::remove(path);
  return ms;
}

Writer open_writer(const std::string& directory, std::uint64_t buffer_bytes) {
  Options o;
  o.directory = directory;
  o.buffer_bytes = buffer_bytes;
  o.keep_full = 1;
  o.write_bytes_per_second = storage_bytes_per_second;
  auto w = Writer::open(o);
  if (!w) die(w.error().line());
  return std::move(*w);
}

double blocked_ms(Writer& w, const State& s, std::int64_t step) {
  const auto start = Clock::now();
  const auto saved = w.save(step, Slot::full, s.views, {});
  const double ms = ms_since(start);
  if (!saved) die(saved.error().line());
  if (const auto ok = w.wait(600); !ok) die(ok.error().line());
  return ms;
}

void check_answer(const State& s, const std::string& directory) {
  auto c = Checkpoint::newest_good(directory);
  if (!c || !*c) die("nothing good was saved");
  for (std::size_t t = 0; t < s.tensors.size(); ++t) {
    std::vector<float> got(s.tensors[t].size());
    if (auto ok = (*c)->read(s.views[t].name, got.data()); !ok) die(ok.error().line());
    if (got != s.tensors[t]) die("what was loaded is not what was saved: " + s.views[t].name);
  }
}

bool blocking(std::uint64_t megabytes, const fs::path& dir) {
  const State s(megabytes);
  double cold = 0;
  {
    Writer w = open_writer(dir / "cold", 0);
    cold = blocked_ms(w, s, 1);
  }
  check_answer(s, dir / "cold");
  const auto opening = Clock::now();
  Writer w = open_writer(dir / "warm", s.bytes);
  const double opened = ms_since(opening);
  std::vector<double> warm, plain, complete;
  std::vector<char> copy(s.bytes);
  double copied = 1e9;
  for (int run = 0; run < 5; ++run) {  // in turn, so that a busy machine hits both
    const auto start = Clock::now();
    warm.push_back(blocked_ms(w, s, run));
    complete.push_back(ms_since(start));
    plain.push_back(plain_save_ms(s, dir / "plain"));
    const auto copying = Clock::now();
    std::size_t at = 0;
    for (const auto& t : s.tensors) {
      std::memcpy(copy.data() + at, t.data(), t.size() * 4);
      at += t.size() * 4;
    }
    copied = std::min(copied, ms_since(copying));
  }
  check_answer(s, dir / "warm");
  const double ratio = median(plain) / median(warm);
  fmt::print("{} tensors, {:.1f} MB, storage held to {} MB/s; medians of 5\n", s.tensors.size(),
             static_cast<double>(s.bytes) * 1e-6, storage_bytes_per_second / 1'000'000);
  fmt::print("  synchronous save, plain loop and fsync   {:10.2f} ms\n", median(plain));
  fmt::print("  save() blocks, buffers warm              {:10.2f} ms  (at most {:.2f})\n", median(warm),
             *std::max_element(warm.begin(), warm.end()));
  fmt::print("  save() until complete and verified       {:10.2f} ms\n", median(complete));
  fmt::print("  save() blocks, cold first save           {:10.2f} ms\n", cold);
  fmt::print("  open() with buffers made ready           {:10.2f} ms\n", opened);
  fmt::print("  one copy of the memory, best             {:10.2f} ms\n", copied);
  fmt::print("  times shorter: {:.1f} warm (floor 10: {}), {:.1f} cold\n", ratio, ratio >= 10 ? "met" : "MISSED",
             median(plain) / cold);
  return ratio >= 10;
}

// Milliseconds of each iteration, and which of them saved, from the job's log.
struct Log {
  std::vector<double> ms;
  std::vector<std::size_t> saves;
  std::string summary;
};

Log run_job(double seconds, const fs::path& dir) {
  const std::string command = fmt::format(
      "timeout -s TERM {} build/orrery_trainer --world 2 --steps 1000000 --width 96 --layers 4 --micro-batches 4 "
      "--save "
      "'{}' --save-seconds 5 --write-bytes-per-second {}",
      seconds, (dir / "job").string(), storage_bytes_per_second / 2);
  std::FILE* job = ::popen(command.c_str(), "r");
  if (job == nullptr) die("cannot start build/orrery_trainer");
  Log log;
  bool saving = false;
  for (char line[1024]; std::fgets(line, sizeof line, job) != nullptr;) {
    const std::string text = line;
    saving = saving || text.rfind("saving checkpoint", 0) == 0;
    if (text.rfind("checkpoints: ", 0) == 0) log.summary = text;
    const std::size_t at = text.find("elapsed time per iteration (ms): ");
    if (at == std::string::npos) continue;
    if (saving) log.saves.push_back(log.ms.size());
    saving = false;
    log.ms.push_back(std::strtod(text.c_str() + at + 33, nullptr));
  }
  ::pclose(job);
  if (log.ms.size() < 50 || log.saves.size() < 3) die("the example job did not run: is build/orrery_trainer built?");
  log.saves.pop_back();  // the one at the end
  return log;
}

bool throughput(double seconds, const fs::path& dir) {
  const Log log = run_job(seconds, dir);
  constexpr double window_ms = 1500;  // longer than a checkpoint takes to be written, checked and committed
  const auto excess = [&](std::size_t first, double typical) {
    double sum = 0, extra = 0;
    for (std::size_t i = first; i < log.ms.size() && sum < window_ms; ++i) {
      sum += log.ms[i];
      extra += log.ms[i] - typical;
    }
    return extra;
  };
  const double typical = median(log.ms);
  std::vector<double> cost, noise;
  for (std::size_t i = 0; i < log.saves.size(); ++i) {
    cost.push_back(excess(log.saves[i], typical));
    const std::size_t from = i == 0 ? 0 : log.saves[i - 1];
    noise.push_back(excess((from + log.saves[i]) / 2, typical));
  }
  const auto percent = [](double ms) { return 100 * ms / 60'000; };
  fmt::print("\nexample job, 2 ranks: {} iterations of {:.1f} ms (median), {} saves\n", log.ms.size(), typical,
             cost.size());
  fmt::print("  {}", log.summary);
  fmt::print("  beyond the median after a save           {:10.2f} ms a save (median)\n", median(cost));
  fmt::print("  the same half way between saves          {:10.2f} ms\n", median(noise));
  const double loss = percent(median(cost));
  fmt::print("  throughput lost at one save a minute     {:10.3f} %  (floor below 2%: {}; noise {:.3f} %)\n", loss,
             loss < 2 ? "met" : "MISSED", percent(median(noise)));
  return loss < 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t megabytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 400;
  const double seconds = argc > 2 ? std::strtod(argv[2], nullptr) : 60;
  std::string dir = ((argc > 3 ? fs::path(argv[3]) : fs::temp_directory_path()) / "ckpt-bench-XXXXXX").string();
  if (megabytes < 1 || ::mkdtemp(dir.data()) == nullptr) die("usage: ckpt_bench [MB] [SECONDS] [DIRECTORY]");
  bool good = blocking(megabytes, dir);
  if (seconds > 0) good = throughput(seconds, dir) && good;
  fs::remove_all(dir);
  return good ? 0 : 1;
}
