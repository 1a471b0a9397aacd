#include "writers/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/output.h"
#include "writers/html_text.h"
#include "writers/json.h"
#include "writers/text.h"

namespace orrery {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1d2430; --soft: #667085; --line: #d8dde6; --paper: #ffffff; --card: #f7f8fa;
  --c0: #2f6fde; --c1: #e07b28; --c2: #2c9c63; --c3: #c33d5c; --c4: #7a55c7; --c5: #a58a1b; --c6: #1b97a5; --c7: #8a8f98; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #343b48; --paper: #14181f;
  --card: #1b2029; --c0: #6ea0ff; --c1: #f2a25c; --c2: #5cc492; --c3: #ea7490; --c4: #a98cf0; --c5: #cdb64c; --c6: #58c3cf; } }
body { margin: 0 auto; padding: 24px; max-width: 1240px; font: 14px/1.45 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 32px 0 8px; } p { margin: 0 0 12px; }
.soft, figcaption small { color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(480px, 1fr)); gap: 16px; }
figure { margin: 0; padding: 12px; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
figcaption { font-weight: 600; margin-bottom: 6px; } figcaption small { display: block; font-weight: 400; }
svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
svg .soft { fill: var(--soft); } svg .axis { stroke: var(--soft); } svg .grid { stroke: var(--line); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 10px; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; position: sticky; top: 0; } td.n, th.n { text-align: right; }
details > summary { cursor: pointer; font-size: 16px; font-weight: 600; margin: 24px 0 8px; }
)";

bool is_number(const Cell& cell) {
  return std::holds_alternative<double>(cell) || std::holds_alternative<std::int64_t>(cell) ||
         std::holds_alternative<std::monostate>(cell);
}

std::string list_svg(const std::vector<double>& values) {  // a row of small bars
  double most = 0;
  for (const double v : values) most = std::max(most, v);
  std::string out = fmt::format("<svg viewBox=\"0 0 {} 24\" style=\"width: {}px; height: 24px\">", values.size() * 8,
                                values.size() * 8);
  for (std::size_t i = 0; most > 0 && i < values.size(); ++i) {
    const double h = 24 * values[i] / most;
    if (!(h > 0)) continue;
    out +=
        fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"7\" height=\"{:.1f}\" fill=\"var(--c0)\"/>", i * 8, 24 - h, h);
  }
  return out + "</svg>";
}

void add_table(std::string& out, const Section& s, std::size_t most_rows) {
  const auto& columns = s.table.columns;
  std::vector<std::size_t> shown;
  std::vector<bool> right;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].json_only) continue;
    bool numbers = true;
    for (const auto& row : s.table.rows) numbers &= c >= row.size() || is_number(row[c]);
    shown.push_back(c);
    right.push_back(numbers);
  }
  out += fmt::format("<details open><summary>{}</summary>\n<div class=\"wide\"><table>\n<tr>", html_text(s.title));
  for (std::size_t k = 0; k < shown.size(); ++k)
    out += fmt::format("<th{}>{}</th>", right[k] ? " class=\"n\"" : "", html_text(column_title(columns[shown[k]])));
  out += "</tr>\n";
  const std::size_t rows = std::min(s.table.rows.size(), most_rows);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto& row = s.table.rows[r];
    out += "<tr>";
    for (std::size_t k = 0; k < shown.size(); ++k) {
      const std::size_t c = shown[k];
      const Cell cell = c < row.size() ? row[c] : Cell{};
      const auto* list = std::get_if<std::vector<double>>(&cell);
      out += fmt::format("<td{}>{}</td>", right[k] ? " class=\"n\"" : "",
                         list ? list_svg(*list) : html_text(cell_text(cell, columns[c].digits)));
    }
    out += "</tr>\n";
  }
  out += "</table></div>\n";
  if (rows < s.table.rows.size())
    out += fmt::format("<p class=\"soft\">... and {} more: --csv DIR has them all</p>\n", s.table.rows.size() - rows);
  out += "</details>\n";
}

}  // namespace

std::string to_html(const Document& document, const std::vector<Chart>& charts, const PageText& text) {
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += fmt::format("<meta name=\"generator\" content=\"orrery {}\">\n", ORRERY_VERSION);
  out += fmt::format("<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n", html_text(text.title), kStyle);
  out += fmt::format("<h1>{}</h1>\n", html_text(text.title));
  if (!text.subtitle.empty()) out += fmt::format("<p class=\"soft\">{}</p>\n", html_text(text.subtitle));
  if (!charts.empty()) out += "<div class=\"charts\">\n";
  for (const Chart& c : charts) {
    out += fmt::format("<figure><figcaption>{}", html_text(c.title));
    if (!c.caption.empty()) out += fmt::format("<small>{}</small>", html_text(c.caption));
    out += "</figcaption>\n" + to_svg(c) + "</figure>\n";
  }
  if (!charts.empty()) out += "</div>\n";
  for (const Section& s : document.sections)
    if (!s.title.empty() && !s.table.rows.empty()) add_table(out, s, text.most_rows);
  if (!document.notes.rows.empty()) {
    out += "<h2>Notes</h2>\n<ul>\n";
    for (const Note& n : document.notes.rows)
      out += fmt::format("<li>{}: {} ({}) {}{}{}</li>\n", name_of(n.severity), html_text(n.name), n.count,
                         html_text(n.first), n.advice.empty() || n.first.empty() ? "" : "; ", html_text(n.advice));
    out += "</ul>\n";
  }
  return out + "</body>\n</html>\n";
}

Status write_html(const std::string& path, const Document& document, const std::vector<Chart>& charts,
                  const PageText& text) {
  return write_file(path, to_html(document, charts, text));
}

}  // namespace orrery
