// Numbers as they are written in a trace, read without a detour over a double.
#pragma once
#include <cstdint>
#include <string_view>

namespace orrery {

enum class NumberState : std::uint8_t {
  ok,
  not_a_number,  // NaN, N/A, Infinity, null, text
  out_of_range   // a number, but the scaled value does not fit an int64
};

// value = round(number * 10^scale), half away from zero. Accepts [+-]digits[.digits][e[+-]digits]; no blanks.
NumberState read_scaled(std::string_view text, int scale, std::int64_t& value);

// Microseconds as text -> nanoseconds: "100.7" -> 100700. More than three decimals are rounded, half away from zero.
inline NumberState read_us(std::string_view text, std::int64_t& ns) { return read_scaled(text, 3, ns); }

// Integers: "12", "12.0", "1e3". A number that is not whole is none.
NumberState read_int(std::string_view text, std::int64_t& value);

// Of a text that the functions above accept: would JSON, too? It allows no "+5", "007", ".5" and "5.".
inline bool plainly_written(std::string_view number) {
  const std::size_t i = number[0] == '-' ? 1 : 0;
  const auto is_digit = [&](std::size_t k) { return number[k] >= '0' && number[k] <= '9'; };
  if (!is_digit(i) || (number[i] == '0' && i + 1 < number.size() && is_digit(i + 1))) return false;
  return number.back() != '.';
}

// Finite doubles only; NaN and infinities are not numbers here.
NumberState read_double(std::string_view text, double& value);

}  // namespace orrery
