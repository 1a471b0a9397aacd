// libFuzzer target of `diagnose`: any bytes are a log. It must be read, alike in blocks of any size, and end in a
// verdict whose evidence lies in it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/byte_source.h"
#include "importers/log_text.h"
#include "rules/compress.h"
#include "rules/diagnose.h"
#include "rules/templates.h"

namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

const orrery::Matcher& matcher() {
  static const std::shared_ptr<orrery::Matcher> all = [] {
    orrery::Notes notes;
    return *orrery::Matcher::compile(*orrery::built_in_rules(), notes);
  }();
  return *all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto whole = read_log(open_memory(text), "input", matcher(), {});
  require(whole.has_value());
  const LogRows& r = whole->rows;
  for (std::size_t i = 0; i < r.size(); ++i) {
    require(r.line[i] >= 1 && r.line[i] <= whole->files[0].lines);
    require(i == 0 || r.line[i - 1] <= r.line[i]);
  }
  const Diagnosis d = diagnose(*whole, matcher());
  require(d.confidence >= 0 && d.confidence <= 1);
  for (const Evidence& e : d.evidence) require(e.line >= 1 && e.line <= whole->files[0].lines);
  require(count_kept(*whole, {}) <= whole->files[0].lines);
  // Small blocks: other reads, the same lines.
  LogReadOptions small;
  small.block = 64;
  const auto parts = read_log(open_memory(text), "input", matcher(), small);
  require(parts.has_value() && parts->files[0].lines == whole->files[0].lines);
  TemplateMiner miner;
  for (std::size_t at = 0; at < size;) {
    const std::size_t end = std::min(text.find('\n', at), size);
    miner.add(text.substr(at, end - at));
    at = end + 1;
  }
  const auto templates = miner.finish();
  for (const std::uint32_t t : templates.merged) require(t < templates.templates.size());
  return 0;
}
