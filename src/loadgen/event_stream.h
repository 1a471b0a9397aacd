// Server-sent events (WHATWG HTML, "Server-sent events"), as far as streaming completions need them, and what a chunk
// of such a completion says.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace orrery {

// Bytes as they come, cut anywhere -> the data of each event. Lines end in \n, \r\n or \r; data lines of one event are
// joined; comments and other fields are skipped.
class EventStream {
 public:
  explicit EventStream(std::function<void(std::string_view data)> on_data) : on_data_(std::move(on_data)) {}
  void feed(std::string_view bytes);
  void finish();  // the end of the body ends the last event
  // Bytes of a line that has not ended are kept up to this; a longer line is dropped and counted.
  static constexpr std::size_t kMostLine = 1 << 22;
  std::uint64_t dropped_lines() const { return dropped_; }

 private:
  void line(std::string_view text);

  std::function<void(std::string_view)> on_data_;
  std::string rest_, data_;
  bool has_data_ = false, after_return_ = false, skipping_ = false;
  std::uint64_t dropped_ = 0;
};

struct CompletionChunk {
  bool done = false;                                        // "[DONE]"
  bool text = false;                                        // carries a piece of the answer
  bool finished = false;                                    // says why the answer ended
  std::int64_t prompt_tokens = -1, completion_tokens = -1;  // usage, where told
  std::string error;                                        // what went wrong, or that it is no JSON
};
// Of /v1/completions (choices[0].text) and /v1/chat/completions (choices[0].delta.content).
CompletionChunk read_chunk(std::string_view data);

}  // namespace orrery
