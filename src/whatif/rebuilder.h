// How rebuild() works inside: the traced job's pieces by what they are, the new job's program rank by rank, and its
// nodes, emitted rank by rank until one waits for another. One file a stage: rebuild_plan.cc, rebuild_ranks.cc,
// rebuild_emit.cc, rebuild_meet.cc, rebuild.cc.
#pragma once
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "whatif/rebuild.h"

namespace orrery::rebuilding {

inline constexpr std::uint32_t kPending = 0x80000000u;  // a reference to a transfer that is not placed yet

// Bytes of a message; absurd sizes stay countable.
inline std::int64_t whole(double bytes) {
  return bytes < 1e15 ? std::llround(std::max(bytes, -1.0)) : 1'000'000'000'000'000;
}

inline std::string_view name_of_op(CommOp op) {
  switch (op) {
    case CommOp::all_reduce:
      return "allreduce";
    case CommOp::all_gather:
      return "_allgather_base";
    case CommOp::reduce_scatter:
      return "_reduce_scatter_base";
    case CommOp::broadcast:
      return "broadcast";
    default:
      return "send";
  }
}

// A piece of the traced job in its new place.
struct Use {
  std::uint32_t rank = 0, piece = 0;  // of the traced job
  std::int32_t slot = -1;             // exchanges: slot of the stage's schedule; passes: where they begin
  std::int32_t transfer = -1;         // overlapped exchanges: the only one of the slot that it carries
  std::int32_t part = 0;              // of the model
  std::int32_t step = 0;
  bool last_pass = false;      // backward of the part's last micro-batch: gradients are reduced
  bool without_tasks = false;  // its host work alone
  enum class Half : std::uint8_t { both, input, weight } half = Half::both;  // of the gradients
  bool tail = false;                                                         // what follows its last launch alone
  bool head = false;                                                         // what precedes its first launch alone
};

enum class Owner : std::uint8_t { all, experts };  // of gradients: whose replicas they are reduced over
inline constexpr std::array<Owner, 2> kOwners = {Owner::experts, Owner::all};  // the embedding's come last

struct Bucketing {
  bool overlapped = false;
  double size = 0;                                               // parameters at which a bucket is full
  std::vector<std::pair<std::uint32_t, std::uint32_t>> samples;  // rank, piece of the traced job
};

// Where a rank is in a piece.
struct Cursor {
  bool active = false;
  const Use* use = nullptr;
  std::uint32_t item = 0, from = 0, to = 0;
  std::uint32_t idle_from = 0, idle_to = 0;         // items whose host work is that of tasks that are left out
  std::uint32_t flush_before = kNone;               // item before which what is left of the gradients is reduced
  std::uint32_t flushed = 0;                        // rows of kOwners of which it was
  std::vector<std::uint32_t> refs;                  // by item: its node, or a pending transfer
  std::vector<std::vector<std::uint32_t>> carries;  // exchanges, by item: transfers of the slot
  std::vector<std::pair<std::uint32_t, std::uint32_t>> transfer_of;  // row of the traced job -> pending transfer
};

struct NewRank {
  std::int64_t t = 0, d = 0, stage = 0, number = 0;
  std::uint32_t column = 0, source = 0;  // of the traced job
  double slow = 1;                       // its GPU, whatever it is given to do
  std::vector<Use> uses;
  std::vector<std::uint32_t> lane;                       // by role
  std::vector<std::vector<std::uint32_t>> order, tasks;  // by role: nodes, and of them the tasks launched
  std::map<std::pair<int, std::uint32_t>, std::int64_t> calls;
  std::size_t use_at = 0;
  Cursor main, inserted;
  std::uint32_t blocked = kNone;
  Use bucket_use;
  double bucket_factor = 1, bucket_parameters = 0;
  std::array<double, 2> gathered = {};                    // by owner
  std::array<std::map<std::int32_t, double>, 2> reduced;  // by owner and part: parameters in buckets so far
  std::array<std::uint32_t, 2> buckets = {};
  struct Wait {
    std::uint32_t ref;
    EdgeKind kind;
    Ns lag;
  };
  std::map<std::uint32_t, std::vector<Wait>> waits;               // by role: of whatever comes next on it
  std::map<std::array<std::int64_t, 5>, std::uint32_t> received;  // overlapped: name of the transfer, step -> transfer
};
class Rebuilder {
 public:
  Rebuilder(const TraceSet& t, const GraphBuild& b, const Program& p, const JobShape& from, const JobShape& to,
            const Rates& r, const NetworkModel& n, const RebuildOptions& o)
      : traces(t),
        base(b),
        g(b.graph),
        c(b.communication),
        program(p),
        old(from),
        now(to),
        rates(r),
        net(n),
        options(o) {}
  Status run(Rebuilt& result);

