#include "writers/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace orrery {
namespace {

constexpr std::size_t kGap = 2;         // between columns, and before the first
constexpr std::size_t kLeastText = 16;  // no text column is cut below this
constexpr std::size_t kWholeName = 32;  // what rows are called is copied: a first column as narrow as this stays whole

// ---- characters ----

// The length of the UTF-8 sequence at s[i], 0 when invalid.
std::size_t sequence_length(std::string_view s, std::size_t i) {
  const auto byte = [&](std::size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
  const unsigned b = byte(i);
  if (b < 0x80) return 1;
  const std::size_t n = b >= 0xc2 && b < 0xe0 ? 2 : b >= 0xe0 && b < 0xf0 ? 3 : b >= 0xf0 && b < 0xf5 ? 4 : 0;
  for (std::size_t k = 1; k < n; ++k) {
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
  }
  if (b == 0xe0 && byte(i + 1) < 0xa0) return 0;   // overlong
  if (b == 0xed && byte(i + 1) >= 0xa0) return 0;  // surrogate
  if (b == 0xf0 && byte(i + 1) < 0x90) return 0;
  if (b == 0xf4 && byte(i + 1) >= 0x90) return 0;
  return n;
}

// Splits into printable characters; anything else becomes '?', C1 controls included.
std::vector<std::string_view> characters(std::string_view s) {
  std::vector<std::string_view> out;
  out.reserve(s.size());
  for (std::size_t i = 0; i < s.size();) {
    const std::size_t n = sequence_length(s, i);
    const unsigned char b = static_cast<unsigned char>(s[i]);
    const bool control =
        (n == 1 && (b < 0x20 || b == 0x7f)) || (n == 2 && b == 0xc2 && static_cast<unsigned char>(s[i + 1]) < 0xa0);
    out.push_back(n == 0 || control ? std::string_view("?") : s.substr(i, n));
    i += std::max<std::size_t>(n, 1);
  }
  return out;
}

std::string joined(const std::vector<std::string_view>& chars, std::size_t from, std::size_t to) {
  std::string out;
  for (std::size_t i = from; i < to; ++i) out += chars[i];
  return out;
}

std::string clean(std::string_view s) {
  const auto chars = characters(s);
  return joined(chars, 0, chars.size());
}

std::size_t width_of(std::string_view s) {  // of clean text: one column a character
  std::size_t n = 0;
  for (const char c : s) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return n;
}

// Cut in the middle: kernel names differ at both ends.
std::string shortened(const std::string& s, std::size_t width) {
  const auto chars = characters(s);
  if (chars.size() <= width) return s;
  const std::size_t tail = (width - 2) / 3;
  const std::size_t head = width - 2 - tail;
  return joined(chars, 0, head) + ".." + joined(chars, chars.size() - tail, chars.size());
}

std::string padded(const std::string& s, std::size_t width, bool right) {
  const std::size_t w = width_of(s);
  const std::string fill(w < width ? width - w : 0, ' ');
  return right ? fill + s : s + fill;
}

void trim_right(std::string& s) { s.erase(s.find_last_not_of(' ') + 1); }

std::string styled(const std::string& s, const char* code, const TextStyle& style) {
  return style.color ? fmt::format("\x1b[{}m{}\x1b[0m", code, s) : s;
}

// ---- cells ----

std::string number(double x, int digits) {
  if (!std::isfinite(x)) return "n/a";
  if (std::fabs(x) >= 1e15) return fmt::format("{:.6g}", x);
  std::string s = fmt::format("{:.{}f}", x, digits);
  if (s.front() == '-' && s.find_first_not_of("-0.") == std::string::npos) s.erase(0, 1);  // no "-0.00"
  return s;
}

struct CellToText {
  int digits;
  std::string operator()(std::monostate) const { return "n/a"; }
  std::string operator()(bool b) const { return b ? "yes" : "no"; }
  std::string operator()(std::int64_t i) const { return fmt::format("{}", i); }
  std::string operator()(double x) const { return number(x, digits); }
  std::string operator()(const std::string& s) const { return clean(s); }
  std::string operator()(const std::vector<double>& v) const { return fmt::format("{} values", v.size()); }
};

std::string title_of(const Column& c) {
  if (!c.title.empty()) return clean(c.title);
  std::string s = clean(c.key);
  std::replace(s.begin(), s.end(), '.', ' ');
  std::replace(s.begin(), s.end(), '_', ' ');
  if (s == "pct") return "%";
  if (s.ends_with(" pct")) s.replace(s.size() - 3, 3, "%");
  return s;
}

const std::vector<double>* list_at(const Section& s, std::size_t r, std::size_t column) {
  const auto& row = s.table.rows[r];
  return column < row.size() ? std::get_if<std::vector<double>>(&row[column]) : nullptr;
}

bool is_list(const Section& s, std::size_t column) {
  for (std::size_t r = 0; r < s.table.rows.size(); ++r) {
    if (list_at(s, r, column)) return true;
  }
  return false;
}

struct Printed {                     // a column ready to be laid out
  std::vector<std::string> heading;  // lines
  std::vector<std::string> cells;
  bool right = true;
  std::size_t width = 0;
};

// Breaks a title at its spaces into lines of at most `width` (a longer word stands alone).
std::vector<std::string> wrapped(const std::string& title, std::size_t width) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < title.size();) {
    std::size_t end = title.find(' ', i);
    if (end == std::string::npos) end = title.size();
    const std::string word = title.substr(i, end - i);
    if (!lines.empty() && width_of(lines.back()) + 1 + width_of(word) <= width) {
      lines.back() += ' ' + word;
    } else {
      lines.push_back(word);
    }
    i = end + 1;
  }
  if (lines.empty()) lines.emplace_back();
  return lines;
}

