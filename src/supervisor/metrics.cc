#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "supervisor/tell.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kClient_ms = 2000;  // that a client may take, in all
constexpr int kStop_ms = 200;     // between looks whether the server is to end
constexpr std::size_t kLongestRequest = 8192;

std::string label(std::string_view text) {  // as Prometheus wants it
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

class Text {
 public:
  explicit Text(const std::string& job) : job_(label(job)) {}
  void metric(const char* name, const char* type, const char* help) {
    name_ = name;
    out_ += fmt::format("# HELP orrery_guard_{} {}\n# TYPE orrery_guard_{} {}\n", name, help, name, type);
  }
  void value(double v, std::string_view more = {}) {
    out_ += fmt::format("orrery_guard_{}{{job=\"{}\"{}}} {}\n", name_, job_, more, v);
  }
  void one(const char* name, const char* type, const char* help, double v) {
    metric(name, type, help);
    value(v);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string job_, out_;
  const char* name_ = "";
};

}  // namespace

std::string metrics_text(const std::string& job, const GuardState& s, const GuardAccount& a, std::uint64_t unsent) {
  Text t(job);
  t.metric("state", "gauge", "1 for the state that the job is in");
  for (int p = 0; p <= static_cast<int>(GuardPhase::stopped); ++p)
    t.value(s.phase == static_cast<GuardPhase>(p) ? 1 : 0,
            fmt::format(",state=\"{}\"", name_of(static_cast<GuardPhase>(p))));
  t.one("attempt", "gauge", "number of the attempt at hand", static_cast<double>(s.attempt));
  t.one("step", "gauge", "iterations done by the attempt at hand; -1 = none yet", static_cast<double>(s.step));
  t.one("saved_step", "gauge", "iteration of the newest complete checkpoint; -1 = none",
        static_cast<double>(s.saved_step));
  t.one("restarts_total", "counter", "attempts started again", static_cast<double>(a.restarts));
  t.one("excluded_nodes", "gauge", "nodes left out", static_cast<double>(s.excluded.size()));
  t.one("goodput_ratio", "gauge", "useful share of the time in which an attempt ran", a.goodput());
  t.one("ettr_ratio", "gauge", "useful share of all time", a.ettr());
  t.one("useful_seconds", "gauge", "training that the state rests on; less when it has to be done again", a.useful_s);
  t.metric("lost_seconds_total", "counter", "time lost, by cause");
  double since = 0;
  for (const LostTime& l : a.lost)
    if (l.cause == kSinceLastStep) {
      since = l.all_s();
    } else {
      t.value(l.all_s(), fmt::format(",cause=\"{}\"", label(l.cause)));
    }
  t.metric("failures_total", "counter", "failures, by cause");
  for (const LostTime& l : a.lost)
    if (l.cause != kSinceLastStep)
      t.value(static_cast<double>(l.failures), fmt::format(",cause=\"{}\"", label(l.cause)));
  t.one("since_last_step_seconds", "gauge", "of the attempt at hand, nothing being wrong yet", since);
  t.one("saves_total", "counter", "saves seen", static_cast<double>(a.saves));
  t.one("saving_seconds_total", "counter", "training stood still for saves", a.saving_s);
  t.one("webhook_unsent_total", "counter", "decisions that the webhook did not take", static_cast<double>(unsent));
  return t.take();
}

struct MetricsServer::Impl {
  int fd = -1;
  int port = 0;
  std::thread thread;
  std::atomic<bool> stop{false};
  mutable std::mutex mutex;
  std::string text;

  void serve() {
    while (!stop) {
      pollfd p{fd, POLLIN, 0};
      if (::poll(&p, 1, kStop_ms) <= 0) continue;
      const int client = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      answer(client, Clock::now() + std::chrono::milliseconds(kClient_ms));
      ::close(client);
    }
  }

  // Until the client can be read from or written to; false: its time is over, or the server's.
  bool ready(int client, short what, Clock::time_point end) const {
    while (!stop) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
      if (left <= 0) return false;
      pollfd p{client, what, 0};
      if (::poll(&p, 1, static_cast<int>(std::min<std::int64_t>(left, kStop_ms))) > 0) return true;
    }
    return false;
  }

  void answer(int client, Clock::time_point end) const {
    std::string request;
    char part[1024];
    while (request.find("\r\n\r\n") == std::string::npos && request.size() < kLongestRequest) {
      if (!ready(client, POLLIN, end)) return;
      const auto got = ::recv(client, part, sizeof part, MSG_DONTWAIT);
      if (got <= 0) return;
      request.append(part, static_cast<std::size_t>(got));
    }
    const bool known = request.rfind("GET /metrics", 0) == 0 && (request[12] == ' ' || request[12] == '?');
    std::string body = "only GET /metrics is answered\n";
    if (known) {
      const std::lock_guard lock(mutex);
      body = text;
    }
    const std::string all = fmt::format(
        "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n"
        "Connection: close\r\n\r\n{}",
        known ? "200 OK" : "404 Not Found", body.size(), body);
    for (std::string_view left = all; !left.empty() && ready(client, POLLOUT, end);) {
      const auto sent = ::send(client, left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) return;
      left.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MetricsServer::~MetricsServer() {
  impl_->stop = true;
  if (impl_->thread.joinable()) impl_->thread.join();
  if (impl_->fd >= 0) ::close(impl_->fd);
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::open(const std::string& where) {
  const std::size_t colon = where.rfind(':');
  if (colon == std::string::npos || colon + 1 == where.size())
    return fail("not ADDRESS:PORT: " + where, "--metrics", "for example 127.0.0.1:9464");
  std::string host = where.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty()) host = "127.0.0.1";
  std::uint16_t port = 0;  // the system takes larger ones, and listens on another
  const char* const digits = where.data() + colon + 1;
  const auto [end, error_of_port] = std::from_chars(digits, where.data() + where.size(), port);
  if (error_of_port != std::errc{} || end != where.data() + where.size())
    return fail("not a port from 0 to 65535: " + where.substr(colon + 1), "--metrics", "for example 127.0.0.1:9464");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), where.c_str() + colon + 1, &hints, &found) != 0)
    return fail("not an address and a port: " + where, "--metrics", "for example 127.0.0.1:9464");
  auto impl = std::make_unique<Impl>();
  impl->fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(impl->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool good =
      impl->fd >= 0 && ::bind(impl->fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(impl->fd, 8) == 0;
  const int error = errno;
  ::freeaddrinfo(found);
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(impl)));
  if (!good) return fail(std::string("cannot be listened on: ") + std::strerror(error), where, "another port");
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(server->impl_->fd, reinterpret_cast<sockaddr*>(&bound), &size);
  server->impl_->port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                                          : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  server->impl_->thread = std::thread([i = server->impl_.get()] { i->serve(); });
  return server;
}

void MetricsServer::set(std::string text) {
  const std::lock_guard lock(impl_->mutex);
  impl_->text = std::move(text);
}

int MetricsServer::port() const { return impl_->port; }

}  // namespace orrery
