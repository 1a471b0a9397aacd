// Job records of datacenters -> JobTable. Formats are told by content, never by name (docs/formats/jobs.md).
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/jobs.h"

namespace orrery {

class ByteSource;

struct JobImportOptions {
  std::string schema = "auto";                    // or acme, philly, helios, pai, openb, sacct, plain
  std::int32_t time_zone_s = 0;                   // of times that name none, seconds east of Greenwich
  bool time_zone_given = false;                   // for hours of the day: instead of the file's own
  std::string type_column;                        // the column that says what kind of job it is; "" = the schema's
  std::map<std::string, std::string> cluster_of;  // --cluster FILE=NAME; FILE as given or its last part
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // bytes as stored; may be empty
};

// The schemas that can be asked for.
const std::vector<std::string_view>& job_schemas();

// One file of jobs, already open and unpacked; `label` is shown in errors and notes. Rows that cannot be used are
// counted in the table's notes ("bad-row", with the first). A file without any job gives an empty table
// ("no-jobs"). Errors: not job records, another schema than asked for, nothing usable in it, the medium.
Result<JobTable> import_jobs(ByteSource& source, const std::string& label, const JobImportOptions& options);
Result<JobTable> import_jobs_bytes(std::string_view bytes, const std::string& label,
                                   const JobImportOptions& options = {});

// Whether the first bytes of a file (unpacked) are those of job records.
bool looks_like_jobs(std::string_view first_bytes);

// Why bytes that are no usable job records seem to be meant as some; "" = they do not.
std::string unusable_jobs(std::string_view first_bytes);

}  // namespace orrery
