// One rank: what is saved comes back, what is slow or broken is counted, and nothing half done is ever seen.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "checkpoint_helpers.h"

namespace orrery::ckpt::test {
namespace {

// Storage that stands still until it is let go.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  int waiting = 0;
  void pass() {
    std::unique_lock lock(mutex);
    ++waiting;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
  }
  void until_waiting() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return waiting > 0; });
  }
  void let_go() {
    const std::scoped_lock lock(mutex);
    open = true;
    changed.notify_all();
  }
  StorageFault fault() {
    return [this](std::string_view op, const std::string& path) {
      if (op == "write" && path.find("safetensors") != std::string::npos) pass();
      return 0;
    };
  }
};

Outcome save(Writer& w, std::int64_t step) {
  const ToyState state(step);
  const auto views = state.views();
  const auto saved = w.save(step, Slot::full, views, {});
  EXPECT_TRUE(saved) << saved.error().line();
  return saved ? *saved : Outcome::skipped;
}

TEST(CheckpointSave, ARelativeDirectoryOutlivesAChangeOfTheWorkingOne) {
  const Scratch dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path);
  auto w = Writer::open(small_options("c"));
  fs::current_path(before);
  ASSERT_TRUE(w) << w.error().line();
  save_now(*w, 3);
  const auto found = Checkpoint::newest_good(dir / "c");
  ASSERT_TRUE(found && *found);
  EXPECT_EQ((*found)->step(), 3);
}

TEST(CheckpointSave, ComesBack) {
  const Scratch dir;
  {
    auto w = Writer::open(small_options(dir / "c"));
    ASSERT_TRUE(w) << w.error().line();
    save_now(*w, 7, Slot::full, {{"loss", "1.5"}});
  }
  const auto c = Checkpoint::newest_good(dir / "c");
  ASSERT_TRUE(c && *c) << c.error().line();
  EXPECT_EQ((*c)->step(), 7);
  EXPECT_EQ((*c)->metadata().at("loss"), "1.5");
  EXPECT_EQ(differs(**c), "");
}

TEST(CheckpointSave, NoneIsToldFromNoneGood) {
  const Scratch dir;
  const auto absent = Checkpoint::newest_good(dir / "never");
  ASSERT_TRUE(absent);
  EXPECT_FALSE(*absent);
  {
    auto w = Writer::open(small_options(dir / "c"));
    const auto empty = Checkpoint::newest_good(dir / "c");
    ASSERT_TRUE(empty);
    EXPECT_FALSE(*empty);
    save_now(*w, 1);
  }
  const auto all = list(dir / "c");
  spit(dir.path / "c" / all->front().id / "rank-00000.safetensors", "nothing");
  EXPECT_FALSE(Checkpoint::newest_good(dir / "c"));
}

TEST(CheckpointSave, SourceMayChangeAtOnce) {
  const Scratch dir;
  Gate gate;
  Options o = small_options(dir / "c");
  o.fault = gate.fault();
  auto w = Writer::open(o);
  ToyState state(3);
  const auto views = state.views();
  ASSERT_TRUE(w->save(3, Slot::full, views, {}));
  gate.until_waiting();  // the writer is at work, on the copy
  for (float& x : state.weights) x = -1;
  state.steps = -1;
  gate.let_go();
  ASSERT_TRUE(w->wait(20));
  EXPECT_EQ(newest_step(dir / "c"), 3);
}

TEST(CheckpointSave, SlotsKeepTheirNumbers) {
  const Scratch dir;
  Options o = small_options(dir / "c");
  o.keep_full = 2;
  o.keep_snapshot = 1;
  {
    auto w = Writer::open(o);
    for (const int step : {10, 20, 30}) save_now(*w, step);
    for (const int step : {31, 32, 33}) save_now(*w, step, Slot::snapshot);
    EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{33, 30, 20}));
    EXPECT_EQ(w->stats().removed, 3u);
  }
  auto w = Writer::open(o);  // what was there counts
  save_now(*w, 40);
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{40, 33, 30}));
  EXPECT_EQ((*Checkpoint::newest_good(dir / "c", false, true))->step(), 33);
}

TEST(CheckpointSave, NewestIsTheLastCommittedNotTheHighestStep) {
  const Scratch dir;
  {
    auto w = Writer::open(small_options(dir / "c"));
    for (const int step : {10, 20}) save_now(*w, step);
    save_now(*w, 15);  // went back and went on
  }
  EXPECT_EQ(newest_step(dir / "c"), 15);
}

