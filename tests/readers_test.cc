// Readers of src/base: numbers as text, JSON text, the splitter, compressed streams.
#include <gtest/gtest.h>
#include <isa-l/igzip_lib.h>
#include <zstd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "base/json_split.h"
#include "base/json_text.h"
#include "base/number_text.h"

namespace orrery {
namespace {

struct TimeCase {
  const char* text;
  NumberState state;
  std::int64_t ns;
};

TEST(NumberText, MicrosecondsBecomeNanosecondsExactly) {
  using S = NumberState;
  const TimeCase cases[] = {
      {"0", S::ok, 0},
      {"5", S::ok, 5000},
      {"100.7", S::ok, 100700},
      {"0.2", S::ok, 200},
      {"1.5", S::ok, 1500},
      {"1.50", S::ok, 1500},
      {"1.005", S::ok, 1005},
      {".5", S::ok, 500},
      {"7.", S::ok, 7000},
      {"-1", S::ok, -1000},
      {"-0.001", S::ok, -1},
      // Sixteen digits and three decimals: one ulp of a double would be 250 ns.
      {"1712195495406752.797", S::ok, 1712195495406752797},
      {"1683564901540885", S::ok, 1683564901540885000},
      {"6322354292627.936", S::ok, 6322354292627936},
      // More decimals: rounded, half away from zero.
      {"0.0004", S::ok, 0},
      {"0.0005", S::ok, 1},
      {"-0.0005", S::ok, -1},
      {"0.00049999999999999999999", S::ok, 0},
      {"1.0014999999999999999999999999999", S::ok, 1001},
      {"1.9995", S::ok, 2000},
      {"9999.9996", S::ok, 10000000},
      // Exponents.
      {"1e3", S::ok, 1000000},
      {"1.5E-3", S::ok, 2},
      {"1.25e+2", S::ok, 125000},
      {"1e-9", S::ok, 0},
      {"1.712195495406752797e15", S::ok, 1712195495406752797},
      {"0e999999999999999999999", S::ok, 0},
      {"1e-999999999999999999999", S::ok, 0},
      // The ends of int64.
      {"9223372036854775.807", S::ok, INT64_MAX},
      {"-9223372036854775.808", S::ok, INT64_MIN},
      {"9223372036854775.808", S::out_of_range, 0},
      {"-9223372036854775.809", S::out_of_range, 0},
      {"9223372036854775807", S::out_of_range, 0},
      {"9223372036854775.8075", S::out_of_range, 0},
      {"18446744073709551615", S::out_of_range, 0},
      {"1e300", S::out_of_range, 0},
      {"00000000000000000000000000000000000001", S::ok, 1000},
      // No numbers.
      {"", S::not_a_number, 0},
      {"-", S::not_a_number, 0},
      {".", S::not_a_number, 0},
      {"NaN", S::not_a_number, 0},
      {"inf", S::not_a_number, 0},
      {"N/A", S::not_a_number, 0},
      {"null", S::not_a_number, 0},
      {"1e", S::not_a_number, 0},
      {"1.2.3", S::not_a_number, 0},
      {"12 ", S::not_a_number, 0},
      {"0x10", S::not_a_number, 0},
      {"--1", S::not_a_number, 0},
  };
  for (const TimeCase& c : cases) {
    std::int64_t ns = 0;
    EXPECT_EQ(read_us(c.text, ns), c.state) << c.text;
    if (c.state == S::ok) {
      EXPECT_EQ(ns, c.ns) << c.text;
    }
  }
}

TEST(NumberText, QuickAndCarefulWaysAgree) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const std::int64_t ns = static_cast<std::int64_t>(random() >> (1 + random() % 60)) * (random() % 2 == 0 ? 1 : -1);
    const std::uint64_t size = ns < 0 ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
    std::string digits = std::to_string(size);
    while (digits.size() < 4) digits.insert(0, 1, '0');
    const std::string text =
        (ns < 0 ? "-" : "") + digits.substr(0, digits.size() - 3) + "." + digits.substr(digits.size() - 3);
    std::int64_t quick = 0, careful = 0;
    ASSERT_EQ(read_us(text, quick), NumberState::ok) << text;
    ASSERT_EQ(read_us(text + "000000000000", careful), NumberState::ok) << text;
    ASSERT_EQ(quick, ns) << text;
    ASSERT_EQ(careful, ns) << text;
  }
}

