// Finds where the elements of a JSON array end, without parsing them: follows strings and brackets, 64 bytes at a time
// (AVX2 where the machine has it, SSE2, or plain C++).
#pragma once
#include <cstddef>
#include <cstdint>

namespace orrery {

class JsonSplitter {
 public:
  enum class Engine : std::uint8_t { best, scalar, sse2, avx2 };
  explicit JsonSplitter(Engine engine = Engine::best);
  static bool supported(Engine engine);

  struct Found {
    std::size_t scanned = 0;  // bytes up to here need not be scanned again
    std::size_t last_end =
        0;  // one past the last object or array that ended at the array's own level; 0 = none in this call
    bool closed = false;  // the array's own closing bracket was met
    std::size_t close_at = 0;
  };

  // Scans text[from, to), where the state is that of text[from]. All of it when `final`, else whole blocks of 64 only.
  Found scan(const char* text, std::size_t from, std::size_t to, bool final);

  bool in_string() const { return in_string_ != 0; }
  bool between_elements() const { return depth_ == 0 && in_string_ == 0; }
  void reset() { depth_ = 0, in_string_ = 0, escaped_ = 0; }

  struct Masks {
    std::uint64_t quote, backslash, open, close;
  };

 private:
  bool block(const Masks& m, std::size_t at, Found& found);
  template <class Classify>
  void blocks(const char* text, std::size_t to, Found& found, Classify classify);
  void blocks_avx2(const char* text, std::size_t to, Found& found);
  void blocks_sse2(const char* text, std::size_t to, Found& found);
  void blocks_scalar(const char* text, std::size_t to, Found& found);

  std::int64_t depth_ = 0;
  std::uint64_t in_string_ = 0;  // all ones inside a string
  std::uint64_t escaped_ = 0;    // 1: the next byte is escaped
  Engine engine_;
};

}  // namespace orrery
