#include "base/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace orrery {
namespace {

tl::unexpected<Error> fail_errno(const char* what, const std::string& where) {
  const int code = errno;
  std::string advice;
  if (code == ENOSPC || code == EDQUOT) advice = "free some space or write elsewhere";
  if (code == EPIPE) advice = "the reader closed it";
  if (code == ENOENT || code == ENOTDIR) advice = "make the directory first";
  return fail(std::string(what) + ": " + std::error_code(code, std::generic_category()).message(), where, advice);
}

}  // namespace

Status write_all(int fd, std::string_view bytes, const std::string& where) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("cannot write", where);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  OutputFile file;
  file.path_ = path;
  file.target_ = path;
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return fail("is a directory", path, "name a file");
    if (!S_ISREG(info.st_mode)) {
      file.fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
      if (file.fd_ < 0) return fail_errno("cannot open for writing", path);
      return file;
    }
    std::error_code ignored;  // a link stays a link: what it points to is replaced
    if (auto real = std::filesystem::canonical(path, ignored); !ignored) file.target_ = real.string();
    if (::access(path.c_str(), W_OK) != 0) return fail_errno("cannot write", path);
  }
  for (int attempt = 0;; ++attempt) {
    const std::string name = file.target_ + ".tmp" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
    file.fd_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.fd_ < 0 && errno == EEXIST && attempt < 100) continue;
    if (file.fd_ < 0) return fail_errno("cannot create", path);
    file.temporary_ = name;
    return file;
  }
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::write(std::string_view bytes) { return write_all(fd_, bytes, path_); }

Status OutputFile::commit() {
  // Some file systems report a full disk only here.
  if (::close(std::exchange(fd_, -1)) != 0) return fail_errno("cannot write", path_);
  if (temporary_.empty()) return {};
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) return fail_errno("cannot rename into place", path_);
  temporary_.clear();
  return {};
}

Status check_writable(const std::string& path) {
  struct stat info {};
  // A pipe's reader would take an opening and closing for the end.
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    if (::access(path.c_str(), W_OK) != 0) return fail_errno("cannot write", path);
    return {};
  }
  const auto file = OutputFile::create(path);
  if (!file) return tl::unexpected(file.error());
  return {};
}

Status write_file(const std::string& path, std::string_view bytes) {
  auto file = OutputFile::create(path);
  if (!file) return tl::unexpected(file.error());
  if (auto ok = file->write(bytes); !ok) return ok;
  return file->commit();
}

}  // namespace orrery
