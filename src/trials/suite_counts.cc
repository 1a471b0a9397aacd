#include "trials/suite_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text_match.h"
#include "trials/loose_json.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

bool is_whole(const std::string& s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// The tasks below a group of groups; a task itself.
void add_tasks(const Json& subtasks, const std::string& name, int depth, std::set<std::string>& out) {
  if (depth < 16 && subtasks.is_object() && subtasks.contains(name) && subtasks[name].is_array() &&
      !subtasks[name].empty()) {
    for (const Json& below : subtasks[name])
      if (below.is_string()) add_tasks(subtasks, below.get<std::string>(), depth + 1, out);
  } else {
    out.insert(name);
  }
}

// Documents in the file of logged samples of `task` beside the results: one line for each and each filter; -1 = no
// file.
std::int64_t logged_samples(const std::string& results, const std::string& task) {
  const std::string begin = "samples_" + task + "_";
  std::error_code error;
  for (fs::directory_iterator it(fs::path(results).parent_path(), error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(begin, 0) != 0 || name.size() <= begin.size() || !is_whole(name.substr(begin.size(), 1)) ||
        !ends(name, ".jsonl"))
      continue;
    std::set<std::int64_t> documents;
    std::ifstream in(it->path(), std::ios::binary);
    for (std::string line; std::getline(in, line);) {
      const Json sample = loose_json(line);
      if (sample.is_object() && sample.contains("doc_id") && sample["doc_id"].is_number_integer())
        documents.insert(sample["doc_id"].get<std::int64_t>());
    }
    return static_cast<std::int64_t>(documents.size());
  }
  return -1;
}

}  // namespace

std::string outputs_short_of(const std::string& suite, const std::vector<std::string>& files, std::int64_t items) {
  if (suite != "opencompass") return {};
  std::int64_t found = 0;
  for (const std::string& f : files) {
    std::ifstream in(f, std::ios::binary);
    const Json outputs = loose_json(std::string(std::istreambuf_iterator<char>(in), {}));
    if (!outputs.is_object()) return {};
    for (const auto& [name, value] : outputs.items()) {
      if (!is_whole(name)) return {};
      ++found;
    }
  }
  if (found == 0 || found == items) return {};  // a file without members does not say
  return fmt::format("its outputs are of {} items, and items = {} ({} files like {})", found, items, files.size(),
                     files.front());
}

std::string samples_differ(const std::string& results, const std::string& task, std::int64_t items) {
  std::ifstream in(results, std::ios::binary);
  const Json all = loose_json(std::string(std::istreambuf_iterator<char>(in), {}));
  if (!all.is_object() || !all.contains("n-samples") || !all["n-samples"].is_object()) return {};
  std::set<std::string> tasks;
  add_tasks(all.value("group_subtasks", Json::object()), task, 0, tasks);
  std::int64_t original = 0, effective = 0;
  for (const std::string& t : tasks) {
    const auto it = all["n-samples"].find(t);
    if (it == all["n-samples"].end() || !it->is_object() || !it->contains("effective")) return {};
    const Json& e = (*it)["effective"];
    if (!e.is_number_integer()) return {};
    effective += e.get<std::int64_t>();
    original += it->value("original", e).is_number_integer() ? it->value("original", e).get<std::int64_t>() : 0;
  }
  const bool group = tasks.size() != 1 || *tasks.begin() != task;
  if (effective == items) return {};
  if (!group && effective == original) {
    const std::int64_t logged = logged_samples(results, task);
    if (logged == items) return {};
    if (logged >= 0) effective = logged;
  }
  return fmt::format("{} samples of {} were evaluated, and {} were asked for{}", effective, task, items,
                     group ? ": it is a group, name its tasks, or split = false and its items" : "");
}

}  // namespace orrery
