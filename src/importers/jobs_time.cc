#include "importers/jobs_time.h"

#include <fmt/format.h>

#include <cstring>

#include "base/number_text.h"
#include "base/text_match.h"

namespace orrery {
namespace {

constexpr std::int64_t kDayMs = 86'400'000;
constexpr std::int64_t kMostMs = 253'402'300'800'000;  // the year 10000

bool digits(const char* p, int n, unsigned& value) {
  value = 0;
  for (int i = 0; i < n; ++i) {
    const auto d = static_cast<unsigned>(p[i] - '0');
    if (d > 9) return false;
    value = value * 10 + d;
  }
  return true;
}

bool read_zone(std::string_view text, std::int32_t& seconds) {
  if (text == "Z" || text == "z" || text == "UTC" || text == "GMT") {
    seconds = 0;
    return true;
  }
  if (text.size() < 3 || (text[0] != '+' && text[0] != '-')) return false;
  unsigned hours = 0, minutes = 0;
  if (!digits(text.data() + 1, 2, hours)) return false;
  if (text.size() == 6) {
    if (text[3] != ':' || !digits(text.data() + 4, 2, minutes)) return false;
  } else if (text.size() == 5) {
    if (!digits(text.data() + 3, 2, minutes)) return false;
  } else if (text.size() != 3) {
    return false;
  }
  if (hours > 18 || minutes > 59) return false;
  seconds = static_cast<std::int32_t>(hours * 3600 + minutes * 60) * (text[0] == '-' ? -1 : 1);
  return true;
}

}  // namespace

bool is_missing(std::string_view t) {
  if (t.empty()) return true;
  if (t.size() > 7 || (t[0] >= '0' && t[0] <= '9')) return false;
  return t == "None" || t == "Unknown" || t == "NA" || t == "N/A" || t == "null" || t == "nan" || t == "NaN" ||
         t == "none" || t == "-" || t == "NULL" || t == "(null)";
}

TimeReader::State TimeReader::read(std::string_view text, std::int64_t& ms) {
  if (text.size() >= 16 && (text[4] == '-' || text[4] == '/')) return read_date(text, ms);
  if (is_missing(text)) return State::none;
  if (read_scaled(text, 3, ms) != NumberState::ok || ms < 0 || ms > kMostMs) return State::bad;
  saw_seconds_ = true;
  return State::ok;
}

TimeReader::State TimeReader::read_date(std::string_view t, std::int64_t& ms) {
  const char* p = t.data();
  if (std::memcmp(p, day_text_, 10) != 0) {
    unsigned y = 0, m = 0, d = 0;
    if (!digits(p, 4, y) || !digits(p + 5, 2, m) || !digits(p + 8, 2, d) || p[7] != p[4]) return State::bad;
    static constexpr unsigned kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    if (m < 1 || m > 12 || d < 1 || d > kDays[m - 1] + (m == 2 && leap ? 1u : 0u)) return State::bad;
    day_ms_ = days_from_civil(y, m, d) * kDayMs;
    std::memcpy(day_text_, p, 10);
  }
  unsigned hour = 0, minute = 0, second = 0;
  if ((p[10] != ' ' && p[10] != 'T') || !digits(p + 11, 2, hour) || p[13] != ':' || !digits(p + 14, 2, minute))
    return State::bad;
  std::size_t i = 16;
  if (t.size() >= 19 && t[16] == ':') {
    if (!digits(p + 17, 2, second)) return State::bad;
    i = 19;
  }
  if (hour > 23 || minute > 59 || second > 60) return State::bad;
  std::int64_t fraction = 0;
  if (i < t.size() && (t[i] == '.' || t[i] == ',')) {
    std::int64_t unit = 100;
    for (++i; i < t.size() && t[i] >= '0' && t[i] <= '9'; ++i, unit /= 10) fraction += unit * (t[i] - '0');
  }
  std::int32_t offset = default_offset_s_;
  if (i < t.size() && t[i] == ' ') ++i;
  if (const std::string_view zone = t.substr(i); zone.empty()) {
    saw_local_ = true;
  } else if (zone.size() == 6 && saw_zone_ && std::memcmp(zone.data(), zone_text_, 6) == 0) {
    offset = offset_s_;
  } else {
    if (!read_zone(zone, offset)) return State::bad;
    offset_s_ = offset;
    saw_zone_ = true;
    std::memset(zone_text_, 0, 6);
    if (zone.size() == 6) std::memcpy(zone_text_, zone.data(), 6);
  }
  ms = day_ms_ + static_cast<std::int64_t>(hour * 3600 + minute * 60 + second) * 1000 + fraction -
       std::int64_t{offset} * 1000;
  return State::ok;
}

Result<std::int32_t> read_utc_offset(std::string_view text) {
  std::int32_t seconds = 0;
  if (!read_zone(text, seconds))
    return fail("not a time zone: " + std::string(text), "--time-zone", "hours east of Greenwich: --time-zone +08:00");
  return seconds;
}

bool read_clock(std::string_view t, std::int64_t& ms) {
  std::int64_t days = 0;
  if (const auto dash = t.find('-'); dash != std::string_view::npos) {
    if (read_int(t.substr(0, dash), days) != NumberState::ok || days < 0 || days > 3'650'000) return false;
    t.remove_prefix(dash + 1);
  }
  std::int64_t seconds_ms = 0, minutes = 0;
  int colons = 0;
  for (;;) {
    const auto colon = t.find(':');
    std::int64_t part = 0;
    if (colon == std::string_view::npos) {
      if (colons == 0 || read_scaled(t, 3, seconds_ms) != NumberState::ok || seconds_ms < 0) return false;
      break;
    }
    if (++colons > 2 || read_int(t.substr(0, colon), part) != NumberState::ok || part < 0 || part > 1'000'000)
      return false;
    minutes = minutes * 60 + part;
    t.remove_prefix(colon + 1);
  }
  ms = days * kDayMs + minutes * 60'000 + seconds_ms;
  return true;
}

}  // namespace orrery
