// An agent behind a small server of our own that speaks the protocol.
#include "rules/agent.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

namespace orrery {
namespace {

using Json = nlohmann::json;

struct Server {
  httplib::Server http;
  int port = 0;
  std::thread thread;
  std::vector<std::string> answers;  // what the model writes, in turn
  std::vector<Json> asked;
  std::string authorization;

  Server() {
    http.Post("/v1/chat/completions", [this](const httplib::Request& q, httplib::Response& r) {
      asked.push_back(Json::parse(q.body));
      authorization = q.get_header_value("Authorization");
      const std::string text = answers[(asked.size() - 1) % answers.size()];
      r.set_content(Json{{"choices", {{{"message", {{"role", "assistant"}, {"content", text}}}}}}}.dump(),
                    "application/json");
    });
    port = http.bind_to_any_port("127.0.0.1");
    thread = std::thread([this] { http.listen_after_bind(); });
  }
  ~Server() {
    http.stop();
    thread.join();
  }
  AgentOptions options() const {
    AgentOptions o;
    o.url = "http://127.0.0.1:" + std::to_string(port) + "/v1/";
    o.model = "m";
    o.key = "secret";
    return o;
  }
};

std::vector<KeptLine> failing() {
  return {{0, 3, "flux capacitor of shard 7 lost its alignment"}, {0, 4, "giving up"}};
}
std::string answer(const std::string& reason, const std::string& pattern, const std::string& restart = "no") {
  return "Sure:\n```json\n" +
         Json{{"reason", reason},      {"category", "Framework"},
              {"restart", restart},    {"root_cause", "flux capacitor of shard 7 lost its alignment"},
              {"advice", "Align it."}, {"pattern", pattern}}
             .dump() +
         "\n```";
}

TEST(Agent, SamplesAVoteAndOnlyTheKeptLinesAreSent) {
  Server s;
  s.answers = {answer("Runtime Error", "flux capacitor .* lost"), answer("OS Error", "x"),
               answer("Runtime Error", "flux")};
  Notes notes;
  const auto answers = ask_agent(s.options(), failing(), notes);
  ASSERT_TRUE(answers.has_value()) << answers.error().line();
  EXPECT_EQ(s.asked.size(), 3u);
  EXPECT_EQ(s.authorization, "Bearer secret");
  EXPECT_EQ(s.asked[0]["model"], "m");
  const std::string prompt = s.asked[0]["messages"][0]["content"];
  EXPECT_NE(prompt.find("0:3: flux capacitor of shard 7"), std::string::npos);
  EXPECT_EQ(s.asked[0]["messages"].size(), 1u);
  const auto chosen = vote(*answers, 3);
  ASSERT_TRUE(chosen.has_value());
  EXPECT_EQ(chosen->answer.reason, "Runtime Error");
  EXPECT_NEAR(chosen->agreement, 2.0 / 3, 1e-12);
}

TEST(Agent, NoMajorityIsNoAnswer) {
  Server s;
  s.answers = {answer("Runtime Error", ""), answer("OS Error", ""), "I do not know", answer("Sorcery", "")};
  Notes notes;
  AgentOptions o = s.options();
  o.samples = 4;
  const auto answers = ask_agent(o, failing(), notes);
  ASSERT_EQ(answers->size(), 2u);
  EXPECT_FALSE(vote(*answers, 4).has_value());
  ASSERT_EQ(notes.rows.size(), 1u);
  EXPECT_EQ(notes.rows[0].count, 2u);
}

TEST(Agent, ARuleMustProveItself) {
  const AgentAnswer a{"Runtime Error", "Framework", "no", "", "Align it.", ""};
  const std::vector<std::string> healthy{"all shards aligned", "step 12 loss 2.1"};
  const auto proven = [&](const std::string& pattern, Notes& notes) {
    AgentAnswer with = a;
    with.pattern = pattern;
    return proven_rule({with}, a, failing(), healthy, "test", notes);
  };
  Notes notes;
  EXPECT_FALSE(proven("(unclosed", notes).has_value());         // does not compile
  EXPECT_FALSE(proven(".*", notes).has_value());                // every line
  EXPECT_FALSE(proven("warp core breach", notes).has_value());  // not in the failing log
  EXPECT_FALSE(proven("shard", notes).has_value());             // also in a healthy one
  EXPECT_EQ(notes.rows.at(0).count, 4u);
  const auto rule = proven("flux capacitor of shard \\d+ lost", notes);
  ASSERT_TRUE(rule.has_value());
  // ... and is read back as it was written
  const auto read = parse_rules("[family]\nname = 'learnt'\n" + rule_text(*rule), "learnt.toml");
  ASSERT_TRUE(read.has_value()) << read.error().line();
  EXPECT_EQ(read->at(0).pattern, rule->pattern);
  EXPECT_EQ(read->at(0).reason, "Runtime Error");
  EXPECT_EQ(read->at(0).origin, "test");
}

TEST(Agent, ServersThatDoNotAnswerSo) {
  Notes notes;
  AgentOptions nobody;
  nobody.url = "http://127.0.0.1:1/v1";
  EXPECT_FALSE(ask_agent(nobody, failing(), notes).has_value());
  Server s;
  s.answers = {"x"};
  AgentOptions wrong = s.options();
  wrong.url = "http://127.0.0.1:" + std::to_string(s.port) + "/v2";
  const auto r = ask_agent(wrong, failing(), notes);
  ASSERT_FALSE(r.has_value());
  EXPECT_NE(r.error().line().find("404"), std::string::npos);
}

}  // namespace
}  // namespace orrery
