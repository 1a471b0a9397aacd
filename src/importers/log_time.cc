// Times as log lines write them.
#include <array>
#include <cctype>

#include "importers/log_prefix.h"

namespace orrery {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

struct Cursor {
  std::string_view s;
  std::size_t at = 0;

  bool next_is(char c) const { return at < s.size() && s[at] == c; }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at;
    return true;
  }
  // Between `least` and `most` digits; -1 = not.
  int number(int least, int most) {
    int n = 0, count = 0;
    while (count < most && at < s.size() && digit(s[at])) {
      n = n * 10 + (s[at++] - '0');
      ++count;
    }
    return count >= least ? n : -1;
  }
};

constexpr std::array<int, 12> kDaysBefore{0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};

int month_named(std::string_view three) {
  constexpr std::string_view names = "JanFebMarAprMayJunJulAugSepOctNovDec";
  for (std::size_t m = 0; m < 12; ++m)
    if (names.substr(m * 3, 3) == three) return static_cast<int>(m) + 1;
  return -1;
}

// Without a year every year is a leap year: days keep their order.
Ns nanoseconds(int month, int day, int hour, int minute, int second, Ns fraction) {
  const int days = kDaysBefore[static_cast<std::size_t>(month - 1)] + (month > 2 ? 1 : 0) + day - 1;
  return ((((Ns{days} * 24 + hour) * 60 + minute) * 60 + second) * 1000000000) + fraction;
}

// "03:50:11", with .123456 or ,123 behind it
bool read_clock(Cursor& c, int& hour, int& minute, int& second, Ns& fraction) {
  hour = c.number(1, 2);
  if (hour < 0 || hour > 24 || !c.take(':')) return false;
  minute = c.number(2, 2);
  if (minute < 0 || minute > 59 || !c.take(':')) return false;
  second = c.number(2, 2);
  if (second < 0 || second > 60) return false;
  fraction = 0;
  if (c.at + 1 < c.s.size() && (c.s[c.at] == '.' || c.s[c.at] == ',') && digit(c.s[c.at + 1])) {
    ++c.at;
    Ns unit = 100000000;
    while (c.at < c.s.size() && digit(c.s[c.at])) {
      fraction += unit * (c.s[c.at++] - '0');
      unit /= 10;
    }
  }
  return true;
}

void skip_zone(Cursor& c) {
  if (c.take('Z')) return;
  const std::size_t from = c.at;
  if (c.take('+') || c.take('-')) {
    if (c.number(2, 2) >= 0) {
      c.take(':');
      if (c.number(2, 2) >= 0) return;
    }
    c.at = from;
  }
}

bool valid(int month, int day) { return month >= 1 && month <= 12 && day >= 1 && day <= 31; }

}  // namespace

LogTime read_time(std::string_view text, std::size_t& length) {
  length = 0;
  LogTime t;
  if (text.size() < 8) return t;
  int hour = 0, minute = 0, second = 0;
  Ns fraction = 0;
  Cursor c{text};
  if (digit(text[0])) {
    const int first = c.number(1, 4);
    const char mark = c.at < text.size() ? text[c.at] : ' ';
    if (mark != '-' && mark != '/') return t;
    ++c.at;
    const int second_part = c.number(1, 2);
    if (second_part < 0 || !c.take(mark)) return t;
    const int third = c.number(1, 4);
    if (third < 0) return t;
    const bool year_first = first > 31;
    const int year = year_first ? first : third < 100 ? 2000 + third : third;
    const int month = year_first ? second_part : first;
    const int day = year_first ? third : second_part;
    if (!valid(month, day)) return t;
    if (!c.take(' ') && !c.take('T') && !c.take('_')) return t;
    if (!read_clock(c, hour, minute, second, fraction)) return t;
    skip_zone(c);
    t.year = year;
    t.in_year = nanoseconds(month, day, hour, minute, second, fraction);
    length = c.at;
    return t;
  }
  // "Thu Mar  7 02:11:40 2024" or "Mar  7 02:11:40"
  int month = month_named(text.substr(0, 3));
  if (month < 0 && text.size() > 7 && text[3] == ' ') {
    month = month_named(text.substr(4, 3));
    if (month > 0) c.at = 4;
  }
  if (month < 0) return t;
  c.at += 3;
  if (!c.take(' ')) return t;
  c.take(' ');
  const int day = c.number(1, 2);
  if (!valid(month, day) || !c.take(' ') || !read_clock(c, hour, minute, second, fraction)) return t;
  const std::size_t end = c.at;
  if (c.take(' ')) {
    const int year = c.number(4, 4);
    if (year >= 1990 && year < 2200) {
      t.year = year;
    } else {
      c.at = end;
    }
  }
  t.in_year = nanoseconds(month, day, hour, minute, second, fraction);
  length = c.at;
  return t;
}

}  // namespace orrery
