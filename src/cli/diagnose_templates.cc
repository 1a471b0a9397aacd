#include "cli/diagnose_templates.h"

#include <fmt/format.h>

#include "base/output.h"
#include "rules/templates.h"

namespace orrery {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 16;  // bytes of a line that its template is made of

// Calls each(line) for all lines of `source`; a \r at the end of a line does not count.
template <class Each>
Status for_each_line(ByteSource& source, Each each) {
  std::string buffer, chunk(std::size_t{1} << 18, '\0');
  for (;;) {
    const auto n = source.read(chunk.data(), chunk.size());
    if (!n) return tl::unexpected(n.error());
    if (*n == 0) break;
    std::size_t from = 0;
    const std::string_view bytes(chunk.data(), *n);
    for (std::size_t end; (end = bytes.find('\n', from)) != std::string_view::npos; from = end + 1) {
      if (buffer.size() < kLongestLine) buffer.append(bytes.substr(from, std::min(end - from, kLongestLine)));
      if (!buffer.empty() && buffer.back() == '\r') buffer.pop_back();
      each(buffer);
      buffer.clear();
    }
    if (buffer.size() < kLongestLine) buffer.append(bytes.substr(from, kLongestLine));
  }
  if (!buffer.empty()) each(buffer);
  return {};
}

std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"') out += '"';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace

Status write_templates(const std::vector<TraceInput>& inputs, const std::string& path, Notes& notes) {
  TemplateMiner miner;
  std::vector<std::vector<std::uint32_t>> groups(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    auto source = open_input(inputs[i]);
    if (!source) return tl::unexpected(source.error());
    const Status ok = for_each_line(**source, [&](std::string_view line) { groups[i].push_back(miner.add(line)); });
    if (!ok) return ok;
    const SourceTrouble trouble = (*source)->trouble();
    if (trouble.kind != SourceTrouble::Kind::none)
      notes.add("input-damaged", Severity::data_loss, 1, inputs[i].label + ": " + trouble.what,
                "what was read until there is answered");
  }
  const TemplateMiner::Result result = miner.finish();
  auto file = OutputFile::create(path);
  if (!file) return tl::unexpected(file.error());
  const bool several = inputs.size() > 1;
  std::string out = several ? "line,id,template,file\n" : "line,id,template\n";
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t l = 0; l < groups[i].size(); ++l) {
      const std::uint32_t t = result.merged[groups[i][l]];
      out += fmt::format("{},T{},{}", l + 1, t + 1, quoted(result.templates[t]));
      if (several) out += "," + quoted(inputs[i].label);
      out += '\n';
      if (out.size() < (std::size_t{1} << 20)) continue;
      if (Status ok = file->write(out); !ok) return ok;
      out.clear();
    }
  }
  if (Status ok = file->write(out); !ok) return ok;
  return file->commit();
}

}  // namespace orrery
