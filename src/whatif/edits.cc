#include "whatif/edits.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>

namespace orrery {
namespace {

std::string quoted(const Edit& e) { return e.value.empty() ? e.name : e.name + " " + e.value; }

// RE2: no stack, and time as the pattern times the name, whatever the pattern.
using Pattern = std::shared_ptr<const re2::RE2>;

Result<Pattern> pattern(const std::string& text, const Edit& e) {
  if (text.empty())
    return fail("an empty pattern", quoted(e), e.name == "--fuse" ? "REGEX1,REGEX2" : "REGEX=FACTORx, as in gemm=0.5x");
  constexpr std::size_t kShown = 200, kLongest = 1'000;
  if (text.size() > kLongest)
    return fail("a pattern of " + std::to_string(text.size()) + " characters", e.name,
                "at most " + std::to_string(kLongest));
  auto re = std::make_shared<const re2::RE2>(text, re2::RE2::Quiet);
  if (!re->ok())
    return fail("not a regular expression: " + text.substr(0, kShown), e.name, re->error().substr(0, kShown));
  return re;
}

// Of each trace and name: whether `re` is found in it. Kernel names are many times fewer than kernels.
class Chosen {
 public:
  Chosen(const TraceSet& traces, Pattern re) : traces_(traces), re_(std::move(re)), asked_(traces.ranks.size()) {
    for (std::size_t t = 0; t < asked_.size(); ++t) asked_[t].assign(traces.ranks[t].strings.size(), 0);
  }
  bool operator()(const ExecGraph& g, std::uint32_t n) {
    if (g.source[n] == kNoOp) return false;
    const std::uint32_t t = g.ranks[g.rank[n]].trace;
    std::uint8_t& answer = asked_[t][raw(traces_.ranks[t].ops.name[raw(g.source[n])])];
    if (answer == 0) {
      const std::string_view name = traces_.ranks[t].name_of(g.source[n]);
      answer = re2::RE2::PartialMatch(re2::StringPiece(name.data(), name.size()), *re_) ? 2 : 1;
    }
    return answer == 2;
  }

