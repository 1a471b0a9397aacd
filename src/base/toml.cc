#define TOML_IMPLEMENTATION
#include "base/toml.h"

#include <algorithm>
#include <utility>

namespace orrery::toml_text {
namespace {

// The line of the first character above ASCII outside of quotes and comments (toml++ 3.3 is not defined on some of
// them); 0 = none.
std::int64_t bare_above_ascii(std::string_view text) {
  std::int64_t line = 1;
  std::string_view quote;  // that closes what is open; a newline closes single ones and comments
  char before = '\n';      // the last character that is no blank: where it is none of these, no quote may open
  constexpr std::string_view kOpens = "\n=[,{.";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      if (quote.size() == 1) quote = {};
    } else if (!quote.empty()) {
      if (c == '\\' && quote[0] == '"') {
        i += i + 1 < text.size() && text[i + 1] != '\n' ? 1 : 0;
      } else if (quote[0] != '#' && text.substr(i, quote.size()) == quote) {
        i += quote.size() - 1;
        quote = {};
      }
    } else if ((c == '"' || c == '\'') && kOpens.find(before) != std::string_view::npos) {
      const std::string_view three = c == '"' ? "\"\"\"" : "'''";
      quote = text.substr(i, 3) == three ? three : three.substr(0, 1);
      i += quote.size() - 1;
    } else if (c == '#') {
      quote = "#";
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      return line;
    }
    if (c != ' ' && c != '\t' && c != '\r' && (quote.empty() || quote[0] != '#')) before = c;
  }
  return 0;
}

// The first line with more than `most` dots; 0 = none.
std::int64_t dotted_line(std::string_view text, std::ptrdiff_t most) {
  std::int64_t line = 1;
  for (std::string_view rest = text; !rest.empty(); ++line) {
    const std::string_view one = rest.substr(0, rest.find('\n'));
    if (std::count(one.begin(), one.end(), '.') > most) return line;
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  return 0;
}

}  // namespace

tl::expected<toml::table, NotToml> parse(std::string_view text, std::ptrdiff_t most_dots) {
  if (const std::int64_t line = dotted_line(text, most_dots); line > 0)
    return tl::unexpected(NotToml{line, "a line with over " + std::to_string(most_dots) + " dots"});
  if (const std::int64_t line = bare_above_ascii(text); line > 0)
    return tl::unexpected(NotToml{line, "not TOML: characters above ASCII stand in quotes and comments only"});
  try {
    toml::parse_result parsed = toml::parse(text);
    if (parsed) return std::move(parsed).table();
    const toml::parse_error& e = parsed.error();
    const auto line = static_cast<std::int64_t>(e.source().begin.line);
    std::string what = "not TOML: " + std::string(e.description());  // may quote the text, newlines and all
    for (char& c : what)
      if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
    return tl::unexpected(NotToml{line > 0 ? line : 1, std::move(what)});
  } catch (const Broken&) {
    return tl::unexpected(NotToml{1, "not TOML"});
  }
}

}  // namespace orrery::toml_text
