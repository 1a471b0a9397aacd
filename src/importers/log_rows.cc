#include "importers/log_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <tuple>

#include "base/line_shape.h"
#include "base/text_match.h"
#include "importers/log_records.h"
#include "importers/log_steps.h"

namespace orrery {
namespace {

constexpr std::size_t kLongestText = 600;    // bytes of a row's text
constexpr std::size_t kShownShape = 300;     // bytes of a shape's first line
constexpr std::uint64_t kFrameReach = 12;    // lines from the last frame to its exception, ranks interleaved
constexpr std::uint64_t kIgnoredReach = 24;  // lines from "Exception ignored" to the exception
constexpr std::size_t kMostDead = 4096;

// A line of source code under a frame of a traceback: what it raises has not been raised by being shown.
bool is_source_line(std::string_view message) {
  for (const std::string_view level : {"ERROR ", "CRITICAL ", "FATAL "})  // a logger that puts its level on each line
    if (message.substr(0, level.size()) == level) message.remove_prefix(level.size());
  std::size_t blanks = 0;
  while (blanks < message.size() && message[blanks] == ' ') ++blanks;
  if (blanks < 4) return false;
  const std::string_view s = message.substr(blanks);
  for (const std::string_view word : {"raise ", "return ", "assert ", "with ", "if ", "self.", "logger.", "print("})
    if (s.substr(0, word.size()) == word) return true;
  return false;
}

// Of a struct of columns: the rows that `keep` says.
template <class Rows, class Keep>
void keep_rows(Rows& rows, Keep keep) {
  const std::size_t n = rows.size();
  const auto one = [&](auto& column) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (!keep(i)) continue;
      if (kept != i) column[kept] = std::move(column[i]);
      ++kept;
    }
    column.resize(kept);
  };
  std::apply([&](auto&... column) { (one(column), ...); }, rows.columns());
}

template <class Rows>
void append_rows(Rows& to, Rows& from) {
  const auto one = [](auto& a, auto& b) {
    a.insert(a.end(), std::make_move_iterator(b.begin()), std::make_move_iterator(b.end()));
  };
  std::apply([&](auto&... a) { std::apply([&](auto&... b) { (one(a, b), ...); }, from.columns()); }, to.columns());
}

std::string around(std::string_view text, std::size_t at) {
  if (text.size() <= kLongestText) return std::string(text);
  const std::size_t from = at < kLongestText / 2 ? 0 : std::min(at - kLongestText / 2, text.size() - kLongestText);
  return std::string(text.substr(from, kLongestText));
}

}  // namespace

LogRowsWriter::LogRowsWriter(const std::string& label, const LinePatterns& patterns, const LogReadOptions& options)
    : patterns_(patterns), options_(options) {
  table_.files.emplace_back();
  table_.files[0].label = label;
}

void LogRowsWriter::take(std::string_view text, const std::vector<PatternHit>& hits, std::uint64_t lines_before) {
  std::size_t from = 0;  // of the current line
  std::size_t to = 0;    // its end; from == to == 0: none yet
  std::uint64_t number = lines_before;
  bool open = false;
  const auto end_of_line = [&](std::size_t at) {
    const void* found = std::memchr(text.data() + at, '\n', text.size() - at);
    return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : text.size();
  };
  for (const PatternHit& hit : hits) {
    if (hit.end == 0 || hit.end > text.size()) continue;
    const std::size_t at = hit.end - 1;
    if (!open || at >= to) {
      if (open) line(text, from, to, number);
      std::size_t next = open ? to + 1 : 0;
      if (next > at) {  // the pattern ended in the line break itself
        open = false;
        on_line_.clear();
        ends_.clear();
        continue;
      }
      if (!open) ++number;
      for (;;) {
        if (open) ++number;
        open = true;
        const std::size_t stop = end_of_line(next);
        if (stop >= at) {
          from = next;
          to = stop;
          break;
        }
        next = stop + 1;
      }
      on_line_.clear();
      ends_.clear();
      piece_end_ = 0;
    }
    // Each line of a record's message is looked at by itself.
    if (at >= piece_end_) {
      if (!on_line_.empty()) {
        line(text, from, to, number);
        on_line_.clear();
        ends_.clear();
      }
      const std::size_t stop = text.substr(0, to).find(kRecordBreak, at);
      piece_end_ = std::min(stop, to);
    }
    if (std::find(on_line_.begin(), on_line_.end(), hit.pattern) == on_line_.end()) {
      on_line_.push_back(hit.pattern);
      ends_.push_back(hit.end - from);
    }
  }
  if (open) line(text, from, to, number);
}

