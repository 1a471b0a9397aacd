#include "whatif/collective_edits.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text_match.h"
#include "whatif/operators.h"
#include "whatif/program_editor.h"

namespace orrery {
namespace {

// Each send or receive that is collected before their common launch.
constexpr Ns kSendWork = 20'000;
constexpr Ns kSyncLag = 1'500;

// What a matrix product is to tensor parallelism.
struct Product {
  enum class Side : std::uint8_t { none, column, row } side = Side::none;
  enum class Use : std::uint8_t { output, input_gradient, weight_gradient } use = Use::output;
};

class Editor : public ProgramEditor {
 public:
  Editor(const TraceSet& t, const GraphBuild& b, const JobModel& j, const JobShape& to, std::vector<std::string>& m,
         const CollectiveOptions& o)
      : ProgramEditor(t, b, j, m), now(to), options(o) {}

  Result<Program> run() {
    const bool tensor = now.layout.tp > 1, data = now.layout.dp > 1, stages = now.layout.pp > 1;
    const bool split = now.dims.sequence_parallel && tensor,
               was_split = old.dims.sequence_parallel && old.layout.tp > 1;
    if (!tensor && old.layout.tp > 1) drop(GroupRole::tensor);
    if (!stages && old.layout.pp > 1) drop(GroupRole::embedding);
    if (!data && old.layout.dp > 1) drop_reductions(GroupRole::data);
    if (tensor && old.layout.tp == 1) {
      if (Status s = add_tensor(split); !s) return tl::unexpected(s.error());
    } else if (split && !was_split) {
      if (Status s = split_by_sequence(); !s) return tl::unexpected(s.error());
    } else if (was_split && tensor && !split) {
      join_sequence();
    }
    const bool copies = own_experts() && now.layout.expert_replicas() > 1;
    if (own_experts() && old.layout.expert_replicas() > 1 && !copies) drop_reductions(GroupRole::expert_data);
    if (copies && old.layout.expert_replicas() == 1) {
      add_expert_data();
      if (now.layout.distributed_optimizer) gather_parameters(GroupRole::expert_data);
    }
    if (data && old.layout.dp == 1) {
      add_data();
      if (now.layout.distributed_optimizer) gather_parameters(GroupRole::data);
    } else if (data && now.layout.distributed_optimizer != old.layout.distributed_optimizer) {
      shard_optimizer(now.layout.distributed_optimizer);
      if (copies && old.layout.expert_replicas() > 1)
        shard_optimizer(now.layout.distributed_optimizer, GroupRole::expert_data);
    }
    if (stages && old.layout.pp == 1) add_stages();
    change_norm();
    rewrite();
    return std::move(p);
  }

 private:
  Product product_of(const Item& item, bool backward) const {
    Product out;
    if (item.made != kNone || item.node >= job.sample_of.size() || job.sample_of[item.node] == kNone) return out;
    const Work& w = job.work[job.sample_of[item.node]];
    if (w.kind != WorkKind::gemm || w.parameters || w.batch != Term{}) return out;
    const auto divided = [](const Term& t) { return t.seq == 0 && t.tp < 0; };
    if (w.k.seq > 0) {
      out.use = Product::Use::weight_gradient;
      return out;
    }
    if (divided(w.k)) {
      out.side = backward ? Product::Side::column : Product::Side::row;
    } else if (divided(w.m) || divided(w.n)) {
      out.side = backward ? Product::Side::row : Product::Side::column;
    } else {
      return out;
    }
    out.use = backward ? Product::Use::input_gradient : Product::Use::output;
    return out;
  }

