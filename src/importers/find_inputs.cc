#include "importers/find_inputs.h"

#include <glob.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "base/number_text.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "rank2" before "rank10": runs of digits compare as numbers.
bool natural_less(const std::string& a, const std::string& b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      std::size_t i2 = i, j2 = j;
      while (i2 < a.size() && is_digit(a[i2])) ++i2;
      while (j2 < b.size() && is_digit(b[j2])) ++j2;
      std::size_t x = i, y = j;
      while (x < i2 && a[x] == '0') ++x;
      while (y < j2 && b[y] == '0') ++y;
      if (i2 - x != j2 - y) return i2 - x < j2 - y;
      if (const int c = a.compare(x, i2 - x, b, y, j2 - y); c != 0) return c < 0;
      i = i2;
      j = j2;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;
}

// Why something that was found, not named, is no file to read; "" = it is one, or a directory.
std::string why_unusable(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  switch (type) {
    case fs::file_type::regular:
    case fs::file_type::directory:
      return "";
    case fs::file_type::fifo:
      return "a pipe";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    default:
      if (fs::is_symlink(fs::symlink_status(path, error))) return "a link to nothing";
      return "no file";
  }
}

void add_unusable(const std::string& path, std::string why, std::vector<TraceInput>& inputs) {
  TraceInput input;
  input.label = path;
  input.optional = true;
  input.unusable = std::move(why);
  inputs.push_back(std::move(input));
}

// One file: itself, or the members of the archive that it is.
Status add_file(const std::string& path, bool optional, std::vector<TraceInput>& inputs) {
  TraceInput input;
  input.label = path;
  input.optional = optional;
  std::error_code error;
  if (const auto size = fs::file_size(path, error); !error) input.size = size;
  if (!fs::is_regular_file(path, error)) {  // a pipe that was named: must not be opened twice
    inputs.push_back(std::move(input));
    return {};
  }
  auto source = open_file(path);
  if (!source) return tl::unexpected(source.error());
  auto first = peek(*source, 4);
  if (!first) return tl::unexpected(first.error());
  if (!is_zip(*first)) {
    inputs.push_back(std::move(input));
    return {};
  }
  auto members = zip_members({path, {}});
  if (!members) {
    return tl::unexpected(members.error());
  }
  for (ZipMember& m : *members) {
    TraceInput member = input;
    member.label = path + ":" + m.name;
    member.archive.path = path;
    member.optional = true;
    member.size = m.size;
    member.member = std::move(m);
    inputs.push_back(std::move(member));
  }
  return {};
}

Status add_directory(const std::string& path, std::vector<TraceInput>& inputs) {
  std::vector<std::pair<std::string, std::string>> files;  // and why each is unusable
  std::error_code error;
  fs::recursive_directory_iterator it(path, error), end;
  if (error) return fail("directory cannot be read: " + error.message(), path);
  while (it != end) {
    std::error_code ignored;
    std::string why = why_unusable(it->path());
    if (it->is_directory(ignored) && it->is_symlink(ignored)) why = "a link to a directory, not followed";
    if (!why.empty() || it->is_regular_file(ignored)) files.emplace_back(it->path().string(), std::move(why));
    it.increment(error);
    if (error) return fail("directory cannot be read: " + error.message(), path);
  }
  if (files.empty()) return fail("no files in this directory", path);
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return natural_less(a.first, b.first); });
  for (const auto& [file, why] : files) {
    if (!why.empty()) {
      add_unusable(file, why, inputs);
    } else if (auto ok = add_file(file, true, inputs); !ok) {
      return ok;
    }
  }
  return {};
}

Status add_path(const std::string& path, std::vector<TraceInput>& inputs, bool from_glob) {
  std::error_code error;
  if (path == "-") {
    TraceInput input;
    input.label = path;
    inputs.push_back(std::move(input));
    return {};
  }
  if (path.empty()) return fail("an empty file name");
  const auto status = fs::status(path, error);
  if (from_glob) {
    if (std::string why = why_unusable(path); !why.empty()) {
      add_unusable(path, std::move(why), inputs);
      return {};
    }
  }
  if (fs::is_directory(status)) return add_directory(path, inputs);
  if (fs::exists(status)) return add_file(path, from_glob, inputs);
  if (from_glob || path.find_first_of("*?[") == std::string::npos) return fail("no such file or directory", path);
  glob_t found{};
  const int result = ::glob(path.c_str(), 0, nullptr, &found);
  std::vector<std::string> matches;
  for (std::size_t i = 0; result == 0 && i < found.gl_pathc; ++i) matches.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (matches.empty()) return fail("no file matches this pattern", path);
  std::sort(matches.begin(), matches.end(), natural_less);
  for (const std::string& m : matches)
    if (auto ok = add_path(m, inputs, true); !ok) return ok;
  return {};
}

// Every input that a match of WORD [-_=]? DIGITS gives; the last match counts ("node0_rank3").
std::int64_t number_after(const std::string& lower, std::string_view word, bool whole_word) {
  std::int64_t found = -1;
  for (std::size_t at = lower.find(word); at != std::string::npos; at = lower.find(word, at + 1)) {
    if (at > 0 && (whole_word ? is_alnum(lower[at - 1]) : is_digit(lower[at - 1]) && word.size() == 1)) continue;
    std::size_t i = at + word.size();
    if (!whole_word && i < lower.size() && (lower[i] == '-' || lower[i] == '_' || lower[i] == '=')) ++i;
    std::size_t j = i;
    while (j < lower.size() && is_digit(lower[j])) ++j;
    if (j == i || (whole_word && j < lower.size() && is_alnum(lower[j]))) continue;
    std::int64_t v = 0;
    if (read_int(std::string_view(lower).substr(i, j - i), v) == NumberState::ok) found = v;
  }
  return found;
}

std::int64_t rank_in_name(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); });
  for (const std::string_view word : {"rank", "worker"})
    if (const std::int64_t r = number_after(name, word, false); r >= 0) return r;
  return number_after(name, "r", true);
}

}  // namespace

Result<std::vector<TraceInput>> find_inputs(const std::vector<std::string>& paths) {
  if (paths.empty()) return fail("no trace given");
  std::vector<TraceInput> inputs;
  if (std::count(paths.begin(), paths.end(), "-") > 1) return fail("standard input can be read only once", "-");
  for (const std::string& p : paths)
    if (auto ok = add_path(p, inputs, false); !ok) return tl::unexpected(ok.error());
  return inputs;
}

Result<SourcePtr> open_raw(const TraceInput& input) {
  return input.archive.path.empty() ? open_file(input.label) : open_zip_member(input.archive, input.member);
}

Result<SourcePtr> open_input(const TraceInput& input) {
  auto source = open_raw(input);
  if (!source) return source;
  return decompressed(std::move(*source), input.label);
}

std::int64_t rank_in_path(const std::string& path) {
  const fs::path p(path);
  if (const std::int64_t r = rank_in_name(p.filename().string()); r >= 0) return r;
  return rank_in_name(p.parent_path().filename().string());
}

}  // namespace orrery
