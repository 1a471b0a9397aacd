// Where traces come from: files, directories, globs, archives, pipes; and which rank each file is.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <isa-l/igzip_lib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "import_helpers.h"
#include "importers/find_inputs.h"

namespace orrery {
namespace {

using namespace orrery::testing;
namespace fs = std::filesystem;

class ImportInputs : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "orrery-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  fs::path dir_;
};

std::string trace(int rank, const std::string& op = "op") {
  const std::string info =
      rank < 0 ? "" : R"("distributedInfo": {"rank": )" + std::to_string(rank) + ", \"world_size\": 8}";
  return document({cpu_op(op, "1", "1"), cpu_op("b", "2", "1")}, info);
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
void make_zip(const std::string& path, const std::vector<std::pair<std::string, std::string>>& members) {
  int error = 0;
  zip_t* z = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
  ASSERT_NE(z, nullptr);
  for (const auto& [name, text] : members)
    ASSERT_GE(zip_file_add(z, name.c_str(), zip_source_buffer(z, text.data(), text.size(), 0), 0), 0);
  ASSERT_EQ(zip_close(z), 0);
}

TEST_F(ImportInputs, ContainersAreToldByContentNotByName) {
  const std::string text = trace(0), half = text.substr(0, text.size() / 2), rest = text.substr(text.size() / 2);
  const std::vector<std::string> files = {write("plain.gz", text),
                                          write("gz.json", gz(text)),
                                          write("members", gz(half) + gz(rest)),
                                          write("zst.zip", zst(text)),
                                          write("frames", zst(half) + zst(rest)),
                                          write("both", zst(gz(text)))};
  for (const std::string& f : files) {
    const auto set = import_traces({f});
    ASSERT_TRUE(set.has_value()) << set.error().line();
    ASSERT_EQ(set->ranks.size(), 1u);
    EXPECT_EQ(set->ranks[0].ops.size(), 2u) << f;
    EXPECT_EQ(set->ranks[0].json_bytes, text.size());
    EXPECT_TRUE(set->ranks[0].notes.rows.empty()) << f << all_notes(set->ranks[0].notes);
    EXPECT_EQ(set->ranks[0].file, f);
  }
}

TEST_F(ImportInputs, ATruncatedStreamIsUsedAsFarAsItGoes) {
  std::vector<std::string> events;
  for (int i = 0; i < 20000; ++i)
    events.push_back(cpu_op("op" + std::to_string(i * 7919 % 10007), std::to_string(i), "0.5"));
  const std::string text = document(events);
  for (const std::string& packed : {gz(text), zst(text)}) {
    const auto set = import_traces({write("cut", packed.substr(0, packed.size() / 2))});
    ASSERT_TRUE(set.has_value()) << set.error().line();
    const RankTrace& t = set->ranks[0];
    EXPECT_GT(t.ops.size(), 1000u);
    EXPECT_LT(t.ops.size(), 20000u);
    ASSERT_EQ(noted(t.notes, "truncated"), 1u) << all_notes(t.notes);
    EXPECT_NE(note(t.notes, "truncated")->first.find("stream ends early at byte " + std::to_string(packed.size() / 2)),
              std::string::npos)
        << all_notes(t.notes);
    EXPECT_TRUE(t.notes.lost_data());
  }
}

TEST_F(ImportInputs, CorruptCompressionIsNotAnEmptyFile) {
  std::string packed = gz(trace(0));
  for (std::size_t i = 10; i < packed.size(); ++i) packed[i] = static_cast<char>(0xff);  // behind the header
  for (const std::string& bytes : {packed, packed.substr(0, 5), zst(trace(0)).substr(0, 8) + "garbage, not a block"}) {
    const auto alone = import_traces({write("bad/rank0.json.gz", bytes)});
    ASSERT_FALSE(alone.has_value());
    const std::string line = alone.error().line();
    EXPECT_EQ(line.find("empty"), std::string::npos) << line;
    EXPECT_EQ(line.find("--recover"), std::string::npos) << line;
    EXPECT_TRUE(line.find("gzip data are corrupt") != std::string::npos ||
                line.find("ends early") != std::string::npos || line.find("zstd: ") != std::string::npos)
        << line;
    write("bad/rank1.json", trace(1));  // in a directory it is a broken trace, not some other file
    EXPECT_FALSE(import_traces({path("bad")}).has_value());
  }
}

TEST_F(ImportInputs, EveryMemberOfAZipIsOneFile) {
  make_zip(path("all.zip"),
           {{"a/rank1.json", trace(1, "one")}, {"rank0.json.gz", gz(trace(0, "zero"))}, {"README", "text"}});
  const auto set = import_traces({path("all.zip")});
  ASSERT_TRUE(set.has_value()) << set.error().line();
  ASSERT_EQ(set->ranks.size(), 2u);
  EXPECT_EQ(name(set->ranks[0], 0), "zero");
  EXPECT_EQ(name(set->ranks[1], 0), "one");
  EXPECT_EQ(set->ranks[1].file, path("all.zip") + ":a/rank1.json");
  EXPECT_EQ(noted(set->notes, "skipped-file"), 1u);
  make_zip(path("one.zip"), {{"x.json", trace(5)}});
  std::ifstream in(path("one.zip"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto one = import_kineto_bytes(bytes, "one.zip");
  ASSERT_TRUE(one.has_value()) << one.error().line();
  EXPECT_EQ(one->rank, 5);
  const auto cut = import_traces({write("cut.zip", bytes.substr(0, bytes.size() / 2))});
  ASSERT_FALSE(cut.has_value());
  EXPECT_NE(cut.error().line().find("zip"), std::string::npos);
}

TEST_F(ImportInputs, DirectoriesAndGlobs) {
  write("run/rank10.json", trace(10));
  write("run/deep/rank2.json.gz", gz(trace(2)));
  write("run/notes.txt", "no trace");
  write("run/truth.json", R"({"iteration_ms": 3})");
  write("run/list.json", "[1, 2]");
  write("run/old.json.bz2", "BZh91AY&SY");
  const auto set = import_traces({path("run")});
  ASSERT_TRUE(set.has_value()) << set.error().line();
  ASSERT_EQ(set->ranks.size(), 2u);
  EXPECT_EQ(set->ranks[0].rank, 2);
  EXPECT_EQ(set->ranks[1].rank, 10);
  EXPECT_EQ(noted(set->notes, "skipped-file"), 4u) << all_notes(set->notes);
  const auto glob = import_traces({path("run/rank*.json")});
  ASSERT_TRUE(glob.has_value());
  EXPECT_EQ(glob->ranks.size(), 1u);
  // A name that looks like a pattern, but is there.
  const auto literal = import_traces({write("odd[1].json", trace(0))});
  EXPECT_TRUE(literal.has_value());
}

TEST_F(ImportInputs, WhatIsNoFileIsToldAndNeverOpened) {
  write("run/rank0.json", trace(0));
  write("run/deep/rank1.json", trace(1));
  write("elsewhere/rank2.json", trace(2));
  ASSERT_EQ(::mkfifo(path("run/pipe").c_str(), 0600), 0);  // opening it would wait for a writer
  fs::create_symlink(path("nowhere.json"), path("run/rank3.json"));
  fs::create_directory_symlink(path("elsewhere"), path("run/more"));
  fs::create_symlink(path("run/rank0.json"), path("elsewhere/rank0.json"));
  for (const auto& [given, skipped] :
       {std::pair<std::string, std::uint64_t>{path("run"), 3}, {path("run/[pr]*"), 2}, {path("run/*.json"), 1}}) {
    const auto set = import_traces({given});
    ASSERT_TRUE(set.has_value()) << set.error().line();
    EXPECT_EQ(set->ranks.size(), given == path("run") ? 2u : 1u);
    EXPECT_EQ(noted(set->notes, "skipped-file"), skipped) << given << all_notes(set->notes);
  }
  const auto first = [&](const std::string& pattern) {
    return note(import_traces({path(pattern), path("run/deep")})->notes, "skipped-file")->first;
  };
  EXPECT_EQ(first("run/pip*"), path("run/pipe") + ": a pipe");
  EXPECT_EQ(first("run/rank3*"), path("run/rank3.json") + ": a link to nothing");
  EXPECT_EQ(import_traces({path("elsewhere")})->ranks.size(), 2u) << "a link to a file is that file";
  fs::create_directories(dir_ / "only");
  ASSERT_EQ(::mkfifo(path("only/pipe").c_str(), 0600), 0);
  const auto none = import_traces({path("only")});
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().line().find("no trace"), std::string::npos) << none.error().line();
}

TEST_F(ImportInputs, APipeThatIsNamedIsRead) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path("pipe"), std::ios::binary) << trace(4); });
  const auto set = import_traces({path("pipe")});
  writer.join();
  ASSERT_TRUE(set.has_value()) << set.error().line();
  EXPECT_EQ(set->ranks[0].rank, 4);
}

