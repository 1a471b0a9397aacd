// Times of kernels that the user states (--cost-table FILE.csv): they win over what the trace or facts say.
//
// Comma-separated values with a header; the columns `kernel`, `shape` and `time_us` in any order, others are ignored.
// Fields with commas or quotes are quoted as usual ("..", "" for a quote).
//   kernel   the kernel's whole name, as in the trace
//   shape    GEMM: MxNxK, attention: QUERIESxKEYSxHEAD_DIM, both with a leading Bx where the batch (sequences * heads)
//            is not 1; memory-bound kernels: number of elements; empty: any
//   time_us  of one launch, microseconds, above 0
// A table of `orrery bench ops` (operator_table.h) is one as well: its rows are named after operators, "gemm-bf16", and
// stand for any kernel that multiplies such a shape. Its columns `device` and `machine` are kept.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "costs/kernels.h"

namespace orrery {

struct CostRow {
  std::string kernel, shape;  // shape as shape_text writes it; empty = any
  double ns = 0;
  std::uint64_t line = 0;  // of the file, from 1
};

class CostTable {
 public:
  // The row of this kernel and shape, else the one of this kernel and any shape; nullptr = none.
  const CostRow* lookup(std::string_view kernel, std::string_view shape) const;
  // The row of the operator, whatever the kernel's name, of products of two or four bytes an element; nullptr = none.
  const CostRow* lookup(const WorkSize& size) const;
  const std::vector<CostRow>& rows() const { return rows_; }
  const std::string& device() const { return device_; }    // "" = not said
  const std::string& machine() const { return machine_; }  // the same

 private:
  friend Result<CostTable> parse_cost_table(std::string_view text, const std::string& where);
  const CostRow* find(std::string_view kernel, std::string_view shape) const;
  std::vector<CostRow> rows_;
  std::string device_, machine_;
  struct Slot {  // of a hash table with open addressing: half a million rows are one look each
    std::uint64_t hash = 0;
    std::uint32_t row = kNone;
  };
  static constexpr std::uint32_t kNone = 0xffffffffu;
  // The slot of the row, or the free one that it would take. Precondition: there are slots.
  std::size_t slot_of(std::string_view kernel, std::string_view shape, std::uint64_t hash) const;
  // The row that has this kernel and shape already; kNone = it was added.
  std::uint32_t add(CostRow row);
  std::vector<Slot> slots_;  // a power of two, at most half of them taken
};

// How the table writes a size; "" for kinds that have none (fixed, unknown).
std::string shape_text(const WorkSize& size);

// Errors, with the line: a column that is missing, a quote without end, a row of another number of fields, a shape or a
// time that is none, two rows for the same kernel and shape.
Result<CostTable> parse_cost_table(std::string_view text, const std::string& where);
// "-" is standard input; gzip and zstd are unpacked. Errors: those above, a file that cannot be read or is above 64
// MiB.
Result<CostTable> read_cost_table(const std::string& path);

}  // namespace orrery
