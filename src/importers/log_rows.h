// Hits in a block of lines -> rows: which line, whose, which exception they belong to.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/logs.h"
#include "importers/log_prefix.h"
#include "importers/log_text.h"

namespace orrery {

class LogRowsWriter {
 public:
  LogRowsWriter(const std::string& label, const LinePatterns& patterns, const LogReadOptions& options);

  // `text` is whole lines (or one part of a long one), the first of which is line `lines_before` + 1; `hits` by end.
  void take(std::string_view text, const std::vector<PatternHit>& hits, std::uint64_t lines_before);
  void see_time(std::string_view text);  // of the last line of `text` that has one
  void count_shape(std::string_view line, std::uint64_t number);

  LogTable& table() { return table_; }
  const LogTable& so_far();  // rows in order, for a look at a log that goes on
  LogTable finish();

 private:
  struct Frame {
    std::uint64_t line = 0;
    std::string file, code;
  };
  void line(std::string_view text, std::size_t from, std::size_t to, std::uint64_t number);
  void frame(std::string_view text, std::size_t to, const LinePrefix& prefix, std::uint64_t number);
  void step(const LinePrefix& prefix, std::uint64_t number);
  void row(std::string_view whole, const LinePrefix& prefix, std::uint64_t number, std::vector<std::uint32_t> patterns);
  void forget_old(std::uint32_t pattern, std::size_t row);
  void compact();

  const LinePatterns& patterns_;
  const LogReadOptions& options_;
  LogTable table_;
  std::vector<std::uint32_t> on_line_;  // patterns hit on the current line
  std::size_t piece_end_ = 0;           // of the part of a record that they are in
  std::vector<std::size_t> ends_;       // where each ended, from the line's start
  std::unordered_map<std::int32_t, Frame> frames_;
  struct Ignored {
    std::uint64_t line = 0;
    std::string text;  // in what: "<function Iter.__del__ at 0x1>"
  };
  std::unordered_map<std::int32_t, Ignored> ignored_;         // rank -> its last "Exception ignored in"
  std::unordered_map<std::int32_t, std::size_t> last_row_;    // rank -> its last row
  std::unordered_map<std::uint32_t, std::uint64_t> counted_;  // pattern -> rows so far
  std::unordered_map<std::uint32_t, std::deque<std::size_t>> late_;
  std::vector<std::uint8_t> dead_;
  std::size_t deads_ = 0;
  std::unordered_map<std::uint64_t, std::size_t> shape_row_;
  std::uint64_t last_shape_ = 0;
  std::size_t last_shape_row_ = 0;
  std::int64_t last_step_ = -2;
  std::uint64_t step_rows_ = 0;  // also those that were thinned out
};

}  // namespace orrery
