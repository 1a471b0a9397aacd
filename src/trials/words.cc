#include "trials/words.h"

#include <glob.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/closest.h"
#include "base/text_match.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostOfWord = 131'071, kMostOfAll = std::size_t{1} << 20;  // bytes

constexpr std::string_view kNames[] = {
    "model",    "checkpoint", "checkpoint_name", "model_name", "outputs", "output", "work",  "scores",  "dataset",
    "datasets", "task",       "tasks",           "results",    "first",   "last",   "items", "samples", "samples_file"};

template <class Of>
std::string joined(const std::vector<PieceWords>& pieces, Of&& of) {
  std::vector<std::string> seen;
  for (const PieceWords& p : pieces)
    if (std::find(seen.begin(), seen.end(), of(p)) == seen.end()) seen.push_back(of(p));
  std::string all;
  for (const std::string& s : seen) all += (all.empty() ? "" : ",") + s;
  return all;
}

Result<std::string> value_of(const std::string& name, const CommandWords& w) {
  if (name == "model") return std::string("{model}");
  if (name == "checkpoint") return w.checkpoint;
  if (name == "checkpoint_name") return w.checkpoint_name;
  if (name == "model_name") return w.model_name;
  if (name == "outputs") return w.outputs;
  if (name == "work") return w.work;
  if (name == "scores") return w.scores;
  if (name == "samples_file") return w.samples;
  if (name == "samples") {
    std::int64_t items = 0;
    for (const PieceWords& p : w.pieces) items += p.items;
    // A text that no command line takes is not made: too_long() sees the length.
    return 2 * items > static_cast<std::int64_t>(kMostOfWord) ? std::string(kMostOfWord + 1, '0')
                                                              : samples_text(w.pieces);
  }
  if (name == "datasets") return joined(w.pieces, [](const PieceWords& p) { return p.dataset; });
  if (name == "tasks") return joined(w.pieces, [](const PieceWords& p) { return p.task; });
  const PieceWords& p = w.pieces.front();
  // What stands for one piece: pieces of one dataset may share all but their items.
  const bool same =
      std::all_of(w.pieces.begin(), w.pieces.end(), [&](const auto& o) { return o.dataset == p.dataset; });
  if (same && name == "dataset") return p.dataset;
  if (same && name == "task") return p.task;
  if (same && name == "results") return p.results;
  if (w.pieces.size() == 1) {
    if (name == "output" && p.files.size() > 1)
      return fail("{output} stands for one file, and there are " + std::to_string(p.files.size()), "command",
                  "{output...}, or {outputs}: their directory");
    if (name == "output") return p.files.empty() ? p.output : p.files.front();
    if (name == "first") return std::to_string(p.first);
    if (name == "last") return std::to_string(p.first + p.items - 1);
    if (name == "items") return std::to_string(p.items);
  }
  const std::vector<std::string_view> known(std::begin(kNames), std::end(kNames));
  if (std::find(known.begin(), known.end(), name) != known.end())
    return fail("{" + name + "} stands for one piece, and there are several", "command",
                "{work}, {tasks} or {output...}; or several = false");
  const std::string_view near = closest(name, known);
  return fail(
      "unknown placeholder {" + name + "}", "command",
      near.empty() ? std::string("docs/formats/evals.md lists them") : "did you mean {" + std::string(near) + "}?");
}

