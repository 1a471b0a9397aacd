#include "estimate/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/number_text.h"
#include "estimate/operations.h"
#include "facts/library.h"

namespace orrery {
namespace {

constexpr double kMost = 1e15;  // of any number in a question

// The words of a question, and which of them were used.
class Words {
 public:
  static Result<Words> split(std::string_view text) {
    Words w;
    if (const std::size_t hash = text.find('#'); hash != std::string_view::npos) text = text.substr(0, hash);
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t from = text.find_first_not_of(" \t\r,", i);
      if (from == std::string_view::npos) break;
      const std::size_t end = std::min(text.find_first_of(" \t\r,", from), text.size());
      const std::string word(text.substr(from, end - from));
      i = end;
      if (w.kind_.empty()) {
        w.kind_ = word;
        continue;
      }
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos || equals == 0) return fail("not KEY=VALUE: " + word);
      if (!w.values_.emplace(word.substr(0, equals), Value{word.substr(equals + 1)}).second)
        return fail("given twice: " + word.substr(0, equals));
    }
    return w;
  }

  const std::string& kind() const { return kind_; }

  std::string text(const std::string& key, std::string otherwise) {
    const auto it = values_.find(key);
    if (it == values_.end()) return otherwise;
    it->second.used = true;
    return it->second.text;
  }
  // Numbers above `least`; a missing one is `otherwise`, below 0: an error.
  double number(const std::string& key, double otherwise, double least = 1) {
    const auto it = values_.find(key);
    if (it == values_.end()) {
      if (otherwise < 0) note(kind_ + " needs " + key + "=N");
      return otherwise;
    }
    it->second.used = true;
    double value = 0;
    if (read_double(it->second.text, value) != NumberState::ok || value < least || value > kMost) {
      note(fmt::format("{}={} is not a number from {:g} to {:g}", key, it->second.text, least, kMost));
      return least;
    }
    return value;
  }
  bool on(const std::string& key, bool otherwise) {
    const std::string value = text(key, otherwise ? "on" : "off");
    if (value != "on" && value != "off") note(key + "=" + value + " is neither on nor off");
    return value == "on";
  }
  template <class T, std::size_t N>
  T choice(const std::string& key, const std::array<std::pair<std::string_view, T>, N>& choices, T otherwise) {
    const std::string value = text(key, "");
    if (value.empty()) return otherwise;
    std::string all;
    for (const auto& [name, v] : choices) {
      if (name == value) return v;
      all += (all.empty() ? "" : ", ") + std::string(name);
    }
    note("not known: " + key + "=" + value + "; one of " + all);
    return otherwise;
  }
  void note(std::string what) {
    if (error_.empty()) error_ = std::move(what);
  }
  // The first thing that was wrong, or a word that no one asked for.
  std::string error() const {
    if (!error_.empty()) return error_;
    for (const auto& [key, value] : values_)
      if (!value.used) return kind_ + " does not know " + key;
    return {};
  }

 private:
  struct Value {
    std::string text;
    bool used = false;
  };
  std::string kind_, error_;
  std::map<std::string, Value> values_;
};

constexpr std::array<std::pair<std::string_view, AttentionKernel>, 8> kKernels = {
    {{"flash1", AttentionKernel::flash1},
     {"flash2", AttentionKernel::flash2},
     {"flash3", AttentionKernel::flash3},
     {"cudnn", AttentionKernel::cudnn},
     {"triton", AttentionKernel::triton},
     {"xformers", AttentionKernel::xformers},
     {"trtllm", AttentionKernel::trtllm},
     {"unfused", AttentionKernel::unfused}}};

constexpr std::array<std::pair<std::string_view, MemoryKernel>, 7> kMemoryKernels = {
    {{"elementwise", MemoryKernel::elementwise},
     {"norm", MemoryKernel::norm},
     {"softmax", MemoryKernel::softmax},
     {"rotary", MemoryKernel::rotary},
     {"embedding", MemoryKernel::embedding},
     {"optimizer", MemoryKernel::optimizer},
     {"copy", MemoryKernel::copy}}};

