#include "settings.h"

#include <CLI/CLI.hpp>

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
  static constexpr const char* kinds[] = {"kill", "crash", "hang", "nan", "slow", "storage", "corrupt", "oom", "error"};
  const std::vector<std::string> at = split(text, '@');
  const std::vector<std::string> rest = at.size() == 2 ? split(at[1], ':') : std::vector<std::string>();
  if (rest.empty() || rest.size() > 3) throw CLI::ValidationError("--fault", text + " is not KIND@STEP[:RANK[:VALUE]]");
  if (std::find(std::begin(kinds), std::end(kinds), at[0]) == std::end(kinds)) {
    throw CLI::ValidationError("--fault", at[0] + " is none of kill crash hang nan slow storage corrupt oom error");
  }
  Fault f{at[0], number<std::int64_t>(rest[0], "--fault"), 0, 0};
  if (rest.size() > 1) f.rank = number<int>(rest[1], "--fault");
  if (rest.size() > 2) f.value = number<double>(rest[2], "--fault");
  return f;
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
  app.add_option("--steps", s.steps, "iterations")->capture_default_str();
  app.add_option("--world", s.world, "ranks")->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_option("--rank", s.rank, "this process is that rank alone; without: it starts all of them here");
  app.add_option("--addresses", addresses, "HOST:PORT,... one a rank, with --rank");
  app.add_option("--rendezvous", s.rendezvous,
                 "instead, with --rank: a directory of this start alone, in which ranks find each other");
  app.add_option("--host", s.host, "there: the address at which this rank listens")->capture_default_str();
  app.add_option("--timeout", s.timeout_s, "seconds that communication may take")->capture_default_str();
  app.add_option("--layers", s.shape.layers)->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_option("--width", s.shape.width)->capture_default_str()->check(CLI::Range(1, 8192));
  app.add_option("--heads", s.shape.heads)->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--sequence", s.shape.sequence, "tokens")->capture_default_str()->check(CLI::Range(1, 4096));
  app.add_option("--vocabulary", s.shape.vocabulary)->capture_default_str()->check(CLI::Range(2, 100000));
  app.add_option("--micro-batches", s.micro_batches, "of a step, over all ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--micro-batch", s.micro_batch, "sequences")->capture_default_str()->check(CLI::Range(1, 4096));
  app.add_option("--learning-rate", s.learning_rate)->capture_default_str();
  app.add_option("--seed", s.seed)->capture_default_str();
  app.add_option("--save", s.save, "directory of checkpoints; it goes on from the newest good one there");
  app.add_option("--save-interval", s.save_interval, "iterations between full checkpoints");
  app.add_option("--snapshot-interval", s.snapshot_interval, "iterations between snapshots");
  app.add_option("--save-seconds", s.save_seconds, "seconds between full checkpoints");
  app.add_option("--keep", s.keep, "checkpoints of a kind; 0 keeps all")->capture_default_str();
  app.add_option("--write-bytes-per-second", s.write_bytes_per_second, "of a rank, to play slow storage");
  app.add_flag("--wait-for-saves", s.wait_for_saves, "go on only when a checkpoint is complete");
  app.add_option("--load", s.load, "name of the checkpoint to go on from");
  app.add_flag("--forget-later", s.forget_later, "with --load: withdraw the checkpoints that came after it");
  app.add_option("--skip", skip, "FROM:TO leaves out the batches of these iterations, TO not among them");
  app.add_option("--heartbeat", s.heartbeat, "directory: a file a rank with iteration, time and what it does");
  app.add_option(
      "--fault", faults,
      "KIND@STEP[:RANK[:VALUE]]: kill, crash, hang, nan, slow (VALUE ms a step from then on), storage (full\n"
      "from then on), corrupt (the newest checkpoint, then kill), oom, error");
  app.add_option("--fault-marks", s.fault_marks, "directory: each fault strikes once, whatever is started again");
  app.add_option("--weights-out", s.weights_out, "the final weights as a safetensors file");
  app.add_option("--log-interval", s.log_interval)->capture_default_str()->check(CLI::Range(1, 1000000));
  app.add_flag("--quiet", s.quiet, "no line an iteration");
  try {
    app.parse(argc, argv);
    for (const std::string& f : faults) s.faults.push_back(fault_of(f));
    if (s.shape.width % s.shape.heads != 0) throw CLI::ValidationError("--heads", "must divide --width");
    if (!skip.empty()) {
      const auto ends = split(skip, ':');
      if (ends.size() != 2) throw CLI::ValidationError("--skip", skip + " is not FROM:TO");
      s.skip_from = number<std::int64_t>(ends[0], "--skip");
      s.skip_to = number<std::int64_t>(ends[1], "--skip");
    }
    for (const std::string& text : addresses.empty() ? std::vector<std::string>() : split(addresses, ',')) {
      const auto ends = split(text, ':');
      if (ends.size() != 2) throw CLI::ValidationError("--addresses", text + " is not HOST:PORT");
      s.addresses.push_back({ends[0], number<std::uint16_t>(ends[1], "--addresses")});
    }
    if (s.rank >= 0 && s.rendezvous.empty() && s.addresses.size() != static_cast<std::size_t>(s.world)) {
      throw CLI::ValidationError("--addresses", "needs one a rank");
    }
    if (s.rank >= s.world) throw CLI::ValidationError("--rank", "must be below --world");
    const bool saves = s.save_interval > 0 || s.snapshot_interval > 0 || s.save_seconds > 0 || !s.load.empty();
    if (saves && s.save.empty()) throw CLI::ValidationError("--save", "is needed to save or load");
  } catch (const CLI::CallForHelp& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "orrery_trainer: %s (see --help)\n", error.what());
    std::exit(2);
  }
  return s;
}

}  // namespace trainer
