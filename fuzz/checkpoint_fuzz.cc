// libFuzzer target of what a restart reads: headers of safetensors, manifests, receipts. The first byte chooses.
// Manifests and receipts are sealed anew, so that what is inside is reached too. Any bytes must give what is
// consistent, or one line.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace {

using namespace orrery;
using namespace orrery::ckpt;

void require(bool ok) {
  if (!ok) std::abort();
}

template <class T>
bool good(const Result<T>& r) {
  if (r) return true;
  require(!r.error().what.empty());
  return false;
}

std::string sealed(std::string_view kind, std::string_view body) {
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08x", crc32c(body.data(), body.size()));
  return "{\"crc32c\":\"" + std::string(crc) + "\",\"" + std::string(kind) + "\":" + std::string(body) + "}\n";
}

void check_shard(const ShardRecord& s) {
  std::uint64_t at = 0;
  for (const TensorRecord& t : s.tensors) {
    require(t.begin == at && t.end >= t.begin && tensor_bytes(t.dtype, t.shape).value() == t.end - t.begin);
    require(t.shape.size() <= max_dims && t.split_dim < static_cast<int>(t.shape.size()));
    at = t.end;
  }
  require(s.bytes == s.header_bytes + at);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 's': {
      const auto h = read_safetensors_header(rest, rest.size());
      if (!good(h)) break;
      std::uint64_t at = 0;
      for (const FileTensor& t : h->tensors) {
        require(t.begin == at && t.end <= rest.size());
        at = t.end;
      }
      if (const auto again = write_safetensors_header(*h); good(again)) {
        const auto back = read_safetensors_header(*again, again->size() + at);
        require(back && back->tensors.size() == h->tensors.size() && back->metadata == h->metadata);
      }
      break;
    }
    case 'm': {
      const auto m = read_manifest(sealed("manifest", rest));
      if (!good(m)) break;
      require(m->shards.size() == static_cast<std::size_t>(m->attempt.world) && check(*m).has_value());
      for (const ShardRecord& s : m->shards) check_shard(s);
      const auto text = to_text(*m);
      require(text && read_manifest(*text));
      break;
    }
    case 'r': {
      const auto r = read_receipt(sealed("receipt", rest));
      if (good(r) && r->gave_up.empty()) check_shard(r->shard);
      break;
    }
    default:
      (void)good(read_manifest(rest));
      (void)good(read_receipt(rest));
      (void)is_directory_name(rest);
  }
  return 0;
}
