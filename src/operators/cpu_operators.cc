#include "operators/cpu_operators.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace orrery {
namespace {

constexpr std::size_t kGrain = 32'768;  // elements: fewer stay on one thread, as in PyTorch (at::internal::GRAIN_SIZE)
constexpr std::size_t kRowWidth = 1'024;  // of softmax and norm
constexpr std::size_t kEmbeddingWidth = 256, kEmbeddingRows = 8'192;
constexpr std::size_t kQueryBlock = 64, kKeyBlock = 256;  // of tiled attention
constexpr std::size_t kMostBytes = std::size_t{16} << 30;

std::size_t whole(double x) { return static_cast<std::size_t>(x); }

double now_ns() {
  return static_cast<double>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Sums of products in fp32 lie within a few roundings of each addend of the true one.
Status near(double got, double expected, double size, double relative, const char* what) {
  if (std::isfinite(got) && std::abs(got - expected) <= relative * (std::abs(expected) + size)) return {};
  return fail(fmt::format("wrong result of {}: {} where {} is right", what, got, expected));
}

// Of `n` places some, the first and the last among them.
template <class F>
Status at_some(std::size_t n, const F& f) {
  const std::size_t step = std::max<std::size_t>(1, n / 37);
  for (std::size_t i = 0; i < n; i += step)
    if (const Status ok = f(i); !ok) return ok;
  return f(n - 1);
}

float value_of(float x) { return x; }
float value_of(Bf16 x) { return from_bf16(x); }

}  // namespace

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

bool Arena::reset(std::size_t bytes) {
  used_ = 0;
  if (bytes <= size_) return true;
  if (data_ != nullptr) ::munmap(data_, size_);
  size_ = 0;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  data_ = memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
  if (data_ == nullptr) return false;
  ::madvise(data_, bytes, MADV_HUGEPAGE);
  size_ = bytes;
  return true;
}

float* Arena::floats(std::size_t n) {
  auto* const at = reinterpret_cast<float*>(data_ + used_);
  used_ += (n * sizeof(float) + 63) / 64 * 64;
  return at;
}

float* Arena::random(std::size_t n) {
  float* const at = floats(n);
  constexpr std::size_t kBlock = 1 << 16;
  std::uint64_t state = 88'172'645'463'325'252u + n;
  for (std::size_t i = 0; i < std::min(n, kBlock); ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;  // Marsaglia's xorshift
    at[i] = static_cast<float>(static_cast<std::int32_t>(state >> 32)) / 2'147'483'648.0f;
  }
  // An odd period, so that rows of a power of two are not all alike.
  for (std::size_t i = kBlock; i < n; i += kBlock - 3)
    std::memcpy(at + i, at, std::min(kBlock - 3, n - i) * sizeof(float));
  return at;
}

CpuOperators::CpuOperators(const CpuTerms& terms, RankGroup& ranks)
    : kernels_(cpu_kernels(terms.widest)),
      blas_(terms.blas),
      ranks_(ranks),
      team_(terms.threads, terms.first_core),
      scratch_(terms.threads),
      rows_(terms.threads) {
  if (blas_) blas_->set_threads(static_cast<int>(terms.threads));
}

Prepared CpuOperators::timed(std::function<bool()> once, std::function<Status()> check, std::string library) const {
  Prepared p;
  p.run = [once = std::move(once)](std::int64_t n) {
    const double begin = now_ns();
    for (std::int64_t i = 0; i < n; ++i)
      if (!once()) return 0.0;
    return std::max(1.0, now_ns() - begin);
  };
  p.check = std::move(check);
  p.library = std::move(library);
  return p;
}

Result<Prepared> CpuOperators::prepare(OperatorRow& row) {
  team_.loosen(false);
  const double e = bytes_of(row.precision);
  double bytes = row.bytes + 4'096;
  if (row.kind == OperatorKind::gemm) bytes += 4 * row.size[0] * row.size[1] * row.size[2];
  if (row.kind == OperatorKind::attention) bytes += 2 * e * row.size[0] * (row.size[1] + row.size[2]) * row.size[3];
  if (row.kind == OperatorKind::embedding) bytes += 4.0 * kEmbeddingRows * kEmbeddingWidth + 8 * row.size[0];
  if (is_collective(row.kind)) bytes += 3 * row.bytes;
  if (bytes > static_cast<double>(kMostBytes) || !arena_.reset(whole(bytes) + 4'096))
    return fail(fmt::format("no memory for {:.0f} MiB of operands", bytes / (1 << 20)), kernel_text(row));
  const bool bf16 = row.precision == Precision::bf16;
  if (!bf16 && row.precision != Precision::fp32)
    return fail("no " + std::string(name_of(row.precision)) + " on CPUs", "--dtypes", "fp32, bf16");
  switch (row.kind) {
    case OperatorKind::peak:
      if (bf16 && kernels_.peak_bf16 == nullptr) return fail("this CPU multiplies no bf16", kernel_text(row));
      return peak(row);
    case OperatorKind::launch:
      return timed([this] { return team_.run([](unsigned) {}), true; }, [] { return Status{}; }, "threads");
    case OperatorKind::gemm:
      if (bf16 && !has_bf16()) return fail("this CPU multiplies no bf16", kernel_text(row));
      return bf16 ? gemm_of<Bf16>(row) : gemm_of<float>(row);
    case OperatorKind::attention:
      if (bf16) return fail("attention is measured in fp32 alone", kernel_text(row));
      return attention(row);
    case OperatorKind::to_device:
    case OperatorKind::to_host:
      return fail("a CPU has no device to copy to", kernel_text(row));
    default:
      break;
  }
  return is_collective(row.kind) ? collective(row) : by_elements(row);
}

Prepared CpuOperators::peak(OperatorRow& row) {
  constexpr std::size_t kSteps = 100'000;
  const auto one = row.precision == Precision::bf16 ? kernels_.peak_bf16 : kernels_.peak;
  row.flops = one(1) * static_cast<double>(kSteps) * team_.size();
  return timed([this, one] { return team_.run([one](unsigned) { one(kSteps); }), true; }, [] { return Status{}; },
               kernels_.name);
}

template <class T>
Prepared CpuOperators::gemm_of(const OperatorRow& row) {
  const std::size_t batch = whole(row.size[0]), m = whole(row.size[1]), n = whole(row.size[2]), k = whole(row.size[3]);
  const auto operand = [&](std::size_t count) {
    if constexpr (sizeof(T) == 2) {
      // Halves of random words would be NaNs: rounded one by one.
      auto* const at = reinterpret_cast<Bf16*>(arena_.floats((count + 1) / 2));
      for (std::size_t i = 0; i < count; ++i)
        at[i] = to_bf16(static_cast<float>((i * 2'654'435'761u) % 2'001u) / 1'000 - 1);
      return static_cast<const T*>(at);
    } else {
      return static_cast<const T*>(arena_.random(count));
    }
  };
  const T* const a = operand(batch * m * k);
  const T* const b = operand(batch * k * n);
  float* const c = arena_.floats(batch * m * n);
  const bool by_blas = blas_ && batch == 1 && (sizeof(T) == 4 || blas_->has_bf16());
  std::function<bool()> once;
  if (by_blas) {
    team_.loosen(true);
    once = [this, a, b, c, m, n, k] {
      if constexpr (sizeof(T) == 2)
        blas_->gemm_bf16(static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), a, b, c);
      else
        blas_->gemm(static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), a, b, c);
      return true;
    };
  } else if (batch == 1) {
    once = [this, a, b, c, m, n, k] {
      own_gemm_on(team_, kernels_, m, n, k, MatrixView<T>{a, k, 1}, MatrixView<T>{b, n, 1}, c, scratch_);
      return true;
    };
  } else {  // one product a thread
    once = [this, a, b, c, m, n, k, batch] {
      team_.run([&](unsigned worker) {
        const WorkShare s = share_of(batch, worker, team_.size());
        for (std::size_t i = s.from; i < s.to; ++i)
          own_gemm(kernels_, m, n, k, MatrixView<T>{a + i * m * k, k, 1}, MatrixView<T>{b + i * k * n, n, 1},
                   c + i * m * n, n, false, scratch_[worker]);
      });
      return true;
    };
  }
  const auto check = [a, b, c, m, n, k, batch] {
    return at_some(batch * m * n, [&](std::size_t at) {
      const std::size_t p = at / (m * n), i = at / n % m, j = at % n;
      double sum = 0;
      for (std::size_t d = 0; d < k; ++d)
        sum += static_cast<double>(value_of(a[p * m * k + i * k + d])) * value_of(b[p * k * n + d * n + j]);
      return near(c[at], sum, std::sqrt(static_cast<double>(k)), 1e-4, "a product");
    });
  };
  return timed(std::move(once), check, by_blas ? blas_->name() : "own, " + std::string(kernels_.name));
}

Prepared CpuOperators::attention(const OperatorRow& row) {
  const std::size_t heads = whole(row.size[0]), queries = whole(row.size[1]), keys = whole(row.size[2]),
                    dim = whole(row.size[3]);
  const bool causal = row.causal, tiled = row.way == AttentionWay::tiled;
  const float* const q = arena_.random(heads * queries * dim);
  const float* const k = arena_.random(heads * keys * dim);
  const float* const v = arena_.random(heads * keys * dim);
  float* const out = arena_.floats(heads * queries * dim);
  const float by = 1 / std::sqrt(static_cast<float>(dim));
  // Blocks of queries of one head are the unit that threads share. Naive: the scores of a whole block at once.
  const std::size_t blocks = (queries + kQueryBlock - 1) / kQueryBlock;
  const std::size_t step = tiled ? std::min(kKeyBlock, keys) : keys;
  for (auto& r : rows_) r.resize(kQueryBlock * (step + 2));
  const auto block = [this, q, k, v, out, by, queries, keys, dim, causal, step](std::size_t head, std::size_t from,
                                                                                unsigned worker) {
    const std::size_t height = std::min(kQueryBlock, queries - from);
    float* const scores = rows_[worker].data();
    float* const most = scores + kQueryBlock * step;
    float* const sums = most + kQueryBlock;
    float* const to = out + (head * queries + from) * dim;
    std::fill_n(most, height, -1e30f);
    std::fill_n(sums, height, 0.0f);
    std::fill_n(to, height * dim, 0.0f);
    // query i sees keys up to keys - queries + i
    const auto seen = [&](std::size_t i) { return causal ? keys - std::min(keys, queries) + from + i + 1 : keys; };
    for (std::size_t at = 0; at < std::min(keys, seen(height - 1)); at += step) {
      const std::size_t width = std::min(step, keys - at);
      own_gemm(kernels_, height, width, dim, {q + (head * queries + from) * dim, dim, 1},
               {k + (head * keys + at) * dim, 1, dim}, scores, width, false, scratch_[worker]);
      for (std::size_t i = 0; i < height; ++i) {
        float* const s = scores + i * width;
        const std::size_t visible = std::min(width, seen(i) > at ? seen(i) - at : 0);
        std::fill(s + visible, s + width, 0.0f);
        if (visible == 0) continue;
        kernels_.scale(s, by, visible);
        const float now = std::max(most[i], kernels_.maximum(s, visible));
        const float shrink = std::exp(most[i] - now);
        sums[i] = sums[i] * shrink + kernels_.exp_sum(s, now, visible);
        if (shrink != 1) kernels_.scale(to + i * dim, shrink, dim);
        most[i] = now;
      }
      own_gemm(kernels_, height, dim, width, {scores, width, 1}, {v + (head * keys + at) * dim, dim, 1}, to, dim, true,
               scratch_[worker]);
    }
    for (std::size_t i = 0; i < height; ++i) kernels_.scale(to + i * dim, 1 / sums[i], dim);
  };
  auto once = [this, block, heads, blocks] {
    team_.run([&](unsigned worker) {
      // one after the other in turn: with a causal mask later blocks are longer
      for (std::size_t unit = worker; unit < heads * blocks; unit += team_.size())
        block(unit / blocks, unit % blocks * kQueryBlock, worker);
    });
    return true;
  };
  const auto check = [q, k, v, out, by, heads, queries, keys, dim, causal] {
    return at_some(heads * queries, [&](std::size_t at) {
      const std::size_t head = at / queries, i = at % queries;
      const std::size_t seen = causal ? keys - queries + i + 1 : keys;
      std::vector<double> score(seen);
      double most = -1e300, sum = 0;
      for (std::size_t j = 0; j < seen; ++j) {
        double s = 0;
        for (std::size_t d = 0; d < dim; ++d)
          s += static_cast<double>(q[at * dim + d]) * k[(head * keys + j) * dim + d];
        most = std::max(most, score[j] = s * by);
      }
      for (double& s : score) sum += s = std::exp(s - most);
      for (const std::size_t d : {std::size_t{0}, dim - 1}) {
        double expected = 0;
        for (std::size_t j = 0; j < seen; ++j) expected += score[j] / sum * v[(head * keys + j) * dim + d];
        if (const Status ok = near(out[at * dim + d], expected, 1, 1e-3, "attention"); !ok) return ok;
      }
      return Status{};
    });
  };
  return timed(std::move(once), check, "own, " + std::string(kernels_.name));
}

Prepared CpuOperators::by_elements(const OperatorRow& row) {
  const std::size_t n = whole(row.size[0]);
  const bool rows = row.kind == OperatorKind::softmax || row.kind == OperatorKind::norm;
  const std::size_t width = std::min(n, kRowWidth);
  const auto shared = [this, n, rows, width](const auto& work) {
    const std::size_t grain = rows ? width : 16;
    if (n < kGrain) return work(std::size_t{0}, n);
    team_.run([&](unsigned worker) {
      const WorkShare s = share_of(n, worker, team_.size(), grain);
      if (s.from < s.to) work(s.from, s.to);
    });
  };
  // Of rows of `width`; the last may be shorter.
  const auto each_row = [width](std::size_t from, std::size_t to, const auto& f) {
    for (std::size_t i = from; i < to; i += width) f(i, std::min(width, to - i));
  };
  const std::string library = "own, " + std::string(kernels_.name);
  const CpuKernels& kernels = kernels_;
  switch (row.kind) {
    case OperatorKind::copy: {
      const float* const x = arena_.random(n);
      float* const out = arena_.floats(n);
      return timed(
          [=] {
            shared([=](std::size_t from, std::size_t to) {
              std::memcpy(out + from, x + from, (to - from) * sizeof(float));
            });
            return true;
          },
          [=] { return at_some(n, [&](std::size_t i) { return near(out[i], x[i], 0, 0, "a copy"); }); }, "memcpy");
    }
    case OperatorKind::add:
    case OperatorKind::stream: {
      if (row.precision == Precision::bf16) {
        auto* const x = reinterpret_cast<Bf16*>(arena_.floats((n + 1) / 2));
        auto* const y = reinterpret_cast<Bf16*>(arena_.floats((n + 1) / 2));
        auto* const out = reinterpret_cast<Bf16*>(arena_.floats((n + 1) / 2));
        for (std::size_t i = 0; i < n; ++i)
          x[i] = to_bf16(static_cast<float>(i % 97)), y[i] = to_bf16(static_cast<float>(i % 89));
        return timed(
            [=, &kernels] {
              shared([=, &kernels](std::size_t from, std::size_t to) {
                kernels.add_bf16(x + from, y + from, out + from, to - from);
              });
              return true;
            },
            [=] {
              return at_some(n, [&](std::size_t i) {
                return near(from_bf16(out[i]), from_bf16(x[i]) + from_bf16(y[i]), 0, 1.0 / 256, "a sum in bf16");
              });
            },
            library);
      }
      const float* const x = arena_.random(n);
      const float* const y = arena_.random(n);
      float* const out = arena_.floats(n);
      return timed(
          [=, &kernels] {
            shared([=, &kernels](std::size_t from, std::size_t to) {
              kernels.add(x + from, y + from, out + from, to - from);
            });
            return true;
          },
          [=] {
            return at_some(
                n, [&](std::size_t i) { return near(out[i], static_cast<double>(x[i]) + y[i], 1, 1e-6, "a sum"); });
          },
          library);
    }
    case OperatorKind::silu: {
      const float* const x = arena_.random(n);
      float* const out = arena_.floats(n);
      return timed(
          [=, &kernels] {
            shared([=, &kernels](std::size_t from, std::size_t to) { kernels.silu(x + from, out + from, to - from); });
            return true;
          },
          [=] {
            return at_some(n, [&](std::size_t i) {
              return near(out[i], x[i] / (1 + std::exp(-static_cast<double>(x[i]))), 1e-3, 1e-5, "silu");
            });
          },
          library);
    }
    case OperatorKind::softmax: {
      const float* const x = arena_.random(n);
      float* const out = arena_.floats(n);
      return timed(
          [=, &kernels] {
            shared([=, &kernels](std::size_t from, std::size_t to) {
              each_row(from, to, [=, &kernels](std::size_t i, std::size_t w) { kernels.softmax(x + i, out + i, w); });
            });
            return true;
          },
          [=] {
            return at_some(n, [&](std::size_t i) {
              const std::size_t first = i / width * width, w = std::min(width, n - first);
              double sum = 0;
              for (std::size_t j = first; j < first + w; ++j) sum += std::exp(static_cast<double>(x[j]));
              return near(out[i], std::exp(static_cast<double>(x[i])) / sum, 1e-6, 1e-4, "softmax");
            });
          },
          library);
    }
    case OperatorKind::norm: {
      const float* const x = arena_.random(n);
      const float* const weight = arena_.random(width);
      float* const out = arena_.floats(n);
      return timed(
          [=, &kernels] {
            shared([=, &kernels](std::size_t from, std::size_t to) {
              each_row(from, to,
                       [=, &kernels](std::size_t i, std::size_t w) { kernels.rms_norm(x + i, weight, out + i, w); });
            });
            return true;
          },
          [=] {
            return at_some(n, [&](std::size_t i) {
              const std::size_t first = i / width * width, w = std::min(width, n - first);
              double sum = 0;
              for (std::size_t j = first; j < first + w; ++j) sum += static_cast<double>(x[j]) * x[j];
              const double expected = x[i] * weight[i - first] / std::sqrt(sum / static_cast<double>(w) + 1e-5);
              return near(out[i], expected, 1, 1e-4, "a norm");
            });
          },
          library);
    }
    case OperatorKind::embedding: {
      const std::size_t line = std::min(n, kEmbeddingWidth), picked = n / line;
      const float* const table = arena_.random(kEmbeddingRows * line);
      float* const out = arena_.floats(n);
      auto* const ids = reinterpret_cast<std::uint32_t*>(arena_.floats(picked));
      for (std::size_t i = 0; i < picked; ++i)
        ids[i] = static_cast<std::uint32_t>((i * 2'654'435'761u) % kEmbeddingRows);
      return timed(
          [=, this] {
            const auto gather = [=](std::size_t from, std::size_t to) {
              for (std::size_t i = from; i < to; ++i)
                std::memcpy(out + i * line, table + ids[i] * line, line * sizeof(float));
            };
            if (n < kGrain) return gather(0, picked), true;
            team_.run([&](unsigned worker) {
              const WorkShare s = share_of(picked, worker, team_.size());
              gather(s.from, s.to);
            });
            return true;
          },
          [=] {
            return at_some(picked * line, [&](std::size_t i) {
              return near(out[i], table[ids[i / line] * line + i % line], 0, 0, "an embedding");
            });
          },
          "memcpy");
    }
    default:
      break;
  }
  float* const weight = arena_.random(n);
  const float* const gradient = arena_.random(n);
  float* const first = arena_.floats(n);
  float* const second = arena_.floats(n);
  std::fill_n(first, n, 0.0f), std::fill_n(second, n, 0.0f);
  return timed(
      [=, &kernels] {
        shared([=, &kernels](std::size_t from, std::size_t to) {
          kernels.adamw(weight + from, gradient + from, first + from, second + from, to - from);
        });
        return true;
      },
      [=, &kernels] {  // one step more, from where it stands
        return at_some(n, [&](std::size_t i) {
          float w = weight[i], m = first[i], v = second[i];
          const double g = gradient[i], m1 = 0.9 * m + 0.1 * g, v1 = 0.999 * v + 0.001 * g * g;
          const double expected = w * (1 - 1e-5) - 1e-3 * m1 / (std::sqrt(v1) + 1e-8);
          kernels.adamw(&w, gradient + i, &m, &v, 1);
          return near(w, expected, 1, 1e-5, "AdamW");
        });
      },
      library);
}

Prepared CpuOperators::collective(const OperatorRow& row) {
  const std::size_t n = whole(row.size[0]), ranks = static_cast<std::size_t>(ranks_.size()),
                    each = std::max<std::size_t>(1, n / ranks);
  const auto mine = static_cast<double>(ranks_.rank());
  float* const in = arena_.floats(each * ranks);
  float* const out = arena_.floats(each * ranks);
  // Small whole numbers: sums are exact. Element i of rank r is i % 13 + r; a sum over ranks is ranks * (i % 13) + r's.
  const auto fill = [=](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) in[i] = static_cast<float>(static_cast<double>(i % 13) + mine);
  };
  const double of_ranks = static_cast<double>(ranks * (ranks - 1)) / 2;
  const auto exact = [](float got, double expected, const char* what) { return near(got, expected, 0, 0, what); };
  RankGroup& group = ranks_;
  const std::string by = group.transport();
  switch (row.kind) {
    case OperatorKind::all_reduce:
      fill(n);
      return timed([=, &group] { return group.all_reduce(in, n); },
                   [=, &group] {
                     fill(n);
                     if (!group.all_reduce(in, n)) return Status(fail("a rank is gone", "all_reduce"));
                     return at_some(n, [&](std::size_t i) {
                       return exact(in[i], static_cast<double>(ranks * (i % 13)) + of_ranks, "an all-reduce");
                     });
                   },
                   by);
    case OperatorKind::all_gather:
      fill(each);
      return timed([=, &group] { return group.all_gather(in, each, out); },
                   [=] {
                     return at_some(each * ranks, [&](std::size_t i) {
                       return exact(out[i], static_cast<double>(i % each % 13 + i / each), "an all-gather");
                     });
                   },
                   by);
    case OperatorKind::reduce_scatter:
      fill(each * ranks);
      return timed([=, &group] { return group.reduce_scatter(in, each, out); },
                   [=] {
                     return at_some(each, [&](std::size_t i) {
                       const std::size_t at = static_cast<std::size_t>(mine) * each + i;
                       return exact(out[i], static_cast<double>(ranks * (at % 13)) + of_ranks, "a reduce-scatter");
                     });
                   },
                   by);
    default:
      break;
  }
  fill(each * ranks);
  return timed([=, &group] { return group.all_to_all(in, each, out); },
               [=] {
                 return at_some(each * ranks, [&](std::size_t i) {
                   const std::size_t at = static_cast<std::size_t>(mine) * each + i % each;
                   return exact(out[i], static_cast<double>(at % 13 + i / each), "an all-to-all");
                 });
               },
               by);
}

}  // namespace orrery
