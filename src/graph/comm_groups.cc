// Process groups of all ranks -> communicators of the job.
//
// A communicator is told by its list of ranks, complete in the metadata of the call or, where that is cut (torch cuts
// after 30), in distributedInfo; failing both by the list as cut and its size, which all members write alike. Several
// communicators over the same ranks are told apart by description, then by their order in distributedInfo. Names are a
// last resort: each process counts its own.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>

#include "graph/match.h"

namespace orrery {
namespace {

struct RankList {
  std::vector<std::int64_t> ranks;
  bool cut = false;
};

RankList parse_ranks(std::string_view text) {
  RankList out;
  out.cut = text.find("...") != std::string_view::npos;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] < '0' || text[i] > '9') {
      ++i;
      continue;
    }
    std::int64_t v = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), v);
    if (error != std::errc{}) {
      out.cut = true;
      break;
    }
    out.ranks.push_back(v);
    i = static_cast<std::size_t>(end - text.data());
  }
  return out;
}

std::vector<std::int64_t> sorted(std::vector<std::int64_t> v) {
  std::sort(v.begin(), v.end());
  v.erase(std::unique(v.begin(), v.end()), v.end());
  return v;
}

// torch writes "undefined" where a group was given no description.
bool given(std::string_view s) { return !s.empty() && s != "undefined"; }

struct Identity {
  std::vector<std::int64_t> ranks;  // empty = not known in whole
  std::string written;              // the list as cut
  std::int64_t size = 0;
  std::string desc;
  std::size_t ordinal = 0;  // among those of one rank with the same list and description
  auto operator<=>(const Identity&) const = default;
};

Identity identify(const RankComm& rank, const GroupSeen& seen) {
  Identity id;
  RankList list = parse_ranks(seen.ranks);
  id.desc = given(seen.desc) ? seen.desc : "";
  const ProcessGroup* configured = nullptr;
  for (const ProcessGroup& g : rank.configured)
    if (g.name == seen.name && (configured == nullptr || g.desc == seen.desc)) configured = &g;
  if ((list.cut || list.ranks.empty()) && configured != nullptr && !configured->ranks.empty() &&
      (configured->size == 0 || configured->size == static_cast<std::int64_t>(configured->ranks.size()))) {
    list.ranks.assign(configured->ranks.begin(), configured->ranks.end());
    list.cut = false;
  }
  if (!list.cut && !list.ranks.empty()) {
    id.ranks = sorted(list.ranks);
    id.size = static_cast<std::int64_t>(id.ranks.size());
  } else {
    id.written = seen.ranks.empty() ? seen.name : seen.ranks;
    id.size = seen.size;
  }
  // its place among the communicators of the rank over the same ranks
  for (const ProcessGroup& g : rank.configured) {
    if (g.name == seen.name) break;
    if ((given(g.desc) ? g.desc : "") != id.desc) continue;
    std::vector<std::int64_t> ranks(g.ranks.begin(), g.ranks.end());
    if (sorted(std::move(ranks)) == id.ranks) ++id.ordinal;
  }
  return id;
}

std::string label_of(const Identity& id, const GroupSeen& seen) {
  if (!id.desc.empty()) return id.desc;
  if (given(seen.name)) return seen.name;
  std::string s = "ranks:";
  for (std::size_t k = 0; k < id.ranks.size(); ++k) s += (k == 0 ? "" : ",") + std::to_string(id.ranks[k]);
  if (id.ranks.empty())
    for (const char c : seen.ranks)
      if (c != '[' && c != ']' && c != ' ') s += c;
  return s;
}

}  // namespace

std::vector<std::vector<std::uint32_t>> resolve_groups(const std::vector<RankGraph>& ranks, Communication& out) {
  std::vector<std::vector<std::uint32_t>> global(ranks.size());
  std::map<Identity, std::uint32_t> known;
  std::vector<Identity> identity;                // by group
  std::vector<std::set<std::uint32_t>> members;  // by group: rows of `ranks`
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    for (const GroupSeen& seen : ranks[r].communication.groups) {
      Identity id = identify(ranks[r].communication, seen);
      // several names of one rank that look alike otherwise are several communicators
      while (known.contains(id) && members[known[id]].contains(r)) ++id.ordinal;
      const auto [it, fresh] = known.try_emplace(id, static_cast<std::uint32_t>(out.groups.size()));
      if (fresh) {
        out.groups.push_back({label_of(id, seen), id.ranks, id.size, false});
        identity.push_back(id);
        members.emplace_back();
      }
      members[it->second].insert(r);
      global[r].push_back(it->second);
    }
  }
  // Ranks that describe one communicator differently: the same list, and no rank in both.
  std::vector<std::uint32_t> merged(out.groups.size());
  for (std::uint32_t a = 0; a < merged.size(); ++a) {
    merged[a] = a;
    for (std::uint32_t b = 0; b < a; ++b) {
      if (merged[b] != b || identity[a].ranks != identity[b].ranks || identity[a].written != identity[b].written ||
          identity[a].size != identity[b].size)
        continue;
      const bool apart =
          std::none_of(members[a].begin(), members[a].end(), [&](std::uint32_t r) { return members[b].contains(r); });
      if (!apart) continue;
      members[b].insert(members[a].begin(), members[a].end());
      merged[a] = b;
      break;
    }
  }
  // A name and a size without ranks, used by more ranks than there are members: several communicators, which only times
  // can tell apart.
  const auto ambiguous = [&](std::uint32_t g) {
    return identity[g].ranks.empty() && identity[g].size > 0 && std::ssize(members[g]) > identity[g].size;
  };
  for (auto& of_rank : global)
    for (std::uint32_t& g : of_rank) g = ambiguous(merged[g]) ? kNone : merged[g];
  return global;
}

}  // namespace orrery
