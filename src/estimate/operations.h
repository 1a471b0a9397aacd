// What one GPU does for one micro-batch, operator by operator: the passes of a layer, of the embedding and of the head,
// and the update of the weights. Times come from costs/, the order from how the frameworks are written.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "costs/collective.h"
#include "costs/operators.h"
#include "estimate/job.h"

namespace orrery {

enum class Part : std::uint8_t {
  embedding,
  norm,
  qkv,
  rotary,
  scores,      // first product of the attention, unfused
  softmax,     // unfused
  context,     // second product, unfused
  attention,   // fused
  projection,  // after the attention
  mlp_up,      // gate and up
  activation,
  mlp_down,
  router,
  dispatch,  // to the experts and back
  experts,
  shared_experts,
  residual,
  head,
  loss,
  quantize,    // activations to eight or four bits
  dequantize,  // frozen weights to two bytes
  adapters,
  gradients,  // norm, scaling, accumulation
  optimizer,
  tensor_comm,
  context_comm,
  expert_comm,
  data_comm,
  pipeline_comm,
  copies  // between host and device
};
inline constexpr std::size_t kParts = 30;
std::string_view name_of(Part p);
bool is_communication(Part p);

// Groups of ranks, and where their members are.
enum class Group : std::uint8_t { tensor, context, expert, data, shard, copies, expert_data, pipeline };

// What a transfer is, beside how long it takes.
enum class TransferKind : std::uint8_t {
  none,
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  to_device,  // a copy from the host's memory ...
  to_host     // ... and to it
};
struct TransferShape {
  TransferKind kind = TransferKind::none;
  Group group = Group::tensor;
  double bytes = 0;  // as NCCL's tests count them: the larger of input and output
};

// One operator on the compute stream. A collective on its own is all comm_ns; beside a kernel that does not wait for it
// the two run together and the longer counts.
struct Operation {
  Part part = Part::norm;
  Part comm_part = Part::tensor_comm;
  double compute_ns = 0, comm_ns = 0;
  double host_ns = 0;       // to issue it
  bool host_waits = false;  // for its end: a size is read back
  double flops = 0;
  double doubt_ns = 0;                    // one standard deviation of its time
  double m = 0, n = 0, k = 0, batch = 1;  // products: batch times [m, k] x [k, n]
  double bytes = 0;                       // that kernels bound by memory move
  TransferShape transfer;
  double stream_ns() const { return compute_ns > comm_ns ? compute_ns : comm_ns; }
};

// How a product's operands lie, in BLAS's terms (t: transposed). A linear layer, whose weights are [out, in], is nt
// forward, nn for the gradient of its input and tn for that of its weights.
enum class GemmLayout : std::uint8_t { nt, nn, tn };
inline constexpr std::size_t kGemmLayouts = 3;

// Times of kernels over what the laws say: 1 unless traces tell (estimate/calibrate.h).
struct KernelFactors {
  double gemm = 1, attention = 1, attention_backward = 1;
  std::array<double, kGemmLayouts> emulated = {1, 1, 1};  // on products, by layout, where JobCosts::emulated
  double memory = 1;                                      // bound by memory, of layers and the embedding
  double loss = 1;                                        // the same, of the head
  double optimizer = 1;                                   // update, norm and clearing of gradients
};

// Costs that all operators of a job share.
struct JobCosts {
  OperatorCosts operators;
  NetworkModel network = {};
  double launch_ns = 0;    // host, of a launch
  double operator_ns = 0;  // host, of an eager operator round its launches
  // Of the multiprocessors, what NCCL's kernels take from those beside them: of groups with several ranks on a server,
  // and with one on each.
  double taken_within = 0, taken_between = 0;
  double sustained = 1;  // rate of products in hours of training over that in runs of some milliseconds
  KernelFactors factors = {};
  // Of a CPU: who issues an operator also computes it, so that the one follows the other. operator_ns is then what an
  // operator costs beside its arithmetic; Operation::host_ns is 0 and part of compute_ns.
  bool serial = false;
  // The device has no unit for the job's precision: its products are loops of the framework's, not a library's.
  bool emulated = false;
  double emulation_doubt = 0;  // of the factors on them, relative
  // Host, of one step before its passes: the data loader's next batch, the loop round the passes, logging. Of one pass:
  // the schedule's own Python.
  double step_ns = 1'500'000, pass_ns = 100'000;
};
JobCosts costs_of(const EstimateJob& job);
NetworkModel network_of(const PlatformFacts& p, std::int64_t gpus_per_node);

Placement placement_of(const EstimateJob& job, Group g);

struct LayerWork {
  std::vector<Operation> forward, backward;  // backward: both gradients, recomputation included
  // Split for zero-bubble schedules: backward is then that of the inputs alone.
  std::vector<Operation> weight;
};

// A decoder layer; `layer` tells dense from expert layers. `split_backward`: gradients of weights apart.
LayerWork layer_work(const EstimateJob& job, const JobCosts& costs, std::int64_t layer, bool split_backward = false);
LayerWork embedding_work(const EstimateJob& job, const JobCosts& costs);
LayerWork head_work(const EstimateJob& job, const JobCosts& costs);

}  // namespace orrery
