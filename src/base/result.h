// A value that crosses a boundary, or the one line that the user reads instead.
#pragma once
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace orrery {

struct Error {
  std::string what;    // what is wrong: "not a Kineto trace: no traceEvents array"
  std::string where;   // file, and byte offset or line where known; may be empty
  std::string advice;  // what to do about it; may be empty

  // "WHERE: WHAT (ADVICE)", one line, no newline.
  std::string line() const {
    std::string s = where.empty() ? what : where + ": " + what;
    if (!advice.empty()) s += " (" + advice + ")";
    return s;
  }
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

inline tl::unexpected<Error> fail(std::string what, std::string where = {}, std::string advice = {}) {
  return tl::unexpected<Error>(Error{std::move(what), std::move(where), std::move(advice)});
}

}  // namespace orrery
