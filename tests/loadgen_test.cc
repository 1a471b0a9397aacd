// loadgen against a server in this process that keeps a log of its own, and its reading of streams.
#include <httplib.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "loadgen/event_stream.h"
#include "loadgen/load_run.h"
#include "serving_helpers.h"

namespace orrery::test {
namespace {

std::vector<std::string> events_of(const std::vector<std::string>& pieces) {
  std::vector<std::string> out;
  EventStream s([&](std::string_view data) { out.emplace_back(data); });
  for (const std::string& p : pieces) s.feed(p);
  s.finish();
  return out;
}

TEST(EventStreams, AreTheSameWhereverTheyAreCut) {
  const std::string text =
      ": a comment\r\ndata: {\"a\": 1}\r\n\r\nevent: x\nid: 7\ndata:one\ndata: two\n\n\ndata: [DONE]\r\rdata: last";
  const std::vector<std::string> want = {"{\"a\": 1}", "one\ntwo", "[DONE]", "last"};
  EXPECT_EQ(events_of({text}), want);
  for (std::size_t cut = 1; cut < text.size(); ++cut)
    ASSERT_EQ(events_of({text.substr(0, cut), text.substr(cut)}), want) << cut;
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(events_of(bytes), want);
}

TEST(EventStreams, LinesWithoutEndAreDroppedAndCounted) {
  int events = 0;
  EventStream s([&](std::string_view) { ++events; });
  const std::string piece(1 << 20, 'x');
  for (int k = 0; k < 8; ++k) s.feed("data: " + piece);
  s.feed("\n\ndata: a\n\n");
  EXPECT_EQ(events, 1);
  EXPECT_EQ(s.dropped_lines(), 1u);
}

TEST(CompletionChunks, OfBothEndpoints) {
  EXPECT_TRUE(read_chunk("[DONE]").done);
  EXPECT_TRUE(read_chunk(R"({"choices":[{"text":" a"}]})").text);
  EXPECT_FALSE(read_chunk(R"({"choices":[{"text":""}]})").text);
  EXPECT_TRUE(read_chunk(R"({"choices":[{"delta":{"content":"a"}}]})").text);
  EXPECT_FALSE(read_chunk(R"({"choices":[{"delta":{"role":"assistant"}}]})").text);
  EXPECT_TRUE(read_chunk(R"({"choices":[{"delta":{},"finish_reason":"length"}]})").finished);
  const CompletionChunk usage = read_chunk(R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}})");
  EXPECT_EQ(usage.prompt_tokens, 5);
  EXPECT_EQ(usage.completion_tokens, 7);
  EXPECT_EQ(read_chunk(R"({"error":{"message":"too long","code":400}})").error, "too long");
  EXPECT_EQ(read_chunk(R"({"error":"busy"})").error, "busy");
  for (const char* text : {"", "x", "[]", "7", "\"a\""}) EXPECT_FALSE(read_chunk(text).error.empty()) << text;
  for (const char* text : {"{}", R"({"choices":3})", R"({"choices":[3]})", R"({"choices":[{"delta":7}]})"})
    EXPECT_TRUE(read_chunk(text).error.empty()) << text;
}

TEST(Endpoints, OfUrls) {
  EXPECT_EQ(*endpoint_of("http://h:1", false), "http://h:1/v1/completions");
  EXPECT_EQ(*endpoint_of("http://h:1/", true), "http://h:1/v1/chat/completions");
  EXPECT_EQ(*endpoint_of("https://h/v1", true), "https://h/v1/chat/completions");
  EXPECT_EQ(*endpoint_of("http://h/api/completions", false), "http://h/api/completions");
  EXPECT_FALSE(endpoint_of("h:1", false));
  for (const char* url : {"http://", "http:///v1", "http://:8000"}) EXPECT_FALSE(endpoint_of(url, false)) << url;
}

// Tells `max_tokens` tokens, one an event, some time apart; keeps when it did.
class Server {
 public:
  struct Entry {
    std::chrono::steady_clock::time_point got, first, last;
    std::int64_t tokens = 0;
    std::string body;
  };

