// Events and decisions as JSON, for the journal: what has its default value is left out.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "supervisor/guard_types.h"

namespace orrery {

nlohmann::json to_json_value(const GuardEvent& event);
nlohmann::json to_json_value(const Decision& decision);  // without its state: that follows from the events

// Errors: not an event (another version's, or not ours).
Result<GuardEvent> event_of(const nlohmann::json& value);

}  // namespace orrery
