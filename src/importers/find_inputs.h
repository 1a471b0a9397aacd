// Paths as a person gives them -> the documents they stand for.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "base/result.h"
#include "base/zip_members.h"
#include "data/notes.h"

namespace orrery {

struct TraceInput {
  std::string label;   // path, "-", or "archive.zip:member"
  ZipArchive archive;  // with archive.path empty: not in an archive
  ZipMember member;
  bool optional = false;   // found, not named: skipped with a note when it is no trace
  std::string unusable{};  // why it is not even opened: skipped with a note
  std::uint64_t size = 0;  // as stored (of a member: unpacked), 0 = unknown
};

// Files stand for themselves, directories for all files in them (recursively, in order of their names; what is no file
// there, a pipe or a broken link, comes as unusable), globs for what they match, "-" for standard input, zip archives
// for their members. Errors: nothing there, nothing matches, unreadable.
Result<std::vector<TraceInput>> find_inputs(const std::vector<std::string>& paths);

// The bytes of an input as they are stored, and its plain text.
Result<SourcePtr> open_raw(const TraceInput& input);
Result<SourcePtr> open_input(const TraceInput& input);

// The rank in a file name: "rank-3.json.gz", "rank3", "x_rank_5.json", "worker-2", "r12"; -1 = none. The last component
// of the path counts first, then its directory ("rank3/trace.json").
std::int64_t rank_in_path(const std::string& path);

}  // namespace orrery
