// What must not matter: the order of events, the number of threads, the size of windows. What must not hurt: anything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "import_helpers.h"
#include "importers/kineto.h"

namespace orrery {
namespace {

using namespace orrery::testing;

std::vector<std::string> many_events(int n) {
  std::vector<std::string> events;
  for (int i = 0; i < n; ++i) {
    const std::string s = std::to_string(i), ts = std::to_string(10 * i), later = std::to_string(10 * i + 4) + ".125";
    events.push_back(event("aten::op" + std::to_string(i % 17), "cpu_op", i % 3 == 0 ? "100" : "200", ts, "9.5",
                           R"("args": {"External id": )" + s + R"(, "Input Dims": [[)" + std::to_string(i % 5) +
                               R"(, 8]], "Sequence number": )" + s + "}"));
    events.push_back(launch("cudaLaunchKernel", ts, "2", s));
    events.push_back(
        kernel("void kernel<" + std::to_string(i % 29) + ">(int)", i % 4 == 0 ? "20" : "7", later, "3.25", s));
    events.push_back(R"({"ph": "f", "id": )" + s + R"(, "pid": 0, "tid": 7, "ts": )" + later +
                     R"(, "cat": "ac2g", "name": "ac2g", "bp": "e"})");
    if (i % 10 == 0)
      events.push_back(event("frame", "python_function", "100", ts, "30", R"("args": {"Python id": )" + s + "}"));
    if (i % 50 == 0)
      events.push_back(R"({"ph": "B", "name": "h", "pid": 1, "tid": 5, "ts": )" + ts + "}"),
          events.push_back(R"({"ph": "E", "name": "h", "pid": 1, "tid": 5, "ts": )" + later + "}");
  }
  return events;
}

// Every row as text, strings spelled out.
std::vector<std::string> rows(const RankTrace& t) {
  const auto s = [&](StrId id) { return std::string(t.strings.view(id)); };
  const auto lane = [&](LaneId l) {
    const std::size_t i = raw(l);
    return std::to_string(static_cast<int>(t.lanes.kind[i])) + "/" + std::to_string(t.lanes.pid[i]) + "/" +
           std::to_string(t.lanes.tid[i]);
  };
  std::vector<std::string> all;
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    std::string r = s(t.ops.name[i]) + " " + std::to_string(t.ops.start[i]) + " " + std::to_string(t.ops.dur[i]) + " " +
                    lane(t.ops.lane[i]) + " " + std::to_string(static_cast<int>(t.ops.kind[i])) + " " +
                    std::to_string(t.ops.corr[i]) + " " + std::to_string(t.ops.ext[i]);
    const std::uint32_t x = t.ops.extra[i];
    if (x != kNone && t.ops.kind[i] == OpKind::cpu_op)
      r += " " + s(t.op_args.input_dims[x]) + std::to_string(t.op_args.sequence[x]);
    if (x != kNone && t.ops.kind[i] == OpKind::python) r += " " + std::to_string(t.python_args.id[x]);
    all.push_back(r);
  }
  for (std::size_t i = 0; i < t.flows.size(); ++i)
    all.push_back("flow " + std::to_string(t.flows.id[i]) + " " + std::to_string(t.flows.ts[i]) + " " +
                  lane(t.flows.lane[i]));
  return all;
}

Result<RankTrace> import_windows(const std::string& text, unsigned threads, std::size_t window,
                                 JsonSplitter::Engine engine = JsonSplitter::Engine::best, bool recover = false,
                                 std::size_t largest_event = std::size_t{64} << 20) {
  const SourcePtr source = open_memory(text);
  KinetoOptions options;
  options.threads = threads;
  options.window_bytes = window;
  options.engine = engine;
  options.recover = recover;
  options.largest_event = largest_event;
  auto t = read_kineto(*source, "x", options);
  if (!t) return tl::unexpected(t.error().error);
  return std::move(t->front());
}

TEST(ImportRobust, ThreadsAndWindowsDoNotMatter) {
  const std::string text = document(many_events(2000), R"("baseTimeNanoseconds": 1000)");
  const auto one = import_windows(text, 1, 1 << 20);
  ORRERY_IMPORTED(one);
  using Engine = JsonSplitter::Engine;
  for (const unsigned threads : {1u, 2u, 5u}) {
    for (const std::size_t window : {200u, 1000u, 65536u}) {
      for (const Engine engine : {Engine::scalar, Engine::best}) {
        const auto t = import_windows(text, threads, window, engine, window == 1000);
        ORRERY_IMPORTED(t);
        // Identical to the last number: rows, names and lanes are numbered in file order.
        ASSERT_EQ(t->ops.start, one->ops.start);
        ASSERT_EQ(t->ops.dur, one->ops.dur);
        ASSERT_EQ(t->ops.name, one->ops.name);
        ASSERT_EQ(t->ops.lane, one->ops.lane);
        ASSERT_EQ(t->ops.kind, one->ops.kind);
        ASSERT_EQ(t->ops.corr, one->ops.corr);
        ASSERT_EQ(t->ops.ext, one->ops.ext);
        ASSERT_EQ(t->ops.extra, one->ops.extra);
        ASSERT_EQ(t->op_args.input_dims, one->op_args.input_dims);
        ASSERT_EQ(t->flows.lane, one->flows.lane);
        ASSERT_EQ(rows(*t), rows(*one));
        ASSERT_EQ(all_notes(t->notes), all_notes(one->notes));
      }
    }
  }
}

TEST(ImportRobust, OrderOfEventsDoesNotMatter) {
  std::vector<std::string> events = many_events(500);
  const auto sorted = import_text(document(events));
  ORRERY_IMPORTED(sorted);
  std::vector<std::string> expected = rows(*sorted);
  std::sort(expected.begin(), expected.end());
  std::mt19937 random(5);
  for (int round = 0; round < 3; ++round) {
    std::shuffle(events.begin(), events.end(), random);
    const auto t = import_text(document(events));
    ORRERY_IMPORTED(t);
    std::vector<std::string> got = rows(*t);
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, expected);
  }
}

