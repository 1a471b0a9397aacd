#include "importers/trace_text.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/json_text.h"

namespace orrery {
namespace {

constexpr std::size_t kHeld = 64 * 1024;
constexpr std::size_t kLongestMetadata = std::size_t{64} << 20;
constexpr std::size_t kLongestKey = 4096;
constexpr std::size_t kQuote = 160;
// A window that has grown to this without an end in sight is looked at: is it one long event, or a stray quote?
constexpr std::size_t kSuspicious = std::size_t{8} << 20;
// Skipping keeps this much of a full buffer, so that an event's beginning is not cut in two.
constexpr std::size_t kOverlap = 4096;

constexpr std::array<std::string_view, 9> kWantedMetadata = {
    "orrery",   "distributedInfo", "deviceProperties", "baseTimeNanoseconds", "traceName", "host_name",
    "hostname", "metadata",        "otherData"};

constexpr std::array<std::string_view, 14> kEventKeys = {"ph", "cat",  "name", "pid", "tid", "ts",    "dur",
                                                         "id", "args", "s",    "bp",  "tts", "cname", "tdur"};

// Does an event begin at text[i] == '{'? -1: cannot tell before more of the text is there.
int begins_event(std::string_view text, std::size_t i) {
  const std::size_t n = text.size();
  auto skip = [&](std::size_t j) {
    while (j < n && is_json_space(text[j])) ++j;
    return j;
  };
  std::size_t j = skip(i + 1);
  if (j >= n) return -1;
  if (text[j] != '"') return 0;
  const std::size_t key = ++j;
  while (j < n && text[j] != '"' && j - key < 8) ++j;
  if (j >= n) return -1;
  const std::string_view name = text.substr(key, j - key);
  if (std::find(kEventKeys.begin(), kEventKeys.end(), name) == kEventKeys.end()) return 0;
  j = skip(j + 1);
  if (j >= n) return -1;
  return text[j] == ':' ? 1 : 0;
}

// Is text[i] == ']' the end of the events: followed by another member, or by the end of the document?
int ends_events(std::string_view text, std::size_t i, bool final) {
  const std::size_t n = text.size();
  std::size_t j = i + 1;
  while (j < n && is_json_space(text[j])) ++j;
  if (j >= n) return final ? 1 : -1;
  if (text[j] == '}') return 1;
  if (text[j] != ',') return 0;
  ++j;
  while (j < n && is_json_space(text[j])) ++j;
  if (j >= n) return final ? 0 : -1;
  return text[j] == '"' ? 1 : 0;
}

}  // namespace

void EventWindow::grow(std::size_t bytes, std::size_t keep) {
  if (bytes <= capacity) return;
  std::unique_ptr<char[]> bigger(new char[bytes + kPadding]);
  if (keep != 0) std::memcpy(bigger.get(), text.get(), keep);
  text = std::move(bigger);
  capacity = bytes;
}

bool TraceText::bad(std::uint64_t at, std::string what, std::string quote, bool not_a_trace) {
  error_ = {at, std::move(what), std::move(quote), not_a_trace};
  return false;
}

void TraceText::set_cut(std::uint64_t at, std::uint64_t lost, const char* where) {
  cut = true;
  cut_at = at;
  cut_bytes = lost;
  cut_in = where;
  phase_ = Phase::done;
}

std::size_t TraceText::read_into(char* to, std::size_t n) {
  if (source_ended_) return 0;
  auto got = source_.read(to, n);
  if (!got) read_error_ = got.error();
  if (!got || *got == 0) {
    source_ended_ = true;
    return 0;
  }
  read_ += *got;
  return *got;
}

int TraceText::peek() {
  if (held_at_ == held_.size()) {
    held_at_ = 0;
    held_.resize(kHeld);
    held_.resize(read_into(held_.data(), kHeld));
    if (held_.empty()) return -1;
  }
  return static_cast<unsigned char>(held_[held_at_]);
}

int TraceText::get() {
  const int c = peek();
  if (c >= 0) ++held_at_;
  return c;
}

void TraceText::skip_space() {
  for (int c = peek(); c >= 0 && is_json_space(static_cast<char>(c)); c = peek()) ++held_at_;
}

// After the opening quote; `raw` gets what is between the quotes. False at the end of the document.
bool TraceText::read_string(std::string* raw) {
  for (;;) {
    int c = get();
    if (c < 0) return false;
    if (c == '"') return true;
    if (raw != nullptr && raw->size() < kLongestKey) *raw += static_cast<char>(c);
    if (c != '\\') continue;
    c = get();
    if (c < 0) return false;
    if (raw != nullptr && raw->size() < kLongestKey) *raw += static_cast<char>(c);
  }
}

// A value of any kind, kept in `raw` unless that is null. False at the end of the document.
bool TraceText::read_value(std::string* raw, bool& shortened) {
  std::uint64_t depth = 0;
  auto add = [&](int c) {
    if (raw == nullptr) return;
    if (raw->size() < kLongestMetadata)
      *raw += static_cast<char>(c);
    else
      shortened = true;
  };
  for (;;) {
    int c = peek();
    if (c < 0) return false;
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) return true;  // after a scalar
    ++held_at_;
    add(c);
    if (c == '"') {
      for (bool open = true; open;) {
        c = get();
        if (c < 0) return false;
        add(c);
        if (c == '"') open = false;
        if (c == '\\') {
          c = get();
          if (c < 0) return false;
          add(c);
        }
      }
    } else if (c == '{' || c == '[') {
      ++depth;
      continue;
    } else if (c == '}' || c == ']') {
      --depth;
    } else {
      continue;
    }
    if (depth == 0) return true;
  }
}

