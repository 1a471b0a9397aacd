// TOML through toml++. Heavy: only files that read TOML include it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

// An assertion of toml++ 3.3 fails on some text that is not TOML ("[[["): its error, not a crash of ours.
namespace orrery::toml_text {
struct Broken {};
constexpr void hold(bool holds) {
  if (!holds) throw Broken{};
}
}  // namespace orrery::toml_text
#define TOML_ASSERT(expression) ::orrery::toml_text::hold(static_cast<bool>(expression))
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_WINDOWS_COMPAT 0
#include <toml++/toml.h>

namespace orrery::toml_text {

struct NotToml {
  std::int64_t line = 1;  // 1-based
  std::string what;       // "not TOML: ..."
};

// The line of the first character above ASCII that stands before any quote or comment of its line (toml++ 3.3 is not
// defined on some of them); 0 = none.
inline std::int64_t bare_above_ascii(std::string_view text) {
  std::int64_t line = 1;
  bool quoted = false;
  for (const char c : text) {
    if (c == '\n') {
      ++line;
      quoted = false;
    } else if (c == '"' || c == '\'' || c == '#') {
      quoted = true;
    } else if (!quoted && static_cast<unsigned char>(c) >= 0x80) {
      return line;
    }
  }
  return 0;
}

inline tl::expected<toml::table, NotToml> parse(std::string_view text) {
  if (const std::int64_t line = bare_above_ascii(text); line > 0)
    return tl::unexpected(NotToml{line, "not TOML: characters above ASCII stand in quotes and comments only"});
  try {
    toml::parse_result parsed = toml::parse(text);
    if (parsed) return std::move(parsed).table();
    const toml::parse_error& e = parsed.error();
    const auto line = static_cast<std::int64_t>(e.source().begin.line);
    return tl::unexpected(NotToml{line > 0 ? line : 1, "not TOML: " + std::string(e.description())});
  } catch (const Broken&) {
    return tl::unexpected(NotToml{1, "not TOML"});
  }
}

}  // namespace orrery::toml_text
