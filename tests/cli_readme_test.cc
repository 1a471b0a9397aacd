// Every `orrery` command that README.md shows is run, and what it shows is still what comes out.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli_run.h"

namespace orrery::test {
namespace {

struct Shown {
  std::string command;              // after "$ "
  std::vector<std::string> output;  // the lines below it
};

// The ```console blocks: "$ command", then its output.
std::vector<Shown> shown_in(const fs::path& document) {
  std::vector<Shown> all;
  std::istringstream lines(read_file(document));
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("```", 0) == 0) {
      inside = !inside && line == "```console";
    } else if (inside && line.rfind("$ ", 0) == 0) {
      all.push_back({line.substr(2), {}});
    } else if (inside && !all.empty()) {
      all.back().output.push_back(line);
    }
  }
  return all;
}

// Replaces a path that the command would write by one in `dir`.
std::string into(const TempDir& dir, std::string command, const std::string& option) {
  const std::size_t at = command.find(option + " ");
  if (at == std::string::npos) return command;
  const std::size_t begin = at + option.size() + 1;
  const std::size_t end = std::min(command.find(' ', begin), command.size());
  return command.replace(begin, end - begin, dir / "written.json.gz");
}

TEST(CliReadme, CommandsWorkAsShown) {
  const std::vector<Shown> all = shown_in(ORRERY_SOURCE_DIR "/README.md");
  fs::remove_all(ORRERY_SOURCE_DIR "/build/evals-trainer");  // what an earlier run that was killed may have left half
  int run = 0;
  for (const Shown& s : all) {
    const std::string program = "build/orrery ";
    if (s.command.rfind(program, 0) != 0) continue;  // script/demo and the like
    ++run;
    SCOPED_TRACE(s.command);
    const TempDir dir;
    std::string command = s.command.substr(0, s.command.find(" | "));  // our part of a pipe
    for (const char* option : {"--export", "--csv", "--html", "--store"}) command = into(dir, command, option);
    const Outcome o = shell("\"$orrery\" " + command.substr(program.size()));
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(o.err, "");
    if (command != s.command && s.command.find(" | ") != std::string::npos) continue;
    // Headings (they stand at the margin) as shown; figures may change.
    for (const std::string& line : s.output) {
      if (line.empty() || line[0] == ' ' || line == "...") continue;
      EXPECT_NE(("\n" + o.out).find("\n" + line + "\n"), std::string::npos) << "no longer printed: " << line;
    }
  }
  EXPECT_GE(run, 3) << "README.md shows too little";
}

// What README.md shows of a guarded job is of the command that it names: with the settings that are named there.
TEST(CliReadme, TheGuardedJobHadTheSettingsThatAreNamed) {
  const std::string config = "samples/guarded-job/guard.toml";
  EXPECT_NE(read_file(ORRERY_SOURCE_DIR "/README.md").find("build/orrery guard --config " + config), std::string::npos);
  const TempDir dir;
  const Outcome o = shell("\"$orrery\" guard --config " + config + " --state '" + (dir / "s") +
                          "' --checkpoints '{state}/c' -- true");
  EXPECT_EQ(o.status, 0) << o.err;
  const auto begin_of = [](const fs::path& journal) {
    const std::string text = read_file(journal);
    return nlohmann::json::parse(text.substr(0, text.find('\n')))["record"]["event"];
  };
  const auto now = begin_of(dir.path / "s" / "journal.jsonl");
  const auto shown = begin_of(ORRERY_SOURCE_DIR "/samples/guarded-job/journal.jsonl");
  EXPECT_EQ(now["policy"], shown["policy"]);
  EXPECT_EQ(now["node"], shown["node"]) << "the job's name";
}

}  // namespace
}  // namespace orrery::test
