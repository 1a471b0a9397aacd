#include "checkpoint/manifest.h"

#include <fmt/core.h>
#include <isa-l/crc.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/fnv.h"
#include "checkpoint/safetensors.h"

namespace orrery::ckpt {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// {"crc32c":"89abcdef","receipt":{...}}\n : the checksum is of the text of the inner object.
Result<std::string> seal(std::string_view kind, const ordered_json& body) {
  std::string text;
  try {
    text = body.dump();
  } catch (const json::exception&) {
    return fail("a name or a value of the metadata is not UTF-8");
  }
  return fmt::format("{{\"crc32c\":\"{:08x}\",\"{}\":{}}}\n", crc32c(text.data(), text.size()), kind, text);
}

Result<json> unseal(std::string_view kind, std::string_view text) {
  const std::string middle = fmt::format("\",\"{}\":", kind);
  const std::string_view start = "{\"crc32c\":\"";
  const std::size_t head = start.size() + 8 + middle.size();
  if (text.size() < head + 4 || !text.starts_with(start) || text.substr(start.size() + 8, middle.size()) != middle ||
      !text.ends_with("}\n")) {
    return fail(fmt::format("is not a {}, or is cut off", kind));
  }
  const std::string_view body = text.substr(head, text.size() - head - 2);
  if (text.substr(start.size(), 8) != fmt::format("{:08x}", crc32c(body.data(), body.size()))) {
    return fail("its checksum does not fit its text");
  }
  auto j = json::parse(body.begin(), body.end(), nullptr, false);
  if (!j.is_object()) return fail("is not a JSON object");
  return j;
}

ordered_json json_of(const ShardRecord& s) {
  ordered_json tensors = ordered_json::array();
  for (const TensorRecord& t : s.tensors) {
    ordered_json row{{"name", t.name},
                     {"dtype", dtype_name(t.dtype)},
                     {"shape", t.shape},
                     {"data_offsets", {t.begin, t.end}},
                     {"crc32c", t.crc32c}};
    if (t.split_dim >= 0) row["split"] = {{"dim", t.split_dim}, {"offset", t.offset}, {"whole", t.whole}};
    tensors.push_back(std::move(row));
  }
  return {{"rank", s.rank},
          {"file", shard_name(s.rank)},
          {"bytes", s.bytes},
          {"header_bytes", s.header_bytes},
          {"header_crc32c", s.header_crc32c},
          {"tensors", std::move(tensors)}};
}

void put_attempt(ordered_json& j, const Attempt& a) {
  j["format"] = "orrery-checkpoint-1";
  j["step"] = a.step;
  j["slot"] = a.slot == Slot::full ? "full" : "snapshot";
  j["world"] = a.world;
  j["session"] = a.session;
  j["sequence"] = a.sequence;
}

// Fields out of JSON that nobody vouches for. The first that is amiss is remembered; the rest then does not matter.
class Fields {
 public:
  explicit Fields(const json& j) : j_(j) {}
  template <class T>
  T number(const char* key, T low, T high) {
    const auto at = j_.find(key);
    if (at == j_.end() || !at->is_number_integer()) return amiss<T>(key);
    if (at->is_number_unsigned()) {
      const auto v = at->template get<std::uint64_t>();
      if (v > static_cast<std::uint64_t>(high)) return amiss<T>(key);
      return static_cast<T>(v) < low ? amiss<T>(key) : static_cast<T>(v);
    }
    const auto v = at->template get<std::int64_t>();  // negative
    if constexpr (std::is_unsigned_v<T>) return amiss<T>(key);
    if (v < static_cast<std::int64_t>(low)) return amiss<T>(key);
    return static_cast<T>(v);
  }
  std::string text(const char* key) {
    const auto at = j_.find(key);
    if (at == j_.end() || !at->is_string()) return amiss<std::string>(key);
    return at->get<std::string>();
  }
  const json* array(const char* key) {
    const auto at = j_.find(key);
    if (at == j_.end() || !at->is_array()) return amiss<const json*>(key);
    return &*at;
  }
  const json* object(const char* key) {
    const auto at = j_.find(key);
    if (at == j_.end() || !at->is_object()) return amiss<const json*>(key);
    return &*at;
  }
  template <class T>
  T amiss(const char* key) {
    if (wrong_.empty()) wrong_ = key;
    return T{};
  }
  bool ok() const { return wrong_.empty(); }
  tl::unexpected<Error> error() const { return fail("its field " + wrong_ + " is missing or wrong"); }

