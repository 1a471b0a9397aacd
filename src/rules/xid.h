// NVIDIA Xid codes (a table, src/rules/tables/xid.toml) as rules.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rules/rule.h"

namespace orrery {

// Rows of code, name, what NVIDIA advises, reason and restart. Errors: not such a table.
Result<std::vector<Rule>> xid_rules(std::string_view text, const std::string& where);

}  // namespace orrery
