// Commands of a configuration with their placeholders filled in. docs/formats/evals.md lists them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "trials/config.h"

namespace orrery {

struct PieceWords {  // one piece of a trial
  std::string dataset, task, results;
  std::int64_t first = 0, items = 0;
  std::string output;                // the file of its outputs
  std::vector<std::string> files{};  // where its outputs are several files: those that were dumped
};

struct CommandWords {
  std::string checkpoint, checkpoint_name,
      model_name;       // where it lies in storage; the checkpoint's and the model's name
  std::string outputs;  // directory of the trial
  std::string work;     // file that lists the pieces
  std::string scores;   // file that a metric writes
  std::string samples;  // file with what {samples} stands for
  std::vector<PieceWords> pieces;
};

// {model} stays: only the node knows. "{tasks...}" and "{output...}" become one word a piece. Errors: an unknown
// placeholder; one that stands for one piece where there are several.
Result<std::vector<std::string>> fill_words(const std::vector<std::string>& argv, const CommandWords& words);
Result<std::string> fill_word(const std::string& word, const CommandWords& words);
// Of a pattern of file names: what is filled in stands for itself, save {task} and {results}, which may be patterns
// where the configuration says so.
Result<std::string> fill_pattern(const std::string& pattern, const CommandWords& words);

// Why the kernel would not take these words, "" = it does. Linux takes 128 KiB in a word, the zero at its end included;
// all words together are kept below 1 MiB (its limit is a quarter of the stack's, 2 MiB as a rule, the environment
// included).
std::string too_long(const std::vector<std::string>& words);

// {"task": [first, ..., last]} of the pieces, as lm-evaluation-harness reads it.
std::string samples_text(const std::vector<PieceWords>& pieces);

// The placeholders of a configuration's commands, before anything runs.
Status check_words(const EvalConfig& config);

// What {work} names: a JSON array of {dataset, task, first, items, output}.
std::string work_text(const std::vector<PieceWords>& pieces);

// Whether several files may match: it has more wildcards than `directories`.
bool may_be_several(const std::string& pattern, int directories);

// Files that match a pattern, sorted.
std::vector<std::string> files_like(const std::string& pattern);

}  // namespace orrery
