#include "cli/output_paths.h"

#include <filesystem>

namespace orrery {

Status refuse_output_over(const std::string& option, const std::string& output, const std::vector<std::string>& files) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_type type = fs::status(output, error).type();
  if (output.empty() || (type != fs::file_type::regular && type != fs::file_type::not_found)) return {};
  const fs::path real = fs::weakly_canonical(output, error);
  for (const std::string& file : files) {
    if (file.empty()) continue;
    const bool same = fs::equivalent(output, file, error) && !error;
    // Neither may be there yet.
    if (same || (!real.empty() && fs::weakly_canonical(file, error) == real))
      return fail("would be written over " + file, option, "name another file");
  }
  return {};
}

}  // namespace orrery
