// Faults that traces have been reported with, each as a tiny input and its right value: parsing, time and durations.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "import_helpers.h"

namespace orrery {
namespace {

using namespace orrery::testing;

TEST(ImportFaults, UnescapedQuotesInANameAreAnErrorWithItsPlace) {
  const std::string text =
      document({cpu_op("a", "1", "1"), cpu_op(R"({"device": "cpu"}(12): run)", "2", "1"), cpu_op("c", "3", "1")});
  const auto failed = import_text(text);
  ASSERT_FALSE(failed.has_value());
  const std::string line = failed.error().line();
  const std::size_t at = text.find("device\":");
  EXPECT_NE(line.find("byte " + std::to_string(at) + " (line 5)"), std::string::npos) << line;
  EXPECT_NE(line.find(R"("name": "{"device")"), std::string::npos) << line;
  EXPECT_NE(line.find("--recover"), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);

  const auto t = import_text(text, true);
  ORRERY_IMPORTED(t);
  ASSERT_EQ(t->ops.size(), 2u);
  EXPECT_EQ(name(*t, 0), "a");
  EXPECT_EQ(name(*t, 1), "c");
  EXPECT_EQ(noted(t->notes, "malformed-event"), 1u);
  EXPECT_TRUE(t->notes.lost_data());
}

TEST(ImportFaults, OneStrayQuoteDoesNotHideTheRestOfTheFile) {
  for (const std::size_t where : {0u, 1u, 2u, 500u, 998u, 999u}) {
    std::vector<std::string> events;
    for (std::size_t i = 0; i < 1000; ++i)
      events.push_back(cpu_op(i == where ? "a\"b" : "op" + std::to_string(i), std::to_string(i * 10), "5"));
    const std::string text = document(events, R"("baseTimeNanoseconds": 7)");
    const auto failed = import_text(text);
    ASSERT_FALSE(failed.has_value()) << where;
    EXPECT_NE(failed.error().line().find("byte " + std::to_string(text.find("a\"b") + 2)), std::string::npos)
        << failed.error().line();
    const auto t = import_text(text, true);
    ORRERY_IMPORTED(t);
    EXPECT_EQ(t->ops.size(), 999u) << where;
    EXPECT_EQ(noted(t->notes, "malformed-event"), 1u);
    EXPECT_EQ(t->base_ns, 7);  // the metadata behind the events were found again
    EXPECT_EQ(noted(t->notes, "truncated"), 0u) << all_notes(t->notes);
  }
}

TEST(ImportFaults, ControlCharactersAreReadWithOneWarning) {
  const auto t = import_text(document({cpu_op("a\x01"
                                              "b",
                                              "1", "1"),
                                       cpu_op("c\nd", "2", "1"), cpu_op("e\\n\\u0002f", "3", "1")}));
  ORRERY_IMPORTED(t);
  ASSERT_EQ(t->ops.size(), 3u);
  EXPECT_EQ(name(*t, 0),
            "a\x01"
            "b");
  EXPECT_EQ(name(*t, 1), "c\nd");
  EXPECT_EQ(name(*t, 2),
            "e\n\x02"
            "f");
  const Note* n = note(t->notes, "control-characters");
  ASSERT_NE(n, nullptr);
  EXPECT_EQ(n->count, 2u);
  EXPECT_EQ(n->severity, Severity::warning);
  EXPECT_EQ(t->notes.rows.size(), 1u) << all_notes(t->notes);
}

TEST(ImportFaults, BareTokensAreMissingValues) {
  const auto t = import_text(document({
      event(
          "k", "kernel", "7", "1", "2",
          R"("args": {"device": 0, "stream": 7, "correlation": 3, "est. achieved occupancy %": N/A, "blocks per SM": inf, "x": NaN})"),
      event("open", "cpu_op", "100", "5", "NaN"),
      event("bad", "cpu_op", "100", "NaN", "1"),
      event("later", "cpu_op", "100", "6", "1"),
  }));
  ORRERY_IMPORTED(t);
  ASSERT_EQ(t->ops.size(), 3u);
  EXPECT_EQ(t->ops.dur[0], 2000);
  EXPECT_EQ(t->ops.corr[0], 3);
  EXPECT_TRUE(std::isnan(t->kernel_args.occupancy_pct[0]));
  EXPECT_TRUE(std::isnan(t->kernel_args.blocks_per_sm[0]));
  EXPECT_EQ(noted(t->notes, "missing-value"), 4u);  // two of the kernel, a dur, a ts; "x" is not read
  EXPECT_EQ(noted(t->notes, "open-event"), 1u);
  EXPECT_EQ(noted(t->notes, "event-without-time"), 1u);
  EXPECT_EQ(t->events, 4u);
}

TEST(ImportFaults, LargeIntegersAndInvalidBytes) {
  const auto t = import_text(document({
      event("k", "kernel", "7", "1", "2",
            R"("args": {"device": 0, "stream": 7, "Comms Id": 18446744073709551615, "correlation": 1})"),
      cpu_op("x\xffy", "1", "1"),
      event("sent", "cpu_op", "18446744073709551615", "3", "1"),
  }));
  ORRERY_IMPORTED(t);
  ASSERT_EQ(t->ops.size(), 3u);
  EXPECT_EQ(name(*t, 1), "x\xef\xbf\xbdy");
  EXPECT_EQ(noted(t->notes, "invalid-utf8"), 1u);
  const LaneId lane = t->ops.lane[2];
  EXPECT_EQ(t->strings.view(t->lanes.tid_text[raw(lane)]), "18446744073709551615");
  EXPECT_FALSE(t->notes.lost_data());
}

TEST(ImportFaults, FractionsThatAreNotPadded) {
  // Zeros at the end of some fractions: this writer pads on the right, so ".5" beside ".010" cannot be trusted.
  const auto doubtful = import_text(document({cpu_op("A", "100", "0.5"), cpu_op("B", "100.010", "1")}));
  ORRERY_IMPORTED(doubtful);
  EXPECT_EQ(noted(doubtful->notes, "fraction-not-padded"), 1u);
  EXPECT_EQ(doubtful->ops.end(0), 100500);
  EXPECT_EQ(doubtful->ops.start[1], 100010);
  // A writer that never leaves zeros at the end (Python's) means what it writes.
  const auto plain = import_text(document({cpu_op("A", "100.5", "0.25"), cpu_op("B", "100.125", "1.0")}));
  ORRERY_IMPORTED(plain);
  EXPECT_EQ(noted(plain->notes, "fraction-not-padded"), 0u);
}

TEST(ImportFaults, TruncatedAndTrailingAreToldApart) {
  const std::string whole =
      document({cpu_op("a", "1", "1"), cpu_op("b", "2", "1"), cpu_op("c", "3", "1")}, R"("baseTimeNanoseconds": 5)");
  const std::size_t in_third = whole.find("\"c\"") + 1;
  const auto cut = import_text(std::string_view(whole).substr(0, in_third));
  ORRERY_IMPORTED(cut);
  EXPECT_EQ(cut->ops.size(), 2u);
  ASSERT_NE(note(cut->notes, "truncated"), nullptr);
  EXPECT_EQ(note(cut->notes, "truncated")->severity, Severity::data_loss);
  EXPECT_NE(note(cut->notes, "truncated")->first.find("byte " + std::to_string(in_third)), std::string::npos);
  EXPECT_EQ(note(cut->notes, "trailing-document"), nullptr);

  const auto twice = import_text(whole + whole);
  ORRERY_IMPORTED(twice);
  EXPECT_EQ(twice->ops.size(), 3u);
  EXPECT_EQ(twice->base_ns, 5);
  EXPECT_EQ(note(twice->notes, "truncated"), nullptr);
  ASSERT_NE(note(twice->notes, "trailing-document"), nullptr);
  EXPECT_TRUE(twice->notes.lost_data());
  EXPECT_NE(note(twice->notes, "trailing-document")->first.find("byte " + std::to_string(whole.size())),
            std::string::npos);

  const auto padded = import_text(whole + std::string(100, '\0'));
  ORRERY_IMPORTED(padded);
  EXPECT_FALSE(padded->notes.lost_data());
  EXPECT_EQ(noted(padded->notes, "trailing-data"), 1u);
  EXPECT_TRUE(import_text(whole + " \n\t ")->notes.rows.empty());
}

TEST(ImportFaults, EveryPrefixIsAnErrorOrSaysWhatWasLost) {
  const std::string whole = document({cpu_op("a", "1", "1"), kernel("k", "7", "2.5", "1", "4")}, R"("traceName": "x")");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const auto t = import_text(std::string_view(whole).substr(0, n));
    if (t) {
      EXPECT_EQ(noted(t->notes, "truncated"), n + 2 > whole.size() ? 0u : 1u) << n;
      EXPECT_EQ(t->ops.size(), t->events);
    } else {
      EXPECT_EQ(t.error().line().find('\n'), std::string::npos);
    }
  }
}

TEST(ImportFaults, ArrayNeverClosed) {
  const auto t = import_text("[" + cpu_op("a", "1", "1") + ",\n" + cpu_op("b", "2", "1") + ",\n");
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->ops.size(), 2u);
  EXPECT_EQ(noted(t->notes, "truncated"), 1u);
  const auto closed = import_text("[" + cpu_op("a", "1", "1") + ",\n" + cpu_op("b", "2", "1") + ",\n]");
  ORRERY_IMPORTED(closed);
  EXPECT_EQ(closed->ops.size(), 2u);
  EXPECT_EQ(all_notes(closed->notes), "extra-comma x1 (byte 167 (line 2)) ");
}

TEST(ImportFaults, ShiftedHeadOfALaterSession) {
  std::vector<std::string> events;
  for (int i = 0; i < 10; ++i) {
    const std::string n = std::to_string(i + 1);
    events.push_back(launch("cudaLaunchKernel", std::to_string(1000 + 10 * i), "5", n));
    const std::int64_t ts = 1004 + 10 * i - (i < 2 ? 100'000'000'000 : 0);
    events.push_back(kernel("k" + n, "7", std::to_string(ts), "3", n));
  }
  const auto t = import_text(document(events));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->ops.size(), 18u);
  EXPECT_EQ(noted(t->notes, "gpu-event-outside-window"), 2u);
  EXPECT_EQ(note(t->notes, "gpu-event-outside-window")->severity, Severity::warning);
  EXPECT_EQ(t->window_start, 1'000'000);
  EXPECT_EQ(t->kernel_args.size(), 10u);  // rows of dropped kernels stay behind, nothing points to them

  // The same without any launch.
  std::vector<std::string> only_kernels;
  for (std::size_t i = 1; i < events.size(); i += 2) only_kernels.push_back(events[i]);
  const auto bare = import_text(document(only_kernels));
  ORRERY_IMPORTED(bare);
  EXPECT_EQ(bare->ops.size(), 8u);

  // A launch that merely comes late (100 us) is no such fault.
  const auto late =
      import_text(document({launch("cudaLaunchKernel", "200", "5", "1"), kernel("k", "7", "98", "3", "1")}));
  ORRERY_IMPORTED(late);
  EXPECT_EQ(late->ops.size(), 2u);
  EXPECT_TRUE(late->notes.rows.empty());
}

TEST(ImportFaults, UnfinishedOperators) {
  const auto t = import_text(document({
      cpu_op("parent", "0", "100"),
      cpu_op("minus", "10", "-1"),
      cpu_op("inside", "20", "5"),
      cpu_op("absurd", "200", "9.2e15"),
      cpu_op("int_min", "210", "-9223372036854775"),
      cpu_op("last", "300", "50"),
      kernel("k", "7", "320", "-1", "1"),
  }));
  ORRERY_IMPORTED(t);
  ASSERT_EQ(t->ops.size(), 7u);
  EXPECT_EQ(t->ops.end(1), 100'000);  // its parent's end
  EXPECT_EQ(t->ops.end(3), 350'000);  // the window's end
  EXPECT_EQ(t->ops.end(4), 350'000);
  EXPECT_EQ(t->ops.dur[6], 0);  // work that is not known is not invented
  EXPECT_EQ(t->open_ops, (std::vector<OpId>{OpId{1}, OpId{3}, OpId{4}, OpId{6}}));
  EXPECT_EQ(noted(t->notes, "open-event"), 4u);
  EXPECT_EQ(t->window_end, 350'000);
}

TEST(ImportFaults, NoRounding) {
  const auto t = import_text(document({kernel("k", "7", "100.7", "0.2", "1")}));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->ops.start[0], 100700);
  EXPECT_EQ(t->ops.dur[0], 200);
}

TEST(ImportFaults, BaseTimeBehindTheEvents) {
  const auto a = import_text(document({cpu_op("a", "1000.5", "1")}, R"("baseTimeNanoseconds": 1719853884000000000)"));
  const auto b = import_text(document({cpu_op("a", "1000.5", "1")}, R"("baseTimeNanoseconds": "1719853889000000000")"));
  ORRERY_IMPORTED(a);
  ORRERY_IMPORTED(b);
  EXPECT_EQ(a->ops.start[0], 1719853884001000500);
  EXPECT_EQ(b->ops.start[0] - a->ops.start[0], 5'000'000'000);
  EXPECT_EQ(a->window_start, a->ops.start[0]);
  // Before the events, or too large.
  const auto front = import_text(R"({"baseTimeNanoseconds": 3, "traceEvents": [)" + cpu_op("a", "1", "1") + "]}");
  ORRERY_IMPORTED(front);
  EXPECT_EQ(front->ops.start[0], 1003);
  const auto huge =
      import_text(document({cpu_op("a", "9000000000000000", "1")}, R"("baseTimeNanoseconds": 9000000000000000000)"));
  ORRERY_IMPORTED(huge);
  EXPECT_EQ(huge->base_ns, 0);
  EXPECT_EQ(noted(huge->notes, "base-time-too-large"), 1u);
}

TEST(ImportFaults, OverrunsAreToldAndLeftAlone) {
  std::vector<std::string> events;
  for (int i = 0; i < 100; ++i)
    events.push_back(kernel("k", "7", std::to_string(20 * i), i == 40 ? "2000000" : "10", "0"));
  events.push_back(kernel("tie", "7", "0", "10", "0"));
  const auto t = import_text(document(events));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(noted(t->notes, "duration-overrun"), 1u);
  EXPECT_EQ(t->ops.dur[40], 2'000'000'000);
  // Overlaps of a few microseconds are how the hardware works.
  const auto fine = import_text(document({kernel("a", "7", "3", "3.776", "1"), kernel("b", "7", "5", "2", "2")}));
  ORRERY_IMPORTED(fine);
  EXPECT_TRUE(fine->notes.rows.empty()) << all_notes(fine->notes);
}

TEST(ImportFaults, ZeroTimes) {
  const auto t = import_text(document({cpu_op("a", "0", "1"), cpu_op("b", "6322354292607.884", "1")}));
  ORRERY_IMPORTED(t);
  ASSERT_EQ(t->ops.size(), 1u);
  EXPECT_EQ(noted(t->notes, "zero-time"), 1u);
  EXPECT_EQ(t->window_start, 6322354292607884);
  const auto relative = import_text(document({cpu_op("a", "0", "1"), cpu_op("b", "5", "1")}));
  ORRERY_IMPORTED(relative);
  EXPECT_EQ(relative->ops.size(), 2u);
}

TEST(ImportFaults, TimesAsText) {
  const auto t = import_text(document({cpu_op("a", "\"1004498730485\"", "\"1176\"")}));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->ops.start[0], 1004498730485000);
  EXPECT_EQ(t->ops.dur[0], 1176000);
  EXPECT_EQ(noted(t->notes, "time-as-text"), 2u);
}

TEST(ImportFaults, TimesBeyondInt64CannotBeUsed) {
  const auto t =
      import_text(document({cpu_op("a", "9223372036854776", "1"), cpu_op("b", "1e30", "1"), cpu_op("c", "5", "1")}));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->ops.size(), 1u);
  EXPECT_EQ(noted(t->notes, "event-without-time"), 2u);
}

TEST(ImportFaults, UnknownCorrelationIsZero) {
  const auto t = import_text(document({kernel("a", "7", "1", "1", "-1"), kernel("b", "7", "3", "1", "0"),
                                       event("c", "kernel", "7", "5", "1"), kernel("d", "7", "7", "1", "null")}));
  ORRERY_IMPORTED(t);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(t->ops.corr[i], 0) << i;
  EXPECT_TRUE(t->notes.rows.empty()) << all_notes(t->notes);
}

TEST(ImportFaults, WhatIsNoTrace) {
  for (const std::string text : {"",
                                 "   \n",
                                 "hello",
                                 "\xff\xfe[\0",
                                 "{}",
                                 R"({"a": 1})",
                                 R"({"traceEvents": {}})",
                                 R"({"traceEvents": 5})",
                                 R"({"traceEvents": []})",
                                 "[]",
                                 "[1, 2, 3]",
                                 R"([{"a": 1}])",
                                 R"({"traceEvents": [)",
                                 "[",
                                 "[{",
                                 "{",
                                 "\"text\"",
                                 "12",
                                 "null",
                                 R"({"traceEvents" [] })"}) {
    const auto t = import_text(text);
    ASSERT_FALSE(t.has_value()) << text;
    EXPECT_EQ(t.error().where.rfind("test.json", 0), 0u) << t.error().line();
    EXPECT_EQ(t.error().line().find('\n'), std::string::npos);
  }
}

TEST(ImportFaults, StrayQuotesInArgumentsDoNotPass) {
  for (const char* args :
       {R"({"Concrete Inputs": ["{"x": 1}"]})", R"({"unused": {"deep": ["a"b"c"]}})", R"({"unused": [1, 2}})",
        R"({"unused": {"a" "b": 1}})", R"({"unused": "a"b"c"})", R"({"a" b": 1})"}) {
    const std::string text =
        document({cpu_op("a", "1", "1"), event("bad", "cpu_op", "100", "2", "1", std::string("\"args\": ") + args),
                  cpu_op("c", "3", "1")});
    const auto failed = import_text(text);
    ASSERT_FALSE(failed.has_value()) << args;
    EXPECT_NE(failed.error().line().find("(line 5)"), std::string::npos) << failed.error().line();
    const auto t = import_text(text, true);
    ORRERY_IMPORTED(t);
    EXPECT_EQ(t->ops.size(), 2u) << args;
    EXPECT_EQ(noted(t->notes, "malformed-event"), 1u);
  }
}

TEST(ImportFaults, MalformedElsewhere) {
  for (const std::string& text : {std::string("[" + cpu_op("a", "1", "1") + " " + cpu_op("b", "1", "1") + "]"),
                                  std::string("[" + cpu_op("a", "1", "1") + "}"),
                                  std::string(R"({"traceEvents": [)" + cpu_op("a", "1", "1") + R"(], 5})"),
                                  std::string("[{\"ph\": \"X\", \"ts\" 5}]"), std::string("[,]"),
                                  std::string("[{\"ph\": \"X\"},,{\"ph\": \"X\"}]"), std::string("[{\"ph\": }]"),
                                  std::string("[{\"ph\": \"X\"} x]")}) {
    const auto t = import_text(text);
    EXPECT_FALSE(t.has_value()) << text;
    import_text(text, true);  // whatever comes of it, it comes
  }
}

}  // namespace
}  // namespace orrery
