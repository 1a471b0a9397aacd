#include "whatif/layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "whatif/expert_layout.h"
#include "whatif/given_layout.h"

namespace orrery {
namespace {

std::string upper(std::string s) {
  for (char& c : s)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return s;
}

// What a description says; `other` when it says nothing of these.
GroupRole role_of_label(const CommGroup& g, std::int64_t world) {
  const std::string label = upper(g.label);
  const auto has = [&](std::string_view s) { return label.find(s) != std::string::npos; };
  if (has("EMBEDDING")) return GroupRole::embedding;
  if (const auto role = expert_role_of_label(label)) return *role;
  if (has("TENSOR") || label == "TP" || has("MESH_TP")) return GroupRole::tensor;
  if (has("PIPELINE") || label == "PP" || has("MESH_PP")) return GroupRole::pipeline;
  if (has("DATA_PARALLEL") || label == "DP" || has("MESH_DP")) return GroupRole::data;
  if (has("MODEL_PARALLEL")) return GroupRole::model;
  if (g.size == world && world > 1) return GroupRole::world;
  return GroupRole::other;
}

struct Use {  // of one group, per rank that uses it
  double calls = 0, bytes = 0, all_to_all = 0;
  bool reduces = false, gathers = false, scatters = false;
};

std::int64_t stride_of(const std::vector<std::int64_t>& ranks) {
  if (ranks.size() < 2) return 0;
  const std::int64_t s = ranks[1] - ranks[0];
  for (std::size_t k = 2; k < ranks.size(); ++k)
    if (ranks[k] - ranks[k - 1] != s) return 0;
  return s;
}

constexpr std::int64_t kMostRanks = 10'000'000;

std::int64_t multiplied(std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t f : factors) {
    if (f > kMostRanks / product) return kMostRanks + 1;
    product *= f;
  }
  return product;
}

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto mid = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), mid, v.end());
  return *mid;
}

}  // namespace

std::string_view name_of(GroupRole r) {
  switch (r) {
    case GroupRole::tensor:
      return "tensor";
    case GroupRole::data:
      return "data";
    case GroupRole::pipeline:
      return "pipeline";
    case GroupRole::embedding:
      return "embedding";
    case GroupRole::model:
      return "model";
    case GroupRole::world:
      return "world";
    case GroupRole::other:
      return "other";
    case GroupRole::context:
      return "context";
    case GroupRole::expert:
      return "expert";
    case GroupRole::expert_tensor:
      return "expert tensor";
    case GroupRole::expert_model:
      return "expert model";
    case GroupRole::expert_data:
      return "expert data";
    case GroupRole::expert_stages:
      return "expert stages";
  }
  return "";
}

Placement JobLayout::placement(GroupRole r) const {
  const std::int64_t dp_stride = pipeline_outermost ? tp : tp * pp;
  const std::int64_t pp_stride = stage_stride();
  // experts are dealt to the ranks of a stage in their order
  const auto among_stage = [&](std::int64_t stride) {
    return pipeline_outermost || stride < tp * cp ? stride : stride * pp;
  };
  // of n ranks `stride` apart, those in the server of the first
  const auto place = [&](std::int64_t n, std::int64_t stride) {
    return Placement{n, std::clamp<std::int64_t>(gpus_per_node / std::max<std::int64_t>(1, stride), 1, n)};
  };
  switch (r) {
    case GroupRole::tensor:
      return place(tp, 1);
    case GroupRole::data:
      return place(dp * cp, dp_stride);  // contexts hold the same weights
    case GroupRole::context:
      return place(cp, tp);
    case GroupRole::expert:
      return place(ep, among_stage(etp));
    case GroupRole::expert_tensor:
      return place(etp, 1);
    case GroupRole::expert_model:
      return place(ep * etp, 1);
    case GroupRole::expert_data:
      return place(expert_replicas(), among_stage(ep * etp));
    case GroupRole::expert_stages:
      return place(ep * etp * pp, 1);
    case GroupRole::pipeline:
      return place(std::min<std::int64_t>(pp, 2), pp_stride);  // a stage and the next
    case GroupRole::embedding:
      return place(std::min<std::int64_t>(pp, 2), pp_stride * std::max<std::int64_t>(1, pp - 1));
    case GroupRole::model: {
      const std::int64_t n = tp * pp;
      return {n, pp_stride >= gpus_per_node ? std::min(tp, gpus_per_node) : std::min(n, gpus_per_node)};
    }
    case GroupRole::world:
    case GroupRole::other:
      break;
  }
  return {world, std::min(world, gpus_per_node)};
}