TEST(ImportRobust, SpacingDoesNotMatter) {
  const std::string text = document(many_events(100));
  std::string tight, wide;
  bool string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') string = !string;
    if (!string && (c == ' ' || c == '\n')) continue;
    tight += c;
    wide += c;
    if (!string && std::strchr("{}[],:", c) != nullptr) wide += "\r\n\t  ";
  }
  const auto a = import_text(text), b = import_text(tight), c = import_text(wide),
             d = import_text("\xef\xbb\xbf " + text);
  ORRERY_IMPORTED(a);
  ORRERY_IMPORTED(b);
  ORRERY_IMPORTED(c);
  ORRERY_IMPORTED(d);
  std::vector<std::string> x = rows(*a), y = rows(*b);
  // Spaces inside of "[[0, 8]]" are kept as written.
  for (std::string& s : x) std::erase(s, ' ');
  for (std::string& s : y) std::erase(s, ' ');
  EXPECT_EQ(x, y);
  EXPECT_EQ(a->ops.size(), c->ops.size());
  EXPECT_EQ(rows(*a), rows(*d));
}

TEST(ImportRobust, MutationsNeverCrash) {
  const std::string seed =
      document({event("op \\\"q\\\" \\u00e9", "cpu_op", "100", "1.5", "2",
                      R"("args": {"External id": 3, "Input Dims": [[1, 2], []]})"),
                kernel("k", "7", "3", "1", "5"),
                R"({"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 3, "cat": "ac2g", "name": "ac2g"})",
                R"({"ph": "B", "name": "h", "pid": "Spans", "tid": 5, "ts": 1})"},
               R"("distributedInfo": {"rank": 1, "pg_config": [{"ranks": [0, 1]}]}, "baseTimeNanoseconds": 17)");
  const std::string pieces[] = {"\"",
                                "\\",
                                "{",
                                "}",
                                "[",
                                "]",
                                ",",
                                ":",
                                "\n",
                                std::string(1, '\0'),
                                "\xff",
                                "9999999999999999999999",
                                "NaN",
                                "-1",
                                "1e400",
                                "null",
                                "{\"ph\": \"X\"",
                                "\\u12",
                                "traceEvents",
                                "\x01"};
  std::mt19937 random(17);
  for (int round = 0; round < 4000; ++round) {
    std::string text = seed;
    for (unsigned k = 0; k <= random() % 4; ++k) {
      const std::size_t at = random() % (text.size() + 1), n = random() % 12;
      const std::string& piece = pieces[random() % std::size(pieces)];
      switch (random() % 4) {
        case 0:
          text.insert(at, piece);
          break;
        case 1:
          text.erase(at, n);
          break;
        case 2:
          text.replace(at, n, piece);
          break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(random());
      }
    }
    for (const bool recover : {false, true}) {
      const auto t =
          import_windows(text, 1 + random() % 2, round % 2 == 0 ? 64 : 4096, JsonSplitter::Engine::best, recover);
      if (!t) {
        ASSERT_EQ(t.error().line().find('\n'), std::string::npos);
        continue;
      }
      for (const Ns d : t->ops.dur) ASSERT_GE(d, 0);
      for (const LaneId l : t->ops.lane) ASSERT_LT(raw(l), t->lanes.size());
    }
  }
}

