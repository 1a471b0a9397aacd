// Document -> the one JSON document that tools read.
#pragma once
#include <string>
#include <string_view>

#include "data/table.h"

namespace orrery {

// Begins with "orrery" (the version), "command", "inputs", "notes"; then the sections by key, in order. A dot in a
// column's key nests; a section without a key puts its columns on the top level. NaN and infinities become null, bytes
// that are not UTF-8 become U+FFFD, doubles keep six decimals or six digits, whichever says more. Ends with a newline.
//
// A section's key may be a path: in "clusters[].by_type{}.counts" the first column of a row names the element of the
// array "clusters" (its member "name"; made where it is not there yet), the second the member of the object "by_type",
// and the other columns are what stands in "counts" there. A path that ends in [] or {} puts them on the element
// itself. With `values` the rows are lists: [[1, 6740], [2, 8538]]; of one
// column, its values; in a key that ends in {}, the member's value. "a{}{}" names a member of a member.
std::string to_json(const Document& document);

std::string_view name_of(Severity severity);  // "info", "warning", "data-loss"

}  // namespace orrery
