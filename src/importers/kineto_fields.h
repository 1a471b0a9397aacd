// The keys of an event and of its `args` that the importer reads, and the categories it knows.
#pragma once
#include <array>
#include <cstdint>
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
  none
};
inline constexpr std::size_t kFields = static_cast<std::size_t>(Field::none);

struct FieldKey {
  std::string_view key;
  Field field;
};

// A key as written between its quotes -> field. Two small tables, looked up by hash.
class FieldTable {
 public:
  template <std::size_t N>
  constexpr explicit FieldTable(const FieldKey (&keys)[N]) {
    static_assert(N * 2 <= kSlots);
    for (const FieldKey& k : keys) {
      std::size_t i = slot(k.key);
      while (!slots_[i].key.empty()) i = (i + 1) % kSlots;
      slots_[i] = k;
    }
  }
  Field find(std::string_view key) const {
    for (std::size_t i = slot(key);; i = (i + 1) % kSlots) {
      if (slots_[i].key.empty()) return Field::none;
      if (slots_[i].key == key) return slots_[i].field;
    }
  }

 private:
  static constexpr std::size_t kSlots = 256;
  static constexpr std::size_t slot(std::string_view key) {
    if (key.empty()) return 0;
    const auto at = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(key[i])); };
    return (key.size() * 37 + at(0) * 101 + at(key.size() / 2) * 13 + at(key.size() - 1) * 59) % kSlots;
  }
  std::array<FieldKey, kSlots> slots_{};
};

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

}  // namespace orrery
