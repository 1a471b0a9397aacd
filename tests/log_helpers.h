// Logs written by tests, read with the built-in rules.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/byte_source.h"
#include "importers/log_text.h"
#include "rules/diagnose.h"

namespace orrery::test {

inline const Matcher& built_in_matcher() {
  static const std::shared_ptr<Matcher> matcher = [] {
    Notes notes;
    auto m = Matcher::compile(*built_in_rules(), notes);
    EXPECT_TRUE(notes.rows.empty());  // no rule without the automaton
    return *m;
  }();
  return *matcher;
}

inline LogTable read_text_log(std::string_view text, const LogReadOptions& options = {},
                              const std::string& label = "a.log") {
  auto table = read_log(open_memory(text), label, built_in_matcher(), options);
  EXPECT_TRUE(table.has_value());
  return std::move(*table);
}

inline Diagnosis diagnose_text(std::string_view text) { return diagnose(read_text_log(text), built_in_matcher()); }

}  // namespace orrery::test
