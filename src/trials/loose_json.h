// JSON as Python writes it: NaN, Infinity and -Infinity where a number stands, which JSON has not.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace orrery {

// Those, and numbers too large for a double, become the texts "NaN", "Infinity", "-Infinity". Discarded: not JSON.
nlohmann::json loose_json(std::string_view text);

}  // namespace orrery
