// What the importer puts right or leaves out on its own: each is counted, with the first example.
#include <gtest/gtest.h>

#include <string>

#include "import_helpers.h"

namespace orrery {
namespace {

using namespace orrery::testing;

// The only note, of this name and count, whose example has `says`.
void expect_note(const RankTrace& t, std::string_view name, std::uint64_t count, std::string_view says) {
  const Note* n = note(t.notes, name);
  ASSERT_NE(n, nullptr) << name << ": " << all_notes(t.notes);
  EXPECT_EQ(n->count, count) << name;
  EXPECT_NE(n->first.find(says), std::string::npos) << n->first;
  EXPECT_FALSE(n->advice.empty());
  EXPECT_EQ(t.notes.rows.size(), 1u) << all_notes(t.notes);
}

TEST(ImportRepairs, Commas) {
  const std::string a = cpu_op("a", "1", "1"), b = cpu_op("b", "2", "1");
  const auto before_brackets = import_text("{\"traceEvents\": [" + a + ", " + b + ", ], \"traceName\": \"x\",, }");
  ORRERY_IMPORTED(before_brackets);
  EXPECT_EQ(before_brackets->ops.size(), 2u);
  expect_note(*before_brackets, "extra-comma", 3, "byte " + std::to_string(17 + a.size() + 2 + b.size()));

  const auto between_members = import_text("{\"traceName\": \"x\" \"traceEvents\": [" + a + "]}");
  ORRERY_IMPORTED(between_members);
  EXPECT_EQ(between_members->trace_name, "x");
  expect_note(*between_members, "missing-comma", 1, "byte 18");

  const std::string left_out = "[" + a + " " + b + ",," + a + "]";
  EXPECT_FALSE(import_text(left_out).has_value());
  const auto recovered = import_text(left_out, true);
  ORRERY_IMPORTED(recovered);
  EXPECT_EQ(recovered->ops.size(), 3u);
  EXPECT_EQ(noted(recovered->notes, "missing-comma"), 1u) << all_notes(recovered->notes);
  EXPECT_EQ(noted(recovered->notes, "extra-comma"), 1u);
  EXPECT_FALSE(recovered->notes.lost_data());
  // Nothing to tell of a document that is as it should be.
  EXPECT_TRUE(import_text(document({a, b}, "\"traceName\": \"x\", \"host_name\": \"h\""), true)->notes.rows.empty());
}

TEST(ImportRepairs, RepeatedKeys) {
  const auto event_key =
      import_text(document({event("a", "cpu_op", "1", "1", "1", "\"dur\": 7"), cpu_op("b", "9", "1")}));
  ORRERY_IMPORTED(event_key);
  EXPECT_EQ(event_key->ops.dur[0], 7000);  // the last one
  expect_note(*event_key, "repeated-key", 1, "\"dur\" of \"a\" at ts 1 dur 7");

  const auto argument = import_text(document({event(
      "k", "kernel", "7", "1", "1", R"("args": {"device": 0, "stream": 7, "correlation": 3, "correlation": 4})")}));
  ORRERY_IMPORTED(argument);
  EXPECT_EQ(argument->ops.corr[0], 4);
  expect_note(*argument, "repeated-key", 1, "\"correlation\"");

  const auto both = import_text(document(
      {event("k", "kernel", "7", "1", "1", R"("args": {"device": 0, "stream": 7}, "args": {"correlation": 4})")}));
  ORRERY_IMPORTED(both);
  EXPECT_EQ(both->ops.corr[0], 4);
  expect_note(*both, "repeated-key", 1, "\"args\"");
}

TEST(ImportRepairs, OddNumbers) {
  const auto t = import_text(document({cpu_op("a", "007", "+5"), cpu_op("b", "20", ".5"), cpu_op("c", "30", "1."),
                                       kernel("k", "07", "40", "1", "+3")}));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->ops.start[0], 7000);
  EXPECT_EQ(t->ops.dur[0], 5000);
  EXPECT_EQ(t->ops.dur[1], 500);
  EXPECT_EQ(t->ops.dur[2], 1000);
  EXPECT_EQ(t->ops.corr[3], 3);
  EXPECT_EQ(t->lanes.tid[raw(t->ops.lane[3])], 7);
  expect_note(*t, "odd-number", 6, "\"a\" at ts 007 dur +5");
  const auto base = import_text(document({cpu_op("a", "1", "1")}, "\"baseTimeNanoseconds\": +5"));
  ORRERY_IMPORTED(base);
  EXPECT_EQ(base->ops.start[0], 1005);
  expect_note(*base, "odd-number", 1, "baseTimeNanoseconds +5");
  const auto flow =
      import_text(document({cpu_op("a", "1", "1"),
                            R"({"ph": "s", "cat": "ac2g", "id": 07, "name": "ac2g", "pid": 1, "tid": 100, "ts": 1})"}));
  ORRERY_IMPORTED(flow);
  EXPECT_EQ(flow->flows.id[0], 7);
  expect_note(*flow, "odd-number", 1, "ac2g");
  // An id that is no whole number is no id.
  const auto half = import_text(document({launch("cudaLaunchKernel", "1", "1", "2.5"), cpu_op("a", "5", "1")}));
  ORRERY_IMPORTED(half);
  EXPECT_EQ(half->ops.corr[0], 0);
  expect_note(*half, "missing-value", 1, "cudaLaunchKernel");
}

TEST(ImportRepairs, BrokenEscapes) {
  const auto broken = import_text(document({cpu_op(R"(C:\qt\u12)", "1", "1"), cpu_op(R"(fine\n\u0041)", "2", "1")}));
  ORRERY_IMPORTED(broken);
  EXPECT_EQ(name(*broken, 0), R"(C:\qt\u12)");
  expect_note(*broken, "broken-escape", 1, "C:");
  const auto half_pair = import_text(document({cpu_op(R"(x\ud800y)", "1", "1"), cpu_op(R"(\ud83d\ude00)", "2", "1")}));
  ORRERY_IMPORTED(half_pair);
  EXPECT_EQ(name(*half_pair, 0), "x\xef\xbf\xbdy");
  expect_note(*half_pair, "lone-surrogate", 1, "d800");
}

TEST(ImportRepairs, AStreamThatIsNoNumber) {
  const auto t = import_text(document({event("k", "kernel", "9", "1", "1", R"("args": {"device": 0, "stream": NaN})"),
                                       event("m", "kernel", "9", "3", "1", R"("args": {"device": 0, "stream": NaN})"),
                                       event("n", "kernel", "9", "5", "1", R"("args": {"device": 0})")}));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->lanes.tid[raw(t->ops.lane[0])], 9);  // its tid stands for it
  expect_note(*t, "missing-value", 2, "\"k\"");
  const auto sync = import_text(document({event("Stream Synchronize", "cuda_sync", "9", "1", "1",
                                                R"("args": {"device": 0, "stream": NaN, "correlation": 1})")}));
  ORRERY_IMPORTED(sync);
  expect_note(*sync, "missing-value", 1, "Stream");
}