void LogRowsWriter::see_time(std::string_view text) {
  for (int tries = 0; tries < 8 && !text.empty(); ++tries) {
    if (text.back() == '\n') text.remove_suffix(1);
    const std::size_t back = text.rfind('\n');
    const std::size_t from = back == std::string_view::npos ? 0 : back + 1;
    if (const LinePrefix prefix = split_prefix(text.substr(from)); prefix.time.known()) {
      table_.files[0].last_time = prefix.time;
      return;
    }
    text = text.substr(0, from);
  }
}

void LogRowsWriter::line(std::string_view text, std::size_t from, std::size_t to, std::uint64_t number) {
  std::string_view whole = text.substr(from, to - from);
  if (const std::size_t end = std::min(ends_.back(), whole.size()); end > 0) {
    const std::size_t stop = std::min(whole.find(kRecordBreak, end - 1), whole.size());
    const std::size_t back = whole.substr(0, end - 1).rfind(kRecordBreak);
    const std::size_t first = back == std::string_view::npos ? 0 : back + 1;
    whole = whole.substr(first, stop - first);
    for (std::size_t& e : ends_) e -= std::min(e, first);
    from += first;
    to = from + whole.size();
  }
  // A bar that redraws itself leaves all of its states on one line: only the piece with the hit is looked at.
  std::size_t begin = 0;
  if (const std::size_t end = std::min(ends_.back(), whole.size()); end > 0) {
    const std::size_t back = whole.substr(0, end - 1).rfind('\r');
    if (back != std::string_view::npos) begin = back + 1;
  }
  std::string_view piece = whole.substr(begin);
  piece = piece.substr(0, piece.find('\r'));
  LinePrefix prefix = split_prefix(piece);
  LogFile& file = table_.files[0];
  if (prefix.time.known()) file.last_time = prefix.time;
  std::vector<std::uint32_t> rules;
  bool is_frame = false, is_step = false;
  for (const std::uint32_t p : on_line_) {
    switch (patterns_.class_of(p)) {
      case PatternClass::frame:
        is_frame = true;
        break;
      case PatternClass::step:
        is_step = true;
        break;
      case PatternClass::ignored: {  // with a traceback of its own below; alone it is no more than a remark
        const std::string_view below = text.substr(std::min(to + 1, text.size()), 200);
        if (has(below.substr(0, below.find('\n')), "Traceback (most recent"))
          ignored_[prefix.rank] = {number, std::string(prefix.message.substr(0, kLongestText))};
        break;
      }
      case PatternClass::chain: {
        const auto it = last_row_.find(prefix.rank);
        if (it != last_row_.end() && table_.rows.line[it->second] + kFrameReach >= number)
          table_.rows.chained[it->second] = has(prefix.message, "During handling") ? 2 : 1;
        break;
      }
      case PatternClass::rule:
        rules.push_back(p);
        break;
    }
  }
  if (is_frame) frame(text, to, prefix, number);
  if (is_step) step(prefix, number);
  if (is_frame || rules.empty() || is_source_line(prefix.message)) return;
  std::erase_if(rules, [&](std::uint32_t p) { return !patterns_.matches(p, prefix.message); });
  if (rules.empty()) return;
  if (const auto it = ignored_.find(prefix.rank); it != ignored_.end()) {
    const bool near = it->second.line != number && it->second.line + kIgnoredReach >= number;
    if (it->second.line != number) ignored_.erase(it);
    if (near) return;
  }
  row(piece, prefix, number, std::move(rules));
}

