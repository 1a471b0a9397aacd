// A line -> its tokens, with what varies masked.
#include <algorithm>
#include <array>
#include <cctype>

#include "rules/templates.h"

namespace orrery {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool in(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

constexpr std::string_view kDays = "MonTueWedThuFriSatSun";
constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";

bool named(std::string_view list, std::string_view three) {
  for (std::size_t i = 0; i + 3 <= list.size(); i += 3)
    if (list.substr(i, 3) == three) return true;
  return false;
}

class Masker {
 public:
  explicit Masker(std::string_view line) : s_(line) {}

  std::vector<std::string> run() {
    while (at_ < s_.size()) {
      const char c = s_[at_];
      if (c == ' ' || c == '\t' || c == '\r') {
        ++at_;
      } else if (!(c == '"' ? quoted()
                            : date() || url() || colons() || size() || seconds() || path() || key() || call() ||
                                  clock() || word())) {
        put(std::string(1, c));
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  char before() const { return at_ == 0 ? ' ' : s_[at_ - 1]; }
  std::size_t run_of(std::size_t from, bool (*is)(char)) const {
    std::size_t n = 0;
    while (from + n < s_.size() && is(s_[from + n])) ++n;
    return n;
  }
  std::size_t blanks(std::size_t from) const {
    return run_of(from, [](char c) { return c == ' '; });
  }

  // Neighbouring variables are one, also across the marks that lists and paths are made of.
  void put(std::string token) {
    out_.push_back(std::move(token));
    for (;;) {
      const std::size_t n = out_.size();
      const auto is = [&](std::size_t back, std::string_view t) { return n >= back && out_[n - back] == t; };
      if (is(1, "*") && is(2, "*")) {
        out_.pop_back();
      } else if (is(1, "*") && is(3, "*") && out_[n - 2].size() == 1 && in(out_[n - 2][0], ",:/-@+#%&?|._~")) {
        out_.resize(n - 2);
      } else if ((is(1, ")") && is(2, "(")) || (is(1, "]") && is(2, "["))) {
        out_.insert(out_.end() - 1, "*");
        return;
      } else {
        return;
      }
    }
  }
  bool mask(std::size_t to) {
    put("*");
    at_ = to;
    return true;
  }

  // "GET /v2/servers HTTP/1.1": the word in capitals stays
  bool quoted() {
    const std::size_t close = s_.find('"', at_ + 1);
    if (close == std::string_view::npos) return false;
    const std::string_view inside = s_.substr(at_ + 1, close - at_ - 1);
    std::size_t capitals = 0;
    while (capitals < inside.size() && inside[capitals] >= 'A' && inside[capitals] <= 'Z') ++capitals;
    put("\"");
    if (capitals >= 3 && capitals <= 7 && capitals < inside.size() && inside[capitals] == ' ')
      put(std::string(inside.substr(0, capitals)));
    put("*");
    put("\"");
    at_ = close + 1;
    return true;
  }

  // Fri Jun 17 07:07:00 2005, Jun 17 07:07, Jun 17, 2005 07:07
  bool date() {
    if (is_word(before()) || s_.size() - at_ < 9) return false;
    std::size_t p = at_;
    if (named(kDays, s_.substr(p, 3)) && s_[p + 3] == ' ') p += 4;
    if (!named(kMonths, s_.substr(p, 3)) || p + 3 >= s_.size() || s_[p + 3] != ' ') return false;
    p += 3;
    p += blanks(p);
    const std::size_t day = run_of(p, is_digit);
    if (day == 0 || day > 2) return false;
    p += day;
    if (p < s_.size() && s_[p] == ',') ++p;
    p += blanks(p);
    if (run_of(p, is_digit) == 4) {
      p += 4;
      p += blanks(p);
    }
    const std::size_t end = clock_at(p);
    if (end == p) return false;
    p = end;
    const std::size_t zone = blanks(p);
    const std::size_t letters = run_of(p + zone, is_letter);
    std::size_t year = p + zone;
    if (letters == 3 || letters == 4) year += letters + blanks(year + letters);
    if (run_of(year, is_digit) == 4) p = year + 4;
    return mask(p);
  }

  // One past 12:34 or 12:34:56 at p; p = none there
  std::size_t clock_at(std::size_t p) const {
    const std::size_t from = p;
    const std::size_t hours = run_of(p, is_digit);
    if (hours == 0 || p + hours >= s_.size() || s_[p + hours] != ':') return from;
    p += hours + 1;
    const std::size_t minutes = run_of(p, is_digit);
    if (minutes == 0) return from;
    p += minutes;
    if (p + 1 < s_.size() && s_[p] == ':' && is_digit(s_[p + 1])) p += 1 + run_of(p + 1, is_digit);
    return p;
  }
  bool clock() {
    if (is_word(before())) return false;
    const std::size_t end = clock_at(at_);
    return end > at_ && (end >= s_.size() || !is_word(s_[end])) && mask(end);
  }

  bool url() {
    const std::size_t scheme = run_of(at_, is_letter);
    if (scheme < 2 || s_.substr(at_ + scheme, 3) != "://" || is_word(before())) return false;
    std::size_t p = at_ + scheme + 3;
    while (p < s_.size() && !in(s_[p], " \t,;")) ++p;
    return mask(p);
  }

  // IPv6 and hardware addresses
  bool colons() {
    if (is_word(before()) || before() == '.') return false;
    std::size_t p = at_, colons = 0, group = 0;
    while (p < s_.size() && (is_hex(s_[p]) || s_[p] == ':')) {
      group = s_[p] == ':' ? 0 : group + 1;
      if (group > 4) return false;
      colons += s_[p] == ':';
      ++p;
    }
    return colons >= 3 && is_hex(s_[p - 1]) && (p >= s_.size() || !is_word(s_[p])) && mask(p);
  }

  // (1.16 KB) after the number of bytes says the same again
  bool size() {
    if (s_[at_] != '(') return false;
    std::size_t p = at_ + 1;
    p += blanks(p);
    const std::size_t number = run_of(p, [](char c) { return is_digit(c) || c == '.'; });
    if (number == 0) return false;
    p += number;
    p += blanks(p);
    if (p < s_.size() && in(s_[p], "KMGTP")) ++p;
    if (p < s_.size() && s_[p] == 'i') ++p;
    if (p + 1 >= s_.size() || s_[p] != 'B' || s_[p + 1] != ')') return false;
    at_ = p + 2;
    return true;
  }

  bool seconds() {  // <1 sec
    if (s_[at_] != '<') return false;
    const std::size_t n = run_of(at_ + 1, is_digit);
    if (n == 0 || s_.substr(at_ + 1 + n, 4) != " sec") return false;
    return mask(at_ + n + 5);
  }

  bool path() {
    if (s_[at_] != '/' || is_word(before()) || before() == '.') return false;
    std::size_t p = at_;
    while (p + 1 < s_.size() && s_[p] == '/' && (is_word(s_[p + 1]) || in(s_[p + 1], ".@+-"))) {
      ++p;
      while (p < s_.size() && (is_word(s_[p]) || in(s_[p], ".@+-"))) ++p;
    }
    if (p == at_) return false;
    if (p < s_.size() && s_[p] == '/') ++p;
    return mask(p);
  }

  // key=value, key=[...], key={...}: the value varies
  bool key() {
    if (in(before(), "=<>!:") || is_word(before()) || !(is_letter(s_[at_]) || s_[at_] == '_')) return false;
    std::size_t p = at_;
    while (p < s_.size() && (is_word(s_[p]) || s_[p] == '.' || s_[p] == '-')) ++p;
    if (p >= s_.size() || s_[p] != '=' || (p + 1 < s_.size() && s_[p + 1] == '=')) return false;
    put(std::string(s_.substr(at_, p - at_)));
    put("=");
    ++p;
    p += blanks(p);
    const char open = p < s_.size() ? s_[p] : ' ';
    const char close = open == '[' ? ']' : open == '{' ? '}' : ' ';
    const std::size_t end = close == ' ' ? std::string_view::npos : s_.find(close, p);
    if (end != std::string_view::npos && s_.substr(p + 1, end - p - 1).find('{') == std::string_view::npos) {
      p = end + 1;
    } else if (open == '"') {
      const std::size_t quote = s_.find('"', p + 1);
      p = quote == std::string_view::npos ? p + 1 : quote + 1;
    } else {
      while (p < s_.size() && !in(s_[p], " \t,;()[]{}")) ++p;
    }
    return mask(p);
  }

  bool call() {  // LOCAL(0)
    if (is_word(before()) || !is_word(s_[at_])) return false;
    const std::size_t name = run_of(at_, is_word);
    const std::size_t p = at_ + name;
    if (p >= s_.size() || s_[p] != '(') return false;
    const std::size_t n = run_of(p + 1, is_digit);
    return n > 0 && p + 1 + n < s_.size() && s_[p + 1 + n] == ')' && mask(p + n + 2);
  }

  static bool varies(std::string_view w) {
    bool digit = false, hex = w.size() >= 6, star = false;
    std::size_t dots = 0;
    for (const char c : w) {
      digit |= is_digit(c);
      star |= c == '*';
      hex &= is_hex(c);
      dots += c == '.';
    }
    if (digit || star || hex) return true;
    if (dots >= 2 && w.substr(w.size() - std::min<std::size_t>(w.size(), 3)) != "...") return true;
    if (dots == 0) return false;
    constexpr std::array<std::string_view, 12> domains{"com",   "net", "org", "edu", "cn", "io",
                                                       "local", "hk",  "gov", "jp",  "de", "internal"};
    const std::string_view last = w.substr(w.rfind('.') + 1);
    return std::find(domains.begin(), domains.end(), last) != domains.end() && w[0] != '.';
  }

  bool word() {
    const auto part = [](char c) { return is_word(c) || in(c, "-.*@$#"); };
    std::size_t p = at_;
    while (p < s_.size() && part(s_[p])) ++p;
    if (p == at_) return false;
    const std::string_view w = s_.substr(at_, p - at_);
    const bool number = is_digit(w.back());
    at_ = p;
    if (!varies(w)) {
      put(std::string(w));
      return true;
    }
    put("*");
    if (number) unit();
    return true;
  }

  // The unit of a number goes with it: 5.2 KB, 12 ms
  void unit() {
    const std::size_t from = at_ + blanks(at_);
    for (const std::string_view u : {"KB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB", "B", "ms", "secs", "sec",
                                     "seconds", "bytes", "byte"}) {
      if (s_.substr(from, u.size()) != u) continue;
      const std::size_t end = from + u.size();
      if (end < s_.size() && !in(s_[end], " \t,.;)")) continue;
      at_ = end;
      return;
    }
  }

  std::string_view s_;
  std::size_t at_ = 0;
  std::vector<std::string> out_;
};

}  // namespace

std::vector<std::string> masked_tokens(std::string_view line) { return Masker(line).run(); }

}  // namespace orrery
