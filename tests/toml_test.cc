#include "base/toml.h"

#include <gtest/gtest.h>

#include <string>

namespace orrery {
namespace {

TEST(Toml, DeepKeysAreRefusedWithTheirLine) {
  const auto dotted = [](std::size_t dots) {
    std::string key = "a";
    for (std::size_t i = 0; i < dots; ++i) key += ".a";
    return "x = 1\n" + key + " = 1\n";
  };
  EXPECT_TRUE(toml_text::parse(dotted(400)).has_value());
  for (const std::size_t dots : {std::size_t{401}, std::size_t{1'000'000}}) {
    const auto deep = toml_text::parse(dotted(dots));
    ASSERT_FALSE(deep.has_value());
    EXPECT_EQ(deep.error().line, 2);
    EXPECT_EQ(deep.error().what, "a line with over 400 dots");
  }
  EXPECT_EQ(toml_text::parse(dotted(11), 10).error().what, "a line with over 10 dots");
  EXPECT_TRUE(toml_text::parse(dotted(10), 10).has_value());
}

TEST(Toml, WhatIsWrongIsSaidOnOneLine) {
  for (const std::string text : {"[a\nb]", "a = \"\x01\n", "\xc3\xa4 = 1", "a = 1F,p.5\n[[\x01\xd6", "a = 'b\n"}) {
    const auto parsed = toml_text::parse(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().what.find('\n'), std::string::npos) << parsed.error().what;
  }
}

// Characters above ASCII stand in quotes; a quote in the midst of a word opens nothing.
TEST(Toml, QuotesOpenWhereKeysAndValuesStand) {
  for (const std::string text :
       {"a = \"\xc3\xa4\"", "a = [ '\xc3\xa4', \"\xc3\xa4\" ]", "'\xc3\xa4' = 1", "[\"\xc3\xa4\".b]",
        "a.'\xc3\xa4' = 1", "a = { '\xc3\xa4' = 1 }", "a = \"\"\"\n\xc3\xa4\"\"\"  # \xc3\xa4",
        "a = 1 # '\n'\xc3\xa4' = 2", "a = [\n  '\xc3\xa4', # \"\n  '\xc3\xa4']"})
    EXPECT_TRUE(toml_text::parse(text).has_value()) << text;
  EXPECT_FALSE(toml_text::parse("a = b_\"\"\"\xd1\x9a").has_value());
}

}  // namespace
}  // namespace orrery
