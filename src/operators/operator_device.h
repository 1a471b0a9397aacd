// What operators are measured on: a CPU, or a GPU through libraries that are opened at run time.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "costs/operator_table.h"

namespace orrery {

// An operator with its operands in place. They are the device's: prepare() of another ends it.
struct Prepared {
  std::function<double(std::int64_t)> run;  // does so many repetitions; nanoseconds
  std::function<Status()> check;            // of the last result, against a plain reference; may spoil the operands
  std::string library;                      // what does it
};

class OperatorDevice {
 public:
  virtual ~OperatorDevice() = default;
  // Sets flops or bytes of rows of the kind `peak`, whose work the device chooses. Errors: what this device cannot do
  // (told as a note), no memory for the operands.
  virtual Result<Prepared> prepare(OperatorRow& row) = 0;
};

}  // namespace orrery
