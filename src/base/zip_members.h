// Zip archives: every member is a source of its own.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "base/result.h"

namespace orrery {

// An archive on disk, or in memory when `bytes` is not empty (not copied; must outlive the sources).
struct ZipArchive {
  std::string path;
  std::string_view bytes;
};

struct ZipMember {
  std::string name;
  std::uint64_t index = 0;
  std::uint64_t size = 0;  // uncompressed
};

// Members that are files, in archive order. Errors: not an archive, cut, unreadable.
Result<std::vector<ZipMember>> zip_members(const ZipArchive& archive);

// Each source has an archive handle of its own, so members can be read side by side. Errors: encrypted, unsupported.
Result<SourcePtr> open_zip_member(const ZipArchive& archive, const ZipMember& member);

}  // namespace orrery