  struct Spot {
    Product product;
    std::uint32_t item;
  };
  // The linear layers of a piece in their order. What is recomputed in a backward pass is forward: all before the last
  // product ahead of the first weight's gradient.
  std::vector<Spot> products_of(std::uint32_t r, std::uint32_t piece) const {
    const PieceKind kind = p.anatomy.ranks[r].pieces[piece].kind;
    const bool backward =
        kind == PieceKind::backward_begin || kind == PieceKind::backward_layer || kind == PieceKind::backward_end;
    std::vector<std::uint32_t> all;
    std::size_t first = SIZE_MAX;
    for (std::uint32_t i = 0; i < p.pieces[r][piece].count; ++i) {
      const Item& x = item_at(r, piece, i);
      if (is_host(x) || x.marks) continue;
      const Product q = product_of(x, backward);
      if (q.side == Product::Side::none && q.use != Product::Use::weight_gradient) continue;
      if (q.use == Product::Use::weight_gradient && first == SIZE_MAX) first = all.size();
      all.push_back(i);
    }
    const std::size_t again = !backward || first == SIZE_MAX || first == 0 ? 0 : first - 1;
    std::vector<Spot> out;
    for (std::size_t k = 0; k < all.size(); ++k)
      out.push_back({product_of(item_at(r, piece, all[k]), backward && k >= again), all[k]});
    return out;
  }

  Term whole() const {  // an activation
    Term t;
    t.seq = t.mbs = t.hidden = 1;
    return t;
  }
  double element_bytes() const { return job.shape.dtype_bytes > 0 ? static_cast<double>(job.shape.dtype_bytes) : 2; }

  // Where two products have no other between them but weights' gradients, they share their input: q, k and v.
  static bool shares_input(const std::vector<Spot>& spots, std::size_t k, int step) {
    for (std::size_t x = k; step > 0 ? ++x < spots.size() : x-- > 0;) {
      if (spots[x].product.use == Product::Use::weight_gradient) continue;
      return spots[x].product.side == Product::Side::column && spots[x].product.use == spots[k].product.use;
    }
    return false;
  }
  std::size_t weight_after(const std::vector<Spot>& spots, std::size_t k) const {
    return k + 1 < spots.size() && spots[k + 1].product.use == Product::Use::weight_gradient ? k + 1 : SIZE_MAX;
  }
  // Behind a product and what adds up its parts.
  std::uint32_t behind_product(std::uint32_t r, std::uint32_t piece, std::uint32_t task) const {
    for (std::uint32_t i = task + 1; i < p.pieces[r][piece].count; ++i) {
      const Item& x = item_at(r, piece, i);
      if (is_host(x) || x.marks) continue;
      if (x.lane == item_at(r, piece, task).lane && is_split_reduction(name(x.node))) return behind(r, piece, i);
      break;
    }
    return behind(r, piece, task);
  }

  // ---- tensor parallelism ----

  // Megatron-LM's f and g: sums after the products that are split by row, and of the input's gradients of those that
  // are split by column; there while the weight's gradient is computed.
  Status add_tensor(bool split) {
    const double bytes = element_bytes();
    const std::uint32_t sum = collective(GroupRole::tensor, split ? CommOp::reduce_scatter : CommOp::all_reduce,
                                         MadeTask::Size::term, whole(), bytes);
    const std::uint32_t gather =
        collective(GroupRole::tensor, CommOp::all_gather, MadeTask::Size::term, whole(), bytes);
    std::size_t columns = 0;
    each_pass_piece([&](std::uint32_t r, std::uint32_t k, PieceKind kind) {
      const std::vector<Spot> spots = products_of(r, k);
      for (std::size_t s = 0; s < spots.size(); ++s) {
        const Product& q = spots[s].product;
        const std::uint32_t task = spots[s].item, host = host_of(r, k, task);
        if (q.side == Product::Side::column) ++columns;
        if (q.use == Product::Use::output && q.side == Product::Side::row)
          put(r, k, behind_product(r, k, task), sum, host);
        if (q.use == Product::Use::input_gradient && q.side == Product::Side::column && !shares_input(spots, s, 1)) {
          launch_made(block_before(r, k, behind_product(r, k, task)), sum, host);
          const std::size_t weight = weight_after(spots, s);
          const std::uint32_t until = weight == SIZE_MAX ? task : spots[weight].item;
          wait_for(block_before(r, k, behind_product(r, k, until)), lane_of(GroupRole::tensor), host);
        }
        if (split) add_gathers(r, k, spots, s, gather);
      }
      if (split) gather_for_embedding(r, k, kind, gather);
      if (kind == PieceKind::forward_begin || kind == PieceKind::forward_end) add_vocabulary(r, k, kind, sum);
    });
    if (columns == 0)
      return fail(
          "the linear layers are not recognised in the trace, so the collectives of tensor parallelism have no place",
          "", "give the model's dimensions with --layout");
    if (split) add_norm_sum();
    say("tensor-parallel collectives");
    return {};
  }