TEST(NumberText, IntegersAndDoubles) {
  std::int64_t v = 0;
  EXPECT_EQ(read_int("9223372036854775807", v), NumberState::ok);
  EXPECT_EQ(v, INT64_MAX);
  EXPECT_EQ(read_int("9223372036854775808", v), NumberState::out_of_range);
  EXPECT_EQ(read_int("12.0", v), NumberState::ok);
  EXPECT_EQ(v, 12);
  EXPECT_EQ(read_int("1.5e1", v), NumberState::ok);
  EXPECT_EQ(v, 15);
  for (const char* s : {"12.5", "0.4", "5e-1", "1e-30", "-1.0001"})  // not whole
    EXPECT_EQ(read_int(s, v), NumberState::not_a_number) << s;
  for (const char* s : {"0", "-0", "7", "-7", "0.5", "10.25", "1e3", "0e0", "-0.0", "123456"})
    EXPECT_TRUE(plainly_written(s)) << s;
  for (const char* s : {"+5", ".5", "-.5", "007", "-01", "5.", "00", "00.5"}) EXPECT_FALSE(plainly_written(s)) << s;
  double d = 0;
  EXPECT_EQ(read_double("372.363647", d), NumberState::ok);
  EXPECT_DOUBLE_EQ(d, 372.363647);
  for (const char* s : {"nan", "-nan(ind)", "inf", "-inf", "Infinity", "N/A", "", "1.5x"})
    EXPECT_NE(read_double(s, d), NumberState::ok) << s;
}

TEST(JsonText, ScanFindsTheEndOrTheFault) {
  using State = JsonScan::State;
  const std::string good = R"(  {"a": [1, {"b\"}": "}"}, -inf, N/A], "c": {}, "d": []} , )";
  const JsonScan whole = scan_json_value(good, 0);
  EXPECT_EQ(whole.state, State::whole);
  EXPECT_EQ(good.substr(whole.at), " , ");
  for (std::size_t n = 0; n < whole.at; ++n)  // every prefix is cut, none is malformed
    EXPECT_EQ(scan_json_value(std::string_view(good).substr(0, n), 0).state, State::cut) << n;
  const std::string bad = R"({"name": "{"device": "cpu"}(12): run"})";
  const JsonScan fault = scan_json_value(bad, 0);
  EXPECT_EQ(fault.state, State::bad);
  EXPECT_EQ(fault.at, bad.find("device"));
  for (const char* s :
       {R"({"a" 1})", R"({"a": 1 "b": 2})", R"([1 2])", R"({,})", R"({"a":})", R"([1,])", R"({1: 2})", "}", ","})
    EXPECT_EQ(scan_json_value(s, 0).state, State::bad) << s;
  // 64 levels are read, no more.
  EXPECT_EQ(scan_json_value(std::string(64, '['), 0).state, State::cut);
  EXPECT_EQ(scan_json_value(std::string(64, '[') + std::string(64, ']'), 0).state, State::whole);
  const JsonScan deep = scan_json_value(std::string(1 << 20, '['), 0);
  EXPECT_EQ(deep.state, State::bad);
  EXPECT_EQ(deep.at, 64u);
  EXPECT_EQ(json_problem(deep), "nested too deep: over 64 levels of brackets");
  EXPECT_EQ(json_problem(scan_json_value("[1 2]", 0)), "expected ',' or ']'");
}

TEST(JsonText, UnescapeAndRepair) {
  std::string s;
  const JsonEscapes odd = unescape_json(R"(a\n\t\"\\\/\u00e9\ud83d\ude00\ud800x\q\)", s);
  EXPECT_TRUE(odd.broken);
  EXPECT_TRUE(odd.lone_surrogate);
  EXPECT_EQ(s, "a\n\t\"\\/\xc3\xa9\xf0\x9f\x98\x80\xef\xbf\xbdx\\q\\");

  const std::string dirty = "{\n\"a\": \"x\x01y\nz\xff\xc3\xa9\xed\xa0\x80\"}";
  std::string clean;
  const JsonRepair r = repair_json_characters(dirty, clean);
  EXPECT_EQ(r.control_characters, 2u);  // not the newline between tokens
  EXPECT_EQ(r.invalid_utf8, 4u);        // 0xff, and a surrogate of three bytes
  EXPECT_EQ(clean, "{\n\"a\": \"x\\u0001y\\u000az\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"}");
  const JsonEscapes plain = unescape_json(R"(\n\u00e9\ud83d\ude00)", s);
  EXPECT_FALSE(plain.broken || plain.lone_surrogate);
  EXPECT_TRUE(unescape_json(R"(\u00g0)", s).broken);
  EXPECT_EQ(quote_for_people("a \n\t b\x01\xff", 10), "a b.?");
  EXPECT_EQ(quote_for_people("abcdef", 3), "abc...");
}