bool TraceText::start() {
  if (peek() == 0xef) {  // byte order mark
    ++held_at_;
    if (get() != 0xbb || get() != 0xbf) return bad(0, "not JSON text", {}, true);
  }
  skip_space();
  const std::uint64_t at = offset();
  const int c = get();
  if (c < 0) {
    if (read_error_) return false;
    const SourceTrouble trouble = source_.trouble();
    if (read_ == 0 && trouble.kind != SourceTrouble::Kind::none) return bad(at, "not a byte can be unpacked");
    return bad(at, read_ == 0 ? "the file is empty" : "there is nothing but white space", {}, true);
  }
  if (c == '[') {
    top_level_array = true;
    ++event_arrays;
    phase_ = Phase::events;
    return true;
  }
  if (c == '{') {
    phase_ = Phase::members;
    return true;
  }
  const bool utf16 = (c == 0xff || c == 0xfe) && peek() == (c == 0xff ? 0xfe : 0xff);
  return bad(at, utf16 ? "UTF-16 text; a trace is UTF-8" : "not a trace: neither a JSON object nor an array", {}, true);
}

// Members of the top-level object until the events begin or the document ends.
bool TraceText::members() {
  for (;;) {
    skip_space();
    const std::uint64_t at = offset();
    int c = get();
    if (c == ',') {
      if (!after_member_) extra_commas.add(at);
      after_comma_ = after_comma_ || after_member_;
      after_member_ = false;
      continue;
    }
    if (c == '}') {
      if (after_comma_) extra_commas.add(at);
      phase_ = Phase::after;
      return true;
    }
    if (c < 0) {
      set_cut(at, 0, event_arrays == 0 ? "before the events" : "in the metadata after the events");
      return true;
    }
    if (c != '"') return bad(at, "malformed JSON: expected a key or '}'", {}, event_arrays == 0);
    if (after_member_) missing_commas.add(at);
    after_member_ = true;
    after_comma_ = false;
    std::string key;
    bool whole = read_string(&key);
    skip_space();
    if (whole && peek() >= 0 && peek() != ':')
      return bad(offset(), "malformed JSON: expected ':' after \"" + quote_for_people(key, 40) + '"', {},
                 event_arrays == 0);
    whole = whole && get() == ':';
    skip_space();
    if (whole && key == "traceEvents") {
      c = peek();
      if (c == '[') {
        ++held_at_;
        ++event_arrays;
        first_element_ = true;
        splitter_.reset();
        held_scanned_ = 0;
        phase_ = Phase::events;
        return true;
      }
      if (c >= 0) return bad(offset(), "traceEvents is not an array", {}, true);
    }
    const bool wanted = std::find(kWantedMetadata.begin(), kWantedMetadata.end(), key) != kWantedMetadata.end();
    MetadataMember member{std::move(key), {}, 0};
    bool shortened = false;
    whole = whole && read_value(wanted ? &member.text : nullptr, shortened);
    if (!whole) {
      set_cut(at, offset() - at, event_arrays == 0 ? "before the events" : "in the metadata after the events");
      return true;
    }
    if (shortened)
      metadata_too_long = member.key;
    else if (wanted)
      keep(std::move(member));
  }
}

