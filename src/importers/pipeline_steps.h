// Files that record the steps of pipelines, not kernels (docs/formats/pipeline-steps.md): one document -> its
// operations; all documents of a job -> PipelineTrace.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "data/pipeline.h"

namespace orrery {

enum class PipelineForm : std::uint8_t {
  none,      // something else
  timeline,  // a Chrome trace of operations, all ranks in one file
  passes,    // starts and ends of forward and backward passes, one file a rank
  settings   // sizes of the job beside the passes
};
// By content: `head` is the beginning of the plain text (64 KiB are enough).
PipelineForm pipeline_form(std::string_view head);

struct PipelineFile {
  PipelineForm form = PipelineForm::none;
  std::string file;
  std::int64_t rank = -1;  // of passes; to be told by the caller

  struct Operation {
    std::int64_t step = 0;
    std::int32_t pp = 0, dp = 0, tp = 0;  // of a timeline
    std::uint32_t type = 0;               // row of `types`
    std::int32_t micro_batch = -1, chunk = -1;
    Ns start = 0, end = 0;
  };
  std::vector<PipelineType> types;
  std::vector<Operation> operations;                   // passes: times since the begin of the step
  std::vector<std::pair<std::int64_t, Ns>> step_ends;  // of passes: "total"
  bool has_micro_batches = false;                      // of a timeline: operations name theirs

  // settings; 0 = not told
  std::int32_t world = 0, pp = 0, dp = 0, tp = 0, chunks = 0, micro_batches = 0;
  Notes notes;
};

// `text` is plain. recover: what is not valid JSON is skipped and counted as lost instead of refused. A text that is
// cut gives what comes before. Errors: another form; nothing that could be used.
Result<PipelineFile> read_pipeline_file(std::string_view text, const std::string& file, bool recover);

// All files of one job. Errors: the same rank or step twice; several forms; no operation at all.
Result<PipelineTrace> join_pipeline(std::vector<PipelineFile> files);

}  // namespace orrery
