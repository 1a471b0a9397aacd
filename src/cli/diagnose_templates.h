// orrery diagnose --templates.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "data/notes.h"
#include "importers/find_inputs.h"

namespace orrery {

// Writes line,id,template (and the file, where there are several) of every line of `inputs`. Errors: an input that
// cannot be read, a file that cannot be written.
Status write_templates(const std::vector<TraceInput>& inputs, const std::string& path, Notes& notes);

}  // namespace orrery
