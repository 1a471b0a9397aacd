// JSON text without a parser behind it: the slow, careful ways that are used where simdjson has refused a text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace orrery {

inline constexpr std::size_t kDeepestJson = 64;  // levels of brackets in one value; events have four at most

struct JsonScan {
  enum class State : std::uint8_t { whole, cut, bad } state = State::bad;
  std::size_t at = 0;         // whole: one past the value's end; bad: the offending byte; cut: text.size()
  const char* expected = "";  // bad: "',' or '}'"; "" = nested deeper than kDeepestJson
};

// What is wrong with a bad value, for messages: "expected ',' or '}'".
std::string json_problem(const JsonScan& bad);

// Scans the one JSON value that starts at text[from] (after white space). Strings may hold any byte; a scalar may be
// any run of characters that JSON gives no other meaning (NaN, N/A, -inf): what is checked is what decides where values
// end.
JsonScan scan_json_value(std::string_view text, std::size_t from);

struct JsonEscapes {
  bool broken = false;          // an escape that JSON does not have ("\\q"), kept as written
  bool lone_surrogate = false;  // half a UTF-16 pair, replaced by U+FFFD
};

// Text between the quotes -> the string.
JsonEscapes unescape_json(std::string_view between_quotes, std::string& out);

struct JsonRepair {
  std::uint64_t invalid_utf8 = 0;        // bytes that are not UTF-8, each replaced by U+FFFD
  std::uint64_t control_characters = 0;  // raw characters below 0x20 inside strings, each escaped
  std::size_t first_invalid_utf8 = 0;    // offsets in the text given
  std::size_t first_control_character = 0;
};

// Appends a copy of `text`, which begins outside of strings, that a strict parser accepts as far as characters go.
JsonRepair repair_json_characters(std::string_view text, std::string& out);

// At most `limit` bytes of text on one line, for messages: control characters and bytes above 0x7e become '.' or '?'.
std::string quote_for_people(std::string_view text, std::size_t limit);

inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace orrery
