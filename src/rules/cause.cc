// The causal order: which evidence explains which, and what is left unexplained first.
#include <algorithm>
#include <cstdlib>

#include "rules/diagnose.h"

namespace orrery {
namespace {

constexpr std::uint64_t kNearLines = 40;  // a message and the detail of it, printed by several threads

// Negative: a is earlier. 0: not known (two files without comparable times).
int order(const Evidence& a, const Evidence& b) {
  if (a.file == b.file) return a.line < b.line ? -1 : a.line > b.line ? 1 : 0;
  return compare(a.time, b.time);
}

bool masks(const Evidence& a, const std::string& kind) {
  return std::find(a.masks.begin(), a.masks.end(), kind) != a.masks.end();
}

bool is(const Evidence& e, std::initializer_list<const char*> kinds) {
  return std::any_of(kinds.begin(), kinds.end(), [&](const char* k) { return e.kind == k; });
}

// Could a be why b happened? Tiers are the causal order, time the arbiter within it.
bool explains(const Evidence& a, const Evidence& b) {
  if (a.why == b.why && a.kind == b.kind) return order(a, b) < 0;
  const int o = order(a, b);
  const bool silent_a = is(a, {"straggler", "hang"}), silent_b = is(b, {"straggler", "hang"});
  if (silent_a != silent_b) return silent_b;
  if (masks(a, b.kind)) return true;
  if (masks(b, a.kind)) return false;
  if (a.role == Role::interruption) return o < 0 || b.tier >= 4;
  if (b.role == Role::interruption) return o < 0 && a.tier <= 3;
  // What ended a process tells least of all; a crash explains what its peers saw.
  if (b.tier >= 6) return a.tier < 6 || o < 0;
  if (a.tier >= 6) return false;
  // A line of the machine may reach the log late; so may the last words of a rank that died.
  if (a.tier <= 1 && b.tier >= 3) return true;
  if (a.tier <= 1 && b.tier == 2) return o < 0;
  if (a.tier == 2 && b.tier >= 4) return true;
  if (a.tier == 2 && b.tier == 3) return o < 0 || is(b, {"numeric", "cuda-program"});
  if (a.tier == 2 && b.tier == 2) return o < 0;
  if (a.tier <= 2 || b.tier <= 2) return a.tier <= b.tier && o < 0;
  // Links, peers and waits: the first one drew the others after it; a peer's loss that names its link nearby is the
  // link's; a crash of one process is why its peers lost it.
  if (is(a, {"ib", "cuda", "crash", "killed"}) && is(b, {"peer", "nccl-wrapper", "rendezvous", "rendezvous-heartbeat"}))
    return true;
  if (a.kind == "cuda-program" && is(b, {"timeout", "peer", "nccl-wrapper", "rendezvous"})) return true;
  if (is(a, {"crash", "killed"}) && b.kind == "timeout") return true;
  const bool near = a.file == b.file && (a.line < b.line ? b.line - a.line : a.line - b.line) <= kNearLines;
  if (is(a, {"nccl-wrapper"}) && is(b, {"peer"}) && near) return false;
  if (is(a, {"peer"}) && is(b, {"nccl-wrapper"})) return o < 0 || (a.file == b.file && a.line - b.line <= kNearLines);
  if (is(a, {"node"}) && b.tier >= 4) return true;
  return o < 0;
}

// Of two that nothing explains: the one earlier in the causal order when it may be the other's, else the first.
bool before(const Evidence& a, const Evidence& b) {
  const int o = order(a, b);
  if (a.tier <= 2 && b.tier <= 2) return o != 0 ? o < 0 : a.tier < b.tier;
  if (a.tier != b.tier) return a.tier < b.tier;
  return o < 0;
}

}  // namespace

std::uint32_t root_cause(const std::vector<Evidence>& evidence) {
  // One candidate a rule: its first. Evidence that training survived counts only where nothing else does.
  for (const bool survived : {false, true}) {
    std::vector<std::uint32_t> candidates;
    for (std::uint32_t i = 0; i < evidence.size(); ++i) {
      const Evidence& e = evidence[i];
      if (e.role != Role::cause && e.role != Role::interruption) continue;
      if (e.survived != survived) continue;
      if (survived && e.tier > 1) continue;
      const auto same = std::find_if(candidates.begin(), candidates.end(), [&](std::uint32_t c) {
        return evidence[c].rule == e.rule && evidence[c].why == e.why;
      });
      if (same == candidates.end()) {
        candidates.push_back(i);
      } else if (order(e, evidence[*same]) < 0) {
        *same = i;
      }
    }
    if (candidates.empty()) continue;
    std::uint32_t best = kNoRow;
    for (const std::uint32_t c : candidates) {
      const bool explained = std::any_of(candidates.begin(), candidates.end(), [&](std::uint32_t other) {
        return other != c && explains(evidence[other], evidence[c]) && !explains(evidence[c], evidence[other]);
      });
      if (explained) continue;
      if (best == kNoRow || before(evidence[c], evidence[best])) best = c;
    }
    if (best == kNoRow) {  // a circle: the first
      best = candidates.front();
      for (const std::uint32_t c : candidates)
        if (before(evidence[c], evidence[best])) best = c;
    }
    return best;
  }
  return kNoRow;
}

}  // namespace orrery
