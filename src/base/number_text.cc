#include "base/number_text.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace orrery {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

constexpr std::uint64_t kPow10[] = {1, 10, 100, 1000, 10000, 100000, 1000000};

// Eight digits at once: true when all eight bytes at p are digits.
bool eight_digits(const char* p, std::uint64_t& value) {
  std::uint64_t v;
  std::memcpy(&v, p, 8);
  if constexpr (std::endian::native == std::endian::big) return false;
  if (((v & 0xf0f0f0f0f0f0f0f0ull) | (((v + 0x0606060606060606ull) & 0xf0f0f0f0f0f0f0f0ull) >> 4)) !=
      0x3333333333333333ull)
    return false;
  v = (v & 0x0f0f0f0f0f0f0f0full) * 2561 >> 8;
  v = (v & 0x00ff00ff00ff00ffull) * 6553601 >> 16;
  value = (v & 0x0000ffff0000ffffull) * 42949672960001ull >> 32;
  return true;
}

// Any length, any exponent. `text` has passed no check yet. What is beyond the scale is rounded, or when `exactly`
// makes the text no number.
NumberState read_scaled_slowly(std::string_view text, int scale, std::int64_t& value, bool exactly) {
  const char* p = text.data();
  const char* const end = p + text.size();
  bool negative = false;
  if (p != end && (*p == '-' || *p == '+')) negative = *p++ == '-';
  const char* const digits = p;
  while (p != end && is_digit(*p)) ++p;
  const std::int64_t whole = p - digits;
  std::int64_t fraction = 0;
  const char* dot = nullptr;
  if (p != end && *p == '.') {
    dot = p++;
    while (p != end && is_digit(*p)) ++p;
    fraction = p - dot - 1;
  }
  const char* const digits_end = p;
  if (whole + fraction == 0) return NumberState::not_a_number;
  std::int64_t exponent = 0;
  if (p != end && (*p == 'e' || *p == 'E')) {
    ++p;
    bool below = false;
    if (p != end && (*p == '-' || *p == '+')) below = *p++ == '-';
    if (p == end || !is_digit(*p)) return NumberState::not_a_number;
    for (; p != end && is_digit(*p); ++p)
      if (exponent < 1'000'000'000) exponent = exponent * 10 + (*p - '0');
    if (below) exponent = -exponent;
  }
  if (p != end) return NumberState::not_a_number;

  // Digits before the (moved) decimal point are kept, the next one decides the rounding.
  std::int64_t keep = whole + exponent + scale;
  std::uint64_t v = 0;
  bool round_up = false;
  constexpr std::uint64_t kMax = std::uint64_t{1} << 63;
  for (const char* q = digits; q != digits_end; ++q) {
    if (q == dot) continue;
    const auto d = static_cast<std::uint64_t>(*q - '0');
    if (keep <= 0) {
      if (exactly && d == 0) continue;
      if (exactly) return NumberState::not_a_number;
      round_up = keep == 0 && d >= 5;
      break;
    }
    if (v > (kMax - d) / 10) return NumberState::out_of_range;
    v = v * 10 + d;
    --keep;
  }
  if (v != 0)
    for (; keep > 0; --keep) {
      if (v > kMax / 10) return NumberState::out_of_range;
      v *= 10;
    }
  if (round_up) ++v;
  if (v > kMax || (v == kMax && !negative)) return NumberState::out_of_range;
  value = negative ? static_cast<std::int64_t>(0 - v) : static_cast<std::int64_t>(v);
  return NumberState::ok;
}

// The usual forms at a glance, the others slowly.
inline NumberState read(std::string_view text, int scale, std::int64_t& value, bool exactly) {
  // The usual forms: up to 19 digits in all, and no more decimals than the scale keeps.
  const char* p = text.data();
  const char* const end = p + text.size();
  if (text.size() > 20 || p == end) return read_scaled_slowly(text, scale, value, exactly);
  const bool negative = *p == '-';
  if (negative) ++p;
  std::uint64_t v = 0;
  const char* const first = p;
  if (std::uint64_t eight; end - p >= 8 && eight_digits(p, eight)) {
    v = eight;
    p += 8;
  }
  while (p != end && is_digit(*p)) v = v * 10 + static_cast<std::uint64_t>(*p++ - '0');
  const auto whole = p - first;
  if (whole == 0 || whole + scale > 19) return read_scaled_slowly(text, scale, value, exactly);
  int missing = scale;
  if (p != end && *p == '.') {
    ++p;
    while (p != end && missing > 0 && is_digit(*p)) {
      v = v * 10 + static_cast<std::uint64_t>(*p++ - '0');
      --missing;
    }
  }
  if (p != end) return read_scaled_slowly(text, scale, value, exactly);
  v *= kPow10[missing];
  if (v > static_cast<std::uint64_t>(INT64_MAX)) return read_scaled_slowly(text, scale, value, exactly);
  value = negative ? -static_cast<std::int64_t>(v) : static_cast<std::int64_t>(v);
  return NumberState::ok;
}

}  // namespace

NumberState read_scaled(std::string_view text, int scale, std::int64_t& value) {
  return read(text, scale, value, false);
}

NumberState read_int(std::string_view text, std::int64_t& value) { return read(text, 0, value, true); }

NumberState read_double(std::string_view text, double& value) {
  if (text.empty() || !(is_digit(text[0]) || text[0] == '-' || text[0] == '.')) return NumberState::not_a_number;
  double v = 0;
  const auto [p, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error == std::errc::result_out_of_range) return NumberState::out_of_range;
  if (error != std::errc{} || p != text.data() + text.size() || !std::isfinite(v)) return NumberState::not_a_number;
  value = v;
  return NumberState::ok;
}

}  // namespace orrery
