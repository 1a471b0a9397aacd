#include "model.h"

#include <algorithm>
#include <cmath>

#include "data.h"

namespace trainer {
namespace {

using Floats = std::vector<float>;

// out[rows, n] += x[rows, k] w[k, n]
void multiply(const float* x, const float* w, float* out, std::size_t rows, std::size_t k, std::size_t n) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < k; ++i) {
      const float a = x[r * k + i];
      for (std::size_t j = 0; j < n; ++j) out[r * n + j] += a * w[i * n + j];
    }
  }
}

// dx[rows, k] += dout[rows, n] w[k, n]^T; dw[k, n] += x^T dout
void multiply_back(const float* x, const float* w, const float* dout, float* dx, float* dw, std::size_t rows,
                   std::size_t k, std::size_t n) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < k; ++i) {
      const float a = x[r * k + i];
      float sum = 0;
      for (std::size_t j = 0; j < n; ++j) {
        sum += dout[r * n + j] * w[i * n + j];
        dw[i * n + j] += a * dout[r * n + j];
      }
      dx[r * k + i] += sum;
    }
  }
}

struct Norm {
  Floats centred;  // (x - mean) / deviation
  Floats inverse;  // 1 / deviation, a row
};

Floats normalise(const Floats& x, const float* gain, const float* bias, std::size_t width, Norm& kept) {
  const std::size_t rows = x.size() / width;
  Floats out(x.size());
  kept.centred.resize(x.size());
  kept.inverse.resize(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    const float* in = &x[r * width];
    float mean = 0, variance = 0;
    for (std::size_t i = 0; i < width; ++i) mean += in[i];
    mean /= static_cast<float>(width);
    for (std::size_t i = 0; i < width; ++i) variance += (in[i] - mean) * (in[i] - mean);
    const float inverse = 1.0f / std::sqrt(variance / static_cast<float>(width) + 1e-5f);
    kept.inverse[r] = inverse;
    for (std::size_t i = 0; i < width; ++i) {
      const float c = (in[i] - mean) * inverse;
      kept.centred[r * width + i] = c;
      out[r * width + i] = c * gain[i] + bias[i];
    }
  }
  return out;
}

// Adds to dx.
void normalise_back(const Floats& dout, const float* gain, const Norm& kept, float* dgain, float* dbias,
                    std::size_t width, Floats& dx) {
  for (std::size_t r = 0; r < dout.size() / width; ++r) {
    const float* d = &dout[r * width];
    const float* c = &kept.centred[r * width];
    float mean = 0, along = 0;
    for (std::size_t i = 0; i < width; ++i) {
      dgain[i] += d[i] * c[i];
      dbias[i] += d[i];
      mean += d[i] * gain[i];
      along += d[i] * gain[i] * c[i];
    }
    mean /= static_cast<float>(width);
    along /= static_cast<float>(width);
    for (std::size_t i = 0; i < width; ++i) {
      dx[r * width + i] += (d[i] * gain[i] - mean - c[i] * along) * kept.inverse[r];
    }
  }
}

