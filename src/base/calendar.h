// Days and dates of the Gregorian calendar.
#pragma once
#include <cstdint>
#include <string>

namespace orrery {

// Days since 1970-01-01 of a date.
std::int64_t days_from_civil(std::int64_t year, unsigned month, unsigned day);
// ... and back: "2023-03-01".
std::string date_text(std::int64_t days);

}  // namespace orrery
