// What the command line of the example says.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model.h"
#include "ring.h"

namespace trainer {

// Goes wrong at the start of iteration `step` on one rank.
struct Fault {
  std::string kind;  // see faults.h
  std::int64_t step = 0;
  int rank = 0;
  double value = 0;
};

struct Settings {
  Shape shape;
  std::int64_t steps = 100;
  std::size_t micro_batches = 12, micro_batch = 1;  // a step: so many times so many sequences, spread over the ranks
  double learning_rate = 3e-3;
  std::uint64_t seed = 1;

  int world = 1, rank = -1;        // rank -1: this process starts all ranks
  std::vector<Address> addresses;  // one a rank, when they are started one by one
  std::string rendezvous;          // or a directory in which they find each other
  std::string host = "127.0.0.1";  // there: where this rank listens
  double timeout_s = 60;           // of communication
  double grace_s = 5;              // after SIGTERM or SIGINT: how long the last checkpoint may take

  std::string save;  // directory; "" = no checkpoints
  std::int64_t save_interval = 0, snapshot_interval = 0;
  double save_seconds = 0;
  unsigned keep = 2;
  std::uint64_t write_bytes_per_second = 0;
  bool wait_for_saves = false;              // as a synchronous save would
  std::string load;                         // id of a checkpoint; "" = the newest good one
  bool forget_later = false;                // withdraw what was committed after it
  std::int64_t skip_from = 0, skip_to = 0;  // iterations whose batches are left out: [from, to)

  std::string heartbeat;    // directory
  std::string fault_marks;  // directory: a fault that left its mark there does not strike again
  std::vector<Fault> faults;
  std::string weights_out;
  std::int64_t log_interval = 1;

  std::string evaluate;  // instead of training: weights to evaluate; a checkpoint's directory or a safetensors file
  std::string work;      // JSON list of {dataset, first, items, output}
  std::vector<std::string> score;  // instead of training: outputs of --evaluate to score
  std::size_t resamples = 1000;
  std::uint64_t read_bytes_per_second = 0;  // of reading weights, shared by all that name ...
  std::string read_rate_file;               // ... this file
  bool quiet = false;
};

// Exits with status 2 and one line when the line is unusable, 0 after --help.
Settings parse(int argc, char** argv);

}  // namespace trainer
