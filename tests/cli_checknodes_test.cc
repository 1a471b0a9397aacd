// orrery checknodes as a user meets it: real processes, and programs that stand for broken nodes.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli_run.h"
#include "processes/child.h"

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
  const std::string pids = dir / "pids";
  const Json d =
      with_script("[[ \" $* \" == *' b '* ]] && { sleep 1000 & echo $$ $! >> '" + pids + "'; wait; }\ntrue\n",
                  "--hosts a,b,c,d --timeout 4", 1);
  EXPECT_EQ(verdicts(d), "a good, b bad, c good, d good");
  EXPECT_EQ(shell("[ -s '" + pids + "' ] || exit 9; for pid in $(cat '" + pids +
                  "'); do for i in $(seq 200); do [ -d /proc/$pid ] || break; sleep 0.1; done; "
                  "[ -d /proc/$pid ] && exit 8; done; exit 0")
                .status,
            0)
      << "what hung was killed, and what it had started";
}

TEST(CliChecknodes, EndedItLeavesNothingBehind) {
  const TempDir dir;
  write_text(dir / "test.sh", "echo $$ >> '" + (dir / "pids") + "'; exec sleep 1000\n");
  EXPECT_EQ(shell("\"$orrery\" checknodes --hosts a,b --command bash --argument '" + (dir / "test.sh") +
                  "' & nodes=$!; until [ -s '" + (dir / "pids") +
                  "' ]; do sleep 0.05; done; kill $nodes; wait $nodes; "
                  "for pid in $(cat '" +
                  (dir / "pids") +
                  "'); do for i in $(seq 200); do [ -d /proc/$pid ] || break; sleep 0.1; done; "
                  "[ -d /proc/$pid ] && exit 8; done; exit 0")
                .status,
            0);
}

TEST(CliChecknodes, SlowAndLink) {
  EXPECT_EQ(verdicts(with_script("[[ \" $* \" == *' b '* ]] && echo 2 || echo 10\n", "--hosts a,b,c,d,e,f", 1)),
            "a good, b slow, c good, d good, e good, f good");
  EXPECT_EQ(verdicts(with_script("[[ \"$*\" != 'a b' ]]\n", "--hosts a,b,c,d,e,f", 1)),
            "a link, b link, c good, d good, e good, f good");
}

TEST(CliChecknodes, WithoutARateNobodyIsCalledSlowAndThatIsSaid) {
  for (const char* last : {"done", "0", "-3", "nan"}) {
    const Json d = with_script("echo 10; echo " + std::string(last) + "\n", "--hosts a,b,c,d", 0);
    EXPECT_EQ(verdicts(d), "a good, b good, c good, d good");
    ASSERT_EQ(d["notes"].size(), 1u) << last;
    EXPECT_EQ(d["notes"][0]["name"], "no-rate");
    EXPECT_EQ(d["notes"][0]["count"], 2);
  }
}

// A machine far too small for so many processes at once slows each of them; what is left of that must not decide.
TEST(CliChecknodes, ManyNodesOnASmallMachine) {
  const Outcome o = orrery("checknodes --json --mib 1 --hosts 127.0.0.[1-32]");
  const Json d = Json::parse(o.out, nullptr, false);
  for (const Json& n : d["nodes"]) EXPECT_NE(n["verdict"], "bad") << n;
  for (const Json& t : d["tests"]) EXPECT_TRUE(t["passed"]) << t;
}

