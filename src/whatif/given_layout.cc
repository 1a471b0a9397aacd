#include "whatif/given_layout.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace orrery {
namespace {

constexpr std::string_view kKeys =
    "tp, pp, dp, cp, ep, layers, num-microbatches, gpus-per-node, schedule, hidden, ffn, heads, kv-heads, head-dim, "
    "seq-length, "
    "micro-batch-size, vocab, sequence-parallel, recompute, distributed-optimizer";

std::string quoted(std::string_view key, std::string_view value) {
  return "--layout " + std::string(key) + "=" + std::string(value);
}

// No dimension or degree of a job that runs is larger.
constexpr std::int64_t kLargest = 1'000'000'000;

bool read_number(std::string_view text, std::int64_t& out) {
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, out);
  return read.ec == std::errc{} && read.ptr == end && out >= 1 && out <= kLargest;
}

struct Number {
  std::string_view key;
  std::optional<std::int64_t> GivenLayout::*at;
};
constexpr Number kNumbers[] = {{"tp", &GivenLayout::tp},
                               {"pp", &GivenLayout::pp},
                               {"dp", &GivenLayout::dp},
                               {"cp", &GivenLayout::cp},
                               {"ep", &GivenLayout::ep},
                               {"layers", &GivenLayout::layers},
                               {"num-microbatches", &GivenLayout::num_microbatches},
                               {"gpus-per-node", &GivenLayout::gpus_per_node}};
struct Dimension {
  std::string_view key;
  double Dims::*at;
};
constexpr Dimension kDimensions[] = {{"hidden", &Dims::hidden},        {"ffn", &Dims::ffn},
                                     {"heads", &Dims::heads},          {"kv-heads", &Dims::kv_heads},
                                     {"head-dim", &Dims::head_dim},    {"seq-length", &Dims::seq},
                                     {"micro-batch-size", &Dims::mbs}, {"vocab", &Dims::vocab}};
struct Switch {
  std::string_view key;
  std::optional<bool> GivenLayout::*at;
};
constexpr Switch kSwitches[] = {{"sequence-parallel", &GivenLayout::sequence_parallel},
                                {"distributed-optimizer", &GivenLayout::distributed_optimizer}};

Status read_schedule(std::string_view value, GivenLayout& out) {
  if (value == "1f1b") {
    out.schedule = ScheduleKind::one_f_one_b;
    out.chunks = 1;
    return {};
  }
  constexpr std::string_view kInterleaved = "interleaved:";
  std::int64_t chunks = 0;
  if (value.starts_with(kInterleaved) && read_number(value.substr(kInterleaved.size()), chunks) && chunks <= 1024) {
    out.schedule = chunks == 1 ? ScheduleKind::one_f_one_b : ScheduleKind::interleaved;
    out.chunks = static_cast<std::int32_t>(chunks);
    return {};
  }
  return fail("not a schedule of a traced job: " + quoted("schedule", value), "", "1f1b or interleaved:CHUNKS");
}

Status read_item(std::string_view key, std::string_view value, GivenLayout& out) {
  for (const Number& n : kNumbers) {
    if (n.key != key) continue;
    std::int64_t number = 0;
    if (!read_number(value, number)) return fail("not a number from 1 on: " + quoted(key, value));
    out.*n.at = number;
    return {};
  }
  for (const Dimension& d : kDimensions) {
    if (d.key != key) continue;
    std::int64_t number = 0;
    if (!read_number(value, number)) return fail("not a number from 1 on: " + quoted(key, value));
    out.dims.*d.at = static_cast<double>(number);
    return {};
  }
  for (const Switch& s : kSwitches) {
    if (s.key != key) continue;
    if (value != "on" && value != "off") return fail("neither on nor off: " + quoted(key, value));
    out.*s.at = value == "on";
    return {};
  }
  if (key == "schedule") return read_schedule(value, out);
  if (key == "recompute") {
    if (value != "none" && value != "selective" && value != "full")
      return fail("not a kind of recomputation: " + quoted(key, value), "", "none, selective or full");
    out.recompute = std::string(value);
    return {};
  }
  return fail("unknown key of --layout: " + std::string(key), "", "there are " + std::string(kKeys));
}

}  // namespace