  explicit Server(std::chrono::microseconds between = std::chrono::microseconds(2'000)) : between_(between) {
    server_.Get("/v1/models", [](const httplib::Request&, httplib::Response& r) {
      r.set_content(R"({"data": [{"id": "made-up"}]})", "application/json");
    });
    const auto complete = [this](const httplib::Request& request, httplib::Response& response) {
      const auto got = std::chrono::steady_clock::now();
      const nlohmann::json body = nlohmann::json::parse(request.body, nullptr, false);
      const std::int64_t tokens = body.value("max_tokens", 1);
      if (tokens == 13) {
        response.status = 503;
        response.set_content("{\"error\": \"no luck\"}", "application/json");
        return;
      }
      if (tokens == 15) {  // more than can be, and text after the end
        response.set_content(
            "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":99999999,\"completion_tokens\":1000000}}\n\n"
            "data: [DONE]\n\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\n",
            "text/event-stream");
        return;
      }
      if (tokens == 16) {
        response.set_content("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: " +
                                 std::string(EventStream::kMostLine + 1, 'x') + "\n\ndata: [DONE]\n\n",
                             "text/event-stream");
        return;
      }
      const bool chat = request.path.find("chat") != std::string::npos;
      std::size_t place = 0;
      {
        const std::lock_guard lock(mutex_);
        place = log_.size();
        log_.push_back({got, got, got, tokens, request.body});
      }
      response.set_chunked_content_provider(
          "text/event-stream", [this, tokens, chat, place](std::size_t, httplib::DataSink& sink) {
            for (std::int64_t k = 0; k < tokens; ++k) {
              std::this_thread::sleep_for(between_);
              if (tokens == 14 && k == 2) return false;  // hangs up
              const std::string piece = chat ? "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
                                             : "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
              {
                const std::lock_guard lock(mutex_);
                log_[place].last = std::chrono::steady_clock::now();
                if (k == 0) log_[place].first = log_[place].last;
              }
              if (!sink.write(piece.data(), piece.size())) return false;
            }
            const std::string end = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":21,\"completion_tokens\":" +
                                    std::to_string(tokens) + "}}\n\ndata: [DONE]\n\n";
            sink.write(end.data(), end.size());
            sink.done();
            return true;
          });
    };
    server_.set_tcp_nodelay(true);
    server_.new_task_queue = [] { return new httplib::ThreadPool(64); };
    server_.Post("/v1/completions", complete);
    server_.Post("/v1/chat/completions", complete);
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~Server() {
    server_.stop();
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<Entry> log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

 private:
  std::chrono::microseconds between_;
  httplib::Server server_;
  std::thread thread_;
  int port_ = 0;
  std::mutex mutex_;
  std::vector<Entry> log_;
};

Workload even(std::int64_t n, double rate, double output) {
  WorkloadAsked a;
  a.requests = n, a.rate = rate, a.cv = 0;
  a.input.mean = 20, a.output.mean = output;
  return made_workload(a);
}
LoadTarget target_of(const Server& server, bool chat = false) {
  LoadTarget t;
  t.url = *endpoint_of(server.url(), chat);
  t.model = "made-up";
  t.chat = chat;
  return t;
}
const auto kNobody = [](std::uint64_t) {};

TEST(LoadRuns, WhatUsersWaitForIsWhatTheServerTook) {
  Server server;
  EXPECT_EQ(*first_model(*endpoint_of(server.url(), false), {}), "made-up");
  std::uint64_t told = 0;
  const auto result = send_load(target_of(server), even(40, 100, 10), [&](std::uint64_t done) { told = done; });
  ASSERT_TRUE(result);
  EXPECT_EQ(told, 40u);
  ASSERT_EQ(result->requests.size(), 40u);
  std::vector<double> server_ttft, client_ttft;
  for (const Server::Entry& e : server.log()) {
    server_ttft.push_back(std::chrono::duration<double, std::nano>(e.first - e.got).count());
    EXPECT_EQ(e.tokens, 10);
    EXPECT_NE(e.body.find("\"stream\":true"), std::string::npos);
  }
  for (const LoadRequest& r : result->requests) {
    EXPECT_TRUE(r.error.empty()) << r.error;
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.record.input, 21);
    EXPECT_EQ(r.record.output, 10);
    EXPECT_EQ(r.chunks, 10);
    EXPECT_GE(r.sent, r.record.arrival);
    client_ttft.push_back(r.record.first_token - r.record.arrival);
  }
  // The client sees a token after the server has written it, never before.
  std::sort(server_ttft.begin(), server_ttft.end());
  std::sort(client_ttft.begin(), client_ttft.end());
  for (std::size_t k = 0; k < 40; ++k) EXPECT_GE(client_ttft[k], 0.99 * server_ttft[k]);
  EXPECT_EQ(result->itl.count(), 40 * 9);
  EXPECT_GE(result->itl.mean(), 0.9 * 2 * kMs);
  EXPECT_GE(result->requests.back().record.end, 390 * kMs);  // the last one was due after 390 ms
}

TEST(LoadRuns, ChatAndTokenNumbers) {
  Server server;
  const auto chat = send_load(target_of(server, true), even(3, 0, 4), kNobody);
  ASSERT_TRUE(chat);
  for (const LoadRequest& r : chat->requests) EXPECT_EQ(r.record.output, 4) << r.error;
  LoadTarget t = target_of(server);
  t.token_ids = true;
  ASSERT_TRUE(send_load(t, even(1, 0, 4), kNobody));
  const nlohmann::json body = nlohmann::json::parse(server.log().back().body);
  EXPECT_EQ(body["prompt"].size(), 20u);
  EXPECT_EQ(body["max_tokens"], 4);
  EXPECT_EQ(body["ignore_eos"], true);
}

TEST(LoadRuns, PromptsDifferButForWhatTheyShare) {
  Server server;
  Workload w = even(3, 0, 2);
  w.prefix_piece = 4;
  w.prefixes = {1, 2};
  for (Request& r : w.requests) r.prefixes = 2;
  ASSERT_TRUE(send_load(target_of(server), w, kNobody));
  std::vector<std::string> prompts;
  for (const Server::Entry& e : server.log()) prompts.push_back(nlohmann::json::parse(e.body)["prompt"]);
  ASSERT_EQ(prompts.size(), 3u);
  const auto words = [](const std::string& text) { return std::count(text.begin(), text.end(), ' ') + 1; };
  for (const std::string& p : prompts) EXPECT_EQ(words(p), 20);
  std::size_t alike = 0;
  while (prompts[0][alike] == prompts[1][alike]) ++alike;
  EXPECT_GE(words(prompts[0].substr(0, alike)), 8);
  EXPECT_NE(prompts[0], prompts[1]);
}

TEST(LoadRuns, IdenticalPromptsAreTheSameText) {
  Server server;
  Workload w = even(3, 0, 2);
  w.alike = true;
  ASSERT_TRUE(send_load(target_of(server), w, kNobody));
  std::vector<std::string> prompts;
  for (const Server::Entry& e : server.log()) prompts.push_back(nlohmann::json::parse(e.body)["prompt"]);
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0], prompts[1]);
  EXPECT_EQ(prompts[0], prompts[2]);
}

