#include "importers/log_text.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "importers/log_prefix.h"
#include "importers/log_records.h"
#include "importers/log_rows.h"
#include "importers/log_steps.h"

namespace orrery {
namespace {

std::uint64_t count_newlines(const char* s, std::size_t n) {
  std::uint64_t count = 0;
  const char* const end = s + n;
  while (s < end) {
    const void* found = std::memchr(s, '\n', static_cast<std::size_t>(end - s));
    if (found == nullptr) break;
    ++count;
    s = static_cast<const char*>(found) + 1;
  }
  return count;
}

// Without colours and other terminal sequences, and without the \r of \r\n.
void clean(std::string_view raw, std::string& out) {
  out.clear();
  out.reserve(raw.size());
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const char c = raw[i];
    if (c == '\r' && i + 1 < raw.size() && raw[i + 1] == '\n') continue;
    if (c != '\x1b') {
      out.push_back(c);
      continue;
    }
    if (i + 1 >= raw.size()) break;
    if (raw[i + 1] == '[') {  // CSI: parameters, then one final byte
      std::size_t k = i + 2;
      while (k < raw.size() && k < i + 32 && (raw[k] < '@' || raw[k] > '~') && raw[k] != '\n') ++k;
      i = k < raw.size() && raw[k] != '\n' ? k : k - 1;
    } else if (raw[i + 1] == ']') {  // OSC (titles, hyperlinks): up to BEL or ESC \, on this line
      std::size_t k = i + 2;
      while (k < raw.size() && raw[k] != '\a' && raw[k] != '\x1b' && raw[k] != '\n') ++k;
      if (k + 1 < raw.size() && raw[k] == '\x1b' && raw[k + 1] == '\\') ++k;
      i = k < raw.size() && raw[k] != '\n' && raw[k] != '\x1b' ? k : k - 1;
    } else if (raw[i + 1] != '\n') {
      ++i;
    }
  }
}

// UTF-16 (of a byte order mark) -> UTF-8, carrying half units over.
class Utf16 {
 public:
  explicit Utf16(bool big) : big_(big) {}
  void decode(std::string_view bytes, std::string& out) {
    for (const char c : bytes) {
      if (!half_) {
        first_ = static_cast<unsigned char>(c);
        half_ = true;
        continue;
      }
      half_ = false;
      const unsigned second = static_cast<unsigned char>(c);
      unit(big_ ? first_ << 8 | second : second << 8 | first_, out);
    }
  }

 private:
  static void put(char32_t c, std::string& out) {
    if (c < 0x80) {
      out.push_back(static_cast<char>(c));
    } else if (c < 0x800) {
      out.push_back(static_cast<char>(0xc0 | c >> 6));
      out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
    } else if (c < 0x10000) {
      out.push_back(static_cast<char>(0xe0 | c >> 12));
      out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
      out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
    } else {
      out.push_back(static_cast<char>(0xf0 | c >> 18));
      out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3f)));
      out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
      out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
    }
  }
  void unit(unsigned u, std::string& out) {
    if (u >= 0xd800 && u < 0xdc00) {
      high_ = u;
      return;
    }
    if (u >= 0xdc00 && u < 0xe000 && high_ != 0) {
      put(0x10000 + ((high_ - 0xd800) << 10) + (u - 0xdc00), out);
    } else if (u != 0xfeff) {
      put(u >= 0xd800 && u < 0xe000 ? U'?' : static_cast<char32_t>(u), out);
    }
    high_ = 0;
  }
  bool big_, half_ = false;
  unsigned first_ = 0, high_ = 0;
};

class Reader {
 public:
  Reader(const std::string& label, const LinePatterns& patterns, const LogReadOptions& options)
      : label_(label), options_(options), finder_(patterns.finder()), rows_(label, patterns, options) {}

