#include "slurm/host_list.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace orrery::slurm {
namespace {

constexpr std::size_t kMostDigits = 15;

bool all_digits(std::string_view text) {
  return !text.empty() && text.size() <= kMostDigits &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::int64_t number(std::string_view digits) {
  std::int64_t value = 0;
  for (const char c : digits) value = value * 10 + (c - '0');
  return value;
}

std::string digits_of(std::int64_t value, std::size_t width) {
  const std::string text = std::to_string(value);
  return std::string(width > text.size() ? width - text.size() : 0, '0') + text;
}

tl::unexpected<Error> not_a_list(std::string_view list, const std::string& why) {
  constexpr std::size_t kShown = 200;
  return fail("not a list of hosts: " + why, std::string(list.substr(0, kShown)), "as in node[0-3,7],a1");
}

// "0-3,7" -> 0 1 2 3 7
Result<std::vector<std::string>> numbers_of(std::string_view list, std::string_view ranges) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i <= ranges.size();) {
    const std::size_t end = std::min(ranges.find(',', i), ranges.size());
    const std::string_view range = ranges.substr(i, end - i);
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
    if (!all_digits(low) || !all_digits(high) || number(high) < number(low))
      return not_a_list(list, "no range: " + std::string(range));
    if (static_cast<std::size_t>(number(high) - number(low)) >= kMostHosts - all.size())
      return not_a_list(list, "too many hosts");
    for (std::int64_t n = number(low); n <= number(high); ++n) all.push_back(digits_of(n, low.size()));
    i = end + 1;
  }
  return all;
}

// One item of a list, with its brackets.
Status expand_item(std::string_view list, std::string_view item, std::vector<std::string>& hosts) {
  std::vector<std::string> names(1);
  for (std::size_t i = 0; i < item.size();) {
    if (item[i] != '[') {
      const std::size_t end = std::min(item.find('[', i), item.size());
      for (std::string& name : names) name += item.substr(i, end - i);
      i = end;
      continue;
    }
    const std::size_t close = item.find(']', i);
    const auto numbers = numbers_of(list, item.substr(i + 1, close - i - 1));
    if (!numbers) return tl::unexpected(numbers.error());
    if (names.size() * numbers->size() > kMostHosts) return not_a_list(list, "too many hosts");
    std::vector<std::string> longer;
    for (const std::string& name : names)
      for (const std::string& n : *numbers) longer.push_back(name + n);
    names = std::move(longer);
    i = close + 1;
  }
  if (hosts.size() + names.size() > kMostHosts) return not_a_list(list, "too many hosts");
  for (std::string& name : names) {
    if (!is_host_name(name)) return not_a_list(list, "no name of a host: " + name);
    hosts.push_back(std::move(name));
  }
  return {};
}

}  // namespace

bool is_host_name(std::string_view text) {
  constexpr std::size_t kLongest = 255;
  return !text.empty() && text.size() <= kLongest && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == ':';
         });
}

Result<std::vector<std::string>> expand_hosts(std::string_view list) {
  std::vector<std::string> hosts;
  if (list.empty() || list == "(null)") return hosts;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if ((c == '[' && inside) || (c == ']' && !inside) || (i == list.size() && inside))
      return not_a_list(list, "brackets that do not match");
    if (c == '[') inside = true;
    if (c == ']') inside = false;
    if (c != ',' || inside) continue;
    if (const Status ok = expand_item(list, list.substr(begin, i - begin), hosts); !ok)
      return tl::unexpected(ok.error());
    begin = i + 1;
  }
  return hosts;
}

std::string compress_hosts(const std::vector<std::string>& hosts) {
  // Before the number; its width where it has zeros in front, else 0. Names without a number: width of no number.
  constexpr std::size_t kNone = kMostDigits + 1;
  std::map<std::pair<std::string, std::size_t>, std::set<std::int64_t>> groups;
  for (const std::string& host : hosts) {
    std::size_t at = host.size();
    while (at > 0 && host.size() - at < kMostDigits && std::isdigit(static_cast<unsigned char>(host[at - 1])) != 0)
      --at;
    const std::string_view digits = std::string_view(host).substr(at);
    if (digits.empty()) {
      groups[{host, kNone}];
    } else {
      groups[{host.substr(0, at), digits.size() > 1 && digits[0] == '0' ? digits.size() : 0}].insert(number(digits));
    }
  }
  std::string list;
  for (const auto& [group, numbers] : groups) {
    const auto& [before, width] = group;
    list += (list.empty() ? "" : ",") + before;
    if (numbers.empty()) continue;
    std::string ranges;
    for (auto it = numbers.begin(); it != numbers.end();) {
      const std::int64_t low = *it;
      std::int64_t high = low;
      for (++it; it != numbers.end() && *it == high + 1; ++it) ++high;
      ranges += (ranges.empty() ? "" : ",") + digits_of(low, width);
      if (high > low) ranges += "-" + digits_of(high, width);
    }
    list += numbers.size() > 1 ? "[" + ranges + "]" : ranges;
  }
  return list;
}

}  // namespace orrery::slurm