TEST(CliChecknodes, KilledItLeavesNothingBehind) {
  for (const int signal : {SIGKILL, SIGQUIT}) {
    const TempDir dir;
    write_text(dir / "test.sh", "echo $$ > '" + (dir / "pid") + "'; exec sleep 60\n");
    const auto child = start_child(
        {.argv = {ORRERY_BINARY, "checknodes", "--hosts", "a,b", "--command", "bash", "--argument", dir / "test.sh"}});
    ASSERT_TRUE(child) << child.error().line();
    pid_t pid = 0;
    for (int i = 0; i < 1000 && !(std::ifstream(dir / "pid") >> pid); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_GT(pid, 0);
    const Child test{pid, start_time_of(pid)};
    ::kill(child->pid, signal);
    EXPECT_TRUE(wait_child(*child, 30));
    for (int i = 0; i < 500 && is_alive(test); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(is_alive(test)) << signal;
  }
}

TEST(CliChecknodes, NoGoodNodeIsSaid) {
  const Json d = with_script("exit 1\n", "--hosts a,b,c", 1);
  EXPECT_EQ(verdicts(d), "a bad, b bad, c bad");
  EXPECT_EQ(d["notes"][0]["name"], "no-good-node");
}

// Whoever else uses this machine may make a node slow, and the exit status 1.
std::string passing(const Json& d) {
  std::string all = verdicts(d);
  for (std::size_t at; (at = all.find(" slow")) != std::string::npos;) all.replace(at, 5, " good");
  return all;
}

// --launch: a script that plays ssh; $1 is the node, the rest the program to run there.
Json launched(const std::string& script, const std::string& options) {
  const TempDir dir;
  write_text(dir / "launch.sh", "node=$1; shift\n" + script + "\nexec \"$@\"\n");
  const Outcome o = orrery("checknodes --json --mib 1 --launch bash --argument '" + (dir / "launch.sh") +
                           "' --argument {host} " + options);
  EXPECT_LE(o.status, 1) << o.err;
  return Json::parse(o.out, nullptr, false);
}

TEST(CliChecknodes, RingsOfMembersThatALauncherStarts) {
  const Json d = launched("echo welcome to $node", "--hosts 127.0.0.[1-5]");
  ASSERT_EQ(d["nodes"].size(), 5u);
  for (const Json& t : d["tests"]) {
    EXPECT_TRUE(t["passed"]);
    EXPECT_GT(t["gb_per_s"], 0);
    EXPECT_TRUE(t["why"].is_null());
  }
  EXPECT_EQ(passing(launched("", "--hosts a,b --addresses 127.0.0.1,127.0.0.2")), "a good, b good");
}

TEST(CliChecknodes, NodesThatALauncherCannotReachAreBadAndItIsSaidWhy) {
  const std::string four = "--hosts a,b,c,d --addresses 127.0.0.1,127.0.0.1,127.0.0.1,127.0.0.1 ";
  const Json d =
      launched("[[ $node == b ]] && { echo 'ssh: connect to host b port 22: No route to host' >&2; exit 255; }", four);
  EXPECT_EQ(passing(d), "a good, b bad, c good, d good");
  EXPECT_EQ(d["tests"][0]["why"], "ended before it was done: ssh: connect to host b port 22: No route to host");
  const Json hung = launched("[[ $node == b ]] && exec sleep 1000", "--timeout 6 " + four);
  EXPECT_EQ(passing(hung), "a good, b bad, c good, d good");
  EXPECT_EQ(hung["tests"][0]["why"], "not done within 6 s");
  const Json chatty = launched("[[ $node == b ]] && exec yes", "--timeout 6 " + four);
  EXPECT_EQ(passing(chatty), "a good, b bad, c good, d good");
  const Json wrong = launched("", "--hosts a,b --addresses 203.0.113.1,203.0.113.2");
  EXPECT_EQ(verdicts(wrong), "a bad, b bad");
  EXPECT_NE(wrong["tests"][0]["why"].get<std::string>().find("this node has no address 203.0.113."), std::string::npos);
}

// A member is talked to by its input; whoever connects first without the token is not let in.
TEST(CliChecknodes, NobodyJoinsARingWithoutItsToken) {
  const Json d = launched(
      "coproc member { \"$@\"; }\n"
      "exec 6>&${member[1]} 7<&${member[0]}\n"
      "read task; echo \"$task\" >&6\n"
      "read -u 7 at; port=${at##* }\n"
      "exec 5<>/dev/tcp/127.0.0.1/$port; printf '%064d' 0 >&5\n"  // before the member who may
      "echo \"$at\"; cat <&0 >&6 &\n"
      "exec cat <&7",
      "--timeout 30 --hosts a,b --addresses 127.0.0.1,127.0.0.1");
  EXPECT_EQ(passing(d), "a good, b good");
}

TEST(CliChecknodes, MembersGoWithWhoStartedThem) {
  const TempDir dir;
  // a's member waits for b's, out of reach of its launcher, when all is killed.
  write_text(dir / "launch.sh",
             "node=$1; shift; [[ $node == b ]] && exec sleep 1000\nsetsid \"$@\" <&0 & echo $! >> '" + (dir / "pids") +
                 "'; wait\n");
  EXPECT_EQ(shell("\"$orrery\" checknodes --hosts a,b --addresses 127.0.0.1,127.0.0.2 --launch bash "
                  "--argument '" +
                  (dir / "launch.sh") + "' --argument {host} & nodes=$!; until [ -s '" + (dir / "pids") +
                  "' ]; do sleep 0.05; done; kill -9 $nodes; pid=$(cat '" + (dir / "pids") +
                  "'); for i in $(seq 200); do [[ -d /proc/$pid ]] || exit 7; sleep 0.1; done; exit 8")
                .status,
            7);
}

TEST(CliChecknodes, AMemberIsNotForPeople) {
  const Outcome o = shell("echo hello | \"$orrery\" checknodes member 0");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.out, "orrery-ring failed 0 is started by orrery checknodes\n");
  EXPECT_EQ(shell("printf 'orrery-ring %064d 1000 5 127.0.0.1,127.0.0.1\\n' 1 | \"$orrery\" checknodes member 2").out,
            "orrery-ring failed 2 there are not so many members\n");
  EXPECT_EQ(orrery("checknodes member").status, 2);
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
          "--hosts: not an address of this machine's loopback: a (--slurm, --launch, --mpirun and --command test "
          "other nodes)");
  refused(
      "--hosts a,b --command /no/such/program",
      "/no/such/program: cannot be started: No such file or directory (the name of a program on PATH, or its path)");
  refused("--hosts a,b --command true --timeout 0", "--timeout: not a number from 0.01 to 86400: 0");
  refused("--hosts 127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5 --mib 1024",
          "--mib: 5 processes of 1024 MiB, 4096 MiB at most (less)");
  refused("--hosts 'a[1'", "a[1: not a list of hosts: brackets that do not match (as in node[0-3,7],a1)");
  refused("a,b", "checknodes: takes no a,b (--hosts NAME,... names the nodes)");
  refused("--hosts a,b --slurm --mpirun", "--mpirun: beside --slurm (one of them)");
  refused("--hosts a,b --launch ssh", "--launch: no argument has {host} (as in --launch ssh --argument {host})");
  refused("--hosts a,b --addresses 127.0.0.1 --launch env --argument {host}",
          "--addresses: 1 addresses of 2 nodes (one for each)");
  refused("--hosts a,b --addresses 127.0.0.1,203.0.113.1 --launch env --argument {host}",
          "--hosts: a is this machine's loopback, where b cannot reach it (--addresses gives addresses that the nodes "
          "reach each other by)");
  refused("--hosts 127.0.0.1 --worker /bin/x", "--worker: is of rings on other nodes (--launch, --slurm or --mpirun)");
  refused("--hosts 127.0.0.1 --launch env --argument {host} --worker 'a b'",
          "--worker: not a plain path: a b (a path of orrery on the nodes, of letters, digits and /._-+)");
  refused("--hosts a,b --argument x", "--argument: arguments of no command (--command, --launch, --slurm or --mpirun)");
}

}  // namespace
}  // namespace orrery::test
