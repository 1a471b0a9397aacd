#include "supervisor/ring.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

namespace orrery {
namespace {

constexpr double kGatherSeconds = 0.2;  // and then no other begins
constexpr int kMostGathers = 50;

// Sends one chunk and receives one, whichever goes on first; either may be empty.
bool exchange(int to, int from, const std::vector<char>& out, std::vector<char>& in, int watched) {
  std::size_t sent = 0, got = 0;
  while (sent < out.size() || got < in.size()) {
    pollfd p[3] = {{sent < out.size() ? to : -1, POLLOUT, 0},  // poll leaves out what is below 0
                   {got < in.size() ? from : -1, POLLIN, 0},
                   {watched, POLLIN, 0}};
    if (::poll(p, watched < 0 ? 2 : 3, -1) < 0 && errno != EINTR) return false;
    if (watched >= 0 && p[2].revents != 0) return false;
    if (sent < out.size() && p[0].revents != 0) {
      const ssize_t n = ::send(to, out.data() + sent, out.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (n > 0) sent += static_cast<std::size_t>(n);
    }
    if (got < in.size() && p[1].revents != 0) {
      const ssize_t n = ::recv(from, in.data() + got, in.size() - got, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (n > 0) got += static_cast<std::size_t>(n);
    }
  }
  return true;
}

std::vector<char> pattern(std::size_t member, std::size_t bytes) {
  std::vector<char> chunk(bytes);
  for (std::size_t i = 0; i < bytes; ++i) chunk[i] = static_cast<char>((i * 131 + i / 251 + member * 17) & 0xff);
  return chunk;
}

const sockaddr_in& v4(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
const sockaddr_in6& v6(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }

}  // namespace

int SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? v6(*this).sin6_port : v4(*this).sin_port);
}

void SocketAddress::set_port(int port) {
  const auto network = htons(static_cast<std::uint16_t>(port));
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = network;
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = network;
  }
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&v6(*this).sin6_addr);
  return ntohl(v4(*this).sin_addr.s_addr) >> 24 == 127;
}

Result<SocketAddress> address_of(const std::string& host, bool digits_only) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = digits_only ? AI_NUMERICHOST : 0;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  if (error != 0 || list == nullptr || (list->ai_family != AF_INET && list->ai_family != AF_INET6))
    return fail("no address of this host: " + host + (error != 0 ? std::string(": ") + ::gai_strerror(error) : ""));
  SocketAddress a;
  std::memcpy(&a.storage, list->ai_addr, list->ai_addrlen);
  a.size = list->ai_addrlen;
  return a;
}

std::string digits_of(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* digits = address.storage.ss_family == AF_INET6 ? static_cast<const void*>(&v6(address).sin6_addr)
                                                             : static_cast<const void*>(&v4(address).sin_addr);
  return ::inet_ntop(address.storage.ss_family, digits, text, sizeof text) != nullptr ? text : "?";
}

int listen_at(SocketAddress& address) {
  const int fd = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  address.set_port(0);
  if (::bind(fd, address.get(), address.size) == 0 && ::listen(fd, 8) == 0 &&
      ::getsockname(fd, address.get(), &address.size) == 0)
    return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

int connect_from(SocketAddress own, const SocketAddress& to) {
  const int fd = ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  own.set_port(0);
  if (::bind(fd, own.get(), own.size) == 0 && ::connect(fd, to.get(), to.size) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

double gather_in_ring(int to, int from, std::size_t index, std::size_t members, std::size_t bytes, int watched) {
  std::vector<char> out, in(bytes);
  std::vector<char> word(1), answer(1), none;
  if (!exchange(to, from, word, answer, watched)) return -1;  // all are there
  const std::size_t steps = std::max<std::size_t>(1, members - 1);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto since = [&](auto begin) { return std::chrono::duration<double>(now() - begin).count(); };
  const auto first = now();
  double least = 0;
  for (int gathers = 1;; ++gathers) {
    out = pattern(index, bytes);
    double seconds = 0;
    for (std::size_t step = 1; step <= steps; ++step) {
      const auto begin = now();
      if (!exchange(to, from, out, in, watched)) return -1;
      seconds += since(begin);
      if (in != pattern((index + members - step % members) % members, bytes)) return -1;
      std::swap(in, out);
    }
    least = gathers == 1 ? seconds : std::min(least, seconds);
    // The first member's word goes round: once more, or not.
    if (index == 0) {
      word[0] = gathers < kMostGathers && since(first) < kGatherSeconds;
      if (!exchange(to, from, word, answer, watched) || answer != word) return -1;
    } else if (!exchange(to, from, none, word, watched) || !exchange(to, from, word, none, watched)) {
      return -1;
    }
    if (word[0] == 0) break;
  }
  return static_cast<double>(steps * bytes) / 1e9 / std::max(least, 1e-9);
}

}  // namespace orrery
