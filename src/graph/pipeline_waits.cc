#include "graph/pipeline_waits.h"

#include <algorithm>
#include <unordered_map>

namespace orrery {
namespace {

constexpr std::uint32_t kFurthestBack = 64;  // batches

// Where a pass or a transfer is, so that both ends find each other.
struct Spot {
  std::uint32_t step;
  std::int32_t dp, tp, stage, chunk, micro_batch;
  PipelineKind kind;
  auto operator<=>(const Spot&) const = default;
};

Spot spot_of(const PipelineTrace& t, const PipelineRow& r, PipelineKind kind, PipelinePlace at) {
  const PipelineRank& rank = t.ranks[r.rank];
  return {r.step, rank.dp, rank.tp, at.stage, at.chunk, r.micro_batch, kind};
}

// The stage that sends what `r`, a transfer of stage `stage`, carries.
std::int32_t sender_of(const PipelineTrace& t, PipelineKind kind, std::int32_t stage) {
  if (is_send(kind)) return stage;
  return kind == PipelineKind::recv_forward ? (stage + t.stages - 1) % t.stages : (stage + 1) % t.stages;
}

// Coordinates that members share, -1 = any.
PipelineGroup group_of(const PipelineRank& r, PipelineScope s) {
  switch (s) {
    case PipelineScope::alone:
      return {r.pp, r.dp, r.tp};
    case PipelineScope::tensor:
      return {r.pp, r.dp, -1};
    case PipelineScope::data:
      return {r.pp, -1, r.tp};
    case PipelineScope::pipeline:
      return {-1, r.dp, r.tp};
    case PipelineScope::model:
      return {-1, r.dp, -1};
    case PipelineScope::world:
      return {-1, -1, -1};
  }
  return {};
}

}  // namespace

PipelinePlace input_of(const PipelineTrace& t, PipelineKind pass, std::int32_t stage, std::int32_t chunk) {
  if (pass == PipelineKind::forward) {
    if (stage > 0) return {stage - 1, chunk};
    return chunk > 0 ? PipelinePlace{t.stages - 1, chunk - 1} : PipelinePlace{};
  }
  if (stage < t.stages - 1) return {stage + 1, chunk};
  return chunk < t.chunks - 1 ? PipelinePlace{0, chunk + 1} : PipelinePlace{};
}

void number_transfers(const PipelineTrace& t, PipelineProgram& p) {
  const std::int32_t last = t.stages - 1;
  for_each_run(p, [&](std::uint32_t a, std::uint32_t b) {
    const std::int32_t stage = t.ranks[p.rows[a].rank].pp;
    for (const PipelineKind kind : {PipelineKind::send_forward, PipelineKind::recv_forward, PipelineKind::send_backward,
                                    PipelineKind::recv_backward}) {
      const bool forward = kind == PipelineKind::send_forward || kind == PipelineKind::recv_forward;
      const PipelineKind pass = forward ? PipelineKind::forward : PipelineKind::backward;
      std::uint32_t next = a;
      for (std::uint32_t i = a; i < b; ++i) {
        if (kind_of(t, p.rows[i]) != kind) continue;
        PipelinePlace carried;
        for (; next < b && carried.stage < 0; ++next) {
          const PipelineRow& r = p.rows[next];
          if (kind_of(t, r) != pass) continue;
          if (!is_send(kind))
            carried = input_of(t, pass, stage, r.chunk);
          else if (forward ? stage < last || r.chunk + 1 < t.chunks : stage > 0 || r.chunk > 0)
            carried = {stage, r.chunk};
          if (carried.stage < 0) continue;
          p.rows[i].micro_batch = r.micro_batch;
          p.rows[i].chunk = carried.chunk;
        }
        if (carried.stage < 0) break;  // more transfers than passes: the rest meets nobody
      }
    }
  });
}

const char* label_of(PipelineScope s) {
  switch (s) {
    case PipelineScope::alone:
      return "alone";
    case PipelineScope::tensor:
      return "tensor parallel";
    case PipelineScope::data:
      return "data parallel";
    case PipelineScope::pipeline:
      return "pipeline";
    case PipelineScope::model:
      return "model parallel";
    case PipelineScope::world:
      return "world";
  }
  return "";
}

std::map<PipelineOccurrence, std::vector<std::uint32_t>> collectives_of(const PipelineTrace& t,
                                                                        const PipelineProgram& p,
                                                                        const std::vector<PipelineScope>& scope,
                                                                        std::uint32_t only_type) {
  std::map<PipelineOccurrence, std::vector<std::uint32_t>> out;
  for_each_run(p, [&](std::uint32_t a, std::uint32_t b) {
    std::map<std::uint32_t, std::uint32_t> count;
    for (std::uint32_t i = a; i < b; ++i) {
      const PipelineRow& r = p.rows[i];
      if (kind_of(t, r) != PipelineKind::collective || (only_type != kNone && r.type != only_type)) continue;
      out[{r.step, r.type, count[r.type]++, group_of(t.ranks[r.rank], scope[r.type])}].push_back(i);
    }
  });
  return out;
}

void find_meetings(const PipelineTrace& t, const PipelineModel& m, PipelineProgram& p) {
  p.meetings.clear();
  p.members.clear();
  const auto add = [&](const std::vector<std::uint32_t>& rows) {
    if (rows.size() < 2) return;
    p.meetings.push_back({static_cast<std::uint32_t>(p.members.size()), static_cast<std::uint32_t>(rows.size())});
    p.members.insert(p.members.end(), rows.begin(), rows.end());
  };
  std::map<Spot, std::vector<std::uint32_t>> transfers;
  for (std::uint32_t i = 0; i < p.rows.size(); ++i) {
    const PipelineRow& r = p.rows[i];
    const PipelineKind k = kind_of(t, r);
    if (!is_transfer(k) || r.micro_batch < 0) continue;
    const bool forward = k == PipelineKind::send_forward || k == PipelineKind::recv_forward;
    transfers[spot_of(t, r, forward ? PipelineKind::send_forward : PipelineKind::send_backward,
                      {sender_of(t, k, t.ranks[r.rank].pp), r.chunk})]
        .push_back(i);
  }
  for (const auto& [spot, rows] : transfers)
    if (rows.size() == 2 && p.rows[rows[0]].rank != p.rows[rows[1]].rank) add(rows);
  for (const auto& [occurrence, rows] : collectives_of(t, p, m.scope)) add(rows);
}

std::vector<PipelineWait> waits_of(const PipelineTrace& t, const PipelineModel& m, const PipelineProgram& p) {
  std::vector<PipelineWait> out;
  std::map<Spot, std::uint32_t> given;  // rows that others wait for
  for (std::uint32_t i = 0; i < p.rows.size(); ++i) {
    const PipelineRow& r = p.rows[i];
    const PipelineKind k = kind_of(t, r);
    const std::int32_t stage = t.ranks[r.rank].pp;
    if (r.micro_batch < 0) continue;
    if (k == PipelineKind::forward || k == PipelineKind::backward || k == PipelineKind::recv_forward ||
        k == PipelineKind::recv_backward)
      given.emplace(spot_of(t, r, k, {stage, r.chunk}), i);
  }
  for_each_run(p, [&](std::uint32_t a, std::uint32_t b) {
    std::unordered_map<std::uint32_t, std::uint32_t> last_of_type;
    for (std::uint32_t i = a; i < b; ++i) {
      const PipelineRow& r = p.rows[i];
      const std::size_t before = out.size();
      bool complete = false;
      for (std::uint32_t j = i; j-- > a && !complete;) {
        const std::uint32_t batch = p.rows[j].batch;
        if (batch == r.batch) continue;
        if (r.batch - batch > kFurthestBack) break;
        complete = true;
        for (;; --j) {
          if (m.waits(r.type, p.rows[j].type))
            out.push_back({i, j, false});
          else
            complete = false;
          if (j == a || p.rows[j - 1].batch != batch) break;
        }
      }
      if (!complete) out.push_back({i, kNone, false});
      const auto own = [&](std::uint32_t from) {
        for (std::size_t k = before; k < out.size(); ++k)
          if (out[k].from == from) return true;
        return false;
      };
      if (const auto it = last_of_type.find(r.type); it != last_of_type.end() && !own(it->second))
        out.push_back({i, it->second, false});
      last_of_type[r.type] = i;

      const PipelineKind k = kind_of(t, r);
      const std::int32_t stage = t.ranks[r.rank].pp;
      if (is_send(k) && r.micro_batch >= 0) {
        const auto pass = k == PipelineKind::send_forward ? PipelineKind::forward : PipelineKind::backward;
        const auto it = given.find(spot_of(t, r, pass, {stage, r.chunk}));
        if (it != given.end() && p.rows[it->second].rank == r.rank && p.rows[it->second].batch < r.batch &&
            !own(it->second))
          out.push_back({i, it->second, false});
      }
      if (k != PipelineKind::forward && k != PipelineKind::backward) continue;
      const PipelinePlace from = input_of(t, k, stage, r.chunk);
      if (from.stage < 0 || r.micro_batch < 0) continue;
      const auto received = k == PipelineKind::forward ? PipelineKind::recv_forward : PipelineKind::recv_backward;
      const auto it =
          given.find(t.has_transfers ? spot_of(t, r, received, {stage, from.chunk}) : spot_of(t, r, k, from));
      if (it == given.end()) continue;
      const std::uint32_t g = it->second;
      if (p.rows[g].rank != r.rank)
        out.push_back({i, g, true});
      else if (p.rows[g].batch < r.batch && !own(g))
        out.push_back({i, g, false});
    }
  });
  return out;
}

PipelineModel::LagKey key_of(const PipelineProgram& p, const PipelineWait& w) {
  return {p.rows[w.row].rank, w.from == kNone ? PipelineModel::kBegin : p.rows[w.from].type, p.rows[w.row].type,
          w.hand_over};
}

std::vector<std::uint32_t> lanes_of(const PipelineTrace& t, std::uint32_t& lanes) {
  std::vector<std::uint32_t> lane(t.types.size(), 1);
  lanes = 2;
  for (std::size_t k = 0; k < lane.size(); ++k)
    if (is_communication(t.types[k].kind)) lane[k] = lanes++;
  return lane;
}

}  // namespace orrery
