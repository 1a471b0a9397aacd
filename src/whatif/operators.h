// Which operator launched each GPU task, in which pass, and at what place of a transformer layer: the ground that
// recognise_model and recognise_work stand on. Told from the rows of one rank alone.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/trace.h"

namespace orrery {

using Tensor = std::vector<std::int64_t>;  // extents; empty = a scalar, or not a tensor

double elements_of(const Tensor& t);

// What the name of an operator, a range or a kernel says; several may hold.
struct NameFlags {
  enum : std::uint32_t {
    asked = 1u << 0,
    autograd = 1u << 1,    // a node of the autograd graph, or the engine's range round it
    checkpoint = 1u << 2,  // recomputation: forward work inside of a backward pass
    linear = 1u << 3,      // a matrix product with a weight
    batched = 1u << 4,     // a batch of matrix products
    attention = 1u << 5,   // fused attention
    accumulate = 1u << 6,  // AccumulateGrad and the hooks on it
    norm = 1u << 7,
    loss = 1u << 8,
    embedding = 1u << 9,
    optimizer = 1u << 10,
    engine = 1u << 11,      // "autograd::engine::...": only an autograd thread has it
    gated = 1u << 12,       // SwiGLU, GeGLU
    fused_norm = 1u << 13,  // one operator for a norm and the linear behind it
    all_to_all = 1u << 14,
    grouped = 1u << 15,  // the products of several experts
    router = 1u << 16
  };
};
std::uint32_t name_flags(std::string_view name);

// Which linear layer, or attention: a place in a transformer layer.
// expert_in and expert_out: the experts' own two, whose rows are the tokens that were sent to the rank.
enum class Place : std::uint8_t { none, qkv, q, kv, attention, proj, fc1, fc2, head, router, expert_in, expert_out };
inline bool of_experts(Place p) { return p == Place::expert_in || p == Place::expert_out; }

// A linear layer's or an attention's work in one pass: what the tasks around it are placed by.
struct Anchor {
  Place place = Place::none;
  bool attention = false, backward = false;
  bool at_loss = false;  // next to the loss, so the head
  bool grouped = false;  // of several experts
  bool named_router = false;
  LaneId lane = kNoLane;
  std::uint32_t op = kNone;                  // the operator, or the autograd node
  std::int64_t in = 0, out = 0, tokens = 0;  // of a linear layer: [tokens, in] x [in, out]; 0 = not told
  std::int64_t sequence = -1;
  std::uint32_t first_launch = 0, gemms = 0;
  std::int64_t experts = 0;       // whose products are one operator; 0 = not told
  std::uint32_t all_to_alls = 0;  // that its thread launched before it in passes of that kind
};

struct Gemm {  // batch times [m, k] x [k, n]; all 0 = not told
  std::int64_t batch = 0, m = 0, n = 0, k = 0;
  std::int64_t experts = 0;  // with a weight each, m rows of all together; 0 = one weight
};

struct Launch {  // one GPU task whose call is in the trace
  Ns at = 0;     // begin of the call
  std::uint32_t task = kNone;
  std::uint32_t op = kNone;    // innermost operator or range round the call
  std::uint32_t node = kNone;  // innermost autograd node round it; kNone in a forward pass
  LaneId lane = kNoLane;
  bool backward = false;  // of a backward pass proper; recomputation is forward
  std::uint32_t anchor = kNone;
  std::uint32_t nth_gemm = 0;  // of its anchor
};

struct Operators {
  const RankTrace* trace = nullptr;
  std::vector<std::uint32_t> parent;      // by row: the operator or range round it on its thread
  std::vector<std::uint32_t> flags_name;  // NameFlags by StrId
  std::vector<std::uint32_t> shapes_of;   // by StrId: row of `shapes`, kNone = not parsed
  std::vector<std::vector<Tensor>> shapes;
  std::vector<Tensor> no_shapes;
  std::vector<Launch> launches;  // in the order of their calls
  std::vector<Anchor> anchors;   // in that order too
  bool coarse = false;           // whole microseconds
  bool experts = false;          // some anchors are those of experts

  // Forward launches by the autograd sequence number of an operator round them; by number, then launch.
  struct Sequence {
    std::int64_t number;
    std::uint32_t launch, op;
  };
  std::vector<Sequence> forward_of;

  std::uint32_t flags(std::uint32_t row) const { return flags_name[raw(trace->ops.name[row])]; }
  std::string_view name(std::uint32_t row) const { return trace->name_of(OpId{row}); }
  const std::vector<Tensor>& tensors(std::uint32_t row) const;  // empty = no shapes were recorded
  std::int64_t sequence(std::uint32_t row) const;               // -1 = none
  // The forward launch that the autograd node of `row` belongs to; kNone = not told.
  std::uint32_t forward_launch(std::uint32_t row, Ns before) const;
  // Sizes of the matrix product that the innermost shaped operator from `op` outwards describes.
  Gemm gemm(std::uint32_t op) const;
};

Operators read_operators(const RankTrace& trace);
// The last part of that: gives the anchors their places. (layer_places.cc)
void place_anchors(Operators& o);

bool is_gemm_kernel(std::string_view name);
bool is_split_reduction(std::string_view name);  // adds up the parts of a matrix product
bool is_attention_kernel(std::string_view name);

}  // namespace orrery
