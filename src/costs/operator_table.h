// Times of single operators, as `orrery bench ops` measures them: what the laws of operators are calibrated with. One
// row an operator, size and precision. docs/formats/operators.md describes the file.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "costs/operators.h"

namespace orrery {

enum class OperatorKind : std::uint8_t {
  peak,    // multiply-adds in registers: the floor of products
  stream,  // a sum of two arrays that no cache holds: the floor of what is bound by memory
  launch,  // of nothing: a GPU's empty kernel; on a CPU its threads called together
  gemm,
  attention,
  copy,
  add,
  silu,
  norm,
  softmax,
  embedding,  // rows of a table, gathered
  adamw,
  to_device,  // from the host's memory ...
  to_host,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all
};
inline constexpr std::size_t kOperatorKinds = 18;
std::string_view name_of(OperatorKind k);
bool read_operator(std::string_view text, OperatorKind& out);
bool is_collective(OperatorKind k);
// Bound by memory: copy to adamw.
bool moves_memory(OperatorKind k);

enum class AttentionWay : std::uint8_t {
  naive,     // scores as a whole, softmax, product
  tiled,     // in blocks of keys with a running maximum, as FlashAttention
  composed,  // on a GPU: two batched products of a library and a kernel for the softmax
};
std::string_view name_of(AttentionWay w);

// A relative spread above is not to be relied on: rows are marked noisy.
inline constexpr double kNoisySpread = 0.1;

struct OperatorRow {
  OperatorKind kind = OperatorKind::gemm;
  AttentionWay way = AttentionWay::naive;  // of attention
  bool causal = false;                     // of attention
  // gemm: batch, m, n, k. attention: sequences times heads, queries, keys, head size. Others: elements, of collectives
  // as NCCL's tests count them (the larger of input and output of one rank).
  std::array<double, 4> size = {1, 1, 1, 1};
  Precision precision = Precision::fp32;
  std::int64_t threads = 1, ranks = 1;
  double bytes = 0, flops = 0;   // read and written; multiplied and added
  double ns = 0;                 // median
  double least_ns = 0;           // 0 = not known
  double spread = 0;             // half of the distance between the quartiles over the median
  std::int64_t repetitions = 0;  // timed batches
  bool noisy = false;            // spread too wide to rely on
  std::string library;           // that did it
  std::uint64_t line = 0;        // of the file, from 1; 0 = none
};

struct OperatorTable {
  std::string device = "cpu";  // cpu, cuda or rocm
  std::string machine;         // its name: "AMD EPYC ...", "NVIDIA H100 ..."
  std::vector<OperatorRow> rows;

  // The best rate of the rows of this kind, that of their quickest batch: FLOP or bytes a ns; 0 = no row.
  double best_flop_per_ns(OperatorKind kind, Precision p) const;
  double best_bytes_per_ns(OperatorKind kind) const;
};

// As the column `kernel` has it: "gemm-fp32", "attention-tiled-causal-bf16", "all_reduce-fp32-x4" (of four ranks).
std::string kernel_text(const OperatorRow& row);
// MxNxK, BxMxNxK, or the number of elements.
std::string shape_text(const OperatorRow& row);

std::string write_operator_table(const OperatorTable& table);  // as CSV

// CSV or the JSON document of `orrery bench ops --json`. Errors, with the line or the row: no such table, a column that
// is missing, what is no operator, shape, precision, time or count; the same operator twice; rows of several devices.
Result<OperatorTable> parse_operator_table(std::string_view text, const std::string& where);

// Whether the text is one, by its beginning: a CSV header with the columns operator and time_us, or a JSON document of
// bench ops.
bool looks_like_operator_table(std::string_view text);

}  // namespace orrery
