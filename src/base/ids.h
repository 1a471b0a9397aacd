// Strong row numbers: an index into one table cannot be used in another by accident.
#pragma once
#include <cstdint>
#include <type_traits>

namespace orrery {

// Every instant and duration from the importer on. There is no second unit.
using Ns = std::int64_t;

enum class StrId : std::uint32_t {};   // row of a StringPool; 0 is the empty string
enum class OpId : std::uint32_t {};    // row of a rank's OpTable
enum class LaneId : std::uint32_t {};  // row of a rank's LaneTable
enum class NodeId : std::uint32_t {};  // row of an ExecGraph

inline constexpr std::uint32_t kNone = 0xffffffffu;
inline constexpr OpId kNoOp{kNone};
inline constexpr LaneId kNoLane{kNone};
inline constexpr NodeId kNoNode{kNone};

template <class Id>
  requires std::is_enum_v<Id>
constexpr std::uint32_t raw(Id id) {
  return static_cast<std::uint32_t>(id);
}

}  // namespace orrery
