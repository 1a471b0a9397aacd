#include "whatif/target.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "whatif/recompute.h"

namespace orrery {
namespace {

Result<std::int64_t> whole(const std::string& option, const std::string& text) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error == std::errc::result_out_of_range || (error == std::errc{} && n > 100'000'000))
    return fail("above 100,000,000: " + text, option);
  if (error != std::errc{} || end != text.data() + text.size() || n < 1)
    return fail("not a whole number from 1: " + text, option);
  return n;
}

Result<bool> on_off(const std::string& option, const std::string& text) {
  if (text == "on") return true;
  if (text == "off") return false;
  return fail("neither on nor off: " + text, option);
}

std::string number(double x) { return std::to_string(static_cast<std::int64_t>(std::llround(x))); }

bool divides(double a, double b) { return a > 0 && std::fmod(b, a) == 0; }

double stretch(double before, double after) {
  return before > 0 && after > 0 ? std::abs(std::log2(after / before)) : 0;
}

}  // namespace

const std::vector<std::string>& shape_edits() {
  static const std::vector<std::string> names = {"--tp",
                                                 "--pp",
                                                 "--dp",
                                                 "--sequence-parallel",
                                                 "--layers",
                                                 "--hidden",
                                                 "--ffn",
                                                 "--heads",
                                                 "--head-dim",
                                                 "--seq-length",
                                                 "--num-microbatches",
                                                 "--micro-batch-size",
                                                 "--global-batch-size",
                                                 "--schedule",
                                                 "--recompute",
                                                 "--distributed-optimizer",
                                                 "--gpus-per-node"};
  return names;
}

std::string schedule_text(const JobShape& shape) {
  if (shape.schedule == ScheduleKind::zero_bubble) return "zero-bubble";
  return shape.chunks > 1 ? "interleaved:" + std::to_string(shape.chunks) : "1f1b";
}

Status check_values(const std::map<std::string, std::string>& asked) {
  for (const auto& [name, text] : asked) {
    if (name == "--schedule") {
      if (const auto s = with_schedule(JobShape{}, text); !s) return tl::unexpected(s.error());
    } else if (name == "--recompute") {
      if (const auto r = recompute_of(text); !r) return tl::unexpected(r.error());
    } else if (name == "--sequence-parallel" || name == "--distributed-optimizer") {
      if (const auto r = on_off(name, text); !r) return tl::unexpected(r.error());
    } else if (const auto n = whole(name, text); !n) {
      return tl::unexpected(n.error());
    }
  }
  return {};
}