 private:
  const json& j_;
  std::string wrong_;
};

constexpr std::uint64_t most = INT64_MAX;

Result<Attempt> attempt_of(const json& j) {
  Fields f(j);
  Attempt a;
  if (f.text("format") != "orrery-checkpoint-1") return fail("is of another format than orrery-checkpoint-1");
  a.step = f.number<std::int64_t>("step", 0, INT64_MAX);
  const std::string slot = f.text("slot");
  if (slot != "full" && slot != "snapshot") f.amiss<int>("slot");
  a.slot = slot == "snapshot" ? Slot::snapshot : Slot::full;
  a.world = f.number<int>("world", 1, max_world);
  a.session = f.text("session");
  a.sequence = f.number<std::uint64_t>("sequence", 0, most);
  if (!f.ok()) return f.error();
  return a;
}

Result<TensorRecord> tensor_of(const json& j) {
  if (!j.is_object()) return fail("a tensor is not an object");
  Fields f(j);
  TensorRecord t;
  t.name = f.text("name");
  if (!dtype_of_name(f.text("dtype"), t.dtype)) f.amiss<int>("dtype");
  const json* shape = f.array("shape");
  const json* offsets = f.array("data_offsets");
  t.crc32c = f.number<std::uint32_t>("crc32c", 0, std::numeric_limits<std::uint32_t>::max());
  if (!f.ok()) return f.error();
  if (shape->size() > max_dims) return fail("a tensor has more than eight dimensions");
  for (const json& d : *shape) {
    if (!d.is_number_unsigned() || d.get<std::uint64_t>() > most) return fail("a dimension is not a number");
    t.shape.push_back(d.get<std::int64_t>());
  }
  if (offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return fail("data_offsets are not two numbers");
  }
  t.begin = (*offsets)[0].get<std::uint64_t>();
  t.end = (*offsets)[1].get<std::uint64_t>();
  const auto bytes = tensor_bytes(t.dtype, t.shape);
  if (!bytes) return tl::unexpected(bytes.error());
  if (t.end < t.begin || t.end - t.begin != *bytes) return fail("data_offsets do not fit dtype and shape");
  if (j.contains("split")) {
    const json* split = f.object("split");
    if (split == nullptr) return f.error();
    Fields s(*split);
    t.split_dim = s.number<int>("dim", 0, static_cast<int>(max_dims) - 1);
    t.offset = s.number<std::int64_t>("offset", 0, INT64_MAX);
    t.whole = s.number<std::int64_t>("whole", 0, INT64_MAX);
    if (!s.ok()) return s.error();
    const auto dim = static_cast<std::size_t>(t.split_dim);
    if (dim >= t.shape.size() || t.offset > t.whole || t.shape[dim] > t.whole - t.offset) {
      return fail("a piece lies outside its tensor");
    }
  }
  return t;
}

Result<ShardRecord> shard_of(const json& j) {
  if (!j.is_object()) return fail("a shard is not an object");
  Fields f(j);
  ShardRecord s;
  s.rank = f.number<int>("rank", 0, max_world - 1);
  s.bytes = f.number<std::uint64_t>("bytes", 0, most);
  s.header_bytes = f.number<std::uint64_t>("header_bytes", 8, max_header_bytes + 8);
  s.header_crc32c = f.number<std::uint32_t>("header_crc32c", 0, std::numeric_limits<std::uint32_t>::max());
  const json* tensors = f.array("tensors");
  if (!f.ok()) return f.error();
  // Files are named by us, never by what is read: a manifest cannot point out of its directory.
  if (f.text("file") != shard_name(s.rank)) return fail("a shard has another name than its rank gives it");
  std::uint64_t at = 0;
  for (const json& row : *tensors) {
    auto t = tensor_of(row);
    if (!t) return tl::unexpected(t.error());
    if (t->begin != at) return fail("tensors of a shard overlap or leave holes");
    at = t->end;
    s.tensors.push_back(std::move(*t));
  }
  if (s.bytes < s.header_bytes || s.bytes - s.header_bytes != at) return fail("a shard's size and its tensors differ");
  return s;
}

Result<Metadata> metadata_of(const json& j) {
  Fields f(j);
  const json* object = f.object("metadata");
  if (object == nullptr) return f.error();
  Metadata out;
  for (const auto& [key, value] : object->items()) {
    if (!value.is_string()) return fail("metadata holds other things than text");
    out[key] = value.get<std::string>();
  }
  return out;
}

// The pieces of one tensor, from all shards that have it.
Status check_pieces(const std::string& name, std::vector<const TensorRecord*>& pieces) {
  const TensorRecord& first = *pieces.front();
  for (const TensorRecord* p : pieces) {
    bool same = p->dtype == first.dtype && p->split_dim == first.split_dim && p->whole == first.whole &&
                p->shape.size() == first.shape.size();
    for (std::size_t d = 0; same && d < p->shape.size(); ++d) {
      same = static_cast<int>(d) == p->split_dim || p->shape[d] == first.shape[d];
    }
    if (!same) return fail("ranks disagree about dtype, shape or split of tensor " + printable(name));
    if (p->split_dim < 0 && p->crc32c != first.crc32c) {
      return fail("ranks hold different values of tensor " + printable(name), {},
                  "split it, or name it by rank, if that is meant; else a rank computes wrongly");
    }
  }
  if (first.split_dim < 0) return {};
  const auto dim = static_cast<std::size_t>(first.split_dim);
  std::sort(pieces.begin(), pieces.end(), [&](const TensorRecord* a, const TensorRecord* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->shape[dim] < b->shape[dim];
  });
  std::int64_t at = 0;
  for (const TensorRecord* p : pieces) {
    if (p->offset != at) return fail("the pieces of tensor " + printable(name) + " overlap or leave holes");
    at += p->shape[dim];
  }
  if (at != first.whole) return fail("the pieces of tensor " + printable(name) + " overlap or leave holes");
  return {};
}

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t so_far) {
  // ISA-L takes an int for the length and leaves both inversions of the standard CRC-32C to the caller.
  auto* at = static_cast<unsigned char*>(const_cast<void*>(data));  // it reads only, without saying so
  std::uint32_t crc = ~so_far;
  while (bytes > 0) {
    const std::size_t n = std::min<std::size_t>(bytes, 1u << 30);
    crc = crc32_iscsi(at, static_cast<int>(n), crc);
    at += n;
    bytes -= n;
  }
  return ~crc;
}

