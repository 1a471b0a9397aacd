#include "supervisor/ring_worker.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/number_text.h"
#include "base/output.h"
#include "supervisor/ring.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostBytes = std::size_t{4} << 30;
constexpr std::size_t kMostMembers = 64;

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(by, i), text.size());
    parts.push_back(text.substr(i, end - i));
    i = end + 1;
  }
  return parts;
}

bool take_front(std::string_view& line, std::string_view front) {
  if (line.substr(0, front.size()) != front) return false;
  line.remove_prefix(front.size());
  return true;
}

// A line of standard input, without its newline; nothing at its end, at a line that has none, and when time is up.
std::optional<std::string> input_line(Clock::time_point end) {
  constexpr std::size_t kLongest = 1 << 16;
  std::string line;
  while (line.size() < kLongest) {
    pollfd p{STDIN_FILENO, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return std::nullopt;
    if (::poll(&p, 1, static_cast<int>(std::min<std::int64_t>(left, 1000))) <= 0) continue;
    char c = 0;
    const ssize_t n = ::read(STDIN_FILENO, &c, 1);  // what follows the line is the next one's
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    if (c == '\n') return line;
    line += c;
  }
  return std::nullopt;
}

// The whole token, before anything else, within a few seconds; what is wrong is closed, whoever it is.
int accept_with_token(int listener, const std::string& token, Clock::time_point end) {
  while (Clock::now() < end) {
    pollfd p[2] = {{listener, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    if (::poll(p, 2, 200) <= 0) continue;
    if (p[1].revents != 0) return -1;  // nothing is to be said to it now: its input has ended
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const timeval wait{2, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    std::string said(token.size(), '\0');
    const ssize_t n = ::recv(fd, said.data(), said.size(), MSG_WAITALL);
    unsigned differs = n == static_cast<ssize_t>(said.size()) ? 0 : 1;
    for (std::size_t i = 0; i < token.size(); ++i) differs |= static_cast<unsigned char>(said[i] ^ token[i]);
    if (differs == 0) return fd;
    ::close(fd);
  }
  return -1;
}

}  // namespace

std::optional<RingTask> read_ring_task(std::string_view line) {
  if (!take_front(line, kRingLine)) return std::nullopt;
  const auto words = split(line, ' ');
  RingTask t;
  std::int64_t bytes = 0;
  if (words.size() != 4 || words[0].size() != kRingToken || read_int(words[1], bytes) != NumberState::ok || bytes < 1 ||
      bytes > static_cast<std::int64_t>(kMostBytes) || read_double(words[2], t.seconds) != NumberState::ok ||
      t.seconds <= 0 || t.seconds > 1e6)
    return std::nullopt;
  t.token = std::string(words[0]);
  t.bytes = static_cast<std::size_t>(bytes);
  for (const std::string_view a : split(words[3], ',')) {
    if (a.empty()) return std::nullopt;
    t.addresses.emplace_back(a);
  }
  if (t.addresses.size() > kMostMembers) return std::nullopt;
  return t;
}

std::string to_line(const RingTask& task) {
  return fmt::format("{}{} {} {} {}\n", kRingLine, task.token, task.bytes, task.seconds,
                     fmt::join(task.addresses, ","));
}

std::optional<std::vector<int>> read_ring_ports(std::string_view line, std::size_t members) {
  if (!take_front(line, kRingLine) || !take_front(line, "go ")) return std::nullopt;
  std::vector<int> ports;
  for (const std::string_view text : split(line, ',')) {
    std::int64_t port = 0;
    if (read_int(text, port) != NumberState::ok || port < 1 || port > 65'535) return std::nullopt;
    ports.push_back(static_cast<int>(port));
  }
  if (ports.size() != members) return std::nullopt;
  return ports;
}

int run_ring_worker(std::size_t index) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto say = [&](const std::string& text) {
    return write_all(STDOUT_FILENO, std::string(kRingLine) + text + "\n", "standard output").has_value();
  };
  const auto failed = [&](const std::string& why) {
    (void)say(fmt::format("failed {} {}", index, why));
    return 1;
  };
  const auto first = input_line(Clock::now() + std::chrono::seconds(60));
  const auto task = read_ring_task(first.value_or(""));
  if (!task) return failed("is started by orrery checknodes");
  if (index >= task->addresses.size()) return failed("there are not so many members");
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(task->seconds));
  ::alarm(static_cast<unsigned>(task->seconds) + 2);  // whatever it waits for then
  const std::size_t members = task->addresses.size();
  auto own = address_of(task->addresses[index], true);
  const int listener = own ? listen_at(*own) : -1;
  if (listener < 0)
    return failed(fmt::format("this node has no address {}: {}", task->addresses[index], std::strerror(errno)));
  if (!say(fmt::format("at {} {}", index, own->port()))) return 1;
  const auto second = input_line(end);
  const auto ports = read_ring_ports(second.value_or(""), members);
  if (!ports) return failed("the others did not come");
  const std::size_t after = (index + 1) % members;
  auto next = address_of(task->addresses[after], true);
  if (!next) return failed(next.error().what);
  next->set_port((*ports)[after]);
  const int to = connect_from(*own, *next);
  if (to < 0 || ::send(to, task->token.data(), task->token.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kRingToken))
    return failed(fmt::format("cannot connect to {}: {}", task->addresses[after], std::strerror(errno)));
  const int from = accept_with_token(listener, task->token, end);
  if (from < 0) return failed("the member before it did not connect");
  ::close(listener);
  const double rate = gather_in_ring(to, from, index, members, task->bytes, STDIN_FILENO);
  if (rate <= 0) return failed("the all-gather failed");
  return say(fmt::format("rate {} {:.6f}", index, rate)) ? 0 : 1;
}

}  // namespace orrery