TEST_F(ImportInputs, ErrorsNameTheFile) {
  fs::create_directories(dir_ / "empty");
  const std::string text = write("notes.txt", "no trace"), other = write("other.json", "{\"a\": 1}");
  for (const std::string& p : {path("none.json"), path("*.nothing"), path("empty"), text, other}) {
    const auto set = import_traces({p});
    ASSERT_FALSE(set.has_value()) << p;
    EXPECT_NE(set.error().line().find(p), std::string::npos) << set.error().line();
  }
  write("junk/a.txt", "x");
  EXPECT_FALSE(import_traces({path("junk")}).has_value());
  EXPECT_FALSE(import_traces({}).has_value());
  if (::geteuid() != 0) {
    const std::string locked = write("locked.json", trace(0));
    ::chmod(locked.c_str(), 0);
    EXPECT_FALSE(import_traces({locked}).has_value());
  }
  // A trace in a directory that is broken is not skipped.
  write("bad/rank0.json", "{\"traceEvents\": [{\"ph\": \"X\", \"name\": \"a\"b\"}]}");
  const auto bad = import_traces({path("bad")});
  ASSERT_FALSE(bad.has_value());
  EXPECT_NE(bad.error().line().find("rank0.json"), std::string::npos);
}

// An empty file beside traces: by its name a rank that was never written, or something else.
TEST_F(ImportInputs, AnEmptyFileNamedLikeATraceIsABrokenTrace) {
  write("run/rank0.json", trace(0));
  write("run/log", "");
  write("run/rank1.done", "");
  const auto set = import_traces({path("run")});
  ASSERT_TRUE(set.has_value()) << set.error().line();
  EXPECT_EQ(noted(set->notes, "skipped-file"), 2u);
  for (const auto& [name, bytes] : {std::pair<std::string, std::string>{"rank1.json", ""},
                                    {"rank1.json.gz", ""},
                                    {"rank1.pt.trace.json.gz", gz("")},
                                    {"rank1.json.zst", ""}}) {
    write("run/" + name, bytes);
    for (const std::string& given : {path("run"), path("run/rank*")}) {
      const auto broken = import_traces({given});
      ASSERT_FALSE(broken.has_value()) << name;
      EXPECT_EQ(broken.error().line(), path("run/" + name) +
                                           ": the file is empty (name the other files, or a pattern, to leave this one "
                                           "out)");
    }
    fs::remove(path("run/" + name));
  }
}

