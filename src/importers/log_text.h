// Logs of any size, read front to back in blocks: lines that patterns ask for, steps and shapes of lines become rows.
// docs/formats/logs.md says what is taken off lines and what is done with bad ones.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/byte_source.h"
#include "base/result.h"
#include "data/logs.h"

namespace orrery {

struct LogReadOptions {
  std::size_t block = std::size_t{1} << 18;       // bytes read at a time; a longer line is taken apart
  std::size_t most_rows = 128;                    // of one pattern in one file: so many first and so many last ones
  std::size_t most_steps = std::size_t{1} << 14;  // rows of steps of one file; then older ones are thinned out
  std::size_t most_shapes = std::size_t{1} << 16;
  bool shapes = true;  // count shapes of lines
  // Each state of a bar that redraws itself (\r) is looked at by itself, and as soon as it is complete: of a log that
  // is followed, whose bar may need days until its line ends.
  bool states = false;
  std::function<void(std::uint64_t taken)> on_progress;  // compressed bytes so far
};

// One log; `follow_more` is asked at the end of the input: true = try to read on (a live log), false = done. Errors:
// the medium cannot be read.
Result<LogTable> read_log(SourcePtr source, const std::string& label, const LinePatterns& patterns,
                          const LogReadOptions& options, const std::function<bool(const LogTable&)>& follow_more = {});

// Appends the rows of `from`, whose files get new numbers.
void append_log(LogTable& to, LogTable from);

}  // namespace orrery
