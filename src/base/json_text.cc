#include "base/json_text.h"

#include <vector>

namespace orrery {
namespace {

bool is_special(char c) {
  switch (c) {
    case '{':
    case '}':
    case '[':
    case ']':
    case ',':
    case ':':
    case '"':
      return true;
    default:
      return is_json_space(c) || c == '\0';
  }
}

// Length of the valid UTF-8 sequence at p, 0 when there is none. No overlong forms, no surrogates.
std::size_t utf8_length(const unsigned char* p, std::size_t n) {
  const unsigned c = p[0];
  if (c < 0x80) return 1;
  auto follows = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xbf) {
    return i < n && p[i] >= low && p[i] <= high;
  };
  if (c >= 0xc2 && c <= 0xdf) return follows(1) ? 2 : 0;
  if (c >= 0xe0 && c <= 0xef) {
    const unsigned low = c == 0xe0 ? 0xa0 : 0x80;
    const unsigned high = c == 0xed ? 0x9f : 0xbf;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (c >= 0xf0 && c <= 0xf4) {
    const unsigned low = c == 0xf0 ? 0x90 : 0x80;
    const unsigned high = c == 0xf4 ? 0x8f : 0xbf;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

void append_utf8(std::uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

bool hex4(std::string_view s, std::size_t at, std::uint32_t& v) {
  if (at + 4 > s.size()) return false;
  v = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    const char c = s[i];
    std::uint32_t d;
    if (c >= '0' && c <= '9')
      d = static_cast<std::uint32_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      d = static_cast<std::uint32_t>(c - 'a' + 10);
    else if (c >= 'A' && c <= 'F')
      d = static_cast<std::uint32_t>(c - 'A' + 10);
    else
      return false;
    v = v * 16 + d;
  }
  return true;
}

}  // namespace

std::string json_problem(const JsonScan& bad) {
  if (*bad.expected == '\0') return "nested too deep: over " + std::to_string(kDeepestJson) + " levels of brackets";
  return std::string("expected ") + bad.expected;
}

JsonScan scan_json_value(std::string_view text, std::size_t from) {
  using State = JsonScan::State;
  std::vector<bool> in_object;  // one entry an open bracket
  std::size_t i = from;
  const std::size_t n = text.size();
  auto skip_space = [&] {
    while (i < n && is_json_space(text[i])) ++i;
  };
  // Returns false at the end of the text; i is then n.
  auto skip_string = [&] {
    for (++i; i < n; ++i) {
      if (text[i] == '\\') {
        ++i;
      } else if (text[i] == '"') {
        ++i;
        return true;
      }
    }
    i = n;
    return false;
  };
  const JsonScan cut{State::cut, n, ""};
  enum class Want : std::uint8_t { value, value_or_close, key, key_or_close, after } want = Want::value;
  for (;;) {
    skip_space();
    if (i >= n) return cut;
    const char c = text[i];
    switch (want) {
      case Want::key:
      case Want::key_or_close:
        if (c == '}' && want == Want::key_or_close) {
          want = Want::after;
          ++i;
          in_object.pop_back();
          break;
        }
        if (c != '"') return {State::bad, i, want == Want::key ? "a key" : "a key or '}'"};
        if (!skip_string()) return cut;
        skip_space();
        if (i >= n) return cut;
        if (text[i] != ':') return {State::bad, i, "':'"};
        ++i;
        want = Want::value;
        break;
      case Want::value:
      case Want::value_or_close:
        if (c == ']' && want == Want::value_or_close) {
          want = Want::after;
          ++i;
          in_object.pop_back();
          break;
        }
        if (c == '{' || c == '[') {
          if (in_object.size() == kDeepestJson) return {State::bad, i, ""};
          in_object.push_back(c == '{');
          want = c == '{' ? Want::key_or_close : Want::value_or_close;
          ++i;
          break;
        }
        want = Want::after;
        if (c == '"') {
          if (!skip_string()) return cut;
        } else if (is_special(c)) {
          return {State::bad, i, "a value"};
        } else {
          while (i < n && !is_special(text[i])) ++i;
          if (i >= n) return cut;  // the rest of the number may follow
        }
        break;
      case Want::after:
        if (c == ',') {
          want = in_object.back() ? Want::key : Want::value;
          ++i;
        } else if (c == (in_object.back() ? '}' : ']')) {
          ++i;
          in_object.pop_back();
        } else {
          return {State::bad, i, in_object.back() ? "',' or '}'" : "',' or ']'"};
        }
        break;
    }
    if (want == Want::after && in_object.empty()) return {State::whole, i, ""};
  }
}

JsonEscapes unescape_json(std::string_view s, std::string& out) {
  JsonEscapes odd;
  out.clear();
  std::size_t i = 0;
  while (i < s.size()) {
    const char c = s[i];
    if (c != '\\' || i + 1 >= s.size()) {
      out += c;
      ++i;
      continue;
    }
    const char e = s[i + 1];
    std::size_t used = 2;
    switch (e) {
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case 'r':
        out += '\r';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case '"':
      case '\\':
      case '/':
        out += e;
        break;
      case 'u': {
        std::uint32_t v = 0, low = 0;
        if (!hex4(s, i + 2, v)) {
          odd.broken = true;
          out += "\\u";
          break;
        }
        used = 6;
        if (v >= 0xd800 && v < 0xdc00 && i + 7 < s.size() && s[i + 6] == '\\' && s[i + 7] == 'u' &&
            hex4(s, i + 8, low) && low >= 0xdc00 && low < 0xe000) {
          v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
          used = 12;
        } else if (v >= 0xd800 && v < 0xe000) {
          odd.lone_surrogate = true;
          v = 0xfffd;
        }
        append_utf8(v, out);
        break;
      }
      default:
        odd.broken = true;
        out += c;
        out += e;
    }
    i += used;
  }
  return odd;
}

JsonRepair repair_json_characters(std::string_view text, std::string& out) {
  JsonRepair found;
  out.reserve(out.size() + text.size() + 64);
  bool in_string = false, escaped = false;
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) {
      const std::size_t n = utf8_length(reinterpret_cast<const unsigned char*>(text.data()) + i, text.size() - i);
      if (n == 0) {
        if (found.invalid_utf8++ == 0) found.first_invalid_utf8 = i;
        out += "\xef\xbf\xbd";
        ++i;
      } else {
        out.append(text, i, n);
        i += n;
      }
      escaped = false;
      continue;
    }
    if (in_string && c < 0x20) {
      if (found.control_characters++ == 0) found.first_control_character = i;
      static const char* const kHex = "0123456789abcdef";
      if (escaped) out += '\\';  // a backslash before a raw newline stands for itself
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
      escaped = false;
    } else {
      out += static_cast<char>(c);
      if (in_string && escaped)
        escaped = false;
      else if (in_string && c == '\\')
        escaped = true;
      else if (c == '"')
        in_string = !in_string;
    }
    ++i;
  }
  return found;
}

std::string quote_for_people(std::string_view text, std::size_t limit) {
  std::string s;
  bool space = false;
  for (const char c : text) {
    if (s.size() >= limit) {
      s += "...";
      break;
    }
    if (is_json_space(c)) {
      space = !s.empty();
      continue;
    }
    if (space) s += ' ';
    space = false;
    const auto u = static_cast<unsigned char>(c);
    s += u < 0x20 ? '.' : (u > 0x7e ? '?' : c);
  }
  return s;
}

}  // namespace orrery
