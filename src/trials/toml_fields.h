// One table of a TOML file, read key by key: the first error is kept, keys that nobody asked for are errors.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/closest.h"
#include "base/result.h"
#include "base/toml.h"

namespace orrery {

class TomlFields {
 public:
  TomlFields(const toml::table& table, const std::string& where, std::string name)
      : table_(table), where_(where), name_(std::move(name)) {}

  TomlFields& number(std::string_view key, double& to, double least, double most) {
    if (const toml::node* n = find(key)) {
      if (!n->is_number()) {
        refuse(*n, std::string(key) + " is not a number");
      } else {
        const double x = n->value<double>().value_or(0);
        if (in_limits(*n, key, x, least, most)) to = x;
      }
    }
    return *this;
  }
  TomlFields& whole(std::string_view key, std::int64_t& to, std::int64_t least, std::int64_t most) {
    if (const toml::node* n = find(key)) {
      if (!n->is_integer()) {
        refuse(*n, std::string(key) + " is not a whole number");
      } else if (in_limits(*n, key, static_cast<double>(n->as_integer()->get()), static_cast<double>(least),
                           static_cast<double>(most))) {
        to = n->as_integer()->get();
      }
    }
    return *this;
  }
  TomlFields& text(std::string_view key, std::string& to) {
    if (const toml::node* n = find(key)) {
      if (const auto* s = n->as_string(); s == nullptr || has_zero(s->get())) {
        refuse(*n, std::string(key) + " is not a text");
      } else {
        to = s->get();
      }
    }
    return *this;
  }
  TomlFields& flag(std::string_view key, bool& to) {
    if (const toml::node* n = find(key)) {
      if (const auto* b = n->as_boolean(); b == nullptr) {
        refuse(*n, std::string(key) + " is neither true nor false");
      } else {
        to = b->get();
      }
    }
    return *this;
  }
  TomlFields& texts(std::string_view key, std::vector<std::string>& to) {
    if (const toml::node* n = find(key)) {
      const toml::array* list = n->as_array();
      if (list == nullptr) {
        refuse(*n, std::string(key) + " is not a list of texts");
        return *this;
      }
      std::vector<std::string> out;
      for (const toml::node& item : *list) {
        const auto* s = item.as_string();
        if (s == nullptr || has_zero(s->get())) {
          refuse(item, std::string(key) + " holds something else than texts");
          return *this;
        }
        out.push_back(s->get());
      }
      to = std::move(out);
    }
    return *this;
  }
  // The node itself, for what is of several kinds.
  const toml::node* node(std::string_view key) { return find(key); }
  void refuse(const toml::node& n, std::string what, std::string advice = {}) {
    if (error_) return;
    const auto line = static_cast<std::int64_t>(n.source().begin.line);
    std::replace_if(
        what.begin(), what.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
    error_ = Error{"[" + name_ + "] " + std::move(what), where_ + ":" + std::to_string(line), std::move(advice)};
  }
  // The first thing that was wrong; else a key that is not known.
  Status finish() {
    if (!error_) {
      for (const auto& [key, n] : table_) {
        if (std::find(asked_.begin(), asked_.end(), key.str()) != asked_.end()) continue;
        const std::string_view near = closest(key.str(), asked_);
        refuse(n, "unknown key " + std::string(key.str()),
               near.empty() ? std::string() : "did you mean " + std::string(near) + "?");
        break;
      }
    }
    if (error_) return tl::unexpected<Error>(*error_);
    return {};
  }

 private:
  const toml::node* find(std::string_view key) {
    asked_.push_back(key);
    return table_.get(key);
  }
  static bool has_zero(const std::string& s) { return s.find('\0') != std::string::npos; }
  bool in_limits(const toml::node& n, std::string_view key, double x, double least, double most) {
    if (x >= least && x <= most) return true;  // not so: NaN
    refuse(n, fmt::format("{} = {:g} is not possible", key, x), fmt::format("from {:g} to {:g}", least, most));
    return false;
  }

  const toml::table& table_;
  const std::string& where_;
  std::string name_;
  std::vector<std::string_view> asked_;
  std::optional<Error> error_;
};

}  // namespace orrery
