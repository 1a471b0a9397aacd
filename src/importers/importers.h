// Paths -> rows. Formats are told by content, never by name.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/pipeline.h"
#include "data/trace.h"

namespace orrery {

struct ImportOptions {
  unsigned threads = 0;                              // 0 = all cores
  bool recover = false;                              // skip events that are not valid JSON instead of failing
  std::map<std::string, std::int64_t> rank_of_file;  // --rank FILE=N
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress;  // compressed bytes; may be empty
  // Called once for each rank's trace when its rows are there, while others are still being read; may take rows away.
  // Its RankTrace::place is its own and below the number of traces so far; its rank is not resolved yet. Several calls
  // run at once, each as another `worker` < workers(). May be empty. An error ends the import.
  std::function<Status(RankTrace&, unsigned worker)> on_trace;
  unsigned workers() const;  // threads, resolved
};

// Files, directories (all traces in them, recursively), globs, "-" for standard input. Ranks are resolved: --rank, else
// distributedInfo, else the one that the events name, else the file name; one file without any is rank 0 with a note;
// several without, or the same rank twice, are errors naming the files. A file whose events name several ranks is one
// trace for each. Files in a directory that are not traces are skipped and noted.
Result<TraceSet> import_traces(const std::vector<std::string>& paths, const ImportOptions& options = {});

// The steps of a pipeline-parallel job, where the paths hold such (docs/formats/pipeline-steps.md); nothing where they
// do not, or a profiler's trace lies beside them: import_traces then says what is there. Ranks of files are resolved as
// above. What a directory or a pattern holds beside is skipped and noted. Standard input is looked at, not consumed.
Result<std::optional<PipelineTrace>> import_pipeline(const std::vector<std::string>& paths,
                                                     const ImportOptions& options = {});

// One document already in memory, compressed or not; `file` is only a label. For tests and fuzzing. The first is for
// documents of one rank: several fused in it are an error.
Result<RankTrace> import_kineto_bytes(std::string_view bytes, const std::string& file,
                                      const ImportOptions& options = {});
Result<std::vector<RankTrace>> import_kineto_ranks(std::string_view bytes, const std::string& file,
                                                   const ImportOptions& options = {});

}  // namespace orrery
