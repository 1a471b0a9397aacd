// libFuzzer target of the importer: any bytes must give rows or an error, and hold the promises of data/trace.h.
// The first byte chooses the options, the rest is the document (plain, gzip, zstd or zip).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/byte_source.h"
#include "importers/importers.h"
#include "importers/kineto.h"

namespace {

using namespace orrery;

void require(bool ok) {
  if (!ok) std::abort();
}

template <class Id>
void require_below(const std::vector<Id>& ids, std::size_t size) {
  for (const Id id : ids) require(raw(id) < size);
}

void check(const RankTrace& t) {
  const std::size_t n = t.ops.size(), strings = t.strings.size(), lanes = t.lanes.size();
  require(t.ops.dur.size() == n && t.ops.name.size() == n && t.ops.lane.size() == n && t.ops.kind.size() == n);
  require(t.ops.corr.size() == n && t.ops.ext.size() == n && t.ops.extra.size() == n);
  for (std::size_t i = 0; i < n; ++i) {
    require(t.ops.dur[i] >= 0);
    require(t.ops.end(i) >= t.ops.start[i]);
    require(t.ops.start[i] >= t.window_start && t.ops.end(i) <= t.window_end);
    const std::uint32_t x = t.ops.extra[i];
    if (x == kNone) continue;
    switch (t.ops.kind[i]) {
      case OpKind::cpu_op:
      case OpKind::user_annotation:
        require(x < t.op_args.size());
        break;
      case OpKind::python:
        require(x < t.python_args.size());
        break;
      case OpKind::kernel:
        require(x < t.kernel_args.size());
        break;
      case OpKind::memcpy:
      case OpKind::memset:
        require(x < t.copy_args.size());
        break;
      case OpKind::sync:
        require(x < t.sync_args.size());
        break;
      default:
        std::abort();
    }
  }
  require_below(t.ops.name, strings);
  require_below(t.ops.lane, lanes);
  require_below(t.flows.lane, lanes);
  require_below(t.memory.lane, lanes);
  require_below(t.lanes.name, strings);
  require_below(t.op_args.input_dims, strings);
  require_below(t.comm_args.collective, strings);
  for (const std::uint32_t c : t.kernel_args.comm) require(c == kNone || c < t.comm_args.size());
  for (const std::uint32_t c : t.op_args.comm) require(c == kNone || c < t.comm_args.size());
  for (const OpId i : t.open_ops) require(raw(i) < n);
  require_below(t.lanes.pid_text, strings);
  require_below(t.lanes.tid_text, strings);
}

// Of several ranks each is told once, in order, and has the lanes and side rows of its own rows alone.
void check_all(const std::vector<RankTrace>& ranks) {
  require(!ranks.empty());
  for (const RankTrace& t : ranks) check(t);
  if (ranks.size() == 1) return;
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    const RankTrace& t = ranks[k];
    require(t.rank >= 0 && (k == 0 || t.rank > ranks[k - 1].rank));
    std::vector<bool> used(t.lanes.size(), false);
    for (const auto* lanes : {&t.ops.lane, &t.flows.lane, &t.memory.lane})
      for (const LaneId l : *lanes) used[raw(l)] = true;
    for (const bool u : used) require(u);
    require(t.op_args.size() + t.python_args.size() + t.kernel_args.size() + t.copy_args.size() + t.sync_args.size() <=
            t.events);
    require(t.comm_args.size() <= t.op_args.size() + t.kernel_args.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t choice = data[0];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((choice & 1) != 0) {
    ImportOptions options;
    options.threads = 1;
    options.recover = (choice & 2) != 0;
    if (const auto t = import_kineto_ranks(bytes, "fuzz", options)) check_all(*t);
    return 0;
  }
  // Small windows and a small limit, so that every seam is met.
  auto source = decompressed(open_memory(bytes), "fuzz");
  if (!source) return 0;
  KinetoOptions options;
  options.threads = (choice & 4) != 0 ? 2 : 1;
  options.recover = (choice & 2) != 0;
  options.window_bytes = (choice & 8) != 0 ? 64 : 1024;
  options.largest_event = 2048;
  options.engine = (choice & 16) != 0 ? JsonSplitter::Engine::scalar : JsonSplitter::Engine::best;
  if (const auto t = read_kineto(**source, "fuzz", options)) check_all(*t);
  return 0;
}
