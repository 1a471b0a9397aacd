#include "supervisor/heartbeats.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace orrery {
namespace {

constexpr std::size_t kLongest = 512;                      // bytes of a heartbeat
constexpr int kDatagrams = 4096;                           // read at one look
constexpr std::int64_t kMostStep = 1'000'000'000'000'000;  // above it, it is none

std::string_view next_word(std::string_view& text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\n')) text.remove_prefix(1);
  const std::size_t end = text.find_first_of(" \n");
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(word.size());
  return word;
}

template <class T>
bool number(std::string_view word, T& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc{} && end == word.data() + word.size();
}

}  // namespace

bool read_beat(std::string_view line, bool with_rank, Beat& beat) {
  if (with_rank && (!number(next_word(line), beat.rank) || beat.rank < 0)) return false;
  if (!number(next_word(line), beat.step) || !number(next_word(line), beat.time)) return false;
  if (beat.step > kMostStep) return false;
  beat.phase = next_word(line);
  beat.node = next_word(line);
  return !beat.phase.empty();
}

Result<Heartbeats> Heartbeats::open(const std::string& directory, const std::string& socket) {
  Heartbeats h;
  h.directory_ = directory;
  if (!directory.empty() && ::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(std::string("cannot be made: ") + std::strerror(errno), directory, "another --heartbeat");
  if (socket.empty()) return h;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof address.sun_path) return fail("too long for the name of a socket", socket);
  std::memcpy(address.sun_path, socket.data(), socket.size());
  struct stat there {};
  if (::lstat(socket.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode)) return fail("is there and is no socket", socket, "another name");
    ::unlink(socket.c_str());
  }
  h.socket_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const mode_t before = ::umask(0177);
  const bool bound =
      h.socket_ >= 0 && ::bind(h.socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int error = errno;
  ::umask(before);
  if (!bound) return fail(std::string("cannot be made: ") + std::strerror(error), socket);
  h.socket_path_ = socket;
  return h;
}

Heartbeats::Heartbeats(Heartbeats&& other) noexcept
    : directory_(std::move(other.directory_)),
      socket_path_(std::exchange(other.socket_path_, {})),
      socket_(std::exchange(other.socket_, -1)),
      since_(other.since_),
      beats_(std::move(other.beats_)) {}

Heartbeats::~Heartbeats() {
  if (socket_ >= 0) ::close(socket_);
  if (!socket_path_.empty()) ::unlink(socket_path_.c_str());
}

void Heartbeats::begin_attempt(Ns now) {
  since_ = now;
  beats_.clear();
}

std::vector<Beat> Heartbeats::read() {
  char text[kLongest];
  if (socket_ >= 0) {
    for (int i = 0; i < kDatagrams; ++i) {
      const auto got = ::recv(socket_, text, sizeof text, 0);
      if (got < 0) break;
      Beat beat;
      if (read_beat({text, static_cast<std::size_t>(got)}, true, beat)) beats_[beat.rank] = beat;
    }
  }
  if (DIR* const dir = directory_.empty() ? nullptr : ::opendir(directory_.c_str())) {
    while (const dirent* entry = ::readdir(dir)) {
      const std::string_view name = entry->d_name;
      Beat beat;
      if (name.substr(0, 5) != "rank-" || !number(name.substr(5), beat.rank) || beat.rank < 0) continue;
      const int fd = ::openat(::dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
      if (fd < 0) continue;
      struct stat s {};
      const bool plain = ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
      const Ns changed = Ns{s.st_mtim.tv_sec} * 1'000'000'000 + s.st_mtim.tv_nsec;
      const auto got = plain && changed >= since_ ? ::read(fd, text, sizeof text) : 0;
      ::close(fd);
      if (got > 0 && read_beat({text, static_cast<std::size_t>(got)}, false, beat)) beats_[beat.rank] = beat;
    }
    ::closedir(dir);
  }
  std::vector<Beat> all;
  for (const auto& [rank, beat] : beats_) all.push_back(beat);
  return all;
}

}  // namespace orrery