void TraceText::keep(MetadataMember member) {
  for (MetadataMember& known : metadata) {
    if (known.key != member.key) continue;
    known.text = std::move(member.text);
    ++known.repeated;
    return;
  }
  metadata.push_back(std::move(member));
}

void TraceText::after() {
  phase_ = Phase::done;
  skip_space();
  if (peek() < 0) return;
  trailing_at = offset();
  trailing = Trailing::padding;
  int c = peek();
  while (c == 0 || (c >= 0 && is_json_space(static_cast<char>(c)))) {
    ++held_at_;
    c = peek();
  }
  if (c < 0) return;
  trailing_at = offset();
  trailing = c == '{' || c == '[' ? Trailing::document : Trailing::other;
}

TraceText::Next TraceText::next(EventWindow& window) {
  for (;;) {
    bool ok = true, have = false;
    switch (phase_) {
      case Phase::start:
        ok = start();
        break;
      case Phase::members:
        ok = members();
        break;
      case Phase::events:
        ok = events(window, have);
        break;
      case Phase::after:
        after();
        break;
      case Phase::done:
        if (read_error_) return Next::error;
        if (event_arrays == 0) {
          // Cut behind a trace's metadata it is one that lost its events, not some other file.
          bad(offset(), cut ? "the text ends before any traceEvents array" : "not a trace: no traceEvents array", {},
              !cut || metadata.empty());
          return Next::error;
        }
        return Next::end;
    }
    if (!ok || read_error_) {
      phase_ = Phase::done;
      return Next::error;
    }
    if (have) {
      window.index = next_index_++;
      return Next::window;
    }
  }
}

// Moves what was read and not yet used into the window; returns how far it is filled.
std::size_t TraceText::load(EventWindow& window) {
  const std::size_t held = held_.size() - held_at_;
  window.grow(std::max(options_.window_bytes, held + 1 + options_.window_bytes / 2), 0);
  if (held != 0) std::memcpy(window.text.get() + 1, held_.data() + held_at_, held);
  held_.clear();
  held_at_ = 0;
  return 1 + held;
}

void TraceText::fill(EventWindow& window, std::size_t& filled) {
  while (filled < window.capacity && !source_ended_)
    filled += read_into(window.text.get() + filled, window.capacity - filled);
}

void TraceText::drop_front(EventWindow& window, std::size_t from, std::size_t& filled) {
  std::memmove(window.text.get() + 1, window.text.get() + from, filled - from);
  filled -= from - 1;
}

void TraceText::note_skipped(SkippedText& what, std::uint64_t at, std::string why, std::string_view text) {
  if (what.count++ != 0) return;
  what.first_offset = at;
  what.first_what = std::move(why);
  what.first_quote = quote_for_people(text.substr(0, kQuote), kQuote);
}

