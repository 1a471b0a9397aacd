#include "rules/compress.h"

#include <algorithm>

#include "base/line_shape.h"

namespace orrery {
namespace {

constexpr std::uint64_t kRare = 3;    // lines of a kind that comes no more often are kept
constexpr std::uint64_t kOften = 20;  // lines of a kind that comes so often is how this job talks

}  // namespace

std::vector<KeptLine> kept_lines(const LogTable& table, const KnownShapes& known, std::size_t most) {
  std::vector<KeptLine> all;
  for (std::size_t i = 0; i < table.shapes.size(); ++i)
    if (table.shapes.count[i] <= kRare && !known.count(table.shapes.shape[i]))
      all.push_back({table.shapes.file[i], table.shapes.first_line[i], table.shapes.text[i]});
  std::unordered_set<std::uint64_t> seen;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const std::uint64_t shape = line_shape(table.rows.text[i]);
    if (known.count(shape) || !seen.insert(shape).second) continue;
    all.push_back({table.rows.file[i], table.rows.line[i], table.rows.text[i]});
  }
  const auto at = [](const KeptLine& a, const KeptLine& b) {
    return a.file != b.file ? a.file < b.file : a.line < b.line;
  };
  std::stable_sort(all.begin(), all.end(), at);
  all.erase(std::unique(all.begin(), all.end(),
                        [](const KeptLine& a, const KeptLine& b) { return a.file == b.file && a.line == b.line; }),
            all.end());
  if (all.size() > most) all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(most));
  return all;
}

std::uint64_t count_kept(const LogTable& table, const KnownShapes& known) {
  std::uint64_t lines = 0;
  for (const LogFile& f : table.files) lines += f.lines;
  const std::size_t most = table.shapes.size() + table.rows.size();
  return std::min<std::uint64_t>(lines, kept_lines(table, known, most).size());
}

std::vector<std::pair<std::uint64_t, std::string>> taught_shapes(const LogTable& table, bool healthy) {
  std::vector<std::pair<std::uint64_t, std::string>> out;
  for (std::size_t i = 0; i < table.shapes.size(); ++i)
    if (healthy || (table.shapes.count[i] >= kOften &&
                    table.shapes.first_line[i] < table.files[table.shapes.file[i]].last_step_line))
      out.emplace_back(table.shapes.shape[i], table.shapes.text[i]);
  if (!healthy) return out;
  for (const std::string& text : table.rows.text) out.emplace_back(line_shape(text), text);
  return out;
}

}  // namespace orrery
