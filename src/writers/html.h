// Document and charts -> one self-contained page: inline SVG and tables, no scripts, nothing from a network.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "data/chart.h"
#include "data/table.h"

namespace orrery {

struct PageText {
  std::string title;            // of the page
  std::string subtitle;         // a line below it; may be empty
  std::size_t most_rows = 200;  // of a table; what is beyond is counted
};

// Charts in their order, then the tables that people see (writers/text.h), then the notes. Names are escaped; control
// characters and invalid UTF-8 in them are replaced. Colours follow the reader's light or dark setting.
std::string to_html(const Document& document, const std::vector<Chart>& charts, const PageText& text);

// The whole page or none.
Status write_html(const std::string& path, const Document& document, const std::vector<Chart>& charts,
                  const PageText& text);

// One chart as an SVG element.
std::string to_svg(const Chart& chart);

}  // namespace orrery
