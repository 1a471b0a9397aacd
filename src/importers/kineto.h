// One Kineto (PyTorch profiler, Chrome trace) document -> the rows of its rank, or of each rank that is fused in it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "base/json_tokens.h"
#include "base/result.h"
#include "data/trace.h"
#include "importers/kineto_rows.h"
#include "importers/trace_text.h"

namespace orrery {

struct KinetoOptions {
  unsigned threads = 1;
  bool recover = false;
  std::size_t window_bytes = std::size_t{1} << 20;
  std::size_t largest_event = std::size_t{64} << 20;  // longer ones are skipped, and counted
  JsonSplitter::Engine engine = JsonSplitter::Engine::best;
  std::function<void(std::uint64_t taken)> progress;  // compressed bytes taken so far; called from one thread at a time
  JsonTokens* tokens = nullptr;               // buffers kept from file to file, by one caller at a time; may be null
  std::function<Result<SourcePtr>()> reopen;  // the same source again, to find the line of an error; may be empty
};

struct KinetoError {
  Error error;
  bool not_a_trace = false;  // some other file: a directory may hold such
  bool empty = false;        // not a byte, compressed or not
};

// `source` delivers plain JSON text (see `decompressed`). `file` is the label of errors and of RankTrace::file.
// One RankTrace, or of a file in which several ranks are fused one for each, by rank.
tl::expected<std::vector<RankTrace>, KinetoError> read_kineto(ByteSource& source, const std::string& file,
                                                              const KinetoOptions& options);

// The metadata beside the events: distributedInfo, deviceProperties, baseTimeNanoseconds, traceName, host names.
void read_metadata(const std::vector<MetadataMember>& members, RankTrace& trace);

// Where events name their rank (`args.rank`): the rows of each rank that they name, at least one. Takes what `whole`
// and `builder` hold. What was noted of the file stands in the first.
struct RankRows {
  RankTrace trace;
  Unfinished rest;
};
std::vector<RankRows> split_ranks(RankTrace& whole, RankBuilder& builder);

// Once all rows are there: pairs begin and end events, drops what is far outside, closes open events, names the lanes,
// adds the base time, writes the notes.
void finish_rank(RankTrace& trace, Unfinished& rest);

}  // namespace orrery