 private:
  const TraceSet& traces_;
  Pattern re_;
  std::vector<std::vector<std::uint8_t>> asked_;
};

bool is_task(NodeKind k) {
  return k == NodeKind::kernel || k == NodeKind::comm || k == NodeKind::memcpy || k == NodeKind::memset;
}

Result<AppliedEdit> kernel(Scenario& s, const Edit& e) {
  const std::size_t at = e.value.rfind('=');
  if (at == std::string::npos) return fail("no factor", quoted(e), "REGEX=FACTORx, as in gemm=0.5x");
  const auto factor = parse_factor(std::string_view(e.value).substr(at + 1));
  if (!factor) return fail(factor.error().what, quoted(e), factor.error().advice);
  const auto re = pattern(e.value.substr(0, at), e);
  if (!re) return tl::unexpected(re.error());
  ExecGraph& g = s.build.graph;
  Chosen chosen(s.traces, *re);
  AppliedEdit done{e, {}, "kernels keep their factor whatever runs beside them", {Cause::kernels_rescaled, 0.05}};
  std::uint64_t matched = 0;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (!is_task(g.kind[n]) || !chosen(g, n)) continue;
    ++matched;
    const Ns t = std::llround(static_cast<double>(g.duration[n]) * *factor);
    done.changed.nodes += t != g.duration[n];
    g.duration[n] = t;
  }
  if (matched == 0) return fail("no kernel matches", quoted(e), "orrery replay lists the names");
  refresh_queue_lags(g);
  return done;
}

// A kernel that comes right after one of the first pattern on its stream is taken into it.
Result<AppliedEdit> fuse(Scenario& s, const Edit& e) {
  const std::size_t comma = e.value.find(',');
  if (comma == std::string::npos) return fail("two patterns are needed", quoted(e), "REGEX1,REGEX2");
  const auto first = pattern(e.value.substr(0, comma), e), second = pattern(e.value.substr(comma + 1), e);
  if (!first) return tl::unexpected(first.error());
  if (!second) return tl::unexpected(second.error());
  ExecGraph& g = s.build.graph;
  Chosen is_first(s.traces, *first), is_second(s.traces, *second);
  AppliedEdit done{
      e, {}, "a fused kernel takes as long as the longer of its two, and one launch", {Cause::kernels_rescaled, 0.5}};
  // by lane, the last task; nodes of a lane come in its order
  std::vector<std::uint32_t> last;
  const std::vector<Ns> before = g.duration;
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.lane[n] == kNone || !is_task(g.kind[n])) continue;
    if (last.size() <= g.lane[n]) last.resize(g.lane[n] + 1, kNone);
    const std::uint32_t previous = std::exchange(last[g.lane[n]], n);
    if (previous == kNone || g.kind[previous] != NodeKind::kernel || g.kind[n] != NodeKind::kernel) continue;
    if (!is_first(g, previous) || !is_second(g, n)) continue;
    g.duration[previous] = std::max(g.duration[previous], before[n]);
    g.duration[n] = 0;
    ++done.changed.nodes;
    for (std::uint32_t k = g.first_pred[n]; k < g.first_pred[n + 1]; ++k) {
      if (g.pred_kind[k] == EdgeKind::stream && g.pred_lag[k] != 0) g.pred_lag[k] = 0, ++done.changed.edges;
      if (g.pred_kind[k] != EdgeKind::launch) continue;
      // its launch call costs nothing: the node after the begin of the call
      const std::uint32_t begin = raw(g.pred[k]);
      for (std::uint32_t m = begin + 1; m < std::min(g.size(), begin + 64); ++m) {
        if (g.lane[m] != g.lane[begin]) continue;
        if (g.source[m] == g.source[begin]) g.duration[m] = 0, ++done.changed.nodes;
        break;
      }
    }
    last[g.lane[n]] = previous;  // what follows may be taken in as well
  }
  if (done.changed.nodes == 0) return fail("no kernel of the second pattern follows one of the first", quoted(e));
  refresh_queue_lags(g);
  return done;
}

Result<AppliedEdit> host(Scenario& s, const Edit& e) {
  const auto factor = parse_factor(e.value);
  if (!factor) return fail(factor.error().what, quoted(e), factor.error().advice);
  return AppliedEdit{e,
                     scale_host(s.build.graph, *factor),
                     "all time of CPU threads alike, waits follow by themselves",
                     {Cause::host, 0.15}};
}

Result<AppliedEdit> launch(Scenario& s, const Edit& e) {
  const auto factor = parse_factor(e.value);
  if (!factor) return fail(factor.error().what, quoted(e), factor.error().advice);
  return AppliedEdit{e,
                     scale_launches(s.build.graph, *factor),
                     "the calls that launch, not the operators around them",
                     {Cause::host, 0.15}};
}

// Launches free: what the calls cost, and the time from a call to its kernel where nothing else holds it.
Result<AppliedEdit> cuda_graphs(Scenario& s, const Edit& e) {
  ExecGraph& g = s.build.graph;
  AppliedEdit done{
      e, scale_launches(g, 0), "launch calls cost nothing; the operators around them still run", {Cause::host, 0.3}};
  for (std::uint32_t k = 0; k < g.edges(); ++k) {
    if (g.pred_kind[k] != EdgeKind::launch || g.pred_lag[k] <= 0) continue;
    g.pred_lag[k] = 0;
    ++done.changed.edges;
  }
  return done;
}

