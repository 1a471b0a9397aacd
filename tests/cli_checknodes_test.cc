// orrery checknodes as a user meets it: real processes, and programs that stand for broken nodes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

// Nodes and verdicts: "a good, b bad".
std::string verdicts(const Json& d) {
  std::string all;
  for (const Json& n : d["nodes"])
    all += (all.empty() ? "" : ", ") + n["node"].get<std::string>() + " " + n["verdict"].get<std::string>();
  return all;
}

// A test of a group, written as a script: $* are the nodes.
Json with_script(const std::string& script, const std::string& options, int status) {
  const TempDir dir;
  write_text(dir / "test.sh", script);
  const Outcome o = orrery("checknodes --json --command bash --argument '" + (dir / "test.sh") + "' " + options);
  EXPECT_EQ(o.status, status) << o.err;
  return Json::parse(o.out, nullptr, false);
}

TEST(CliChecknodes, RingsOnLoopback) {
  const Outcome o = orrery("checknodes --json --mib 1 --hosts 127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5");
  const Json d = Json::parse(o.out);
  ASSERT_EQ(d["nodes"].size(), 5u);
  EXPECT_EQ(d["tests"][1]["group"], "127.0.0.3,127.0.0.4,127.0.0.5");
  for (const Json& t : d["tests"]) {  // whoever else uses this machine may make one slow, none fail
    EXPECT_TRUE(t["passed"]);
    EXPECT_GT(t["gb_per_s"], 0);
  }
  EXPECT_EQ(orrery("checknodes --mib 1 --hosts 127.0.0.1").status, 0) << "one node, alone";
}

TEST(CliChecknodes, ABadNodeAndItsRounds) {
  const Json d = with_script("[[ \" $* \" != *' c '* ]] && echo rate 10\n", "--hosts a,b,c,d", 1);
  EXPECT_EQ(verdicts(d), "a good, b good, c bad, d good");
  EXPECT_EQ(d["nodes"][2]["rounds"], Json::parse("[0.0, 0.0]"));
  EXPECT_EQ(d["nodes"][3]["rounds"], Json::parse("[0.0, 10.0]"));
  EXPECT_EQ(d["nodes"][3]["gb_per_s"], 10.0);
  EXPECT_TRUE(d["nodes"][2]["gb_per_s"].is_null());
}

TEST(CliChecknodes, AHangIsAFailureAndIsEnded) {
  const TempDir dir;
  const std::string mark = dir / "late";
  const Json d = with_script("[[ \" $* \" == *' b '* ]] && { sleep 3; touch '" + mark + "'; }\ntrue\n",
                             "--hosts a,b,c,d --timeout 0.5", 1);
  EXPECT_EQ(verdicts(d), "a good, b bad, c good, d good");
  EXPECT_EQ(shell("sleep 3; ls '" + mark + "'").status, 2) << "what hung was killed, and what it had started";
}

TEST(CliChecknodes, EndedItLeavesNothingBehind) {
  const TempDir dir;
  write_text(dir / "test.sh", "sleep 2; touch '" + (dir / "late") + "'\n");
  EXPECT_EQ(shell("timeout -s TERM 0.5 \"$orrery\" checknodes --hosts a,b --command bash --argument '" +
                  (dir / "test.sh") + "'; sleep 2.5; ls '" + (dir / "late") + "'")
                .status,
            2);
}

TEST(CliChecknodes, SlowAndLink) {
  EXPECT_EQ(verdicts(with_script("[[ \" $* \" == *' b '* ]] && echo 2 || echo 10\n", "--hosts a,b,c,d,e,f", 1)),
            "a good, b slow, c good, d good, e good, f good");
  EXPECT_EQ(verdicts(with_script("[[ \"$*\" != 'a b' ]]\n", "--hosts a,b,c,d,e,f", 1)),
            "a link, b link, c good, d good, e good, f good");
}

TEST(CliChecknodes, NoGoodNodeIsSaid) {
  const Json d = with_script("exit 1\n", "--hosts a,b,c", 1);
  EXPECT_EQ(verdicts(d), "a bad, b bad, c bad");
  EXPECT_EQ(d["notes"][0]["name"], "no-good-node");
}

TEST(CliChecknodes, ArgumentsAreNoShell) {
  const Outcome o = orrery(
      "checknodes --json --hosts a,b --command test --argument '$(exit 1){hosts};' --argument == "
      "--argument '$(exit 1)a,b;'");
  EXPECT_EQ(o.status, 0) << o.err;
}

TEST(CliChecknodes, RefusedInOneLine) {
  const auto refused = [](const std::string& arguments, const std::string& line) {
    const Outcome o = orrery("checknodes " + arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_EQ(o.out, "") << arguments;
    EXPECT_EQ(o.err, "orrery: " + line + "\n");
  };
  refused("", "--hosts: no nodes (for example --hosts 127.0.0.1,127.0.0.2)");
  refused("--hosts a,,b", "--hosts: a node without a name: a,,b");
  refused("--hosts a,a", "--hosts: given twice: a");
  refused("--hosts 'a;b'", "--hosts: not a name of a node: a;b");
  refused("--hosts a,-o", "--hosts: not a name of a node: -o");
  refused("--hosts a,b",
          "--hosts: not an address of this machine's loopback: a (the built-in ring runs on 127.0.0.0/8; --command "
          "tests other nodes)");
  refused("--hosts a,b --command /no/such/program", "/no/such/program: cannot be started: No such file or directory");
  refused("--hosts a,b --command true --timeout 0", "--timeout: not a number from 0.01 to 86400: 0");
  refused("--hosts 127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5 --mib 1024",
          "--mib: 5 processes of 1024 MiB, 4096 MiB at most (less)");
  refused("--hosts a,b --argument x", "--argument: arguments of no command (--command)");
}

}  // namespace
}  // namespace orrery::test