 private:
  // ---- the traced job ----
  std::int64_t rank_number(const JobLayout& l, std::int64_t t, std::int64_t d, std::int64_t s) const;
  Status prepare();
  // Bits: sends to the next stage 1, receives from it 2, sends to the previous 4, receives from it 8.
  std::uint8_t mask_of(std::uint32_t r, std::uint32_t piece) const;
  // A kernel of sends and receives; a made one carries whatever there is.
  bool exchanges_by(const Item& item) const;
  std::uint8_t mask_of(const Item& item) const { return item.comm == kNone ? 15 : mask_of(c.rows[item.comm]); }
  // What a task is made to be that the traced job has nothing of.
  const MadeTask* invented(const Item& item) const;
  std::uint8_t mask_of(const CommRow& row) const;
  // In a ring of stages the peer does not tell the direction (of two stages it is the same both ways), the schedule
  // does: where a step has as many exchanges as the schedule says, the k-th is the k-th of that.
  void name_exchanges(std::uint32_t r, const std::vector<Slot>& slots);
  static std::int64_t stage_of(const JobLayout& l, std::int64_t rank) { return l.stage_of(rank); }
  static bool overlaps(const JobShape& shape) { return shape.overlap && shape.chunks > 1 && shape.layout.pp > 1; }
  static std::int64_t stage_stride(const JobLayout& l) { return l.stage_stride(); }
  static std::uint8_t bit_of(const Transfer& t);

  // ---- buckets ----
  // When a bucket is full: the least that one was closed with, but for the last of a pass, which takes what is left.
  // Megatron-LM's default (distributed_data_parallel_config: the larger of 40 million parameters and one million a
  // replica) where the traced buckets agree with it.
  void learn_buckets(Owner owner);
  Owner owner_of_bucket(std::uint32_t r, std::uint32_t piece) const;
  Bucketing& bucketing(Owner o) { return buckets[static_cast<std::size_t>(o)]; }
  const Bucketing& bucketing(Owner o) const { return buckets[static_cast<std::size_t>(o)]; }
  bool buckets_overlap() const { return buckets[0].overlapped || buckets[1].overlapped; }
  static bool backward(PieceKind kind);
  double bucket_parameters(std::uint32_t r, std::uint32_t piece) const;

  // ---- the new job's program ----
  struct Column {
    std::int64_t t, d;
    std::vector<std::uint32_t> rank;  // by stage: row of the traced job
  };
  struct PassPieces {
    std::map<std::int32_t, std::uint32_t> begin, end;  // by step
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, PieceKind, std::int32_t>, std::uint32_t> pass;
  };
  struct ExchangePiece {
    std::uint32_t rank, piece;
    std::uint8_t mask;
    std::int32_t stage;
  };
  // Replica by replica, each with the same tensor ranks: see keep_whole_replicas.
  const Column& column_for(std::int64_t t, std::int64_t d) const;
  // Of replicas of which some ranks have no trace, collectives met fewer partners than others': ranks put together of
  // both kinds would wait for each other. Kept are those with the same, the most, tensor ranks.
  void keep_whole_replicas();
  std::uint32_t pass_piece(std::uint32_t rank, std::int32_t step, std::int32_t chunk, std::int32_t micro_batch,
                           PieceKind kind, std::int32_t layer = -1) const;
  // Refuses what would take all memory, before anything is laid out.
  Status check_size();
  // Columns that grow by doubling would need half as much again.
  void reserve(double nodes) const;
  Status plan();
  bool last_backward(const Slot& slot) const;
  // The traced exchange to make one of: of the same column, carrying the same, best of the stage that is alike; the
  // k-th of those for the k-th such of the new rank, so that an unchanged job is put together as it was.
  const ExchangePiece* exchange_for(const Column& column, const Slot& slot, std::uint32_t source,
                                    std::map<std::uint8_t, std::int32_t>& number);
  // Buckets are those of a rank's own pipeline, whose rows are in its trace.
  Status check_buckets() const;

  // ---- traces of the new ranks: names and lanes of a column's ranks together ----
  void merge_traces();
  // The host work of what is made is like that of one rank, of whichever pipeline: its names are wanted here too.
  void add_foreign(RankTrace& merged, const Column& column);
  // Row of a column's merged trace that a node of the traced job came from.
  OpId source_in(std::uint32_t column, std::uint32_t n) const;
  // Streams and names of what is made.
  void add_made(RankTrace& merged, const Column& column);
  // Streams of overlapped transfers, as torch and Megatron-LM have them: one for each peer, which both its sends and
  // its receives share; of two stages, where next and previous are one peer, one for the sends and one for the receives
  // (Megatron-LM takes another process group for one direction then).
  static constexpr std::uint32_t kExchangeStreams = 2;
  void add_exchange_streams(RankTrace& merged);
  // Row past those of Program::roles.
  std::uint32_t exchange_role(const Transfer& t) const;
  void make_ranks();