TEST_F(ImportInputs, RanksFromOptionMetadataAndName) {
  const std::string a = write("x/rank-7.json", trace(3)), b = write("x/worker-2.json", trace(-1)),
                    c = write("x/plain.json", trace(-1));
  ImportOptions options;
  options.rank_of_file[c] = 9;
  auto set = import_traces({a, b, c}, options);
  ASSERT_TRUE(set.has_value()) << set.error().line();
  EXPECT_EQ(set->ranks[0].rank, 2);  // the name
  EXPECT_EQ(set->ranks[1].rank, 3);  // distributedInfo before the name
  EXPECT_EQ(set->ranks[2].rank, 9);  // the option before all
  EXPECT_EQ(noted(set->notes, "rank-differs-from-name"), 1u) << all_notes(set->notes);
  options.rank_of_file.clear();
  options.rank_of_file["plain.json"] = 4;
  EXPECT_TRUE(import_traces({a, b, c}, options).has_value());

  const auto unknown = import_traces({a, b, c});
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().line().find("plain.json"), std::string::npos);
  const auto alone = import_traces({c});
  ASSERT_TRUE(alone.has_value());
  EXPECT_EQ(alone->ranks[0].rank, 0);
  EXPECT_EQ(noted(alone->notes, "rank-assumed"), 1u);
  const std::string d = write("x/again.json", trace(3));
  const auto twice = import_traces({a, d});
  ASSERT_FALSE(twice.has_value());
  EXPECT_NE(twice.error().line().find("rank-7.json"), std::string::npos);
  EXPECT_NE(twice.error().line().find("again.json"), std::string::npos);
  options.rank_of_file["nobody.json"] = 1;
  EXPECT_FALSE(import_traces({a, b, c}, options).has_value());
}