// The obvious way, to compare with.
JsonSplitter::Found split_slowly(const std::string& text, std::size_t from) {
  JsonSplitter::Found f;
  int depth = 0;
  bool string = false;
  for (std::size_t i = from; i < text.size(); ++i) {
    const char c = text[i];
    if (string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        string = false;
    } else if (c == '"') {
      string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) {
        f.closed = true;
        f.close_at = i;
        return f;
      }
      if (--depth == 0) f.last_end = i + 1;
    } else if (c == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\')) {
      ++i;  // no JSON; the engines take it as an escape here, too
    }
  }
  return f;
}

TEST(JsonSplitter, AllEnginesAgreeWithTheObviousWay) {
  using Engine = JsonSplitter::Engine;
  std::mt19937 random(11);
  const std::string alphabet = "{}[]\"\"\\\\ab,: {\"";
  for (int round = 0; round < 3000; ++round) {
    std::string text = " ";
    const std::size_t size = random() % 300;
    for (std::size_t i = 0; i < size; ++i) text += alphabet[random() % (round % 3 == 0 ? 5 : alphabet.size())];
    const auto expected = split_slowly(text, 1);
    for (const Engine engine : {Engine::scalar, Engine::sse2, Engine::avx2, Engine::best}) {
      if (!JsonSplitter::supported(engine)) continue;
      // In one go, and in two pieces.
      JsonSplitter one(engine);
      const auto found = one.scan(text.data(), 1, text.size(), true);
      ASSERT_EQ(found.closed, expected.closed) << text;
      if (found.closed) {
        ASSERT_EQ(found.close_at, expected.close_at) << text;
      }
      ASSERT_EQ(found.last_end, expected.last_end) << text;
      JsonSplitter two(engine);
      const std::size_t cut = 1 + random() % text.size();
      const auto first = two.scan(text.data(), 1, cut < text.size() ? cut : text.size(), false);
      auto second = first;
      if (!first.closed) {
        second = two.scan(text.data(), first.scanned, text.size(), true);
        if (second.last_end == 0) second.last_end = first.last_end;
      }
      ASSERT_EQ(second.closed, expected.closed) << text;
      ASSERT_EQ(second.last_end, expected.last_end) << text;
    }
  }
}

std::string read_all(ByteSource& s, std::size_t piece) {
  std::string all;
  std::vector<char> buffer(piece);
  for (;;) {
    const auto got = s.read(buffer.data(), buffer.size());
    if (!got || *got == 0) return all;
    all.append(buffer.data(), *got);
  }
}

