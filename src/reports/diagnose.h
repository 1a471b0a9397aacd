// Verdicts on logs -> Document.
#pragma once
#include <string>
#include <vector>

#include "data/table.h"
#include "rules/diagnose.h"

namespace orrery {

struct LogVerdict {
  std::string label;               // the file, or the job's name
  std::vector<std::string> files;  // labels that Evidence::file counts
  Diagnosis diagnosis;
  std::uint64_t lines = 0, bytes = 0, kept_lines = 0;
  std::string found_by = "rules";  // rules, cases, llm
};

// Sections: logs (as docs/model.md and the JSON keys say), and for people what each verdict rests on.
Document diagnose_document(const std::vector<LogVerdict>& verdicts, Notes notes);

std::string_view name_of(Verdict v);

}  // namespace orrery
