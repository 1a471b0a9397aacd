#pragma once
#include <string>

namespace orrery {

// The last 64 KiB of a file; "" = there is none, or it cannot be read.
std::string end_of_file(const std::string& path);

}  // namespace orrery