TEST(CheckpointSave, WithdrawnAreNotLoadedAgain) {
  const Scratch dir;
  Options o = small_options(dir / "c");
  o.keep_full = 0;
  {
    auto w = Writer::open(o);
    for (const int step : {10, 20, 30}) save_now(*w, step);
  }
  const auto all = list(dir / "c");
  ASSERT_EQ(all->back().step, 10);
  const auto n = withdraw_after(dir / "c", all->back().id);
  ASSERT_TRUE(n);
  EXPECT_EQ(*n, 2u);
  EXPECT_EQ(newest_step(dir / "c"), 10);
  auto w = Writer::open(o);
  save_now(*w, 12);
  EXPECT_EQ(newest_step(dir / "c"), 12);
}

TEST(CheckpointSave, WithdrawnDoNotPushOutWhatIsThere) {
  const Scratch dir;
  Options o = small_options(dir / "c");
  o.keep_full = 3;
  {
    auto w = Writer::open(o);
    for (const int step : {10, 20, 30}) save_now(*w, step);
  }
  auto w = Writer::open(o);  // which counts three, and then
  ASSERT_TRUE(withdraw_after(dir / "c", list(dir / "c")->back().id));
  save_now(*w, 15);
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{15, 10}));
}

TEST(CheckpointSave, WaitPolicyWaitsForABuffer) {
  const Scratch dir;
  Gate gate;
  Options o = small_options(dir / "c");
  o.fault = gate.fault();
  o.buffers = 1;
  auto w = Writer::open(o);
  EXPECT_EQ(save(*w, 1), Outcome::accepted);
  gate.until_waiting();
  std::atomic<bool> returned{false};
  std::thread trainer([&] {
    EXPECT_EQ(save(*w, 2), Outcome::accepted);
    returned = true;
  });
  while (w->stats().saves < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it is counted, and then looks for a buffer
  EXPECT_FALSE(returned);
  gate.let_go();
  trainer.join();
  ASSERT_TRUE(w->wait(20));
  EXPECT_GT(w->stats().waited_ns, 0u);
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{2, 1}));
}

TEST(CheckpointSave, WaitingEndsSoThatTrainingNeverHangs) {
  const Scratch dir;
  Gate gate;
  Options o = small_options(dir / "c");
  o.fault = gate.fault();
  o.buffers = 1;
  o.wait_timeout_s = 0.02;
  auto w = Writer::open(o);
  EXPECT_EQ(save(*w, 1), Outcome::accepted);
  EXPECT_EQ(save(*w, 2), Outcome::skipped);
  EXPECT_GT(w->stats().oldest_unwritten_ns, 20'000'000u);  // how a guard sees stuck storage
  gate.let_go();
  ASSERT_TRUE(w->wait(20));
  EXPECT_EQ(w->stats().skipped, 1u);
}

TEST(CheckpointSave, SkipPolicyLeavesTheNewOneOut) {
  const Scratch dir;
  Gate gate;
  Options o = small_options(dir / "c");
  o.fault = gate.fault();
  o.when_busy = WhenBusy::skip;
  auto w = Writer::open(o);
  EXPECT_EQ(save(*w, 1), Outcome::accepted);
  EXPECT_EQ(save(*w, 2), Outcome::accepted);
  EXPECT_EQ(save(*w, 3), Outcome::skipped);
  gate.let_go();
  ASSERT_TRUE(w->wait(20));
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{2, 1}));
  const Stats s = w->stats();
  EXPECT_EQ(s.saves, 3u);
  EXPECT_EQ(s.accepted, 2u);
  EXPECT_EQ(s.skipped, 1u);
  EXPECT_EQ(s.committed, 2u);
}

TEST(CheckpointSave, DropPolicyGivesUpTheOldestNotBegun) {
  const Scratch dir;
  Gate gate;
  Options o = small_options(dir / "c");
  o.fault = gate.fault();
  o.when_busy = WhenBusy::drop;
  auto w = Writer::open(o);
  EXPECT_EQ(save(*w, 1), Outcome::accepted);
  gate.until_waiting();
  EXPECT_EQ(save(*w, 2), Outcome::accepted);
  EXPECT_EQ(save(*w, 3), Outcome::accepted);
  gate.let_go();
  ASSERT_TRUE(w->wait(20));
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(w->stats().dropped, 1u);
}