  // ---- emission ----
  struct NewRow {
    std::uint32_t row = 0;   // of the new Communication::rows
    std::uint32_t slot = 0;  // of `pending`
    std::uint32_t rank = 0;  // new rank
    std::uint32_t open = 0;  // meetings that are not complete
    std::uint32_t base_node = 0;
    Ns duration = 0;
    bool waits = true;
    std::vector<std::uint32_t> meetings;
  };
  struct NewMeeting {
    std::uint32_t expected = 0;
    std::vector<std::uint32_t> rows;  // of new_rows
    std::uint32_t node = kNone;
    std::uint32_t group = kNone;
    CommOp op = CommOp::other;
    std::uint32_t member_base = kNone;  // a row of the traced job
  };
  struct NewEdge {
    std::uint32_t from;
    EdgeKind kind;
    Ns lag;
  };
  Status emit();
  std::uint32_t resolve(std::uint32_t ref) const {  // kPending when not placed yet
    if (ref == kNone || (ref & kPending) == 0) return ref;
    const std::uint32_t node = pending[ref & ~kPending];
    return node == kNone ? ref : node;
  }
  static bool open(std::uint32_t ref) { return ref != kNone && (ref & kPending) != 0; }
  // Runs a rank's program until it is at its end or waits for another rank.
  void go_on(std::uint32_t r);
  // A pass begins with waiting for what it works on.
  void wait_for_input(NewRank& rank, const Use& use);
  void add_wait(NewRank& rank, std::uint32_t transfer) const;
  void after_exchange(NewRank& rank);
  void start(NewRank& rank, Cursor& at, const Use& use);
  // Items from the begin of the operators round the first task to the end of those round the last; of none the empty
  // span at the end, or at the begin for the last.
  std::pair<std::uint32_t, std::uint32_t> span_of_tasks(const PieceItems& items) const;
  // Which kernel of an exchange carries what.
  void assign_transfers(NewRank& rank, Cursor& at, const PieceItems& items);
  // A send and a receive as kernels of their own on one stream: both stages must have the same order, which one that
  // was modelled on a stage elsewhere need not have. Megatron-LM's: of two neighbours the even one sends first.
  void order_between_stages(const NewRank& rank, const Slot& slot, Cursor& at, const PieceItems& items) const;
  // Whether transfers that share a stream are issued in the schedule's order: both peers must have the same.
  bool in_order_of_streams(const Slot& slot, const Cursor& at) const;
  // False: waits for another rank, or an inserted piece comes first.
  bool run_piece(std::uint32_t r, Cursor& at);
  bool of_half(const Use& use, std::uint32_t item) const;
  // What a gradient of weights waited for, the work behind it on its stream waited for as well.
  void pass_waits_on(NewRank& rank, const Cursor& at, const Item& item) const;
  // What an edge of a piece leads from; kNone = nothing is there.
  static std::uint32_t source_of(const NewRank& rank, const Cursor& at, const ItemEdge& edge);
  bool insert_bucket(NewRank& rank, double parameters, Owner owner);
  double part_parameters(std::int32_t part, Owner owner) const;
  double rank_parameters(const JobShape& shape, std::int64_t stage) const;
  // How a rank's parameters compare with those of the traced rank whose step it takes.
  double parameter_factor(const NewRank& rank, std::uint32_t base_rank, Owner owner = Owner::all) const;
  // The same of the work of an update, which of a sharded optimizer is a replica's share.
  double update_factor(const NewRank& rank, std::uint32_t base_rank) const;
  bool place(std::uint32_t r, Cursor& at, const PieceItems& items, std::uint32_t i);
  // A call that returns when tasks have ended; begin and end.
  bool blocks_for_tasks(const PieceItems& items, std::uint32_t i) const;

  // ---- overlapped transfers ----
  // A transfer whose call is made, but whose stream is busy with one that is not placed yet. The thread goes on.
  struct Issued {
    std::uint32_t rank = 0, role = 0, slot = 0;
    const Use* use = nullptr;
    const Item* item = nullptr;
    Transfer transfer;
    std::vector<NewEdge> edges;
  };
  bool issue(std::uint32_t r, Cursor& at, const Item& item, const std::vector<std::uint32_t>& carried);
  // Of a transfer that the traced job has nothing of.
  CommRow made_row(const Item& item, const MadeTask& made) const;
  void place_transfer(const Issued& made, std::uint32_t before);
  bool block(NewRank& rank, std::uint32_t ref);
  std::int64_t members_of(GroupRole role) const;
  // A slow GPU stays where it was, whatever it is given to do.
  double slowness(const NewRank& rank) const;
  std::uint32_t add_node(std::uint32_t r, const Item& item, Ns took, std::uint8_t at_begin);
  void mark_steps(std::uint32_t r, std::uint32_t base_node, std::uint32_t node, const Use& use);

