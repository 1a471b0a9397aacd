// Metrics and the webhook.
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "supervisor/secrets.h"
#include "supervisor/tell.h"

namespace orrery {
namespace {

struct Server {
  httplib::Server server;
  std::thread thread;
  int port = 0;
  std::mutex mutex;
  std::vector<std::string> bodies;
  std::atomic<int> status{200};
  Server() {
    server.Post("/hook", [this](const httplib::Request& request, httplib::Response& response) {
      const std::lock_guard lock(mutex);
      bodies.push_back(request.body);
      response.status = status;
    });
    port = server.bind_to_any_port("127.0.0.1");
    thread = std::thread([this] { server.listen_after_bind(); });
    while (!server.is_running()) std::this_thread::yield();
  }
  ~Server() {
    server.stop();
    thread.join();
  }
  std::string url() const { return "http://user:hidden@127.0.0.1:" + std::to_string(port) + "/hook"; }
};

GuardEvent event() {
  GuardEvent e;
  e.kind = EventKind::ended;
  e.at = 7;
  return e;
}

TEST(GuardTell, DecisionsArePostedWithoutSecrets) {
  Server server;
  Webhook hook(server.url(), 30);
  Decision d;
  d.kind = "restart";
  d.text = "Connection Error after iteration 7: again in 1 s";
  d.evidence = {"attempt-1.err:3: login failed: password=hunter2 for api_key: 'abcdef'",
                "GET https://bob:secret@host/x?sig=abc failed, Authorization: Bearer abc.def-ghi",
                "token hf_abcdefghijklmnop and 0123456789abcdef0123456789abcdef0123456789abcdef"};
  hook.post(webhook_body("job", event(), d, 3, 7));
  EXPECT_EQ(hook.finish(), 0u) << hook.last_error();
  ASSERT_EQ(server.bodies.size(), 1u);
  const auto body = nlohmann::json::parse(server.bodies[0]);
  EXPECT_EQ(body["job"], "job");
  EXPECT_EQ(body["decision"], "restart");
  EXPECT_EQ(body["kind"], "ended");
  EXPECT_EQ(body["attempt"], 3);
  EXPECT_EQ(body["text"], d.text) << "nothing in it looks like a secret";
  for (const char* secret : {"hunter2", "abcdef'", "bob", "secret", "abc.def", "hf_abc", "0123456789abcdef"})
    EXPECT_EQ(server.bodies[0].find(secret), std::string::npos) << secret << " in " << server.bodies[0];
}

TEST(GuardTell, WhatLooksLikeNoSecretStays) {
  for (const char* line : {"attempt-2.err:14: RuntimeError: shape '[2, 3]' is invalid for input of size 5",
                           "step-000000000015-full-d00aa21c2acb6853-000003 is not good",
                           "no rank moved for 2.0 s (limit 2.0 s: steps were seen; usual step 0.002 s)",
                           "num_tokens=4096, --max-tokens 2048 tokens: 1,024 tokenizer: gpt2 --tokenizer-model /m",
                           "forward pass: 3 ms, bypass of it; passed: 3 tests", "SyntaxError: unexpected token: }",
                           "--pass --other 3", "the secret of it; a token is missing"})
    EXPECT_EQ(without_secrets(line), line);
}

TEST(GuardTell, SecretsByTheirNames) {
  const auto cleaned = [](const std::string& line, const std::string& to) { EXPECT_EQ(without_secrets(line), to); };
  cleaned("run --db-pass s3cr3t --steps 3", "run --db-pass *** --steps 3");
  cleaned("--hf-token abc", "--hf-token ***");
  cleaned("--api-key=abc -token x", "--api-key=*** -token ***");
  cleaned("PGPASSWORD=hunter2 DB_PASS='a b' x", "PGPASSWORD=*** DB_PASS='***' x");
  cleaned("password=hun,ter;2", "password=***");
  cleaned("{\"db_password\": \"a, b\", \"user\": \"u\"}", "{\"db_password\": \"***\", \"user\": \"u\"}");
  cleaned("{\\\"token\\\": \\\"a\\\"}", "{\\\"token\\\": \\\"***\"}");
  cleaned("AWS_SECRET_ACCESS_KEY=a/b+c credentials: x", "AWS_SECRET_ACCESS_KEY=*** credentials: ***");
  cleaned("argv: ['--password', 'x']", "argv: ['--password', '***']");
  for (const char* line : {"password=hunter2", "--db-pass s3cr3t", "token: 'x y'"})
    EXPECT_EQ(without_secrets(without_secrets(line)), without_secrets(line));
}

TEST(GuardTell, WhatIsNotTakenIsCounted) {
  Server server;
  server.status = 500;
  Webhook hook(server.url(), 30);
  hook.post("{}");
  EXPECT_EQ(hook.finish(), 1u);
  EXPECT_EQ(hook.last_error(), "HTTP status 500");
  Webhook nobody("http://127.0.0.1:1/hook?key=secret", 5);
  nobody.post("{}");
  EXPECT_EQ(nobody.finish(), 1u);
  EXPECT_EQ(nobody.last_error().find("secret"), std::string::npos) << nobody.last_error();
}

TEST(GuardTell, MetricsOverHttpOnLoopbackAlone) {
  auto server = MetricsServer::open(":0");
  ASSERT_TRUE(server) << server.error().line();
  GuardState s;
  s.phase = GuardPhase::running;
  s.step = 12;
  GuardAccount a;
  a.restarts = 2;
  a.wall_s = 100;
  a.useful_s = 50;
  a.lost.push_back({.cause = "NCCL \"x\"", .failures = 2, .work_s = 3});
  a.lost.push_back({.cause = std::string(kSinceLastStep), .noticing_s = 1.5});
  (*server)->set(metrics_text("a job", s, a, 4));
  httplib::Client client("127.0.0.1", (*server)->port());
  const auto answer = client.Get("/metrics");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  for (const char* line :
       {"# TYPE orrery_guard_step gauge\norrery_guard_step{job=\"a job\"} 12\n",
        "orrery_guard_state{job=\"a job\",state=\"running\"} 1\n", "orrery_guard_restarts_total{job=\"a job\"} 2\n",
        "# TYPE orrery_guard_useful_seconds gauge\norrery_guard_useful_seconds{job=\"a job\"} 50\n",
        "orrery_guard_ettr_ratio{job=\"a job\"} 0.5\n",
        "orrery_guard_lost_seconds_total{job=\"a job\",cause=\"NCCL \\\"x\\\"\"} 3\n",
        "orrery_guard_since_last_step_seconds{job=\"a job\"} 1.5\n",
        "orrery_guard_webhook_unsent_total{job=\"a job\"} 4\n"})
    EXPECT_NE(answer->body.find(line), std::string::npos) << line << answer->body;
  EXPECT_EQ(client.Get("/")->status, 404);
  EXPECT_FALSE(MetricsServer::open("127.0.0.1:" + std::to_string((*server)->port()))) << "taken";
  EXPECT_FALSE(MetricsServer::open("nonsense"));
}

TEST(GuardTell, AClientThatDripsHoldsTheMetricsForALittleWhileOnly) {
  auto server = MetricsServer::open(":0");
  ASSERT_TRUE(server) << server.error().line();
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>((*server)->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  bool closed = false;
  for (int i = 0; i < 400 && !closed; ++i) {  // 20 s
    char byte = 'x';
    closed = ::send(fd, &byte, 1, MSG_NOSIGNAL) < 0 || ::recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ::close(fd);
  EXPECT_TRUE(closed);
}

}  // namespace
}  // namespace orrery
