// One rank of a made-up GPT job, as gpt.cc (its passes) and gpt_step.cc (what is round them) record it.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "synthesis/gpt.h"

namespace orrery::synth {

inline constexpr std::string_view kBf16 = "\"c10::BFloat16\"";
inline constexpr std::string_view kLinear = "LinearWithGradAccumulationAndAsyncCommunication";

// A node of the autograd graph, pushed by the forward pass and worked off from the end by the backward pass.
struct TapeEntry {
  enum class Kind : std::uint8_t {
    fused_add,
    reduce,
    linear,
    gelu,
    attention,
    layer_norm,
    embedding,
    loss,
    checkpoint,  // of layer `m`, or of an attention where -1
    planned,     // the operators of `plan`
    all_to_all,  // of `m` elements
    spread,      // gathered over the ranks that share an expert, `m` elements in all; ...
    joined,      // ... summed over them
    grouped      // products of a rank's experts: [m, k] x [k, n] in all
  };
  Kind kind;
  OpId op;
  std::int64_t sequence;
  std::int64_t m = 0, n = 0, k = 0;    // linear: [m, k] x [k, n]
  bool reduce_input_gradient = false;  // linear, split by column
  std::int64_t bucket = 0;             // this many gradients are complete after it; 0 = none
  struct Operator {
    std::string name, dims;
    std::string_view kernel;
    Cost cost;
    std::uint32_t threads = 128;
    std::string inner = {};  // an operator inside of it that launches
  };
  std::string backward = {};        // planned: the node's name
  std::vector<Operator> plan = {};  // ... and what it runs
  std::int64_t bias = 0;            // ... a bias of so many that it leaves the gradient of
};

inline bool uses_world(const SyntheticJob& job) { return job.distributed_optimizer || job.step_barrier; }

// Closes what was opened.
class Scope {
 public:
  Scope() = default;  // nothing was opened
  Scope(Recorder& rec, HostThread& thread, Ns tail) : rec_(&rec), thread_(&thread), tail_(tail) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() {
    if (rec_ != nullptr) rec_->close(*thread_, tail_);
  }

 private:
  Recorder* rec_ = nullptr;
  HostThread* thread_ = nullptr;
  Ns tail_ = 0;
};

class GptRank {
 public:
  GptRank(const SyntheticJob& job, const Gpu& gpu, const std::vector<ProcessGroup>& groups, std::int64_t rank,
          Recorder& rec);
  void run();

 private:
  // Program structure.
  void step(std::int64_t number);
  void schedule();
  void forward(std::int64_t chunk);
  void backward(std::int64_t chunk, bool last);
  void optimizer();
  void exchange(bool with_next, bool send, bool receive);
  void exchange_apart(bool with_next, bool send, bool receive);
  void interleaved();
  struct Place {
    std::int64_t micro_batch, chunk;
  };
  Event transfer(bool send, bool forward, const Place& p);

  // Forward pieces; each pushes its autograd node.
  void layer(std::int64_t l);
  void checkpoint(std::int64_t l);
  void again(std::int64_t l);
  void embedding();
  void loss();
  void read_loss();
  void layer_norm(std::int64_t bucket = 0);
  void linear(std::string_view module_name, std::int64_t n, std::int64_t k, bool by_column);
  void self_attention();
  void core_attention();
  void fused_add();
  void gelu();
  void unfused_attention();
  // Experts (gpt_experts.cc).
  void experts(std::int64_t l);
  void router();
  void exchange_tokens(std::int64_t elements);
  void share_tokens(std::int64_t elements, bool spread);
  void grouped_linear(std::int64_t rows, std::int64_t n, std::int64_t k);
  void launch_grouped(HostThread& t, std::int64_t rows, std::int64_t n, std::int64_t k, bool of_weight);
  void experts_backward(const TapeEntry& e);
  void pass_tokens(std::string_view name, std::string_view kernel, std::int64_t rows);
  void close_expert_bucket(std::int64_t parameters);
  std::int64_t tokens_for_experts();
  // Operators with their shapes instead of a compiled kernel.
  using Operator = TapeEntry::Operator;
  OpId run_operator(HostThread& t, const Operator& o);
  void eager(const Operator& forward, std::string_view backward, std::vector<Operator> plan, std::int64_t bias = 0);
  void add_bias(std::int64_t width);
  void dropout(const std::string& dims, std::int64_t elements);
  Operator elementwise(std::string_view name, std::string_view kernel, std::string dims, std::int64_t elements,
                       std::int64_t bytes_each) const;
  Operator column_sum(std::int64_t rows, std::int64_t width) const;
  std::string activation(std::int64_t rows, std::int64_t width) const {
    return fmt::format("[{}, {}, {}]", rows / job_.micro_batch_size, job_.micro_batch_size, width);
  }

