// What to do next: a pure function of what is known and what happened. It has no clock and reads nothing; the same
// events in the same order give the same state, which is how a supervisor that was killed takes up again.
//
// An attempt is started only from `choosing`, which is entered only when everything of the one before has been seen
// dead. docs/guard.md has the table.
#pragma once
#include "supervisor/guard_types.h"

namespace orrery {

Decision decide(GuardState state, const GuardEvent& event);  // moved in, it costs no copy

// What is to be done (again) in the state's phase: what a supervisor that takes up begins with. Every action may be
// done twice.
std::vector<Action> pending(const GuardState& state);

}  // namespace orrery