bool is_placeholder(std::string_view inside) {
  return !inside.empty() &&
         std::all_of(inside.begin(), inside.end(), [](unsigned char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

}  // namespace

std::string samples_text(const std::vector<PieceWords>& pieces) {
  Json samples = Json::object();
  for (const PieceWords& p : pieces)
    for (std::int64_t i = 0; i < p.items; ++i) samples[p.task].push_back(p.first + i);
  return samples.dump();
}

std::string too_long(const std::vector<std::string>& words) {
  std::size_t all = 0;
  for (const std::string& w : words) {
    if (w.size() > kMostOfWord)
      return "a word of its command is longer than the 131,071 bytes that the kernel takes: {work} or {samples_file} "
             "name files that say the same";
    all += w.size() + 1;
  }
  return all > kMostOfAll ? "its command is longer than 1 MiB: {work} or {samples_file} name files that say the same"
                          : "";
}

namespace {

std::string as_itself(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

Result<std::string> fill(const std::string& word, const CommandWords& words, bool pattern) {
  std::string out;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t end = word[i] == '{' ? word.find('}', i) : std::string::npos;
    const std::string inside = end == std::string::npos ? std::string() : word.substr(i + 1, end - i - 1);
    if (!is_placeholder(inside)) {  // a brace of the command's own, of JSON for example
      out += word[i++];
      continue;
    }
    const auto value = value_of(inside, words);
    if (!value) return value;
    const bool said = (inside == "results" || inside == "task") && *value != words.pieces.front().dataset;
    out += pattern && !said ? as_itself(*value) : *value;
    i = end + 1;
  }
  return out;
}

}  // namespace

Result<std::string> fill_word(const std::string& word, const CommandWords& words) { return fill(word, words, false); }
Result<std::string> fill_pattern(const std::string& pattern, const CommandWords& words) {
  return fill(pattern, words, true);
}

Result<std::vector<std::string>> fill_words(const std::vector<std::string>& argv, const CommandWords& words) {
  std::vector<std::string> out;
  for (const std::string& word : argv) {
    if (word == "{tasks...}" || word == "{output...}") {
      std::vector<std::string> seen;
      for (const PieceWords& p : words.pieces) {
        const std::vector<std::string> alone{word == "{tasks...}" ? p.task : p.output};
        for (const std::string& one : word == "{output...}" && !p.files.empty() ? p.files : alone)
          if (std::find(seen.begin(), seen.end(), one) == seen.end()) seen.push_back(one);
      }
      out.insert(out.end(), seen.begin(), seen.end());
      continue;
    }
    auto filled = fill_word(word, words);
    if (!filled) return tl::unexpected(filled.error());
    out.push_back(std::move(*filled));
  }
  return out;
}

Status check_words(const EvalConfig& config) {
  const PieceWords piece{"dataset", "task", "results", 0, 1, "output", {}};
  CommandWords words{"checkpoint", "name", "model", "outputs", "work", "scores", "samples", {piece}};
  const auto check = [&](const std::vector<std::string>& argv, const std::vector<std::string>& more) -> Status {
    if (const auto ok = fill_words(argv, words); !ok) return fail(ok.error().what, config.where, ok.error().advice);
    for (const std::string& word : more)
      if (const auto ok = fill_word(word, words); !ok) return fail(ok.error().what, config.where, ok.error().advice);
    return {};
  };
  if (auto ok =
          check(config.metric.argv, {config.inference.dumped, config.metric.scores_file, config.metric.scores_at});
      !ok)
    return ok;
  // Pieces of a dataset that is not scored by item are scored together.
  for (const EvalDataset& d : config.datasets) {
    if (config.metric.argv.empty() || d.metric_by_item || !config.may_split(d)) continue;
    words.pieces.push_back(piece);
    if (auto ok = check(config.metric.argv, {config.metric.scores_file, config.metric.scores_at}); !ok)
      return fail("[metric] " + ok.error().what, config.where,
                  "{output...}; or split = false or metric_by_item = true of dataset " + d.name);
    words.pieces.pop_back();
    break;
  }
  if (config.inference.several) {
    words.pieces.push_back(piece);
    words.pieces.back().dataset = "other";
  }
  return check(config.inference.argv, {});
}

std::string work_text(const std::vector<PieceWords>& pieces) {
  Json list = Json::array();
  for (const PieceWords& p : pieces)
    list.push_back(
        {{"dataset", p.dataset}, {"task", p.task}, {"first", p.first}, {"items", p.items}, {"output", p.output}});
  return list.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool may_be_several(const std::string& pattern, int directories) {
  return std::count_if(pattern.begin(), pattern.end(), [](char c) { return c == '*' || c == '?' || c == '['; }) >
         directories;
}

std::vector<std::string> files_like(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0)
    for (std::size_t i = 0; i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace orrery
