#include "supervisor/slurm_attempt.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/number_text.h"

namespace orrery {
namespace {

// Fields between single blanks; the last is the rest of the line.
template <std::size_t N>
bool split(std::string_view line, std::array<std::string_view, N>& fields) {
  for (std::size_t i = 0; i < N; ++i) {
    const std::size_t end = i + 1 < N ? line.find(' ') : line.size();
    if (end == std::string_view::npos) return false;
    fields[i] = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return true;
}

template <class Int>
bool whole(std::string_view text, Int& value) {
  std::int64_t wide = 0;
  if (read_int(text, wide) != NumberState::ok || wide < 0) return false;
  value = static_cast<Int>(wide);
  return static_cast<std::int64_t>(value) == wide;
}

std::string_view trimmed(std::string_view text) { return text.substr(0, text.find_last_not_of(" \n") + 1); }

}  // namespace

SlurmFiles::SlurmFiles(const std::string& state_directory, std::int64_t attempt)
    : directory(fmt::format("{}/attempt-{}.slurm", state_directory, attempt)),
      script(directory + "/job.sh"),
      claim(directory + "/claim"),
      orders(directory + "/orders"),
      notice(directory + "/notice"),
      ended(directory + "/ended") {}

std::string SlurmFiles::rank(std::int64_t rank) const { return fmt::format("{}/rank-{:05}", directory, rank); }
std::string SlurmFiles::stacks(std::int64_t rank) const { return fmt::format("{}/stacks-{:05}", directory, rank); }

// As long whatever it says: a shorter line would leave the end of the longer one.
std::string to_line(const Orders& o) {
  return fmt::format("{:<80}\n",
                     fmt::format("{} {} {} {}", o.revoked ? "revoked" : "run", o.signals, o.signal, o.stacks));
}

std::optional<Orders> read_orders(std::string_view line) {
  std::array<std::string_view, 4> f;
  Orders o;
  if (!split(trimmed(line), f) || (f[0] != "run" && f[0] != "revoked") || !whole(f[1], o.signals) ||
      !whole(f[2], o.signal) || !whole(f[3], o.stacks))
    return std::nullopt;
  o.revoked = f[0] == "revoked";
  return o;
}

std::string to_line(const RankReport& r) {
  constexpr std::size_t kLong = 400;
  std::string why = r.why.substr(0, 150);
  std::replace(why.begin(), why.end(), '\n', ' ');
  std::string line = fmt::format("{} {} {} {} {} {} {} {} {}", r.rank, static_cast<char>(r.state), r.value, r.told,
                                 r.beats, r.ended, r.stacks, r.node.empty() ? "-" : r.node.substr(0, 100), why);
  line.resize(kLong, ' ');
  return line + "\n";
}

std::optional<RankReport> read_report(std::string_view line) {
  std::array<std::string_view, 9> f;
  RankReport r;
  std::string text(trimmed(line));
  if (std::count(text.begin(), text.end(), ' ') < 8) text += ' ';  // nothing was said in the last field
  if (!split(std::string_view(text), f) || f[1].size() != 1 || f[7].empty() || !whole(f[0], r.rank) ||
      !whole(f[2], r.value) || !whole(f[3], r.told) || !whole(f[4], r.beats) || !whole(f[5], r.ended) ||
      !whole(f[6], r.stacks))
    return std::nullopt;
  if (std::string_view("resfx").find(f[1][0]) == std::string_view::npos) return std::nullopt;
  r.state = static_cast<RankReport::State>(f[1][0]);
  r.node = f[7] == "-" ? "" : std::string(f[7]);
  r.why = std::string(f[8]);
  return r;
}

std::string read_line(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return {};
  char buffer[1024];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  ::close(fd);
  const std::string text(buffer, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  const std::size_t end = text.find('\n');
  return end == std::string::npos ? std::string() : text.substr(0, end);
}

Status write_line(const std::string& path, const std::string& line, bool sync) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return fail(std::string("cannot be written: ") + std::strerror(errno), path);
  const bool written = ::pwrite(fd, line.data(), line.size(), 0) == static_cast<ssize_t>(line.size());
  const bool ok = written && (!sync || ::fsync(fd) == 0);
  const int error = errno;
  if (::close(fd) != 0 || !ok) return fail(std::string("cannot be written: ") + std::strerror(error), path);
  return {};
}

std::vector<RankReport> read_reports(const SlurmFiles& files) {
  std::vector<RankReport> all;
  DIR* const directory = ::opendir(files.directory.c_str());
  if (directory == nullptr) return all;
  while (const dirent* const entry = ::readdir(directory)) {
    const std::string name = entry->d_name;
    if (name.rfind("rank-", 0) != 0) continue;
    if (auto report = read_report(read_line(files.directory + "/" + name))) all.push_back(std::move(*report));
  }
  ::closedir(directory);
  std::sort(all.begin(), all.end(), [](const RankReport& a, const RankReport& b) { return a.rank < b.rank; });
  return all;
}

Result<bool> claim_attempt(const SlurmFiles& files, const std::string& job) {
  // A link appears whole and only once, on network file systems, too.
  const std::string own = fmt::format("{}.{}.{}", files.claim, job, ::getpid());
  if (const Status ok = write_line(own, job + "\n", true); !ok) return tl::unexpected(ok.error());
  const bool mine = ::link(own.c_str(), files.claim.c_str()) == 0;
  const int error = errno;
  ::unlink(own.c_str());
  if (!mine && error != EEXIST) return fail(std::string("cannot be linked: ") + std::strerror(error), files.claim);
  return mine;
}

}  // namespace orrery