enum class Pass : std::uint8_t { forward, backward, both };
constexpr std::array<std::pair<std::string_view, Pass>, 3> kPasses = {
    {{"forward", Pass::forward}, {"backward", Pass::backward}, {"both", Pass::both}}};

struct CollectiveKind {
  Pattern pattern;
  double rounds;  // of its bus factor, (n - 1) / n each; 0 = message over time
};
constexpr std::array<std::pair<std::string_view, CollectiveKind>, 6> kCollectives = {
    {{"all_reduce", {Pattern::all_reduce, 2}},
     {"all_gather", {Pattern::gather_or_scatter, 1}},
     {"reduce_scatter", {Pattern::gather_or_scatter, 1}},
     {"broadcast", {Pattern::broadcast, 0}},
     {"all_to_all", {Pattern::all_to_all, 1}},
     {"send", {Pattern::point_to_point, 0}}}};

void take(OpsAnswer& a, const OperatorTime& t) {
  a.ns = t.ns;
  a.relative_error = t.relative_error;
  a.bound = std::string(name_of(t.bound));
}

Precision precision_in(Words& w, Precision otherwise) {
  const std::string text = w.text("precision", "");
  Precision p = otherwise;
  if (!text.empty() && !read_precision(text, p)) w.note("not known: precision=" + text);
  return p;
}

void gemm(Words& w, const OperatorCosts& costs, Precision precision, OpsAnswer& a) {
  GemmWork g;
  g.m = w.number("m", -1);
  g.n = w.number("n", -1);
  g.k = w.number("k", -1);
  g.batch = w.number("batch", 1);
  g.precision = precision_in(w, precision);
  g.output_bytes = w.number("out-bytes", 0, 0);
  g.weight_bytes = w.number("weight-bytes", 0, 0);
  g.warm = w.on("warm", false);
  g.quantise = w.on("quantise", false);
  if (!w.error().empty()) return;
  take(a, costs.gemm(g));
  const double element = bytes_of(g.precision), weight = g.weight_bytes > 0 ? g.weight_bytes : element;
  a.precision = std::string(name_of(g.precision));
  a.shape = fmt::format("{:.0f}x{:.0f}x{:.0f}", g.m, g.n, g.k) + (g.batch > 1 ? fmt::format(" * {:.0f}", g.batch) : "");
  a.flops = 2 * g.batch * g.m * g.n * g.k;
  a.bytes = g.batch * (element * g.m * g.k + weight * g.n * g.k +
                       (g.output_bytes > 0 ? g.output_bytes : std::max(2.0, element)) * g.m * g.n);
}

void attention(Words& w, const OperatorCosts& costs, Precision precision, OpsAnswer& a) {
  AttentionWork t;
  t.batch = w.number("batch", 1);
  t.heads = w.number("heads", -1);
  t.kv_heads = w.number("kv-heads", t.heads);
  t.head_dim = w.number("head-dim", 128);
  t.value_head_dim = w.number("value-dim", t.head_dim);
  t.queries = w.number("queries", -1);
  t.keys = w.number("keys", t.queries);
  t.causal = w.on("causal", true);
  t.precision = precision_in(w, precision);
  t.kernel = w.choice("kernel", kKernels, AttentionKernel::flash2);
  t.kv_bytes = w.number("kv-bytes", 0, 0);
  t.append_kv = w.on("append", false);
  t.shared_kv = w.on("shared", true);
  t.warm = w.on("warm", false);
  const Pass pass = w.choice("pass", kPasses, Pass::forward);
  if (t.kv_heads > t.heads) w.note("more kv-heads than heads");
  if (t.causal && t.queries > t.keys) w.note("causal attention of more queries than keys");
  if (!w.error().empty()) return;
  t.backward = pass == Pass::backward;
  take(a, costs.attention(t));
  if (pass == Pass::both) {
    t.backward = true;
    a.ns += costs.attention(t).ns;
  }
  a.precision = std::string(name_of(t.precision));
  a.shape = fmt::format("{:g} x {:g}/{:g} heads of {:g}, {:.0f} x {:.0f}{}{}", t.batch, t.heads, t.kv_heads, t.head_dim,
                        t.queries, t.keys, t.causal && t.queries > 1 ? " causal" : "",
                        pass == Pass::backward ? " backward"
                        : pass == Pass::both   ? " both passes"
                                               : "");
  const double times = pass == Pass::forward ? 1 : pass == Pass::backward ? 2.5 : 3.5;
  // As the field counts them: half of the square with a causal mask.
  const double pairs = t.queries * t.keys * (t.causal && t.queries > 1 ? 0.5 : 1);
  a.flops = 2 * t.batch * t.heads * pairs * (t.head_dim + t.value_head_dim) * times;
  const double element = bytes_of(t.precision), kv = t.kv_bytes > 0 ? t.kv_bytes : element;
  a.bytes = t.batch * (t.head_dim + t.value_head_dim) * (element * t.heads * t.queries + kv * t.kv_heads * t.keys);
}

