// What a page of answers draws beside its tables. Reports fill these, writers draw them (writers/html.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace orrery {

struct ChartSeries {
  std::string name;
  std::vector<double> x, y;  // of lines; of bars y alone, one a label
};

struct ChartBox {
  std::string label;
  double low = 0, q1 = 0, median = 0, q3 = 0, high = 0;  // whiskers, quartiles
};

struct ChartSpan {
  std::size_t row = 0;  // of Chart::rows
  double from = 0, to = 0;
  std::size_t colour = 0;  // of Chart::labels, which the legend names
  std::string name{};
};

struct Chart {
  enum class Kind : std::uint8_t {
    lines,  // series of points, ascending in x
    bars,   // one bar a label and series, from 0
    boxes,  // one box a label
    heat,   // rows of cells, coloured from 0 to the largest
    spans   // from when to when, in rows (a Gantt chart)
  } kind = Kind::lines;
  std::string title{}, caption{};    // what it shows; what it takes for granted
  std::string x_title{}, y_title{};  // with units
  bool log_x = false;                // of lines and boxes; values at or below 0 are drawn at the least above
  std::vector<ChartSeries> series{};
  std::vector<std::string> labels{};  // of bars; of the columns of a heat map; of the colours of spans
  std::vector<ChartBox> boxes{};
  std::vector<std::string> rows{};           // of a heat map, of spans
  std::vector<std::vector<double>> cells{};  // [row][column]
  std::vector<ChartSpan> spans{};
};

}  // namespace orrery
