// Document -> aligned tables for people.
//
//   Steps
//     step  rank  measured ms  replayed ms  error %
//        1     0      150.093      150.091    -0.00
//
//   warning: kernel-before-launch (12): rank-0.json.gz: gemm starts 3.2 us early; the delay is taken as zero
#pragma once
#include <string>
#include <string_view>

#include "data/table.h"

namespace orrery {

struct TextStyle {
  unsigned width = 100;  // columns; long text cells are cut in the middle to fit
  bool color = false;    // ANSI: bold headings, yellow warnings, red losses
  bool unicode = true;   // sparklines in block characters, else in ASCII
  bool quiet = false;    // leave out notes of severity info
};

// Sections without a title are not printed. A list of numbers becomes a sparkline on a line of its own. Control
// characters and invalid UTF-8 in names are replaced: a trace cannot send escape sequences to the terminal. Ends with a
// newline.
std::string to_text(const Document& document, const TextStyle& style = {});

// One mark for `each` values (the last may have fewer): their mean on a scale from 0 to the larger of 1 and the largest
// value.
std::string sparkline(const std::vector<double>& values, std::size_t each, bool unicode);

// Pieces that other writers for people share: a cell, a column's heading, a name without control characters and invalid
// UTF-8.
std::string cell_text(const Cell& cell, int digits);
std::string column_title(const Column& column);
std::string printable(std::string_view s);

}  // namespace orrery