bool TraceText::events(EventWindow& window, bool& have) {
  if (options_.recover) return events_carefully(window, have);
  std::size_t from = 1 + held_scanned_;
  std::size_t filled = load(window);
  for (;;) {
    fill(window, filled);
    if (read_error_) return false;
    const char* const text = window.text.get();
    if (dropping_) {
      const auto found = scan_for_first_end(window, from, filled);
      if (found.last_end != 0) {
        dropping_ = false;
        too_long.bytes += found.last_end - 1;
        return take_window(window, 1, found.last_end, filled, found.scanned, have);
      }
      too_long.bytes += found.scanned - 1;
      drop_front(window, found.scanned, filled);
      from = 1;
      if (source_ended_) set_cut(too_long.first_offset, too_long.bytes, "in an event");
      if (source_ended_) return true;
      continue;
    }
    const auto found = splitter_.scan(text, from, filled, source_ended_);
    from = found.scanned;
    if (found.closed) return finish_array(window, filled, found.close_at, have);
    if (found.last_end != 0) return take_window(window, found.last_end, found.last_end, filled, from, have);
    if (source_ended_) return check_cut_element(window, filled, true);
    if (window.capacity >= kSuspicious && !check_cut_element(window, filled, false)) return false;
    if (window.capacity < options_.largest_event) {
      window.grow(std::min(window.capacity * 2, options_.largest_event), filled);
      continue;
    }
    dropping_ = true;
    first_element_ = false;
    note_skipped(too_long, read_ - (filled - 1), "", {text + 1, filled - 1});
  }
}

// Behind an event that is too long the very first end counts, so go block by block.
JsonSplitter::Found TraceText::scan_for_first_end(const EventWindow& window, std::size_t from, std::size_t filled) {
  JsonSplitter::Found found;
  found.scanned = from;
  while (found.last_end == 0 && found.scanned + 64 <= filled)
    found = splitter_.scan(window.text.get(), found.scanned, found.scanned + 64, false);
  if (found.last_end == 0 && source_ended_) found = splitter_.scan(window.text.get(), found.scanned, filled, true);
  return found;
}

// Hands out text[1, end) and keeps text[rest, filled), of which the splitter has seen all before `scanned`.
bool TraceText::take_window(EventWindow& window, std::size_t end, std::size_t rest, std::size_t filled,
                            std::size_t scanned, bool& have) {
  char* const text = window.text.get();
  const std::uint64_t base = read_ - (filled - 1);  // offset of text[1]
  std::size_t begin = 1;
  while (begin < end && is_json_space(text[begin])) ++begin;
  if (!first_element_ && begin < end) {
    if (text[begin] != ',')
      return bad(base + begin - 1, "malformed JSON: expected ',' between events",
                 quote_for_people({text + begin, std::min(end - begin, kQuote)}, kQuote));
    ++begin;
    while (begin < end && is_json_space(text[begin])) ++begin;
  }
  held_.assign(text + rest, text + filled);
  held_at_ = 0;
  held_scanned_ = scanned > rest ? scanned - rest : 0;
  window.begin = begin;
  window.end = end;
  window.offset = base + begin - 1;
  have = begin < end;
  if (have) first_element_ = false;
  return true;
}

bool TraceText::finish_array(EventWindow& window, std::size_t filled, std::size_t close_at, bool& have) {
  const char* const text = window.text.get();
  if (text[close_at] != ']')
    return bad(read_ - (filled - close_at), "malformed JSON: '}' where ']' should end the events",
               quote_for_people({text + 1, std::min(close_at, kQuote)}, kQuote));
  std::size_t end = close_at;
  auto trim = [&] {
    while (end > 1 && is_json_space(text[end - 1])) --end;
  };
  trim();
  if (end > 1 && text[end - 1] == ',') {
    --end;
    extra_commas.add(read_ - (filled - end));
  }
  trim();
  phase_ = top_level_array ? Phase::after : Phase::members;
  return take_window(window, end, close_at + 1, filled, close_at + 1, have);
}

// No event ends in text[1, filled). At the end of the document: cut, or malformed? Before it: merely long, or
// malformed?
bool TraceText::check_cut_element(const EventWindow& window, std::size_t filled, bool ended) {
  const std::string_view text(window.text.get(), filled);
  const std::uint64_t base = read_ - (filled - 1);
  std::size_t i = 1;
  while (i < filled && (is_json_space(text[i]) || (text[i] == ',' && !first_element_))) ++i;
  if (i < filled && !options_.recover) {
    const JsonScan scan = scan_json_value(text, i);
    if (scan.state == JsonScan::State::bad)
      return bad(base + scan.at - 1, "malformed event: " + json_problem(scan),
                 quote_for_people(text.substr(i, kQuote), kQuote));
  }
  if (ended) set_cut(base + i - 1, filled - i, i < filled ? "in an event" : "between events");
  return true;
}

