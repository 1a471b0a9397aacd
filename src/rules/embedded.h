// The files of src/rules as the build put them into the binary.
#pragma once
#include <span>
#include <string_view>

namespace orrery {

struct EmbeddedRules {
  std::string_view folder;  // families
  std::string_view name;    // of the file, without .toml
  std::string_view text;
};

std::span<const EmbeddedRules> embedded_rules();  // by folder and name

}  // namespace orrery
