// Files of src/bench as the build put them into the binary: the table of techniques and the workers.
#pragma once
#include <span>
#include <string_view>

namespace orrery {

struct EmbeddedBench {
  std::string_view folder;  // tables, workers
  std::string_view name;    // of the file, without its ending
  std::string_view text;
};

std::span<const EmbeddedBench> embedded_bench();  // by folder and name

}  // namespace orrery
