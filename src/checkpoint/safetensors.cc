#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

namespace orrery::ckpt {
namespace {

struct TypeRow {
  DType type;
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<TypeRow, 15> types{{{DType::boolean, "BOOL", 1},
                                         {DType::u8, "U8", 1},
                                         {DType::i8, "I8", 1},
                                         {DType::f8_e5m2, "F8_E5M2", 1},
                                         {DType::f8_e4m3, "F8_E4M3", 1},
                                         {DType::i16, "I16", 2},
                                         {DType::u16, "U16", 2},
                                         {DType::f16, "F16", 2},
                                         {DType::bf16, "BF16", 2},
                                         {DType::i32, "I32", 4},
                                         {DType::u32, "U32", 4},
                                         {DType::f32, "F32", 4},
                                         {DType::i64, "I64", 8},
                                         {DType::u64, "U64", 8},
                                         {DType::f64, "F64", 8}}};

tl::unexpected<Error> bad(std::string what) { return fail("not a safetensors file: " + std::move(what)); }

// Of an object the names in it, twice those that stand twice: the parser keeps the last of them without a word. (Its
// callbacks could tell, but look through the whole object after each entry.)
struct CountNames final : nlohmann::json_sax<nlohmann::json> {
  std::size_t names = 0;
  int depth = 0;
  bool key(string_t&) override {
    names += depth == 1 ? 1 : 0;
    return true;
  }
  bool start_object(std::size_t) override { return ++depth > 0; }
  bool end_object() override { return --depth >= 0; }
  bool start_array(std::size_t) override { return ++depth > 0; }
  bool end_array() override { return --depth >= 0; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }
};

// One tensor's entry; nothing in it is believed before it is checked.
Result<FileTensor> tensor_of(const std::string& name, const nlohmann::json& j) {
  FileTensor t;
  t.name = name;
  if (!j.is_object() || !j.contains("dtype") || !j.contains("shape") || !j.contains("data_offsets")) {
    return bad("a tensor without dtype, shape and data_offsets");
  }
  const auto &dtype = j["dtype"], &shape = j["shape"], &offsets = j["data_offsets"];
  if (!dtype.is_string() || !dtype_of_name(dtype.get_ref<const std::string&>(), t.dtype)) return bad("unknown dtype");
  if (!shape.is_array() || shape.size() > max_dims) return bad("a shape of more than eight dimensions");
  for (const auto& d : shape) {
    if (!d.is_number_unsigned() || d.get<std::uint64_t>() > INT64_MAX) return bad("a dimension is not a number");
    t.shape.push_back(d.get<std::int64_t>());
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad("data_offsets are not two numbers");
  }
  t.begin = offsets[0].get<std::uint64_t>();
  t.end = offsets[1].get<std::uint64_t>();
  const auto bytes = tensor_bytes(t.dtype, t.shape);
  if (!bytes) return tl::unexpected(bytes.error());
  if (t.end < t.begin || t.end - t.begin != *bytes) return bad("data_offsets do not fit dtype and shape");
  return t;
}

}  // namespace

std::string_view dtype_name(DType type) { return types[static_cast<std::size_t>(type)].name; }
std::uint64_t dtype_bytes(DType type) { return types[static_cast<std::size_t>(type)].bytes; }

bool dtype_of_name(std::string_view name, DType& out) {
  const auto* row = std::find_if(types.begin(), types.end(), [&](const TypeRow& t) { return t.name == name; });
  if (row == types.end()) return false;
  out = row->type;
  return true;
}

Result<std::uint64_t> tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
  std::uint64_t bytes = dtype_bytes(dtype);
  bool empty = false;
  for (const std::int64_t d : shape) {
    if (d < 0) return fail("a dimension is negative");
    empty = empty || d == 0;
  }
  if (empty) return std::uint64_t{0};
  for (const std::int64_t d : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(d), &bytes) || bytes > INT64_MAX) {
      return fail("a tensor is larger than 2^63 bytes");
    }
  }
  return bytes;
}

Result<std::string> write_safetensors_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  auto& rows = j.get_ref<nlohmann::ordered_json::object_t&>();
  rows.reserve(header.tensors.size() + 1);
  if (!header.metadata.empty()) rows.emplace_back("__metadata__", header.metadata);
  for (const FileTensor& t : header.tensors) {  // appended: to look each name up takes as long as all before it
    rows.emplace_back(
        t.name,
        nlohmann::ordered_json{{"dtype", dtype_name(t.dtype)}, {"shape", t.shape}, {"data_offsets", {t.begin, t.end}}});
  }
  std::string json;
  try {
    json = header.tensors.empty() && header.metadata.empty() ? "{}" : j.dump();
  } catch (const nlohmann::json::exception&) {
    return fail("a name or a value of the metadata is not UTF-8");
  }
  json.append((64 - (json.size() + 8) % 64) % 64, ' ');
  if (json.size() > max_header_bytes) return fail("names and metadata are longer than safetensors allows (100 MB)");
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return out + json;
}

Result<SafetensorsHeader> read_safetensors_header(std::string_view file, std::uint64_t file_bytes) {
  if (file.size() < 8) return bad("shorter than eight bytes");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(file[i])} << (8 * i);
  }
  if (length > max_header_bytes) return bad("its header is longer than 100 MB");
  if (length > file.size() - 8 || length + 8 > file_bytes) return bad("its header is cut off");
  const std::string_view json = file.substr(8, length);
  if (json.empty() || json[0] != '{') return bad("its header does not begin with {");
  const auto j = nlohmann::json::parse(json.begin(), json.end(), nullptr, false);
  if (!j.is_object()) return bad("its header is not a JSON object");
  CountNames count;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &count)) return bad("its header is not a JSON object");
  if (count.names != j.size()) return bad("a name stands twice");
  SafetensorsHeader header;
  for (const auto& [name, value] : j.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return bad("__metadata__ is not an object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) return bad("__metadata__ holds other things than text");
        header.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    auto t = tensor_of(name, value);
    if (!t) return tl::unexpected(t.error());
    header.tensors.push_back(std::move(*t));
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const FileTensor& a, const FileTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t at = 0;
  for (const FileTensor& t : header.tensors) {
    if (t.begin != at) return bad("its tensors overlap or leave holes");
    at = t.end;
  }
  if (at != file_bytes - 8 - length) return bad("its tensors and its size differ");
  return header;
}

}  // namespace orrery::ckpt
