// Values of options, read and checked.
#pragma once
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/number_text.h"
#include "cli/command.h"

namespace orrery {

template <class T>
struct Choice {
  std::string_view name;
  T value;
};

inline constexpr Choice<bool> kSwitch[] = {{"on", true}, {"off", false}};

// Each sets `out` where the option was given.
template <class T, std::size_t N>
Status choose(const Args& args, std::string_view option, const Choice<T> (&choices)[N], T& out) {
  if (!args.has(option)) return {};
  const std::string text = args.value(option);
  std::string all;
  for (const Choice<T>& c : choices) {
    if (c.name == text) {
      out = c.value;
      return {};
    }
    all += (all.empty() ? "" : ", ") + std::string(c.name);
  }
  return fail("not known: " + text, std::string(option), "one of " + all);
}

inline Status whole(const Args& args, std::string_view option, std::int64_t& out, std::int64_t most = 100'000'000,
                    std::int64_t least = 1) {
  if (!args.has(option)) return {};
  const std::string text = args.value(option);
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc{} || end != text.data() + text.size() || n < least || n > most)
    return fail(fmt::format("not a whole number from {} to {}: {}", least, most, text), std::string(option));
  out = n;
  return {};
}

inline Status real(const Args& args, std::string_view option, double& out, double least, double most) {
  if (!args.has(option)) return {};
  double x = 0;
  if (read_double(args.value(option), x) != NumberState::ok || x < least || x > most)
    return fail(fmt::format("not a number from {:g} to {:g}: {}", least, most, args.value(option)),
                std::string(option));
  out = x;
  return {};
}

inline Status all_of(std::initializer_list<Status> steps) {
  for (const Status& s : steps)
    if (!s) return s;
  return {};
}

}  // namespace orrery