Printed lay_out(const Section& s, std::size_t column, std::size_t rows) {
  Printed p;
  const Column& c = s.table.columns[column];
  bool any_text = false;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto& row = s.table.rows[r];
    const Cell cell = column < row.size() ? row[column] : Cell{};
    const auto* text = std::get_if<std::string>(&cell);
    any_text |= text && text->find_first_not_of("0123456789.,/+-% ") != std::string::npos;  // "1.5/2.5" is numbers
    p.cells.push_back(std::visit(CellToText{c.digits}, cell));
    p.width = std::max(p.width, width_of(p.cells.back()));
  }
  p.right = !any_text;
  // A heading may be wider than the numbers below it, but wraps rather than stretch the column.
  p.heading = wrapped(title_of(c), std::max<std::size_t>(p.width, 8));
  for (const std::string& line : p.heading) p.width = std::max(p.width, width_of(line));
  return p;
}

// Narrows the widest text columns until the table fits, if it can.
void fit(std::vector<Printed>& columns, std::size_t width) {
  const Printed* whole = !columns.empty() && columns.front().width <= kWholeName ? &columns.front() : nullptr;
  for (;;) {
    std::size_t total = 0;
    Printed* widest = nullptr;
    for (Printed& p : columns) {
      total += p.width + kGap;
      if (!p.right && &p != whole && (!widest || p.width > widest->width)) widest = &p;
    }
    if (total <= width || !widest || widest->width <= kLeastText) return;
    std::size_t heading = 0;
    for (const std::string& line : widest->heading) heading = std::max(heading, width_of(line));
    const std::size_t target =
        std::max({kLeastText, heading, widest->width > total - width ? widest->width - (total - width) : 0});
    if (target >= widest->width) return;
    // Not below the next widest at once: two long columns share the cut.
    std::size_t second = 0;
    for (const Printed& p : columns) {
      if (!p.right && &p != widest && &p != whole) second = std::max(second, p.width);
    }
    widest->width = second > target && second < widest->width ? second : std::max(target, widest->width / 2);
  }
}

// ---- sections ----

