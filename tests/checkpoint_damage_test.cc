// Whatever happens to a file of the newest checkpoint, the one before is loaded, or the newest as it was: never
// anything else.
#include <sys/stat.h>

#include <functional>

#include "checkpoint/manifest.h"
#include "checkpoint_helpers.h"

namespace orrery::ckpt::test {
namespace {

// Two checkpoints, steps 1 and 2, of two ranks.
struct Pair {
  Scratch dir;
  fs::path newer, older;
  Pair() {
    for (const int step : {1, 2}) {
      std::vector<Writer> ranks;
      for (int r = 0; r < 2; ++r) {
        Options o = small_options(dir / "c");
        o.rank = r;
        o.world = 2;
        o.session = "run " + std::to_string(step);
        auto w = Writer::open(o);
        EXPECT_TRUE(w);
        ranks.push_back(std::move(*w));
      }
      const ToyState state(step);
      for (int r = 0; r < 2; ++r) {
        const auto views = state.piece(20 * r, 20 * (r + 1), r == 0);
        EXPECT_TRUE(ranks[static_cast<std::size_t>(r)].save(step, Slot::full, views, {}));
      }
      EXPECT_TRUE(ranks[0].wait(20));
    }
    const auto all = list(dir / "c");
    newer = dir.path / "c" / all->at(0).id;
    older = dir.path / "c" / all->at(1).id;
  }
};

const char* const kinds[] = {"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"};

TEST(CheckpointDamage, AnyByteThatChanged) {
  const Pair p;
  for (const char* kind : kinds) {
    const std::string whole = slurp(p.newer / kind);
    const std::size_t stride = std::max<std::size_t>(1, whole.size() / 150);
    for (std::size_t at = 0; at < whole.size(); at += stride) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      spit(p.newer / kind, bad);
      EXPECT_EQ(newest_step(p.dir / "c"), 1) << kind << " byte " << at;
    }
    spit(p.newer / kind, whole);
    EXPECT_EQ(newest_step(p.dir / "c"), 2);
  }
}

TEST(CheckpointDamage, AnyLengthThatChanged) {
  const Pair p;
  for (const char* kind : kinds) {
    const std::string whole = slurp(p.newer / kind);
    for (std::size_t length = 0; length < whole.size(); length += 1 + whole.size() / 40) {
      spit(p.newer / kind, whole.substr(0, length));
      EXPECT_EQ(newest_step(p.dir / "c"), 1) << kind << " of " << length << " bytes";
      spit(p.newer / kind, whole.substr(0, length) + std::string(whole.size() - length, '\0'));  // a hole
      EXPECT_EQ(newest_step(p.dir / "c"), 1) << kind << " with zeros from " << length;
    }
    spit(p.newer / kind, whole + "x");
    EXPECT_EQ(newest_step(p.dir / "c"), 1) << kind;
    spit(p.newer / kind, whole);
  }
  EXPECT_EQ(newest_step(p.dir / "c"), 2);
}

TEST(CheckpointDamage, FilesOfAnotherCheckpoint) {
  for (const char* kind : kinds) {
    const Pair p;
    spit(p.newer / kind, slurp(p.older / kind));  // each good, of the same size, but not of this step
    EXPECT_EQ(newest_step(p.dir / "c"), 1) << kind;
  }
}

TEST(CheckpointDamage, FilesThatAreGoneOrNotFiles) {
  for (const char* kind : kinds) {
    const std::function<void(const fs::path&)> harms[] = {
        [](const fs::path& f) { fs::remove(f); },
        [](const fs::path& f) { fs::remove(f), fs::create_directory(f); },
        [](const fs::path& f) { fs::remove(f), fs::create_symlink("/dev/zero", f); },
        [](const fs::path& f) { fs::remove(f), (void)::mkfifo(f.c_str(), 0600); },
    };
    for (const auto& harm : harms) {
      const Pair p;
      harm(p.newer / kind);
      EXPECT_EQ(newest_step(p.dir / "c"), 1) << kind;
    }
  }
}

TEST(CheckpointDamage, WhatWasRejectedIsSaid) {
  const Pair p;
  std::string bytes = slurp(p.newer / kinds[2]);
  bytes.back() ^= 1;
  spit(p.newer / kinds[2], bytes);
  auto c = Checkpoint::newest_good(p.dir / "c");
  ASSERT_TRUE(c && *c);
  ASSERT_EQ((*c)->rejected().size(), 1u);
  EXPECT_NE((*c)->rejected()[0].find("tensor weights was altered"), std::string::npos) << (*c)->rejected()[0];
  // Reading it by name finds the same.
  const auto named = Checkpoint::open(p.dir / "c", p.newer.filename().string());
  ASSERT_TRUE(named);
  EXPECT_TRUE(named->verify(0, 2));
  EXPECT_FALSE(named->verify(1, 2));
  std::vector<float> out(60);
  EXPECT_TRUE(named->read_part("weights", 0, 0, 20, out.data()));
  EXPECT_FALSE(named->read_part("weights", 0, 20, 40, out.data()));
  EXPECT_FALSE(Checkpoint::open(p.dir / "c", "step-../../x"));
  EXPECT_FALSE(Checkpoint::open(p.dir / "c", ".."));
}

TEST(CheckpointDamage, WhatCannotBeLoadedPushesOutNothing) {
  Pair p;
  fs::remove(p.newer / "rank-00001.safetensors");
  Options o = small_options(p.dir / "c");
  o.keep_full = 2;
  auto w = Writer::open(o);
  ASSERT_TRUE(w);
  save_now(*w, 3);
  EXPECT_TRUE(fs::exists(p.older / "manifest.json")) << "two that are good are kept";
  EXPECT_EQ(newest_step(p.dir / "c"), 3);
  save_now(*w, 4);
  EXPECT_FALSE(fs::exists(p.older / "manifest.json"));
  EXPECT_EQ(newest_step(p.dir / "c"), 4);
}

TEST(CheckpointDamage, ReceiptsOfAnySort) {
  for (const std::string& harm : {std::string("cut"), std::string("flip"), std::string("foreign")}) {
    const Scratch dir;
    Options o = small_options(dir / "c");
    o.fault = [&](std::string_view op, const std::string& path) {
      if (op != "sync_dir" || path.find("step-") == std::string::npos) return 0;
      const std::string receipt = path + "/rank-00000.receipt.json";
      std::string text = slurp(receipt);
      if (text.empty() || fs::exists(path + "/manifest.json")) return 0;
      if (harm == "cut") text.resize(text.size() / 2);
      if (harm == "flip") text[text.size() / 2] ^= 1;
      if (harm == "foreign") {
        Receipt other;
        other.attempt = {99, Slot::full, 1, "x", 1};
        other.gave_up = "";
        text = to_text(Manifest{other.attempt, 1, {}, {}}).value();
      }
      spit(receipt, text);
      return 0;
    };
    auto w = Writer::open(o);
    const ToyState state(1);
    const auto views = state.views();
    ASSERT_TRUE(w->save(1, Slot::full, views, {}));
    EXPECT_FALSE(w->wait(20)) << harm;
    EXPECT_EQ(newest_step(dir / "c"), -1) << harm;
  }
}

TEST(CheckpointDamage, StrangersInTheDirectoryAreLeftAlone) {
  const Pair p;
  fs::create_directory(p.dir.path / "c" / "step-of-someone");
  spit(p.dir.path / "c" / "step-notes.txt", "by hand");
  spit(p.dir.path / "c" / "README", "hello");
  EXPECT_EQ(newest_step(p.dir / "c"), 2);
  Options o = small_options(p.dir / "c");
  auto w = Writer::open(o);
  ASSERT_TRUE(w) << w.error().line();
  save_now(*w, 3);
  EXPECT_EQ(newest_step(p.dir / "c"), 3);
  EXPECT_EQ(slurp(p.dir.path / "c" / "step-notes.txt"), "by hand");
  EXPECT_TRUE(fs::exists(p.dir.path / "c" / "step-of-someone"));
}

}  // namespace
}  // namespace orrery::ckpt::test
