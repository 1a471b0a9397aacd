// The edits of `orrery predict` that keep the job's structure, as the command line names them.
#pragma once
#include <array>
#include <cstdint>
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

// What makes a prediction unsure.
enum class Cause : std::uint8_t {
  kernels_rescaled,    // in other shapes, by what the trace tells of such kernels; or by a factor that was said
  kernels_from_facts,  // the trace has nothing like them
  transfers_intra,     // inside a server
  transfers_inter,     // between servers
  host,
  structure,  // passes, layers, exchanges and buckets put together anew
  stragglers,
  untraced_partners,  // waiting for ranks without a trace
  replay,             // how far the run as it was is from its own replay
  least               // no interval is narrower
};
inline constexpr std::size_t kCauses = 10;
std::string_view name_of(Cause c);

// Half-widths (90%) by cause. Causes are independent of each other: their squares add up.
struct Doubt {
  std::array<double, kCauses> by_cause{};

  Doubt() = default;
  Doubt(Cause c, double half) { add(c, half); }
  void add(Cause c, double half);
  void add(const Doubt& other, double times = 1);
  double total() const;
};

struct AppliedEdit {
  Edit edit;
  Changed changed;
  std::string assumes;  // what the edit takes for granted, one sentence; "" = nothing but its own meaning
  // The time whose change the trace does not tell for sure, as a share of what the edit changes; widens the interval.
  Doubt doubt{};
  Doubt floor{};  // the same as a share of the whole prediction, however little moved
};

// Errors: a name that is no edit; a value that is not what it takes; a pattern that matches nothing; a rank that is not
// there. The graph is not changed then.
Result<AppliedEdit> apply_edit(Scenario& scenario, const Edit& edit);

// "0.5x" -> 0.5; also "2". Error: not a number above 0 and below a million.
Result<double> parse_factor(std::string_view text);

}  // namespace orrery
