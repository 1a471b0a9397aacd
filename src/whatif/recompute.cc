#include "whatif/recompute.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "whatif/operators.h"

namespace orrery {
namespace {

bool is_backward(PieceKind k) {
  return k == PieceKind::backward_begin || k == PieceKind::backward_layer || k == PieceKind::backward_end;
}

// Items of one piece from `first` up to `last`, both of the piece; none where first == kNone.
struct Span {
  std::uint32_t first = kNone, last = kNone;
};

class Changer {
 public:
  Changer(Program& p, const TraceSet& t, const GraphBuild& b, const JobShape& s)
      : program(p), traces(t), g(b.graph), base(s) {}

  Result<Changed> run(Recompute from, Recompute to) {
    auto made = make_schedule(base.schedule, static_cast<std::int32_t>(base.layout.pp), base.chunks,
                              static_cast<std::int32_t>(base.layout.num_microbatches), base.overlap && base.chunks > 1,
                              base.all_forward_first);
    if (!made) return tl::unexpected(made.error());
    schedule = std::move(*made);
    for (rank = 0; rank < program.pieces.size(); ++rank) {
      operators = read_operators(traces.ranks[g.ranks[rank].trace]);
      list_launches();
      find_forward();
      const auto pieces = static_cast<std::uint32_t>(program.pieces[rank].size());
      // what is put in is read from forward passes, which stay as they are
      for (std::uint32_t k = 0; k < pieces; ++k) {
        if (!is_backward(piece(k).kind)) continue;
        std::vector<std::uint8_t> gone(program.pieces[rank][k].count, 0);
        if (from != Recompute::none) gone = recomputed(k);
        Span what;
        std::uint32_t source = kNone, before = 0;
        if (to != Recompute::none && piece(k).kind == PieceKind::backward_layer) {
          source = forward_of(k);
          if (source == kNone) return fail("a layer of the backward pass has no forward pass to compute again", who());
          if (to == Recompute::full) {
            what = {0, program.pieces[rank][source].count};
          } else {
            what = attention_in(source);
            for (std::uint32_t other = 0; what.first == kNone && other < pieces; ++other)
              if (piece(other).kind == PieceKind::forward_layer) what = attention_in(source = other);
            if (what.first == kNone)
              return fail("no attention was found to compute again", who(), "record operators with their shapes");
            before = backward_of_attention(k);
          }
        }
        rewrite(k, gone, source, what, before);
      }
    }
    if (from != Recompute::none && taken == 0)
      return fail("nothing that the traced job computes again was found", "", "--layout recompute=none");
    return changed;
  }

 private:
  std::string who() const { return "rank " + std::to_string(g.ranks[rank].rank); }
  const Piece& piece(std::uint32_t k) const { return program.anatomy.ranks[rank].pieces[k]; }
  const Item& item(std::uint32_t k, std::uint32_t i) const { return program.items[program.pieces[rank][k].first + i]; }
  bool is_host(const Item& i) const { return g.kind[i.node] == NodeKind::host; }

  void list_launches() {
    launch_of.assign(operators.parent.size(), kNone);
    for (std::uint32_t n = 0; n < operators.launches.size(); ++n) launch_of[operators.launches[n].task] = n;
  }
  // Of another piece, maybe of another rank: put in after a sample. Its row says nothing about where it is now.
  bool put_in(std::uint32_t k, const Item& i) const {
    return g.rank[i.node] != rank || program.anatomy.piece[i.node] != k;
  }
  const Launch* launch(std::uint32_t k, const Item& i) const {
    const std::uint32_t row = raw(g.source[i.node]);
    if (put_in(k, i) || is_host(i) || row >= launch_of.size() || launch_of[row] == kNone) return nullptr;
    return &operators.launches[launch_of[row]];
  }

  // ---- which forward layer a backward layer is of ----

  void find_forward() {
    forward_pieces.clear();
    const std::int64_t stride = base.layout.stage_stride();
    const auto stage = static_cast<std::size_t>(g.ranks[rank].rank / stride % base.layout.pp);
    forward.clear(), backward.clear();
    for (const Slot& slot : schedule.stage[stage]) {
      if (!slot.is_pass) continue;
      (slot.pass == Pass::forward ? forward : backward).emplace_back(slot.chunk, slot.micro_batch);
    }
    for (std::uint32_t k = 0; k < program.pieces[rank].size(); ++k) {
      const Piece& p = piece(k);
      if (p.kind != PieceKind::forward_layer || p.step < 0 || p.pass >= std::ssize(forward)) continue;
      const auto [chunk, micro_batch] = forward[static_cast<std::size_t>(p.pass)];
      forward_pieces[{p.step, chunk, micro_batch, p.layer}] = k;
    }
  }
  std::uint32_t forward_of(std::uint32_t k) const {
    const Piece& p = piece(k);
    if (p.step < 0 || p.pass >= std::ssize(backward)) return kNone;
    const auto [chunk, micro_batch] = backward[static_cast<std::size_t>(p.pass)];
    const std::int32_t layers = program.anatomy.ranks[rank].layers;
    const auto it = forward_pieces.find({p.step, chunk, micro_batch, layers - 1 - p.layer});
    return it == forward_pieces.end() ? kNone : it->second;
  }

