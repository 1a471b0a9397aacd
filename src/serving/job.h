// A model that is served, as it is asked for: model, platform, engine, layout, precisions and limits.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "costs/operators.h"
#include "facts/engines.h"
#include "facts/models.h"
#include "facts/platforms.h"

namespace orrery {

enum class WeightFormat : std::uint8_t {
  same,  // as the activations
  fp8,   // products in fp8, activations brought to it
  int8,  // weights alone, widened in the product's kernel
  int4   // the same, in groups with a scale each (GPTQ, AWQ)
};
std::string_view name_of(WeightFormat f);

struct ServeJob {
  ModelFacts model;
  PlatformFacts platform;
  EngineFacts engine;  // with the limits that were asked for

  std::int64_t tp = 1, pp = 1, ep = 1;  // of one instance. ep: experts whole instead of split,
                                        // over tp or a part of it, or over the GPUs of all replicas
  std::int64_t replicas = 1;
  std::int64_t prefill_replicas = 0;  // with prefill and decode on separate GPUs: of `replicas`, those that prefill

  Precision precision = Precision::bf16;
  WeightFormat weights = WeightFormat::same;
  std::int64_t group = 128;  // weights that share a scale, int4
  double kv_bytes = 0;       // of an element of the cache; 0 = as the activations
  bool prefix_caching = false;
  bool cuda_graphs = true;
  std::int64_t kv_tokens = 0;      // of one instance, stated; 0 = what memory leaves
  std::int64_t max_model_len = 0;  // 0 = the model's

  // Speculation: so many tokens are drafted for each sequence in a step; each is accepted with this chance given that
  // the one before it was. draft_share: parameters of the drafting model over the model's.
  std::int64_t draft_tokens = 0;
  double acceptance = 0.7, draft_share = 0.05;

  std::int64_t gpus() const { return replicas * tp * pp; }
};

// Of one weight in memory, with its share of scales; of one weight of the attention and MLP layers.
double weight_bytes(const ServeJob& job);
// Of the cache, all layers of one instance, for one token. Windowed layers count for as much as they keep at most.
double kv_bytes_per_token(const ServeJob& job);

// Whether such a job can be at all. The error says which option is at fault and what would do.
Status check(const ServeJob& job);

}  // namespace orrery
