#include "rules/where.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/text_match.h"

namespace orrery {
namespace {

std::int64_t number_after(std::string_view text, std::string_view lead) {
  const std::size_t at = text.find(lead);
  if (at == std::string_view::npos) return -1;
  std::int64_t n = -1;
  std::from_chars(text.data() + at + lead.size(), text.data() + text.size(), n);
  return n;
}

constexpr std::uint64_t kBeside = 6;  // lines of one report
constexpr std::uint64_t kNear = 60;   // lines after the cause in which a launcher says which node it was

}  // namespace

TimeoutReading read_timeouts(const std::vector<Evidence>& evidence) {
  // rank -> the work it timed out at, the last that was enqueued
  struct Work {
    std::int64_t at = -1, enqueued = -1;
    std::uint32_t evidence = kNoRow;
  };
  std::map<std::int32_t, Work> ranks;
  for (std::uint32_t i = 0; i < evidence.size(); ++i) {
    const Evidence& e = evidence[i];
    if (e.kind != "timeout" || e.rank < 0 || e.survived) continue;
    std::int64_t at = number_after(e.text, "SeqNum=");
    if (at < 0) at = number_after(e.text, "work: ");
    if (at < 0) continue;
    Work& w = ranks[e.rank];
    if (w.at < 0) {
      w.at = at;
      w.evidence = i;
    }
    w.enqueued = std::max(w.enqueued, number_after(e.text, "last enqueued NCCL work: "));
  }
  TimeoutReading reading;
  if (ranks.size() < 3) return reading;
  std::vector<std::int64_t> work;
  for (const auto& [rank, w] : ranks) work.push_back(w.at);
  std::sort(work.begin(), work.end());
  const std::int64_t usual = work[work.size() / 2];
  int others = 0;
  std::int32_t behind = -1;
  for (const auto& [rank, w] : ranks) {
    if (w.at == usual) continue;
    ++others;
    if (w.at < usual) behind = rank;
  }
  if (others != 1 || behind < 0) return reading;
  const Work& w = ranks[behind];
  reading.behind = behind;
  reading.evidence = w.evidence;
  reading.line = evidence[w.evidence].line;
  reading.given_all = w.enqueued >= usual;
  return reading;
}

void blame(const std::vector<Evidence>& evidence, std::uint32_t root, Diagnosis& d) {
  const Evidence& r = evidence[root];
  d.rank = r.rank;
  d.node = r.node;
  d.where = "-";
  if (r.where == "none") {
    d.rank = -1;
    if (!d.node.empty() && r.kind == "node") d.where = d.node;
    d.node.clear();
    return;
  }
  // The same trouble told by another thread may say whose it is; a launcher's summary, on which host.
  if (d.rank < 0 && (r.where == "rank" || d.node.empty())) {
    for (const Evidence& e : evidence) {
      if (e.rank < 0 || e.file != r.file || e.line <= r.line || e.kind == "timeout" || e.kind == "peer") continue;
      if (e.line > r.line + (e.kind == r.kind ? kNear : kBeside)) continue;
      d.rank = e.rank;
      break;
    }
  }
  if (d.rank < 0 && d.node.empty()) {
    for (const Evidence& e : evidence)
      if (e.kind == "launcher-host" && e.file == r.file && e.line < r.line && e.line + kBeside >= r.line)
        d.node = e.node;
  }
  if (r.where == "node" && d.node.empty()) {
    for (const Evidence& e : evidence) {
      if (e.file != r.file || e.line < r.line || e.line > r.line + kBeside || e.node.empty() || e.kind == "timeout")
        continue;
      d.node = e.node;
      break;
    }
  }
  // Who times out waits for another.
  if (r.kind == "timeout" && r.why != "monitored-barrier") d.rank = -1;
  // Who reports that a peer is gone is the innocent one.
  if (r.kind == "peer") {
    d.rank = -1;
    d.node.clear();
  }
  if (r.where == "peer") {
    if (!r.peer.empty()) d.where = r.peer;
    if (!r.peer.empty()) d.rank = -1;
    if (d.where != "-") return;
  }
  const bool node_first = r.where == "node";
  if (node_first && !d.node.empty()) {
    d.where = d.node;
  } else if (d.rank >= 0) {
    d.where = "rank" + std::to_string(d.rank);
  } else if (!d.node.empty()) {
    d.where = d.node;
  }
}

}  // namespace orrery