  // Sequence parallelism: inputs are gathered before the products that are split by column, and again for the gradients
  // of their weights; gradients of outputs before those that are split by row.
  void add_gathers(std::uint32_t r, std::uint32_t k, const std::vector<Spot>& spots, std::size_t s,
                   std::uint32_t gather) {
    const Product& q = spots[s].product;
    const std::uint32_t task = spots[s].item, host = host_of(r, k, task);
    if (q.use == Product::Use::output) {
      if (q.side == Product::Side::column && !shares_input(spots, s, -1)) put(r, k, ahead(r, k, task), gather, host);
      return;
    }
    if (q.use != Product::Use::input_gradient) return;
    if (q.side == Product::Side::row) {
      put(r, k, ahead(r, k, task), gather, host);
    } else if (!shares_input(spots, s, -1)) {
      launch_made(block_before(r, k, ahead(r, k, task)), gather, host);
      ItemBlock& wait = block_before(r, k, behind_product(r, k, task));
      wait_for(wait, lane_of(GroupRole::tensor), host);
      // it is waited for before the sum is launched
      auto& blocks = edit(r, k).blocks;
      for (std::size_t b = 0; b + 1 < blocks.size(); ++b)
        if (blocks[b].before == blocks.back().before) {
          std::rotate(blocks.begin() + static_cast<std::ptrdiff_t>(b), blocks.end() - 1, blocks.end());
          break;
        }
    }
  }

  // The embedding's gradient needs all tokens.
  void gather_for_embedding(std::uint32_t r, std::uint32_t k, PieceKind kind, std::uint32_t gather) {
    if (kind != PieceKind::backward_end || p.stage[r] != 0) return;
    for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
      const Item& x = item_at(r, k, i);
      if (is_host(x) || x.marks || x.comm != kNone) continue;
      const std::string_view kernel = name(x.node);
      if (!has(kernel, "compute_grad_weight") && !has(kernel, "embedding") && !has(kernel, "sum_and_scatter")) continue;
      return put(r, k, ahead(r, k, i), gather, host_of(r, k, i));
    }
  }

