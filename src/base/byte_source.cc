#include "base/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace orrery {
namespace {

class FileSource final : public ByteSource {
 public:
  FileSource(int fd, std::uint64_t total, std::string path) : fd_(fd), total_(total), path_(std::move(path)) {}
  ~FileSource() override {
    if (fd_ > 0) ::close(fd_);
  }
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  Result<std::size_t> read(char* to, std::size_t n) override {
    for (;;) {
      const ssize_t got = ::read(fd_, to, std::min<std::size_t>(n, std::size_t{1} << 30));
      if (got >= 0) {
        taken_ += static_cast<std::uint64_t>(got);
        return static_cast<std::size_t>(got);
      }
      if (errno != EINTR) return fail(std::string("cannot read: ") + std::strerror(errno), path_);
    }
  }
  std::uint64_t taken() const override { return taken_; }
  std::uint64_t total() const override { return total_; }

 private:
  int fd_;
  std::uint64_t total_, taken_ = 0;
  std::string path_;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  Result<std::size_t> read(char* to, std::size_t n) override {
    n = std::min(n, bytes_.size() - at_);
    if (n != 0) std::memcpy(to, bytes_.data() + at_, n);
    at_ += n;
    return n;
  }
  std::uint64_t taken() const override { return at_; }
  std::uint64_t total() const override { return bytes_.size(); }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

// A source whose first bytes were looked at.
class PeekedSource final : public ByteSource {
 public:
  PeekedSource(std::string first, SourcePtr rest) : first_(std::move(first)), rest_(std::move(rest)) {}
  Result<std::size_t> read(char* to, std::size_t n) override {
    if (at_ == first_.size()) return rest_->read(to, n);
    n = std::min(n, first_.size() - at_);
    std::memcpy(to, first_.data() + at_, n);
    at_ += n;
    return n;
  }
  std::uint64_t taken() const override { return rest_->taken(); }
  std::uint64_t total() const override { return rest_->total(); }
  SourceTrouble trouble() const override { return rest_->trouble(); }

 private:
  std::string first_;
  std::size_t at_ = 0;
  SourcePtr rest_;
};

}  // namespace

Result<SourcePtr> open_file(const std::string& path) {
  if (path == "-") return std::make_unique<FileSource>(0, 0, "standard input");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(std::string("cannot open: ") + std::strerror(errno), path);
  struct stat s {};
  if (::fstat(fd, &s) != 0 || S_ISDIR(s.st_mode)) {
    ::close(fd);
    return fail("is a directory, not a file", path);
  }
  const auto size = S_ISREG(s.st_mode) ? static_cast<std::uint64_t>(s.st_size) : 0;
#ifdef POSIX_FADV_SEQUENTIAL
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
  return std::make_unique<FileSource>(fd, size, path);
}

SourcePtr open_memory(std::string_view bytes) { return std::make_unique<MemorySource>(bytes); }

Result<std::string> read_at_most(ByteSource& source, std::size_t most) {
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  std::string text;
  std::size_t size = 0;
  while (size < most) {
    if (size == text.size()) text.resize(std::min(most, std::max(kBlock, 2 * size)));
    const auto n = source.read(text.data() + size, text.size() - size);
    if (!n) return tl::unexpected(n.error());
    if (*n == 0) break;
    size += *n;
  }
  text.resize(size);
  return text;
}

Result<std::string> read_at_most(const std::string& path, std::size_t most) {
  auto source = open_file(path);
  if (!source) return tl::unexpected(source.error());
  return read_at_most(**source, most);
}

Result<std::string> peek(SourcePtr& source, std::size_t n) {
  auto first = read_at_most(*source, n);
  if (!first) return first;
  source = std::make_unique<PeekedSource>(*first, std::move(source));
  return first;
}

bool is_zip(std::string_view b) {
  return b.size() >= 4 && b[0] == 'P' && b[1] == 'K' && ((b[2] == 3 && b[3] == 4) || (b[2] == 5 && b[3] == 6));
}

}  // namespace orrery
