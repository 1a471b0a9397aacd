// Lists of hosts as Slurm writes them: node[0-3,07],a1,rack[1-2]n[1-2].
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery::slurm {

inline constexpr std::size_t kMostHosts = 65'536;

// Letters, digits, and . - _ : and not a - in front: such a name is never taken for an option, a path or a list.
bool is_host_name(std::string_view text);

// In the order of the list, as often as it has them; several brackets in a name are all combinations. "" and "(null)"
// are no hosts. Errors: brackets or ranges that are none, names that are none, more than kMostHosts.
Result<std::vector<std::string>> expand_hosts(std::string_view list);

// Each host once, sorted by what is before the number and by the number: "a1,node[0-3]". Expands to the same hosts.
std::string compress_hosts(const std::vector<std::string>& hosts);

}  // namespace orrery::slurm
