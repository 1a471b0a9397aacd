#include "supervisor/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/byte_source.h"
#include "base/output.h"
#include "checkpoint/manifest.h"
#include "supervisor/decide.h"
#include "supervisor/guard_json.h"

namespace orrery {
namespace {

constexpr std::size_t kHead = sizeof("{\"crc\":\"00000000\",") - 1;

std::string why() { return std::strerror(errno); }

std::string line_of(std::uint64_t seq, const GuardEvent& event, const Decision& decision) {
  nlohmann::json record{{"event", to_json_value(event)}};
  if (!decision.kind.empty() || !decision.actions.empty()) record["decision"] = to_json_value(decision);
  // Texts come from logs: bytes that are not UTF-8 are replaced.
  const std::string rest = fmt::format("\"seq\":{},\"record\":{}}}", seq,
                                       record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return fmt::format("{{\"crc\":\"{:08x}\",{}\n", ckpt::crc32c(rest.data(), rest.size()), rest);
}

// "" = as it was written.
std::string take_line(std::string_view line, std::uint64_t seq, std::vector<JournalEntry>& entries) {
  if (line.size() <= kHead || line.substr(0, 8) != "{\"crc\":\"") return "not a line of a journal";
  const std::string_view rest = line.substr(kHead);
  if (fmt::format("{:08x}", ckpt::crc32c(rest.data(), rest.size())) != line.substr(8, 8)) return "checksum differs";
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded() || !json.contains("record") || json.value("seq", std::uint64_t{0}) != seq)
    return "a line is missing or comes twice";
  const auto& record = json["record"];
  if (!record.contains("event")) return "no event";
  auto event = event_of(record["event"]);
  if (!event) return event.error().what;
  JournalEntry entry;
  entry.event = std::move(*event);
  if (record.contains("decision")) {
    const auto& d = record["decision"];
    entry.kind = d.value("kind", "");
    entry.text = d.value("text", "");
    entry.evidence = d.value("evidence", std::vector<std::string>());
  }
  entries.push_back(std::move(entry));
  return "";
}

}  // namespace

Result<JournalRead> read_journal(const std::string& path) {
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return JournalRead{};
  const auto text = read_at_most(path, SIZE_MAX);
  if (!text) return tl::unexpected(text.error());
  return parse_journal(*text, path);
}

Result<JournalRead> parse_journal(std::string_view text, const std::string& path) {
  JournalRead out;
  std::uint64_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string_view line = text.substr(at, end == std::string_view::npos ? end : end - at);
    ++number;
    const bool last = end == std::string_view::npos || end + 1 == text.size();
    if (end == std::string_view::npos || (last && line.find('\0') != std::string_view::npos)) {
      out.torn = true;
      break;
    }
    if (const std::string problem = take_line(line, number, out.entries); !problem.empty())
      return fail(problem, fmt::format("{}:{}", path, number),
                  "the journal was altered: see that nothing of the job runs, then use another state directory");
    at = end + 1;
    out.good_bytes = at;
  }
  return out;
}

GuardState replay(const std::vector<JournalEntry>& entries) {
  GuardState state;
  for (const JournalEntry& e : entries) state = decide(std::move(state), e.event).next;
  return state;
}

Result<StateLock> StateLock::take(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return fail("cannot be made: " + why(), directory, "choose another directory with --state");
  const std::string path = directory + "/guard.lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return fail("cannot be opened: " + why(), path, "choose another directory with --state");
  // Whoever asks for the status holds it for a moment.
  bool taken = false;
  for (int i = 0; i < 20 && !taken; ++i) {
    taken = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!taken && errno != EWOULDBLOCK && errno != EINTR) {
      const std::string what = why();
      ::close(fd);
      return fail("cannot be locked: " + what, path, "choose a directory on another file system with --state");
    }
    if (!taken) ::usleep(10'000);
  }
  if (!taken) {
    char text[32] = {};
    const auto got = ::pread(fd, text, sizeof text - 1, 0);
    ::close(fd);
    std::string who(text, got > 0 ? static_cast<std::size_t>(got) : 0);
    while (!who.empty() && (who.back() == '\n' || who.back() == ' ')) who.pop_back();
    return fail(fmt::format("another guard has it (process {})", who.empty() ? "unknown" : who), directory,
                "orrery guard status says what it does; another job needs another --state");
  }
  const std::string pid = fmt::format("{:<20}\n", ::getpid());
  if (::pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    const std::string what = why();
    ::close(fd);
    return fail("cannot be written: " + what, path);
  }
  return StateLock(fd);
}

StateLock::StateLock(StateLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
StateLock::~StateLock() {
  if (fd_ >= 0) ::close(fd_);
}

bool is_locked(const std::string& directory) {
  const int fd = ::open((directory + "/guard.lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return held;
}

Result<Journal> Journal::open(const std::string& path, const JournalRead& known) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return fail("cannot be opened: " + why(), path);
  Journal journal(fd, path, known.entries.size() + 1, known.good_bytes);
  if (::ftruncate(fd, static_cast<off_t>(known.good_bytes)) != 0 || ::fsync(fd) != 0)
    return fail("cannot be written: " + why(), path);
  // The file's name, too, must outlive a power cut.
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  const int dir = ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    ::fsync(dir);
    ::close(dir);
  }
  return journal;
}

Journal::Journal(Journal&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      next_(other.next_),
      size_(other.size_),
      torn_(other.torn_) {}
Journal::~Journal() {
  if (fd_ >= 0) ::close(fd_);
}

Status Journal::append(const GuardEvent& event, const Decision& decision) {
  const std::string line = line_of(next_, event, decision);
  // Where the last good line ends, whatever a try before has left there.
  if (torn_ && ::ftruncate(fd_, static_cast<off_t>(size_)) != 0) return fail("cannot be written: " + why(), path_);
  if (::lseek(fd_, static_cast<off_t>(size_), SEEK_SET) < 0) return fail("cannot be written: " + why(), path_);
  Status ok = write_all(fd_, line, path_);
  if (ok && ::fdatasync(fd_) != 0) ok = fail("cannot be synced: " + why(), path_);
  torn_ = !ok && ::ftruncate(fd_, static_cast<off_t>(size_)) != 0;  // half a line must not be read
  if (!ok) return ok;
  size_ += line.size();
  ++next_;
  return {};
}

}  // namespace orrery
