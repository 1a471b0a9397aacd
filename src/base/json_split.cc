#include "base/json_split.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace orrery {
namespace {

inline std::uint64_t prefix_xor(std::uint64_t x) {
  x ^= x << 1;
  x ^= x << 2;
  x ^= x << 4;
  x ^= x << 8;
  x ^= x << 16;
  x ^= x << 32;
  return x;
}

// Bit i is set where byte i is escaped by a backslash. `carry` goes from block to block.
inline std::uint64_t escaped_bytes(std::uint64_t backslash, std::uint64_t& carry) {
  if (backslash == 0) {
    const std::uint64_t first = carry;
    carry = 0;
    return first;
  }
  std::uint64_t escaped = 0;
  bool active = carry != 0;
  if (active) escaped = 1;
  backslash &= ~escaped;
  carry = 0;
  while (backslash != 0) {
    const int i = std::countr_zero(backslash);
    if (i == 63) {
      carry = 1;
      break;
    }
    const std::uint64_t next = std::uint64_t{2} << i;
    escaped |= next;
    backslash &= ~(next | (next - 1));  // an escaped backslash escapes nothing
  }
  return escaped;
}

inline JsonSplitter::Masks classify_scalar(const char* p) {
  JsonSplitter::Masks m{0, 0, 0, 0};
  for (unsigned i = 0; i < 64; ++i) {
    const std::uint64_t bit = std::uint64_t{1} << i;
    switch (p[i]) {
      case '"':
        m.quote |= bit;
        break;
      case '\\':
        m.backslash |= bit;
        break;
      case '{':
      case '[':
        m.open |= bit;
        break;
      case '}':
      case ']':
        m.close |= bit;
        break;
      default:
        break;
    }
  }
  return m;
}

#if defined(__x86_64__)
inline std::uint64_t sse2_equal(const __m128i v[4], char c) {
  const __m128i want = _mm_set1_epi8(c);
  std::uint64_t m = 0;
  for (int i = 3; i >= 0; --i)
    m = (m << 16) | static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(v[i], want)));
  return m;
}

inline JsonSplitter::Masks classify_sse2(const char* p) {
  __m128i v[4], folded[4];
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
    folded[i] = _mm_or_si128(v[i], _mm_set1_epi8(0x20));  // '[' -> '{', ']' -> '}'
  }
  return {sse2_equal(v, '"'), sse2_equal(v, '\\'), sse2_equal(folded, '{'), sse2_equal(folded, '}')};
}

__attribute__((target("avx2"))) inline std::uint64_t avx2_equal(__m256i low, __m256i high, char c) {
  const __m256i want = _mm256_set1_epi8(c);
  const auto a = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, want)));
  const auto b = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, want)));
  return a | (std::uint64_t{b} << 32);
}

__attribute__((target("avx2"))) inline JsonSplitter::Masks classify_avx2(const char* p) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  const __m256i fold = _mm256_set1_epi8(0x20);
  const __m256i low_folded = _mm256_or_si256(low, fold), high_folded = _mm256_or_si256(high, fold);
  return {avx2_equal(low, high, '"'), avx2_equal(low, high, '\\'), avx2_equal(low_folded, high_folded, '{'),
          avx2_equal(low_folded, high_folded, '}')};
}
#endif

}  // namespace

bool JsonSplitter::supported(Engine engine) {
#if defined(__x86_64__)
  if (engine == Engine::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
  return true;
#else
  return engine == Engine::best || engine == Engine::scalar;
#endif
}

JsonSplitter::JsonSplitter(Engine engine) : engine_(engine) {
  if (engine_ != Engine::best) return;
  engine_ = supported(Engine::avx2) ? Engine::avx2 : (supported(Engine::sse2) ? Engine::sse2 : Engine::scalar);
}

// One block of 64 bytes. False when the array was closed.
#if defined(__GNUC__)
__attribute__((always_inline))
#endif
inline bool
JsonSplitter::block(const Masks& m, std::size_t at, Found& found) {
  const std::uint64_t quote = m.quote & ~escaped_bytes(m.backslash, escaped_);
  const std::uint64_t string = prefix_xor(quote) ^ in_string_;
  in_string_ = static_cast<std::uint64_t>(static_cast<std::int64_t>(string) >> 63);
  const std::uint64_t open = m.open & ~string;
  const std::uint64_t close = m.close & ~string;
  const auto closes = std::popcount(close);
  if (depth_ > closes) {  // cannot come back to the array's level in here
    depth_ += std::popcount(open) - closes;
    return true;
  }
  for (std::uint64_t both = open | close; both != 0; both &= both - 1) {
    const std::uint64_t bit = both & (~both + 1);
    if ((bit & open) != 0) {
      ++depth_;
      continue;
    }
    const std::size_t here = at + static_cast<std::size_t>(std::countr_zero(bit));
    if (depth_ == 0) {
      found.closed = true;
      found.close_at = here;
      return false;
    }
    if (--depth_ == 0) found.last_end = here + 1;
  }
  return true;
}

template <class Classify>
#if defined(__GNUC__)
__attribute__((always_inline))
#endif
inline void
JsonSplitter::blocks(const char* text, std::size_t to, Found& found, Classify classify) {
  while (found.scanned + 64 <= to) {
    if (!block(classify(text + found.scanned), found.scanned, found)) return;
    found.scanned += 64;
  }
}

void JsonSplitter::blocks_scalar(const char* text, std::size_t to, Found& found) {
  blocks(text, to, found, [](const char* p) { return classify_scalar(p); });
}

#if defined(__x86_64__)
void JsonSplitter::blocks_sse2(const char* text, std::size_t to, Found& found) {
  blocks(text, to, found, [](const char* p) { return classify_sse2(p); });
}

__attribute__((target("avx2,popcnt"))) void JsonSplitter::blocks_avx2(const char* text, std::size_t to, Found& found) {
  while (found.scanned + 64 <= to) {
    if (!block(classify_avx2(text + found.scanned), found.scanned, found)) return;
    found.scanned += 64;
  }
}
#else
void JsonSplitter::blocks_sse2(const char* text, std::size_t to, Found& found) { blocks_scalar(text, to, found); }
void JsonSplitter::blocks_avx2(const char* text, std::size_t to, Found& found) { blocks_scalar(text, to, found); }
#endif

JsonSplitter::Found JsonSplitter::scan(const char* text, std::size_t from, std::size_t to, bool final) {
  Found found;
  found.scanned = from;
  switch (engine_) {
    case Engine::avx2:
      blocks_avx2(text, to, found);
      break;
    case Engine::sse2:
      blocks_sse2(text, to, found);
      break;
    default:
      blocks_scalar(text, to, found);
  }
  if (final && !found.closed && found.scanned < to) {
    char rest[64];
    std::memset(rest, ' ', sizeof rest);
    std::memcpy(rest, text + found.scanned, to - found.scanned);
    if (block(classify_scalar(rest), found.scanned, found)) found.scanned = to;
  }
  return found;
}

}  // namespace orrery