std::string gz(const std::string& text) {
  isal_zstream z;
  isal_deflate_init(&z);
  z.gzip_flag = IGZIP_GZIP;
  z.end_of_stream = 1;
  z.next_in = reinterpret_cast<std::uint8_t*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<std::uint32_t>(text.size());
  std::string out(text.size() + 1024, '\0');
  z.next_out = reinterpret_cast<std::uint8_t*>(out.data());
  z.avail_out = static_cast<std::uint32_t>(out.size());
  EXPECT_EQ(isal_deflate(&z), COMP_OK);
  out.resize(out.size() - z.avail_out);
  return out;
}
std::string zst(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

struct Unpacked {
  std::string text;
  SourceTrouble trouble;
  std::string error;
};
Unpacked unpack(const std::string& bytes, std::size_t piece = 4096) {
  Unpacked u;
  auto source = decompressed(open_memory(bytes), "x");
  if (!source) {
    u.error = source.error().line();
    return u;
  }
  u.text = read_all(**source, piece);
  u.trouble = (*source)->trouble();
  return u;
}

TEST(Decompress, MembersFramesAndNesting) {
  std::string a(100000, 'a'), b;
  for (int i = 0; i < 50000; ++i) b += std::to_string(i);
  using Kind = SourceTrouble::Kind;
  for (const std::size_t piece : {1u, 7u, 4096u, 1u << 20}) {
    if (piece == 1 && b.size() > 300000) b.resize(300000);
    for (const std::string& packed : {gz(a) + gz(b), zst(a) + zst(b), gz(gz(a + b)), zst(gz(a + b)), a + b}) {
      const Unpacked u = unpack(packed, piece);
      EXPECT_EQ(u.text, a + b);
      EXPECT_EQ(u.trouble.kind, Kind::none);
    }
  }
  // Padding behind a gzip stream is no trouble, other bytes are.
  EXPECT_EQ(unpack(gz(a) + std::string(512, '\0')).trouble.kind, Kind::none);
  EXPECT_EQ(unpack(gz(a) + "hello").trouble.kind, Kind::trailing);
  EXPECT_EQ(unpack(zst(a) + "hello").trouble.kind, Kind::trailing);
  EXPECT_EQ(unpack(gz("")).text, "");
}

TEST(Decompress, CutAndCorruptStreamsGiveWhatIsWhole) {
  std::string text;
  std::mt19937 random(3);
  for (int i = 0; i < 40000; ++i) text += std::to_string(random() % 1000) + " ";
  using Kind = SourceTrouble::Kind;
  for (const std::string& packed : {gz(text), zst(text)}) {
    for (std::size_t keep = 12; keep < packed.size(); keep += packed.size() / 17) {
      const Unpacked u = unpack(packed.substr(0, keep));
      EXPECT_EQ(text.compare(0, u.text.size(), u.text), 0);
      EXPECT_EQ(u.trouble.kind, Kind::cut) << keep;
    }
    std::string broken = packed;
    for (std::size_t i = broken.size() / 2; i < broken.size() / 2 + 200; ++i) broken[i] = static_cast<char>(random());
    const Unpacked u = unpack(broken);
    EXPECT_NE(u.trouble.kind, Kind::none);
    EXPECT_LT(u.text.size(), text.size() + 4096);
  }
  std::string wrong_sum = gz(text);
  wrong_sum[wrong_sum.size() - 6] = static_cast<char>(wrong_sum[wrong_sum.size() - 6] + 1);
  EXPECT_EQ(unpack(wrong_sum).trouble.kind, Kind::checksum);
}

TEST(Decompress, OtherCompressionsAreNamed) {
  EXPECT_NE(unpack("BZh91AY&SY").error.find("bzip2"), std::string::npos);
  EXPECT_NE(unpack(std::string("\xfd"
                               "7zXZ\0\0\0",
                               8))
                .error.find("xz"),
            std::string::npos);
}

// As a pipe does: a few bytes at a time.
class Dripping final : public ByteSource {
 public:
  explicit Dripping(std::string_view bytes) : bytes_(bytes) {}
  Result<std::size_t> read(char* to, std::size_t n) override {
    n = std::min({n, bytes_.size() - at_, std::size_t{7}});
    bytes_.copy(to, n, at_);
    at_ += n;
    return n;
  }
  std::uint64_t taken() const override { return at_; }
  std::uint64_t total() const override { return 0; }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
};

TEST(ReadAtMost, TheWholeOrItsBegin) {
  std::string all(200'000, 'x');
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>('a' + i % 23);
  for (const std::size_t most :
       {std::size_t{0}, std::size_t{1}, all.size() - 1, all.size(), all.size() + 1, SIZE_MAX}) {
    Dripping slow(all);
    EXPECT_EQ(read_at_most(slow, most).value(), all.substr(0, most)) << most;
    const SourcePtr memory = open_memory(all);
    EXPECT_EQ(read_at_most(*memory, most).value(), all.substr(0, most)) << most;
  }
  Dripping empty("");
  EXPECT_EQ(read_at_most(empty, 10).value(), "");
  EXPECT_FALSE(read_at_most("/no/such/file", 10).has_value());
}

}  // namespace
}  // namespace orrery