  // ---- meetings ----
  using Key = std::array<std::int64_t, 8>;
  std::uint32_t meeting(const Key& key, std::uint32_t expected, std::uint32_t group, CommOp op);
  std::uint32_t group_of(const NewRank& rank, GroupRole role, std::uint32_t base_group);
  void meet(std::uint32_t r, Cursor& at, const Item& item, std::uint32_t i, std::uint32_t node, GroupRole role,
            const std::vector<std::uint32_t>* carried, PieceKind kind);
  double made_elements(const NewRank& rank, const MadeTask& made) const;
  // As meet(), of a collective or an exchange that the traced job has nothing of.
  void meet_made(std::uint32_t r, Cursor& at, const Item& item, std::uint32_t i, std::uint32_t node,
                 const MadeTask& made, const std::vector<std::uint32_t>* carried);
  // The group of a role that a rank is in.
  std::pair<std::int64_t, std::int64_t> group_place(const NewRank& rank, GroupRole role) const;
  void arrive(std::uint32_t m, std::uint32_t id);
  // The second half of a kernel: after its meetings, or (it waits for nobody) after its arrival.
  void finish_row(std::uint32_t id, std::uint32_t arrival);
  std::uint32_t simulated_members(const NewRank& rank, GroupRole role) const;

  // ---- sizes of messages ----
  std::uint32_t part_group(const CommRow& row) const;
  // Of one send or receive.
  double exchange_bytes(const CommRow& row) const;
  double exchange_ns(const JobLayout& l, std::int64_t a, std::int64_t b, double bytes) const;
  double traced_exchange_ns(const CommRow& row) const;
  // Of collectives that are not of gradients: activations, or one number a token.
  double message_factor(const CommRow& row, GroupRole role, PieceKind kind, std::int64_t stage) const;
  // Under sequence parallelism gradients of norms, and of other vectors of the hidden size, are summed over the tensor
  // ranks when a step ends: so many of each layer, and those of the first and the last stage beside its layers.
  double vectors_of(const CommRow& row) const;  // 0: it is none of these sums
  void learn_vectors();

  // ---- after ----
  // Without step markers the whole run is one step: from the first that is done to the last, as in build_graph.
  void mark_whole_runs();
  void finish();
  const TraceSet& traces;
  const GraphBuild& base;
  const ExecGraph& g;
  const Communication& c;
  const Program& program;
  const JobShape &old, &now;
  const Rates& rates;
  const NetworkModel& net;
  const RebuildOptions& options;
  Rebuilt* out = nullptr;
  std::vector<Column> columns;
  std::size_t columns_each = 1;  // of one replica
  std::vector<PassPieces> pass_pieces;
  std::vector<std::int64_t> traced_stage;  // by rank of the traced job
  std::vector<std::uint8_t> ends_step;     // by node of the traced job: 1 = begin or end of a step
  std::vector<ExchangePiece> exchanges;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint8_t>, std::vector<const ExchangePiece*>> fitting;
  std::map<std::uint32_t, std::uint8_t> named_mask;           // by row of the traced job
  std::map<std::uint32_t, std::vector<Issued>> issued_after;  // by pending transfer
  std::array<Bucketing, 2> buckets;                           // by owner
  mutable std::map<std::tuple<GroupRole, std::int64_t, std::int64_t>, std::uint32_t>
      members_run;  // of groups of experts
  double gradient_bytes = 4;
  std::vector<double> stage_vectors;  // by stage of the traced job
  double layer_vectors = 0, first_vectors = 0, last_vectors = 0;
  std::int32_t base_steps = 0;
  Schedule schedule;
  std::int64_t tensor = 1, replicas = 1;
  std::uint32_t main_role = 0;  // the thread that runs the schedule
  std::vector<NewRank> ranks;
  std::vector<std::vector<std::uint32_t>> made_lane,
      made_op;                           // by column: by role, the lane added; by made task, its name
  std::uint32_t made_name = 0;           // of Communication::op_names: the first made task's
  std::vector<std::uint32_t> column_of;  // by rank of the traced job; kNone = its pipeline is not whole
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> foreign;  // column, node of another: row
  std::vector<std::uint32_t> op_offset, lane_offset;  // by rank of the traced job, in its column's merged trace
  std::vector<std::uint32_t> pending;                 // by slot: the node of a transfer, kNone = not placed
  std::vector<NewRow> new_rows;
  std::vector<NewMeeting> new_meetings;
  std::map<Key, std::uint32_t> meeting_of;
  std::map<std::tuple<int, std::string, std::int64_t, std::int64_t>, std::uint32_t> group_row;
  std::vector<NewEdge> edges;
  std::vector<std::uint32_t> woken;
};

}  // namespace orrery::rebuilding