Status collective(Words& w, const PlatformFacts& platform, OpsAnswer& a) {
  CollectiveKind kind = kCollectives.front().second;
  const std::string op = w.text("op", "all_reduce");
  kind = w.choice("op", kCollectives, kind);
  const double bytes = w.number("bytes", -1), gpus = w.number("gpus", -1);
  PlatformFacts p = platform;
  p.gpus_per_node = static_cast<std::int64_t>(w.number("gpus-per-node", static_cast<double>(p.gpus_per_node)));
  p.nvlink_sharp = w.on("sharp", p.nvlink_sharp);
  p.nic_gb_per_s = w.number("nic", p.nic_gb_per_s, 0);
  if (!w.error().empty()) return {};
  Placement where;
  where.members = static_cast<std::int64_t>(gpus);
  where.members_in_server = std::min(where.members, p.gpus_per_node);
  const NetworkModel net = network_of(p, where.members_in_server);
  const double ns = transfer_ns(net, kind.pattern, bytes, where);
  if (ns < 0)
    return fail(
        where.one_server() ? "the platform's links between GPUs are not known" : "the platform's network is not known",
        p.name, "nic=GB_PER_S says the rate of a GPU's share of it");
  a.ns = ns;
  a.relative_error = where.one_server() ? 0.12 : 0.25;
  a.bytes = bytes;
  a.shape = fmt::format("{} {:.0f} bytes, {:.0f} GPUs{}", op, bytes, gpus,
                        where.one_server() ? "" : fmt::format(" in {} servers", where.servers()));
  const TransferParts parts = transfer_parts(net, kind.pattern, bytes, where);
  a.bound = parts.latency_ns > parts.bytes_ns ? "latency" : "link";
  if (gpus > 1 && ns > 0) a.bus_gb_per_s = bytes * (kind.rounds > 0 ? kind.rounds * (gpus - 1) / gpus : 1) / ns;
  return {};
}

}  // namespace

OpsAnswers::OpsAnswers(std::string platform, Precision precision)
    : platform_(std::move(platform)), precision_(precision) {}

Result<const OpsAnswers::Known*> OpsAnswers::platform(const std::string& name) {
  if (name.empty()) return fail("no platform", "", "platform=NAME in the question, or --platform NAME");
  if (const auto it = known_.find(name); it != known_.end()) return &it->second;
  auto facts = platform_named_or_read(name);
  if (!facts) return tl::unexpected(facts.error());
  const OperatorCosts costs(facts->gpu);
  return &known_.emplace(name, Known{std::move(*facts), costs}).first->second;
}