void LogRowsWriter::frame(std::string_view text, std::size_t to, const LinePrefix& prefix, std::uint64_t number) {
  const std::size_t open = prefix.message.find("File \"");
  if (open == std::string_view::npos) return;
  const std::size_t close = prefix.message.find('"', open + 6);
  if (close == std::string_view::npos) return;
  Frame& f = frames_[prefix.rank];
  f.line = number;
  f.file = prefix.message.substr(open + 6, close - open - 6);
  const std::size_t in = prefix.message.find(", in ", close);
  const std::string_view function = in == std::string_view::npos ? "" : prefix.message.substr(in + 5, 80);
  // The first frame after "Exception ignored in X" is in X, or the traceback is another's.
  if (const auto it = ignored_.find(prefix.rank); it != ignored_.end() && it->second.line + 2 >= number) {
    const std::size_t slash = f.file.rfind('/');
    std::string_view stem = std::string_view(f.file).substr(slash == std::string::npos ? 0 : slash + 1);
    stem = stem.substr(0, stem.find('.'));
    const bool its =
        (!function.empty() && has(it->second.text, function)) || (stem.size() >= 4 && has(it->second.text, stem));
    if (!its) ignored_.erase(it);
  }
  if (!function.empty()) f.file += ":" + std::string(function);
  f.code.clear();
  if (to + 1 >= text.size()) return;
  const char ends[] = {'\n', kRecordBreak};
  const std::size_t stop = std::min(text.find_first_of({ends, 2}, to + 1), text.size());
  const LinePrefix next = split_prefix(text.substr(to + 1, stop - to - 1));
  if (next.rank != prefix.rank || next.message.empty() || next.message[0] != ' ' || has(next.message, "File \""))
    return;
  f.code = next.message.substr(std::min(next.message.find_first_not_of(' '), next.message.size()));
  if (f.code.size() > kLongestText) f.code.resize(kLongestText);
}

void LogRowsWriter::step(const LinePrefix& prefix, std::uint64_t number) {
  StepValues v;
  if (!read_step(prefix.message, v)) return;
  LogFile& file = table_.files[0];
  if (v.step < 0 || v.step != last_step_) ++file.steps;
  last_step_ = v.step;
  file.last_step_line = number;
  if (prefix.time.known() && !file.first_step_time.known()) {
    file.first_step_time = prefix.time;
    file.steps_before_time = file.steps;
  }
  if (prefix.time.known()) file.last_step_time = prefix.time;
  StepRows& s = table_.steps;
  s.file.push_back(0);
  s.line.push_back(number);
  s.nth.push_back(++step_rows_);
  s.rank.push_back(prefix.rank >= 0 ? prefix.rank : prefix.local_rank >= 0 ? -2 - prefix.local_rank : -1);
  s.step.push_back(v.step);
  s.loss.push_back(v.loss);
  s.seconds.push_back(v.seconds);
  s.relative.push_back(v.relative);
  s.grad_norm.push_back(v.grad_norm);
  s.has_loss.push_back(v.has_loss);
  if (s.size() < options_.most_steps) return;
  const std::size_t old = s.size() / 4 * 3;  // of the older three quarters every second one goes
  keep_rows(s, [&](std::size_t i) { return i >= old || i % 2 == 0; });
}

