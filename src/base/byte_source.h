// Bytes from a file, a pipe or memory, decompressed on the way: read front to back, never held as a whole.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace orrery {

// Why a source ended before its end; what was read until then is good.
struct SourceTrouble {
  enum class Kind : std::uint8_t { none, cut, corrupt, checksum, trailing } kind = Kind::none;
  std::uint64_t at = 0;  // byte of the compressed file
  std::string what;      // "gzip stream ends early"
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Reads between 1 and n bytes; 0 = end. Errors: the medium cannot be read.
  virtual Result<std::size_t> read(char* to, std::size_t n) = 0;
  // Bytes taken from the medium so far (compressed bytes, for progress), and all of them; 0 = unknown.
  virtual std::uint64_t taken() const = 0;
  virtual std::uint64_t total() const = 0;
  virtual SourceTrouble trouble() const { return {}; }
};

using SourcePtr = std::unique_ptr<ByteSource>;

// "-" is standard input. Errors: cannot be opened, is a directory.
Result<SourcePtr> open_file(const std::string& path);
SourcePtr open_memory(std::string_view bytes);  // not copied

// Tells gzip (several members) and zstd (several frames) by their first bytes and unpacks them, also within each other.
// Errors: a compression that is known and not supported (bzip2, xz, lz4), a zip archive (open its members instead).
Result<SourcePtr> decompressed(SourcePtr source, const std::string& label);

// To the end, or `most` bytes: ask for one more than may be, and a size above the limit tells.
Result<std::string> read_at_most(ByteSource& source, std::size_t most);
Result<std::string> read_at_most(const std::string& path, std::size_t most);

// The first bytes of a source (up to n, fewer at its end); the source still delivers them afterwards.
Result<std::string> peek(SourcePtr& source, std::size_t n);

bool is_zip(std::string_view first_bytes);

}  // namespace orrery
