// The files of `orrery jobs`, told apart by content and read side by side.
#pragma once
#include <string>
#include <vector>

#include "base/progress.h"
#include "cli/command.h"
#include "cli/options.h"
#include "data/jobs.h"
#include "data/utilization.h"
#include "importers/jobs.h"

namespace orrery {

struct JobInputs {
  std::vector<JobTable> jobs;           // one a cluster, in the order of the files
  std::vector<UtilMetric> utilization;  // of those clusters where names agree, else of their own
  Notes notes;
};

// What --schema, --time-zone, --type-column and --cluster say.
Result<JobImportOptions> job_import_options(const Args& args);
std::vector<OptionSpec> job_input_options();

// Files of one cluster (--cluster gives them the same name) become one table. Errors: nothing to read, a named file
// that is none of the formats.
Result<JobInputs> read_job_inputs(const std::vector<std::string>& paths, const JobImportOptions& options,
                                  unsigned threads, Progress& progress);

// Errors: the file `output` that an option names is one of the inputs. "" is none.
Status refuse_output_over_input(const char* option, const std::string& output, const std::vector<std::string>& paths);
// The same for the tables of `document` that --csv would write in `directory`.
Status refuse_tables_over_input(const std::string& directory, const Document& document,
                                const std::vector<std::string>& paths);

}  // namespace orrery