  // Copies of a micro-batch from the host.
  std::vector<std::uint32_t> loads_of(std::uint32_t r, std::uint32_t k) const {
    std::vector<std::uint32_t> out;
    for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
      const Item& x = item_at(r, k, i);
      if (!x.marks && g.kind[x.node] == NodeKind::memcpy && has(name(x.node), "HtoD")) out.push_back(i);
    }
    return out;
  }
  // The most of any pass and rank of the stage: all of them must take part.
  std::size_t most_loads(std::uint32_t rank) {
    const std::int64_t stage = p.stage[rank];
    const auto [it, fresh] = loads.try_emplace(stage, 0);
    if (!fresh) return it->second;
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k)
        if (p.stage[r] == stage && p.anatomy.ranks[r].pieces[k].kind == PieceKind::forward_begin)
          it->second = std::max(it->second, loads_of(r, k).size());
    return it->second;
  }
  // The embedding's sum; the loss's three numbers a token (largest logit, the target's, sum of exponentials).
  void add_vocabulary(std::uint32_t r, std::uint32_t k, PieceKind kind, std::uint32_t sum) {
    const PieceItems& items = p.pieces[r][k];
    if (kind == PieceKind::forward_begin) {
      // what one rank has loaded goes to all that share the layers
      Term numbers;
      numbers.seq = numbers.mbs = 1;
      const std::uint32_t spread = collective(GroupRole::tensor, CommOp::broadcast, MadeTask::Size::term, numbers, 8);
      std::uint32_t behind_load = 0;
      for (const std::uint32_t i : loads_of(r, k)) behind_load = behind(r, k, i);
      for (std::size_t n = 0; options.broadcast_batch && n < most_loads(r); ++n)
        put(r, k, behind_load, spread, thread(0));
      std::uint32_t table = kNone;
      for (std::uint32_t i = 0; i < items.count && table == kNone; ++i) {
        const Item& x = item_at(r, k, i);
        if (!is_host(x) && !x.marks && x.node < job.sample_of.size() && job.sample_of[x.node] != kNone &&
            job.work[job.sample_of[x.node]].m == whole())
          table = i;
      }
      if (table != kNone) put(r, k, behind(r, k, table), sum, host_of(r, k, table));
      return;
    }
    Term tokens;
    tokens.seq = tokens.mbs = 1;
    const std::uint32_t number = collective(GroupRole::tensor, CommOp::all_reduce, MadeTask::Size::term, tokens, 4);
    std::vector<std::uint32_t> logits;  // kernels over them, after their product
    bool after = false;
    for (std::uint32_t i = 0; i < items.count; ++i) {
      const Item& x = item_at(r, k, i);
      if (is_host(x) || x.marks || x.node >= job.sample_of.size() || job.sample_of[x.node] == kNone) continue;
      const Work& w = job.work[job.sample_of[x.node]];
      if (w.kind == WorkKind::gemm) after = true;
      if (after && w.kind == WorkKind::memory && w.m.vocab == 1) logits.push_back(i);
    }
    if (logits.empty()) return;
    const auto sums = static_cast<std::size_t>(std::max(0, options.loss_sums));
    for (std::size_t n = 1; n <= sums; ++n) {
      const std::uint32_t at = logits[std::min(logits.size() - 1, logits.size() * n / (sums + 1))];
      put(r, k, behind(r, k, at), number, host_of(r, k, at));
    }
  }

  // Gradients of norms, which every rank has of its own tokens only.
  void add_norm_sum() {
    Term t;
    t.hidden = 1;
    t.factor = 4.0 * static_cast<double>(now.layout.layers) / static_cast<double>(now.layout.pp);
    const std::uint32_t made = collective(GroupRole::tensor, CommOp::all_reduce, MadeTask::Size::term, t, 4);
    each_end([&](std::uint32_t r, std::uint32_t k) { put(r, k, first_update(r, k), made, thread(0)); });
  }

  bool is_activation(double bytes) const { return std::abs(bytes - whole().value(old.dims) * element_bytes()) < 0.5; }

  Status split_by_sequence() {
    std::size_t sums = 0;
    each_collective([&](std::uint32_t r, std::uint32_t k, std::uint32_t i) {
      const Item& x = item_at(r, k, i);
      if (role_of(x) != GroupRole::tensor || op_of(x) != CommOp::all_reduce || !is_activation(bytes_of(x))) return;
      replace(r, k, i, CommOp::reduce_scatter, GroupRole::tensor);
      ++sums;
    });
    const std::uint32_t gather =
        collective(GroupRole::tensor, CommOp::all_gather, MadeTask::Size::term, whole(), element_bytes());
    std::size_t columns = 0;
    each_pass_piece([&](std::uint32_t r, std::uint32_t k, PieceKind kind) {
      const std::vector<Spot> spots = products_of(r, k);
      for (std::size_t s = 0; s < spots.size(); ++s) {
        if (spots[s].product.side == Product::Side::column) ++columns;
        add_gathers(r, k, spots, s, gather);
      }
      gather_for_embedding(r, k, kind, gather);
    });
    if (sums == 0 || columns == 0)
      return fail(
          "the sums of tensor parallelism are not recognised in the trace, so sequence parallelism cannot be put in");
    add_norm_sum();
    say("gathers of sequence parallelism");
    return {};
  }

  void join_sequence() {
    each_collective([&](std::uint32_t r, std::uint32_t k, std::uint32_t i) {
      const Item& x = item_at(r, k, i);
      if (role_of(x) != GroupRole::tensor) return;
      const PieceKind kind = p.anatomy.ranks[r].pieces[k].kind;
      if (op_of(x) == CommOp::reduce_scatter) {
        replace(r, k, i, CommOp::all_reduce, GroupRole::tensor);
      } else if (op_of(x) == CommOp::all_gather || (kind == PieceKind::step_end && bytes_of(x) > 64)) {
        remove(r, k, i);
      }
    });
  }

  // ---- data parallelism ----

  // The item before which the first kernel over parameters is launched, failing that the first kernel.
  std::uint32_t first_update(std::uint32_t r, std::uint32_t k) const {
    std::uint32_t any = kNone;
    for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
      const Item& x = item_at(r, k, i);
      if (is_host(x) || x.marks || x.comm != kNone) continue;
      if (any == kNone) any = ahead(r, k, i);
      if (x.node < job.parameter.size() && job.parameter[x.node] != 0) return ahead(r, k, i);
    }
    return any == kNone ? 0 : any;
  }
  std::uint32_t after_update(std::uint32_t r, std::uint32_t k) const {
    std::uint32_t last = kNone;
    for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
      const Item& x = item_at(r, k, i);
      if (!is_host(x) && !x.marks && x.node < job.parameter.size() && job.parameter[x.node] != 0) last = i;
    }
    return last == kNone ? p.pieces[r][k].count : behind(r, k, last);
  }

  double stage_parameters_of(const JobShape& s, std::int64_t stage) const {
    return stage_parameters(s.dims, static_cast<double>(s.layout.layers) / static_cast<double>(s.layout.pp), stage == 0,
                            stage == s.layout.pp - 1 && !(stage == 0 && s.tied_embedding), s.gated_mlp, s.positions);
  }

  // Whether gradients of experts are reduced over replicas of their own.
  bool own_experts() const { return old.expert_tp > 0 && old.layout.ep > 1; }

  void drop_reductions(GroupRole role) {
    drop(role);
    for (std::uint32_t r = 0; r < p.anatomy.ranks.size(); ++r)
      for (std::uint32_t k = 0; k < p.anatomy.ranks[r].pieces.size(); ++k) {
        Piece& piece = p.anatomy.ranks[r].pieces[k];
        bool its = false;
        for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i)
          its = its || (communicates(item_at(r, k, i)) && role_of(item_at(r, k, i)) == role);
        if (piece.kind == PieceKind::bucket && its) piece.step = -1;
      }
  }

  void add_expert_data() {
    const std::uint32_t reduce = collective(
        GroupRole::expert_data, now.layout.distributed_optimizer ? CommOp::reduce_scatter : CommOp::all_reduce,
        MadeTask::Size::bucket, {}, 4);
    p.expert_bucket_parameters = std::max(40e6, 1e6 * static_cast<double>(now.layout.dp));
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r) {
      ItemBlock block;
      launch_made(block, reduce, thread(1));
      add_piece(r, {PieceKind::bucket, 0, 0, -1}, std::move(block));
    }
    each_end([&](std::uint32_t r, std::uint32_t k) {
      wait_for(block_before(r, k, first_update(r, k)), lane_of(GroupRole::expert_data), thread(0));
    });
    say("reductions of experts' gradients");
  }

  // Buckets of gradients, reduced while backward goes on, as Megatron-LM has them (overlap_grad_reduce): scaled by the
  // number of replicas, then reduced; waited for at the end.
  void add_data() {
    // reads and writes all gradients, which the zeroing of them writes
    double zeroing = 0, parameters = 0;
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r)
      for (std::uint32_t k = 0; k < p.pieces[r].size(); ++k) {
        if (p.anatomy.ranks[r].pieces[k].kind != PieceKind::step_begin) continue;
        parameters +=
            stage_parameters_of(old, p.stage[r]) +
            expert_parameters(old, static_cast<double>(old.layout.layers) / static_cast<double>(old.layout.pp));
        for (std::uint32_t i = 0; i < p.pieces[r][k].count; ++i) {
          const Item& x = item_at(r, k, i);
          if (!is_host(x) && x.node < job.parameter.size() && job.parameter[x.node] != 0)
            zeroing += static_cast<double>(g.duration[x.node]);
        }
      }
    std::uint32_t scale = kNone;
    if (options.scale_gradients && zeroing > 0 && parameters > 0) {
      MadeTask m;
      m.computes = true;
      m.lane = compute();
      m.name = "scaling of gradients (modelled)";
      m.size = MadeTask::Size::bucket;
      m.ns_each = 2 * zeroing / parameters;
      scale = add_made(std::move(m));
    }
    const std::uint32_t reduce =
        collective(GroupRole::data, now.layout.distributed_optimizer ? CommOp::reduce_scatter : CommOp::all_reduce,
                   MadeTask::Size::bucket, {}, 4);
    p.bucket_parameters = std::max(40e6, 1e6 * static_cast<double>(now.layout.dp));
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r) {
      ItemBlock block;
      if (scale != kNone) launch_kernel(block, scale, thread(1));
      launch_made(block, reduce, thread(1));
      add_piece(r, {PieceKind::bucket, 0, 0, -1}, std::move(block));
    }
    each_end([&](std::uint32_t r, std::uint32_t k) {
      wait_for(block_before(r, k, first_update(r, k)), lane_of(GroupRole::data), thread(0));
    });
    say("reductions of gradients");
  }

  // After the optimizer, bucket by bucket, all parameters in the type that they are used in.
  void gather_parameters(GroupRole role) {
    each_end([&](std::uint32_t r, std::uint32_t k) {
      const std::int32_t step = p.anatomy.ranks[r].pieces[k].step;
      double buckets = 0;
      for (const Piece& piece : p.anatomy.ranks[r].pieces)
        buckets += piece.kind == PieceKind::bucket && piece.step == step ? 1 : 0;
      if (p.bucket_parameters > 0 || buckets == 0) {
        const double size = std::max(40e6, 1e6 * static_cast<double>(now.layout.dp));
        const double layers = static_cast<double>(now.layout.layers) / static_cast<double>(now.layout.pp);
        const double all = role == GroupRole::data ? stage_parameters_of(now, 0) : expert_parameters(now, layers);
        buckets = std::max(1.0, std::round(all / size));
      }
      const auto of = role == GroupRole::data ? MadeTask::Size::stage_parameters : MadeTask::Size::expert_parameters;
      const std::uint32_t made = collective(role, CommOp::all_gather, of, {}, element_bytes() / buckets);
      const std::uint32_t at = after_update(r, k), lane = lane_of(role);
      ItemBlock& block = block_before(r, k, at);
      for (int n = 0; n < static_cast<int>(buckets); ++n) launch_made(block, made, thread(0));
      wait_for(block, lane, thread(0));
      for (std::uint32_t i = at; i < p.pieces[r][k].count; ++i)
        if (is_host(item_at(r, k, i)) && has(name(item_at(r, k, i).node), "DeviceSynchronize") &&
            g.at_begin[item_at(r, k, i).node] == 0)
          edit(r, k).more.push_back({i, {EdgeKind::sync, false, lane, 0, kSyncLag}});
    });
    say(role == GroupRole::data ? "gathers of parameters" : "gathers of experts' parameters");
  }

  void shard_optimizer(bool on, GroupRole role = GroupRole::data) {
    bool gathered = false;
    each_collective([&](std::uint32_t r, std::uint32_t k, std::uint32_t i) {
      const Item& x = item_at(r, k, i);
      if (role_of(x) != role || bytes_of(x) <= 1024) return;
      if (on && op_of(x) == CommOp::all_reduce) replace(r, k, i, CommOp::reduce_scatter, role);
      if (on && op_of(x) == CommOp::all_gather) gathered = true;
      if (!on && op_of(x) == CommOp::reduce_scatter) replace(r, k, i, CommOp::all_reduce, role);
      if (!on && op_of(x) == CommOp::all_gather) remove(r, k, i);
    });
    if (on && !gathered) gather_parameters(role);
  }

  // ---- pipeline ----

  void add_stages() {
    Term message = whole();
    message.split = -1;
    MadeTask m;
    m.op = CommOp::exchange, m.role = GroupRole::pipeline, m.lane = role_row(LaneRole::Kind::exchange, 2);
    m.name = kernel_name(m.op), m.elements = message, m.bytes_each = element_bytes();
    const std::uint32_t made = add_made(std::move(m));
    for (std::uint32_t r = 0; r < p.pieces.size(); ++r) {
      ItemBlock block;
      block.items.push_back({host_item(sample.launch.front(), thread(0), kNone), {}});
      // beside the passes each is launched by itself, with no others to be collected first
      block.items.back().item.took = now.overlap && now.chunks > 1 ? 0 : kSendWork * 3 / 2;
      launch_made(block, made, thread(0));
      wait_for(block, p.made[made].lane, thread(0));
      if (options.exchange_sync) {
        block.items.push_back({host_item(sample.launch.front(), thread(0), kNone), {}});
        block.items.back().item.took = 7'000;
        block.items.push_back({host_item(sample.launch.back(), thread(0), kNone),
                               {{EdgeKind::sync, false, p.made[made].lane, 0, kSyncLag},
                                {EdgeKind::sync, false, compute(), 0, kSyncLag}}});
        block.items.back().item.took = 3'000;
      }
      add_piece(r, {PieceKind::exchange, 0, 0, -1}, std::move(block));
    }
    say("exchanges between stages");
    if (!now.tied_embedding) return;
    Term table;
    table.vocab = table.hidden = 1;
    table.tp = -1;
    const std::uint32_t sum = collective(GroupRole::embedding, CommOp::all_reduce, MadeTask::Size::term, table, 4);
    const std::uint32_t data = lane_of(GroupRole::data);
    each_end([&](std::uint32_t r, std::uint32_t k) {
      const std::uint32_t at = first_update(r, k);
      put(r, k, at, sum, thread(0));
      for (BlockItem& x : edit(r, k).blocks.back().items)
        if (x.item.made == sum && now.layout.dp > 1)
          x.edges.push_back({EdgeKind::event, false, data, 0, sample.event_lag});
    });
    say("the sum of the shared embedding's gradients");
  }

  // The norm of all gradients is summed over the ranks that have parts of it.
  void change_norm() {
    const bool sharded = now.layout.distributed_optimizer && now.layout.dp > 1;
    const std::int64_t model = now.layout.tp * now.layout.pp, was_model = old.layout.tp * old.layout.pp;
    const bool was_sharded = old.layout.distributed_optimizer && old.layout.dp > 1;
    const GroupRole wanted = sharded ? GroupRole::world : GroupRole::model;
    const bool needed = sharded ? model * now.layout.dp > 1 : model > 1, was = was_sharded || was_model > 1;
    if (needed == was && sharded == was_sharded) return;
    Term one;
    const std::uint32_t made =
        needed && !was ? collective(wanted, CommOp::all_reduce, MadeTask::Size::term, one, 4) : 0;
    each_end([&](std::uint32_t r, std::uint32_t k) {
      // it is read by the host: a copy, before the update
      std::uint32_t copy = kNone;
      for (std::uint32_t i = 0; i < p.pieces[r][k].count && copy == kNone; ++i) {
        const Item& x = item_at(r, k, i);
        if (!x.marks && g.kind[x.node] == NodeKind::memcpy && has(name(x.node), "DtoH")) copy = i;
      }
      if (needed && !was) {
        const std::uint32_t at = copy == kNone ? after_update(r, k) : ahead(r, k, copy);
        put(r, k, at, made, thread(0));
        return;
      }
      for (std::uint32_t i = 0; i < std::min(copy, p.pieces[r][k].count); ++i) {
        const Item& x = item_at(r, k, i);
        if (!communicates(x) || bytes_of(x) > 64) continue;
        const GroupRole role = role_of(x);
        if (role != GroupRole::model && role != GroupRole::world) continue;
        if (needed) {
          replace(r, k, i, op_of(x), wanted);
        } else {
          remove(r, k, i);
        }
      }
    });
  }

  const JobShape& now;
  const CollectiveOptions& options;
  std::map<std::int64_t, std::size_t> loads;  // by stage
};

}  // namespace

