// The sizes that tensors of a model have on one rank, as terms of its dimensions; and which of them a tensor, a number
// of elements or a grid is, the likeliest at its place first: many are equal by chance.
#pragma once
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "costs/work.h"
#include "whatif/operators.h"
#include "whatif/work.h"

namespace orrery {

Term operator*(const Term& a, const Term& b);
Term constant(double x);

// Where a task stands: what the last linear layer or attention ahead of it leaves.
struct Spot {
  Place last = Place::none;
  bool scores = false;  // of unfused attention: the last product made scores
  bool table = false;   // within or behind an embedding: its table's gradient
  bool backward = false;
  bool parameter = false;  // what goes on is about parameters, not activations
};

// How many elements a kernel's grid covers, where its name tells.
struct Grid {
  double blocks = 0, threads = 0;  // threads of a block
  int per_thread = 0;              // elements; 0 = not told
  bool flexible = false;           // or eight: newer builds
  bool told() const { return per_thread > 0 && blocks > 0 && threads > 0; }
};
// PyTorch's CUDALoops.cuh and Loops.cuh: a block does its threads times so many.
Grid grid_of_kernel(std::string_view name);

class Sizes {
 public:
  explicit Sizes(const ModelShape& m);

  Term one, hidden, qkv, attn, kv, ffn, gates, vocab;  // widths; `gates`: both projections of a gated MLP
  Term tokens, split_tokens, seq, head_dim;
  Term heads;                       // sequences * heads, the batch of attention
  Term scores;                      // of unfused attention
  Term routed;                      // tokens that a rank's experts work on; `known` where told
  Term expert_width, expert_gates;  // of one expert, on one rank; both projections of a gated one
  double local_experts = 0;

  double value(const Term& t) const { return t.value(dims_); }
  bool known(const Term& t) const { return value(t) >= 1; }
  bool is(const Term& t, double x) const;
  // Rows of an activation of width `x`, the likelier first: outside of tensor-parallel regions, where the width is
  // whole, they may be split by sequence.
  std::array<Term, 2> rows(const Term& x) const;
  // Width of a linear layer's input or output.
  Term width(Place p, bool out) const;
  // Widths of activations, the likeliest first.
  std::vector<Term> widths(const Spot& s) const;

  // What a tensor of these extents, or of so many elements, is. A kernel's grid must cover it.
  std::optional<Term> of_tensor(const Tensor& t, const Spot& s, const Grid& g) const;
  std::optional<Term> of_count(double n, const Spot& s, const Grid& g) const;
  // What a grid alone tells: exactly so many blocks; or, of another build, 1 to 16 elements a thread.
  std::optional<Term> of_grid(const Spot& s, const Grid& g) const;
  std::optional<Term> near_grid(const Spot& s, const Grid& g) const;

  // Whether a kernel's grid can be of so many elements; one that does not tell can.
  bool covers(const Grid& g, const Term& t) const;

 private:
  Term table_of_positions() const;
  std::vector<Term> weights(const Spot& s) const;
  std::optional<Term> weight(const Tensor& t, const Spot& s) const;

  Dims dims_;
  std::int64_t positions_ = 0;
  bool gated_ = false, fused_gate_ = false;
};

}  // namespace orrery
