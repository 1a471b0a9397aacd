// A trace document as a stream: windows of whole events, and the text of the metadata before and after them.
// Never holds more than one window; what cannot be read is told in `TraceText::trouble`.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "base/json_split.h"
#include "base/result.h"

namespace orrery {

// Whole elements of the events array, separated by commas: text[begin, end). text[begin - 1] may be written to, and
// kPadding bytes after `end` may be read and written.
struct EventWindow {
  static constexpr std::size_t kPadding = 80;  // simdjson reads 64 bytes past the closing bracket
  std::unique_ptr<char[]> text;
  std::size_t capacity = 0;  // bytes that may be filled; kPadding more are allocated
  std::size_t begin = 1, end = 1;
  std::uint64_t offset = 0;  // of text[begin] in the document
  std::uint64_t index = 0;   // 0, 1, 2 ... in file order

  void grow(std::size_t bytes, std::size_t keep);
  std::string_view view() const { return {text.get() + begin, end - begin}; }
};

struct MetadataMember {
  std::string key;             // as written
  std::string text;            // the JSON value as written; of a key given more than once the last
  std::uint64_t repeated = 0;  // how often before
};

// An error with its place in the decompressed document.
struct TextError {
  std::uint64_t offset = 0;
  std::string what;
  std::string quote;  // the offending event, shortened
  bool not_a_trace = false;
};

// A malformed stretch that was skipped (recover), or an event too large to hold.
struct SkippedText {
  std::uint64_t count = 0, bytes = 0, first_offset = 0;
  std::string first_what, first_quote;
};

// A comma too many or too few, forgiven.
struct CommaRepair {
  std::uint64_t count = 0, first_offset = 0;
  void add(std::uint64_t at) {
    if (count++ == 0) first_offset = at;
  }
};

class TraceText {
 public:
  struct Options {
    std::size_t window_bytes = std::size_t{1} << 20;
    std::size_t largest_event = std::size_t{64} << 20;
    bool recover = false;  // skip what is no JSON up to the next event
    JsonSplitter::Engine engine = JsonSplitter::Engine::best;
  };
  TraceText(ByteSource& source, const Options& options)
      : source_(source), options_(options), splitter_(options.engine) {}

  enum class Next : std::uint8_t { window, end, error };
  // Fills the window with the next events. After `end` the members below are complete; on `error`, `error()` says why.
  Next next(EventWindow& window);

  const TextError& error() const { return error_; }
  const std::optional<Error>& read_error() const { return read_error_; }  // the medium failed

  std::vector<MetadataMember> metadata;
  bool top_level_array = false;
  std::uint32_t event_arrays = 0;  // arrays of events met (more than one: duplicate key)
  bool cut = false;                // the document ended before its end
  std::uint64_t cut_at = 0;        // end of the last whole thing
  std::uint64_t cut_bytes = 0;     // bytes of the part that was lost
  std::string cut_in;              // "in an event", "in the metadata", "between events"
  std::uint64_t trailing_at = 0;   // first byte after the document, with trailing_kind
  enum class Trailing : std::uint8_t { none, padding, document, other } trailing = Trailing::none;
  SkippedText malformed, too_long;
  CommaRepair extra_commas;                      // before a closing bracket, or (recover) several in a row
  CommaRepair missing_commas;                    // between members of the document or (recover) between events
  std::string metadata_too_long;                 // key of a metadata value that was too long to keep
  std::uint64_t bytes() const { return read_; }  // of the document, as far as it was read

 private:
  enum class Phase : std::uint8_t { start, members, events, after, done };

  // Byte by byte, for everything but the events.
  int peek();
  int get();
  std::size_t read_into(char* to, std::size_t n);
  void skip_space();
  bool read_string(std::string* raw);
  bool read_value(std::string* raw, bool& shortened);
  bool start();
  bool members();
  void keep(MetadataMember member);
  void after();
  std::uint64_t offset() const { return read_ - (held_.size() - held_at_); }  // of the next held byte
  void set_cut(std::uint64_t at, std::uint64_t lost, const char* where);
  bool bad(std::uint64_t at, std::string what, std::string quote = {}, bool not_a_trace = false);

  // These return false on an error; `have` = the window holds events.
  bool events(EventWindow& window, bool& have);
  bool events_carefully(EventWindow& window, bool& have);
  bool take_window(EventWindow& window, std::size_t end, std::size_t rest, std::size_t filled, std::size_t scanned,
                   bool& have);
  bool finish_array(EventWindow& window, std::size_t filled, std::size_t close_at, bool& have);
  bool check_cut_element(const EventWindow& window, std::size_t filled, bool ended);

  std::size_t load(EventWindow& window);
  void fill(EventWindow& window, std::size_t& filled);
  void drop_front(EventWindow& window, std::size_t from, std::size_t& filled);
  JsonSplitter::Found scan_for_first_end(const EventWindow& window, std::size_t from, std::size_t filled);
  bool find_next_event(EventWindow& window, std::size_t& filled);
  void note_skipped(SkippedText& what, std::uint64_t at, std::string why, std::string_view text);

  ByteSource& source_;
  Options options_;
  JsonSplitter splitter_;
  Phase phase_ = Phase::start;
  std::vector<char> held_;  // read, not yet used: from held_at_ on
  std::size_t held_at_ = 0;
  std::size_t held_scanned_ = 0;  // events: how many of the held bytes the splitter has seen
  std::uint64_t read_ = 0;        // bytes read of the document
  bool source_ended_ = false;
  bool after_member_ = false, after_comma_ = false;  // of the top-level object: what was met last
  bool first_element_ = true;                        // no element of this array was passed yet
  bool dropping_ = false;                            // inside an event that is too long
  bool skipping_ = false;                            // recover: looking for the next event
  std::uint64_t next_index_ = 0;
  TextError error_;
  std::optional<Error> read_error_;
};

}  // namespace orrery
