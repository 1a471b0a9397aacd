// Options that many commands share.
#pragma once
#include <cstddef>
#include <limits>
#include <vector>

#include "cli/command.h"

namespace orrery {

inline constexpr std::size_t kMany = std::numeric_limits<std::size_t>::max();

inline constexpr OptionSpec kJson{"--json", "", "print one JSON document on standard output, and nothing else there"};
inline constexpr OptionSpec kQuiet{
    "--quiet", "", "no progress bar and no notes that only inform; the answer, warnings and what was lost stay"};
inline constexpr OptionSpec kThreads{"--threads", "N", "use N threads (default: all cores)", Takes::word};
inline constexpr OptionSpec kHelp{"--help", "", "print this page"};
inline constexpr OptionSpec kCsv{"--csv", "DIR", "write every table as a CSV file in DIR", Takes::directory};
inline constexpr OptionSpec kRecover{
    "--recover", "", "skip events that are not valid JSON instead of refusing the file; they count as lost"};

inline std::vector<OptionSpec> with(std::vector<OptionSpec> options, const std::vector<OptionSpec>& more) {
  options.insert(options.end(), more.begin(), more.end());
  return options;
}

}  // namespace orrery
