// orrery diagnose as a user meets it.
#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "cli_run.h"

namespace orrery::test {
namespace {

using Json = nlohmann::json;

Json json(const std::string& arguments, int status = 0) {
  const Outcome o = orrery("diagnose --json " + arguments);
  EXPECT_EQ(o.status, status) << o.err;
  return Json::parse(o.out, nullptr, false);
}

// A server that is of no use costs no verdict of the rules.
TEST(CliDiagnose, ABrokenAgentIsANote) {
  httplib::Server http;
  const int port = http.bind_to_any_port("127.0.0.1");
  http.Post("/v1/chat/completions", [](const httplib::Request&, httplib::Response& r) { r.status = 500; });
  http.Post("/html/chat/completions",
            [](const httplib::Request&, httplib::Response& r) { r.set_content("<html>no</html>", "text/html"); });
  std::thread serving([&] { http.listen_after_bind(); });
  for (const char* path : {"/v1", "/html"}) {
    const Json d = json("samples/failed-job --llm http://127.0.0.1:" + std::to_string(port) + path, 1);
    EXPECT_EQ(d["logs"][2]["reason"], "Out of Memory Error");
    EXPECT_NE(d.dump().find("agent-failed"), std::string::npos);
  }
  http.stop();
  serving.join();
  const Json refused = json("samples/failed-job --llm-timeout 5 --llm http://127.0.0.1:" + std::to_string(port), 1);
  EXPECT_NE(refused.dump().find("agent-failed"), std::string::npos);
}

// Waits, in a shell, until the process $p has the file open, and then for it to have read what is there.
std::string until_open(const std::string& file) {
  return "for i in $(seq 600); do ls -l /proc/$p/fd 2>/dev/null | grep -qF '" + file +
         "' && break; sleep 0.1; done; sleep 1; ";
}

TEST(CliDiagnose, FollowEndsAtASignalWithTheVerdictSoFar) {
  for (const char* signal : {"INT", "TERM"}) {
    const TempDir dir;
    const std::string log = dir / "a.log";
    write_text(log, "step 1 loss 2.1\n");
    const Outcome o = shell("\"$orrery\" diagnose --follow --json '" + log + "' > '" + (dir / "o") + "' & p=$!; " +
                            until_open(log) + "kill -" + signal + " $p; wait $p; echo $?; cat '" + (dir / "o") + "'");
    EXPECT_EQ(o.out.substr(0, 2), "0\n") << signal << o.out;
    EXPECT_NE(o.out.find("\"healthy\""), std::string::npos) << signal;
  }
}

TEST(CliDiagnose, FollowEndsWithSuccessAndReadsATruncatedLogAgain) {
  const TempDir dir;
  const std::string log = dir / "a.log";
  write_text(log, "step 1 loss 2.1\nTraining complete.\n");
  EXPECT_EQ(json("--follow --settle 0.1 '" + log + "'")["logs"][0]["verdict"], "healthy");
  write_text(log, "step 1 loss 2.1\nstep 2 loss 2.1\nstep 3 loss 2.1\n");
  const std::string answer = dir / "o";
  const Outcome o =
      shell("\"$orrery\" diagnose --follow --settle 0.3 --json '" + log + "' > '" + answer + "' & p=$!; " +
            until_open(log) + "echo \"KeyError: 'x'\" > '" + log + "'; wait $p; cat '" + answer + "'");
  const Json d = Json::parse(o.out, nullptr, false);
  EXPECT_EQ(d["logs"][0]["reason"], "Key Error");
  EXPECT_EQ(d["logs"][0]["evidence"][0]["line"], 1);
  EXPECT_NE(o.out.find("log-truncated"), std::string::npos);
}

TEST(CliDiagnose, OwnRulesMustBehaveAsTheirSamplesSay) {
  const TempDir dir;
  for (const char* more : {"sample = 'other'", "sample = 'gizmo'\ncounter = 'gizmo 2'", "masks = ['no-such-kind']"}) {
    write_text(dir / "r.toml",
               std::string("\n[[rule]]\nid = 'giz'\npattern = 'gizmo'\nreason = 'Key Error'\n") + more + "\n");
    const Outcome o = orrery("diagnose samples/failed-job --rules '" + (dir / "r.toml") + "'");
    EXPECT_EQ(o.status, 2) << more;
    EXPECT_NE(o.err.find("r.toml:2"), std::string::npos) << o.err;
    EXPECT_NE(o.err.find("rule giz"), std::string::npos) << o.err;
  }
}

TEST(CliDiagnose, OneVerdictForTheFilesOfAJob) {
  const Json d = json("samples/failed-job --job");
  ASSERT_EQ(d["logs"].size(), 1u);
  const Json& v = d["logs"][0];
  EXPECT_EQ(v["verdict"], "failed");
  EXPECT_EQ(v["reason"], "Out of Memory Error");
  EXPECT_EQ(v["category"], "Framework");
  EXPECT_EQ(v["restart"], "no");
  EXPECT_EQ(v["where"], "rank2");
  EXPECT_EQ(v["rank"], 2);
  EXPECT_EQ(v["evidence"][0]["file"], "samples/failed-job/rank-2.log");
  EXPECT_EQ(v["evidence"][0]["line"], 9);
  EXPECT_GE(v["symptoms"].size(), 2u);
  EXPECT_LT(v["kept_lines"], v["lines"]);
}

TEST(CliDiagnose, OneVerdictAFileAndUnknownIsOne) {
  const Json d = json("samples/failed-job", 1);
  ASSERT_EQ(d["logs"].size(), 5u);
  EXPECT_EQ(d["logs"][0]["reason"], "NCCL Timeout Error");
  EXPECT_EQ(d["logs"][4]["verdict"], "unknown");
  EXPECT_TRUE(d["logs"][4]["reason"].is_null());
}

TEST(CliDiagnose, HealthyLogsHaveNoEvidenceButTheKeys) {
  const TempDir dir;
  write_text(dir / "a.log", "step 1 loss 2.1\nstep 2 loss 2.0\n");
  const Json v = json("'" + (dir / "a.log") + "'")["logs"][0];
  EXPECT_EQ(v["verdict"], "healthy");
  EXPECT_EQ(v["reason"], "None");
  EXPECT_EQ(v["category"], "None");
  EXPECT_EQ(v["restart"], "none");
  EXPECT_EQ(v["where"], "-");
  EXPECT_EQ(v["evidence"], Json::array());
  EXPECT_EQ(v["symptoms"], Json::array());
}

TEST(CliDiagnose, RulesOfOnesOwn) {
  const TempDir dir;
  write_text(dir / "a.log", "gizmo 7 lost its flange\n");
  write_text(
      dir / "r.toml",
      "[[rule]]\nid = 'gizmo'\npattern = 'gizmo (?P<node>\\d+) lost'\nreason = 'Node Failure'\nwhere = 'node'\n");
  const Json v = json("'" + (dir / "a.log") + "' --rules '" + (dir / "r.toml") + "'")["logs"][0];
  EXPECT_EQ(v["reason"], "Node Failure");
  EXPECT_EQ(v["evidence"][0]["why"], "gizmo");
  write_text(dir / "bad.toml", "[[rule]]\nid = 'x'\npattern = '('\nreason = 'Key Error'\n");
  const Outcome bad = orrery("diagnose '" + (dir / "a.log") + "' --rules '" + (dir / "bad.toml") + "'");
  EXPECT_EQ(bad.status, 2);
  EXPECT_NE(bad.err.find("bad.toml:1"), std::string::npos) << bad.err;
}

TEST(CliDiagnose, CompressedPipedAndDamagedLogs) {
  EXPECT_EQ(shell("gzip -c samples/failed-job/rank-2.log | \"$orrery\" diagnose - --json | grep -c 'Out of Memory'")
                .out.substr(0, 1),
            "1");
  const Outcome cut = shell("gzip -c samples/failed-job/rank-0.log | head -c 300 | \"$orrery\" diagnose - --json");
  EXPECT_EQ(cut.status, 1);
  EXPECT_NE(cut.out.find("input-damaged"), std::string::npos);
}

TEST(CliDiagnose, TemplatesOfEveryLine) {
  const TempDir dir;
  write_text(dir / "a.log", "read block 7, \"x\"\nread block 8, \"y\"\r\nother\n");
  (void)json("'" + (dir / "a.log") + "' --templates '" + (dir / "t.csv") + "'", 1);
  EXPECT_EQ(read_file(dir / "t.csv"),
            "line,id,template\n1,T1,\"read block <*> , \"\" <*> \"\"\"\n2,T1,\"read block <*> , \"\" <*> "
            "\"\"\"\n3,T2,\"other\"\n");
}

TEST(CliDiagnose, FollowsALogUntilItEndsBadly) {
  const TempDir dir;
  const std::string log = dir / "live.log";
  write_text(log, "step 1 loss 2.1\n");
  const Outcome o = shell("( sleep 0.3; echo \"KeyError: 'a'\" >> '" + log +
                          "' ) & \"$orrery\" diagnose --follow --settle 0.3 --json '" + log + "'");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(Json::parse(o.out)["logs"][0]["reason"], "Key Error");
  const Json hung = json("--follow --settle 0.05 --hang-after 0.3 samples/failed-job/rank-0.log");
  EXPECT_EQ(hung["logs"][0]["reason"], "NCCL Timeout Error");
  write_text(log, "step 1 loss 2.1\n");
  const Json silent = json("--follow --settle 0.05 --hang-after 0.3 '" + log + "'");
  EXPECT_NE(silent["logs"][0]["root_cause"].get<std::string>().find("no new line for 0.3 s"), std::string::npos);
}

TEST(CliDiagnose, PastCasesAnswerWhereNoRuleDoes) {
  const TempDir dir;
  const std::string cases = " --cases '" + (dir / "c.db") + "'";
  const std::string end = "srun: error: node3: task 7: Exited with exit code 1\n";
  write_text(dir / "a.log", "flux capacitor of shard 7 lost its alignment\n" + end);
  write_text(dir / "b.log", "step 1 loss 2\nflux capacitor of shard 9 lost its alignment\n" + end);
  EXPECT_EQ(json("'" + (dir / "a.log") + "'" + cases + " --remember 'Runtime Error'", 1)["logs"][0]["verdict"],
            "unknown");
  const Json v = json("'" + (dir / "b.log") + "'" + cases)["logs"][0];
  EXPECT_EQ(v["reason"], "Runtime Error");
  EXPECT_EQ(v["found_by"], "cases");
  EXPECT_GT(v["confidence"], 0.35);
}

TEST(CliDiagnose, AHealthyRunTeachesItsResubmissions) {
  const TempDir dir;
  const std::string with = " --cases '" + (dir / "c.db") + "' --job-name llm";
  std::string odd;
  for (const char* what : {"alpha", "beta", "gamma", "delta"}) odd += std::string("probing ") + what + " of the loom\n";
  write_text(dir / "good.log",
             odd + "KeyError: 'optional'\nstep 1 loss 2\nstep 2 loss 2\nstep 3 loss 2\nstep 4 loss 2\n");
  write_text(dir / "bad.log", odd + "KeyError: 'optional'\nTypeError: x\n");
  const Json before = json("'" + (dir / "bad.log") + "'")["logs"][0];
  EXPECT_EQ(before["reason"], "Key Error");
  EXPECT_EQ(json("'" + (dir / "good.log") + "'" + with)["logs"][0]["verdict"], "healthy");
  const Json after = json("'" + (dir / "bad.log") + "'" + with)["logs"][0];
  EXPECT_EQ(after["reason"], "Type Error");
  EXPECT_LT(after["kept_lines"], before["kept_lines"]);
}

TEST(CliDiagnose, AnAgentIsAskedLastAndItsRuleIsKept) {
  httplib::Server http;
  int asked = 0;
  http.Post("/v1/chat/completions", [&](const httplib::Request&, httplib::Response& r) {
    ++asked;
    const Json content{{"reason", "Runtime Error"}, {"category", "Framework"},
                       {"restart", "no"},           {"root_cause", "flux capacitor of shard 7 lost its alignment"},
                       {"advice", "Align it."},     {"pattern", "flux capacitor of shard \\d+ lost"}};
    r.set_content(Json{{"choices", {{{"message", {{"content", content.dump()}}}}}}}.dump(), "application/json");
  });
  const int port = http.bind_to_any_port("127.0.0.1");
  std::thread thread([&] { http.listen_after_bind(); });
  const TempDir dir;
  const std::string how =
      " --llm http://127.0.0.1:" + std::to_string(port) + "/v1 --rules '" + (dir / "mine.toml") + "'";
  write_text(dir / "a.log",
             "step 1 loss 2\nflux capacitor of shard 7 lost its alignment\nsrun: error: node3: task 7: Exited with "
             "exit code 1\n");
  const Json v = json("'" + (dir / "a.log") + "'" + how)["logs"][0];
  EXPECT_EQ(v["reason"], "Runtime Error");
  EXPECT_EQ(v["found_by"], "llm");
  EXPECT_EQ(v["evidence"][0]["line"], 2);
  EXPECT_EQ(asked, 3);
  // the next time its rule answers
  const Json again = json("'" + (dir / "a.log") + "'" + how)["logs"][0];
  EXPECT_EQ(again["reason"], "Runtime Error");
  EXPECT_EQ(again["found_by"], "rules");
  EXPECT_EQ(asked, 3);
  http.stop();
  thread.join();
}

TEST(CliDiagnose, OptionsThatMakeNoSense) {
  for (const char* arguments :
       {"samples/failed-job --follow", "samples/failed-job/rank-0.log --settle 3", "samples/failed-job --job-name x",
        "samples/failed-job --cases /dev/null/x.db", "samples/failed-job --remember Sorcery --cases x.db",
        "samples/failed-job --llm localhost", "samples/failed-job --llm-samples 3", "nothing-there.log",
        "samples/failed-job/rank-0.log --follow --settle abc"}) {
    const Outcome o = orrery(std::string("diagnose ") + arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  }
}

}  // namespace
}  // namespace orrery::test
