#include "base/zip_members.h"

#include <zip.h>

#include <memory>
#include <mutex>

namespace orrery {
namespace {

struct CloseArchive {
  void operator()(zip_t* z) const { zip_discard(z); }
};
using ArchivePtr = std::unique_ptr<zip_t, CloseArchive>;

Result<ArchivePtr> open_archive(const ZipArchive& archive) {
  // libzip turns the members' dates into local time, through state that the C library shares between threads.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = archive.bytes.empty()
                             ? zip_source_file_create(archive.path.c_str(), 0, -1, &error)
                             : zip_source_buffer_create(archive.bytes.data(), archive.bytes.size(), 0, &error);
  zip_t* z = source == nullptr ? nullptr : zip_open_from_source(source, ZIP_RDONLY, &error);
  const std::string why = z == nullptr ? zip_error_strerror(&error) : "";
  if (z == nullptr && source != nullptr) zip_source_free(source);
  zip_error_fini(&error);
  if (z == nullptr)
    return fail("zip archive cannot be read: " + why, archive.path,
                "a zip that was cut has lost its table of contents");
  return ArchivePtr(z);
}

class MemberSource final : public ByteSource {
 public:
  MemberSource(ArchivePtr archive, zip_file_t* file, std::uint64_t total, std::string label)
      : archive_(std::move(archive)), file_(file), total_(total), label_(std::move(label)) {}
  ~MemberSource() override { zip_fclose(file_); }
  MemberSource(const MemberSource&) = delete;
  MemberSource& operator=(const MemberSource&) = delete;

  Result<std::size_t> read(char* to, std::size_t n) override {
    if (trouble_.kind != SourceTrouble::Kind::none) return 0;
    const zip_int64_t got = zip_fread(file_, to, n);
    if (got < 0) {
      trouble_ = {SourceTrouble::Kind::corrupt, taken_,
                  std::string("zip member is corrupt: ") + zip_error_strerror(zip_file_get_error(file_))};
      return 0;
    }
    taken_ += static_cast<std::uint64_t>(got);
    return static_cast<std::size_t>(got);
  }
  std::uint64_t taken() const override { return taken_ < total_ ? taken_ : total_; }
  std::uint64_t total() const override { return total_; }
  SourceTrouble trouble() const override { return trouble_; }

 private:
  ArchivePtr archive_;
  zip_file_t* file_;
  std::uint64_t total_, taken_ = 0;  // uncompressed bytes: what libzip tells
  std::string label_;
  SourceTrouble trouble_;
};

}  // namespace

Result<std::vector<ZipMember>> zip_members(const ZipArchive& archive) {
  auto z = open_archive(archive);
  if (!z) return tl::unexpected(z.error());
  std::vector<ZipMember> members;
  const zip_int64_t n = zip_get_num_entries(z->get(), 0);
  for (zip_int64_t i = 0; i < n; ++i) {
    const char* name = zip_get_name(z->get(), static_cast<zip_uint64_t>(i), 0);
    if (name == nullptr) continue;
    std::string s = name;
    if (s.empty() || s.back() == '/') continue;
    zip_stat_t stat;
    zip_stat_init(&stat);
    const bool sized =
        zip_stat_index(z->get(), static_cast<zip_uint64_t>(i), 0, &stat) == 0 && (stat.valid & ZIP_STAT_SIZE) != 0;
    members.push_back({std::move(s), static_cast<std::uint64_t>(i), sized ? stat.size : 0});
  }
  return members;
}

Result<SourcePtr> open_zip_member(const ZipArchive& archive, const ZipMember& member) {
  auto z = open_archive(archive);
  if (!z) return tl::unexpected(z.error());
  const std::string label = archive.path + ":" + member.name;
  zip_stat_t stat;
  zip_stat_init(&stat);
  if (zip_stat_index(z->get(), member.index, 0, &stat) != 0)
    return fail(std::string("zip member cannot be read: ") + zip_strerror(z->get()), label);
  zip_file_t* file = zip_fopen_index(z->get(), member.index, 0);
  if (file == nullptr) return fail(std::string("zip member cannot be read: ") + zip_strerror(z->get()), label);
  const std::uint64_t size = (stat.valid & ZIP_STAT_SIZE) != 0 ? stat.size : 0;
  return std::make_unique<MemberSource>(std::move(*z), file, size, label);
}

}  // namespace orrery
