// Charts as SVG: lines, bars, boxes and heat maps, in the colours of the page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "writers/html.h"
#include "writers/html_text.h"
#include "writers/text.h"

namespace orrery {
namespace {

constexpr double kWidth = 560, kHeight = 300;
constexpr double kTop = 8, kBottom = 42;  // room for the axis and its title
constexpr std::size_t kColours = 8;

std::string colour(std::size_t i) { return fmt::format("var(--c{})", i % kColours); }

std::string short_name(const std::string& s, std::size_t most) {
  return s.size() <= most ? s : s.substr(0, most - 2) + "..";
}

std::string tick_text(double v) {
  const double a = std::fabs(v);
  if (a >= 1e9) return fmt::format("{:g}G", v / 1e9);
  if (a >= 1e6) return fmt::format("{:g}M", v / 1e6);
  if (a >= 1e4) return fmt::format("{:g}k", v / 1e3);
  return fmt::format("{:g}", v);
}

// With three digits of it.
std::string value_text(double v) {
  const auto digits = [](double x) {
    return std::fabs(x) >= 100 ? fmt::format("{:.0f}", x) : fmt::format("{:.3g}", x);
  };
  const double a = std::fabs(v);
  if (a >= 1e9) return digits(v / 1e9) + "G";
  if (a >= 1e6) return digits(v / 1e6) + "M";
  if (a >= 1e4) return digits(v / 1e3) + "k";
  return digits(v);
}

// A range of values on a range of places.
struct Axis {
  double from = 0, to = 1, begin = 0, end = 1;  // values; places
  bool log = false;
  std::vector<double> ticks;

  double at(double v) const {
    if (log) {
      v = std::log10(std::max(v, from));
      return begin + (end - begin) * (v - std::log10(from)) / std::max(1e-12, std::log10(to) - std::log10(from));
    }
    return begin + (end - begin) * (v - from) / std::max(1e-300, to - from);
  }
};

Axis make_axis(double least, double most, bool log, double begin, double end) {
  Axis a;
  a.begin = begin, a.end = end, a.log = log;
  if (!std::isfinite(least) || !std::isfinite(most) || least > most) least = 0, most = 1;
  if (log) {
    a.from = std::pow(10, std::floor(std::log10(std::max(least, 1e-6))));
    a.to = std::pow(10, std::ceil(std::log10(std::max(most, a.from * 10))));
    for (double t = a.from; t <= a.to * 1.001; t *= 10) a.ticks.push_back(t);
    return a;
  }
  a.from = std::min(0.0, least);
  a.to = most > a.from ? most : a.from + 1;
  const double raw = (a.to - a.from) / 5, power = std::pow(10, std::floor(std::log10(raw)));
  const double step = raw / power < 1.5   ? power
                      : raw / power < 3.5 ? 2 * power
                      : raw / power < 7.5 ? 5 * power
                                          : 10 * power;
  a.to = std::ceil(a.to / step - 1e-9) * step;
  for (double t = std::ceil(a.from / step) * step; t <= a.to + step * 1e-6; t += step) a.ticks.push_back(t);
  return a;
}

std::string text_at(double x, double y, const char* anchor, const std::string& s, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     html_text(s));
}

void add_x_axis(std::string& out, const Axis& x, double bottom, const std::string& title) {
  for (const double t : x.ticks) {
    out += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n", x.at(t),
                       kTop, bottom);
    out += text_at(x.at(t), bottom + 15, "middle", tick_text(t), " class=\"soft\"");
  }
  out += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x.begin, x.end,
                     bottom, bottom);
  out += text_at((x.begin + x.end) / 2, bottom + 32, "middle", title);
}

std::string legend(const std::vector<std::string>& names, double left, double top, double& height) {
  std::string out;
  double x = left, y = top + 10;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = short_name(names[i], 34);
    const double width = 22 + 6.2 * static_cast<double>(name.size()) + 12;
    if (x + width > kWidth && x > left) {
      x = left;
      y += 16;
    }
    out +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"9\" fill=\"{}\"/>\n", x, y - 8, colour(i));
    out += text_at(x + 17, y, "start", name);
    x += width;
  }
  height = y + 6 - top;
  return out;
}

std::string wrap(const std::string& inside, double height) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\">\n{}</svg>\n", kWidth, height, inside);
}

