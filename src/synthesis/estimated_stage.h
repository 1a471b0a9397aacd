// One rank of an estimated job, for its stage: what the estimate's step graph has as blocks becomes operators, launches
// and collectives one by one, with the estimate's times.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "estimate/step_graph.h"
#include "synthesis/communicator.h"
#include "synthesis/estimated_groups.h"

namespace orrery::synth {

// The operators of a job's layers; dense layers and those with experts are of one kind each.
struct JobOperators {
  JobOperators(const EstimateJob& job, const JobCosts& costs);
  const LayerWork& layer(std::int64_t l) const { return l < dense_layers ? dense : expert; }
  LayerWork dense, expert, embedding, head;
  std::int64_t dense_layers = 0;
};

struct EstimatedStep {
  const EstimateJob& job;
  const JobCosts& costs;
  const std::vector<StageWork>& stages;
  const StepGraph& graph;
  const JobOperators& operators;
};

class StageRecorder {
 public:
  StageRecorder(const EstimatedStep& step, std::uint32_t stage, Recorder& rec);
  void record(std::int64_t number);  // one step

 private:
  enum Direction : std::uint8_t { send_next, receive_previous, send_previous, receive_next, kDirections };
  struct Span {  // a pass
    StepPhase phase = StepPhase::forward;
    bool open = false;
  };
  struct TapeEntry {
    Part part;
    OpId op;
    std::int64_t sequence;
  };
  using Tape = std::vector<TapeEntry>;

  void act(const Act& a);
  void begin_step(double ns);
  void end_step();
  void begin_pass(const Act& a);
  void end_pass();
  void chain(const Act& a);
  bool updates_in_backward(const Block* block) const;
  void wait_before(NodeId node);
  void bundle(const Bundle& b, StepPhase phase);
  void layer(std::int64_t l, StepPhase phase);
  void operations(const std::vector<Operation>& list, bool backward, std::string_view owner);
  void operation(const Operation& o, bool backward, bool first);
  void whole(const Act& a);
  OpId shaped(const Operation& o, OpId op, bool backward);
  Event communicate(const TransferShape& shape, double ns, const Event* after);
  void read_back(double tail_ns);
  void transfer(const Act& a);
  void post(const Act& a);
  void settle();
  void norm(const Act& a);
  void hook(double ns);
  void spend(double ns, OpKind kind, std::string_view name);
  Communicator& group(GroupKind kind);
  Event after_of(NodeId node, bool& all) const;
  TaskSpec task(std::string_view name, double ns) const;

  const EstimatedStep& step_;
  const EstimateJob& job_;
  std::uint32_t stage_;
  std::int64_t rank_, number_ = 0;
  Recorder& rec_;
  HostThread main_, autograd_;
  HostThread* thread_ = &main_;
  std::uint32_t compute_ = 0, copies_ = 0, data_ = 0;
  std::map<GroupKind, Communicator> groups_;
  std::vector<Communicator> peers_;  // by Direction; one where sends and receives are batched
  CommContext comm_;
  std::vector<std::uint8_t> awaited_;                // by node: a transfer waits for it
  std::unordered_map<std::uint32_t, Event> done_;    // by node
  std::unordered_map<std::uint32_t, Event> posted_;  // by what is carried
  std::vector<Act> batch_;
  Span pass_;
  double owed_ = 0;  // host time of what the estimate has none for, taken from the next operators
  NodeId last_chain_ = kNoNode;
  double slower_ = 1;  // kernels of the chain, by transfers beside it
  std::int64_t sequence_ = 9'000;
  std::vector<std::vector<Tape>> tapes_;  // by chunk, of micro-batches whose backward pass is to come
  Tape tape_;                             // of the pass that runs
  std::optional<std::size_t> chunk_;      // ... and its chunk, once known
};

}  // namespace orrery::synth
