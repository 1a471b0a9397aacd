// A row for each name that occurs, found by the name's id: few of a pool's names are types, or states, or users.
#pragma once
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace orrery {

template <class Row>
class ByName {
 public:
  explicit ByName(std::size_t names) : place_(names, kNone) {}

  // The row of a name, made where it is not there yet.
  Row& operator[](StrId name) {
    std::uint32_t& place = place_[raw(name)];
    if (place == kNone) {
      place = static_cast<std::uint32_t>(rows_.size());
      rows_.emplace_back();
      names_.push_back(name);
    }
    return rows_[place];
  }
  // By order of appearance.
  std::size_t size() const { return rows_.size(); }
  StrId name(std::size_t i) const { return names_[i]; }
  Row& at(std::size_t i) { return rows_[i]; }
  const Row& at(std::size_t i) const { return rows_[i]; }
  std::uint32_t place(StrId name) const { return place_[raw(name)]; }  // kNone: it does not occur

 private:
  std::vector<std::uint32_t> place_;
  std::vector<StrId> names_;
  std::vector<Row> rows_;
};

}  // namespace orrery
