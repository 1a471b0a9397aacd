#include "loadgen/event_stream.h"

#include <nlohmann/json.hpp>

namespace orrery {

void EventStream::line(std::string_view text) {
  if (text.empty()) {
    if (has_data_) on_data_(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kData = "data:";
  if (!text.starts_with(kData)) return;
  text.remove_prefix(kData.size());
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (has_data_) data_ += '\n';
  if (data_.size() + text.size() > kMostLine) {
    ++dropped_;
    return;
  }
  data_ += text;
  has_data_ = true;
}

void EventStream::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (after_return_ && bytes.front() == '\n') {  // of \r\n
      after_return_ = false;
      bytes.remove_prefix(1);
      continue;
    }
    after_return_ = false;
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, end);
    if (!skipping_ && rest_.size() + part.size() > kMostLine) {
      ++dropped_;
      skipping_ = true;
      rest_.clear();
    }
    if (end == std::string_view::npos) {
      if (!skipping_) rest_ += part;
      return;
    }
    if (!skipping_) {
      if (rest_.empty()) {
        line(part);
      } else {
        rest_ += part;
        line(rest_);
      }
    }
    rest_.clear();
    skipping_ = false;
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
  }
}

void EventStream::finish() {
  if (!rest_.empty() && !skipping_) line(rest_);
  rest_.clear();
  if (has_data_) on_data_(data_);
  data_.clear();
  has_data_ = false;
}

CompletionChunk read_chunk(std::string_view data) {
  CompletionChunk c;
  if (data == "[DONE]") {
    c.done = true;
    return c;
  }
  const nlohmann::json j = nlohmann::json::parse(data, nullptr, false);
  if (!j.is_object()) {
    c.error = "an event that is no JSON object";
    return c;
  }
  if (const auto e = j.find("error"); e != j.end() && !e->is_null()) {
    const auto message = e->is_object() ? e->find("message") : e->end();
    c.error = e->is_string()                                                  ? e->get<std::string>()
              : e->is_object() && message != e->end() && message->is_string() ? message->get<std::string>()
                                                                              : e->dump();
    return c;
  }
  if (const auto usage = j.find("usage"); usage != j.end() && usage->is_object()) {
    const auto number = [&](const char* key) -> std::int64_t {
      const auto n = usage->find(key);
      return n != usage->end() && n->is_number_integer() ? n->get<std::int64_t>() : -1;
    };
    c.prompt_tokens = number("prompt_tokens");
    c.completion_tokens = number("completion_tokens");
  }
  const auto choices = j.find("choices");
  if (choices == j.end() || !choices->is_array() || choices->empty() || !(*choices)[0].is_object()) return c;
  const auto& choice = (*choices)[0];
  const auto filled = [](const nlohmann::json& at, const char* key) {
    const auto text = at.find(key);
    return text != at.end() && text->is_string() && !text->get_ref<const std::string&>().empty();
  };
  c.text = filled(choice, "text");
  if (const auto delta = choice.find("delta"); delta != choice.end() && delta->is_object())
    c.text |= filled(*delta, "content") || filled(*delta, "reasoning_content");
  c.finished = filled(choice, "finish_reason");
  return c;
}

}  // namespace orrery
