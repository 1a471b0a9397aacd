// Names inside HTML and SVG.
#pragma once
#include <string>
#include <string_view>

namespace orrery {

// Escaped for text and for attributes; control characters and invalid UTF-8 replaced.
std::string html_text(std::string_view s);

}  // namespace orrery
