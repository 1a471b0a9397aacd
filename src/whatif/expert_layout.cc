#include "whatif/expert_layout.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/text_match.h"

namespace orrery {
namespace {

std::string upper(std::string_view s) {
  std::string out(s);
  for (char& c : out)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return out;
}

}  // namespace

std::optional<GroupRole> expert_role_of_label(std::string_view label) {
  if (has(label, "EXPERT") || has(label, "EFSDP")) {
    if (has(label, "DATA") || has(label, "EFSDP")) return GroupRole::expert_data;
    if (has(label, "PIPELINE")) return GroupRole::expert_stages;
    if (has(label, "TENSOR_AND_MODEL")) return GroupRole::expert_model;
    if (has(label, "TENSOR")) return GroupRole::expert_tensor;
    return GroupRole::expert;
  }
  if (label == "EP" || has(label, "MESH_EP") || has(label, "EP_GROUP") || has(label, "EP_SIZE"))
    return GroupRole::expert;
  if (has(label, "MESH_ETP")) return GroupRole::expert_tensor;
  // beside others: not a degree of its own
  if (has(label, "TENSOR_AND_CONTEXT") || has(label, "TENSOR_AND_DATA")) return GroupRole::other;
  if (has(label, "WITH_CP")) return std::nullopt;  // of replicas and contexts together: data
  if (has(label, "CONTEXT_PARALLEL") || label == "CP" || has(label, "MESH_CP")) return GroupRole::context;
  return std::nullopt;
}

std::int64_t ranks_of_deep_ep(std::string_view kernel) {
  // published as deep_ep, and in its makers' own traces as dpsk::ep
  std::size_t at = kernel.find("deep_ep::");
  if (at == std::string_view::npos) at = kernel.find("dpsk::ep::");
  if (at == std::string_view::npos) return 0;
  kernel.remove_prefix(at);
  const bool inside = has(kernel, "intranode::"), between = has(kernel, "internode::");
  const std::size_t open = kernel.find('<'), call = kernel.find('(');
  if ((!inside && !between) || open == std::string_view::npos || open > call) return 0;
  std::string_view rest = kernel.substr(open + 1);
  if (between) {  // <low latency mode, ranks of remote memory, ...>
    const std::size_t comma = rest.find(',');
    const std::string_view mode = rest.substr(0, comma);
    if (comma == std::string_view::npos ||
        (mode != "false" && mode != "true" && mode != "(bool)0" && mode != "(bool)1"))
      return 0;
    rest.remove_prefix(comma + 1);
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  }
  if (rest.starts_with("(int)")) rest.remove_prefix(5);
  std::int64_t ranks = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), ranks);
  constexpr std::int64_t kServer = 8, kMost = 4096;
  if (error != std::errc{} || end == rest.data() || ranks < 1 || ranks > kMost) return 0;
  return between ? ranks * kServer : ranks;
}

ExpertNames read_expert_names(const TraceSet& traces) {
  ExpertNames out;
  for (const RankTrace& t : traces.ranks) {
    std::vector<std::uint8_t> asked(t.strings.size(), 0);
    for (std::size_t i = 0; i < t.ops.size(); ++i) {
      if (asked[raw(t.ops.name[i])]++ != 0) continue;
      const std::string_view name = t.name_of(OpId{static_cast<std::uint32_t>(i)});
      const std::string large = upper(name.substr(0, 512));
      for (const std::string_view part : {"EXPERT", "GROUPEDGEMM", "GROUPED_GEMM", "GROUPED_MM", "GROUPEDMM",
                                          "GROUPEDLINEAR", "GROUPED_LINEAR", "GROUPEDMLP", "MOELAYER", "MOE_"})
        out.experts = out.experts || has(large, part);
      const std::int64_t ranks = ranks_of_deep_ep(name);
      out.ep = std::max(out.ep, ranks);
      out.experts = out.experts || ranks > 0;
      asked[raw(t.ops.name[i])] = 1;
    }
  }
  return out;
}

namespace {

std::int64_t stride_of(const std::vector<std::int64_t>& ranks) {
  if (ranks.size() < 2) return 0;
  const std::int64_t s = ranks[1] - ranks[0];
  for (std::size_t k = 2; k < ranks.size(); ++k)
    if (ranks[k] - ranks[k - 1] != s) return 0;
  return s;
}

}  // namespace

Status settle_experts(const TraceSet& traces, const Communication& c, const ExpertNames& names, JobLayout& l) {
  std::int64_t tensor = 0, stride = 0, data = 0;
  const auto look = [&](GroupRole role, std::int64_t size, const std::vector<std::int64_t>& ranks) {
    if (size > l.world) return;  // of another job, or a fault of the record
    if (role == GroupRole::expert) l.ep = std::max(l.ep, size);
    if (role == GroupRole::expert && stride_of(ranks) > 0) stride = stride_of(ranks);
    if (role == GroupRole::expert_tensor) tensor = std::max(tensor, size);
    if (role == GroupRole::expert_data) data = std::max(data, size);
  };
  // Groups are listed whether or not anything of them was recorded.
  for (const RankTrace& t : traces.ranks)
    for (const ProcessGroup& g : t.groups)
      if (const auto role = expert_role_of_label(upper(g.desc)))
        look(*role, std::max(g.size, static_cast<std::int64_t>(g.ranks.size())),
             std::vector<std::int64_t>(g.ranks.begin(), g.ranks.end()));
  for (std::size_t k = 0; k < c.groups.size(); ++k) look(l.role[k], c.groups[k].size, c.groups[k].ranks);
  if (l.ep == 1 && names.ep > 1) {
    l.ep = names.ep;
    l.doubts.push_back("expert parallel " + std::to_string(names.ep) + ": what the kernels of DeepEP are compiled for");
  }
  if (l.ep == 1) return {};
  // Members of a group are as far apart as experts are split by tensors.
  const std::int64_t per_stage = l.world / l.pp;
  const std::int64_t one = l.pipeline_outermost ? l.tp : l.tp * l.pp;  // from a replica to the next
  l.etp = tensor > 0 ? tensor : stride > 0 && stride < l.tp ? stride : stride >= one || stride == 0 ? l.tp : 1;
  const auto divides = [&](std::int64_t etp) { return per_stage % (l.ep * etp) == 0; };
  if (tensor == 0 && !divides(l.etp) && divides(1)) l.etp = 1;
  if (!divides(l.etp))
    return fail("the job's layout cannot be told: expert parallel " + std::to_string(l.ep) +
                    (l.etp > 1 ? " and tensors of experts over " + std::to_string(l.etp) : "") + " do not divide the " +
                    std::to_string(per_stage) + " ranks of a stage",
                "", "are all of the job's process groups in the traces? else say --layout ep=N");
  if (data > 1 && data != l.expert_replicas())
    return fail("the job's layout cannot be told: gradients of experts are reduced over " + std::to_string(data) +
                    " ranks, expert parallel " + std::to_string(l.ep) + " leaves " +
                    std::to_string(l.expert_replicas()),
                "", "are all files of one run? else say --layout ep=N");
  return {};
}

}  // namespace orrery
