// Interned strings of one rank's trace. Ids are dense and stable; id 0 is "".
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace orrery {

class StringPool {
 public:
  StringPool();
  StringPool(StringPool&&) = default;
  StringPool& operator=(StringPool&&) = default;
  StringPool(const StringPool&) = delete;  // views point into the blocks
  StringPool& operator=(const StringPool&) = delete;

  StrId intern(std::string_view s);
  // The id of `s` if it was interned before, else StrId{kNone}.
  StrId find(std::string_view s) const;
  std::string_view view(StrId id) const { return views_[raw(id)]; }
  std::size_t size() const { return views_.size(); }
  std::size_t bytes() const;

 private:
  void grow();
  std::vector<std::vector<char>> blocks_;  // never reallocated once filled
  std::size_t used_ = 0;                   // bytes used in blocks_.back()
  std::vector<std::string_view> views_;
  std::vector<std::uint64_t> hashes_;  // by id
  std::vector<std::uint32_t> slots_;   // open addressing, id + 1; size a power of two
};

}  // namespace orrery
