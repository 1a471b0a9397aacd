// Text of one window -> rows of one block.
#pragma once
#include <memory>
#include <optional>

#include "base/json_tokens.h"
#include "importers/kineto_rows.h"

namespace orrery {

class EventParser {
 public:
  // `kept`: buffers from another file, taken over and given back at the end; may be null.
  explicit EventParser(JsonTokens* kept = nullptr);
  ~EventParser();
  EventParser(const EventParser&) = delete;
  EventParser& operator=(const EventParser&) = delete;

  // Reads block.window into the block's tables. Empty: done. Else the first event that is no JSON, with its offset.
  std::optional<TextError> parse(RowBlock& block);

 private:
  struct State;
  std::unique_ptr<State> state_;
  JsonTokens* kept_;
};

}  // namespace orrery
