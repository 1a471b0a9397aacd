#include "settings.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>

namespace trainer {
namespace {

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == by) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

template <class T>
T number(const std::string& text, const std::string& what) {
  T value{};
  if (!CLI::detail::lexical_cast(text, value)) throw CLI::ValidationError(what, text + " is not a number");
  return value;
}

Fault fault_of(const std::string& text) {
  static constexpr const char* kinds[] = {"kill", "crash",   "hang",    "nan", "spike",
                                          "slow", "storage", "corrupt", "oom", "error"};
  const std::vector<std::string> at = split(text, '@');
  const std::vector<std::string> rest = at.size() == 2 ? split(at[1], ':') : std::vector<std::string>();
  if (rest.empty() || rest.size() > 3) throw CLI::ValidationError("--fault", text + " is not KIND@STEP[:RANK[:VALUE]]");
  if (std::find(std::begin(kinds), std::end(kinds), at[0]) == std::end(kinds)) {
    throw CLI::ValidationError("--fault",
                               at[0] + " is none of kill crash hang nan spike slow storage corrupt oom error");
  }
  Fault f{at[0], number<std::int64_t>(rest[0], "--fault"), 0, 0};
  if (rest.size() > 1) f.rank = number<int>(rest[1], "--fault");
  if (rest.size() > 2) f.value = number<double>(rest[2], "--fault");
  if ((f.kind == "slow") != (rest.size() > 2)) {
    throw CLI::ValidationError("--fault", text + ": slow needs VALUE, milliseconds, and no other kind takes one");
  }
  return f;
}

// What would never strike is a mistake in the line.
void check_fault(const Fault& f, const Settings& s) {
  const std::string text = f.kind + "@" + std::to_string(f.step) + ":" + std::to_string(f.rank);
  if (f.step < 0 || f.step >= s.steps) {
    throw CLI::ValidationError("--fault", text + ": its iteration is not from 0 to " + std::to_string(s.steps - 1));
  }
  if (f.rank < 0 || f.rank >= s.world) {
    throw CLI::ValidationError("--fault", text + ": its rank is not from 0 to " + std::to_string(s.world - 1));
  }
  if (!(f.value >= 0 && f.value <= 1e9))
    throw CLI::ValidationError("--fault", text + ": its VALUE is not from 0 to 1e9");
  if (f.kind == "corrupt" && s.save.empty()) throw CLI::ValidationError("--fault", text + ": needs --save");
  if (f.kind == "storage" && s.save.empty()) throw CLI::ValidationError("--fault", text + ": needs --save");
}

void check_directory(const char* option, const std::string& path) {
  std::error_code ignored;
  if (path.empty() || (std::filesystem::is_directory(path, ignored) && ::access(path.c_str(), W_OK | X_OK) == 0))
    return;
  throw CLI::ValidationError(option, path + " is not a directory that can be written to");
}

// Before hours of training, not after them.
void check_file(const char* option, const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (std::filesystem::exists(path, ignored)) {
    if (std::filesystem::is_directory(path, ignored) || ::access(path.c_str(), W_OK) != 0) {
      throw CLI::ValidationError(option, path + " cannot be written");
    }
    return;
  }
  check_directory(option, parent.empty() ? "." : parent.string());
}

}  // namespace

