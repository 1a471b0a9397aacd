#include "trials/scores.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/number_text.h"
#include "base/text_match.h"
#include "trials/loose_json.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr std::streamoff kLastBytes = 1 << 20;  // of a log
constexpr std::uintmax_t kLargest = std::uintmax_t{1} << 30;

void add_numbers(const Json& object, const std::string& prefix, FoundScores& out) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_number()) out.scores.emplace_back(prefix + name, value.get<double>());
    if (value.is_boolean()) out.scores.emplace_back(prefix + name, value.get<bool>() ? 1 : 0);
    if (value == "NaN" || value == "Infinity" || value == "-Infinity")
      out.left_out.push_back(prefix + name + " is " + value.get<std::string>());
  }
}

Result<FoundScores> finished(FoundScores found, const std::string& where) {
  if (found.scores.empty())
    return fail("has no score" + (found.left_out.empty() ? "" : ": " + found.left_out.front()), where,
                "an object of names and numbers");
  std::sort(found.scores.begin(), found.scores.end());
  const auto twice = std::adjacent_find(found.scores.begin(), found.scores.end(),
                                        [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != found.scores.end()) return fail("has two scores of the name " + twice->first, where);
  return found;
}

// What names begin with, of several files: each file's name, with as many of its directories as tell all files apart.
std::vector<std::string> prefixes_of(const std::vector<std::string>& files) {
  if (files.size() < 2) return std::vector<std::string>(files.size());
  std::vector<std::string> all;
  for (std::size_t depth = 0; depth < 64; ++depth) {
    all.clear();
    for (const std::string& file : files) {
      const std::filesystem::path path(file);
      std::string name = path.stem().string();
      std::filesystem::path above = path.parent_path();
      for (std::size_t d = 0; d < depth && above.has_filename(); ++d, above = above.parent_path())
        name.insert(0, above.filename().string() + "/");
      all.push_back(name + ".");
    }
    if (std::set<std::string>(all.begin(), all.end()).size() == all.size()) break;
  }
  return all;
}

}  // namespace

bool is_standard_error(const std::string& name) {
  return has_any(lower(name), {"stderr", "std_err", "standard_error"});
}

Result<FoundScores> scores_of_files(const std::vector<std::string>& files, const std::string& at) {
  if (files.empty()) return fail("there is no file of scores", "metric", "see what it said in its log");
  FoundScores out;
  const std::vector<std::string> prefixes = prefixes_of(files);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string& file = files[i];
    std::error_code error;
    if (std::filesystem::file_size(file, error) > kLargest || error) return fail("cannot be read", file);
    std::ifstream in(file, std::ios::binary);
    const Json all = loose_json(std::string(std::istreambuf_iterator<char>(in), {}));
    if (all.is_discarded()) return fail("is not JSON", file);
    const Json* object = &all;
    if (!at.empty()) {
      Json::json_pointer pointer;
      if (at[0] != '/') return fail("not a JSON pointer: " + at, file, "begins with /");
      // Names with a slash or a tilde are escaped by whoever writes the pointer; a bad escape is no pointer.
      for (std::size_t k = 0; k < at.size(); ++k)
        if (at[k] == '~' && (k + 1 == at.size() || (at[k + 1] != '0' && at[k + 1] != '1')))
          return fail("not a JSON pointer: " + at, file, "~ is written ~0");
      pointer = Json::json_pointer(at);
      if (!all.is_object() || !all.contains(pointer)) return fail("has nothing at " + at, file);
      object = &all.at(pointer);
    } else if (all.is_object() && all.contains("scores") && all["scores"].is_object()) {
      object = &all["scores"];
    }
    if (!object->is_object()) return fail("is not an object of scores", file);
    add_numbers(*object, prefixes[i], out);
  }
  return finished(std::move(out), files.front());
}

Result<FoundScores> scores_of_last_line(const std::string& log) {
  std::ifstream in(log, std::ios::binary | std::ios::ate);
  if (!in) return fail("cannot be read", log);
  const std::streamoff size = in.tellg(), from = std::max<std::streamoff>(0, size - kLastBytes);
  in.seekg(from);
  std::string text(static_cast<std::size_t>(size - from), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  text.erase(0, text.find_last_of("\r\n") + 1);
  double number = 0;
  if (read_double(text, number) == NumberState::ok) return FoundScores{{{"score", number}}, {}};
  const Json line = loose_json(text);
  if (!line.is_object()) return fail("the last line is neither a number nor a JSON object", log);
  const Json& object = line.contains("scores") && line["scores"].is_object() ? line["scores"] : line;
  FoundScores out;
  add_numbers(object, "", out);
  return finished(std::move(out), log);
}

}  // namespace orrery
