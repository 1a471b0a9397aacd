#include "base/file_end.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace orrery {

std::string end_of_file(const std::string& path) {
  constexpr off_t kMost = 1 << 16;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  struct stat s {};
  const off_t size = ::fstat(fd, &s) == 0 ? s.st_size : 0;
  std::string text(kMost, '\0');
  const ssize_t n = ::pread(fd, text.data(), text.size(), std::max<off_t>(0, size - kMost));
  ::close(fd);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

}  // namespace orrery