bool GivenLayout::empty() const {
  bool none = !schedule && !recompute;
  for (const Number& n : kNumbers) none = none && !(this->*n.at);
  for (const Dimension& d : kDimensions) none = none && dims.*d.at == 0;
  for (const Switch& s : kSwitches) none = none && !(this->*s.at);
  return none;
}

Result<GivenLayout> parse_layout(std::string_view text) {
  GivenLayout out;
  std::vector<std::string_view> seen;
  while (true) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::size_t at = item.find('=');
    if (at == std::string_view::npos || at == 0)
      return fail("not KEY=VALUE in --layout: \"" + std::string(item) + "\"", "", "keys: " + std::string(kKeys));
    std::string_view key = item.substr(0, at);
    if (key == "microbatches") key = "num-microbatches";
    if (key == "seq") key = "seq-length";
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) return fail("twice in --layout: " + std::string(key));
    seen.push_back(key);
    if (Status s = read_item(key, item.substr(at + 1), out); !s) return tl::unexpected(s.error());
    if (item.size() == text.size()) break;
    text.remove_prefix(item.size() + 1);
  }
  return out;
}

Status apply(const GivenLayout& given, JobLayout& layout) {
  struct Degree {
    const std::optional<std::int64_t>& said;
    std::int64_t JobLayout::*at;
    std::string_view key, doubt;  // how its doubt begins
  };
  const Degree degrees[] = {{given.tp, &JobLayout::tp, "tp", "tensor parallel"},
                            {given.pp, &JobLayout::pp, "pp", "pipeline"},
                            {given.dp, &JobLayout::dp, "dp", "data parallel"},
                            {given.cp, &JobLayout::cp, "cp", "context parallel"},
                            {given.ep, &JobLayout::ep, "ep", "expert parallel"}};
  const auto shares_ranks = [](const Degree& d) { return d.key != "ep"; };  // experts are on the ranks of the others
  const auto doubt_of = [&](std::string_view begin) {
    return std::find_if(layout.doubts.begin(), layout.doubts.end(),
                        [&](const std::string& d) { return d.starts_with(begin); });
  };
  std::int64_t product = 1;
  for (const Degree& d : degrees)
    if (shares_ranks(d))
      product *= std::min(d.said.value_or(layout.*d.at), kLargest / std::max<std::int64_t>(1, product));
  if (product != layout.world) {
    std::string text;
    for (const Degree& d : degrees)
      if (shares_ranks(d) && (d.key != "cp" || d.said || layout.cp > 1))
        text += (text.empty() ? "" : " * ") + std::string(d.key) + " " + std::to_string(d.said.value_or(layout.*d.at));
    return fail(text + " are not the job's " + std::to_string(layout.world) + " ranks", "", "--layout tp=N,pp=N,dp=N");
  }
  for (const Degree& d : degrees) {
    if (!d.said) continue;
    const auto doubt = doubt_of(d.doubt);
    if (*d.said != layout.*d.at && doubt == layout.doubts.end())
      return fail("--layout says " + std::string(d.key) + "=" + std::to_string(*d.said) + ", the traces " +
                  std::to_string(layout.*d.at));
    layout.*d.at = *d.said;
    if (doubt != layout.doubts.end()) layout.doubts.erase(doubt);
  }
  if (given.gpus_per_node) {
    layout.gpus_per_node = *given.gpus_per_node;
    if (const auto doubt = doubt_of("GPUs of a server"); doubt != layout.doubts.end()) layout.doubts.erase(doubt);
  }
  if (given.layers) layout.layers = *given.layers;
  if (given.num_microbatches) layout.num_microbatches = *given.num_microbatches;
  if (given.distributed_optimizer) layout.distributed_optimizer = *given.distributed_optimizer;
  layout.confidence = layout.doubts.empty() ? 1 : 0.7;
  return {};
}

}  // namespace orrery