Result<JobShape> target_shape(const JobModel& job, const std::map<std::string, std::string>& asked) {
  JobShape next = job.base;
  JobLayout& l = next.layout;
  Dims& d = next.dims;
  const auto has = [&](const std::string& name) { return asked.contains(name); };
  // a dimension of the model that the traces do not tell cannot be changed
  const auto dimension = [&](const std::string& name, double& value) -> Status {
    if (!has(name)) return {};
    const auto n = whole(name, asked.at(name));
    if (!n) return tl::unexpected(n.error());
    if (value <= 0)
      return fail("the traces do not tell what it is today", name,
                  "record shapes (record_shapes=True), or say it: --layout " + name.substr(2) + "=N");
    value = static_cast<double>(*n);
    return {};
  };
  const auto count = [&](const std::string& name, std::int64_t& value) -> Status {
    if (!has(name)) return {};
    const auto n = whole(name, asked.at(name));
    if (!n) return tl::unexpected(n.error());
    value = *n;
    return {};
  };
  const bool grouped = d.kv_heads != d.heads;
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::int64_t*>>{{"--tp", &l.tp},
                                                                    {"--pp", &l.pp},
                                                                    {"--dp", &l.dp},
                                                                    {"--layers", &l.layers},
                                                                    {"--num-microbatches", &l.num_microbatches},
                                                                    {"--gpus-per-node", &l.gpus_per_node}})
    if (Status s = count(name, *value); !s) return tl::unexpected(s.error());
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, double*>>{{"--hidden", &d.hidden},
                                                              {"--ffn", &d.ffn},
                                                              {"--heads", &d.heads},
                                                              {"--head-dim", &d.head_dim},
                                                              {"--seq-length", &d.seq},
                                                              {"--micro-batch-size", &d.mbs}})
    if (Status s = dimension(name, *value); !s) return tl::unexpected(s.error());
  if (!grouped) d.kv_heads = d.heads;
  if (has("--schedule")) {
    auto scheduled = with_schedule(next, asked.at("--schedule"));
    if (!scheduled) return tl::unexpected(scheduled.error());
    next.schedule = scheduled->schedule;
    next.chunks = scheduled->chunks;
    next.overlap = scheduled->overlap;
    next.all_forward_first = scheduled->all_forward_first;
  }
  if (has("--sequence-parallel")) {
    const auto on = on_off("--sequence-parallel", asked.at("--sequence-parallel"));
    if (!on) return tl::unexpected(on.error());
    d.sequence_parallel = *on;
  }
  if (has("--distributed-optimizer")) {
    const auto on = on_off("--distributed-optimizer", asked.at("--distributed-optimizer"));
    if (!on) return tl::unexpected(on.error());
    l.distributed_optimizer = *on;
  }
  if (has("--recompute")) {
    if (job.shape.recompute.empty())
      return fail("the traces do not tell what is computed again today", "--recompute",
                  "say it: --layout recompute=none|selective|full");
    const auto way = recompute_of(asked.at("--recompute"));
    if (!way) return tl::unexpected(way.error());
    next.recompute = *way;
  }
  if (has("--global-batch-size")) {
    const auto n = whole("--global-batch-size", asked.at("--global-batch-size"));
    if (!n) return tl::unexpected(n.error());
    if (d.mbs <= 0)
      return fail("the traces do not tell the micro-batch size", "--global-batch-size", "--layout micro-batch-size=N");
    const auto each = static_cast<std::int64_t>(d.mbs) * l.dp;
    if (*n % each != 0)
      return fail(std::to_string(*n) + " sequences are not divisible by " + std::to_string(l.dp) +
                      " replicas of micro-batches of " + number(d.mbs),
                  "--global-batch-size");
    if (has("--num-microbatches") && l.num_microbatches != *n / each)
      return fail("contradicts --num-microbatches " + asked.at("--num-microbatches"), "--global-batch-size");
    l.num_microbatches = *n / each;
  }
  // each is below 10^8: two of them cannot overflow, three can
  if (l.tp * l.pp > 1'000'000 || l.tp * l.pp * l.dp > 1'000'000) return fail("more than a million ranks");
  l.world = l.tp * l.pp * l.dp;
  d.tp = static_cast<double>(l.tp);
  d.dp = static_cast<double>(l.dp);
  // Megatron-LM pads the vocabulary to a multiple of 128 times tp
  const double pad = 128 * d.tp, base_pad = 128 * job.base.dims.tp;
  if (l.tp != job.base.layout.tp && d.vocab > 0 && divides(base_pad, d.vocab)) d.vocab = std::ceil(d.vocab / pad) * pad;
  if (Status s = check_shape(next); !s) return tl::unexpected(s.error());
  return next;
}

bool same_shape(const JobShape& a, const JobShape& b) {
  const JobLayout &x = a.layout, &y = b.layout;
  const Dims &c = a.dims, &d = b.dims;
  return x.tp == y.tp && x.pp == y.pp && x.dp == y.dp && x.layers == y.layers &&
         x.num_microbatches == y.num_microbatches && x.gpus_per_node == y.gpus_per_node &&
         x.distributed_optimizer == y.distributed_optimizer && a.schedule == b.schedule && a.chunks == b.chunks &&
         a.recompute == b.recompute && c.seq == d.seq && c.mbs == d.mbs && c.hidden == d.hidden && c.ffn == d.ffn &&
         c.heads == d.heads && c.kv_heads == d.kv_heads && c.head_dim == d.head_dim && c.vocab == d.vocab &&
         c.sequence_parallel == d.sequence_parallel;
}