Result<OpsAnswer> OpsAnswers::ask(std::string_view question) {
  OpsAnswer a;
  a.number = ++asked_;
  auto words = Words::split(question);
  if (!words) return tl::unexpected(words.error());
  Words& w = *words;
  a.kind = w.kind();
  const auto known = platform(w.text("platform", platform_));
  if (!known) return tl::unexpected(known.error());
  const PlatformFacts& p = (*known)->facts;
  const OperatorCosts& costs = (*known)->costs;
  a.platform = p.name;
  if (a.kind == "gemm") {
    gemm(w, costs, precision_, a);
  } else if (a.kind == "attention") {
    attention(w, costs, precision_, a);
  } else if (a.kind == "memory") {
    a.bytes = w.number("bytes", -1, 0);
    const MemoryKernel kind = w.choice("kind", kMemoryKernels, MemoryKernel::elementwise);
    const auto named =
        std::find_if(kMemoryKernels.begin(), kMemoryKernels.end(), [&](const auto& k) { return k.second == kind; });
    a.shape = fmt::format("{:.0f} bytes, {}", a.bytes, named->first);
    take(a, costs.memory(a.bytes, kind));
  } else if (a.kind == "memcpy") {
    a.bytes = w.number("bytes", -1, 0);
    const bool pinned = w.on("pinned", true);
    a.shape = fmt::format("{:.0f} bytes, {}", a.bytes, pinned ? "pinned" : "pageable");
    if (p.pcie_gb_per_s <= 0) return fail("the platform's PCIe rate is not known", p.name);
    take(a, host_copy(a.bytes, p.pcie_gb_per_s, pinned));
  } else if (a.kind == "adam") {
    const double parameters = w.number("parameters", -1);
    a.shape = fmt::format("{:.0f} parameters", parameters);
    if (p.host.memory_gb_per_s <= 0) return fail("the platform's host memory is not known", p.name);
    a.bytes = 30 * parameters;
    take(a, host_adam(parameters, p.host.memory_gb_per_s));
  } else if (a.kind == "collective") {
    if (Status ok = collective(w, p, a); !ok) return tl::unexpected(ok.error());
  } else {
    return fail("not known: " + a.kind, "", "one of gemm, attention, memory, memcpy, adam, collective");
  }
  if (const std::string error = w.error(); !error.empty()) return fail(error);
  return a;
}

std::vector<std::string> ops_of_model(const ModelFacts& m, std::int64_t gpus) {
  std::vector<std::string> q;
  const std::int64_t qkv = (m.heads + 2 * m.kv_heads) * m.head_dim;
  const std::int64_t ffn = m.experts > 0 && m.ffn == 0 ? m.expert_ffn : m.ffn;
  const std::array<std::pair<std::int64_t, std::int64_t>, 4> products = {
      {{qkv, m.hidden}, {m.hidden, m.heads * m.head_dim}, {(m.gated_mlp ? 2 : 1) * ffn, m.hidden}, {m.hidden, ffn}}};
  for (const auto& [n, k] : products)
    for (const std::int64_t tokens : {1, 16, 256, 2048, 8192})
      q.push_back(fmt::format("gemm m={} n={} k={}", tokens, n, k));
  for (const std::int64_t length : {512, 2048, 8192})
    for (const char* pass : {"forward", "backward"})
      q.push_back(fmt::format("attention heads={} kv-heads={} head-dim={} queries={} pass={}", m.heads, m.kv_heads,
                              m.head_dim, length, pass));
  for (const std::int64_t length : {512, 2048, 8192})
    q.push_back(fmt::format("attention batch=16 heads={} kv-heads={} head-dim={} queries=1 keys={}", m.heads,
                            m.kv_heads, m.head_dim, length));
  for (const char* kind : {"norm", "elementwise", "softmax", "rotary"})
    q.push_back(fmt::format("memory kind={} bytes={}", kind, 4 * 2048 * m.hidden));
  for (const bool pinned : {true, false})
    for (const std::int64_t bytes : {1 << 16, 1 << 20, 1 << 24, 1 << 28})
      q.push_back(fmt::format("memcpy bytes={} pinned={}", bytes, pinned ? "on" : "off"));
  if (gpus > 1)
    for (const char* op : {"all_reduce", "all_gather", "reduce_scatter"})
      for (const std::int64_t bytes : {1 << 16, 1 << 20, 1 << 24, 1 << 28})
        q.push_back(fmt::format("collective op={} bytes={} gpus={}", op, bytes, gpus));
  return q;
}

}  // namespace orrery