  Result<LogTable> run(SourcePtr source, const std::function<bool(const LogTable&)>& follow_more) {
    auto first = peek(source, 3);
    if (!first) return tl::unexpected(first.error());
    std::optional<Utf16> utf16;
    if (first->substr(0, 2) == "\xff\xfe") utf16.emplace(false);
    if (first->substr(0, 2) == "\xfe\xff") utf16.emplace(true);
    std::string raw(options_.block, '\0'), buffer;
    for (;;) {
      const auto got = source->read(raw.data(), raw.size());
      if (!got) return tl::unexpected(got.error());
      if (*got == 0) {
        if (options_.states) states_so_far(buffer);
        if (!follow_more || !follow_more(rows_.so_far())) break;
        continue;
      }
      const std::string_view bytes(raw.data(), *got);
      rows_.table().files[0].bytes += *got;
      if (options_.on_progress) options_.on_progress(source->taken());
      if (utf16) {
        utf16->decode(bytes, buffer);
      } else {
        buffer.append(bytes);
      }
      const std::size_t last = buffer.rfind('\n');
      if (last != std::string::npos) {
        block(std::string_view(buffer).substr(0, last + 1));
        buffer.erase(0, last + 1);
      } else if (buffer.size() >= options_.block) {
        rows_.table().notes.add("line-cut", Severity::warning, 1,
                                label_ + ": line " + std::to_string(rows_.table().files[0].lines + 1),
                                "a line longer than a block is read in parts; patterns across their ends are missed");
        part_of_line(buffer);
        buffer.clear();
      }
    }
    if (!buffer.empty()) {
      buffer.push_back('\n');
      block(buffer);
    } else if (inside_line_) {
      ++rows_.table().files[0].lines;
    }
    const SourceTrouble trouble = source->trouble();
    if (trouble.kind != SourceTrouble::Kind::none)
      rows_.table().notes.add("input-damaged", Severity::data_loss, 1, label_ + ": " + trouble.what,
                              "what was read until there is answered");
    return rows_.finish();
  }

 private:
  void part_of_line(const std::string& text) {
    lines_in(std::string_view(text), false);
    inside_line_ = true;
  }

  void states_so_far(std::string& buffer) {
    const std::size_t last = buffer.rfind('\r');
    if (last == std::string::npos) return;
    part_of_line(buffer.substr(0, last + 1));
    buffer.erase(0, last + 1);
  }

  void block(std::string_view text) {
    lines_in(text, true);
    inside_line_ = false;
  }

  void lines_in(std::string_view text, bool ends_line) {
    LogFile& file = rows_.table().files[0];
    if (std::memchr(text.data(), '\0', text.size()) != nullptr)
      rows_.table().notes.add("binary-bytes", Severity::info, 1,
                              label_ + ": near line " + std::to_string(file.lines + 1),
                              "blocks that hold bytes of value zero; their lines are read all the same");
    if (std::memchr(text.data(), '\x1b', text.size()) != nullptr ||
        std::memchr(text.data(), '\r', text.size()) != nullptr) {
      clean(text, cleaned_);
      if (options_.states) std::replace(cleaned_.begin(), cleaned_.end(), '\r', kRecordBreak);
      text = cleaned_;
    }
    if (open_records(text, opened_)) text = opened_;
    hits_.clear();
    finder_->find(text, hits_);
    rows_.take(text, hits_, file.lines);
    rows_.see_time(text);
    const std::uint64_t lines = ends_line ? count_newlines(text.data(), text.size()) : 0;
    if (options_.shapes) shapes(text, file.lines);
    file.lines += lines;
  }

  void shapes(std::string_view text, std::uint64_t line) {
    const char* s = text.data();
    const char* const end = s + text.size();
    while (s < end) {
      const void* found = std::memchr(s, '\n', static_cast<std::size_t>(end - s));
      const char* const stop = found ? static_cast<const char*>(found) : end;
      rows_.count_shape({s, static_cast<std::size_t>(stop - s)}, ++line);
      s = stop + 1;
    }
  }

  const std::string& label_;
  const LogReadOptions& options_;
  std::unique_ptr<LineFinder> finder_;
  LogRowsWriter rows_;
  std::vector<PatternHit> hits_;
  std::string cleaned_, opened_;
  bool inside_line_ = false;
};

}  // namespace

Result<LogTable> read_log(SourcePtr source, const std::string& label, const LinePatterns& patterns,
                          const LogReadOptions& options, const std::function<bool(const LogTable&)>& follow_more) {
  Reader reader(label, patterns, options);
  return reader.run(std::move(source), follow_more);
}

}  // namespace orrery