TEST(ImportRankNames, Patterns) {
  struct Case {
    const char* path;
    std::int64_t rank;
  };
  for (const Case& c : {Case{"rank-3.json.gz", 3},
                        {"rank3", 3},
                        {"/runs/7/rank_12.pt.trace.json", 12},
                        {"worker-2.json", 2},
                        {"job_rank_5.123.json", 5},
                        {"node0_rank3.json", 3},
                        {"trace-r12.json", 12},
                        {"r07.json", 7},
                        {"Rank=4.json", 4},
                        {"a.zip:rank6.json", 6},
                        {"rank3/trace.json", 3},
                        {"worker0_step_12.1694128201545.pt.trace.json", 0},
                        {"trace.json", -1},
                        {"server12.json", -1},
                        {"bar12.json", -1},
                        {"r12b.json", -1},
                        {"-", -1}})
    EXPECT_EQ(rank_in_path(c.path), c.rank) << c.path;
}

TEST_F(ImportInputs, StandardInputIsAStream) {
  const std::string packed = gz(trace(4));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int saved = ::dup(0);
  ::dup2(ends[0], 0);
  ::close(ends[0]);
  std::thread writer([&] {
    for (const char c : packed) (void)!::write(ends[1], &c, 1);
    ::close(ends[1]);
  });
  const auto set = import_traces({"-"});
  writer.join();
  ::dup2(saved, 0);
  ::close(saved);
  ASSERT_TRUE(set.has_value()) << set.error().line();
  EXPECT_EQ(set->ranks[0].rank, 4);
  EXPECT_EQ(set->ranks[0].ops.size(), 2u);
  EXPECT_FALSE(import_traces({"-", "-"}).has_value());
}

TEST_F(ImportInputs, ProgressEndsAtTheWhole) {
  std::vector<std::string> files;
  std::uint64_t bytes = 0;
  for (int r = 0; r < 3; ++r) {
    const std::string packed = gz(trace(r));
    bytes += packed.size();
    files.push_back(write("rank" + std::to_string(r), packed));
  }
  ImportOptions options;
  std::uint64_t done = 0, total = 0;
  options.progress = [&](std::uint64_t d, std::uint64_t t) {
    EXPECT_GE(d, done);
    done = d;
    total = t;
  };
  ASSERT_TRUE(import_traces(files, options).has_value());
  EXPECT_EQ(total, bytes);
  EXPECT_EQ(done, bytes);
}

}  // namespace
}  // namespace orrery
