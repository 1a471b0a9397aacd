// Where the tokens of a JSON text begin: simdjson's first stage (all the vector work, and the check of UTF-8 and of the
// strings) without its second. Who knows the shape of the text walks the tokens directly.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace orrery {

class JsonTokens {
 public:
  static constexpr std::size_t kPadding = 64;

  JsonTokens();
  ~JsonTokens();
  JsonTokens(JsonTokens&&) noexcept;
  JsonTokens& operator=(JsonTokens&&) noexcept;

  // text[size, size + kPadding) must be readable and blank. Returns null, or why the text cannot be JSON.
  const char* find(const char* text, std::size_t size);

  // Offsets of brackets, colons, commas and of the first bytes of strings and scalars, ascending; three more entries
  // that point to no token follow, the first two to `size`.
  const std::uint32_t* at() const { return at_; }
  std::uint32_t count() const { return count_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  const std::uint32_t* at_ = nullptr;
  std::uint32_t count_ = 0;
};

}  // namespace orrery
