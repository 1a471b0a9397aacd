// Instants as job records write them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/calendar.h"
#include "base/result.h"

namespace orrery {

class TimeReader {
 public:
  enum class State : std::uint8_t { ok, none, bad };

  explicit TimeReader(std::int32_t default_offset_s = 0) : default_offset_s_(default_offset_s) {}

  // "2023-03-01 00:18:22+08:00", "2023-03-01T00:18:22.5Z", "2017/10/09 07:01", or seconds since 1970 (or since the
  // begin of a trace). "", "None", "Unknown", "NA", "null" and "nan" are none. Times without a zone are in the default
  // offset.
  State read(std::string_view text, std::int64_t& ms);

  bool saw_zone() const { return saw_zone_; }
  bool saw_local() const { return saw_local_; }        // a date without a zone
  bool saw_seconds() const { return saw_seconds_; }    // a number
  std::int32_t offset_s() const { return offset_s_; }  // the zone of the last time that had one

 private:
  State read_date(std::string_view text, std::int64_t& ms);

  std::int32_t default_offset_s_, offset_s_ = 0;
  bool saw_zone_ = false, saw_local_ = false, saw_seconds_ = false;
  // The last day and zone: most rows repeat them.
  char day_text_[10] = {};
  std::int64_t day_ms_ = 0;
  char zone_text_[6] = {};
};

// "+08:00", "-0530", "Z", "UTC" -> seconds east of Greenwich.
Result<std::int32_t> read_utc_offset(std::string_view text);

// "1-02:03:04", "02:03:04", "03:04" (minutes and seconds), of Slurm -> milliseconds. False: is none.
bool read_clock(std::string_view text, std::int64_t& ms);

// What stands for an unknown value in a column: "", None, Unknown, NA, N/A, null, nan.
bool is_missing(std::string_view text);

}  // namespace orrery