std::string lines(const Chart& c) {
  double x0 = 1e300, x1 = -1e300, y1 = 0, y0 = 0;
  for (const ChartSeries& s : c.series)
    for (std::size_t i = 0; i < std::min(s.x.size(), s.y.size()); ++i) {
      if (!std::isfinite(s.x[i]) || !std::isfinite(s.y[i])) continue;
      if (!c.log_x || s.x[i] > 0) x0 = std::min(x0, s.x[i]);
      x1 = std::max(x1, s.x[i]);
      y0 = std::min(y0, s.y[i]);
      y1 = std::max(y1, s.y[i]);
    }
  const double bottom = kHeight - kBottom;
  Axis x = make_axis(x0, x1, c.log_x, 54, kWidth - 12);
  if (!c.log_x && x0 <= x1) {  // from the first point, not from zero
    x.from = x0;
    x.to = std::max(x1, x0 + 1e-9);
    std::erase_if(x.ticks, [&](double t) { return t < x.from || t > x.to; });
  }
  const Axis y = make_axis(y0, y1, false, bottom, kTop);
  std::string out;
  add_x_axis(out, x, bottom, c.x_title);
  for (const double t : y.ticks) {
    out += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x.begin,
                       x.end, y.at(t), y.at(t));
    out += text_at(x.begin - 5, y.at(t) + 4, "end", tick_text(t), " class=\"soft\"");
  }
  out += fmt::format("<text transform=\"translate(12 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + bottom) / 2, html_text(c.y_title));
  std::vector<std::string> names;
  for (std::size_t k = 0; k < c.series.size(); ++k) {
    const ChartSeries& s = c.series[k];
    names.push_back(s.name);
    std::string points;
    for (std::size_t i = 0; i < std::min(s.x.size(), s.y.size()); ++i)
      if (std::isfinite(s.x[i]) && std::isfinite(s.y[i]))
        points += fmt::format("{:.1f},{:.1f} ", x.at(s.x[i]), y.at(s.y[i]));
    if (points.empty()) continue;
    points.pop_back();
    out += fmt::format(
        "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" points=\"{}\"><title>{}</title></polyline>\n",
        colour(k), points, html_text(s.name));
  }
  double height = 0;
  if (names.size() > 1) out += legend(names, 54, kHeight, height);
  return wrap(out, kHeight + height);
}

std::string bars(const Chart& c) {
  double most = 0;
  std::size_t longest = 4;
  for (const ChartSeries& s : c.series)
    for (const double v : s.y)
      if (std::isfinite(v)) most = std::max(most, v);
  for (const std::string& l : c.labels) longest = std::max(longest, std::min<std::size_t>(l.size(), 26));
  const double left = 16 + 6.3 * static_cast<double>(longest), thick = c.series.size() > 1 ? 9 : 14;
  const double each = thick * static_cast<double>(std::max<std::size_t>(c.series.size(), 1)) + 8;
  const double bottom = kTop + each * static_cast<double>(c.labels.size());
  const Axis x = make_axis(0, most, false, left, kWidth - 50);
  std::string out;
  add_x_axis(out, x, bottom, c.x_title);
  for (std::size_t i = 0; i < c.labels.size(); ++i) {
    const double y = kTop + each * static_cast<double>(i) + 4;
    out += text_at(left - 6, y + each / 2, "end", short_name(c.labels[i], 26));
    for (std::size_t k = 0; k < c.series.size(); ++k) {
      const double v = i < c.series[k].y.size() && std::isfinite(c.series[k].y[i]) ? c.series[k].y[i] : 0;
      const double at = y + thick * static_cast<double>(k);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}</title></rect>\n",
          left, at, std::max(0.0, x.at(v) - left), thick - 1, colour(k),
          html_text(fmt::format("{} {}: {:g}", c.labels[i], c.series[k].name, v)));
      out += text_at(x.at(v) + 4, at + thick - 1, "start", value_text(v), " class=\"soft\"");
    }
  }
  double height = 0;
  std::vector<std::string> names;
  for (const ChartSeries& s : c.series) names.push_back(s.name);
  if (names.size() > 1) out += legend(names, left, bottom + kBottom, height);
  return wrap(out, bottom + kBottom + height);
}

std::string boxes(const Chart& c) {
  double least = 1e300, most = -1e300;
  std::size_t longest = 4;
  for (const ChartBox& b : c.boxes) {
    least = std::min(least, c.log_x && b.low <= 0 ? 1 : b.low);
    most = std::max(most, b.high);
    longest = std::max(longest, std::min<std::size_t>(b.label.size(), 26));
  }
  const double left = 16 + 6.3 * static_cast<double>(longest), each = 24;
  const double bottom = kTop + each * static_cast<double>(c.boxes.size());
  const Axis x = make_axis(least, most, c.log_x, left, kWidth - 16);
  std::string out;
  add_x_axis(out, x, bottom, c.x_title);
  for (std::size_t i = 0; i < c.boxes.size(); ++i) {
    const ChartBox& b = c.boxes[i];
    const double mid = kTop + each * (static_cast<double>(i) + 0.5);
    out += text_at(left - 6, mid + 4, "end", short_name(b.label, 26));
    out += fmt::format("<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x.at(b.low),
                       x.at(b.high), mid, mid);
    for (const double end : {b.low, b.high})
      out += fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n",
                         x.at(end), mid - 4, mid + 4);
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\" fill=\"var(--c0)\" fill-opacity=\"0.55\" "
        "stroke=\"var(--c0)\"><title>{}</title></rect>\n",
        x.at(b.q1), mid - 7, std::max(2.0, x.at(b.q3) - x.at(b.q1)),
        html_text(fmt::format("{}: {:g} | {:g} {:g} {:g} | {:g}", b.label, b.low, b.q1, b.median, b.q3, b.high)));
    out += fmt::format(
        "<line stroke=\"var(--c1)\" stroke-width=\"3\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n",
        x.at(b.median), mid - 7, mid + 7);
  }
  return wrap(out, bottom + kBottom);
}