TEST(ImportRepairs, ObjectsWhereValuesBelong) {
  const auto t = import_text(document(
      {event("k", "kernel", "7", "1", "1", R"("args": {"device": 0, "stream": 7, "correlation": {"id": 3}})")}));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->ops.corr[0], 0);
  expect_note(*t, "missing-value", 1, "\"k\"");
}

TEST(ImportRepairs, GridsThatAreNone) {
  const auto t =
      import_text(document({event("k", "kernel", "7", "1", "1",
                                  R"("args": {"device": 0, "stream": 7, "grid": [2.5, 1, 1], "block": [64, 2, 1]})")}));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->kernel_args.grid_blocks[0], 0u);
  EXPECT_EQ(t->kernel_args.block_threads[0], 128u);
  expect_note(*t, "missing-value", 1, "\"k\"");
}

TEST(ImportRepairs, RanksOfTheMetadata) {
  const auto with = [](const std::string& info) { return import_text(document({cpu_op("a", "1", "1")}, info)); };
  for (const char* rank : {"2.5", "-1", "1e30", "\"two\"", "[1]", "true"}) {
    const auto t = with(std::string(R"("distributedInfo": {"world_size": 4, "rank": )") + rank + "}");
    ORRERY_IMPORTED(t);
    EXPECT_EQ(t->rank, -1) << rank;
    EXPECT_EQ(t->world_size, 4);
    expect_note(*t, "metadata-unreadable", 1, "rank ");
  }
  const auto whole = with(R"("distributedInfo": {"rank": 3.0})");
  ORRERY_IMPORTED(whole);
  EXPECT_EQ(whole->rank, 3);
  expect_note(*whole, "odd-number", 1, "rank 3.0");
  const auto text = with(R"("distributedInfo": {"rank": "3"})");
  ORRERY_IMPORTED(text);
  EXPECT_EQ(text->rank, 3);
  EXPECT_TRUE(text->notes.rows.empty()) << all_notes(text->notes);
  const auto world = with(R"("distributedInfo": {"rank": 1, "world_size": 0})");
  ORRERY_IMPORTED(world);
  expect_note(*world, "metadata-unreadable", 1, "world_size 0");
  // Given twice: the last one, inside and outside.
  const auto inside = with(R"("distributedInfo": {"rank": 1, "rank": 2})");
  ORRERY_IMPORTED(inside);
  EXPECT_EQ(inside->rank, 2);
  expect_note(*inside, "metadata-repeated", 1, "rank of distributedInfo");
  const auto outside = with(R"("distributedInfo": {"rank": 1}, "distributedInfo": {"rank": 2})");
  ORRERY_IMPORTED(outside);
  EXPECT_EQ(outside->rank, 2);
  expect_note(*outside, "metadata-repeated", 1, "distributedInfo");
  for (const char* odd : {R"("deviceProperties": {"id": 0})", R"("traceName": 5)", R"("host_name": ["h"])",
                          R"("distributedInfo": {"rank": 0, "pg_config": "[{"})"}) {
    const auto t = with(odd);
    ORRERY_IMPORTED(t);
    EXPECT_EQ(noted(t->notes, "metadata-unreadable"), 1u) << odd;
  }
}

TEST(ImportRepairs, StrayHostEventsAreDropped) {
  std::vector<std::string> events;
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i + 1);
    events.push_back(launch("cudaLaunchKernel", std::to_string(9'000'000'000'000 + 10 * i), "5", n));
    events.push_back(kernel("k" + n, "7", std::to_string(9'000'000'000'004 + 10 * i), "3", n));
  }
  const std::string year = std::to_string(9'000'000'000'000 + 31'536'000'000'000);
  for (const std::string& ts : {std::string("1"), std::string("-5000000000"), year}) {
    for (const char* cat : {"cpu_op", "user_annotation", "overhead", "something"}) {
      std::vector<std::string> with = events;
      with.insert(with.begin() + 7, event("stray", cat, "100", ts, "2"));
      const auto t = import_text(document(with));
      ORRERY_IMPORTED(t);
      EXPECT_EQ(t->ops.size(), 40u) << ts << cat;
      EXPECT_EQ(noted(t->notes, "far-event"), 1u) << ts << cat << all_notes(t->notes);
      EXPECT_NE(note(t->notes, "far-event")->first.find("stray at ts " + ts), std::string::npos) << all_notes(t->notes);
      EXPECT_EQ(t->window_start, 9'000'000'000'000'000);
      EXPECT_EQ(t->window_end, 9'000'000'000'197'000);
    }
  }
  // A stray host event no longer shields a stray kernel.
  std::vector<std::string> both = events;
  both.push_back(cpu_op("stray", year, "2"));
  both.push_back(kernel("far", "7", year, "2", "99"));
  const auto t = import_text(document(both));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->ops.size(), 40u);
  EXPECT_EQ(noted(t->notes, "far-event"), 1u);
  EXPECT_EQ(noted(t->notes, "gpu-event-outside-window"), 1u);
}

TEST(ImportRepairs, TwoSessionsFarApartAreKeptAndTold) {
  std::vector<std::string> events;
  for (int i = 0; i < 10; ++i) events.push_back(cpu_op("a", std::to_string(i * 10), "5"));
  for (int i = 0; i < 8; ++i) events.push_back(cpu_op("b", std::to_string(7'200'000'000 + i * 10), "5"));
  const auto t = import_text(document(events));
  ORRERY_IMPORTED(t);
  EXPECT_EQ(t->ops.size(), 18u);
  expect_note(*t, "far-apart", 1, "b at ts 7200000000 us");
  // One event over the gap makes it one group; so does a gap of half an hour.
  events.push_back(cpu_op("around", "0", "7300000000"));
  EXPECT_TRUE(import_text(document(events))->notes.rows.empty());
  EXPECT_TRUE(import_text(document({cpu_op("a", "0", "1"), cpu_op("b", "1800000000", "1"), cpu_op("c", "5", "1")}))
                  ->notes.rows.empty());
}

TEST(ImportRepairs, NestedTooDeep) {
  const auto nested = [](const std::string& open, const std::string& close, std::size_t levels) {
    std::string deep, end;
    for (std::size_t i = 0; i < levels; ++i) deep += open, end += close;
    return document(
        {event("a", "cpu_op", "1", "1", "1", "\"args\": {\"x\": " + deep + "1" + end + "}"), cpu_op("b", "2", "1")});
  };
  for (const auto& [open, close] : {std::pair<std::string, std::string>{"[", "]"}, {"{\"y\": ", "}"}}) {
    const auto fine = import_text(nested(open, close, 62));  // 64 with the event and its args
    ORRERY_IMPORTED(fine);
    EXPECT_TRUE(fine->notes.rows.empty()) << all_notes(fine->notes);
    for (const std::size_t levels : {63u, 100'000u}) {
      const std::string text = nested(open, close, levels);
      const auto failed = import_text(text);
      ASSERT_FALSE(failed.has_value());
      EXPECT_NE(failed.error().line().find("nested too deep: over 64 levels"), std::string::npos)
          << failed.error().line().substr(0, 200);
      const auto skipped = import_text(text, true);
      ORRERY_IMPORTED(skipped);
      EXPECT_EQ(skipped->ops.size(), 1u);
      EXPECT_EQ(noted(skipped->notes, "malformed-event"), 1u);
    }
  }
}

}  // namespace
}  // namespace orrery
