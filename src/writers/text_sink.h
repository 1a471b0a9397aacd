// Much text to a file in pieces, compressed on the way when the name asks for it.
#pragma once
#include <memory>
#include <string>

#include "base/output.h"

namespace orrery {

class TextSink {
 public:
  // gzip when `path` ends in .gz.
  static Result<TextSink> create(const std::string& path);
  TextSink(TextSink&&) noexcept;
  ~TextSink();

  // Text is appended here; spill() writes it out once it is large. After a failure nothing more is written and
  // finish() reports it.
  std::string text;
  void spill() {
    if (text.size() >= kPiece) write_out(false);
  }
  bool ok() const { return status_.has_value(); }
  Status finish();

 private:
  static constexpr std::size_t kPiece = 1 << 20;
  struct Gzip;
  explicit TextSink(OutputFile file);
  void write_out(bool last);

  OutputFile file_;
  std::unique_ptr<Gzip> gzip_;
  Status status_;
};

}  // namespace orrery