TEST(CheckpointSave, StorageThatHangsDoesNotHangTheEnd) {
  const Scratch dir;
  Gate gate;
  Options o = small_options(dir / "c");
  o.fault = gate.fault();
  o.close_timeout_s = 0.02;
  {
    auto w = Writer::open(o);
    EXPECT_EQ(save(*w, 1), Outcome::accepted);
    gate.until_waiting();
    const auto closed = w->close();
    ASSERT_FALSE(closed);
    EXPECT_NE(closed.error().line().find("not written after"), std::string::npos);
  }
  EXPECT_TRUE(steps_in(dir / "c").empty());
  gate.let_go();
  // The thread that was left to itself ends now; it must not touch the gate after the test.
  while (Writer::open(small_options(dir / "c")).has_value() == false) std::this_thread::yield();
}

TEST(CheckpointSave, StorageThatHangsWhileItIsTidiedDoesNotHangTheEnd) {
  const Scratch dir;
  Gate gate;
  Options o = small_options(dir / "c");
  o.world = 2;
  o.session = "a";
  o.peer_timeout_s = 0.01;  // rank 1 never comes: what rank 0 wrote is taken away
  o.fault = [&](std::string_view op, const std::string&) {
    if (op == "unlink") gate.pass();
    return 0;
  };
  {
    auto w = Writer::open(o);
    EXPECT_EQ(save(*w, 1), Outcome::accepted);
    gate.until_waiting();
    EXPECT_FALSE(w->close(60)) << "it was not complete";
  }
  gate.let_go();
  o.fault = {};
  o.session = "b";
  while (Writer::open(o).has_value() == false) std::this_thread::yield();
}

TEST(CheckpointSave, AWriterThatTakesThePlaceOfAnotherClosesIt) {
  const Scratch dir;
  auto first = Writer::open(small_options(dir / "a")), second = Writer::open(small_options(dir / "b"));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(save(*first, 1), Outcome::accepted);
  *first = std::move(*second);
  EXPECT_EQ(newest_step(dir / "a"), 1);
  EXPECT_TRUE(Writer::open(small_options(dir / "a"))) << "its lock is free";
  save_now(*first, 2);
  EXPECT_EQ(newest_step(dir / "b"), 2);
}