void add_table(std::string& out, const Section& s, const std::vector<std::size_t>& which, std::size_t rows,
               const TextStyle& style) {
  std::vector<Printed> columns;
  std::size_t lines = 0;
  for (const std::size_t c : which) {
    columns.push_back(lay_out(s, c, rows));
    lines = std::max(lines, columns.back().heading.size());
  }
  fit(columns, style.width);
  for (Printed& p : columns) {
    for (std::string& cell : p.cells) cell = p.right ? cell : shortened(cell, p.width);
  }
  for (std::size_t line = 0; line < lines; ++line) {
    std::string text;
    for (const Printed& p : columns) {
      const std::size_t skip = lines - p.heading.size();  // headings stand on their last line
      text += std::string(kGap, ' ') + padded(line < skip ? "" : p.heading[line - skip], p.width, p.right);
    }
    trim_right(text);
    out += text + "\n";
  }
  for (std::size_t r = 0; r < rows; ++r) {
    std::string text;
    for (const Printed& p : columns) text += std::string(kGap, ' ') + padded(p.cells[r], p.width, p.right);
    trim_right(text);
    out += text + "\n";
  }
}

// One "name  value" line a column.
void add_single(std::string& out, const Section& s, const std::vector<std::size_t>& which) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::size_t names = 0, values = 0;
  bool any_text = false;
  for (const std::size_t c : which) {
    const Column& column = s.table.columns[c];
    const auto& row = s.table.rows[0];
    const Cell cell = c < row.size() ? row[c] : Cell{};
    any_text |= std::holds_alternative<std::string>(cell);
    lines.emplace_back(title_of(column), std::visit(CellToText{column.digits}, cell));
    names = std::max(names, width_of(lines.back().first));
    values = std::max(values, width_of(lines.back().second));
  }
  for (const auto& [name, value] : lines) {
    out += fmt::format("  {}  {}\n", padded(name, names, false), any_text ? value : padded(value, values, true));
  }
}

// Lists stand under each other, so that the eye compares them; the column "x_pct" stands beside the list "x":
//   rank 0  measured  96.2%  ▁▃█▇
//           replayed  96.1%  ▁▃▇▇
void add_sparklines(std::string& out, const Section& s, std::vector<std::size_t> labels,
                    const std::vector<std::size_t>& lists, std::size_t rows, const TextStyle& style) {
  const auto& columns = s.table.columns;
  std::vector<std::size_t> percent(lists.size(), columns.size());
  for (std::size_t k = 0; k < lists.size(); ++k) {
    const auto is_percent = [&](std::size_t c) { return columns[c].key == columns[lists[k]].key + "_pct"; };
    const auto found = std::find_if(labels.begin(), labels.end(), is_percent);
    if (found == labels.end()) continue;
    percent[k] = *found;
    labels.erase(found);
  }
  const auto cell_text = [&](std::size_t r, std::size_t c) {
    return std::visit(CellToText{columns[c].digits}, c < s.table.rows[r].size() ? s.table.rows[r][c] : Cell{});
  };

  struct Line {
    std::string name, title, percent;
    const std::vector<double>* list;
  };
  std::vector<Line> lines;
  std::size_t name_width = 0, title_width = 0, percent_width = 0, longest = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    std::string name;
    for (const std::size_t c : labels) {
      name += (name.empty() ? "" : "  ") + title_of(columns[c]) + ' ' + cell_text(r, c);
    }
    for (std::size_t k = 0; k < lists.size(); ++k) {
      lines.push_back({k == 0 ? name : "", title_of(columns[lists[k]]), "", list_at(s, r, lists[k])});
      Line& line = lines.back();
      if (percent[k] < columns.size()) {
        const std::string share = cell_text(r, percent[k]);
        line.percent = share == "n/a" ? "n/a  " : share + "%  ";
      }
      name_width = std::max(name_width, width_of(line.name));
      title_width = std::max(title_width, width_of(line.title));
      percent_width = std::max(percent_width, width_of(line.percent));
      if (line.list) longest = std::max(longest, line.list->size());
    }
  }
  const std::size_t used = name_width + title_width + percent_width + 3 * kGap;
  const std::size_t marks = style.width > used + kLeastText ? style.width - used : kLeastText;
  // The same number of values a mark in every line: equal times stand above each other.
  const std::size_t each = std::max<std::size_t>(1, (longest + marks - 1) / marks);
  for (const Line& line : lines) {
    out += fmt::format("  {}  {}  {}{}\n", padded(line.name, name_width, false), padded(line.title, title_width, false),
                       padded(line.percent, percent_width, true),
                       line.list ? sparkline(*line.list, each, style.unicode) : "n/a");
  }
  if (each > 1) out += fmt::format("  (each mark is the mean of {} values)\n", each);
}