// The slow way: every element is scanned by the grammar, and what breaks it is skipped up to the next event.
bool TraceText::events_carefully(EventWindow& window, bool& have) {
  std::size_t filled = load(window);
  std::size_t i = 1;  // end of the last element
  for (;;) {
    fill(window, filled);
    if (read_error_) return false;
    if (skipping_) {
      if (find_next_event(window, filled)) continue;
      if (source_ended_) {
        malformed.bytes += filled - 1;
        set_cut(read_, 0, "in a malformed event");
        return true;
      }
      if (filled > kOverlap + 1) {
        malformed.bytes += filled - kOverlap - 1;
        drop_front(window, filled - kOverlap, filled);
      }
      window.grow(4 * kOverlap, filled);
      continue;
    }
    char* const text = window.text.get();
    const std::uint64_t base = read_ - (filled - 1);
    std::size_t last_end = 0, start = i;
    for (;;) {
      start = i;
      bool comma = first_element_ && last_end == 0;
      for (; start < filled && (is_json_space(text[start]) || text[start] == ','); ++start) {
        if (text[start] != ',') continue;
        if (comma) {
          extra_commas.add(base + start - 1);
          text[start] = ' ';
        }
        comma = true;
      }
      if (start == filled) break;
      if (text[start] == ']') return finish_array(window, filled, start, have);
      const JsonScan scan = scan_json_value({text, filled}, start);
      if (scan.state == JsonScan::State::cut) break;
      if (scan.state == JsonScan::State::whole && (comma || start > i)) {
        if (!comma) {
          missing_commas.add(base + i - 1);
          text[i] = ',';
        }
        i = last_end = scan.at;
        continue;
      }
      const bool whole = scan.state == JsonScan::State::whole;
      note_skipped(malformed, base + (whole ? start : scan.at) - 1, whole ? "expected ','" : json_problem(scan),
                   {text + start, filled - start});
      skipping_ = true;
      break;
    }
    if (skipping_ && last_end != 0) return take_window(window, last_end, start + 1, filled, 0, have);
    if (skipping_) {
      drop_front(window, start + 1, filled);
      i = 1;
    } else if (last_end != 0) {
      return take_window(window, last_end, last_end, filled, 0, have);
    } else if (source_ended_) {
      return check_cut_element(window, filled, true);
    } else if (window.capacity < options_.largest_event) {
      window.grow(std::min(window.capacity * 2, options_.largest_event), filled);
    } else {
      note_skipped(too_long, base + start - 1, "", {text + start, filled - start});
      skipping_ = true;
      drop_front(window, start + 1, filled);
      i = 1;
    }
  }
}

// Looks for the beginning of an event, or the end of the array, in text[1, filled); true when it was found and now
// stands at the front. False: not in here.
bool TraceText::find_next_event(EventWindow& window, std::size_t& filled) {
  char* const text = window.text.get();
  const std::string_view view(text, filled);
  char before = 0;  // the last character that is no space
  for (std::size_t p = 1; p < filled; ++p) {
    const char c = text[p];
    if (is_json_space(c)) continue;
    const bool event = c == '{' && before == ',';
    const bool end = c == ']' && before == '}';
    before = c;
    if (!event && !end) continue;
    const int verdict = event ? begins_event(view, p) : ends_events(view, p, source_ended_);
    if (verdict == 0) continue;
    if (verdict < 0) return false;
    malformed.bytes += p - 1;
    drop_front(window, event ? p - 1 : p, filled);
    if (event) text[1] = first_element_ ? ' ' : ',';
    skipping_ = false;
    return true;
  }
  return false;
}

}  // namespace orrery