void LogRowsWriter::row(std::string_view whole, const LinePrefix& prefix, std::uint64_t number,
                        std::vector<std::uint32_t> patterns) {
  LogRows& r = table_.rows;
  const std::uint32_t first = patterns.front();
  r.file.push_back(0);
  r.line.push_back(number);
  r.rank.push_back(prefix.rank);
  r.node.emplace_back(prefix.node);
  r.time.push_back(prefix.time);
  const std::size_t skipped = whole.size() - prefix.message.size();
  const std::size_t at = ends_.back() > skipped ? ends_.back() - skipped : 0;
  r.text.push_back(around(prefix.message, std::min(at, prefix.message.size())));
  r.steps_before.push_back(table_.files[0].steps);
  const auto f = frames_.find(prefix.rank);
  const bool framed = f != frames_.end() && f->second.line + kFrameReach >= number;
  r.frame.push_back(framed ? f->second.file : std::string());
  r.code.push_back(framed ? f->second.code : std::string());
  r.patterns.push_back(std::move(patterns));
  r.chained.push_back(0);
  dead_.push_back(0);
  last_row_[prefix.rank] = r.size() - 1;
  if (counted_[first]++ >= options_.most_rows / 2) forget_old(first, r.size() - 1);
}

void LogRowsWriter::forget_old(std::uint32_t pattern, std::size_t row) {
  std::deque<std::size_t>& late = late_[pattern];
  late.push_back(row);
  if (late.size() <= options_.most_rows / 2) return;
  dead_[late.front()] = 1;
  late.pop_front();
  if (++deads_ >= kMostDead) compact();
}

void LogRowsWriter::compact() {
  std::vector<std::size_t> place(table_.rows.size());
  std::size_t kept = 0;
  for (std::size_t i = 0; i < place.size(); ++i) {
    place[i] = kept;
    kept += dead_[i] == 0;
  }
  keep_rows(table_.rows, [&](std::size_t i) { return dead_[i] == 0; });
  for (auto& [pattern, late] : late_)
    for (std::size_t& row : late) row = place[row];
  std::erase_if(last_row_, [&](const auto& e) { return dead_[e.second] != 0; });
  for (auto& [rank, row] : last_row_) row = place[row];
  dead_.assign(kept, 0);
  deads_ = 0;
}

void LogRowsWriter::count_shape(std::string_view text, std::uint64_t number) {
  const std::uint64_t shape = line_shape(text);
  ShapeRows& s = table_.shapes;
  if (shape == last_shape_ && last_shape_row_ < s.size()) {
    ++s.count[last_shape_row_];
    return;
  }
  auto it = shape_row_.find(shape);
  if (it == shape_row_.end()) {
    if (s.size() >= options_.most_shapes) {
      table_.notes.add("shapes-not-counted", Severity::info, 1,
                       table_.files[0].label + ": line " + std::to_string(number),
                       "more kinds of lines than are kept: those of later kinds are not among the kept lines");
      return;
    }
    it = shape_row_.emplace(shape, s.size()).first;
    s.file.push_back(0);
    s.shape.push_back(shape);
    s.count.push_back(0);
    s.first_line.push_back(number);
    s.text.emplace_back(text.substr(0, kShownShape));
    std::replace(s.text.back().begin(), s.text.back().end(), kRecordBreak, ' ');
  }
  last_shape_ = shape;
  last_shape_row_ = it->second;
  ++s.count[it->second];
}

const LogTable& LogRowsWriter::so_far() {
  compact();
  return table_;
}

LogTable LogRowsWriter::finish() {
  compact();
  return std::move(table_);
}

void append_log(LogTable& to, LogTable from) {
  const auto base = static_cast<std::uint32_t>(to.files.size());
  for (LogFile& f : from.files) to.files.push_back(std::move(f));
  for (auto* files : {&from.rows.file, &from.steps.file, &from.shapes.file})
    for (std::uint32_t& f : *files) f += base;
  append_rows(to.rows, from.rows);
  append_rows(to.steps, from.steps);
  append_rows(to.shapes, from.shapes);
  to.notes.merge(from.notes);
}

}  // namespace orrery