Result<AppliedEdit> network(Scenario& s, const Edit& e) {
  struct Part {
    std::string_view key;
    double factor = 1;
    double latency_us = -1;
  };
  std::vector<Part> parts;
  for (std::string_view rest = e.value; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    rest.remove_prefix(std::min(rest.size(), comma + 1));
    const std::size_t at = item.find('=');
    const std::string_view key = item.substr(0, at);
    if (at == std::string_view::npos || (key != "intra" && key != "inter" && key != "latency_us"))
      return fail("not a part of the network: " + std::string(item), quoted(e), "intra=1.5x,inter=2x,latency_us=5");
    const std::string_view value = item.substr(at + 1);
    if (std::any_of(parts.begin(), parts.end(), [&](const Part& p) { return p.key == key; }))
      return fail(std::string(key) + " is given twice", quoted(e));
    Part p{key};
    if (key == "latency_us") {
      const auto us = value == "0" ? Result<double>(0.0) : parse_factor(value);
      if (!us || value.ends_with('x')) return fail("not a latency: " + std::string(value), quoted(e), "latency_us=5");
      p.latency_us = *us;
    } else if (value.ends_with('x')) {
      const auto factor = parse_factor(value);
      if (!factor) return fail(factor.error().what, quoted(e), factor.error().advice);
      p.factor = *factor;
    } else {  // a bandwidth: against what the largest messages reach today
      const auto target = parse_factor(value);
      if (!target) return fail(target.error().what, quoted(e), "GB/s, or a factor such as 1.5x");
      const double today = bus_bandwidth(s.build.communication, key == "intra" ? Link::intra : Link::inter);
      if (today <= 0) return fail("no transfer of the traces runs over " + std::string(key) + " links", quoted(e));
      p.factor = *target / today;
    }
    parts.push_back(p);
  }
  if (parts.empty()) return fail("no part of the network", quoted(e), "intra=1.5x,inter=2x,latency_us=5");
  // bandwidths first: they leave the latency that the traces tell, which another one then stands in for
  std::stable_partition(parts.begin(), parts.end(), [](const Part& p) { return p.latency_us < 0; });
  AppliedEdit done{e, {}, "transfers are latency and bytes over bandwidth; compute does not feel the other overlap"};
  bool changes[2] = {false, false};
  for (const Part& p : parts) {
    changes[0] |= p.key != "inter";
    changes[1] |= p.key != "intra";
  }
  constexpr double kOff = 0.15;  // of both together
  const double each = changes[0] && changes[1] ? kOff / std::sqrt(2.0) : kOff;
  if (changes[0]) done.doubt.add(Cause::transfers_intra, each);
  if (changes[1]) done.doubt.add(Cause::transfers_inter, each);
  for (const Part& p : parts) {
    if (p.latency_us >= 0) {
      for (const Link l : {Link::intra, Link::inter}) {
        const Changed c = set_latency(s.build, l, static_cast<Ns>(p.latency_us * 1000));
        done.changed.nodes += c.nodes;
      }
      continue;
    }
    const Link link = p.key == "intra" ? Link::intra : Link::inter;
    const Changed c = scale_bandwidth(s.build, link, p.factor);
    const auto& meetings = s.build.communication.meetings;
    if (std::none_of(meetings.begin(), meetings.end(),
                     [&](const Meeting& m) { return link_of(s.build.communication, m) == link; }))
      return fail("no collective whose members all have traces runs over " + std::string(p.key) + " links", quoted(e));
    done.changed.nodes += c.nodes;
    done.changed.edges += c.edges;
  }
  return done;
}

Result<AppliedEdit> without_stragglers(Scenario& s, const Edit& e) {
  AppliedEdit done{e, {}, "a straggler becomes as fast as the median of its peers", {Cause::stragglers, 0.2}};
  done.changed = remove_stragglers(s.build, find_stragglers(s.traces, s.build));
  return done;
}

