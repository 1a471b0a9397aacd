// The published traces and the simulated jobs beside the repository, where they are there: every event of every file is
// accounted for, and rows say what another parser (simdjson's DOM) reads.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "base/byte_source.h"
#include "import_helpers.h"

namespace orrery {
namespace {

using namespace orrery::testing;
namespace fs = std::filesystem;
namespace dom = simdjson::dom;

const std::string kData = std::string(ORRERY_SOURCE_DIR) + "/../shared/data/";

bool there(const std::string& path) {
  if (fs::exists(path)) return true;
  std::cout << "SKIP: " << path << " is not there\n";
  return false;
}

std::string text_of(const std::string& path) {
  auto source = open_file(path).value();
  source = decompressed(std::move(source), path).value();
  std::string text;
  std::vector<char> buffer(1 << 20);
  for (;;) {
    const auto got = source->read(buffer.data(), buffer.size());
    if (!got || *got == 0) return text;
    text.append(buffer.data(), *got);
  }
}

std::vector<std::string> files_of(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file() && entry.path().string().find(".json") != std::string::npos)
      files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

std::size_t row_bytes(const RankTrace& t) {
  const std::size_t op = 8 + 8 + 4 + 4 + 1 + 8 + 8 + 4;
  return t.ops.size() * op + t.op_args.size() * 32 + t.python_args.size() * 16 + t.kernel_args.size() * 26 +
         t.copy_args.size() * 8 + t.comm_args.size() * 76 + t.sync_args.size() * 33 + t.flows.size() * 22 +
         t.memory.size() * 44;
}

// Sums over complete events, as another parser reads them: doubles are exact enough where times are small.
struct Sums {
  std::uint64_t events = 0, complete = 0, names = 0;
  std::int64_t correlations = 0;
};
Sums sums_of(dom::element document) {
  Sums s;
  dom::array events;
  if (document.get(events) != simdjson::SUCCESS && document["traceEvents"].get(events) != simdjson::SUCCESS) return s;
  for (dom::element e : events) {
    ++s.events;
    std::string_view ph, name;
    if (e["ph"].get(ph) != simdjson::SUCCESS || ph != "X") continue;
    ++s.complete;
    if (e["name"].get(name) == simdjson::SUCCESS) s.names += std::hash<std::string_view>()(name) & 0xffffff;
    std::int64_t corr = 0;
    if (e["args"]["correlation"].get(corr) == simdjson::SUCCESS) s.correlations += corr == -1 ? 0 : corr;
  }
  return s;
}

TEST(ImportReal, PublishedTraces) {
  if (!there(kData + "traces")) return;
  std::size_t seen = 0;
  for (const std::string& f : files_of(kData + "traces")) {
    const auto set = import_traces({f});
    ASSERT_TRUE(set.has_value()) << set.error().line();
    const RankTrace& t = set->ranks[0];
    const std::string text = text_of(f);
    EXPECT_EQ(t.json_bytes, text.size()) << f;
    ++seen;
    if (f.find("truncated") != std::string::npos) {
      EXPECT_EQ(noted(t.notes, "truncated"), 1u);
      continue;
    }
    EXPECT_FALSE(t.notes.lost_data()) << f << all_notes(t.notes);
    dom::parser parser;
    dom::element document;
    ASSERT_EQ(parser.parse(simdjson::padded_string(text)).get(document), simdjson::SUCCESS) << f;
    const Sums expected = sums_of(document);
    EXPECT_EQ(t.events, expected.events) << f;
    Sums got;
    for (std::size_t i = 0; i < t.ops.size(); ++i) {
      got.names += std::hash<std::string_view>()(t.strings.view(t.ops.name[i])) & 0xffffff;
      got.correlations += t.ops.corr[i];
    }
    if (expected.complete != 0) {
      EXPECT_EQ(t.ops.size(), expected.complete) << f;
      EXPECT_EQ(got.names, expected.names) << f;
      EXPECT_EQ(got.correlations, expected.correlations) << f;
    }
    EXPECT_LE(row_bytes(t), 80 * t.events) << f;
    EXPECT_GT(t.window_end, t.window_start) << f;
  }
  EXPECT_GE(seen, 50u);
}

TEST(ImportReal, TimesOfNineteenDigits) {
  const std::string f = kData + "traces/single/ns-resolution.json.gz";
  if (!there(f)) return;
  const auto set = import_traces({f});
  ASSERT_TRUE(set.has_value()) << set.error().line();
  // Every ts and dur of the text, summed digit by digit.
  const std::string text = text_of(f);
  unsigned __int128 digits = 0, rows = 0;
  std::size_t n = 0;
  for (std::size_t at = text.find("\"ph\": \"X\""); at != std::string::npos; at = text.find("\"ph\": \"X\"", at + 1)) {
    for (const char* key : {"\"ts\": ", "\"dur\": "}) {
      std::size_t i = text.find(key, at) + std::string_view(key).size();
      std::uint64_t v = 0;
      int decimals = -1;
      for (; (text[i] >= '0' && text[i] <= '9') || text[i] == '.'; ++i) {
        if (text[i] == '.') {
          decimals = 0;
          continue;
        }
        v = v * 10 + static_cast<std::uint64_t>(text[i] - '0');
        if (decimals >= 0) ++decimals;
      }
      ASSERT_TRUE(decimals == 3 || decimals == -1);
      digits += decimals == 3 ? v : v * 1000;
    }
    ++n;
  }
  const OpTable& o = set->ranks[0].ops;
  ASSERT_EQ(o.size(), n);
  for (std::size_t i = 0; i < o.size(); ++i) rows += static_cast<std::uint64_t>(o.start[i] + o.dur[i]);
  EXPECT_TRUE(rows == digits);
}

TEST(ImportReal, MultiRankSets) {
  if (!there(kData + "traces/nanogpt-8xh100")) return;
  struct Set {
    const char* name;
    std::size_t ranks;
    std::int64_t world;
    const char* host;
  };
  for (const Set& s : {Set{"nanogpt-8xh100", 8, 8, ""},
                       {"megatron-tp2", 2, 2, "9c44bd29b3f0"},
                       {"dlrm-8xv100", 8, 8, ""},  // "worker0_step_12.TIME": the worker's name, not a host's
                       {"torchrec-sst_long_a2a_optimizer", 4, 4, "ip-172-31-16-248.us-east-2.compute.internal"}}) {
    const auto set = import_traces({kData + "traces/" + s.name});
    ASSERT_TRUE(set.has_value()) << set.error().line();
    ASSERT_EQ(set->ranks.size(), s.ranks);
    for (std::size_t r = 0; r < s.ranks; ++r) {
      EXPECT_EQ(set->ranks[r].rank, static_cast<std::int64_t>(r));
      EXPECT_EQ(set->ranks[r].world_size, s.world);
      EXPECT_EQ(set->ranks[r].host, s.host) << s.name;
    }
  }
}

TEST(ImportReal, SimulatedJobs) {
  // Event counts as the sets' own description has them.
  struct Set {
    const char* name;
    std::uint64_t events;
  };
  for (const Set& s : {Set{"gpt-small/base", 160585}, {"gpt-small/pp4", 166544}, {"gpt-small/hidden4096", 163935}}) {
    if (!there(kData + "oracle/" + s.name)) return;
    const auto set = import_traces({kData + "oracle/" + s.name});
    ASSERT_TRUE(set.has_value()) << set.error().line();
    std::uint64_t events = 0;
    for (const RankTrace& t : set->ranks) {
      events += t.events;
      EXPECT_TRUE(t.notes.rows.empty()) << all_notes(t.notes);
    }
    EXPECT_EQ(events, s.events) << s.name;
  }
}

}  // namespace
}  // namespace orrery
