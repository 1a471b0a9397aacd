// Bytes out, with every failure reported: a file appears whole or not at all.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace orrery {

// Writes to a temporary name beside `path`; commit() renames it into place. Without commit() nothing is left behind.
// An existing target that is not a regular file (/dev/full, a pipe) is written directly.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  OutputFile(const OutputFile&) = delete;
  ~OutputFile();

  Status write(std::string_view bytes);
  Status commit();

 private:
  OutputFile() = default;
  int fd_ = -1;
  std::string path_;       // as given: named in errors
  std::string target_;     // with links followed: what is renamed onto
  std::string temporary_;  // "" = written directly
};

// Whether `path` could be written now: what takes long to work out is not begun for nothing. Leaves nothing behind.
Status check_writable(const std::string& path);

Status write_file(const std::string& path, std::string_view bytes);

// All of `bytes` to a file descriptor; `where` names it in the error.
Status write_all(int fd, std::string_view bytes, const std::string& where);

}  // namespace orrery
