// Which sources this program was built from.
#pragma once
#include <string_view>

namespace orrery {

std::string_view commit_of_build();  // of git, "-dirty" where they were changed; "" = not known

}  // namespace orrery
