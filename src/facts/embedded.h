// The files of src/facts as the build put them into the binary: the installed tool needs no files.
#pragma once
#include <span>
#include <string_view>

namespace orrery {

struct EmbeddedFacts {
  std::string_view folder;  // models, gpus, hosts, platforms
  std::string_view name;    // of the file, without .toml
  std::string_view text;
};

std::span<const EmbeddedFacts> embedded_facts();  // by folder and name

}  // namespace orrery
