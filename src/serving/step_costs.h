// How long one step of a serving engine takes: its operators as launched by the host on a stream, by the same laws as
// everything else; all-reduces in each layer, the host's own work before and after.
//
// What does not depend on the sequences' lengths is a function of the number of tokens in the step: worked out once for
// each and kept. Attention is worked out for every step. Each is a chain of operators as one piece (estimate/block.h):
// exactly what the replay of its graph gives, which step_graph makes and a test compares.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "estimate/block.h"
#include "graph/exec_graph.h"
#include "serving/job.h"

namespace orrery {

// What a step works on. Prompts: pieces of `prefill_tokens` together, of which each token sees those of its sequence
// before it.
struct StepShape {
  std::int64_t prefill_sequences = 0, prefill_tokens = 0;
  double prefill_pairs = 0;    // key-query pairs of one head, over all pieces
  std::int64_t finishing = 0;  // of the pieces, those that end their prompt: they yield a token
  std::int64_t decode_sequences = 0;
  double decode_context = 0;  // sum of the tokens that each of them has in the cache
  // Of other replicas that share the experts and go in step: their tokens pass this one's experts as well.
  std::int64_t other_tokens = 0;

  std::int64_t sequences() const { return prefill_sequences + decode_sequences; }
};

struct StepTime {                      // ns
  std::vector<double> stage_ns;        // of each pipeline stage, its host's launches and its send included
  double before_ns = 0, after_ns = 0;  // the engine's host: before the first stage, after the last
  double host_ns = 0;                  // of the engine altogether, hidden or not
  double comm_ns = 0;                  // of the stages, transfers that nothing hides
  double doubt_ns = 0;                 // one standard deviation of the whole
  double flops = 0;
  double total() const {
    double ns = before_ns + after_ns;
    for (const double s : stage_ns) ns += s;
    return ns;
  }
};

class StepCosts {  // tables of times of one job; not shared between threads
 public:
  explicit StepCosts(const ServeJob& job);

  StepTime step(const StepShape& shape) const;
  std::int64_t tokens_of(const StepShape& shape) const;  // with those that were drafted
  // Of all stages together, by part.
  Block parts(const StepShape& shape) const;
  // The operators of one stage in their order, each as it is launched, and the same as a graph: a host thread that
  // launches, a stream. Ends when the stream does.
  std::vector<Operation> operations(const StepShape& shape, std::int64_t stage) const;
  static ExecGraph graph_of(const std::vector<Operation>& operations);

  // Sequences are the same text (Workload::alike).
  void set_alike(bool alike);
  // Factors on what kernels and on what the host takes (calibration).
  void scale(double gpu, double host);
  const ServeJob& job() const { return job_; }

 private:
  bool captured(const StepShape& shape) const;
  struct Kind {  // layers that are alike
    bool experts = false, windowed = false;
    std::int64_t count = 0;
  };
  struct Known {  // of a number of tokens
    Block before, after, after_experts, embedding;
    bool eager = false;
  };
  class Writer;

  std::int64_t rows_of(const StepShape& shape) const;
  double distinct_of(const StepShape& shape) const;
  const Known& known(const StepShape& shape, bool launched) const;
  const Block& head(std::int64_t rows, bool launched) const;
  Block stage_block(const StepShape& shape, std::int64_t stage) const;

  ServeJob job_;
  OperatorCosts operators_;
  NetworkModel network_;
  double launch_ns_ = 0, operator_ns_ = 0, gpu_factor_ = 1, host_factor_ = 1, host_speed_ = 1;
  bool alike_ = false;
  std::vector<std::array<Kind, 4>> stages_;
  mutable std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>, Known> known_;
  mutable std::unordered_map<std::int64_t, Block> heads_;
};

}  // namespace orrery
