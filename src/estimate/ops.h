// Single operators and transfers, asked for one by one: what `estimate ops` answers.
//
// A question is one line of words, the operator first:
//   gemm m=8192 n=16384 k=8192 [batch=1] [precision=bf16] [out-bytes=B] [weight-bytes=B] [warm=on] [quantise=on]
//   attention heads=32 queries=2048 [keys=queries] [batch=1] [kv-heads=heads] [head-dim=128] [value-dim=head-dim]
//     [causal=on] [pass=forward|backward|both] [kernel=flash2] [precision=bf16] [kv-bytes=B] [append=on] [shared=on]
//     [warm=on]
//   memory bytes=1e9 [kind=elementwise]
//   memcpy bytes=1e9 [pinned=on]                       host to GPU or back
//   adam parameters=1e9                                on the host
//   collective op=all_reduce bytes=1e9 gpus=8 [gpus-per-node=8] [sharp=on|off] [nic=GB_PER_S]
// every one also [platform=NAME]. '#' begins a comment.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "costs/collective.h"
#include "costs/operators.h"
#include "facts/models.h"
#include "facts/platforms.h"

namespace orrery {

struct OpsAnswer {
  std::int64_t number = 0;  // of the question, from 1
  std::string kind;         // gemm, attention, memory, memcpy, adam, collective
  std::string platform, shape, precision;
  double ns = 0;
  double relative_error = 0;  // one standard deviation
  double flops = 0, bytes = 0;
  double bus_gb_per_s = 0;  // of a collective
  std::string bound;        // compute, memory, latency, link
};

class OpsAnswers {
 public:
  // `platform` and `precision` where a question names none; an empty platform: each question has to.
  OpsAnswers(std::string platform, Precision precision);
  // Errors: what a question does not have, does not know or gives as no number; a platform without what it needs.
  Result<OpsAnswer> ask(std::string_view question);

 private:
  struct Known {
    PlatformFacts facts;
    OperatorCosts costs;
  };
  Result<const Known*> platform(const std::string& name);

  std::string platform_;
  Precision precision_;
  std::int64_t asked_ = 0;
  std::map<std::string, Known> known_;
};

// The questions of a study's third level for a model: its matrix products over numbers of tokens, attention over
// lengths, copies and the collectives of `gpus` GPUs over sizes.
std::vector<std::string> ops_of_model(const ModelFacts& model, std::int64_t gpus);

}  // namespace orrery