TEST(CheckpointSave, TwoWritersAreRefused) {
  const Scratch dir;
  auto first = Writer::open(small_options(dir / "c"));
  ASSERT_TRUE(first);
  const auto same_process = Writer::open(small_options(dir / "c"));
  ASSERT_FALSE(same_process);
  EXPECT_NE(same_process.error().line().find("has a writer there already"), std::string::npos);
  const pid_t child = ::fork();
  if (child == 0) {  // another process has not the list of this one, only the lock
    const int fd = ::open((dir / "c/rank-00000.lock").c_str(), O_RDWR);
    struct flock l {};
    l.l_type = F_WRLCK;
    ::_exit(fd >= 0 && ::fcntl(fd, F_SETLK, &l) != 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(first->close());
  EXPECT_TRUE(Writer::open(small_options(dir / "c")));
}

TEST(CheckpointSave, AForkedChildHoldsNothing) {
  const Scratch dir;
  auto w = Writer::open(small_options(dir / "c"));
  ASSERT_TRUE(w);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {  // a data loader's worker that outlives the trainer
    char go = 0;
    const ToyState state(1);
    const auto views = state.views();
    const bool refused = !w->save(1, Slot::full, views, {}) && !w->wait(1000) && w->stats().saves == 0;
    const bool closed = w->close(1000).has_value();  // nothing to wait for
    const bool later = ::read(pipe[0], &go, 1) == 1;
    const bool opened = Writer::open(small_options(dir / "d")).has_value();  // whatever its parent holds or held
    const bool again = Writer::open(small_options(dir / "c")).has_value();
    ::_exit(refused && closed && later && opened && again ? 0 : 1);
  }
  ASSERT_TRUE(w->close());
  EXPECT_TRUE(Writer::open(small_options(dir / "c")));
  ASSERT_EQ(::write(pipe[1], "x", 1), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(CheckpointSave, ASessionIsUsedOnce) {
  const Scratch dir;
  Options o = small_options(dir / "c");
  o.session = "job-1";
  ASSERT_TRUE(Writer::open(o));
  const auto again = Writer::open(o);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().line().find("was used by a run before"), std::string::npos);
  o.session = "job-2";
  EXPECT_TRUE(Writer::open(o));
}

TEST(CheckpointSave, UnusableTensorsAreRefused) {
  const Scratch dir;
  auto w = Writer::open(small_options(dir / "c"));
  const ToyState state(1);
  const auto refuse = [&](auto&& change) {
    auto views = state.views();
    change(views);
    return !w->save(1, Slot::full, views, {});
  };
  EXPECT_TRUE(refuse([](auto& v) { v[0].name = "steps"; }));
  EXPECT_TRUE(refuse([](auto& v) { v[0].name = ""; }));
  EXPECT_TRUE(refuse([](auto& v) { v[0].name = "__metadata__"; }));
  EXPECT_TRUE(refuse([](auto& v) { v[0].data = nullptr; }));
  EXPECT_TRUE(refuse([](auto& v) { v[0].shape = {-1, 3}; }));
  EXPECT_TRUE(refuse([](auto& v) { v[0].shape.assign(9, 1); }));
  EXPECT_TRUE(refuse([](auto& v) { v[0].split_dim = 2; }));
  EXPECT_TRUE(refuse([](auto& v) { v[0].split_dim = 0, v[0].whole = 39; }));
  EXPECT_TRUE(refuse([](auto& v) { v[0].place = Place::cuda; }));
  save_now(*w, 2);  // the writer is as good as before
  EXPECT_EQ(newest_step(dir / "c"), 2);
}

// Every operation on the storage that a save makes fails once, with every error that matters.
TEST(CheckpointSave, WhateverFailsTheOldOneStaysAndTheNextOneWorks) {
  int failures = 0;
  for (int at = 0;; ++at) {
    const Scratch dir;
    std::atomic<int> left{-1};
    Options o = small_options(dir / "c");
    o.keep_full = 1;
    o.fault = [&](std::string_view op, const std::string&) {
      if (left < 0 || op == "unlink") return 0;
      return left-- == 0 ? (at % 3 == 0 ? ENOSPC : at % 3 == 1 ? EIO : ESTALE) : 0;
    };
    auto w = Writer::open(o);
    ASSERT_TRUE(w);
    save_now(*w, 1);
    left = at;
    EXPECT_EQ(save(*w, 2), Outcome::accepted);
    const bool ok = w->wait(20).has_value();
    const bool struck = left < 0;
    left = -1;
    const std::int64_t newest = newest_step(dir / "c");
    EXPECT_TRUE(newest == 2 || (!ok && newest == 1)) << newest << ", operation " << at;
    if (!ok) {
      ++failures;
      EXPECT_NE(w->stats().last_error, "");
    }
    save_now(*w, 3);
    EXPECT_EQ(newest_step(dir / "c"), 3) << "operation " << at;
    if (!struck) break;
    ASSERT_LT(at, 200);
  }
  EXPECT_GT(failures, 12);
}

TEST(CheckpointSave, StorageThatLosesBytesIsCaughtBeforeTheCommit) {
  const Scratch dir;
  Options o = small_options(dir / "c");
  std::atomic<bool> bad{false};
  o.fault = [&](std::string_view op, const std::string& path) {
    if (bad && op == "rename" && path.ends_with(".safetensors")) {
      std::string bytes = slurp(path + ".partial");
      bytes[bytes.size() / 2 + 40] = static_cast<char>(bytes[bytes.size() / 2 + 40] ^ 1);
      spit(path + ".partial", bytes);
    }
    return 0;
  };
  auto w = Writer::open(o);
  save_now(*w, 1);
  bad = true;
  EXPECT_EQ(save(*w, 2), Outcome::accepted);
  const auto ok = w->wait(20);
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().line().find("was altered"), std::string::npos);
  EXPECT_EQ(newest_step(dir / "c"), 1);
}

TEST(CheckpointSave, FileSizeLimitIsAnErrorNotADeath) {
  const Scratch dir;
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit small{8192, 8192};
    ::setrlimit(RLIMIT_FSIZE, &small);
    auto w = Writer::open(small_options(dir / "c"));
    const ToyState state(1, 4000);
    const auto views = state.views();
    const bool failed = w && w->save(1, Slot::full, views, {}) && !w->wait(20) && w->stats().failed == 1;
    save_now(*w, 2);  // small enough
    (void)w->close();
    ::_exit(failed ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(newest_step(dir / "c"), 2);
}

TEST(CheckpointSave, FullFileSystem) {
  const Scratch dir;
  const std::string mount = dir / "small";
  fs::create_directory(mount);
  if (::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "SKIPPED: cannot mount a small tmpfs here";
  }
  {
    Options o = small_options(mount + "/c");
    o.keep_full = 1;
    auto w = Writer::open(o);
    ASSERT_TRUE(w);
    save_now(*w, 1);
    const ToyState large(2, 30000);
    const auto views = large.views();
    ASSERT_TRUE(w->save(2, Slot::full, views, {}));
    const auto ok = w->wait(20);
    EXPECT_FALSE(ok);
    EXPECT_NE(w->stats().last_error.find("No space left"), std::string::npos) << w->stats().last_error;
    EXPECT_EQ(newest_step(mount + "/c"), 1);
    save_now(*w, 3);  // nothing of the failed one takes room
    EXPECT_EQ(newest_step(mount + "/c"), 3);
    EXPECT_EQ(std::distance(fs::directory_iterator(mount + "/c"), {}), 2);  // the lock, and that one
  }
  EXPECT_EQ(::umount(mount.c_str()), 0);
}

TEST(CheckpointSave, StorageThatVanishedIsNotMadeAnew) {
  const Scratch dir;
  auto w = Writer::open(small_options(dir / "c"));
  save_now(*w, 1);
  fs::rename(dir / "c", dir / "away");
  EXPECT_EQ(save(*w, 2), Outcome::accepted);
  EXPECT_FALSE(w->wait(20));
  EXPECT_FALSE(fs::exists(dir / "c"));  // an empty mount point must not be written to
  fs::rename(dir / "away", dir / "c");
  save_now(*w, 3);
  EXPECT_EQ(newest_step(dir / "c"), 3);
}

// What no test can do is to pull the plug; so: everything a manifest names is synced before the manifest's rename.
TEST(CheckpointSave, ManifestIsRenamedAfterEverythingIsSynced) {
  const Scratch dir;
  std::vector<std::string> seen;
  Options o = small_options(dir / "c");
  o.fault = [&](std::string_view op, const std::string& path) {
    if (op != "write" && op != "read") seen.push_back(std::string(op) + " " + fs::path(path).filename().string());
    return 0;
  };
  std::string id;
  {
    auto w = Writer::open(o);
    seen.clear();
    save_now(*w, 1);
    id = list(dir / "c")->front().id;
  }
  const auto at = [&](const std::string& what, std::size_t from = 0) {
    const auto i = std::find(seen.begin() + static_cast<std::ptrdiff_t>(from), seen.end(), what);
    EXPECT_NE(i, seen.end()) << what;
    return static_cast<std::size_t>(i - seen.begin());
  };
  const std::size_t shard = at("sync rank-00000.safetensors.partial"), renamed = at("rename rank-00000.safetensors");
  const std::size_t receipt = at("rename rank-00000.receipt.json"), root = at("sync_dir c", receipt);
  const std::size_t synced = at("sync manifest.json.partial"), manifest = at("rename manifest.json");
  EXPECT_LT(shard, renamed);
  EXPECT_LT(renamed, at("sync_dir " + id, renamed));
  EXPECT_LT(at("sync_dir " + id, receipt), root);
  EXPECT_LT(root, manifest);
  EXPECT_LT(synced, manifest);
  EXPECT_LT(manifest, at("sync_dir " + id, manifest));
}

TEST(CheckpointSave, BuffersAreReadyOrGrow) {
  const Scratch dir;
  Options o = small_options(dir / "c");
  o.buffer_bytes = 1 << 20;
  auto w = Writer::open(o);
  save_now(*w, 1);
  EXPECT_EQ(w->stats().buffer_growths, 0u);
  const ToyState large(2, 1 << 18);
  const auto views = large.views();
  ASSERT_TRUE(w->save(2, Slot::full, views, {}));
  ASSERT_TRUE(w->wait(20));
  EXPECT_EQ(w->stats().buffer_growths, 1u);
  EXPECT_EQ(w->stats().bytes_copied, 40u * 12 + 8 + (1u << 18) * 12 + 8);
}

}  // namespace
}  // namespace orrery::ckpt::test
