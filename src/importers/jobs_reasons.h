// Reasons of failures: a CSV by job, or what `orrery diagnose --json` printed.
#pragma once
#include <string>

#include "base/byte_source.h"
#include "data/job_reasons.h"

namespace orrery {

// "job_id,reason[,category]" with a header, or {"logs": [{"file", "reason", "category"}]}. Errors: neither; the medium.
Result<ReasonFile> import_reasons(ByteSource& source, const std::string& label);

}  // namespace orrery