  // ---- what is computed again ----

  // By item. Work is forward work again where a checkpoint is nearer round it than an autograd node.
  std::vector<std::uint8_t> recomputed(std::uint32_t k) {
    std::vector<std::uint8_t> again(program.pieces[rank][k].count, 0);
    std::map<std::uint32_t, std::uint8_t> last;  // by lane
    std::uint8_t before = 0;
    for (std::uint32_t i = 0; i < again.size(); ++i) {
      const Item& x = item(k, i);
      if (put_in(k, x)) {
        again[i] = last[x.lane] = before;
        continue;
      }
      if (!is_host(x)) {
        const Launch* l = launch(k, x);
        again[i] = l != nullptr && !l->backward;
        if (l == nullptr && x.in_order) again[i] = last[x.lane];  // second halves, parts of a graph
        if (x.transfer)
          for (std::uint32_t j = 0; j < i; ++j)
            if (item(k, j).comm == x.comm) again[i] = again[j];
        last[x.lane] = again[i];
        continue;
      }
      const std::uint32_t row = raw(g.source[x.node]);
      std::int8_t is = -1;  // not told: as the one before
      for (std::uint32_t p = row; p != kNone; p = operators.parent[p]) {
        const OpKind kind = operators.trace->ops.kind[p];
        if (kind != OpKind::cpu_op && kind != OpKind::user_annotation) continue;
        const std::uint32_t flags = operators.flags(p);
        if ((flags & NameFlags::checkpoint) != 0) {
          // its own begin and end stay, but for ranges that only recomputation has
          is = p != row && inside_autograd(p);
          break;
        }
        if ((flags & NameFlags::autograd) != 0) {
          is = 0;
          break;
        }
        if (operators.parent[p] == kNone && operators.trace->ops.kind[row] == OpKind::cpu_op) is = 0;
      }
      again[i] = is >= 0 ? static_cast<std::uint8_t>(is) : last[x.lane];
      last[x.lane] = before = again[i];
    }
    return again;
  }
  // A checkpoint's own node in the backward pass, not its forward.
  bool inside_autograd(std::uint32_t row) const {
    for (std::uint32_t p = row; p != kNone; p = operators.parent[p])
      if ((operators.flags(p) & NameFlags::autograd) != 0) return true;
    return false;
  }

  // From the begin of the operator round the first task of the attention's forward to the end of that round its last.
  Span attention_in(std::uint32_t k) const {
    const std::uint32_t count = program.pieces[rank][k].count;
    Span span;
    std::uint32_t first_op = kNone, last_op = kNone;
    for (std::uint32_t i = 0; i < count; ++i) {
      const Launch* l = launch(k, item(k, i));
      if (l == nullptr || l->backward || l->anchor == kNone) continue;
      const Anchor& anchor = operators.anchors[l->anchor];
      if (!anchor.attention) continue;
      if (span.first == kNone) span.first = call_of(k, i), first_op = anchor.op;
      span.last = i + 1;
      last_op = anchor.op;
    }
    if (span.first == kNone) return span;
    for (std::uint32_t i = 0; i < span.first; ++i)
      if (boundary(k, i, first_op, true)) {
        span.first = i;
        break;
      }
    for (std::uint32_t i = span.last; i < count; ++i)
      if (boundary(k, i, last_op, false)) span.last = i + 1;
    return span;
  }
  bool boundary(std::uint32_t k, std::uint32_t i, std::uint32_t op, bool begin) const {
    const Item& x = item(k, i);
    return is_host(x) && !put_in(k, x) && raw(g.source[x.node]) == op && (g.at_begin[x.node] != 0) == begin;
  }
  // Begin of the call that launches a task of the piece; the task itself where none is told.
  std::uint32_t call_of(std::uint32_t k, std::uint32_t i) const {
    const Item& x = item(k, i);
    for (std::uint32_t e = x.first_edge; e < x.first_edge + x.edges; ++e)
      if (program.edges[e].kind == EdgeKind::launch && program.edges[e].inside) return program.edges[e].ref;
    return i;
  }
  // Item before which the attention's backward begins; 0 where it has none in this piece.
  std::uint32_t backward_of_attention(std::uint32_t k) const {
    for (std::uint32_t i = 0; i < program.pieces[rank][k].count; ++i) {
      const Launch* l = launch(k, item(k, i));
      if (l == nullptr || !l->backward || l->anchor == kNone || !operators.anchors[l->anchor].attention) continue;
      std::uint32_t node = l->node;
      while (node != kNone && operators.parent[node] != kNone &&
             (operators.flags(operators.parent[node]) & NameFlags::autograd) != 0)
        node = operators.parent[node];
      std::uint32_t at = call_of(k, i);
      for (std::uint32_t j = 0; j < at; ++j)
        if (boundary(k, j, node, true)) return j;
      return at;
    }
    return 0;
  }