TEST(LoadRuns, CountsThatCannotBeAndTextAfterTheEndAreNotTaken) {
  Server server;
  const auto result = send_load(target_of(server), even(1, 0, 15), kNobody);
  ASSERT_TRUE(result);
  const LoadRequest& r = result->requests[0];
  EXPECT_TRUE(r.error.empty()) << r.error;
  EXPECT_TRUE(r.implausible);
  EXPECT_EQ(r.chunks, 1);
  EXPECT_EQ(r.record.output, 1);
  EXPECT_EQ(r.record.input, 20);
}

TEST(LoadRuns, EventsThatAreTooLongAreCounted) {
  Server server;
  const auto result = send_load(target_of(server), even(2, 0, 16), kNobody);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->dropped_events, 2u);
  EXPECT_EQ(result->requests[0].record.output, 1);
}

// As many as the server has threads: each holds a connection for as long as it is kept.
TEST(LoadRuns, DozensAtOnceAllArrive) {
  Server server(std::chrono::microseconds(100));
  const auto result = send_load(target_of(server), even(60, 0, 3), kNobody);
  ASSERT_TRUE(result);
  for (const LoadRequest& r : result->requests) {
    EXPECT_TRUE(r.error.empty()) << r.error;
    EXPECT_EQ(r.chunks, 3);
  }
  EXPECT_EQ(server.log().size(), 60u);
}

