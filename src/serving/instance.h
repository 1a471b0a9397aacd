// One instance of an engine: its queue, its batch, its blocks, step after step. Used by simulate.cc alone.
#pragma once
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "serving/kv_cache.h"
#include "serving/simulate.h"

namespace orrery {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// A request that an instance has done its part of: its tokens go to another one.
struct Handoff {
  std::uint32_t request = 0;
  double ns = 0;  // when it is there
};

// Prefixes as a cache of blocks can keep them: pieces of whole blocks.
struct PrefixPieces {
  std::int64_t tokens = 0, blocks = 1;  // of one; 0 = prompts share nothing
  std::vector<std::uint64_t> ids;
  std::vector<std::uint32_t> first;  // of a request, one more at the end
  std::span<const std::uint64_t> of(std::uint32_t request) const {
    return {ids.data() + first[request], ids.data() + first[request + 1]};
  }
};
PrefixPieces pieces_of(const Workload& w, std::int64_t block_size);

class Instance {
 public:
  Instance(const StepCosts& costs, std::int64_t blocks, const PrefixPieces& prefixes, const ServeOptions& options,
           std::uint32_t number, bool prefill_only, Simulation& out);

  // `filled`: its prompt is in the cache once there are blocks for it (prefill was elsewhere).
  void arrive(std::uint32_t request, double now, bool filled);
  double next() const { return next_; }  // when it has something to do
  // Ends what ends now, begins what can begin. Steps are not taken together beyond `horizon`: the next arrival.
  void act(double now, double horizon, std::vector<Handoff>& handoffs);
  // The same in two halves, for replicas that go in step because they share experts: what it would do next, and then
  // the step, which lasts as long as the slowest needs.
  struct Planned {
    StepShape shape;
    std::int64_t steps = 1;
    bool any = false;
  };
  Planned settle_and_plan(double now, double horizon, std::vector<Handoff>& handoffs);
  double duration(const StepShape& shape, std::int64_t steps) const;  // of a step
  void go(double now, std::int64_t other_tokens, std::int64_t steps, double step_ns);
  // Requests that it has to do with.
  std::int64_t load() const { return running() + waiting(); }
  std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  std::int64_t used_blocks() const { return cache_.used(); }

 private:
  using Slot = std::uint32_t;  // of slots_
  struct Sequence {
    std::uint32_t request = 0;
    std::int64_t target = 0;    // tokens in the cache before the next token can be told
    std::int64_t computed = 0;  // of them and of those told since
    std::int64_t ahead = 0;     // of its prompt, in steps that are under way: stages take piece after piece
    std::int64_t generated = 0, output = 1;
    std::int64_t blocks = 0;  // its own
    std::size_t pieces = 0;   // of its prefix, in use
    double last_token = -1;
    bool in_flight = false, swapped = false, filled = false;
    bool decodes() const { return computed >= target; }
  };
  struct Part {  // of a step
    Slot slot;
    std::int64_t tokens;  // of a prompt; 0 = decodes
  };
  struct Batch {
    std::vector<Part> parts;
    StepShape shape;
    double begin = 0, end = 0;
    std::int64_t steps = 1;
  };
  enum class Blocked : std::uint8_t { no, blocks, places };

  std::int64_t blocks_for(std::int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }
  bool grow(Sequence& s, std::int64_t tokens);  // blocks for so many tokens; false: there are not that many left
  void release(Sequence& s);
  void preempt(std::size_t place);  // of running_
  void add_prefill(Slot slot, std::int64_t tokens, Batch& batch);
  void add_decode(Slot slot, Batch& batch);
  void decode_running(std::int64_t most, Batch& batch);
  void prefill_running(std::int64_t budget, Batch& batch);
  void admit(std::int64_t budget, std::int64_t most, Batch& batch);
  Batch plan();
  std::int64_t steps_together(const Batch& batch, double now, double horizon) const;
  void run(Batch batch, double now, double step_ns);
  StepTime time_of(const StepShape& shape, std::int64_t steps) const;
  void complete(const Batch& batch, std::vector<Handoff>& handoffs);
  void told(Sequence& s, std::int64_t tokens, std::int64_t steps, const Batch& batch);
  void account(const Batch& batch, const StepTime& t, double extra);

  const StepCosts& costs_;
  const ServeJob& job_;
  const EngineFacts& engine_;
  const PrefixPieces& prefixes_;
  const ServeOptions& options_;
  std::uint32_t number_;
  bool prefill_only_;
  Simulation& out_;
  KvCache cache_;
  Random random_;
  std::int64_t block_size_;
  std::vector<Sequence> slots_;
  std::vector<Slot> free_, running_;  // running_: in the order of admission
  std::deque<Sequence> waiting_;
  std::deque<Batch> flying_;
  Batch planned_;
  std::vector<double> stage_free_;
  double next_ = kNever, swap_ns_ = 0, idle_since_ = 0;
  Blocked blocked_ = Blocked::no;
};

}  // namespace orrery
