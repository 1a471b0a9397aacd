// Records of comma-separated values, one after the other: quoted fields, any end of lines, a byte-order mark.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orrery {

inline std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

class CsvRecords {
 public:
  explicit CsvRecords(std::string_view text) : text_(text) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }
  std::uint64_t line() const { return record_line_; }  // where the last record begins

  enum class State { record, end, open_quote, stray_quote };
  State next(std::vector<std::string>& fields) {
    fields.clear();
    record_line_ = line_;
    if (at_ >= text_.size()) return State::end;
    while (true) {
      std::string field;
      while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
      if (at_ < text_.size() && text_[at_] == '"') {
        if (!quoted(field)) return State::open_quote;
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
        if (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n' && text_[at_] != '\r')
          return State::stray_quote;
      } else {
        std::size_t end = at_;
        while (end < text_.size() && text_[end] != ',' && text_[end] != '\r' && text_[end] != '\n') ++end;
        field = trimmed(text_.substr(at_, end - at_));
        at_ = end;
      }
      fields.push_back(std::move(field));
      if (at_ < text_.size() && text_[at_] == ',') {
        ++at_;
        continue;
      }
      end_of_line();
      return State::record;
    }
  }

 private:
  bool quoted(std::string& field) {
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') {
          ++at_;
          return true;
        }
        ++at_;
      }
      if (text_[at_] == '\n') ++line_;
      field += text_[at_];
    }
    return false;
  }
  void end_of_line() {
    if (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ < text_.size() && text_[at_] == '\n') ++at_;
    ++line_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::uint64_t line_ = 1, record_line_ = 1;
};

}  // namespace orrery
