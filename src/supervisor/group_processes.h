// Processes of groups, waited for until a time.
#pragma once
#include <sys/types.h>

#include <vector>

#include "base/result.h"

namespace orrery {

// Of each group its processes; each leads a process group of its own. True where all of them ended with status 0
// within `timeout_s`. Whatever is left of a group then, or once one of its processes has failed, is killed and reaped;
// so it is when this process is told to end: that is an error, and says nothing of the groups.
Result<std::vector<bool>> wait_for_groups(const std::vector<std::vector<pid_t>>& groups, double timeout_s);

}  // namespace orrery
