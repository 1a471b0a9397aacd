#include <isa-l/igzip_lib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/byte_source.h"

namespace orrery {
namespace {

using Kind = SourceTrouble::Kind;
constexpr std::size_t kInput = 256 * 1024;

bool is_gzip(const std::uint8_t* p, std::size_t n) { return n >= 2 && p[0] == 0x1f && p[1] == 0x8b; }
bool is_gzip(std::string_view b) { return is_gzip(reinterpret_cast<const std::uint8_t*>(b.data()), b.size()); }

// A frame of zstd, or one of the skippable frames that may stand before it.
bool is_zstd(std::string_view b) {
  if (b.size() < 4) return false;
  const auto u = [&](std::size_t i) { return static_cast<unsigned char>(b[i]); };
  return (u(0) == 0x28 || (u(0) & 0xf0) == 0x50) && u(1) == (u(0) == 0x28 ? 0xb5 : 0x2a) &&
         u(2) == (u(0) == 0x28 ? 0x2f : 0x4d) && u(3) == (u(0) == 0x28 ? 0xfd : 0x18);
}

// What both decompressors share: a refilled input buffer and the trouble met.
class Unpacker : public ByteSource {
 public:
  explicit Unpacker(SourcePtr in) : in_(std::move(in)), buffer_(kInput) {}
  std::uint64_t taken() const override { return in_->taken(); }
  std::uint64_t total() const override { return in_->total(); }
  SourceTrouble trouble() const override { return trouble_.kind != Kind::none ? trouble_ : in_->trouble(); }

 protected:
  // Refills the empty input buffer; false at the end of the input.
  Result<bool> refill() {
    auto got = in_->read(buffer_.data(), buffer_.size());
    if (!got) return tl::unexpected(got.error());
    have_ = *got;
    read_ += have_;
    return have_ != 0;
  }
  void stop(Kind kind, std::uint64_t at, std::string what) {
    trouble_ = {kind, at, std::move(what)};
    done_ = true;
  }

  SourcePtr in_;
  std::vector<char> buffer_;
  std::size_t have_ = 0;    // bytes in the buffer after the last refill
  std::uint64_t read_ = 0;  // compressed bytes read so far
  SourceTrouble trouble_;
  bool done_ = false;
};

class GzipSource final : public Unpacker {
 public:
  explicit GzipSource(SourcePtr in) : Unpacker(std::move(in)), state_(std::make_unique<inflate_state>()) {
    isal_inflate_init(state_.get());
    state_->crc_flag = ISAL_GZIP;
    state_->next_in = nullptr;
    state_->avail_in = 0;
  }

  Result<std::size_t> read(char* to, std::size_t n) override {
    inflate_state& s = *state_;
    const auto want = static_cast<std::uint32_t>(std::min<std::size_t>(n, std::size_t{1} << 30));
    s.next_out = reinterpret_cast<std::uint8_t*>(to);
    s.avail_out = want;
    while (!done_ && s.avail_out == want) {
      bool more = true;
      if (s.avail_in == 0) {
        auto filled = refill();
        if (!filled) return tl::unexpected(filled.error());
        more = *filled;
        s.next_in = reinterpret_cast<std::uint8_t*>(buffer_.data());
        s.avail_in = static_cast<std::uint32_t>(have_);
      }
      if (s.block_state == ISAL_BLOCK_FINISH) {
        if (!more) {
          done_ = true;
        } else if (!next_member()) {
          break;
        }
        continue;
      }
      const auto in_before = s.avail_in;
      const int status = isal_inflate(&s);
      const std::uint64_t at = read_ - s.avail_in;
      if (status == ISAL_INCORRECT_CHECKSUM) {
        stop(Kind::checksum, at, "gzip checksum does not match");
      } else if (status < 0) {
        stop(Kind::corrupt, at, "gzip data are corrupt");
      } else if (!more && s.block_state != ISAL_BLOCK_FINISH && s.avail_out == want && in_before == 0) {
        stop(Kind::cut, at, "gzip stream ends early");
      }
    }
    return want - s.avail_out;
  }

