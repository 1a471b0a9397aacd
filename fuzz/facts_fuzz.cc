// libFuzzer target of the files of facts. The first byte chooses whether the rest is a file or a name; any bytes must
// give facts within their limits, or an error of one line.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "facts/library.h"
#include "facts/read_facts.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

template <class T>
bool good(const Result<T>& r) {
  if (r) return true;
  require(!r.error().what.empty() && r.error().line().find('\n') == std::string::npos);
  return false;
}

void check(const ModelFacts& m) {
  require(!m.name.empty() && !m.source.empty());
  if (!m.unsupported.empty()) return;
  require(m.heads % m.kv_heads == 0 && m.head_dim > 0 && m.layers > 0);
  const double all = parameters(m), active = active_parameters(m);
  require(std::isfinite(all) && active > 0 && active <= all);
}

void check(const GpuFacts& g) {
  require(g.sms > 0 && g.memory_gb_per_s > 0 && g.memory_gib > 0);
  require(half_tflops(g) > 0 || g.fp32_tflops > 0);
}

void check(const PlatformFacts& p) {
  check(p.gpu);
  require(p.gpus_per_node > 0 && p.nvlink_domain > 0 && (p.nvlink_gb_per_s > 0 || !p.nvlink_in_pairs));
}

void read(const FactFile& file) {
  const KnownParts known{[](const std::string& name) { return gpu_named(name); },
                         [](const std::string& name) { return host_named(name); },
                         [](const std::string& name) { return link_named(name); }};
  const auto kind = kind_of_facts(file);
  if (!good(kind)) return;
  if (const auto m = model_of(file, known); good(m)) check(*m);
  if (const auto g = gpu_of(file, known); good(g)) check(*g);
  if (const auto h = host_of(file, known); good(h)) require(h->cores > 0);
  if (const auto l = link_of(file, known); good(l)) require(l->gb_per_s > 0);
  if (const auto p = platform_of(file, known); good(p)) check(*p);
  if (const auto e = engine_of(file, known); good(e)) require(e->block_size > 0 && e->max_num_seqs > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'n') {
    if (text.ends_with(".toml")) return 0;  // a path
    if (const auto m = model_named_or_read(text); good(m)) check(*m);
    if (const auto p = platform_named_or_read(text); good(p)) check(*p);
    (void)find_gpu(text);
    return 0;
  }
  if (const auto file = parse_facts(text, "fuzz"); good(file)) read(*file);
  return 0;
}
