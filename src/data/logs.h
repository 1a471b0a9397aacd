// What logs become: one row a line that some pattern is interested in, one row a training step, one row a shape of
// line. All bounded, however long a log is.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/ids.h"
#include "data/notes.h"

namespace orrery {

// A wall-clock time as logs write it: often without a year.
struct LogTime {
  int year = 0;     // 0 = the line did not say
  Ns in_year = -1;  // since 1 January 00:00; -1 = no time on the line

  bool known() const { return in_year >= 0; }
};

// Less than 0: a is earlier; 0: equal, or not comparable. Years count only where both say theirs.
inline int compare(const LogTime& a, const LogTime& b) {
  if (!a.known() || !b.known()) return 0;
  if (a.year != 0 && b.year != 0 && a.year != b.year) return a.year < b.year ? -1 : 1;
  return a.in_year < b.in_year ? -1 : a.in_year > b.in_year ? 1 : 0;
}

// Patterns are looked for in whole blocks of lines; what is found is sorted to lines afterwards.
enum class PatternClass : std::uint8_t {
  rule,     // a row
  frame,    // File "x.py", line 12, in f: belongs to the exception that follows
  chain,    // "During handling of the above exception ..."
  ignored,  // "Exception ignored in ...": the exception that follows ended nothing
  step      // metrics of a training step
};

struct PatternHit {
  std::uint32_t pattern;
  std::size_t end;  // one past its last byte in the block
};

// Looks for patterns in blocks. One a thread.
class LineFinder {
 public:
  virtual ~LineFinder() = default;
  // Appends the hits in `block` in the order of their ends.
  virtual void find(std::string_view block, std::vector<PatternHit>& hits) = 0;
};

// The patterns: what a hit stands for, and whether the message of a line (without prefixes) really matches.
class LinePatterns {
 public:
  virtual ~LinePatterns() = default;
  virtual std::unique_ptr<LineFinder> finder() const = 0;
  virtual PatternClass class_of(std::uint32_t pattern) const = 0;
  virtual bool matches(std::uint32_t pattern, std::string_view message) const = 0;
};

struct LogFile {
  std::string label;
  std::uint64_t bytes = 0, lines = 0;
  std::uint64_t steps = 0;  // how often the step number moved on
  std::uint64_t last_step_line = 0;
  LogTime last_time, first_step_time, last_step_time;
  std::uint64_t steps_before_time = 0;  // steps when the first time of one came
  std::int32_t rank = -1;               // of the file name
};

// One row a line of interest, by file and line.
struct LogRows {
  std::vector<std::uint32_t> file;
  std::vector<std::uint64_t> line;  // from 1
  std::vector<std::int32_t> rank;   // -1 = not said
  std::vector<std::string> node;    // "" = not said
  std::vector<LogTime> time;
  std::vector<std::string> text;            // without prefixes; of long ones the part around the pattern
  std::vector<std::uint64_t> steps_before;  // LogFile::steps when the line came
  std::vector<std::string> frame, code;     // of an exception: "file:function" that raised it, its source line
  std::vector<std::vector<std::uint32_t>> patterns;
  std::vector<std::uint8_t> chained;  // 1 = "direct cause", 2 = "during handling" follows this exception

  std::size_t size() const { return line.size(); }
  auto columns() { return std::tie(file, line, rank, node, time, text, steps_before, frame, code, patterns, chained); }
};

// One row a step that was logged; of long runs the older ones thinned out.
struct StepRows {
  std::vector<std::uint32_t> file;
  std::vector<std::uint64_t> line;
  std::vector<std::uint64_t> nth;  // step of its file, from 1: a line may hold several
  std::vector<std::int32_t> rank;
  std::vector<std::int64_t> step;                // -1 = not said
  std::vector<double> loss, seconds, grad_norm;  // NaN = not a number; seconds, grad_norm below 0 = not said
  std::vector<std::uint8_t> has_loss;
  std::vector<std::uint8_t> relative;  // `seconds` are of a throughput: they compare with each other, and are none

  std::size_t size() const { return line.size(); }
  auto columns() { return std::tie(file, line, nth, rank, step, loss, seconds, grad_norm, has_loss, relative); }
};

// One row a kind of line: what is left of it without digits.
struct ShapeRows {
  std::vector<std::uint32_t> file;
  std::vector<std::uint64_t> shape, count, first_line;
  std::vector<std::string> text;  // of the first line

  std::size_t size() const { return shape.size(); }
  auto columns() { return std::tie(file, shape, count, first_line, text); }
};

struct LogTable {
  std::vector<LogFile> files;
  LogRows rows;
  StepRows steps;
  ShapeRows shapes;
  Notes notes;
};

}  // namespace orrery
