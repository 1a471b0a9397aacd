// Args, understood: what every command that reads traces can be told, and how its answer leaves.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "data/table.h"
#include "importers/importers.h"
#include "writers/text.h"

namespace orrery {

struct RunOptions {
  ImportOptions import;
  std::vector<std::int64_t> steps;
  std::string export_path, csv_directory;  // "" = none
  unsigned threads = 0;                    // 0 = all cores
  bool keep_rows = false;                  // of the traces, beyond the names that reports ask for
  bool host_kernels = false;               // of a job without a GPU, its operators
  bool json = false;
  bool quiet = false;
  bool show_progress = false;  // standard error is a terminal, and not --quiet
  TextStyle style;             // of standard output, as it is
};

// Errors: a value that is not what its option takes.
Result<RunOptions> understand(const Command& command, const Args& args);

// The options that a part of a command (its first operand) takes, beside those of all its parts.
struct PartOptions {
  std::string_view part;
  std::vector<std::string_view> options;
};
// Errors: an option that other parts take and this one does not: it would change nothing.
Status check_part(const Args& args, std::string_view command, std::string_view part,
                  const std::vector<PartOptions>& parts);

// Prints the document as the options say; CSV files first. The exit status: kIncomplete when its notes tell of lost
// data.
Result<int> emit(const Document& document, const RunOptions& options);

}  // namespace orrery
