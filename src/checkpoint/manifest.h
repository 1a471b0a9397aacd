// What a checkpoint says about itself: a receipt a rank while it is made, one manifest when it is complete.
// Both are JSON with a CRC-32C of their own text, so that a torn or altered one is never believed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace orrery::ckpt {

struct TensorRecord {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // of the piece
  int split_dim = -1;
  std::int64_t offset = 0, whole = 0;
  std::uint64_t begin = 0, end = 0;  // bytes after the shard's header
  std::uint32_t crc32c = 0;
};

// One file. Header and tensors cover every byte, and each has its checksum.
struct ShardRecord {
  int rank = 0;
  std::uint64_t header_bytes = 0, bytes = 0;
  std::uint32_t header_crc32c = 0;
  std::vector<TensorRecord> tensors;  // in the order of their bytes
};

struct Attempt {
  std::int64_t step = 0;
  Slot slot = Slot::full;
  int world = 1;
  std::string session;
  std::uint64_t sequence = 0;  // of save() in this session
};

struct Receipt {
  Attempt attempt;
  std::string gave_up;  // why this rank has no shard; "" = it has
  ShardRecord shard;
  Metadata metadata;
};

struct Manifest {
  Attempt attempt;
  std::uint64_t serial = 0;
  Metadata metadata;
  std::vector<ShardRecord> shards;  // one a rank, by rank
};

std::string directory_name(const Attempt& attempt);    // "step-000000000100-full-89abcdef01234567-000003"
std::string session_part(const std::string& session);  // of that name: "89abcdef01234567"
std::string turn_part(const Attempt& attempt);         // its end: "-89abcdef01234567-000003"
bool is_directory_name(std::string_view name);
std::string shard_name(int rank);    // "rank-00003.safetensors"
std::string receipt_name(int rank);  // "rank-00003.receipt.json"
inline constexpr const char* manifest_name = "manifest.json";
inline constexpr const char* withdrawn_name = "manifest.json.withdrawn";
inline constexpr std::uint64_t max_manifest_bytes = std::uint64_t{1} << 30;  // also of a receipt

constexpr int max_world = 1'000'000;
bool is_utf8(std::string_view text);
std::string printable(std::string_view text);  // for a message of one line: UTF-8, control characters as \x0a

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t so_far = 0);

Result<std::string> to_text(const Receipt& receipt);
Result<std::string> to_text(const Manifest& manifest);
Result<Receipt> read_receipt(std::string_view text);
Result<Manifest> read_manifest(std::string_view text);  // checked: see check()

// All ranks there, pieces tile their tensors, copies of a tensor that is not split agree (dtype, shape, checksum).
Status check(const Manifest& manifest);

}  // namespace orrery::ckpt