// The writer of JSON checks every text it is given; there is no other decoder here.
bool is_utf8(std::string_view text) {
  if (std::none_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; })) return true;
  try {
    (void)json(std::string(text)).dump();
    return true;
  } catch (const json::exception&) {
    return false;
  }
}
std::string printable(std::string_view text) {
  std::string valid(text);
  if (!is_utf8(text)) {
    valid = json::parse(json(valid).dump(-1, ' ', false, json::error_handler_t::replace)).get<std::string>();
  }
  std::string line;
  for (const char c : valid) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return line;
}

std::string directory_name(const Attempt& a) {
  return fmt::format("step-{:012}-{}{}", a.step, a.slot == Slot::full ? "full" : "snapshot", turn_part(a));
}
std::string session_part(const std::string& session) { return fmt::format("{:016x}", fnv1a(session)); }

std::string turn_part(const Attempt& a) { return fmt::format("-{}-{:06}", session_part(a.session), a.sequence); }

bool is_directory_name(std::string_view name) {
  std::vector<std::string_view> parts;  // step, digits, slot, session, digits: nobody else names a directory so
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('-', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  const auto only = [](std::string_view part, std::size_t at_least, std::string_view characters) {
    return part.size() >= at_least && part.find_first_not_of(characters) == std::string_view::npos;
  };
  constexpr std::string_view hex = "0123456789abcdef";
  return parts.size() == 5 && parts[0] == "step" && only(parts[1], 12, hex.substr(0, 10)) &&
         (parts[2] == "full" || parts[2] == "snapshot") && parts[3].size() == 16 && only(parts[3], 16, hex) &&
         only(parts[4], 6, hex.substr(0, 10));
}

std::string shard_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }
std::string receipt_name(int rank) { return fmt::format("rank-{:05}.receipt.json", rank); }

