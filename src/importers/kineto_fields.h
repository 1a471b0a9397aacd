// The keys of an event and of its `args` that the importer reads, and the categories it knows.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "data/trace.h"

namespace orrery {

enum class Field : std::uint8_t {
  // of the event
  ph,
  cat,
  name,
  pid,
  tid,
  ts,
  dur,
  id,
  args,
  // of its args
  correlation,
  external_id,
  stream,
  device,
  sequence,
  fwd_thread,
  input_dims,
  input_types,
  concrete_inputs,
  python_id,
  python_parent,
  grid,
  block,
  shared_memory,
  registers,
  occupancy,
  blocks_per_sm,
  bytes,
  collective,
  dtype,
  in_elems,
  out_elems,
  group_size,
  group_name,
  group_desc,
  group_ranks,
  seq,
  src_rank,
  dst_rank,
  in_split,
  out_split,
  sync_kind,
  wait_stream,
  wait_record_corr,
  wait_event,
  memory_bytes,
  total_allocated,
  total_reserved,
  device_type,
  device_id,
  name_arg,
  rank,
  none
};
inline constexpr std::size_t kFields = static_cast<std::size_t>(Field::none);

struct FieldKey {
  std::string_view key;
  Field field;
};

// Words of up to 255 bytes -> numbers, looked up by hash. The words looked up must have 8 readable bytes behind them.
template <class Value, std::size_t Slots>
class WordTable {
 public:
  template <class Entry, std::size_t N>
  constexpr WordTable(const Entry (&entries)[N], Value none) : none_(none) {
    static_assert(N * 2 <= Slots);
    for (const auto& [word, value] : entries) {
      Slot s{word, first_bytes(word), last_bytes(word), value};
      std::size_t i = slot(s.first, s.last, word.size());
      while (!slots_[i].word.empty()) i = (i + 1) % Slots;
      slots_[i] = s;
    }
  }

  Value find(std::string_view word) const {
    const std::size_t n = word.size();
    if (n == 0) return none_;
    std::uint64_t first = load(word.data()), last;
    if (n < 8) {
      first &= ~std::uint64_t{0} >> (64 - 8 * n);
      last = first;
    } else {
      last = load(word.data() + n - 8);
    }
    for (std::size_t i = slot(first, last, n); !slots_[i].word.empty(); i = (i + 1) % Slots) {
      const Slot& s = slots_[i];
      if (s.first == first && s.last == last && s.word.size() == n && (n <= 16 || s.word == word)) return s.value;
    }
    return none_;
  }

 private:
  struct Slot {
    std::string_view word;
    std::uint64_t first = 0, last = 0;
    Value value{};
  };
  static std::uint64_t load(const char* p) {
    std::uint64_t v;
    std::memcpy(&v, p, 8);
    return v;
  }
  static_assert(std::endian::native == std::endian::little);
  static constexpr std::uint64_t bytes(std::string_view s) {
    std::uint64_t v = 0;
    for (std::size_t i = s.size(); i-- > 0;) v = v << 8 | static_cast<unsigned char>(s[i]);
    return v;
  }
  static constexpr std::uint64_t first_bytes(std::string_view s) { return bytes(s.substr(0, 8)); }
  static constexpr std::uint64_t last_bytes(std::string_view s) {
    return s.size() < 8 ? bytes(s) : bytes(s.substr(s.size() - 8));
  }
  static constexpr std::size_t slot(std::uint64_t first, std::uint64_t last, std::size_t n) {
    const std::uint64_t h = (first ^ (last << 29 | last >> 35) ^ n) * 0x9e3779b97f4a7c15ull;
    return static_cast<std::size_t>(h >> 40) % Slots;
  }

  std::array<Slot, Slots> slots_{};
  Value none_;
};
using FieldTable = WordTable<Field, 256>;

extern const FieldTable kEventFields;
extern const FieldTable kArgFields;

// What a category stands for, by any of the names it has had.
enum class CategoryKind : std::uint8_t { op, flow, memory, unknown };
struct Category {
  CategoryKind kind = CategoryKind::unknown;
  OpKind op = OpKind::other;
  FlowKind flow = FlowKind::other;
};
Category category_of(std::string_view cat);

// The key that is read as this field (today's, of several); for messages.
std::string_view key_of(Field field);  // as for WordTable::find: 8 readable bytes behind it

}  // namespace orrery