Settings parse(int argc, char** argv) {
  Settings s;
  std::vector<std::string> faults;
  std::string addresses, skip;
  CLI::App app(
      "Trains a small transformer on several ranks, with checkpoints by liborrery_ckpt. The same settings give the\n"
      "same weights, bit for bit, whatever the number of ranks and however often it was killed and started again.\n\n"
      "  orrery_trainer --world 3 --steps 60 --save ckpt --save-interval 10\n"
      "  orrery_trainer --world 3 --steps 60 --save ckpt --save-interval 10 --fault kill@35:1");
  const CLI::Range seconds(0.0, 1e9, "seconds from 0 to 1e9");
  const CLI::Range count(std::int64_t{0}, std::int64_t{1} << 40, "a number from 0 to 2^40");
  app.add_option("--steps", s.steps, "iterations")->capture_default_str()->check(count);
  app.add_option("--world", s.world, "ranks")->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_option("--rank", s.rank, "this process is that rank alone; without: it starts all of them here");
  app.add_option("--addresses", addresses, "HOST:PORT,... one a rank, with --rank");
  app.add_option("--rendezvous", s.rendezvous,
                 "instead, with --rank: a directory of this start alone, in which ranks find each other");
  app.add_option("--host", s.host, "there: the address at which this rank listens")->capture_default_str();
  app.add_option("--timeout", s.timeout_s, "seconds that communication may take")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1e6));
  app.add_option("--grace", s.grace_s, "seconds after SIGTERM or SIGINT that the last checkpoint may take")
      ->capture_default_str()
      ->check(seconds);
  app.add_option("--layers", s.shape.layers)->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_option("--width", s.shape.width)->capture_default_str()->check(CLI::Range(1, 8192));
  app.add_option("--heads", s.shape.heads)->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--sequence", s.shape.sequence, "tokens")->capture_default_str()->check(CLI::Range(1, 4096));
  app.add_option("--vocabulary", s.shape.vocabulary)->capture_default_str()->check(CLI::Range(2, 100000));
  app.add_option("--micro-batches", s.micro_batches, "of a step, over all ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--micro-batch", s.micro_batch, "sequences")->capture_default_str()->check(CLI::Range(1, 4096));
  app.add_option("--learning-rate", s.learning_rate)->capture_default_str()->check(CLI::Range(0.0, 1e6));
  // As a number with a sign first: what reads unsigned ones makes 2^64 - 1 of -1.
  app.add_option("--seed", s.seed)->capture_default_str()->check(CLI::Range(0.0, 1.8446744073709549e19));
  app.add_option("--save", s.save, "directory of checkpoints; it goes on from the newest good one there");
  app.add_option("--save-interval", s.save_interval, "iterations between full checkpoints")->check(count);
  app.add_option("--snapshot-interval", s.snapshot_interval, "iterations between snapshots")->check(count);
  app.add_option("--save-seconds", s.save_seconds, "seconds between full checkpoints")->check(seconds);
  app.add_option("--keep", s.keep, "checkpoints of a kind; 0 keeps all")->capture_default_str();
  app.add_option("--write-bytes-per-second", s.write_bytes_per_second, "of a rank, to play slow storage")
      ->check(CLI::Range(0.0, 1e18));
  app.add_flag("--wait-for-saves", s.wait_for_saves, "go on only when a checkpoint is complete");
  app.add_option("--load", s.load, "name of the checkpoint to go on from");
  app.add_flag("--forget-later", s.forget_later, "with --load: withdraw the checkpoints that came after it");
  app.add_option("--skip", skip, "FROM:TO leaves out the batches of these iterations, TO not among them");
  app.add_option("--heartbeat", s.heartbeat, "directory: a file a rank with iteration, time and what it does");
  app.add_option(
      "--fault", faults,
      "KIND@STEP[:RANK[:VALUE]]: kill, crash, hang, nan, spike (the rank's part of the update is far too\n"
      "large), slow (VALUE ms a step from then on), storage (full from then on), corrupt (the newest checkpoint,\n"
      "then kill), oom, error");
  app.add_option("--fault-marks", s.fault_marks, "directory: each fault strikes once, whatever is started again");
  app.add_option("--weights-out", s.weights_out, "the final weights as a safetensors file");
  app.add_option(
      "--evaluate", s.evaluate,
      "instead of training: the losses of these weights (a checkpoint's directory, or a safetensors file) on\n"
      "made text, for the pieces that --work lists");
  app.add_option("--work", s.work, "with --evaluate: JSON list of {dataset, first, items, output}");
  app.add_option("--score", s.score, "instead of training: scores of outputs of --evaluate, one line of JSON");
  app.add_option("--resamples", s.resamples, "with --score: for the interval")->capture_default_str();
  app.add_option("--read-bytes-per-second", s.read_bytes_per_second, "with --evaluate, to play slow storage");
  app.add_option("--read-rate-file", s.read_rate_file, "those who name the same file share that rate");
  app.add_option("--log-interval", s.log_interval)->capture_default_str()->check(CLI::Range(1, 1000000));
  app.add_flag("--quiet", s.quiet, "no line an iteration");
  try {
    app.parse(argc, argv);
    for (const std::string& f : faults) s.faults.push_back(fault_of(f));
    for (const Fault& f : s.faults) check_fault(f, s);
    for (const double x : {s.learning_rate, s.save_seconds, s.timeout_s, s.grace_s}) {  // a range lets it through
      if (std::isnan(x)) throw CLI::ValidationError("a number", "is not one: nan");
    }
    if (s.shape.width % s.shape.heads != 0) throw CLI::ValidationError("--heads", "must divide --width");
    if (!skip.empty()) {
      const auto ends = split(skip, ':');
      if (ends.size() != 2) throw CLI::ValidationError("--skip", skip + " is not FROM:TO");
      s.skip_from = number<std::int64_t>(ends[0], "--skip");
      s.skip_to = number<std::int64_t>(ends[1], "--skip");
      if (s.skip_from < 0 || s.skip_to <= s.skip_from || s.skip_from >= s.steps) {
        throw CLI::ValidationError("--skip", skip + " leaves no batch out: 0 <= FROM < TO and FROM < --steps");
      }
    }
    for (const std::string& text : addresses.empty() ? std::vector<std::string>() : split(addresses, ',')) {
      const auto ends = split(text, ':');
      if (ends.size() != 2) throw CLI::ValidationError("--addresses", text + " is not HOST:PORT");
      s.addresses.push_back({ends[0], number<std::uint16_t>(ends[1], "--addresses")});
    }
    if (s.rank < 0 && !s.addresses.empty()) throw CLI::ValidationError("--addresses", "needs --rank");
    if (app.count("--rank") > 0 && s.rank < 0) throw CLI::ValidationError("--rank", "is negative");
    if (s.rank >= 0 && s.rendezvous.empty() && s.addresses.size() != static_cast<std::size_t>(s.world)) {
      throw CLI::ValidationError("--addresses", "needs one a rank");
    }
    if (s.evaluate.empty() != s.work.empty()) throw CLI::ValidationError("--evaluate", "needs --work, and it that");
    if ((s.read_bytes_per_second > 0) != !s.read_rate_file.empty())
      throw CLI::ValidationError("--read-bytes-per-second", "needs --read-rate-file, and it that");
    if (s.rank >= s.world) throw CLI::ValidationError("--rank", "must be below --world");
    const bool saves = s.save_interval > 0 || s.snapshot_interval > 0 || s.save_seconds > 0 || !s.load.empty();
    if (saves && s.save.empty()) throw CLI::ValidationError("--save", "is needed to save or load");
    if (s.forget_later && s.load.empty()) throw CLI::ValidationError("--forget-later", "needs --load");
    check_directory("--fault-marks", s.fault_marks);
    check_directory("--heartbeat", s.heartbeat);
    check_file("--weights-out", s.weights_out);
  } catch (const CLI::CallForHelp& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "orrery_trainer: %s (see --help)\n", error.what());
    std::exit(2);
  }
  return s;
}

}  // namespace trainer
