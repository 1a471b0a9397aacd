// Why an attempt ended, of all that is known: the scheduler's word, how its command ended, what the logs say.
#pragma once
#include "supervisor/guard_types.h"

namespace orrery {

// `end`: nothing where it was killed by the supervisor. Precondition: an attempt was running. The order of belief:
// cancelled by a person, a lost node, the scheduler's other reasons, numbers gone bad, what the logs say (where they
// are sure), the exit.
Failure classify(const GuardState& state, const AttemptState& end);

// The signal's or the status's name: "signal 9", "exit status 3", "ended, and nobody saw how".
std::string describe_end(const AttemptState& end);

// One line of evidence of a finding: "attempt-2.err:14: RuntimeError: ...".
std::string describe(const Finding& finding);

}  // namespace orrery
