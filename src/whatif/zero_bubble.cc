#include "whatif/zero_bubble.h"

#include "whatif/operators.h"

namespace orrery {

void mark_weight_gradients(Program& program, const TraceSet& traces, const GraphBuild& build,
                           const std::vector<std::uint8_t>& weight) {
  const ExecGraph& g = build.graph;
  program.weight.assign(program.items.size(), 0);
  for (std::uint32_t r = 0; r < program.pieces.size(); ++r) {
    const RankTrace& trace = traces.ranks[g.ranks[r].trace];
    for (std::uint32_t k = 0; k < program.pieces[r].size(); ++k) {
      const PieceKind kind = program.anatomy.ranks[r].pieces[k].kind;
      if (kind != PieceKind::backward_begin && kind != PieceKind::backward_layer && kind != PieceKind::backward_end)
        continue;
      const PieceItems piece = program.pieces[r][k];
      std::vector<std::uint32_t> call(piece.count, kNone);  // by item that is a task: its launch call's begin
      std::vector<std::uint8_t> calls(piece.count, 0);      // by item: begin of a launch call
      for (std::uint32_t i = 0; i < piece.count; ++i) {
        const Item& item = program.items[piece.first + i];
        if (g.kind[item.node] == NodeKind::host) continue;
        for (std::uint32_t e = item.first_edge; e < item.first_edge + item.edges; ++e)
          if (program.edges[e].kind == EdgeKind::launch && program.edges[e].inside)
            calls[call[i] = program.edges[e].ref] = 1;
      }
      std::uint32_t before = kNone;  // the task before, on any stream
      for (std::uint32_t i = 0; i < piece.count; ++i) {
        const Item& item = program.items[piece.first + i];
        if (g.kind[item.node] == NodeKind::host || item.transfer) continue;
        const bool adds_parts = before != kNone && program.weight[piece.first + before] != 0 &&
                                is_split_reduction(trace.name_of(g.source[item.node]));
        before = i;
        if ((weight[item.node] == 0 && !adds_parts) || call[i] == kNone) continue;
        program.weight[piece.first + i] = 1;
        // the host work of its thread since the call before, and the rest of its own call
        const std::uint32_t thread = program.items[piece.first + call[i]].lane;
        for (std::uint32_t h = call[i] + 1; h < piece.count; ++h)
          if (program.items[piece.first + h].lane == thread) {
            program.weight[piece.first + h] = 1;
            break;
          }
        for (std::uint32_t h = call[i] + 1; h-- > 0;) {
          if (program.items[piece.first + h].lane != thread) continue;
          if (h != call[i]) {
            bool ends_a_call = false;  // the node behind a call's begin
            for (std::uint32_t b = h; b-- > 0;)
              if (program.items[piece.first + b].lane == thread) {
                ends_a_call = calls[b] != 0;
                break;
              }
            if (ends_a_call || calls[h] != 0) break;
          }
          program.weight[piece.first + h] = 1;
        }
      }
    }
  }
}

}  // namespace orrery
