// The edits of `orrery predict` that keep the job's structure, as the command line names them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "whatif/whatif.h"

namespace orrery {

struct Scenario {
  const TraceSet& traces;
  GraphBuild& build;  // changed in place
};

struct Edit {
  std::string name;   // "--kernel"
  std::string value;  // "gemm=0.5x"; "" for a flag
};

struct AppliedEdit {
  Edit edit;
  Changed changed;
  std::string assumes;  // what the edit takes for granted, one sentence; "" = nothing but its own meaning
  // The time whose change the trace does not tell for sure, as a share of what the edit changes; widens the interval.
  double doubt = 0;
  double floor = 0;  // the same as a share of the whole prediction, however little moved
};

// Errors: a name that is no edit; a value that is not what it takes; a pattern that matches nothing; a rank that is not
// there. The graph is not changed then.
Result<AppliedEdit> apply_edit(Scenario& scenario, const Edit& edit);

// "0.5x" -> 0.5; also "2". Error: not a number above 0 and below a million.
Result<double> parse_factor(std::string_view text);

}  // namespace orrery
