// How much a suite itself says it has done: held against what was asked for, so that no score claims items that were
// not evaluated. Each returns "" where it fits or where the suite does not say, else what is wrong.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace orrery {

// Files of outputs of OpenCompass: objects with a member "0", "1", ... for each item. Other suites: "".
std::string outputs_short_of(const std::string& suite, const std::vector<std::string>& files, std::int64_t items);

// Results of lm-evaluation-harness: "n-samples" of the task, or of the tasks of a group. Since `--samples` does not
// show there (0.4.9 states the whole task), the file of logged samples beside the results decides where it is there.
std::string samples_differ(const std::string& results, const std::string& task, std::int64_t items);

}  // namespace orrery
