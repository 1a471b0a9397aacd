#include "ring.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;

std::string reason(int code) { return std::error_code(code, std::generic_category()).message(); }

[[noreturn]] void fail(const std::string& text) { throw CommunicationError(text); }

sockaddr_in resolve(const Address& a) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (const int code = ::getaddrinfo(a.host.c_str(), nullptr, &hints, &found); code != 0) {
    fail(fmt::format("cannot find host {}: {}", a.host, ::gai_strerror(code)));
  }
  sockaddr_in out{};
  std::memcpy(&out, found->ai_addr, sizeof out);
  ::freeaddrinfo(found);
  out.sin_port = htons(a.port);
  return out;
}

void make_ready(int fd) {
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
}

}  // namespace

int listen_at(Address& address) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);  // a restart takes the port of the run before
  sockaddr_in a = resolve(address);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0 || ::listen(fd, 8) != 0) {
    fail(fmt::format("cannot listen at {}:{}: {}", address.host, address.port, reason(errno)));
  }
  socklen_t length = sizeof a;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &length);
  address.port = ntohs(a.sin_port);
  return fd;
}

Ring::Ring(int rank, int listening, const std::vector<Address>& addresses, double timeout_s)
    : rank_(rank), world_(static_cast<int>(addresses.size())), timeout_s_(timeout_s) {
  if (world_ == 1) {
    ::close(listening);
    return;
  }
  const auto deadline = Clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1e3));
  const int to = (rank + 1) % world_;
  const Address& peer = addresses[static_cast<std::size_t>(to)];
  sockaddr_in a = resolve(peer);
  for (;;) {  // it may not listen yet
    next_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(next_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0) break;
    const int code = errno;
    ::close(next_);
    if (Clock::now() > deadline) fail(fmt::format("rank {}: cannot connect to rank {}: {}", rank, to, reason(code)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const std::uint32_t hello[2] = {0x4f525259, static_cast<std::uint32_t>(rank)};
  if (::send(next_, hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) fail("cannot greet the next rank");
  const int from = (rank + world_ - 1) % world_;
  while (previous_ < 0) {  // strangers and other ranks are turned away
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd p{listening, POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) <= 0) {
      fail(fmt::format("rank {}: rank {} did not connect within {} s", rank, from, timeout_s));
    }
    const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const timeval patience{5, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    std::uint32_t got[2] = {};
    const bool good = ::recv(fd, got, sizeof got, MSG_WAITALL) == sizeof got && got[0] == hello[0] &&
                      got[1] == static_cast<std::uint32_t>(from);
    if (good) previous_ = fd;
    if (!good) ::close(fd);
  }
  ::close(listening);
  make_ready(next_);
  make_ready(previous_);
}

Ring::~Ring() {
  if (next_ >= 0) ::close(next_);
  if (previous_ >= 0) ::close(previous_);
}

std::pair<std::size_t, std::size_t> Ring::share(std::size_t n, int r) const {
  const auto w = static_cast<std::size_t>(world_), k = static_cast<std::size_t>(r);
  return {n * k / w, n * (k + 1) / w};
}

void Ring::exchange(const char* operation, const void* out, std::size_t out_bytes, void* in, std::size_t in_bytes) {
  const auto start = Clock::now();
  const auto* send_at = static_cast<const char*>(out);
  auto* receive_at = static_cast<char*>(in);
  const int to = (rank_ + 1) % world_, from = (rank_ + world_ - 1) % world_;
  while (out_bytes > 0 || in_bytes > 0) {
    pollfd p[2] = {{in_bytes > 0 ? previous_ : -1, POLLIN, 0}, {out_bytes > 0 ? next_ : -1, POLLOUT, 0}};
    const auto passed = [&] {
      return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
    };
    const auto limit = static_cast<std::int64_t>(timeout_s_ * 1e3);
    const auto left = limit - passed();
    const int ready = left <= 0 ? 0 : ::poll(p, 2, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {  // as torch's watchdog says it
      fail(
          fmt::format("[Rank {}] Watchdog caught collective operation timeout: Work(SeqNum={}, OpType={}, "
                      "Timeout(ms)={}) ran for {} milliseconds before timing out.",
                      rank_, operations_, operation, limit, passed()));
    }
    if (p[0].revents != 0) {
      const ssize_t n = ::recv(previous_, receive_at, in_bytes, 0);
      if (n == 0) fail(fmt::format("{}: Connection closed by peer: rank {}", operation, from));
      if (n < 0 && errno != EAGAIN && errno != EINTR) {
        fail(fmt::format("{}: {} (rank {})", operation, reason(errno), from));
      }
      if (n > 0) {
        receive_at += n;
        in_bytes -= static_cast<std::size_t>(n);
      }
    }
    if (p[1].revents != 0) {
      const ssize_t n = ::send(next_, send_at, out_bytes, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) {
        fail(fmt::format("{}: {} (rank {})", operation, reason(errno), to));
      }
      if (n > 0) {
        send_at += n;
        out_bytes -= static_cast<std::size_t>(n);
      }
    }
  }
}

// world - 1 turns; in each every rank sends one share on and merges the one before it.
template <class T, class Merge>
void Ring::pass_round(const char* operation, std::span<T> values, int first_sent, Merge&& merge) {
  std::vector<T> incoming;
  for (int turn = 0; turn < world_ - 1; ++turn) {
    const auto [out, out_end] = share(values.size(), ((first_sent - turn) % world_ + world_) % world_);
    const auto [in, in_end] = share(values.size(), ((first_sent - turn - 1) % world_ + world_) % world_);
    incoming.resize(in_end - in);
    exchange(operation, values.data() + out, (out_end - out) * sizeof(T), incoming.data(), incoming.size() * sizeof(T));
    for (std::size_t i = 0; i < incoming.size(); ++i) merge(values[in + i], incoming[i]);
  }
}

void Ring::all_reduce(std::span<std::int64_t> values) {
  ++operations_;
  pass_round("ALLREDUCE", values, rank_, [](std::int64_t& mine, std::int64_t theirs) {
    mine = static_cast<std::int64_t>(static_cast<std::uint64_t>(mine) + static_cast<std::uint64_t>(theirs));
  });
  pass_round("ALLREDUCE", values, rank_ + 1, [](std::int64_t& mine, std::int64_t theirs) { mine = theirs; });
}

void Ring::all_gather(std::span<float> values) {
  ++operations_;
  pass_round("ALLGATHER", values, rank_, [](float& mine, float theirs) { mine = theirs; });
}

void Ring::broadcast(std::string& text) {
  ++operations_;
  if (world_ == 1) return;
  std::uint64_t length = text.size();
  if (rank_ != 0) {
    exchange("BROADCAST", nullptr, 0, &length, sizeof length);
    if (length > (1u << 20)) fail("BROADCAST: a length that cannot be");
    text.resize(length);
    exchange("BROADCAST", nullptr, 0, text.data(), length);
  }
  if (rank_ != world_ - 1) {
    exchange("BROADCAST", &length, sizeof length, nullptr, 0);
    exchange("BROADCAST", text.data(), length, nullptr, 0);
  }
}

}  // namespace trainer
