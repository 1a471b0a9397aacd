// Changes of a job's program before it is put together anew: items taken out, blocks of items put in, traced
// collectives made others. What is put in is modelled on the job's other collectives.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "whatif/job_model.h"

namespace orrery {

// Host work and waits round a collective, to be put elsewhere.
struct Sample {
  std::vector<Item> launch;  // host work up to its end; the kernel is launched by `call`
  std::size_t call = 0;
  std::vector<Item> wait;  // host work of waiting for it
  Ns launch_lag = 6'000, event_lag = 1'500, order_lag = 0, wait_lag = 1'500;
  std::uint32_t kernel = kNone;  // a node
  Ns took = 0;                   // host work of all
};

struct BlockItem {
  Item item;
  std::vector<ItemEdge> edges;
};
struct ItemBlock {
  std::uint32_t before = 0;  // item of the piece
  std::vector<BlockItem> items;
};
struct PieceEdit {
  std::vector<std::uint8_t> removed;                     // by item; empty = none
  std::vector<ItemBlock> blocks;                         // those before one item in their order
  std::vector<std::pair<std::uint32_t, ItemEdge>> more;  // edges of an item
};

class ProgramEditor {
 public:
  ProgramEditor(const TraceSet& t, const GraphBuild& b, const JobModel& j, std::vector<std::string>& m);

  // Items of a piece that belong to a collective: host work of its launch and of the waiting for it.
  struct Span {
    std::uint32_t call = kNone;  // the item that leads up to its launch
    std::vector<std::uint32_t> launch, wait;
  };

  // ---- looking at the traced job ----
  const Item& item_at(std::uint32_t r, std::uint32_t piece, std::uint32_t i) const;
  bool is_host(const Item& item) const;
  std::string_view name(std::uint32_t node) const;
  GroupRole role_of(const Item& item) const;
  CommOp op_of(const Item& item) const;
  double bytes_of(const Item& item) const;
  bool communicates(const Item& item) const;
  Span span_of(std::uint32_t r, std::uint32_t piece, std::uint32_t at) const;
  // The median of the traced collectives by host work, of those that are waited for at once where there are any.
  void take_sample();
  Ns time_of(const Item& item) const;

  // ---- what is put in ----
  std::uint32_t role_row(LaneRole::Kind kind, std::uint8_t role, std::uint8_t ordinal = 0);
  std::uint32_t compute();
  std::uint32_t thread(std::uint8_t ordinal);
  std::uint32_t lane_of(GroupRole role);
  std::uint32_t add_made(MadeTask m);
  static std::string kernel_name(CommOp op);
  std::uint32_t collective(GroupRole role, CommOp op, MadeTask::Size size, const Term& elements, double bytes);
  static Item host_item(const Item& from, std::uint32_t lane, std::uint32_t queue);
  // Host work that launches a made task, and the task.
  void launch_made(ItemBlock& block, std::uint32_t made, std::uint32_t host);
  // A kernel that is launched by a call alone.
  void launch_kernel(ItemBlock& block, std::uint32_t made, std::uint32_t host);
  // The compute stream waits for what is on `lane`.
  void wait_for(ItemBlock& block, std::uint32_t lane, std::uint32_t host);
  PieceEdit& edit(std::uint32_t r, std::uint32_t piece);
  ItemBlock& block_before(std::uint32_t r, std::uint32_t piece, std::uint32_t item);
  // A collective that is waited for at once.
  void put(std::uint32_t r, std::uint32_t piece, std::uint32_t before, std::uint32_t made, std::uint32_t host);
  void remove(std::uint32_t r, std::uint32_t piece, std::uint32_t at);
  void each_collective(const std::function<void(std::uint32_t, std::uint32_t, std::uint32_t)>& f);
  void remove_scaling(std::uint32_t r, std::uint32_t piece, std::uint32_t at);
  void drop(GroupRole role);
  void replace(std::uint32_t r, std::uint32_t piece, std::uint32_t i, CommOp op, GroupRole role);

  // ---- places ----
  std::uint32_t call_of(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const;
  // The item before which something stands right behind the launch of `task`.
  std::uint32_t behind(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const;
  std::uint32_t ahead(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const;
  std::uint32_t host_of(std::uint32_t r, std::uint32_t piece, std::uint32_t task);
  void add_piece(std::uint32_t r, const Piece& piece, ItemBlock block);
  void each_pass_piece(const std::function<void(std::uint32_t, std::uint32_t, PieceKind)>& f);
  void each_end(const std::function<void(std::uint32_t, std::uint32_t)>& f);

  // ---- the program anew ----
  void rewrite();
  // Adds to what is modelled.
  void say(const std::string& what);

  const TraceSet& traces;
  const ExecGraph& g;
  const Communication& c;
  const JobModel& job;
  const JobShape& old;
  std::vector<std::string>& modelled;
  Program p;
  std::vector<std::vector<PieceEdit>> edits;  // by rank and piece
  Sample sample;

 private:
  bool assumed = false;  // the sample
  Ns assumed_us = 0;
};

}  // namespace orrery