// In a process of its own: a hard limit can not be raised again. Nobody takes the connections, so they stay open.
void send_with_few_handles() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  (void)::bind(listener, reinterpret_cast<const sockaddr*>(&address), size);
  (void)::listen(listener, 64);
  (void)::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const rlimit few{64, 64};
  (void)::setrlimit(RLIMIT_NOFILE, &few);
  int last = 0;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) last = fd;
  for (int k = 0; k < 6; ++k) ::close(last - k);
  LoadTarget t;
  t.url = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/v1/completions";
  t.timeout_s = 0.3;
  const auto result = send_load(t, even(20, 0, 3), kNobody);
  if (!result) std::_Exit(2);
  const bool said = std::any_of(result->requests.begin(), result->requests.end(), [](const LoadRequest& r) {
    return r.error.find("out of file handles (64") != std::string::npos;
  });
  std::_Exit(said ? 0 : 1);
}
TEST(LoadRunsDeathTest, OutOfFileHandlesIsNotTheServersFault) {
  EXPECT_EXIT(send_with_few_handles(), ::testing::ExitedWithCode(0), "");
}

TEST(LoadRuns, OnlySoManyInFlight) {
  Server server;
  LoadTarget t = target_of(server);
  t.most_in_flight = 2;
  const auto result = send_load(t, even(8, 0, 3), kNobody);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->most_in_flight, 2);
  for (const LoadRequest& r : result->requests) EXPECT_TRUE(r.error.empty());
}

TEST(LoadRuns, FailuresAreKeptApart) {
  Server server;
  Workload w = even(4, 0, 3);
  w.requests[1].output = 13;  // 503
  w.requests[2].output = 14;  // hangs up after two tokens
  const auto result = send_load(target_of(server), w, kNobody);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->requests[1].status, 503);
  EXPECT_NE(result->requests[1].error.find("no luck"), std::string::npos);
  EXPECT_LT(result->requests[1].record.end, 0);
  EXPECT_FALSE(result->requests[2].error.empty());
  EXPECT_LT(result->requests[2].record.end, 0);
  EXPECT_TRUE(result->requests[0].error.empty());
  EXPECT_TRUE(result->requests[3].error.empty());
}

TEST(LoadRuns, NobodyThere) {
  LoadTarget t;
  t.url = "http://127.0.0.1:1/v1/completions";
  const auto result = send_load(t, even(2, 0, 3), kNobody);
  ASSERT_TRUE(result);
  for (const LoadRequest& r : result->requests) EXPECT_FALSE(r.error.empty());
  EXPECT_FALSE(first_model(t.url, {}));
}

TEST(LoadRuns, ALateListOfModelsIsGivenUp) {
  httplib::Server server;
  server.Get("/v1/models", [](const httplib::Request&, httplib::Response& r) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    r.set_content(R"({"data": [{"id": "made-up"}]})", "application/json");
  });
  const int port = server.bind_to_any_port("127.0.0.1");
  std::thread thread([&] { server.listen_after_bind(); });
  while (!server.is_running()) std::this_thread::yield();
  const auto model = first_model("http://127.0.0.1:" + std::to_string(port) + "/v1/completions", {}, 0.1);
  server.stop();
  thread.join();
  EXPECT_FALSE(model);
}

TEST(LoadRuns, ALateAnswerIsGivenUp) {
  Server server(std::chrono::milliseconds(300));
  LoadTarget t = target_of(server);
  t.timeout_s = 0.2;
  const auto result = send_load(t, even(1, 0, 3), kNobody);
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->requests[0].error.empty());
}

}  // namespace
}  // namespace orrery::test