bool collectives_differ(const JobModel& job, const JobShape& next) {
  const JobLayout &a = job.base.layout, &b = next.layout;
  const auto differs = [](std::int64_t x, std::int64_t y) { return (x > 1) != (y > 1); };
  const bool experts = job.base.expert_tp > 0 && a.ep > 1 && differs(a.expert_replicas(), b.expert_replicas());
  return experts || differs(a.tp, b.tp) || differs(a.pp, b.pp) || differs(a.dp, b.dp) ||
         a.distributed_optimizer != b.distributed_optimizer ||
         job.base.dims.sequence_parallel != next.dims.sequence_parallel;
}

Result<Program> edit_collectives(const TraceSet& traces, const GraphBuild& build, const JobModel& job,
                                 const JobShape& next, std::vector<std::string>& modelled,
                                 const CollectiveOptions& options) {
  if (Status s = check_sharding(build, job.base.layout, job.program); !s) return tl::unexpected(s.error());
  const JobLayout& l = next.layout;
  for (const GroupRole role : {GroupRole::tensor, GroupRole::data, GroupRole::embedding, GroupRole::expert_data}) {
    const Placement where = l.placement(role);
    if (where.members < 2 || job.base.layout.placement(role).members > 1) continue;
    if (transfer_ns(job.net, Pattern::all_reduce, 1e6, where) < 0)
      return fail("nothing tells how fast the network " +
                      std::string(where.one_server() ? "inside a server" : "between servers") +
                      " is: no collective of the trace, and the GPU is not known",
                  "", "--network intra=GB_PER_S,inter=GB_PER_S");
  }
  return Editor(traces, build, job, next, modelled, options).run();
}

