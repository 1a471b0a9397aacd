#include "importers/jobs_csv.h"

#include <algorithm>
#include <cstring>

namespace orrery {
namespace {

constexpr std::size_t kWindow = 128 << 10;        // stays in the cache; grows with the longest row
constexpr std::size_t kLongestQuoted = 64 << 10;  // a quote left open must not swallow the file

std::size_t newline_in(const char* from, std::size_t size) {
  const void* at = size == 0 ? nullptr : std::memchr(from, '\n', size);
  return at ? static_cast<std::size_t>(static_cast<const char*>(at) - from) : std::string_view::npos;
}

}  // namespace

CsvReader::CsvReader(ByteSource& source, char separator) : source_(source), separator_(separator), buffer_(kWindow) {}

Result<bool> CsvReader::fill() {
  if (begin_ != 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() - end_ < buffer_.size() / 2) buffer_.resize(2 * buffer_.size());
  auto got = source_.read(buffer_.data() + end_, buffer_.size() - end_);
  if (!got) return tl::unexpected(got.error());
  end_ += *got;
  at_end_ = *got == 0;
  return !at_end_;
}

Result<CsvReader::Row> CsvReader::next(std::vector<std::string_view>& fields) {
  for (;;) {
    // A line ends at a newline outside of quotes.
    std::size_t scanned = 0, quotes = 0;
    for (;;) {
      const char* from = buffer_.data() + begin_;
      const std::size_t newline = newline_in(from + scanned, end_ - begin_ - scanned);
      if (newline == std::string_view::npos) {
        if (!at_end_ && end_ - begin_ <= kLongest) {
          auto more = fill();
          if (!more) return tl::unexpected(more.error());
          continue;
        }
        if (separator_ != '|')
          quotes += static_cast<std::size_t>(std::count(from + scanned, from + (end_ - begin_), '"'));
        scanned = end_ - begin_;
        break;
      }
      if (separator_ != '|' && std::memchr(from + scanned, '"', newline) != nullptr)
        quotes += static_cast<std::size_t>(std::count(from + scanned, from + scanned + newline, '"'));
      scanned += newline;
      if (quotes % 2 == 0 || scanned > kLongestQuoted) break;
      ++scanned;
    }
    if (begin_ == end_ && at_end_) return Row::end;

    std::string_view row(buffer_.data() + begin_, scanned);
    const bool terminated = begin_ + scanned < end_;
    line_ = next_line_;
    const bool open = quotes % 2 != 0;
    if (open && !skipping_) {  // bad; what follows its first line is read again
      const std::size_t first = newline_in(row.data(), row.size());
      if (first != std::string_view::npos) row = row.substr(0, first);
      text_ = row;
      begin_ += row.size() + (begin_ + row.size() < end_ ? 1 : 0);
      ++next_line_;
      fields.clear();
      return Row::bad;
    }
    next_line_ += static_cast<std::uint64_t>(quotes == 0 ? 0 : std::count(row.begin(), row.end(), '\n'));
    begin_ += scanned + (terminated ? 1 : 0);
    if (terminated) ++next_line_;
    const bool rest_of_long = skipping_;
    skipping_ = !terminated && !at_end_;
    if (rest_of_long) continue;
    if (skipping_ || row.size() > kLongest) {
      text_ = row.substr(0, 200);
      fields.clear();
      return Row::bad;
    }
    if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
    if (row.empty()) continue;
    text_ = row;
    fields.clear();
    if (quotes != 0) return split_quoted(row, fields) ? Row::row : Row::bad;
    const char separator = separator_;
    const char *p = row.data(), *field = p;
    const char* const end = p + row.size();
    for (; p != end; ++p)
      if (*p == separator) {
        fields.emplace_back(field, static_cast<std::size_t>(p - field));
        field = p + 1;
      }
    fields.emplace_back(field, static_cast<std::size_t>(end - field));
    return Row::row;
  }
}

bool CsvReader::split_quoted(std::string_view row, std::vector<std::string_view>& fields) {
  unquoted_.clear();
  unquoted_.reserve(row.size());  // never reallocated below: views point into it
  for (std::size_t i = 0;;) {
    if (i < row.size() && row[i] == '"') {
      const std::size_t from = unquoted_.size();
      for (++i;; ++i) {
        if (i >= row.size()) return false;
        if (row[i] != '"') {
          unquoted_ += row[i];
        } else if (i + 1 < row.size() && row[i + 1] == '"') {
          unquoted_ += row[i++];
        } else {
          ++i;
          break;
        }
      }
      if (i < row.size() && row[i] != separator_) return false;
      fields.push_back(std::string_view(unquoted_).substr(from));
    } else {
      const std::size_t end = std::min(row.find(separator_, i), row.size());
      fields.push_back(row.substr(i, end - i));
      i = end;
    }
    if (i >= row.size()) return true;
    ++i;
    if (i == row.size()) {
      fields.push_back({});
      return true;
    }
  }
}

char separator_of(std::string_view header) {
  std::size_t commas = 0, bars = 0, semicolons = 0, tabs = 0;
  bool quoted = false;
  for (const char c : header) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    commas += c == ',';
    bars += c == '|';
    semicolons += c == ';';
    tabs += c == '\t';
  }
  const std::size_t most = std::max({commas, bars, semicolons, tabs});
  if (most == commas) return ',';
  return most == bars ? '|' : most == semicolons ? ';' : '\t';
}

}  // namespace orrery
