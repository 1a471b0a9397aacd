#include "supervisor/secrets.h"

#include <re2/re2.h>

#include <algorithm>
#include <cctype>

namespace orrery {
namespace {

// A backslash may stand before the quotes of JSON in JSON.
const char* const kValue = R"((\\*"[^"]*"?|\\*'[^']*'?|[^\s"']+))";
const char* const kName =
    R"((?:[\w.-]*(?:pass|password|passwd|passphrase|secret|token|credential|(?:api|access|private|secret)[_-]?key)s?|)"
    R"([\w.-]*auth(?:orization)?|[\w.-]*(?:password|passwd|passphrase|secret|credential)s?[_.-][\w.-]*))";

bool ends_with(std::string_view name, std::string_view end) {
  if (name.size() < end.size()) return false;
  return std::equal(end.begin(), end.end(), name.end() - static_cast<std::ptrdiff_t>(end.size()),
                    [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}

bool is_secret(std::string_view name, std::string_view between, std::string_view value) {
  const bool any = std::any_of(value.begin(), value.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  if (!any) return false;  // "unexpected token: }"
  const bool words = between.find(':') != std::string_view::npos && between.find_first_of("\"'") == std::string::npos;
  if (name.size() == 4 && ends_with(name, "pass") && words) return false;
  const bool tokens = ends_with(name, "token") || ends_with(name, "tokens");
  return !(tokens && value.find_first_not_of("0123456789.,()[]{};%kKmMbB") == std::string_view::npos);
}

// `shape` has three groups: the name, what stands between, the value.
std::string without_values(std::string_view line, const RE2& shape) {
  std::string out;
  re2::StringPiece found[4];
  const re2::StringPiece all(line.data(), line.size());
  std::size_t at = 0;
  while (shape.Match(all, at, all.size(), RE2::UNANCHORED, found, 4)) {
    const auto view = [](re2::StringPiece p) { return std::string_view(p.data(), p.size()); };
    const auto begin = static_cast<std::size_t>(found[3].data() - line.data());
    out += line.substr(at, begin - at);
    const std::string_view value = view(found[3]);
    if (!is_secret(view(found[1]), view(found[2]), value)) {
      out += value;
    } else {
      const std::size_t open = value.find_first_not_of('\\');
      const bool quoted = open != std::string_view::npos && (value[open] == '"' || value[open] == '\'');
      const std::size_t kept = quoted ? open + 1 : 0;
      out += value.substr(0, kept);
      out += "***";
      if (quoted && value.size() > kept && value.back() == value[open]) out += value[open];
    }
    at = begin + value.size();
  }
  out += line.substr(at);
  return out;
}

}  // namespace

std::string without_secrets(std::string_view line) {
  static const std::string name = kName, value = kValue;
  static const RE2 named("(?i)(" + name + R"()(\\*["']?\s*[:=]\s*(?:(?:bearer|basic)\s+)?))" + value);
  static const RE2 option("(?i)(?:^|[\\s\"'\\[(,])(--?" + name + R"()(["']?,?\s+))" +
                          R"((\\*"[^"]*"?|\\*'[^']*'?|[^\s"'-][^\s"']*))");
  static const RE2 bearer("(?i)\\b(bearer|basic)\\s+[A-Za-z0-9._~+/=-]{8,}");
  static const RE2 in_url("([a-z][a-z0-9+.-]*://)[^/\\s@]+@");
  static const RE2 query("([?&][A-Za-z0-9_.-]+=)[^&\\s]+");
  static const RE2 known("\\b(?:gh[pousr]_|hf_|sk-|xox[abp]-|AKIA|ASIA|glpat-|wandb_)[A-Za-z0-9_-]{8,}");
  static const RE2 random("\\b[A-Za-z0-9+_]{40,}={0,2}");
  std::string out = without_values(without_values(line, named), option);
  RE2::GlobalReplace(&out, bearer, "\\1 ***");
  RE2::GlobalReplace(&out, in_url, "\\1***@");
  RE2::GlobalReplace(&out, query, "\\1***");
  RE2::GlobalReplace(&out, known, "***");
  RE2::GlobalReplace(&out, random, "***");
  return out;
}

}  // namespace orrery