Result<std::string> to_text(const Receipt& r) {
  ordered_json j;
  put_attempt(j, r.attempt);
  if (!r.gave_up.empty()) j["gave_up"] = r.gave_up;
  j["metadata"] = ordered_json(r.metadata);
  if (r.metadata.empty()) j["metadata"] = ordered_json::object();
  j["shard"] = json_of(r.shard);
  return seal("receipt", j);
}

Result<std::string> to_text(const Manifest& m) {
  ordered_json j;
  put_attempt(j, m.attempt);
  j["serial"] = m.serial;
  j["metadata"] = ordered_json(m.metadata);
  if (m.metadata.empty()) j["metadata"] = ordered_json::object();
  j["shards"] = ordered_json::array();
  for (const ShardRecord& s : m.shards) j["shards"].push_back(json_of(s));
  return seal("manifest", j);
}

Result<Receipt> read_receipt(std::string_view text) {
  const auto j = unseal("receipt", text);
  if (!j) return tl::unexpected(j.error());
  Receipt r;
  auto attempt = attempt_of(*j);
  if (!attempt) return tl::unexpected(attempt.error());
  r.attempt = *attempt;
  Fields f(*j);
  if (j->contains("gave_up")) {
    r.gave_up = f.text("gave_up");
    if (r.gave_up.empty()) return fail("its field gave_up is wrong");
  }
  const json* shard = f.object("shard");
  if (!f.ok()) return f.error();
  auto metadata = metadata_of(*j);
  if (!metadata) return tl::unexpected(metadata.error());
  r.metadata = std::move(*metadata);
  if (!r.gave_up.empty()) return r;
  auto s = shard_of(*shard);
  if (!s) return tl::unexpected(s.error());
  r.shard = std::move(*s);
  return r;
}

Result<Manifest> read_manifest(std::string_view text) {
  const auto j = unseal("manifest", text);
  if (!j) return tl::unexpected(j.error());
  Manifest m;
  auto attempt = attempt_of(*j);
  if (!attempt) return tl::unexpected(attempt.error());
  m.attempt = *attempt;
  Fields f(*j);
  m.serial = f.number<std::uint64_t>("serial", 1, most);
  const json* shards = f.array("shards");
  if (!f.ok()) return f.error();
  auto metadata = metadata_of(*j);
  if (!metadata) return tl::unexpected(metadata.error());
  m.metadata = std::move(*metadata);
  for (const json& row : *shards) {
    auto s = shard_of(row);
    if (!s) return tl::unexpected(s.error());
    m.shards.push_back(std::move(*s));
  }
  if (auto ok = check(m); !ok) return tl::unexpected(ok.error());
  return m;
}

Status check(const Manifest& m) {
  if (m.shards.size() != static_cast<std::size_t>(m.attempt.world)) return fail("it has not one shard a rank");
  std::map<std::string, std::vector<const TensorRecord*>> pieces;
  for (std::size_t r = 0; r < m.shards.size(); ++r) {
    if (m.shards[r].rank != static_cast<int>(r)) return fail("its shards are not in the order of their ranks");
    for (const TensorRecord& t : m.shards[r].tensors) pieces[t.name].push_back(&t);
  }
  for (auto& [name, list] : pieces) {
    if (auto ok = check_pieces(name, list); !ok) return ok;
  }
  return {};
}

}  // namespace orrery::ckpt
