// A checkpoint as files: what lies there, and whether it may be read.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "trials/config.h"

namespace orrery {

struct CheckpointFile {
  std::string name;  // below the checkpoint; "" = the checkpoint is this file
  std::uint64_t bytes = 0;
  std::int64_t changed_ns = 0;  // since 1970
};

struct CheckpointFiles {
  std::vector<CheckpointFile> files;  // by name
  std::uint64_t bytes = 0;
  std::int64_t settled_ns = 0;  // when something of it last changed: also what was given old times, as copying does
  std::string fingerprint;      // of names, sizes and times of change
};

// A file, or a directory with all that is below it; links are followed. Errors: it is not there; it has no file.
Result<CheckpointFiles> look_at_checkpoint(const std::string& path);

struct Completeness {
  bool complete = false;
  std::string why;  // not: "model-2.safetensors has 10 of 20 bytes"
};
// By the rule alone; whether it has settled is for whoever looks twice.
Completeness is_complete(const std::string& path, const CheckpointFiles& files, const EvalModel& model);

// Nothing is there: other than a path of which nothing can be said now.
bool is_absent(const std::string& path);

// Names of checkpoints that lie in a directory and match `only`, sorted. A directory that is not there has none.
Result<std::vector<std::string>> checkpoints_in(const std::string& directory, const std::string& only);

}  // namespace orrery