  // ---- rewriting ----

  void rewrite(std::uint32_t k, const std::vector<std::uint8_t>& gone, std::uint32_t source, Span what,
               std::uint32_t before) {
    const PieceItems old = program.pieces[rank][k];
    const bool takes = std::find(gone.begin(), gone.end(), 1) != gone.end();
    if (!takes && what.first == kNone) return;
    // the thread that the backward pass runs on
    std::map<std::uint32_t, std::uint32_t> hosts;
    for (std::uint32_t i = 0; i < old.count; ++i)
      if (is_host(item(k, i))) ++hosts[item(k, i).lane];
    std::uint32_t thread = kNone;
    for (const auto& [lane, count] : hosts)
      if (thread == kNone || count > hosts[thread]) thread = lane;
    PieceItems out;
    out.first = static_cast<std::uint32_t>(program.items.size());
    std::vector<std::uint32_t> place(old.count, kNone);
    for (std::uint32_t i = 0; i <= old.count; ++i) {
      if (i == before && what.first != kNone) {
        std::vector<std::uint32_t> copied(program.pieces[rank][source].count, kNone);
        for (std::uint32_t j = what.first; j < what.last; ++j) {
          copied[j] = static_cast<std::uint32_t>(program.items.size()) - out.first;
          Item x = item(source, j);
          if (is_host(x) && thread != kNone) x.lane = thread;
          copy(x, 0, copied, what.first == 0 && what.last == copied.size());
          ++changed.nodes;
          changed.edges += x.edges;
        }
      }
      if (i == old.count) break;
      if (gone[i] != 0) {
        ++taken;
        ++changed.nodes;
        changed.edges += item(k, i).edges;
        continue;
      }
      place[i] = static_cast<std::uint32_t>(program.items.size()) - out.first;
      copy(item(k, i), program.weight.empty() ? 0 : program.weight[old.first + i], place, true);
    }
    out.count = static_cast<std::uint32_t>(program.items.size()) - out.first;
    program.pieces[rank][k] = out;
  }
  // With its waits on items that were copied before it; those outside of the piece only where that is still the same.
  void copy(Item x, std::uint8_t weight, const std::vector<std::uint32_t>& place, bool outside) {
    const std::uint32_t first = x.first_edge, count = x.edges;
    x.first_edge = static_cast<std::uint32_t>(program.edges.size());
    for (std::uint32_t e = first; e < first + count; ++e) {
      ItemEdge edge = program.edges[e];
      if (edge.inside) {
        if (place[edge.ref] == kNone) continue;
        edge.ref = place[edge.ref];
      } else if (!outside) {
        continue;
      }
      program.edges.push_back(edge);
    }
    x.edges = static_cast<std::uint32_t>(program.edges.size()) - x.first_edge;
    program.items.push_back(x);
    if (!program.weight.empty()) program.weight.push_back(weight);
  }

  Program& program;
  const TraceSet& traces;
  const ExecGraph& g;
  const JobShape& base;
  Schedule schedule;
  std::uint32_t rank = 0;
  Operators operators;
  std::vector<std::uint32_t> launch_of;                                  // by row of the trace
  std::vector<std::pair<std::int32_t, std::int32_t>> forward, backward;  // chunk, micro-batch by number of the pass
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>, std::uint32_t> forward_pieces;
  Changed changed;
  std::uint64_t taken = 0;
};

}  // namespace

Result<Recompute> recompute_of(std::string_view name) {
  if (name == "none") return Recompute::none;
  if (name == "selective") return Recompute::selective;
  if (name == "full") return Recompute::full;
  if (name.empty())
    return fail("whether the traced job computes activations again cannot be told", "",
                "say so: --layout recompute=none|selective|full");
  return fail("not a way to recompute: " + std::string(name), "--recompute", "none, selective or full");
}

Result<Changed> change_recompute(Program& program, const TraceSet& traces, const GraphBuild& build,
                                 const JobShape& base, Recompute from, Recompute to) {
  if (from == to) return Changed{};
  return Changer(program, traces, build, base).run(from, to);
}

}  // namespace orrery
