// The command line as data: commands, their options, and what a command line said. Help, completion, suggestions and
// parsing all read these tables.
#pragma once
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery {

enum class Takes { nothing, word, file, directory };  // what an option's value is (for completion)

struct OptionSpec {
  std::string_view name;   // "--steps"
  std::string_view value;  // "N,..."; "" for a flag
  std::string_view help;
  Takes takes = Takes::nothing;
  bool repeatable = false;
};

struct Example {
  std::string_view text;     // what it shows
  std::string_view command;  // runs from the root of the repository, with `orrery` for build/orrery
};

struct Args {  // what the command line said, spelled correctly but not yet understood
  std::vector<std::string> positional;
  std::map<std::string, std::vector<std::string>, std::less<>> options;  // "--steps" -> values; a flag has none
  std::optional<std::size_t> before_dashes = {};                         // of positional; none = there was no "--"

  bool has(std::string_view name) const { return options.find(name) != options.end(); }
  // The value of an option that takes one; "" when it was not given.
  std::string value(std::string_view name) const {
    const auto it = options.find(name);
    return it == options.end() || it->second.empty() ? std::string() : it->second.front();
  }
};

// Exit statuses, the same for every command.
inline constexpr int kDone = 0;        // the answer is complete
inline constexpr int kIncomplete = 1;  // read, but data were lost
inline constexpr int kUnusable = 2;    // the input or the options cannot be used: an Error, one line

struct Command {
  std::string_view name;
  std::string_view summary;      // one line
  std::string_view operands;     // "TRACE..."
  std::size_t least, most;       // how many operands
  std::string_view description;  // paragraphs separated by "\n\n"
  std::vector<OptionSpec> options;
  std::string_view when_incomplete;  // what exit status 1 means here
  std::vector<Example> examples;
  Result<int> (*run)(const Args&);
};

const std::vector<Command>& commands();
const Command* find_command(std::string_view name);

// Errors: an unknown option (with the closest known one), a missing or repeated value, too few or too many operands.
Result<Args> parse(const Command& command, const std::vector<std::string>& words);

std::string help_overview();                   // what `orrery help` prints
std::string man_page(const Command& command);  // what `orrery help COMMAND` and `orrery COMMAND --help` print

Command diagnose_command();    // diagnose_command.cc
Command guard_command();       // guard_command.cc
Command checknodes_command();  // checknodes_command.cc
Command bench_command();       // bench_command.cc
Command evals_command();       // evals_command.cc

Result<int> run_help(const Args& args);
Result<int> run_completion(const Args& args);
Result<int> run_replay(const Args& args);  // pipeline.cc
Result<int> run_diff(const Args& args);    // pipeline.cc
Result<int> run_predict(const Args& args);
Result<int> run_estimate(const Args& args);  // estimate.cc
Result<int> run_plan(const Args& args);      // plan.cc
Result<int> run_dissect(const Args& args);
Result<int> run_synth(const Args& args);  // synth.cc
Command loadgen_command();

Command jobs_command();  // jobs_command.cc

}  // namespace orrery
