// Programs by name, and processes by what their environment says.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace orrery {

// Where `name` would be run from: on PATH, or itself where it has a slash, seen from `directory` ("" = this process's
// own). "" = there is no such program, or it may not be run.
std::string find_program(const std::string& name, const std::string& directory = "");

// Alive, ascending: those whose environment, as it was when they began, has the variable. A zombie has none any more.
// `since`: those that began before (Child::started) are not looked into, which takes most of the time.
std::vector<pid_t> processes_with(const std::string& name, const std::string& value, std::uint64_t since = 0);

// Kills those, this process left out, until none is found, also what they start meanwhile. False: some were still there
// after `limit_s`.
bool kill_processes_with(const std::string& name, const std::string& value, double limit_s = 30);

}  // namespace orrery