TEST(ImportRobust, SkippingEndsWhateverTheWindow) {
  for (const std::size_t garbage : {10u, 5000u, 50000u}) {
    const std::string text =
        document({cpu_op("a", "1", "1"), R"({"ph": "X", "name": "a"b", )" + std::string(garbage, 'x') + "}",
                  cpu_op("c", "3", "1")});
    for (const std::size_t window : {64u, 4096u, 8192u, 1u << 20}) {
      const auto t = import_windows(text, 1, window, JsonSplitter::Engine::best, true, 4096);
      ORRERY_IMPORTED(t);
      EXPECT_EQ(t->ops.size(), 2u) << garbage << " " << window;
      const auto cut =
          import_windows(text.substr(0, text.size() / 2), 1, window, JsonSplitter::Engine::best, true, 4096);
      EXPECT_TRUE(!cut || cut->notes.lost_data());
    }
  }
}

TEST(ImportRobust, DeepNestingHugeStringsAndNulBytes) {
  // Nested a million deep inside an unused argument.
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  const auto nested = import_text(
      document({event("a", "cpu_op", "1", "1", "1", R"("args": {"x": )" + deep + "}"), cpu_op("b", "2", "1")}));
  ASSERT_FALSE(nested.has_value());
  EXPECT_NE(nested.error().line().find("nested too deep: over 64 levels"), std::string::npos);
  EXPECT_FALSE(import_text(std::string(1 << 20, '[')).has_value());
  EXPECT_FALSE(import_text("{\"traceEvents\": " + std::string(1 << 20, '{')).has_value());
  // A name of 12 MB is a name.
  const std::string huge(12 << 20, 'n');
  const auto named = import_text(document({cpu_op("a", "1", "1"), cpu_op(huge, "2", "1"), cpu_op("c", "3", "1")}));
  ORRERY_IMPORTED(named);
  EXPECT_EQ(named->ops.size(), 3u);
  EXPECT_EQ(name(*named, 1), huge);
  // An event over the limit is left out, and what follows is not.
  for (const std::size_t size : {100000u, 300000u}) {
    for (const bool recover : {false, true}) {
      const std::string text = document({cpu_op("a", "1", "1"), cpu_op(std::string(size, 'n'), "2", "1"),
                                         cpu_op("c", "3", "1"), cpu_op("d", "4", "1")});
      const auto left = import_windows(text, 2, 4096, JsonSplitter::Engine::best, recover, 16384);
      ORRERY_IMPORTED(left);
      EXPECT_EQ(left->ops.size(), 3u);
      EXPECT_EQ(noted(left->notes, "event-too-long"), 1u);
      EXPECT_TRUE(left->notes.lost_data());
    }
  }
  std::string nul = document({cpu_op("a", "1", "1")});
  nul[nul.size() / 2] = '\0';
  import_text(nul);
  EXPECT_FALSE(import_text(std::string(1000, '\0')).has_value());
}

TEST(ImportRobust, ATrickleOfBytes) {
  class OneByte final : public ByteSource {
   public:
    explicit OneByte(std::string text) : text_(std::move(text)) {}
    Result<std::size_t> read(char* to, std::size_t) override {
      if (at_ == text_.size()) return 0;
      *to = text_[at_++];
      return 1;
    }
    std::uint64_t taken() const override { return at_; }
    std::uint64_t total() const override { return 0; }

   private:
    std::string text_;
    std::size_t at_ = 0;
  };
  const std::string text = document(many_events(50), R"("baseTimeNanoseconds": 9)");
  const auto whole = import_text(text);
  ORRERY_IMPORTED(whole);
  OneByte source(text);
  KinetoOptions options;
  options.window_bytes = 300;
  const auto t = read_kineto(source, "x", options);
  ASSERT_TRUE(t.has_value()) << t.error().error.line();
  EXPECT_EQ(rows(t->front()), rows(*whole));
}

TEST(ImportRobust, AMediumThatFails) {
  class Failing final : public ByteSource {
   public:
    Result<std::size_t> read(char* to, std::size_t n) override {
      if (calls_++ > 2) return fail("input/output error", "disk");
      const std::string start = calls_ == 1 ? "[" : "";
      const std::string text = start + cpu_op("a", "1", "1") + ",";
      std::memcpy(to, text.data(), std::min(n, text.size()));
      return std::min(n, text.size());
    }
    std::uint64_t taken() const override { return 0; }
    std::uint64_t total() const override { return 0; }

   private:
    int calls_ = 0;
  };
  Failing source;
  const auto t = read_kineto(source, "x", {});
  ASSERT_FALSE(t.has_value());
  EXPECT_EQ(t.error().error.what, "input/output error");
}

}  // namespace
}  // namespace orrery
