#include "facts/built_in.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/closest.h"

namespace orrery {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Adds what stands in quotes on the line `key = ...`.
void add_quoted(std::string_view text, std::string_view key, Names& out) {
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.substr(0, key.size()) != key || line.substr(key.size(), 3) != " = ") continue;
    const std::size_t end = std::min(line.find('#'), line.size());
    for (std::size_t open = line.find('"'); open < end; open = line.find('"', open)) {
      const std::size_t close = line.find('"', open + 1);
      if (close == std::string_view::npos) return;
      out.emplace_back(line.substr(open + 1, close - open - 1));
      open = close + 1;
    }
    return;
  }
}

bool is_called(const Names& names, const std::string& wanted, bool points) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return matched_name(name, points) == wanted; });
}

// Of "RTX 4090" in "NVIDIA GeForce RTX 4090 D": yes; of "A100" in "NVIDIA RTX A1000": no.
bool holds_words(std::string_view text, std::string_view part) {
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

}  // namespace

BuiltInFolder built_in_folder(std::string_view folder) {
  BuiltInFolder out;
  for (const EmbeddedFacts& file : embedded_facts()) {
    if (file.folder != folder) continue;
    Names names, devices;
    add_quoted(file.text, "name", names);
    add_quoted(file.text, "aliases", names);
    add_quoted(file.text, "device_names", devices);
    out.files.push_back(file);
    out.names.push_back(std::move(names));
    out.devices.push_back(std::move(devices));
  }
  return out;
}

std::string matched_name(std::string_view name, bool points) {
  name.remove_prefix(name.rfind('/') == std::string_view::npos ? 0 : name.rfind('/') + 1);
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool point =
        points && name[i] == '.' && i > 0 && i + 1 < name.size() && is_digit(name[i - 1]) && is_digit(name[i + 1]);
    if (point || is_word(name[i])) out += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
  }
  if (out.size() > 2 && out.ends_with("hf")) out.resize(out.size() - 2);
  return out;
}

std::optional<std::size_t> find_name(const std::vector<Names>& all, std::string_view name) {
  const std::string exact = matched_name(name, true), loose = matched_name(name, false);
  if (loose.empty()) return std::nullopt;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (is_called(all[i], exact, true)) return i;
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!is_called(all[i], loose, false)) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

std::optional<std::size_t> find_device(const std::vector<Names>& all, std::string_view device) {
  std::optional<std::size_t> found;
  std::size_t longest = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const std::string& part : all[i]) {
      if (part.size() <= longest || !holds_words(device, part)) continue;
      longest = part.size();
      found = i;
    }
  }
  return found;
}

std::string nearest_names(const std::vector<const std::vector<Names>*>& lists, std::string_view name) {
  const std::string wanted = matched_name(name.substr(0, 64), false);
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const std::vector<Names>* list : lists) {
    for (const Names& names : *list) {
      std::size_t least = std::string::npos;
      for (const std::string& n : names) {
        const std::string one = matched_name(n, false);
        const bool begins = wanted.size() > 1 && one.substr(0, wanted.size()) == wanted;
        least = std::min(least, begins ? 1 : edit_distance(wanted, one));
      }
      if (!names.empty()) found.emplace_back(least, names.front());
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, found.size()); ++i)
    out += (i == 0 ? "nearest: " : ", ") + found[i].second;
  return out;
}

}  // namespace orrery