void add_section(std::string& out, const Section& s, const TextStyle& style) {
  std::vector<std::size_t> plain, lists;
  for (std::size_t c = 0; c < s.table.columns.size(); ++c) {
    if (!s.table.columns[c].json_only) (is_list(s, c) ? lists : plain).push_back(c);
  }
  if (!out.empty()) out += "\n";
  out += styled(clean(s.title), "1", style) + "\n";
  const std::size_t all = s.table.rows.size();
  if (all == 0) {
    out += "  none\n";
    return;
  }
  if (s.single && lists.empty()) {
    add_single(out, s, plain);
    return;
  }
  const std::size_t rows = s.text_rows == 0 ? all : std::min(all, s.text_rows);
  if (lists.empty()) {
    add_table(out, s, plain, rows, style);
  } else {
    add_sparklines(out, s, plain, lists, rows, style);
  }
  if (rows < all) out += fmt::format("  ... and {} more (--json or --csv DIR has them all)\n", all - rows);
}

void add_note(std::string& out, const Note& n, const TextStyle& style) {
  std::string label = n.severity == Severity::info ? "note" : n.severity == Severity::warning ? "warning" : "data lost";
  if (n.severity != Severity::info) label = styled(label, n.severity == Severity::warning ? "33" : "31", style);
  out += fmt::format("{}: {} ({})", label, clean(n.name), n.count);
  if (!n.first.empty()) out += fmt::format(": {}", clean(n.first));
  if (!n.advice.empty()) out += fmt::format("{} {}", n.first.empty() ? ":" : ";", clean(n.advice));
  out += "\n";
}

}  // namespace

std::string sparkline(const std::vector<double>& values, std::size_t each, bool unicode) {
  static constexpr std::array<const char*, 9> kBlocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<const char*, 9> kAscii = {" ", ".", ":", "-", "=", "+", "*", "%", "#"};
  double top = 1;
  for (const double x : values) {
    if (std::isfinite(x)) top = std::max(top, x);
  }
  each = std::max<std::size_t>(each, 1);
  std::string out;
  for (std::size_t i = 0; i < values.size(); i += each) {
    double sum = 0;
    std::size_t n = 0;
    for (std::size_t k = i; k < std::min(values.size(), i + each); ++k) {
      if (!std::isfinite(values[k])) continue;
      sum += values[k];
      ++n;
    }
    if (n == 0) {
      out += '?';
      continue;
    }
    // Anything at all shows, and only what is full shows full.
    const double level = std::clamp(sum / static_cast<double>(n) / top, 0.0, 1.0);
    const std::size_t k = level > 0 ? 1 + static_cast<std::size_t>(level * 7) : 0;
    out += unicode ? kBlocks[k] : kAscii[k];
  }
  return out;
}

std::string cell_text(const Cell& cell, int digits) { return std::visit(CellToText{digits}, cell); }

std::string column_title(const Column& column) { return title_of(column); }

std::string printable(std::string_view s) { return clean(s); }

std::string to_text(const Document& document, const TextStyle& style) {
  std::string out;
  for (const Section& s : document.sections) {
    if (!s.title.empty()) add_section(out, s, style);
  }
  bool first = true;
  for (const Severity level : {Severity::info, Severity::warning, Severity::data_loss}) {
    if (level == Severity::info && style.quiet) continue;
    for (const Note& n : document.notes.rows) {
      if (n.severity != level) continue;
      if (first && !out.empty()) out += "\n";
      first = false;
      add_note(out, n, style);
    }
  }
  return out;
}

}  // namespace orrery