Status check_shape(const JobShape& shape) {
  const JobLayout& l = shape.layout;
  const Dims& d = shape.dims;
  const auto forbid = [](double part, double whole_number, const std::string& what, const std::string& by,
                         const std::string& option) -> Status {
    if (whole_number <= 0 || divides(part, whole_number)) return {};
    return fail(number(whole_number) + " " + what + " are not divisible by " + number(part) + " " + by, option);
  };
  if (l.world > 1'000'000) return fail("more than a million ranks");
  if (l.num_microbatches > 100'000) return fail("more than 100,000 micro-batches", "--num-microbatches");
  if (l.layers > 10'000) return fail("more than 10,000 layers", "--layers");
  if (Status s = forbid(static_cast<double>(l.pp * shape.chunks), static_cast<double>(l.layers), "layers",
                        shape.chunks > 1 ? "chunks of the stages" : "stages", "--layers");
      !s)
    return s;
  if (Status s = forbid(d.tp, d.heads, "heads", "tensor-parallel ranks", "--tp"); !s) return s;
  if (d.kv_heads > 0 && !divides(d.kv_heads, d.heads))
    return fail(number(d.heads) + " heads are not divisible by " + number(d.kv_heads) + " key-value heads", "--heads");
  if (d.kv_heads > 0 && !divides(d.tp, d.kv_heads) && !divides(d.kv_heads, d.tp))
    return fail(number(d.kv_heads) + " key-value heads and " + number(d.tp) + " tensor-parallel ranks do not divide",
                "--tp");
  if (Status s = forbid(d.tp, d.ffn, "feed-forward columns", "tensor-parallel ranks", "--tp"); !s) return s;
  if (d.sequence_parallel)
    if (Status s = forbid(d.tp, d.seq, "tokens of a sequence", "tensor-parallel ranks", "--sequence-parallel"); !s)
      return s;
  if (shape.chunks > 1 && l.pp == 1) return fail("one stage has nothing to interleave", "--schedule");
  if (shape.chunks > 1 && l.num_microbatches % l.pp != 0)
    return fail(std::to_string(l.num_microbatches) + " micro-batches are not divisible by " + std::to_string(l.pp) +
                    " stages, as an interleaved schedule needs",
                "--num-microbatches");
  return {};
}

std::vector<AppliedEdit> describe_shape_edits(const JobModel& job, const JobShape& next,
                                              const std::map<std::string, std::string>& asked, const RatesError& error,
                                              Changed changes) {
  const JobShape& base = job.base;
  struct Row {
    double before, after;
    double each;  // one standard deviation for a factor of two, share of the prediction
    const char* assumes;
  };
  const auto i = [](std::int64_t x) { return static_cast<double>(x); };
  // Transfers are some third of a step where they matter at all; their error counts with that share.
  const auto transfers = [&](GroupRole role, double bytes) {
    return 0.3 * transfer_error(job.net, Pattern::all_reduce, base.layout.placement(role), next.layout.placement(role),
                                bytes, bytes);
  };
  const double data = std::hypot(0.008, transfers(GroupRole::data, 160e6));
  const double tensor = std::hypot(
      0.012, transfers(GroupRole::tensor, std::max(1e6, 2 * next.dims.seq * next.dims.mbs * next.dims.hidden)));
  const std::map<std::string, Row> rows = {
      {"--tp",
       {i(base.layout.tp), i(next.layout.tp), tensor,
        "products, attention and collectives in their new shapes; the ranks of the trace stand for all"}},
      {"--pp",
       {i(base.layout.pp), i(next.layout.pp), 0.01,
        "layers dealt evenly; sends and receives after the pattern of those of the trace"}},
      {"--dp",
       {i(base.layout.dp), i(next.layout.dp), data,
        "the replicas of the trace stand for all; rings between servers use every member's own network card; gradient "
        "buckets are filled anew"}},
      {"--sequence-parallel",
       {base.dims.sequence_parallel ? 2.0 : 1.0, next.dims.sequence_parallel ? 2.0 : 1.0, 0.02,
        "all-reduces become reduce-scatters and all-gathers of the same bytes"}},
      {"--layers",
       {i(base.layout.layers), i(next.layout.layers), 0.005,
        "added layers are like those of the trace; the optimizer grows with the parameters"}},
      {"--hidden", {base.dims.hidden, next.dims.hidden, 0.01, "kernels in their new shapes, host work stays"}},
      {"--ffn", {base.dims.ffn, next.dims.ffn, 0.01, "kernels in their new shapes, host work stays"}},
      {"--heads", {base.dims.heads, next.dims.heads, 0.01, "kernels in their new shapes, host work stays"}},
      {"--head-dim", {base.dims.head_dim, next.dims.head_dim, 0.015, "kernels in their new shapes, host work stays"}},
      {"--seq-length", {base.dims.seq, next.dims.seq, 0.01, "kernels in their new shapes, host work stays"}},
      {"--num-microbatches",
       {i(base.layout.num_microbatches), i(next.layout.num_microbatches), 0.004,
        "added micro-batches are like those of the trace"}},
      {"--micro-batch-size", {base.dims.mbs, next.dims.mbs, 0.01, "kernels in their new shapes, host work stays"}},
      {"--global-batch-size",
       {i(base.layout.num_microbatches), i(next.layout.num_microbatches), 0.004,
        "micro-batches follow, their size stays"}},
      {"--schedule",
       {1, schedule_text(base) == schedule_text(next) ? 1.0 : 2.0, 0.02,
        "chunks of a stage are its layers; host work and exchanges like those of the trace"}},
      {"--recompute",
       {1, base.recompute == next.recompute ? 1.0 : 2.0, 0.02, "the forward kernels of the trace run again"}},
      {"--distributed-optimizer",
       {1, base.layout.distributed_optimizer == next.layout.distributed_optimizer ? 1.0 : 2.0, 0.015,
        "reduce-scatter and all-gather of the same bytes; the optimizer's work goes with its share"}},
      {"--gpus-per-node",
       {i(base.layout.gpus_per_node), i(next.layout.gpus_per_node), 0.03,
        "links inside a server and between servers as fast as those of the trace"}}};
  std::vector<AppliedEdit> out;
  bool costs = error.relative > 0;
  for (const std::string& name : shape_edits()) {
    const auto it = asked.find(name);
    if (it == asked.end()) continue;
    const Row& row = rows.at(name);
    AppliedEdit edit{{name, it->second}, {}, row.assumes};
    if (row.before != row.after) {
      edit.changed = changes;
      edit.floor = 1.645 * row.each * (0.5 + 0.5 * stretch(row.before, row.after));
      if (costs) {  // kernels of one family err together: their errors are not averaged away
        edit.floor = std::hypot(edit.floor, 1.645 * error.relative);
        costs = false;
      }
    }
    out.push_back(std::move(edit));
  }
  return out;
}

MemoryJob memory_job(const JobModel& job, const JobShape& shape) {
  MemoryJob m;
  m.dims = shape.dims;
  m.layers = static_cast<double>(shape.layout.layers);
  m.positions = shape.positions;
  m.pp = static_cast<double>(shape.layout.pp);
  m.chunks = shape.chunks;
  m.micro_batches = static_cast<double>(shape.layout.num_microbatches);
  m.zero_bubble = shape.schedule == ScheduleKind::zero_bubble;
  m.gated_mlp = shape.gated_mlp;
  m.tied_embedding = job.shape.tied_embedding != 0;
  m.flash_attention = job.shape.flash_attention;
  m.distributed_optimizer = shape.layout.distributed_optimizer;
  m.recompute = shape.recompute;
  if (job.shape.dtype_bytes > 0) m.activation_bytes = static_cast<double>(job.shape.dtype_bytes);
  return m;
}

}  // namespace orrery
