// Small services for tests: a model of one layer on a GPU so fast that the engine's host is all that takes time, or a
// real one.
#pragma once
#include <gtest/gtest.h>

#include "facts/library.h"
#include "serving/memory.h"
#include "serving/simulate.h"
#include "serving/summary.h"

namespace orrery::test {

inline ServeJob real_job(const std::string& model, const std::string& platform, const std::string& engine) {
  ServeJob job;
  auto m = model_named_or_read(model);
  auto p = platform_named_or_read(platform);
  auto e = engine_named_or_read(engine);
  EXPECT_TRUE(m && p && e) << model << " " << platform << " " << engine;
  job.model = *m, job.platform = *p, job.engine = *e;
  job.prefix_caching = e->prefix_caching;
  return job;
}

// Every step takes 10 ms of the host and next to nothing of the GPU.
inline ServeJob clockwork() {
  ServeJob job = real_job("llama-2-7b", "1xH100", "vllm");
  job.model.layers = 1;
  job.model.hidden = 64, job.model.ffn = 64, job.model.heads = job.model.kv_heads = 1, job.model.head_dim = 64;
  job.model.vocab = 64;
  EngineFacts& e = job.engine;
  e.overlap_host = false;
  e.step_us = 10'000 * 14.5 / job.platform.host.operator_us;  // hosts' speed taken out
  e.sequence_us = e.request_us = e.parallel_step_us = e.exposed_us = 0;
  e.max_num_seqs = 64, e.max_batched_tokens = 1024;
  job.prefix_caching = false;
  return job;
}

inline Workload requests_of(const std::vector<Request>& requests) {
  Workload w;
  w.requests = requests;
  return w;
}

inline ServeMemory blocks_of(std::int64_t blocks) {
  ServeMemory m;
  m.kv_blocks = blocks;
  return m;
}

constexpr double kMs = 1e6;

}  // namespace orrery::test
