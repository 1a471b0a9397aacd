// Options, help and completion: nothing here reads a trace, but for the examples of the help pages.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli_run.h"

namespace orrery::test {
namespace {

struct Refused {
  const char* arguments;
  const char* line;
};

class CliOptions : public ::testing::TestWithParam<Refused> {};

TEST_P(CliOptions, RefusedInOneLine) {
  const Outcome o = orrery(GetParam().arguments);
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(o.err, "orrery: " + std::string(GetParam().line) + "\n");
}

INSTANTIATE_TEST_SUITE_P(
    Slips, CliOptions,
    ::testing::Values(Refused{"", "no command (orrery help lists them)"},
                      Refused{"replya x", "unknown command replya (did you mean replay?)"},
                      Refused{"teleport x", "unknown command teleport (orrery help lists them)"},
                      Refused{"help replya", "help: unknown command replya (did you mean replay?)"},
                      Refused{"--json replay x",
                              "unknown option --json before a command (orrery COMMAND [OPTION...]; see orrery help)"},
                      Refused{"replay", "replay: needs TRACE... (see orrery help replay)"},
                      Refused{"replay x --step 1", "replay: unknown option --step (did you mean --steps?)"},
                      Refused{"replay x --expotr=y", "replay: unknown option --expotr (did you mean --export?)"},
                      Refused{"replay x --frobnicate", "replay: unknown option --frobnicate (see orrery help replay)"},
                      Refused{"replay x --steps", "replay: option --steps needs a value (--steps N,...)"},
                      Refused{"replay x --steps 1,b", "--steps: not a list of steps: 1,b (for example --steps 1,2)"},
                      Refused{"replay x --steps 1,,2", "--steps: not a list of steps: 1,,2 (for example --steps 1,2)"},
                      Refused{"replay x --steps -1", "--steps: not a list of steps: -1 (for example --steps 1,2)"},
                      Refused{"replay x --rank 3", "--rank: not FILE=N: 3 (for example --rank trace.json=3)"},
                      Refused{"replay x --rank x=-3", "--rank: not FILE=N: x=-3 (for example --rank trace.json=3)"},
                      Refused{"replay x --rank x=1 --rank x=2", "--rank: given twice for x (give each file one rank)"},
                      Refused{"replay x --threads 0", "--threads: not a number of threads: 0 (1 to 4096)"},
                      Refused{"replay x --threads 99999999999999999999",
                              "--threads: not a number of threads: 99999999999999999999 (1 to 4096)"},
                      Refused{"replay x --json=5", "replay: option --json takes no value (see orrery help replay)"},
                      Refused{"replay x --export a --export b",
                              "replay: option --export is given twice (give it once)"},
                      Refused{"replay x --json --export -",
                              "--export -: the exported trace cannot go to standard output (name a file: --export "
                              "replayed.json.gz)"},
                      Refused{"replay x --json --export /dev/stdout",
                              "--export /dev/stdout: the exported trace cannot go to standard output (name a file: "
                              "--export replayed.json.gz)"},
                      Refused{"diff x", "diff: needs A B (see orrery help diff)"},
                      Refused{"diff x y z", "diff: too many operands: z (takes A B)"},
                      Refused{"completion csh", "completion: no completion for csh (bash, zsh or fish)"}));

TEST(CliHelp, PagesAndVersion) {
  EXPECT_EQ(orrery("--version").out.rfind("orrery ", 0), 0u);
  const Outcome overview = orrery("help");
  EXPECT_EQ(overview.status, 0);
  EXPECT_EQ(overview.out, orrery("--help").out);
  for (const char* command : {"replay", "diff", "diagnose", "help", "completion"}) {
    EXPECT_NE(overview.out.find("\n  " + std::string(command) + " "), std::string::npos) << command;
    const Outcome page = orrery("help " + std::string(command));
    EXPECT_EQ(page.status, 0);
    for (const char* part :
         {"NAME\n", "\nSYNOPSIS\n", "\nDESCRIPTION\n", "\nOPTIONS\n", "\nEXIT STATUS\n", "\nEXAMPLES\n"}) {
      EXPECT_NE(page.out.find(part), std::string::npos) << command << part;
    }
    EXPECT_EQ(page.out, orrery(std::string(command) + " --help").out);
    EXPECT_EQ(page.out, orrery(std::string(command) + " -h x y z").out) << "help needs no operands";
  }
}

// The examples of every page, run as written (a pipe to another program is left out).
TEST(CliHelp, ExamplesWork) {
  const TempDir dir;
  for (const char* command : {"replay", "diff", "diagnose", "guard", "checknodes", "evals", "help", "completion"}) {
    const std::string page = orrery("help " + std::string(command)).out;
    std::istringstream lines(page.substr(page.find("\nEXAMPLES\n") + 10));
    int examples = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind("      orrery ", 0) != 0) continue;
      ++examples;
      std::string arguments =
          line.substr(13, line.find(" | ") == std::string::npos ? std::string::npos : line.find(" | ") - 13);
      if (const auto at = arguments.find("replayed.json.gz"); at != std::string::npos)
        arguments.insert(at, dir.path.string() + "/");
      const Outcome o = orrery(arguments);
      EXPECT_EQ(o.status, 0) << line << "\n" << o.err;
      EXPECT_NE(o.out, "") << line;
    }
    EXPECT_GE(examples, 1) << command;
  }
}

TEST(CliCompletion, KnowsCommandsAndOptions) {
  EXPECT_EQ(shell("source <(\"$orrery\" completion bash); COMP_WORDS=(orrery replay --st); COMP_CWORD=2; _orrery;"
                  "echo \"${COMPREPLY[@]}\"")
                .out,
            "--steps\n");
  EXPECT_EQ(shell("source <(\"$orrery\" completion bash); COMP_WORDS=(orrery dif); COMP_CWORD=1; _orrery;"
                  "echo \"${COMPREPLY[@]}\"")
                .out,
            "diff\n");
  const std::string zsh = orrery("completion zsh").out;
  EXPECT_NE(zsh.find("'--steps[only these steps\\: the N of ProfilerStep#N (default\\: all)"), std::string::npos)
      << zsh;
  EXPECT_NE(
      orrery("completion fish").out.find("complete -c orrery -n '__fish_seen_subcommand_from replay' -l export -r -F"),
      std::string::npos);
}

}  // namespace
}  // namespace orrery::test