Status check_sharding(const GraphBuild& build, const JobLayout& layout, const Program& program) {
  const Communication& c = build.communication;
  for (std::uint32_t r = 0; r < program.pieces.size(); ++r)
    for (std::uint32_t k = 0; k < program.pieces[r].size(); ++k) {
      const Piece& piece = program.anatomy.ranks[r].pieces[k];
      if (piece.step < 0 || piece.pass < 0 || piece.kind == PieceKind::exchange) continue;
      // Megatron-LM's sharded optimizer gathers in the first forward pass of each part at most
      const bool forward = piece.kind == PieceKind::forward_begin || piece.kind == PieceKind::forward_layer ||
                           piece.kind == PieceKind::forward_end;
      const std::int32_t passes = program.anatomy.ranks[r].passes;
      if (forward && (passes == 1 || piece.pass != passes - 1)) continue;
      for (std::uint32_t i = 0; i < program.pieces[r][k].count; ++i) {
        const Item& item = program.items[program.pieces[r][k].first + i];
        if (item.comm == kNone || item.transfer) continue;
        const CommRow& row = c.rows[item.comm];
        if (row.op != CommOp::all_gather || row.group == kNone || row.group >= layout.role.size() ||
            layout.role[row.group] != GroupRole::data)
          continue;
        return fail(
            "parameters are sharded over replicas and gathered layer by layer in every pass (FSDP, ZeRO-3), which "
            "is not modelled");
      }
    }
  return {};
}

Work under_sequence_parallelism(const Work& w, std::string_view name) {
  Work out = w;
  for (const std::string_view part : {"indexSelect", "index_select", "embedding", "compute_grad_weight"})
    if (has(name, part)) return out;
  const Term& m = w.m;
  if (w.kind == WorkKind::memory && m.seq == 1 && m.mbs == 1 && m.hidden == 1 && m.tp == 0 && m.split == 0 &&
      m.ffn == 0 && m.attn == 0 && m.qkv == 0 && m.vocab == 0)
    out.m.split = -1;
  return out;
}

}  // namespace orrery