constexpr float gelu_a = 0.7978845608f, gelu_b = 0.044715f;  // tanh form
float gelu(float x) { return 0.5f * x * (1 + std::tanh(gelu_a * (x + gelu_b * x * x * x))); }
float gelu_slope(float x) {
  const float t = std::tanh(gelu_a * (x + gelu_b * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * gelu_a * (1 + 3 * gelu_b * x * x);
}

}  // namespace

struct Model::Kept {
  Norm norm1, norm2;
  Floats normed1, qkv, weights, mixed, normed2, up, activated;  // weights: heads x sequence x sequence
};

std::size_t Model::add(const std::string& name, std::vector<std::int64_t> shape) {
  std::size_t n = 1;
  for (const std::int64_t d : shape) n *= static_cast<std::size_t>(d);
  parameters_.push_back({name, std::move(shape), size_, n});
  size_ += n;
  return size_ - n;
}

Model::Model(const Shape& shape) : s_(shape) {
  const auto v = static_cast<std::int64_t>(s_.vocabulary), d = static_cast<std::int64_t>(s_.width);
  tokens_ = add("embedding.tokens", {v, d});
  positions_ = add("embedding.positions", {static_cast<std::int64_t>(s_.sequence), d});
  for (std::size_t i = 0; i < s_.layers; ++i) {
    const std::string p = "layers." + std::to_string(i) + ".";
    Layer l{};
    l.norm1 = add(p + "norm1.gain", {d});
    l.norm1_bias = add(p + "norm1.bias", {d});
    l.qkv = add(p + "attention.qkv", {d, 3 * d});
    l.projection = add(p + "attention.projection", {d, d});
    l.norm2 = add(p + "norm2.gain", {d});
    l.norm2_bias = add(p + "norm2.bias", {d});
    l.up = add(p + "mlp.up", {d, 4 * d});
    l.up_bias = add(p + "mlp.up.bias", {4 * d});
    l.down = add(p + "mlp.down", {4 * d, d});
    l.down_bias = add(p + "mlp.down.bias", {d});
    layers_.push_back(l);
  }
  norm_ = add("norm.gain", {d});
  norm_bias_ = add("norm.bias", {d});
}

Floats Model::initial(std::uint64_t seed) const {
  Floats w(size_, 0);
  for (const Parameter& p : parameters_) {
    const bool gain = p.name.ends_with(".gain"), bias = p.name.ends_with(".bias");
    for (std::size_t i = 0; i < p.size; ++i) {
      // Between -0.1 and 0.1, from 24 bits: exact in a float.
      const float u = static_cast<float>(mix(seed + p.begin + i) >> 40) / 16777216.0f;
      w[p.begin + i] = gain ? 1.0f : bias ? 0.0f : (u - 0.5f) * 0.2f;
    }
  }
  return w;
}

void Model::layer_forward(const float* w, const Layer& l, Floats& x, Kept& k) const {
  const std::size_t t = s_.sequence, d = s_.width, h = s_.heads, e = d / h;
  k.normed1 = normalise(x, w + l.norm1, w + l.norm1_bias, d, k.norm1);
  k.qkv.assign(t * 3 * d, 0);
  multiply(k.normed1.data(), w + l.qkv, k.qkv.data(), t, d, 3 * d);
  k.weights.assign(h * t * t, 0);
  k.mixed.assign(t * d, 0);
  const float scale = 1.0f / std::sqrt(static_cast<float>(e));
  for (std::size_t head = 0; head < h; ++head) {
    for (std::size_t i = 0; i < t; ++i) {
      const float* q = &k.qkv[i * 3 * d + head * e];
      float* row = &k.weights[(head * t + i) * t];
      float most = -INFINITY, sum = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        const float* key = &k.qkv[j * 3 * d + d + head * e];
        float dot = 0;
        for (std::size_t c = 0; c < e; ++c) dot += q[c] * key[c];
        row[j] = dot * scale;
        most = std::max(most, row[j]);
      }
      for (std::size_t j = 0; j <= i; ++j) sum += row[j] = std::exp(row[j] - most);
      for (std::size_t j = 0; j <= i; ++j) {
        row[j] /= sum;
        const float* value = &k.qkv[j * 3 * d + 2 * d + head * e];
        for (std::size_t c = 0; c < e; ++c) k.mixed[i * d + head * e + c] += row[j] * value[c];
      }
    }
  }
  multiply(k.mixed.data(), w + l.projection, x.data(), t, d, d);
  k.normed2 = normalise(x, w + l.norm2, w + l.norm2_bias, d, k.norm2);
  k.up.resize(t * 4 * d);
  for (std::size_t i = 0; i < t; ++i) std::copy_n(w + l.up_bias, 4 * d, &k.up[i * 4 * d]);
  multiply(k.normed2.data(), w + l.up, k.up.data(), t, d, 4 * d);
  k.activated.resize(k.up.size());
  std::transform(k.up.begin(), k.up.end(), k.activated.begin(), gelu);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += w[l.down_bias + i % d];
  multiply(k.activated.data(), w + l.down, x.data(), t, 4 * d, d);
}

