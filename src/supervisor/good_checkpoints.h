// What a job can go on from.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "supervisor/guard_types.h"

namespace orrery {

// Newest first. `verify`: every byte is read of as many as `a` needs, the newest and `a.number` at `a.step` or before.
// `told`: what is not good, in words. Errors: one that cannot be looked at, since it may be the newest; none is good
// though there are some, or though `some_were_seen` before.
Result<std::vector<KnownCheckpoint>> good_checkpoints(const std::string& directory, bool verify, const Action& a,
                                                      bool some_were_seen, std::string& told);

}  // namespace orrery
