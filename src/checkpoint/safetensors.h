// The header of a safetensors file: 8 bytes little-endian length, JSON of that length, then the tensors without holes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace orrery::ckpt {

struct FileTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes after the header
};

struct SafetensorsHeader {
  std::vector<FileTensor> tensors;  // in the order of their bytes
  Metadata metadata;
};

constexpr std::uint64_t max_header_bytes = 100'000'000;  // the limit of the reference implementation

// Bytes of a tensor; error when it does not fit 63 bits or a dimension is negative.
Result<std::uint64_t> tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape);
bool dtype_of_name(std::string_view name, DType& out);

// The length and the JSON, padded so that the tensors begin at a multiple of 64. Error: a name is not UTF-8.
Result<std::string> write_safetensors_header(const SafetensorsHeader& header);

// `file` begins with the length and all of the header; `file_bytes` is the size of the file. Tensors must tile it.
Result<SafetensorsHeader> read_safetensors_header(std::string_view file, std::uint64_t file_bytes);

}  // namespace orrery::ckpt