  // Backward pieces, on the autograd thread.
  void backward_node(const TapeEntry& e, bool last);
  void backward_work(const TapeEntry& e);
  void backward_linear(const TapeEntry& e);
  void accumulate_gradient(std::int64_t elements);
  void accumulate_weight(std::int64_t n, std::int64_t k);
  void sum_norm_gradients();
  void close_bucket(std::int64_t parameters);
  Event gather(HostThread& t, std::int64_t elements) {
    return collective(comm_, t, tensor_, Collective::all_gather, elements, Dtype::bf16);
  }
  Event scatter(HostThread& t, std::int64_t elements) {
    return collective(comm_, t, tensor_, Collective::reduce_scatter, elements, Dtype::bf16);
  }
  Event reduce_gradients(HostThread& t, std::int64_t elements);

  Scope python(std::string_view name);
  Scope module(std::string_view name);
  Scope op(HostThread& t, std::string_view name, Ns lead = kOpLead, Ns tail = kOpTail);
  Scope annotation(std::string_view name, Ns lead = 2'500);
  OpId last_op() const { return thread_->open.back().op; }
  std::int64_t next_sequence(OpId forward) {
    rec_.set_sequence(forward, sequence_, 0);
    return sequence_++;
  }
  TaskSpec kernel(std::string_view name, const Cost& cost, std::uint32_t threads = 256, std::uint16_t registers = 40);
  TaskSpec gemm_kernel(std::int64_t m, std::int64_t n, std::int64_t k, std::string_view layout);
  std::string shape(std::int64_t a, std::int64_t b) const { return fmt::format("[{}, {}]", a, b); }
  bool first_stage() const { return stage_ == 0; }
  bool last_stage() const { return stage_ == job_.pp - 1; }
  std::vector<TapeEntry>& tape() { return tapes_[static_cast<std::size_t>(chunk_)].back(); }
  // But for those of experts.
  std::int64_t layer_parameters() const {
    const bool mlp = job_.experts == 0 || job_.shared_expert;
    return job_.hidden * (2 * attn_ + 2 * kv_ + (mlp ? (job_.swiglu ? 3 : 2) * ffn_ : 0)) / job_.tp +
           job_.experts * job_.hidden + (own_experts() ? 0 : experts_of_rank());
  }
  // Of experts that are not on every replica: their gradients are reduced over fewer.
  bool own_experts() const { return job_.experts > 0 && job_.ep > 1; }
  std::int64_t expert_parameters() const { return own_experts() ? experts_of_rank() : 0; }
  std::int64_t experts_of_rank() const {
    return job_.experts / job_.ep * job_.hidden * (job_.swiglu ? 3 : 2) * expert_ffn_ / job_.tp;
  }
  std::int64_t stage_parameters() const {
    const std::int64_t tables =
        (first_stage() ? 1 : 0) + (last_stage() && !(job_.tied_embedding && first_stage()) ? 1 : 0);
    return job_.layers / job_.pp * layer_parameters() + tables * job_.vocab * job_.hidden / job_.tp;
  }

  const SyntheticJob& job_;
  const Gpu& gpu_;
  Recorder& rec_;
  std::int64_t rank_, stage_;
  std::int64_t tokens_, ffn_, expert_ffn_;
  std::int64_t head_dim_, attn_, kv_;  // of all heads; of one of keys and values
  bool split_ = false;                 // sequence parallel
  std::int64_t rows_;                  // tokens outside of tensor-parallel regions
  HostThread main_, autograd_;
  HostThread* thread_ = &main_;  // that runs forward work
  std::uint32_t compute_ = 0;
  Communicator tensor_, pipeline_, data_, model_, world_, table_;
  Communicator expert_, expert_tensor_, expert_data_, expert_stages_;
  CommContext comm_;
  std::int64_t exchanges_[2] = {0, 0};                     // with the previous and the next stage
  std::int64_t exchanges_apart_[2][2] = {{0, 0}, {0, 0}};  // the same, of gradients and of activations
  std::int64_t sequence_ = 9'000;
  // By chunk: of micro-batches whose backward pass is to come, oldest first.
  std::vector<std::vector<std::vector<TapeEntry>>> tapes_;
  std::int64_t chunk_ = 0;           // of the pass that runs
  std::vector<Communicator> peers_;  // several chunks: sends and receives with one peer, or of one kind
  std::int64_t step_ = 0;
  bool last_pass_ = false;  // backward, of the last micro-batch
  std::vector<Event> gradients_ready_;
  std::vector<std::int64_t> buckets_;  // of the step: gradients in each
  std::int64_t gathered_ = 0;          // gradients of no bucket yet
  std::vector<std::int64_t> expert_buckets_;
  std::int64_t gathered_of_experts_ = 0, routed_ = 0;  // routed_: times that tokens went to experts
  std::int64_t modules_ = 0;  // numbered within a forward pass, as Kineto numbers instances of a class
};

}  // namespace orrery::synth
