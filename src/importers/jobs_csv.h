// Rows of separated text, read front to back: RFC 4180 with commas, semicolons or tabs, and Slurm's '|' without quotes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"

namespace orrery {

class CsvReader {
 public:
  // The source must outlive the reader.
  CsvReader(ByteSource& source, char separator);

  enum class Row : std::uint8_t {
    row,
    bad,  // longer than kLongest, or a quote that does not end: skipped up to the next line
    end
  };
  // The next row that is not empty; its fields are valid until the next call. Errors: the medium cannot be read.
  Result<Row> next(std::vector<std::string_view>& fields);
  // 1-based line on which the last row began.
  std::uint64_t line() const { return line_; }
  std::string_view text() const { return text_; }  // of the last row, as it stands, without its line end

  static constexpr std::size_t kLongest = 4 << 20;  // bytes of a row: a matrix of 2,345 GPUs has 50 KB

 private:
  Result<bool> fill();  // more bytes behind those that are there; false = end
  bool split_quoted(std::string_view row, std::vector<std::string_view>& fields);

  ByteSource& source_;
  char separator_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what of the buffer is unread
  bool at_end_ = false;
  bool skipping_ = false;  // the rest of a row that was too long
  std::uint64_t line_ = 0, next_line_ = 1;
  std::string_view text_;
  std::string unquoted_;
};

// The separator of a header line: the one of , | ; and tab that it has most of, outside of quotes.
char separator_of(std::string_view header);

}  // namespace orrery
