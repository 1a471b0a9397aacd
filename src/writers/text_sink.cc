#include "writers/text_sink.h"

#include <isa-l/igzip_lib.h>

#include <vector>

namespace orrery {

struct TextSink::Gzip {
  isal_zstream stream;
  std::vector<std::uint8_t> level = std::vector<std::uint8_t>(ISAL_DEF_LVL1_DEFAULT);
  std::vector<char> out = std::vector<char>(256 * 1024);
};

TextSink::TextSink(OutputFile file) : file_(std::move(file)) {}
TextSink::TextSink(TextSink&&) noexcept = default;
TextSink::~TextSink() = default;

Result<TextSink> TextSink::create(const std::string& path) {
  auto file = OutputFile::create(path);
  if (!file) return tl::unexpected(file.error());
  TextSink sink(std::move(*file));
  sink.text.reserve(kPiece + (64 << 10));
  if (path.ends_with(".gz")) {
    sink.gzip_ = std::make_unique<Gzip>();
    isal_zstream& z = sink.gzip_->stream;
    isal_deflate_init(&z);
    z.level = 1;
    z.level_buf = sink.gzip_->level.data();
    z.level_buf_size = static_cast<std::uint32_t>(sink.gzip_->level.size());
    z.gzip_flag = IGZIP_GZIP;
    z.flush = NO_FLUSH;
  }
  return sink;
}

void TextSink::write_out(bool last) {
  if (!status_) {
    text.clear();
    return;
  }
  if (!gzip_) {
    status_ = file_.write(text);
    text.clear();
    return;
  }
  isal_zstream& z = gzip_->stream;
  z.next_in = reinterpret_cast<std::uint8_t*>(text.data());
  z.avail_in = static_cast<std::uint32_t>(text.size());
  z.end_of_stream = last ? 1 : 0;
  do {
    z.next_out = reinterpret_cast<std::uint8_t*>(gzip_->out.data());
    z.avail_out = static_cast<std::uint32_t>(gzip_->out.size());
    if (isal_deflate(&z) != COMP_OK) {
      status_ = fail("cannot compress", "", "write to a name without .gz");
      break;
    }
    status_ = file_.write({gzip_->out.data(), gzip_->out.size() - z.avail_out});
  } while (status_ && (z.avail_out == 0 || z.avail_in > 0));
  text.clear();
}

Status TextSink::finish() {
  write_out(true);
  if (!status_) return status_;
  return file_.commit();
}

}  // namespace orrery
