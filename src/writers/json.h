// Document -> the one JSON document that tools read.
#pragma once
#include <string>
#include <string_view>

#include "data/table.h"

namespace orrery {

// Begins with "orrery" (the version), "command", "inputs", "notes"; then the sections by key, in order. A dot in a
// column's key nests; a section without a key puts its columns on the top level. NaN and infinities become null, bytes
// that are not UTF-8 become U+FFFD, doubles keep six decimals or six digits, whichever says more. Ends with a newline.
std::string to_json(const Document& document);

std::string_view name_of(Severity severity);  // "info", "warning", "data-loss"

}  // namespace orrery
