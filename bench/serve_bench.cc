// How quick is the serving simulation, and how much of its own does loadgen add to what it measures?
//   1. 10,000 requests, several engines and loads: seconds on one core (bound: 1 s), against one step at a time, whose
//      answer must be the same within 1 %
//   2. 500 requests a second for four seconds to a server in this process, over loopback, that keeps a log: client's
//   time
//      to the first token less the server's own, lateness of sending, CPU of the client's thread (bound: 1 ms a
//      request)
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "facts/library.h"
#include "loadgen/load_run.h"
#include "serving/memory.h"
#include "serving/summary.h"

namespace {

using namespace orrery;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

[[noreturn]] void wrong(const std::string& what) {
  fmt::print(stderr, "serve_bench: {}\n", what);
  std::exit(1);
}

// ---- 1 ----

void simulate_many(const char* model, const char* platform, const char* engine, double rate) {
  ServeJob job;
  job.model = *model_named_or_read(model);
  job.platform = *platform_named_or_read(platform);
  job.engine = *engine_named_or_read(engine);
  job.tp = job.platform.gpus_per_node;
  WorkloadAsked asked;
  asked.requests = 10'000, asked.rate = rate;
  asked.input = *read_length_distribution("lognormal:512,1,1,8000", "");
  asked.output = *read_length_distribution("lognormal:256,1,1,4000", "");
  const Workload w = made_workload(asked);
  const ServeMemory memory = memory_of(job);
  const auto once = [&](std::int64_t together, ServingFigures& out) {
    const Clock::time_point begin = Clock::now();
    const StepCosts costs(job);
    const Simulation s = simulate(costs, memory, w, {.most_steps_together = together});
    out = figures_of(s.requests, s.itl);
    if (out.completed + s.refused != asked.requests) wrong("requests were lost");
    return seconds_since(begin);
  };
  ServingFigures quick, slow;
  const double a = once(128, quick), b = once(1, slow);
  const double off = std::abs(quick.latency.mean / slow.latency.mean - 1);
  if (off > 0.01) wrong(fmt::format("{} {}: {:.2f} % off the single steps", model, engine, 100 * off));
  fmt::print(
      "{:14} {:10} {:9} {:>5}  {:6.3f} s ({})  one step at a time {:6.3f} s  {:5.2f} % off  {:.0f} output tokens/s\n",
      model, platform, engine, rate > 0 ? fmt::format("{:g}/s", rate) : "burst", a, a < 1 ? "within 1 s" : "ABOVE 1 s",
      b, 100 * off, quick.output_tokens_per_s);
}

// ---- 2: one thread, no more HTTP than this client speaks ----

struct Served {
  Clock::time_point got, first, last;
};

class Server {
 public:
  Server() {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(listener_, 1024) != 0)
      wrong("no server on loopback");
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    finish();
    for (const Connection& c : connections_) ::close(c.socket);
    ::close(listener_);
  }
  int port() const { return port_; }
  void finish() {  // what was being written is written
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::vector<Served> log;  // after finish()

 private:
  struct Connection {
    int socket;
    std::string in;
    int left = 0;  // tokens
    Clock::time_point due;
    Served served;
  };

  static void say(int socket, const std::string& text) {
    const std::string chunk = fmt::format("{:x}\r\n{}\r\n", text.size(), text);
    if (::send(socket, chunk.data(), chunk.size(), MSG_NOSIGNAL) < 0) return;
  }
  void serve() {
    while (!stop_) {
      std::vector<pollfd> polls{{listener_, POLLIN, 0}};
      for (const Connection& c : connections_) polls.push_back({c.socket, POLLIN, 0});
      ::poll(polls.data(), polls.size(), 1);
      if (polls[0].revents != 0) {
        const int s = ::accept(listener_, nullptr, nullptr);
        const int on = 1;
        ::setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (s >= 0) connections_.push_back({s, {}, 0, {}, {}});
      }
      for (std::size_t k = 0; k + 1 < polls.size(); ++k)
        if (polls[k + 1].revents != 0) take(connections_[k]);
      const Clock::time_point now = Clock::now();
      for (Connection& c : connections_)
        if (c.left > 0 && now >= c.due) tell(c);
    }
  }
  static void take(Connection& c) {
    char buffer[65536];
    const ssize_t n = ::recv(c.socket, buffer, sizeof buffer, 0);
    if (n <= 0) return;
    c.in.append(buffer, static_cast<std::size_t>(n));
    const std::size_t end = c.in.find("\r\n\r\n"), at = c.in.find("Content-Length: ");
    if (end == std::string::npos || at == std::string::npos) return;
    if (c.in.size() < end + 4 + std::strtoull(c.in.c_str() + at + 16, nullptr, 10)) return;
    c.in.clear();
    c.left = kTokens;
    c.served.got = Clock::now();
    c.due = c.served.got + std::chrono::milliseconds(5);
    const std::string head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    if (::send(c.socket, head.data(), head.size(), MSG_NOSIGNAL) < 0) return;
  }
  void tell(Connection& c) {
    c.served.last = Clock::now();
    if (c.left == kTokens) c.served.first = c.served.last;
    say(c.socket, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
    c.due = c.served.last + std::chrono::milliseconds(5);
    if (--c.left > 0) return;
    say(c.socket, "data: [DONE]\n\n");
    if (::send(c.socket, "0\r\n\r\n", 5, MSG_NOSIGNAL) < 0) return;
    log.push_back(c.served);
  }

  static constexpr int kTokens = 4;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
  std::vector<Connection> connections_;
};

void measure_loadgen() {
  Server server;
  WorkloadAsked asked;
  asked.requests = 2'000, asked.rate = 500, asked.cv = 0;
  asked.input.mean = 100, asked.output.mean = 4;
  LoadTarget target;
  target.url = fmt::format("http://127.0.0.1:{}/v1/completions", server.port());
  target.model = "bench";
  const auto result = send_load(target, made_workload(asked), [](std::uint64_t) {});
  if (!result) wrong(result.error().line());
  std::vector<double> client, own, whole, late;
  for (const LoadRequest& r : result->requests) {
    if (!r.error.empty()) wrong("a request failed: " + r.error);
    if (r.chunks != 4) wrong("tokens were lost");
    client.push_back((r.record.first_token - r.sent) / 1e6);
    whole.push_back((r.record.end - r.sent) / 1e6);
    late.push_back((r.sent - r.record.arrival) / 1e6);
  }
  server.finish();
  std::vector<double> served;
  for (const Served& s : server.log) {
    own.push_back(std::chrono::duration<double, std::milli>(s.first - s.got).count());
    served.push_back(std::chrono::duration<double, std::milli>(s.last - s.got).count());
  }
  if (served.size() != client.size()) wrong("the server's log has another number of requests");
  const Quantiles c = quantiles_of(client), o = quantiles_of(own), w = quantiles_of(whole), s = quantiles_of(served);
  const double cpu = 1e3 * result->client_cpu_s / static_cast<double>(client.size());
  fmt::print(
      "loadgen, 2,000 requests at 500/s: first token {:.3f} ms, in the server's log {:.3f} (p99 {:.3f}, {:.3f}); "
      "latency {:.3f}, {:.3f}\n",
      c.p50, o.p50, c.p99, o.p99, w.p50, s.p50);
  fmt::print(
      "  its own: {:.3f} ms of the first token, {:.3f} ms of the latency, sent late p50 {:.3f} p99 {:.3f} ms, CPU "
      "{:.3f} ms a request ({})\n",
      c.p50 - o.p50, w.p50 - s.p50, quantiles_of(late).p50, quantiles_of(late).p99, cpu,
      cpu < 1 && c.p50 - o.p50 < 1 ? "within 1 ms" : "ABOVE 1 ms");
}

}  // namespace

int main() {
  simulate_many("llama-3.1-8b", "1xH100", "vllm", 0);
  simulate_many("llama-3.1-8b", "1xH100", "vllm", 15);
  simulate_many("llama-3.1-8b", "1xH100", "vllm-v0", 1);
  simulate_many("llama-2-70b", "a800-8x", "tgi", 0);
  simulate_many("qwen3-30b-a3b", "4xH200", "sglang", 30);
  measure_loadgen();
}