void Model::layer_backward(const float* w, const Layer& l, const Kept& k, Floats& dx, float* g) const {
  const std::size_t t = s_.sequence, d = s_.width, h = s_.heads, e = d / h;
  Floats dactivated(t * 4 * d, 0), dnormed2(t * d, 0);
  for (std::size_t i = 0; i < dx.size(); ++i) g[l.down_bias + i % d] += dx[i];
  multiply_back(k.activated.data(), w + l.down, dx.data(), dactivated.data(), g + l.down, t, 4 * d, d);
  for (std::size_t i = 0; i < dactivated.size(); ++i) {
    dactivated[i] *= gelu_slope(k.up[i]);
    g[l.up_bias + i % (4 * d)] += dactivated[i];
  }
  multiply_back(k.normed2.data(), w + l.up, dactivated.data(), dnormed2.data(), g + l.up, t, d, 4 * d);
  normalise_back(dnormed2, w + l.norm2, k.norm2, g + l.norm2, g + l.norm2_bias, d, dx);

  Floats dmixed(t * d, 0), dqkv(t * 3 * d, 0), dnormed1(t * d, 0), dweights(t);
  multiply_back(k.mixed.data(), w + l.projection, dx.data(), dmixed.data(), g + l.projection, t, d, d);
  const float scale = 1.0f / std::sqrt(static_cast<float>(e));
  for (std::size_t head = 0; head < h; ++head) {
    for (std::size_t i = 0; i < t; ++i) {
      const float* row = &k.weights[(head * t + i) * t];
      const float* dout = &dmixed[i * d + head * e];
      float mean = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        const float* value = &k.qkv[j * 3 * d + 2 * d + head * e];
        float* dvalue = &dqkv[j * 3 * d + 2 * d + head * e];
        float dot = 0;
        for (std::size_t c = 0; c < e; ++c) {
          dot += dout[c] * value[c];
          dvalue[c] += row[j] * dout[c];
        }
        dweights[j] = dot;
        mean += row[j] * dot;
      }
      const float* q = &k.qkv[i * 3 * d + head * e];
      float* dq = &dqkv[i * 3 * d + head * e];
      for (std::size_t j = 0; j <= i; ++j) {
        const float ds = row[j] * (dweights[j] - mean) * scale;
        const float* key = &k.qkv[j * 3 * d + d + head * e];
        float* dkey = &dqkv[j * 3 * d + d + head * e];
        for (std::size_t c = 0; c < e; ++c) {
          dq[c] += ds * key[c];
          dkey[c] += ds * q[c];
        }
      }
    }
  }
  multiply_back(k.normed1.data(), w + l.qkv, dqkv.data(), dnormed1.data(), g + l.qkv, t, d, 3 * d);
  normalise_back(dnormed1, w + l.norm1, k.norm1, g + l.norm1, g + l.norm1_bias, d, dx);
}

float Model::loss(std::span<const float> weights, std::span<const std::uint32_t> tokens, float scale,
                  std::span<float> gradient) {
  const std::size_t t = s_.sequence, d = s_.width, v = s_.vocabulary;
  const float* w = weights.data();
  float* g = gradient.data();
  Floats x(t * d);
  for (std::size_t i = 0; i < t; ++i) {
    for (std::size_t c = 0; c < d; ++c) x[i * d + c] = w[tokens_ + tokens[i] * d + c] + w[positions_ + i * d + c];
  }
  std::vector<Kept> kept(layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) layer_forward(w, layers_[i], x, kept[i]);
  Norm last;
  const Floats normed = normalise(x, w + norm_, w + norm_bias_, d, last);

  // Logits by the token embeddings, transposed.
  float total = 0;
  const float each = scale / static_cast<float>(t);
  Floats dnormed(t * d, 0), logits(v);
  for (std::size_t i = 0; i < t; ++i) {
    float most = -INFINITY, sum = 0;
    for (std::size_t j = 0; j < v; ++j) {
      float dot = 0;
      for (std::size_t c = 0; c < d; ++c) dot += normed[i * d + c] * w[tokens_ + j * d + c];
      logits[j] = dot;
      most = std::max(most, dot);
    }
    for (std::size_t j = 0; j < v; ++j) sum += std::exp(logits[j] - most);
    total += std::log(sum) + most - logits[tokens[i + 1]];
    for (std::size_t j = 0; j < v; ++j) {
      const float dlogit = (std::exp(logits[j] - most) / sum - (j == tokens[i + 1] ? 1.0f : 0.0f)) * each;
      for (std::size_t c = 0; c < d; ++c) {
        dnormed[i * d + c] += dlogit * w[tokens_ + j * d + c];
        g[tokens_ + j * d + c] += dlogit * normed[i * d + c];
      }
    }
  }
  Floats dx(t * d, 0);
  normalise_back(dnormed, w + norm_, last, g + norm_, g + norm_bias_, d, dx);
  for (std::size_t i = layers_.size(); i-- > 0;) layer_backward(w, layers_[i], kept[i], dx, g);
  for (std::size_t i = 0; i < t; ++i) {
    for (std::size_t c = 0; c < d; ++c) {
      g[tokens_ + tokens[i] * d + c] += dx[i * d + c];
      g[positions_ + i * d + c] += dx[i * d + c];
    }
  }
  return total / static_cast<float>(t);
}

}  // namespace trainer
