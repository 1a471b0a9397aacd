// A decoder-only transformer, small enough for a CPU, with its gradients by hand. Single-threaded float arithmetic in
// one order: the same inputs give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trainer {

struct Shape {
  std::size_t vocabulary = 64, width = 32, heads = 4, layers = 2, sequence = 32;
};

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::size_t begin = 0, size = 0;  // in the flat vector
};

class Model {
 public:
  explicit Model(const Shape& shape);
  std::size_t size() const { return size_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::vector<float> initial(std::uint64_t seed) const;

  // Mean loss (nats a token) of predicting tokens[i + 1] after tokens[i]; tokens holds sequence + 1. Adds the gradient
  // of `scale` times that mean to `gradient`.
  float loss(std::span<const float> weights, std::span<const std::uint32_t> tokens, float scale,
             std::span<float> gradient);

 private:
  struct Layer {
    std::size_t norm1, norm1_bias, qkv, projection, norm2, norm2_bias, up, up_bias, down, down_bias;
  };
  struct Kept;  // activations of one layer that its gradient needs
  std::size_t add(const std::string& name, std::vector<std::int64_t> shape);
  void layer_forward(const float* w, const Layer& l, std::vector<float>& x, Kept& kept) const;
  void layer_backward(const float* w, const Layer& l, const Kept& kept, std::vector<float>& dx, float* g) const;

  Shape s_;
  std::size_t size_ = 0, tokens_ = 0, positions_ = 0, norm_ = 0, norm_bias_ = 0;
  std::vector<Layer> layers_;
  std::vector<Parameter> parameters_;
};

}  // namespace trainer
