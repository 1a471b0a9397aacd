#include "operators/gpu_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "operators/cpu_kernels.h"

namespace orrery {
namespace {

constexpr std::size_t kRowWidth = 1'024;  // of softmax
constexpr unsigned kThreads = 256, kBlocks = 4'096;

std::size_t whole(double x) { return static_cast<std::size_t>(x); }
std::size_t bytes_in(Precision p) { return p == Precision::fp16 || p == Precision::bf16 ? 2 : 4; }

double now_ns() {
  return static_cast<double>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// fp16 <-> fp32 for values from -1 to 1 and sums of them; no infinities.
std::uint16_t to_fp16(float x) {
  const int exponent = x == 0 ? -15 : std::max(-15, std::ilogb(x));
  if (exponent < -14) return 0;
  const double mantissa = std::round((std::abs(static_cast<double>(x)) / std::ldexp(1.0, exponent) - 1) * 1'024);
  const int carried = exponent + (mantissa >= 1'024 ? 1 : 0);
  const auto fraction = static_cast<unsigned>(mantissa >= 1'024 ? 0 : mantissa);
  return static_cast<std::uint16_t>((x < 0 ? 0x8000u : 0u) | static_cast<unsigned>(carried + 15) << 10 | fraction);
}
float from_fp16(std::uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const double fraction = (h & 1'023) / 1'024.0;
  const double value = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return static_cast<float>((h & 0x8000) != 0 ? -value : value);
}

Status near(double got, double expected, double allowed, const char* what) {
  if (std::isfinite(got) && std::abs(got - expected) <= allowed) return {};
  return fail(fmt::format("wrong result of {}: {} where {} is right", what, got, expected));
}

template <class F>
Status at_some(std::size_t n, const F& f) {
  const std::size_t step = std::max<std::size_t>(1, n / 37);
  for (std::size_t i = 0; i < n; i += step)
    if (const Status ok = f(i); !ok) return ok;
  return f(n - 1);
}

// Roundings of one number, relative.
double rounding(Precision p) {
  switch (p) {
    case Precision::bf16:
      return 1.0 / 128;
    case Precision::fp16:
    case Precision::tf32:
      return 1.0 / 1'024;
    default:
      return 1e-5;
  }
}

}  // namespace

GpuOperators::GpuOperators(std::shared_ptr<GpuApi> api, int ranks) : api_(std::move(api)), ranks_(ranks) {}
GpuOperators::~GpuOperators() { forget(); }

void GpuOperators::forget() {
  (void)api_->wait();
  for (const Buffer& b : buffers_) {
    if (b.host) {
      api_->release_host(b.data);
    } else if (api_->use(b.device)) {
      api_->release(b.data);
    }
  }
  buffers_.clear();
  (void)api_->use(0);
}

void* GpuOperators::buffer(std::size_t bytes, int device, bool host) {
  if (!api_->use(device)) return nullptr;
  Buffer b{host ? api_->allocate_host(bytes) : api_->allocate(bytes), device, host};
  if (b.data != nullptr) buffers_.push_back(b);
  return api_->use(0) ? b.data : nullptr;
}

bool GpuOperators::fill(void* to, std::size_t elements, Precision p) {
  if (to == nullptr) return false;
  constexpr std::size_t kBlock = (std::size_t{1} << 20) - 3;  // odd: rows of a power of two are not all alike
  std::vector<float> wide(std::min(elements, kBlock));
  std::uint64_t state = 88'172'645'463'325'252u + elements;
  for (float& x : wide) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;  // Marsaglia's xorshift
    x = static_cast<float>(static_cast<std::int32_t>(state >> 32)) / 2'147'483'648.0f;
  }
  std::vector<std::uint16_t> narrow;
  if (bytes_in(p) == 2)
    for (const float x : wide) narrow.push_back(p == Precision::bf16 ? to_bf16(x) : to_fp16(x));
  const void* const from = narrow.empty() ? static_cast<const void*>(wide.data()) : narrow.data();
  for (std::size_t i = 0; i < elements; i += kBlock)
    if (!api_->to_device(static_cast<char*>(to) + i * bytes_in(p), from, std::min(kBlock, elements - i) * bytes_in(p)))
      return false;
  return true;
}

bool GpuOperators::read(const void* data, std::size_t elements, Precision p, std::vector<float>& out) const {
  out.resize(elements);
  if (bytes_in(p) == 4) return api_->to_host(out.data(), data, 4 * elements);
  std::vector<std::uint16_t> narrow(elements);
  if (!api_->to_host(narrow.data(), data, 2 * elements)) return false;
  for (std::size_t i = 0; i < elements; ++i)
    out[i] = p == Precision::bf16 ? from_bf16(narrow[i]) : from_fp16(narrow[i]);
  return true;
}

tl::unexpected<Error> GpuOperators::refused(const OperatorRow& row, const std::string& why) const {
  return fail(why, kernel_text(row));
}

Prepared GpuOperators::timed(std::function<bool()> once, std::function<Status()> check, std::string library) const {
  Prepared p;
  p.run = [api = api_, once = std::move(once)](std::int64_t n) {
    if (!api->mark(false)) return 0.0;
    for (std::int64_t i = 0; i < n; ++i)
      if (!once()) return 0.0;
    return api->mark(true) ? api->between_marks_ns() : 0.0;
  };
  p.check = std::move(check);
  p.library = std::move(library);
  return p;
}

Result<Prepared> GpuOperators::prepare(OperatorRow& row) {
  forget();
  switch (row.kind) {
    case OperatorKind::launch:
      if (!api_->has_kernels()) return refused(row, "no compiler for kernels here (NVRTC, hipRTC)");
      return launch();
    case OperatorKind::gemm:
      return gemm(row);
    case OperatorKind::attention:
      return attention(row);
    case OperatorKind::copy:
    case OperatorKind::add:
    case OperatorKind::stream:
    case OperatorKind::softmax:
      return by_elements(row);
    case OperatorKind::to_device:
    case OperatorKind::to_host:
      return host_copy(row);
    default:
      break;
  }
  if (is_collective(row.kind)) return collective(row);
  return refused(row, "is not measured on a GPU");
}

// What the host takes for a launch; the queue is emptied between some, so that it never waits for room in it.
Prepared GpuOperators::launch() {
  Prepared p;
  p.run = [api = api_](std::int64_t n) {
    constexpr std::int64_t kQueued = 256;
    double ns = 0;
    for (std::int64_t done = 0; done < n; done += kQueued) {
      if (!api->wait()) return 0.0;
      const double begin = now_ns();
      for (std::int64_t i = done; i < std::min(n, done + kQueued); ++i)
        if (!api->launch(GpuApi::Kernel::empty, 1, 1, nullptr)) return 0.0;
      ns += now_ns() - begin;
    }
    return api->wait() ? std::max(1.0, ns) : 0.0;
  };
  p.check = [] { return Status{}; };
  p.library = "compiled here";
  return p;
}

Result<Prepared> GpuOperators::gemm(const OperatorRow& row) {
  if (!api_->has_blas()) return refused(row, "no BLAS of the vendor here");
  if (!api_->supports(row.precision)) return refused(row, "its BLAS does not multiply this");
  const std::size_t batch = whole(row.size[0]), m = whole(row.size[1]), n = whole(row.size[2]), k = whole(row.size[3]);
  const Precision p = row.precision;
  const std::size_t e = bytes_in(p);
  void* const a = buffer(e * batch * m * k);
  void* const b = buffer(e * batch * k * n);
  void* const c = buffer(4 * batch * m * n);
  if (c == nullptr || !fill(a, batch * m * k, p) || !fill(b, batch * k * n, p)) return refused(row, api_->error());
  // By columns the rows of c are those of its transpose: c' = b' * a'.
  GpuGemm g;
  g.m = static_cast<int>(n), g.n = static_cast<int>(m), g.k = static_cast<int>(k), g.batch = static_cast<int>(batch);
  g.a = b, g.b = a, g.c = c;
  g.lda = g.ldc = g.m, g.ldb = g.k;
  g.stride_a = static_cast<long long>(k * n), g.stride_b = static_cast<long long>(m * k);
  g.stride_c = static_cast<long long>(m * n);
  g.precision = p, g.wide_result = true;
  const auto check = [=, this]() -> Status {
    std::vector<float> left, right, result;
    if (!api_->wait() || !read(a, batch * m * k, p, left) || !read(b, batch * k * n, p, right) ||
        !read(c, batch * m * n, Precision::fp32, result))
      return fail(api_->error());
    return at_some(batch * m * n, [&](std::size_t at) {
      const std::size_t of = at / (m * n), i = at / n % m, j = at % n;
      double sum = 0, sizes = 0;
      for (std::size_t d = 0; d < k; ++d) {
        const double x = static_cast<double>(left[of * m * k + i * k + d]) * right[of * k * n + d * n + j];
        sum += x, sizes += std::abs(x);
      }
      // tf32 rounds the operands; sums are fp32's
      return near(result[at], sum, (p == Precision::tf32 ? 2e-3 : 1e-5) * (sizes + 1), "a product");
    });
  };
  return timed([api = api_, g] { return api->gemm(g); }, check, api_->blas_name());
}

Result<Prepared> GpuOperators::attention(const OperatorRow& row) {
  const Precision p = row.precision;
  if (p != Precision::fp32 && p != Precision::bf16)
    return refused(row, "composed attention is measured in fp32 and bf16");
  if (!api_->has_blas() || !api_->has_kernels())
    return refused(row, "needs the vendor's BLAS and a compiler for kernels");
  const std::size_t heads = whole(row.size[0]), queries = whole(row.size[1]), keys = whole(row.size[2]),
                    dim = whole(row.size[3]), e = bytes_in(p);
  if (heads * queries > 2'000'000'000 || row.causal) return refused(row, "is too large, or causal");
  void* const q = buffer(e * heads * queries * dim);
  void* const k = buffer(e * heads * keys * dim);
  void* const v = buffer(e * heads * keys * dim);
  void* const scores = buffer(e * heads * queries * keys);
  void* const out = buffer(e * heads * queries * dim);
  if (scores == nullptr || out == nullptr || !fill(q, heads * queries * dim, p) || !fill(k, heads * keys * dim, p) ||
      !fill(v, heads * keys * dim, p))
    return refused(row, api_->error());
  GpuGemm first;  // scores' [keys, queries] = k [dim, keys]' * q' [dim, queries], by columns
  first.m = static_cast<int>(keys), first.n = static_cast<int>(queries), first.k = static_cast<int>(dim);
  first.batch = static_cast<int>(heads), first.precision = p;
  first.transpose_a = true;
  first.a = k, first.lda = first.k, first.stride_a = static_cast<long long>(keys * dim);
  first.b = q, first.ldb = first.k, first.stride_b = static_cast<long long>(queries * dim);
  first.c = scores, first.ldc = first.m, first.stride_c = static_cast<long long>(queries * keys);
  GpuGemm second;  // out' [dim, queries] = v' [dim, keys] * scores' [keys, queries]
  second.m = first.k, second.n = first.n, second.k = first.m;
  second.batch = first.batch, second.precision = p;
  second.a = v, second.lda = second.m, second.stride_a = first.stride_a;
  second.b = scores, second.ldb = second.k, second.stride_b = first.stride_c;
  second.c = out, second.ldc = second.m, second.stride_c = first.stride_b;
  const float by = 1 / std::sqrt(static_cast<float>(dim));
  const auto kernel = p == Precision::bf16 ? GpuApi::Kernel::softmax_bf16 : GpuApi::Kernel::softmax_fp32;
  const auto once = [api = api_, first, second, scores, heads, queries, keys, by, kernel] {
    void* data = scores;
    unsigned long long width = keys;
    float scale = by;
    void* arguments[] = {&data, &data, &width, &scale};
    return api->gemm(first) && api->launch(kernel, static_cast<unsigned>(heads * queries), kThreads, arguments) &&
           api->gemm(second);
  };
  const auto check = [=, this]() -> Status {
    std::vector<float> qs, ks, vs, result;
    if (!api_->wait() || !read(q, heads * queries * dim, p, qs) || !read(k, heads * keys * dim, p, ks) ||
        !read(v, heads * keys * dim, p, vs) || !read(out, heads * queries * dim, p, result))
      return fail(api_->error());
    return at_some(heads * queries * dim, [&](std::size_t at) {
      const std::size_t row_of = at / dim, head = row_of / queries, d = at % dim;
      std::vector<double> s(keys);
      double most = -1e300, sum = 0, expected = 0;
      for (std::size_t j = 0; j < keys; ++j) {
        for (std::size_t x = 0; x < dim; ++x)
          s[j] += static_cast<double>(qs[row_of * dim + x]) * ks[(head * keys + j) * dim + x];
        most = std::max(most, s[j] *= by);
      }
      for (double& x : s) sum += x = std::exp(x - most);
      for (std::size_t j = 0; j < keys; ++j) expected += s[j] / sum * vs[(head * keys + j) * dim + d];
      return near(result[at], expected, 1e-4 + 2 * rounding(p), "attention");
    });
  };
  return timed(once, check, api_->blas_name() + ", softmax compiled here");
}

Result<Prepared> GpuOperators::by_elements(const OperatorRow& row) {
  const std::size_t n = whole(row.size[0]);
  const Precision p = row.precision;
  const std::size_t e = bytes_in(p);
  const bool adds = row.kind == OperatorKind::add || row.kind == OperatorKind::stream;
  if (row.kind != OperatorKind::copy && !api_->has_kernels())
    return refused(row, "no compiler for kernels here (NVRTC, hipRTC)");
  if (p != Precision::fp32 && p != Precision::bf16) return refused(row, "is measured in fp32 and bf16");
  void* const x = buffer(e * n);
  void* const y = adds ? buffer(e * n) : x;
  void* const out = buffer(e * n);
  if (out == nullptr || !fill(x, n, p) || (adds && !fill(y, n, p))) return refused(row, api_->error());
  const auto compare = [=, this](const char* what, const auto& expected) -> Status {
    std::vector<float> xs, ys, result;
    if (!api_->wait() || !read(x, n, p, xs) || !read(y, n, p, ys) || !read(out, n, p, result))
      return fail(api_->error());
    return at_some(n, [&](std::size_t i) { return near(result[i], expected(xs, ys, i), 1e-5 + rounding(p), what); });
  };
  if (row.kind == OperatorKind::copy)
    return timed(
        [api = api_, out, x, bytes = e * n] { return api->copy(out, x, bytes); },
        [compare] { return compare("a copy", [](const auto& a, const auto&, std::size_t i) { return a[i]; }); },
        "the runtime");
  if (adds) {
    const auto kernel = p == Precision::bf16 ? GpuApi::Kernel::add_bf16 : GpuApi::Kernel::add_fp32;
    const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>((n + kThreads - 1) / kThreads, 1, kBlocks));
    return timed(
        [api = api_, x, y, out, n, kernel, blocks] {
          const void *left = x, *right = y;
          void* to = out;
          unsigned long long count = n;
          void* arguments[] = {&left, &right, &to, &count};
          return api->launch(kernel, blocks, kThreads, arguments);
        },
        [compare] { return compare("a sum", [](const auto& a, const auto& b, std::size_t i) { return a[i] + b[i]; }); },
        "compiled here");
  }
  const std::size_t width = std::min(n, kRowWidth), rows = n / width;
  const auto kernel = p == Precision::bf16 ? GpuApi::Kernel::softmax_bf16 : GpuApi::Kernel::softmax_fp32;
  return timed(
      [api = api_, x, out, width, rows, kernel] {
        const void* from = x;
        void* to = out;
        unsigned long long columns = width;
        float scale = 1;
        void* arguments[] = {&from, &to, &columns, &scale};
        return api->launch(kernel, static_cast<unsigned>(rows), kThreads, arguments);
      },
      [compare, width] {
        return compare("softmax", [width](const auto& a, const auto&, std::size_t i) {
          double sum = 0;
          const std::size_t first = i / width * width;
          for (std::size_t j = first; j < std::min(first + width, a.size()); ++j)
            sum += std::exp(static_cast<double>(a[j]));
          return static_cast<float>(std::exp(static_cast<double>(a[i])) / sum);
        });
      },
      "compiled here");
}

Result<Prepared> GpuOperators::host_copy(const OperatorRow& row) {
  const std::size_t bytes = whole(row.bytes);
  const bool down = row.kind == OperatorKind::to_device;
  void* const host = buffer(bytes, 0, true);
  void* const device = buffer(bytes);
  if (host == nullptr || device == nullptr) return refused(row, api_->error());
  for (std::size_t i = 0; i < bytes; ++i)
    static_cast<unsigned char*>(host)[i] = static_cast<unsigned char>(i * 131 + i / 251);
  if (!api_->to_device(device, host, bytes)) return refused(row, api_->error());
  Prepared p;
  p.run = [api = api_, host, device, bytes, down](std::int64_t n) {
    const double begin = now_ns();
    for (std::int64_t i = 0; i < n; ++i)
      if (!(down ? api->to_device(device, host, bytes) : api->to_host(host, device, bytes))) return 0.0;
    return std::max(1.0, now_ns() - begin);
  };
  // What comes back is not what was there before.
  if (!down) std::memset(host, 0, bytes);
  p.check = [this, host, device, bytes, down]() -> Status {
    std::vector<unsigned char> seen(bytes);
    if (!down) {
      std::memcpy(seen.data(), host, bytes);
    } else if (!api_->to_host(seen.data(), device, bytes)) {
      return fail(api_->error());
    }
    return at_some(bytes, [&](std::size_t i) {
      return near(seen[i], static_cast<unsigned char>(i * 131 + i / 251), 0, "a copy between host and device");
    });
  };
  p.library = "the runtime, pinned memory";
  return p;
}

Result<Prepared> GpuOperators::collective(const OperatorRow& row) {
  if (!api_->has_collectives()) return refused(row, "no NCCL or RCCL here");
  if (ranks_ > api_->devices())
    return refused(row, fmt::format("{} GPUs are asked for, {} are here", ranks_, api_->devices()));
  if (!api_->join(ranks_)) return refused(row, api_->error());
  const auto ranks = static_cast<std::size_t>(ranks_);
  const std::size_t n = whole(row.size[0]),
                    each = row.kind == OperatorKind::all_reduce ? n : std::max<std::size_t>(1, n / ranks);
  const std::size_t in_elements =
      row.kind == OperatorKind::reduce_scatter || row.kind == OperatorKind::all_to_all ? each * ranks : each;
  const std::size_t out_elements =
      row.kind == OperatorKind::all_gather || row.kind == OperatorKind::all_to_all ? each * ranks : each;
  const GpuApi::Collective which = row.kind == OperatorKind::all_reduce       ? GpuApi::Collective::all_reduce
                                   : row.kind == OperatorKind::all_gather     ? GpuApi::Collective::all_gather
                                   : row.kind == OperatorKind::reduce_scatter ? GpuApi::Collective::reduce_scatter
                                                                              : GpuApi::Collective::all_to_all;
  std::vector<float*> in, out;
  // Small whole numbers: element i of rank r is i % 13 + r, so that sums are exact.
  std::vector<float> values(in_elements);
  for (int r = 0; r < ranks_; ++r) {
    in.push_back(static_cast<float*>(buffer(4 * in_elements, r)));
    out.push_back(static_cast<float*>(buffer(4 * out_elements, r)));
    if (in.back() == nullptr || out.back() == nullptr) return refused(row, api_->error());
    for (std::size_t i = 0; i < in_elements; ++i) values[i] = static_cast<float>(i % 13 + static_cast<std::size_t>(r));
    if (!api_->use(r) || !api_->to_device(in.back(), values.data(), 4 * in_elements) || !api_->use(0))
      return refused(row, api_->error());
  }
  const auto wait_for_all = [api = api_, count = ranks_] {
    for (int r = 0; r < count; ++r)
      if (!api->use(r) || !api->wait()) return false;
    return api->use(0);
  };
  Prepared p;
  p.run = [api = api_, which, in, out, each, wait_for_all](std::int64_t times) {
    if (!wait_for_all()) return 0.0;
    const double begin = now_ns();
    for (std::int64_t i = 0; i < times; ++i)
      if (!api->exchange(which, in, out, each)) return 0.0;
    return wait_for_all() ? std::max(1.0, now_ns() - begin) : 0.0;
  };
  p.check = [=, this]() -> Status {
    if (!wait_for_all()) return fail(api_->error());
    const double of_ranks = static_cast<double>(ranks * (ranks - 1)) / 2;
    for (std::size_t r = 0; r < ranks; ++r) {
      std::vector<float> seen(out_elements);
      if (!api_->use(static_cast<int>(r)) || !api_->to_host(seen.data(), out[r], 4 * out_elements))
        return fail(api_->error());
      const Status ok = at_some(out_elements, [&](std::size_t i) {
        const std::size_t peer = i / each, at = i % each;
        double expected = 0;
        if (which == GpuApi::Collective::all_reduce) expected = static_cast<double>(ranks * (i % 13)) + of_ranks;
        if (which == GpuApi::Collective::all_gather) expected = static_cast<double>(at % 13 + peer);
        if (which == GpuApi::Collective::reduce_scatter)
          expected = static_cast<double>(ranks * ((r * each + i) % 13)) + of_ranks;
        if (which == GpuApi::Collective::all_to_all) expected = static_cast<double>((r * each + at) % 13 + peer);
        return near(seen[i], expected, 0, "a collective");
      });
      if (!ok) return ok;
    }
    return api_->use(0) ? Status{} : Status(fail(api_->error()));
  };
  p.library = api_->collectives_name();
  return p;
}

}  // namespace orrery
