#include "cli/options.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/output.h"
#include "writers/csv.h"
#include "writers/json.h"

namespace orrery {
namespace {

bool to_number(std::string_view text, std::int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out >= 0;
}

Status read_steps(const std::string& text, std::vector<std::int64_t>& steps) {
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    std::int64_t n = 0;
    if (!to_number(std::string_view(text).substr(i, end - i), n)) {
      return fail("not a list of steps: " + text, "--steps", "for example --steps 1,2");
    }
    if (std::find(steps.begin(), steps.end(), n) == steps.end()) steps.push_back(n);
    i = end + 1;
  }
  return {};
}

Status read_rank(const std::string& text, std::map<std::string, std::int64_t>& ranks) {
  const std::size_t equals = text.rfind('=');
  std::int64_t n = 0;
  if (equals == std::string::npos || equals == 0 || !to_number(std::string_view(text).substr(equals + 1), n)) {
    return fail("not FILE=N: " + text, "--rank", "for example --rank trace.json=3");
  }
  if (!ranks.emplace(text.substr(0, equals), n).second) {
    return fail("given twice for " + text.substr(0, equals), "--rank", "give each file one rank");
  }
  return {};
}

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT: before any thread starts
  return value ? value : "";
}

// Whether writing to `path` would mix with the answer; /dev/null takes both.
bool is_standard_output(const std::string& path) {
  struct stat named {
  }, out{};
  if (path.empty() || ::stat(path.c_str(), &named) != 0 || ::fstat(STDOUT_FILENO, &out) != 0) return false;
  if (S_ISCHR(out.st_mode) && !::isatty(STDOUT_FILENO)) return false;
  return named.st_dev == out.st_dev && named.st_ino == out.st_ino;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value(environment(name));
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

TextStyle style_of_standard_output(bool quiet) {
  TextStyle style;
  style.quiet = quiet;
  style.unicode = locale_is_utf8();
  std::int64_t columns = 0;
  winsize size{};
  if (::isatty(STDOUT_FILENO)) {
    style.color = environment("NO_COLOR").empty() && environment("TERM") != "dumb";
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  }
  if (columns == 0) to_number(environment("COLUMNS"), columns);
  if (columns > 0) style.width = static_cast<unsigned>(std::clamp<std::int64_t>(columns, 40, 1000));
  return style;
}

}  // namespace

Result<RunOptions> understand(const Command& command, const Args& args) {
  RunOptions o;
  if (args.has("--steps")) {
    if (auto ok = read_steps(args.value("--steps"), o.steps); !ok) return tl::unexpected(ok.error());
  }
  if (const auto it = args.options.find("--rank"); it != args.options.end()) {
    for (const std::string& text : it->second) {
      if (auto ok = read_rank(text, o.import.rank_of_file); !ok) return tl::unexpected(ok.error());
    }
  }
  if (args.has("--threads")) {
    std::int64_t n = 0;
    if (!to_number(args.value("--threads"), n) || n < 1 || n > 4096) {
      return fail("not a number of threads: " + args.value("--threads"), "--threads", "1 to 4096");
    }
    o.threads = static_cast<unsigned>(n);
  }
  if (std::count(args.positional.begin(), args.positional.end(), "-") > 1) {
    return fail("standard input (-) is named twice", std::string(command.name), "it can be read only once");
  }
  o.export_path = args.value("--export");
  if (o.export_path == "-" || is_standard_output(o.export_path)) {
    return fail("the exported trace cannot go to standard output", "--export " + o.export_path,
                "name a file: --export replayed.json.gz");
  }
  if (const std::string page = args.value("--html"); page == "-" || is_standard_output(page))
    return fail("the page cannot go to standard output", "--html " + page, "name a file: --html page.html");
  o.csv_directory = args.value("--csv");
  o.json = args.has("--json");
  o.quiet = args.has("--quiet");
  o.show_progress = !o.quiet && ::isatty(STDERR_FILENO);
  o.style = style_of_standard_output(o.quiet);
  o.import.threads = o.threads;
  o.import.recover = args.has("--recover");
  return o;
}

Status check_part(const Args& args, std::string_view command, std::string_view part,
                  const std::vector<PartOptions>& parts) {
  for (const auto& [option, values] : args.options) {
    std::string others;
    bool mine = false;
    for (const PartOptions& p : parts) {
      if (std::find(p.options.begin(), p.options.end(), option) == p.options.end()) continue;
      mine |= p.part == part;
      others += (others.empty() ? "" : ", ") + std::string(command) + " " + std::string(p.part);
    }
    if (!mine && !others.empty())
      return fail("is of " + others, option, std::string(command) + " " + std::string(part) + " has no use for it");
  }
  return {};
}

Result<int> emit(const Document& document, const RunOptions& options) {
  if (!options.csv_directory.empty()) {
    if (auto ok = write_csv(options.csv_directory, document); !ok) return tl::unexpected(ok.error());
  }
  const std::string text = options.json ? to_json(document) : to_text(document, options.style);
  if (auto ok = write_all(STDOUT_FILENO, text, "standard output"); !ok) return tl::unexpected(ok.error());
  if (!document.notes.lost_data()) return kDone;
  for (const Note& n : document.notes.rows) {  // in the tables they are already on the screen
    if (!options.json || options.quiet || n.severity != Severity::data_loss) continue;
    std::string line = fmt::format("orrery: data lost: {} ({}): {}", n.name, n.count, n.first);
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
    (void)write_all(STDERR_FILENO, line + "\n", "standard error");
  }
  return kIncomplete;
}

}  // namespace orrery
