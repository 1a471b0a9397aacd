// One of Slurm's commands, repeated while the controller does not answer.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "processes/child.h"
#include "slurm/slurm.h"

namespace orrery::slurm {

// What a command says when nobody answered: nothing is known then of what was asked.
bool is_unreachable(std::string_view errors);

// A command that asks, or whose repetition does no harm. Its exit and what it said; errors: it cannot be started, did
// not end, or nobody answered for `patience_s`.
Result<Captured> ask(const std::vector<std::string>& argv, const Terms& terms);
Result<Captured> ask_once(const std::vector<std::string>& argv, const Terms& terms);

// The line that says what is wrong, without the command's name in front.
Error refused(const std::vector<std::string>& argv, const Captured& said);

// As `ask`, and a status other than 0 is an error too.
Status tell(const std::vector<std::string>& argv, const Terms& terms);

}  // namespace orrery::slurm
