// How PyTorch, Megatron-LM and the libraries under them call the operators of an estimate, their kernels and modules.
#pragma once
#include <string>
#include <string_view>

#include "estimate/operations.h"

namespace orrery::synth {

struct OperatorNames {
  std::string_view op;        // of the forward pass
  std::string_view backward;  // node of the autograd graph
  std::string_view inner;     // operator inside of it that launches; "" = none
  std::string_view kernel;
  std::string_view backward_kernel;
};
OperatorNames names_of(Part part);

// Products: `layout` as BLAS has it, tn forward, nn for the gradient of the input, nt for that of the weight.
std::string_view product_kernel(const GpuFacts& gpu, std::string_view layout, bool grouped);

// The module that a part belongs to within its layer; "" = the layer's own.
std::string_view module_of(Part part);
std::string_view linear_of(Part part);  // the class of the linear layer that it is, in Megatron-LM; "" = none

// As the driver names the GPU.
std::string driver_name(const GpuFacts& gpu);

}  // namespace orrery::synth
