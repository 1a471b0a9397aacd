// Scores out of what a metric wrote. docs/formats/evals.md has the contract.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace orrery {

using Scores = std::vector<std::pair<std::string, double>>;  // name, value; by name

struct FoundScores {
  Scores scores;
  std::vector<std::string> left_out;  // "acc is NaN": what stands where a number should
};

// By its name: "acc_stderr", "acc_stderr,none", "standard_error".
bool is_standard_error(const std::string& name);

// The numbers of the JSON object at the JSON pointer `at` ("" = the whole document) of each file; of several files each
// name begins with the file's. A member "scores" of the whole document that is an object is taken instead of it.
// Errors: no file; not JSON; nothing at the pointer; no number there.
Result<FoundScores> scores_of_files(const std::vector<std::string>& files, const std::string& at);

// The last line that is not empty: a JSON object, or a number, whose name is then "score". Errors: neither.
Result<FoundScores> scores_of_last_line(const std::string& log);

}  // namespace orrery
