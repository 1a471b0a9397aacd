#include "reference/slow_serving.h"

#include <algorithm>
#include <deque>

namespace orrery::test {
namespace {

struct Seq {
  std::size_t id = 0;
  std::int64_t prompt = 0;  // tokens to compute before the next one is told
  std::int64_t in_cache = 0, told = 0;
  std::int64_t held = 0;  // tokens that it has blocks for
};

}  // namespace

std::vector<RequestRecord> serve_slowly(const StepCosts& costs, std::int64_t blocks, const Workload& w) {
  const ServeJob& job = costs.job();
  const EngineFacts& e = job.engine;
  const bool chunked = e.scheduling == "chunked", reserved = e.kv_growth == "reserved";
  std::vector<RequestRecord> out(w.requests.size());
  for (std::size_t k = 0; k < out.size(); ++k)
    out[k].arrival = w.requests[k].arrival_ns, out[k].input = w.requests[k].input, out[k].output = w.requests[k].output;
  std::vector<Seq> running;
  std::deque<Seq> waiting;
  std::size_t next = 0;
  double now = 0;
  const auto of = [&](std::int64_t tokens) { return (tokens + e.block_size - 1) / e.block_size; };
  const auto used = [&] {
    std::int64_t n = 0;
    for (const Seq& s : running) n += of(s.held);
    return n;
  };
  const auto hold = [&](Seq& s, std::int64_t tokens) {
    const std::int64_t more = of(std::max(tokens, s.held)) - of(s.held);
    if (used() + more > blocks) return false;
    s.held = std::max(s.held, tokens);
    return true;
  };
  const auto evict_last = [&] {
    Seq s = running.back();
    running.pop_back();
    s.prompt = out[s.id].input + s.told;
    s.in_cache = s.held = 0;
    ++out[s.id].preemptions;
    waiting.push_front(s);
  };
  for (;;) {
    while (next < out.size() && out[next].arrival + 1'000 * e.request_us <= now) {
      Seq s;
      s.id = next++;
      s.prompt = out[s.id].input;
      waiting.push_back(s);
    }
    if (running.empty() && waiting.empty()) {
      if (next == out.size()) return out;
      now = out[next].arrival + 1'000 * e.request_us;
      continue;
    }
    StepShape shape;
    struct Work {
      std::size_t id;
      std::int64_t tokens;
    };
    std::vector<Work> work;
    std::int64_t budget = e.max_batched_tokens;
    bool short_of_blocks = false;
    const auto decode_all = [&] {
      for (std::size_t k = 0; k < running.size(); ++k) {
        if (running[k].in_cache < running[k].prompt) continue;
        bool there = hold(running[k], running[k].in_cache + 1);
        while (!there && running.size() > k + 1) {
          evict_last();
          there = hold(running[k], running[k].in_cache + 1);
        }
        if (!there) {
          evict_last();
          short_of_blocks = true;
          break;
        }
        ++shape.decode_sequences;
        shape.decode_context += static_cast<double>(running[k].in_cache);
        work.push_back({running[k].id, 0});
        --budget;
      }
    };
    const auto prefill = [&](Seq& s, std::int64_t tokens) {
      ++shape.prefill_sequences;
      shape.prefill_tokens += tokens;
      for (std::int64_t t = 0; t < tokens; ++t) shape.prefill_pairs += static_cast<double>(s.in_cache + t + 1);
      shape.finishing += s.in_cache + tokens == s.prompt;
      work.push_back({s.id, tokens});
      budget -= tokens;
    };
    const auto admit_all = [&] {
      while (!waiting.empty() && static_cast<std::int64_t>(running.size()) < e.max_num_seqs && budget > 0) {
        Seq s = waiting.front();
        if (!chunked && s.prompt > budget && shape.prefill_tokens > 0) break;
        const std::int64_t whole = reserved ? out[s.id].input + out[s.id].output : s.prompt;
        if (used() + of(whole) > blocks) break;
        waiting.pop_front();
        s.held = whole;
        running.push_back(s);
        prefill(running.back(), chunked ? std::min(budget, s.prompt) : s.prompt);
      }
    };
    if (chunked) {
      decode_all();
      if (!short_of_blocks) {
        for (Seq& s : running) {
          if (s.in_cache >= s.prompt || budget <= 0) continue;
          const std::int64_t tokens = std::min(budget, s.prompt - s.in_cache);
          if (!hold(s, s.in_cache + tokens)) break;
          prefill(s, tokens);
        }
        admit_all();
      }
    } else {
      admit_all();
      if (shape.prefill_tokens == 0) decode_all();
    }
    now += costs.step(shape).total();
    for (const Work& done : work) {
      Seq& s = *std::find_if(running.begin(), running.end(), [&](const Seq& x) { return x.id == done.id; });
      RequestRecord& r = out[done.id];
      if (done.tokens > 0) {
        s.in_cache += done.tokens;
        if (s.in_cache < s.prompt) continue;
      } else {
        ++s.in_cache;
      }
      ++s.told;
      if (r.first_token < 0) r.first_token = now;
      if (s.told == r.output) r.end = now;
    }
    std::erase_if(running, [&](const Seq& s) { return out[s.id].end >= 0; });
  }
}

}  // namespace orrery::test