GroupRole role_of(const JobLayout& layout, const Communication& c, const Meeting& m) {
  const CommRow& row = c.rows[c.members[m.first].row];
  if (row.parts != 0 || is_point_to_point(m.op)) {
    const std::uint32_t group = row.parts != 0 ? c.parts[row.first_part].group : m.group;
    const bool context = group != kNone && layout.role[group] == GroupRole::context;
    return context ? GroupRole::context : GroupRole::pipeline;
  }
  return m.group == kNone ? GroupRole::other : layout.role[m.group];
}

Result<JobLayout> recognise_layout(const TraceSet& traces, const GraphBuild& build) {
  return recognise_layout(traces, build, {});
}

Result<JobLayout> recognise_layout(const TraceSet& traces, const GraphBuild& build, const GivenLayout& given) {
  const Communication& c = build.communication;
  const ExecGraph& g = build.graph;
  JobLayout l;
  std::int64_t stated = 0;  // ranks of the job, as a trace says
  for (const RankTrace& t : traces.ranks) {
    l.world = std::max({l.world, t.world_size, t.rank + 1});
    stated = std::max(stated, t.world_size);
  }
  if (stated == 0 && given.tp && given.pp && given.dp) {  // some of its ranks are here
    const std::int64_t said = multiplied({*given.tp, *given.pp, *given.dp, given.cp.value_or(1)});
    if (said < l.world)
      return fail("rank " + std::to_string(l.world - 1) + " is in the traces of a job that is said to have " +
                      std::to_string(said) + " ranks",
                  "", "--layout tp=N,pp=N,dp=N");
    l.world = said;
  }
  if (l.world > kMostRanks)
    return fail("a job of " + std::to_string(l.world) + " ranks is beyond what can be laid out", "",
                "is the rank in the file's name right?");
  std::size_t devices = 0;
  for (const RankTrace& t : traces.ranks) devices = std::max(devices, t.devices.size());
  std::size_t together = 0;
  for (const HostClock& h : c.clocks) together = std::max(together, h.ranks.size());
  // A server of no more GPUs than the job has may be one of which the others were not visible to it.
  if (devices > 1 && (devices >= 8 || static_cast<std::int64_t>(devices) < l.world)) {
    l.gpus_per_node = static_cast<std::int64_t>(devices);
  } else {
    l.gpus_per_node = std::max<std::int64_t>(8, static_cast<std::int64_t>(together));
    l.doubts.push_back("GPUs of a server: taken as " + std::to_string(l.gpus_per_node));
  }

  const ExpertNames experts = read_expert_names(traces);
  std::vector<Use> use(c.groups.size());
  std::vector<std::set<std::uint32_t>> users(c.groups.size());
  for (const CommRow& row : c.rows) {
    if (row.group == kNone || row.parts != 0 || !row.launched) continue;
    Use& u = use[row.group];
    ++u.calls;
    u.bytes += static_cast<double>(std::max<std::int64_t>(row.bytes, 0));
    u.all_to_all += row.op == CommOp::all_to_all ? 1 : 0;
    u.gathers |= row.op == CommOp::all_gather;
    u.scatters |= row.op == CommOp::reduce_scatter;
    u.reduces |= row.op == CommOp::reduce_scatter || row.op == CommOp::all_reduce;
    users[row.group].insert(row.rank);
  }
  for (std::size_t k = 0; k < use.size(); ++k) {
    const double n = std::max<double>(1, static_cast<double>(users[k].size()));
    use[k].calls /= n;
    use[k].bytes /= n;
    use[k].all_to_all /= n;
    l.role.push_back(c.groups[k].inferred ? GroupRole::other : role_of_label(c.groups[k], l.world));
    if (c.groups[k].inferred && c.groups[k].size == l.world && l.world > 1) l.role[k] = GroupRole::world;
    // tokens travel all to all, and little else does within a group that does so
    const bool unknown = l.role[k] == GroupRole::other || l.role[k] == GroupRole::world;
    if (!unknown || use[k].all_to_all <= use[k].calls / 2 || c.groups[k].size < 2) continue;
    if (given.ep ? c.groups[k].size != *given.ep : !experts.experts) continue;
    l.role[k] = GroupRole::expert;
    l.doubts.push_back("expert parallel " + std::to_string(c.groups[k].size) + ": ranks that exchange all to all");
  }

  // Contexts: their groups are listed whether or not anything of them was recorded.
  for (const RankTrace& t : traces.ranks)
    for (const ProcessGroup& group : t.groups)
      if (expert_role_of_label(upper(group.desc)) == GroupRole::context && group.size <= l.world)
        l.cp = std::max(l.cp, group.size);
  for (std::size_t k = 0; k < c.groups.size(); ++k)
    if (l.role[k] == GroupRole::context && c.groups[k].size <= l.world) l.cp = std::max(l.cp, c.groups[k].size);
  if (given.cp && l.cp == 1) l.cp = *given.cp;
  // Sends round the ranks that share a sequence are not between stages.
  bool round_contexts = false;
  const auto within_context = [&](std::int64_t a, std::int64_t b, std::uint32_t group) {
    const std::int64_t tp = given.tp.value_or(1), block = tp * l.cp;
    const bool within = (group != kNone && l.role[group] == GroupRole::context) ||
                        (given.cp && l.cp > 1 && a / block == b / block && (b - a) % tp == 0);
    round_contexts = round_contexts || within;
    return within;
  };

  // Pipelines: ranks that sends and receives connect.
  std::vector<std::int64_t> home(static_cast<std::size_t>(l.world));
  std::iota(home.begin(), home.end(), 0);
  const auto find = [&](std::int64_t r) {
    while (home[static_cast<std::size_t>(r)] != r) r = home[static_cast<std::size_t>(r)];
    return r;
  };
  std::map<std::int64_t, int> distances;
  for (const CommRow& row : c.rows)
    for (std::uint32_t k = 0; k < row.parts; ++k) {
      const std::int64_t a = g.ranks[row.rank].rank, b = c.parts[row.first_part + k].peer;
      if (b < 0 || b >= l.world || a < 0 || within_context(a, b, c.parts[row.first_part + k].group)) continue;
      ++distances[std::abs(a - b)];
      const std::int64_t x = find(a), y = find(b);
      home[static_cast<std::size_t>(std::max(x, y))] = std::min(x, y);
    }
  for (const CommRow& row : c.rows) {  // without metadata: two ranks that exchange
    if (row.parts != 0 || row.group == kNone || row.op != CommOp::exchange || c.groups[row.group].ranks.size() != 2)
      continue;
    const std::int64_t x = find(c.groups[row.group].ranks[0]), y = find(c.groups[row.group].ranks[1]);
    if (x == y) continue;
    home[static_cast<std::size_t>(std::max(x, y))] = std::min(x, y);
    ++distances[c.groups[row.group].ranks[1] - c.groups[row.group].ranks[0]];
    l.doubts.push_back("pipelines: ranks that exchange in pairs");
  }
  std::sort(l.doubts.begin(), l.doubts.end());
  l.doubts.erase(std::unique(l.doubts.begin(), l.doubts.end()), l.doubts.end());
  std::map<std::int64_t, std::int64_t> sizes;
  for (std::int64_t r = 0; r < l.world; ++r) ++sizes[find(r)];
  for (const auto& [first, n] : sizes) l.pp = std::max(l.pp, n);
  for (std::size_t k = 0; k < c.groups.size(); ++k)  // sends of which no rank here takes part
    if (l.role[k] == GroupRole::pipeline) l.pp = std::max(l.pp, c.groups[k].size);

  const bool described = std::any_of(c.rows.begin(), c.rows.end(), [](const CommRow& r) { return r.parts != 0; });
  bool unnamed = false;  // sends and receives whose peers are not told, and that no two ranks have with each other
  for (const CommRow& row : c.rows)
    unnamed = unnamed || (row.launched && row.op == CommOp::exchange && row.parts == 0 && (!described || l.pp == 1) &&
                          (l.pp == 1 || row.group == kNone || c.groups[row.group].ranks.size() != 2));
  if (unnamed && l.world > 1) {
    if (!given.pp)
      return fail("the job's layout cannot be told: ranks exchange, but the traces do not say with whom", "",
                  "record NCCL metadata (a recent PyTorch), or say --layout tp=N,pp=N,dp=N");
    l.pp = 1;
    l.doubts.push_back("pipelines: exchanges without peers");
  }
  // What is said goes before what is inferred; what the traces say for sure is held against it in the end.
  const bool pipelines_inferred =
      std::any_of(l.doubts.begin(), l.doubts.end(), [](const std::string& d) { return d.starts_with("pipeline"); });
  if (given.pp && (pipelines_inferred || l.pp == 1)) l.pp = *given.pp;

  // Tensor and data: as described; else the group that is called most by neighbours, and the one that reduces most.
  const auto size_of = [&](GroupRole r) {
    std::int64_t n = 1;
    for (std::size_t k = 0; k < c.groups.size(); ++k)
      if (l.role[k] == r && use[k].calls > 0) n = std::max(n, c.groups[k].size);
    return n;
  };
  l.tp = size_of(GroupRole::tensor);
  for (std::size_t k = 0; k < c.groups.size(); ++k) {
    if (l.role[k] != GroupRole::data || use[k].calls == 0) continue;
    const bool contexts = upper(c.groups[k].label).find("CP") != std::string::npos;  // gradients are reduced over both
    l.dp = std::max(l.dp, c.groups[k].size / (contexts && c.groups[k].size % l.cp == 0 ? l.cp : 1));
  }
  if (l.tp == 1 && given.tp) l.tp = *given.tp;
  if (l.dp == 1 && given.dp) l.dp = *given.dp;
  if (l.tp * l.pp * l.dp * l.cp != l.world) {
    // Layers call their tensor group at least as often as they send tokens to experts.
    double most = 0;
    for (std::size_t k = 0; k < c.groups.size(); ++k)
      if (l.role[k] == GroupRole::expert) most = std::max(most, use[k].calls / 2);
    std::int64_t tensor = 1;
    for (std::size_t k = 0; k < c.groups.size(); ++k) {
      const bool neighbours = stride_of(c.groups[k].ranks) == 1 && c.groups[k].size < l.world;
      if (l.role[k] != GroupRole::other || !neighbours || use[k].calls <= most) continue;
      most = use[k].calls;
      tensor = c.groups[k].size;
    }
    if (l.tp == 1 && tensor > 1 && l.world % (l.pp * l.cp * tensor) == 0) {
      l.tp = tensor;
      l.doubts.push_back("tensor parallel " + std::to_string(tensor) + ": the neighbours that call each other most");
    }
    const std::string contexts = l.cp > 1 ? ", context " + std::to_string(l.cp) : "";
    if (l.world % (l.tp * l.pp * l.cp) != 0) {
      return fail("the job's layout cannot be told: tensor " + std::to_string(l.tp) + contexts + " and pipeline " +
                      std::to_string(l.pp) + " do not divide " + std::to_string(l.world) + " ranks",
                  "", "are all of the job's process groups in the traces? else say --layout tp=N,pp=N,dp=N");
    }
    const std::int64_t left = l.world / (l.tp * l.pp * l.cp);
    if (given.dp && *given.dp != left)
      return fail("--layout says dp=" + std::to_string(*given.dp) + "; beside tp " + std::to_string(l.tp) + contexts +
                  " and pp " + std::to_string(l.pp) + " the job's " + std::to_string(l.world) + " ranks leave " +
                  std::to_string(left));
    l.dp = left;
    if (l.dp > 1 && !given.dp)
      l.doubts.push_back("data parallel " + std::to_string(l.dp) + ": what is left of the ranks");
  }
  // the order of ranks: how far a stage is from the next
  if (!distances.empty() && l.pp > 1 && l.dp > 1) {
    const auto most = std::max_element(distances.begin(), distances.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    l.pipeline_outermost = most->first % (l.tp * l.cp * l.dp) == 0 || most->first > l.tp * l.cp;
  }
  if (Status s = settle_experts(traces, c, experts, l); !s) return tl::unexpected(s.error());
  if (l.ep == 1 && given.ep && *given.ep > 1) {
    l.ep = *given.ep;
    if (Status s = settle_experts(traces, c, experts, l); !s) return tl::unexpected(s.error());
  }
  // groups without a description, by size and stride
  const auto stage_of = [&](std::int64_t r) { return l.stage_of(r); };
  const auto replica_of = [&](std::int64_t r) { return r / (l.pipeline_outermost ? l.tp : l.tp * l.pp) % l.dp; };
  const auto all_in_one = [](const std::vector<std::int64_t>& ranks, const auto& of) {
    return std::all_of(ranks.begin(), ranks.end(), [&](std::int64_t r) { return of(r) == of(ranks.front()); });
  };
  const auto is_model = [&](const std::vector<std::int64_t>& ranks) { return all_in_one(ranks, replica_of); };
  const auto is_stage = [&](const std::vector<std::int64_t>& ranks) { return all_in_one(ranks, stage_of); };
  for (std::size_t k = 0; k < c.groups.size(); ++k) {
    if (l.role[k] != GroupRole::other || c.groups[k].ranks.empty()) continue;
    const std::int64_t n = c.groups[k].size, stride = stride_of(c.groups[k].ranks);
    const std::int64_t dp_stride = l.pipeline_outermost ? l.tp : l.tp * l.pp;
    const std::int64_t pp_stride = l.stage_stride();
    const std::int64_t replicas = l.expert_replicas();
    if (n == l.tp && stride == 1 && l.tp > 1) {
      l.role[k] = GroupRole::tensor;
    } else if (n == l.cp && stride == l.tp && l.cp > 1) {
      l.role[k] = GroupRole::context;
    } else if (given.ep && n == l.ep && l.ep > 1 && stride == l.etp && use[k].gathers && use[k].scatters) {
      l.role[k] = GroupRole::expert;
    } else if (l.ep > 1 && replicas > 1 && n == replicas && use[k].reduces && n != l.dp * l.cp) {
      l.role[k] = GroupRole::expert_data;
    } else if (n == l.dp * l.cp && stride == dp_stride && n > 1) {
      l.role[k] = GroupRole::data;
    } else if (n == 2 && l.pp > 1 && stride == pp_stride * (l.pp - 1)) {
      l.role[k] = use[k].bytes > 1e6 ? GroupRole::embedding : GroupRole::pipeline;
    } else if (n == l.tp * l.pp && n < l.world && is_model(c.groups[k].ranks)) {
      l.role[k] = GroupRole::model;
    } else if (c.groups[k].inferred && n == l.tp * l.dp && l.dp > 1 && is_stage(c.groups[k].ranks)) {
      l.role[k] = GroupRole::data;  // of ranks that share layers: their reductions met at one time
    }
  }
  // with nothing but replicas the whole job is their group
  if (l.tp == 1 && l.pp == 1 && size_of(GroupRole::data) == 1)
    for (GroupRole& role : l.role)
      if (role == GroupRole::world) role = GroupRole::data;
  // groups that the traces list are sure, whatever they are for: one of what is said must be among them
  bool listed = false;
  for (std::size_t k = 0; k < c.groups.size(); ++k)
    listed = listed || (!c.groups[k].inferred && !c.groups[k].ranks.empty() && use[k].calls > 0);
  const auto used = [&](GroupRole r) {
    for (std::size_t k = 0; k < c.groups.size(); ++k)
      if (l.role[k] == r && use[k].calls > 0) return true;
    return false;
  };
  if (listed && given.cp && *given.cp > 1 && !used(GroupRole::context) && !round_contexts)
    return fail("--layout says cp=" + std::to_string(*given.cp) + ", but no " + std::to_string(*given.cp) +
                " ranks share a sequence in the traces");
  if (listed && given.ep && *given.ep > 1 && !used(GroupRole::expert) && experts.ep == 0)
    return fail("--layout says ep=" + std::to_string(*given.ep) + ", but no " + std::to_string(*given.ep) +
                " ranks exchange tokens of experts in the traces");
  if (listed && given.tp && *given.tp > 1 && !used(GroupRole::tensor))
    return fail("--layout says tp=" + std::to_string(*given.tp) + ", but no " + std::to_string(*given.tp) +
                " neighbours call each other in the traces");
  if (listed && given.dp && *given.dp > 1 && !used(GroupRole::data))
    return fail("--layout says dp=" + std::to_string(*given.dp) + ", but no " + std::to_string(*given.dp) +
                " replicas reduce gradients together in the traces");

  std::size_t inferred = 0, homeless = 0;
  for (std::size_t k = 0; k < c.groups.size(); ++k) inferred += c.groups[k].inferred && use[k].calls > 0 ? 1 : 0;
  for (const CommRow& row : c.rows)
    homeless += row.launched && row.group == kNone && row.parts == 0 && !is_point_to_point(row.op) ? 1 : 0;
  if (inferred != 0) l.doubts.push_back("process groups: " + std::to_string(inferred) + " told by times and order");
  if (homeless != 0)
    l.doubts.push_back("process groups: " + std::to_string(homeless) +
                       " collectives belong to none that could be told");
  l.confidence = l.doubts.empty() ? 1 : 0.7;

  // micro-batches: what the first stage sends to the second in a step
  std::map<std::pair<std::uint32_t, std::int64_t>, std::int64_t> sent;  // row of the sending rank, step
  for (const Meeting& m : c.meetings) {
    if (m.op != CommOp::send) continue;
    const CommRow &from = c.rows[c.members[m.first].row], &to = c.rows[c.members[m.first + 1].row];
    if (g.ranks[from.rank].rank >= g.ranks[to.rank].rank) continue;
    ++sent[{from.rank, from.step}];
  }
  std::vector<double> counts;
  for (const auto& [key, n] : sent) counts.push_back(static_cast<double>(n));
  l.num_microbatches = static_cast<std::int64_t>(median(counts));
  for (const CommRow& row : c.rows)
    if (row.group != kNone && l.role[row.group] == GroupRole::data && row.op == CommOp::reduce_scatter)
      l.distributed_optimizer = true;
  if (Status s = apply(given, l); !s) return tl::unexpected(s.error());
  return l;
}

}  // namespace orrery
