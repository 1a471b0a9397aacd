// Files that a command is told to write, against those that it reads or keeps.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"

namespace orrery {

// Errors: the file `output` that `option` names is one of `files` ("" among them is none). Pipes and devices may be
// named twice.
Status refuse_output_over(const std::string& option, const std::string& output, const std::vector<std::string>& files);

}  // namespace orrery