Result<AppliedEdit> delay(Scenario& s, const Edit& e) {
  std::int64_t rank = -1;
  double ms = 0;
  bool has_rank = false, has_ms = false;
  for (std::string_view rest = e.value; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view item = rest.substr(0, comma);
    rest.remove_prefix(std::min(rest.size(), comma + 1));
    const char* const end = item.data() + item.size();
    if (!has_rank && item.starts_with("rank=") && std::from_chars(item.data() + 5, end, rank).ptr == end) {
      has_rank = true;
      continue;
    }
    if (!has_ms && item.starts_with("ms=") && std::from_chars(item.data() + 3, end, ms).ptr == end) {
      has_ms = true;
      continue;
    }
    return fail("not a delay: " + std::string(item), quoted(e), "rank=3,ms=10");
  }
  if (rank < 0) return fail("no rank", quoted(e), "rank=3,ms=10");
  if (!(ms > 0 && ms < 1e9)) return fail("not a time: above 0 and below 1e9 ms", quoted(e), "rank=3,ms=10");
  ExecGraph& g = s.build.graph;
  AppliedEdit done{e, {}, "the rank's first thread is late by so much at the begin of each step", {Cause::host, 0.05}};
  bool known = false;
  for (const Step& step : g.steps) {
    if (g.ranks[step.rank].rank != rank) continue;
    known = true;
    // the first host work after the step's begin, on its thread
    const std::uint32_t begin = raw(step.begin_node);
    for (std::uint32_t n = begin + 1; n < g.size(); ++n) {
      if (g.lane[n] != g.lane[begin] || g.kind[n] != NodeKind::host) continue;
      g.duration[n] += static_cast<Ns>(ms * 1e6);
      ++done.changed.nodes;
      break;
    }
  }
  if (!known) return fail("no trace of rank " + std::to_string(rank), quoted(e));
  if (done.changed.nodes == 0) return fail("the steps have no markers to begin at", quoted(e));
  return done;
}

// The bound that no overlap can pass: communication takes no time at all.
Result<AppliedEdit> perfect_overlap(Scenario& s, const Edit& e) {
  ExecGraph& g = s.build.graph;
  AppliedEdit done{e, {}, "a bound, not a prediction: transfers take no time, ranks still wait for each other"};
  for (std::uint32_t n = 0; n < g.size(); ++n) {
    if (g.kind[n] != NodeKind::comm || g.duration[n] == 0) continue;
    g.duration[n] = 0;
    ++done.changed.nodes;
  }
  refresh_queue_lags(g);
  return done;
}

struct Row {
  std::string_view name;
  Result<AppliedEdit> (*apply)(Scenario&, const Edit&);
};
constexpr std::array<Row, 9> kEdits = {{{"--kernel", kernel},
                                        {"--fuse", fuse},
                                        {"--host", host},
                                        {"--launch", launch},
                                        {"--cuda-graphs", cuda_graphs},
                                        {"--network", network},
                                        {"--without-stragglers", without_stragglers},
                                        {"--delay", delay},
                                        {"--perfect-overlap", perfect_overlap}}};

}  // namespace

std::string_view name_of(Cause c) {
  switch (c) {
    case Cause::kernels_rescaled:
      return "kernels rescaled";
    case Cause::kernels_from_facts:
      return "kernels from facts";
    case Cause::transfers_intra:
      return "transfers inside servers";
    case Cause::transfers_inter:
      return "transfers between servers";
    case Cause::host:
      return "host";
    case Cause::structure:
      return "the new order of work";
    case Cause::stragglers:
      return "stragglers";
    case Cause::untraced_partners:
      return "waiting for ranks without a trace";
    case Cause::replay:
      return "replay's own error";
    case Cause::least:
      return "the least that is given (0.5 %)";
  }
  return "";
}

void Doubt::add(Cause c, double half) {
  double& of = by_cause[static_cast<std::size_t>(c)];
  of = std::hypot(of, half);
}

void Doubt::add(const Doubt& other, double times) {
  for (std::size_t c = 0; c < kCauses; ++c) add(static_cast<Cause>(c), times * other.by_cause[c]);
}

double Doubt::total() const {
  double squares = 0;
  for (const double half : by_cause) squares += half * half;
  return std::sqrt(squares);
}

Result<double> parse_factor(std::string_view text) {
  std::string_view digits = text;
  if (digits.ends_with('x')) digits.remove_suffix(1);
  double v = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, v);
  if (error != std::errc{} || stop != end || !(v > 0) || !(v < 1e6))
    return fail("not a factor: " + std::string(text), "", "a number above 0 and below a million, as in 0.5x");
  return v;
}

Result<AppliedEdit> apply_edit(Scenario& scenario, const Edit& edit) {
  for (const Row& row : kEdits)
    if (row.name == edit.name) return row.apply(scenario, edit);
  return fail("not an edit: " + edit.name);
}

}  // namespace orrery
