#include "base/json_tokens.h"

#include <simdjson.h>

#include <algorithm>

namespace orrery {

struct JsonTokens::Impl {
  std::unique_ptr<simdjson::internal::dom_parser_implementation> parser;
};

JsonTokens::JsonTokens() : impl_(std::make_unique<Impl>()) {}
JsonTokens::~JsonTokens() = default;
JsonTokens::JsonTokens(JsonTokens&&) noexcept = default;
JsonTokens& JsonTokens::operator=(JsonTokens&&) noexcept = default;

const char* JsonTokens::find(const char* text, std::size_t size) {
  static_assert(kPadding >= simdjson::SIMDJSON_PADDING);
  auto& parser = impl_->parser;
  simdjson::error_code error = simdjson::SUCCESS;
  if (size > 0xffffffffu - 64) return "longer than 4 GB";
  // windows end where events do, each a little longer or shorter: with some room the buffers stay
  const std::size_t room = std::min<std::size_t>(size + size / 4, 0xffffffffu - 64);
  if (!parser)
    error = simdjson::get_active_implementation()->create_dom_parser_implementation(room, 1, parser);
  else if (parser->capacity() < size)
    error = parser->set_capacity(room);
  if (!error) error = parser->stage1(reinterpret_cast<const std::uint8_t*>(text), size, simdjson::stage1_mode::regular);
  if (error) return simdjson::error_message(error);
  at_ = parser->structural_indexes.get();
  count_ = parser->n_structural_indexes;
  return nullptr;
}

}  // namespace orrery