 private:
  // After a member: another one, padding (ignored), or bytes that are no gzip.
  bool next_member() {
    inflate_state& s = *state_;
    while (s.avail_in > 0 && *s.next_in == 0) {
      ++s.next_in;
      --s.avail_in;
      padded_ = true;
    }
    if (s.avail_in == 0) return true;
    if (padded_ || *s.next_in != 0x1f || (s.avail_in > 1 && s.next_in[1] != 0x8b)) {
      stop(Kind::trailing, read_ - s.avail_in, "bytes after the gzip stream are no gzip");
      return false;
    }
    const auto next_in = s.next_in;
    const auto avail_in = s.avail_in;
    const auto next_out = s.next_out;
    const auto avail_out = s.avail_out;
    isal_inflate_reset(&s);
    s.crc_flag = ISAL_GZIP;
    s.next_in = next_in;
    s.avail_in = avail_in;
    s.next_out = next_out;
    s.avail_out = avail_out;
    return true;
  }

  std::unique_ptr<inflate_state> state_;
  bool padded_ = false;
};

class ZstdSource final : public Unpacker {
 public:
  explicit ZstdSource(SourcePtr in) : Unpacker(std::move(in)), stream_(ZSTD_createDStream()) {}
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }
  ZstdSource(const ZstdSource&) = delete;
  ZstdSource& operator=(const ZstdSource&) = delete;

  Result<std::size_t> read(char* to, std::size_t n) override {
    if (stream_ == nullptr) return fail("out of memory for the zstd decoder");
    ZSTD_outBuffer out{to, n, 0};
    while (!done_ && out.pos == 0) {
      bool more = true;
      if (input_.pos == input_.size) {
        auto filled = refill();
        if (!filled) return tl::unexpected(filled.error());
        more = *filled;
        input_ = {buffer_.data(), have_, 0};
      }
      if (between_frames_) {
        if (!more) {
          done_ = true;
          break;
        }
        // Anything else than another frame is not for the decoder.
        const auto c = static_cast<unsigned char>(static_cast<const char*>(input_.src)[input_.pos]);
        if (c != 0x28 && (c & 0xf0) != 0x50) {
          stop(Kind::trailing, read_ - (input_.size - input_.pos), "bytes after the zstd stream are no zstd");
          break;
        }
      }
      const std::size_t before = input_.pos;
      const std::size_t left = ZSTD_decompressStream(stream_, &out, &input_);
      const std::uint64_t at = read_ - (input_.size - input_.pos);
      if (ZSTD_isError(left)) {
        const std::string name = ZSTD_getErrorName(left);
        stop(name.find("checksum") != std::string::npos ? Kind::checksum : Kind::corrupt, at, "zstd: " + name);
      } else if (left == 0) {
        between_frames_ = true;
      } else {
        if (input_.pos != before) between_frames_ = false;
        if (!more && out.pos == 0) stop(Kind::cut, at, "zstd stream ends early");
      }
    }
    return out.pos;
  }

 private:
  ZSTD_DStream* stream_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool between_frames_ = false;
};

}  // namespace

Result<SourcePtr> decompressed(SourcePtr source, const std::string& label) {
  constexpr int kDeepest = 4;  // a gz in a gz happens; more is a trap
  for (int depth = 0;; ++depth) {
    auto first = peek(source, 8);
    if (!first) return tl::unexpected(first.error());
    const std::string_view b = *first;
    if (is_gzip(b)) {
      source = std::make_unique<GzipSource>(std::move(source));
    } else if (is_zstd(b)) {
      source = std::make_unique<ZstdSource>(std::move(source));
    } else if (is_zip(b)) {
      return fail("a zip archive inside of another stream", label, "unpack it first");
    } else if (b.substr(0, 3) == "BZh" ||
               b.substr(0, 6) == std::string_view("\xfd"
                                                  "7zXZ\0",
                                                  6) ||
               b.substr(0, 4) == "\x04\x22\x4d\x18") {
      return fail(
          b[0] == 'B' ? "compressed with bzip2" : (b[0] == '\x04' ? "compressed with lz4" : "compressed with xz"),
          label, "plain, gzip, zstd and zip are read: unpack it first");
    } else {
      return source;
    }
    if (depth >= kDeepest) return fail("compressed more than " + std::to_string(kDeepest) + " times over", label);
  }
}

}  // namespace orrery