std::string heat(const Chart& c) {
  double most = 0;
  for (const auto& row : c.cells)
    for (const double v : row)
      if (std::isfinite(v)) most = std::max(most, v);
  const double left = 44, cell = (kWidth - left - 12) / static_cast<double>(std::max<std::size_t>(c.labels.size(), 1));
  const double tall = std::min(24.0, std::max(12.0, cell));
  std::string out;
  for (std::size_t r = 0; r < c.cells.size(); ++r) {
    const double y = kTop + tall * static_cast<double>(r);
    out += text_at(left - 6, y + tall / 2 + 4, "end", r < c.rows.size() ? c.rows[r] : "");
    for (std::size_t k = 0; k < c.cells[r].size(); ++k) {
      const double v = std::isfinite(c.cells[r][k]) ? c.cells[r][k] : 0;
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"var(--c0)\" "
          "fill-opacity=\"{:.3f}\">"
          "<title>{}</title></rect>\n",
          left + cell * static_cast<double>(k), y, cell - 1, tall - 1, most > 0 ? 0.05 + 0.95 * v / most : 0.05,
          html_text(fmt::format("{} {}: {:g}", r < c.rows.size() ? c.rows[r] : "",
                                k < c.labels.size() ? c.labels[k] : "", v)));
    }
  }
  const double bottom = kTop + tall * static_cast<double>(c.cells.size());
  const std::size_t skip = std::max<std::size_t>(1, c.labels.size() / 12);
  for (std::size_t k = 0; k < c.labels.size(); k += skip)
    out += text_at(left + cell * (static_cast<double>(k) + 0.5), bottom + 14, "middle", c.labels[k], " class=\"soft\"");
  out += text_at((left + kWidth) / 2, bottom + 31, "middle", fmt::format("{} (darkest: {:.4g})", c.x_title, most));
  return wrap(out, bottom + kBottom);
}

std::string spans(const Chart& c) {
  double most = 0;
  std::size_t longest = 4;
  for (const ChartSpan& s : c.spans)
    if (std::isfinite(s.to)) most = std::max(most, s.to);
  for (const std::string& r : c.rows) longest = std::max(longest, std::min<std::size_t>(r.size(), 20));
  const double left = 12 + 6.3 * static_cast<double>(longest), each = c.rows.size() > 40 ? 10 : 15;
  const double bottom = kTop + each * static_cast<double>(c.rows.size());
  const Axis x = make_axis(0, most, false, left, kWidth - 12);
  std::string out;
  add_x_axis(out, x, bottom, c.x_title);
  for (std::size_t r = 0; r < c.rows.size(); ++r)
    out += text_at(left - 6, kTop + each * static_cast<double>(r) + each - 4, "end", short_name(c.rows[r], 20),
                   " class=\"soft\"");
  for (const ChartSpan& s : c.spans) {
    if (!std::isfinite(s.from) || !std::isfinite(s.to) || s.row >= c.rows.size()) continue;
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{}</title></rect>\n",
        x.at(s.from), kTop + each * static_cast<double>(s.row) + 1, std::max(0.5, x.at(s.to) - x.at(s.from) - 0.5),
        each - 2, colour(s.colour), html_text(fmt::format("{}: {:.4g} to {:.4g}", s.name, s.from, s.to)));
  }
  double height = 0;
  if (c.labels.size() > 1) out += legend(c.labels, left, bottom + kBottom, height);
  return wrap(out, bottom + kBottom + height);
}

}  // namespace

std::string html_text(std::string_view s) {
  std::string out;
  for (const char c : printable(s)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string to_svg(const Chart& chart) {
  switch (chart.kind) {
    case Chart::Kind::lines:
      return lines(chart);
    case Chart::Kind::bars:
      return bars(chart);
    case Chart::Kind::boxes:
      return boxes(chart);
    case Chart::Kind::heat:
      return heat(chart);
    case Chart::Kind::spans:
      return spans(chart);
  }
  return {};
}

}  // namespace orrery
