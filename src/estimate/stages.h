// What the stages of a job hold and compute: layers dealt to stages and chunks, their passes as blocks, their weights.
#pragma once
#include <cstdint>
#include <vector>

#include "estimate/block.h"

namespace orrery {

// Weights of one rank.
struct Weights {
  double all = 0;      // parameters
  double experts = 0;  // of them, those of experts: replicas / ep ranks hold the same
  double learn = 0;    // parameters that get gradients
  double learn_experts = 0;
  double tensors = 0;  // that learn
  double modules = 0;  // that hold parameters
  Weights& operator+=(const Weights& w) {
    all += w.all, experts += w.experts, learn += w.learn, learn_experts += w.learn_experts;
    tensors += w.tensors, modules += w.modules;
    return *this;
  }
};
Weights layer_weights(const EstimateJob& job, std::int64_t layer);
Weights embedding_weights(const EstimateJob& job);
Weights head_weights(const EstimateJob& job);  // final norm included; a tied head on the first stage holds none

// Layers whose weights are gathered, and whose gradients are reduced, together.
struct Bundle {
  Block forward, backward, weight;  // weight: under zero-bubble schedules
  Block update;                     // of its weights, where that is done in the backward pass
  Weights weights;
  std::int64_t first_layer = 0, layers = 0;
  bool embedding = false, head = false;  // before and after the layers
};
struct Chunk {
  std::vector<Bundle> bundles;      // in forward order
  Block forward, backward, weight;  // of all of them
  Weights weights;
};
struct StageWork {
  std::vector<Chunk> chunks;
  Weights weights;
  Block clear;      // gradients, before a step
  Block norm;       // of the gradients, and their scaling
  Block optimizer;  // update on the GPU
  double layers = 0;
};
std::vector<StageWork> stages_of(const EstimateJob& job, const JobCosts& costs);

// Layers of part `part` (chunk * stages + stage): uneven numbers go to the first parts.
std::int64_t layers_of_part(const EstimateJob& job, std::int64_t part);
std::int64_t first_layer_of_part(const EstimateJob& job, std::int64_t part);

}  // namespace orrery
