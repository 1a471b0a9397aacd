// Storage that does not answer, arguments of one rank that are refused, ranks that end: nothing complete is lost for
// it, nothing older is taken for the newest, and nobody waits for what cannot come.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "checkpoint_helpers.h"

namespace orrery::ckpt::test {
namespace {

// Two checkpoints, steps 10 and 20.
void make_two(const std::string& directory) {
  auto w = Writer::open(small_options(directory));
  ASSERT_TRUE(w) << w.error().line();
  for (const int step : {10, 20}) save_now(*w, step);
}

TEST(CheckpointTrouble, AnErrorWhileAWriterOpensRemovesNothing) {
  const Scratch dir;
  make_two(dir / "c");
  int refused = 0;
  for (const int code : {EIO, ESTALE, EACCES, EMFILE, ETIMEDOUT}) {
    for (int at = 0;; ++at) {
      int left = at;
      Options o = small_options(dir / "c");
      o.fault = [&](std::string_view, const std::string&) { return left-- == 0 ? code : 0; };
      const bool opened = Writer::open(o).has_value();
      const bool struck = left < 0;
      EXPECT_EQ(opened, !struck) << "operation " << at;
      EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{20, 10})) << "operation " << at;
      if (!struck) break;
      ++refused;
      ASSERT_LT(at, 100);
    }
  }
  EXPECT_GE(refused,
            5 * 7);  // each time: the directory, its list, and for each checkpoint it, its manifest, what is in it
  auto w = Writer::open(small_options(dir / "c"));
  save_now(*w, 15);
  EXPECT_EQ(newest_step(dir / "c"), 15);
}

// Runs `body` in a child that has so many descriptors left, the others being `taken`; what it returns is the child's
// exit status.
int with_descriptors_left(int free, const std::function<int(const std::vector<int>& taken)>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    std::vector<int> taken;
    rlimit small = limit;
    small.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 256);
    ::setrlimit(RLIMIT_NOFILE, &small);
    for (int fd = ::open("/dev/null", O_RDONLY); fd >= 0; fd = ::open("/dev/null", O_RDONLY)) taken.push_back(fd);
    for (int i = 0; i < free; ++i) {
      ::close(taken.back());
      taken.pop_back();
    }
    ::_exit(body(taken));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

TEST(CheckpointTrouble, ShortOfDescriptorsNothingOlderIsFound) {
  const Scratch dir;
  make_two(dir / "c");
  int refused = 0, found = 0;
  for (int free = 0; free < 8; ++free) {
    const int status = with_descriptors_left(free, [&](const std::vector<int>&) {
      const auto c = Checkpoint::newest_good(dir / "c");
      if (c) return *c && (*c)->step() == 20 ? 0 : 1;
      const std::string error = c.error().line();
      return error.find("Too many open files") != std::string::npos && error.find("anew") == std::string::npos ? 2 : 3;
    });
    EXPECT_TRUE(status == 0 || status == 2) << status << " with " << free;
    refused += status == 2 ? 1 : 0;
    found += status == 0 ? 1 : 0;
  }
  EXPECT_GE(refused, 3);  // the directory, a checkpoint's, its files
  EXPECT_GE(found, 1);
}

TEST(CheckpointTrouble, AWriterThatOpensShortOfDescriptorsCountsAllOrFails) {
  int opened = 0, refused = 0;
  for (int free = 0; free < 9; ++free) {
    const Scratch dir;
    make_two(dir / "c");
    const int status = with_descriptors_left(free, [&](const std::vector<int>& taken) {
      auto w = Writer::open(small_options(dir / "c"));
      if (!w) return 2;
      for (const int fd : taken) ::close(fd);
      save_now(*w, 5);  // went back: the newest all the same
      return newest_step(dir / "c") == 5 ? 0 : 1;
    });
    EXPECT_TRUE(status == 0 || status == 2) << status << " with " << free;
    opened += status == 0 ? 1 : 0;
    refused += status == 2 ? 1 : 0;
    EXPECT_GE(steps_in(dir / "c").size(), 2u);
  }
  EXPECT_GE(opened, 1);
  EXPECT_GE(refused, 4);
}

TEST(CheckpointTrouble, WhatMayNotBeReadIsNotNone) {
  const Scratch dir;
  make_two(dir / "c");
  fs::permissions(dir.path, fs::perms::all);
  const auto ask = [&](const std::string& path) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(4);
      const auto c = Checkpoint::newest_good(path);
      if (c) ::_exit(*c ? 1 : 2);
      ::_exit(c.error().line().find("Permission denied") != std::string::npos ? 0 : 3);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
  };
  const auto close_to_others = [](const fs::path& path) { fs::permissions(path, fs::perms::none); };
  const auto all = list(dir / "c");
  ASSERT_EQ(all->size(), 2u);
  const fs::path newer = dir.path / "c" / all->front().id, older = dir.path / "c" / all->back().id;
  close_to_others(newer);
  EXPECT_EQ(ask(dir / "c"), 0) << "an older one is not the answer";
  close_to_others(older);
  EXPECT_EQ(ask(dir / "c"), 0);
  for (const fs::path& path : {newer, older}) fs::permissions(path, fs::perms::all);
  close_to_others(newer / "manifest.json");
  EXPECT_EQ(ask(dir / "c"), 0);
  fs::permissions(newer / "manifest.json", fs::perms::all);
  close_to_others(newer / "rank-00000.safetensors");
  EXPECT_EQ(ask(dir / "c"), 0);
  close_to_others(dir.path / "c");
  EXPECT_EQ(ask(dir / "c"), 0);
  EXPECT_EQ(ask(dir / "c/below"), 0);
  fs::permissions(dir.path / "c", fs::perms::all);
}

TEST(CheckpointTrouble, QuestionsThatMeanNothingAreRefused) {
  const Scratch dir;
  make_two(dir / "c");
  EXPECT_FALSE(Checkpoint::newest_good(""));
  EXPECT_FALSE(list(""));
  EXPECT_FALSE(withdraw_after("", "x"));
  EXPECT_FALSE(Checkpoint::newest_good(dir / "c", false, false));
  const auto c = Checkpoint::newest_good(dir / "c");
  ASSERT_TRUE(c && *c);
  EXPECT_FALSE((*c)->verify(0, 0));
  EXPECT_FALSE((*c)->verify(2, 2));
  EXPECT_FALSE((*c)->verify(-1, 2));
  const auto nameless = Checkpoint::open(dir / "c", "");
  ASSERT_FALSE(nameless);
  EXPECT_EQ(nameless.error().line(), "\"\": is no name of a checkpoint");
}

TEST(CheckpointTrouble, OptionsOutOfRangeAreRefused) {
  const Scratch dir;
  const auto refuse = [&](const std::function<void(Options&)>& change) {
    Options o = small_options(dir / "c");
    change(o);
    const auto w = Writer::open(o);
    return w ? std::string() : w.error().line();
  };
  EXPECT_NE(refuse([](Options& o) { o.buffers = 0; }), "");
  EXPECT_NE(refuse([](Options& o) { o.buffers = 1'000'000'000; }).find("it is from 1 to 64"), std::string::npos);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1e300}) {
    EXPECT_NE(refuse([&](Options& o) { o.wait_timeout_s = bad; }).find("wait_timeout_s"), std::string::npos);
    EXPECT_NE(refuse([&](Options& o) { o.peer_timeout_s = bad; }).find("peer_timeout_s"), std::string::npos);
    EXPECT_NE(refuse([&](Options& o) { o.close_timeout_s = bad; }).find("close_timeout_s"), std::string::npos);
  }
  EXPECT_NE(refuse([](Options& o) { o.world = 0; }), "");
  EXPECT_NE(refuse([](Options& o) { o.world = 2'000'000, o.session = "a"; }), "");
  EXPECT_NE(refuse([](Options& o) { o.rank = 1; }), "");
  EXPECT_NE(refuse([](Options& o) { o.session = "\xff"; }).find("the session is not UTF-8"), std::string::npos);
  EXPECT_NE(refuse([](Options& o) { o.directory = std::string("a\0b", 3); }).find("zero byte"), std::string::npos);
  EXPECT_FALSE(fs::exists(dir / "c"));
  auto w = Writer::open(small_options(dir / "c"));
  ASSERT_TRUE(w);
  EXPECT_FALSE(w->wait(std::nan("")));
  EXPECT_FALSE(w->wait(-1));
  EXPECT_FALSE(w->close(std::numeric_limits<double>::infinity()));
  save_now(*w, 1);  // not closed by that
}

Options rank_of(const std::string& directory, int rank, const std::string& session = "a") {
  Options o = small_options(directory);
  o.rank = rank;
  o.world = 2;
  o.session = session;
  o.peer_timeout_s = 600;  // nothing here may wait for it
  return o;
}

Result<Outcome> save_share(Writer& w, int rank, std::int64_t step, const Metadata& metadata = {}) {
  const ToyState state(step);
  const auto views = state.piece(20 * rank, 20 * (rank + 1), rank == 0);
  return w.save(step, Slot::full, views, metadata);
}

TEST(CheckpointTrouble, WhateverOneRankIsRefusedTheNextSaveWorks) {
  const std::pair<const char*, std::function<bool(Writer&)>> refusals[] = {
      {"-1", [](Writer& w) { return !save_share(w, 1, -1); }},
      {"no such slot", [](Writer& w) { return !w.save(1, static_cast<Slot>(7), {}, {}); }},
      {"key of the metadata is not UTF-8",
       [](Writer& w) {
         return !save_share(w, 1, 1, {{"\xff", "x"}});
       }},
      {"value of the metadata is not UTF-8",
       [](Writer& w) {
         return !save_share(w, 1, 1, {{"x", "\xfe"}});
       }},
      {"zero byte",
       [](Writer& w) {
         return !save_share(w, 1, 1, {{"x", std::string("a\0b", 3)}});
       }},
      {"name of a tensor is not UTF-8",
       [](Writer& w) {
         const TensorView t{"a\xff", DType::f32, {0}, nullptr};
         return !w.save(1, Slot::full, {&t, 1}, {});
       }},
      {"eight dimensions",
       [](Writer& w) {
         const TensorView t{"a", DType::f32, std::vector<std::int64_t>(9, 0), nullptr};
         return !w.save(1, Slot::full, {&t, 1}, {});
       }},
      {"split_dim",
       [](Writer& w) {
         const TensorView t{"a", DType::f32, {0}, nullptr, Place::host, -7};
         return !w.save(1, Slot::full, {&t, 1}, {});
       }},
      {"found by the caller \xEF\xBF\xBD",
       [](Writer& w) { return !w.refuse(1, Slot::full, "found by the caller \xff"); }},
  };
  for (const auto& [evidence, refused] : refusals) {
    const Scratch dir;
    auto zero = Writer::open(rank_of(dir / "c", 0)), one = Writer::open(rank_of(dir / "c", 1));
    ASSERT_TRUE(zero && one);
    ASSERT_TRUE(save_share(*zero, 0, 1));
    EXPECT_TRUE(refused(*one)) << evidence;
    const auto told = zero->wait(20);
    ASSERT_FALSE(told) << evidence;
    EXPECT_NE(told.error().line().find("rank 1: "), std::string::npos) << told.error().line();
    EXPECT_NE(told.error().line().find(evidence), std::string::npos) << told.error().line();
    const Stats s = one->stats();
    EXPECT_EQ(s.saves, 1u) << evidence;
    EXPECT_EQ(s.refused, 1u) << evidence;
    ASSERT_TRUE(save_share(*zero, 0, 2) && save_share(*one, 1, 2));
    const auto ok = zero->wait(20);
    EXPECT_TRUE(ok) << ok.error().line();
    EXPECT_EQ(newest_step(dir / "c"), 2) << evidence;
    ASSERT_TRUE(one->close() && zero->close());
    std::size_t directories = 0;
    for (const auto& entry : fs::directory_iterator(dir.path / "c")) directories += entry.is_directory() ? 1 : 0;
    EXPECT_EQ(directories, 1u) << "what was given up is gone: " << evidence;
  }
}

TEST(CheckpointTrouble, RefusedOnRankZeroAsWell) {
  const Scratch dir;
  auto zero = Writer::open(rank_of(dir / "c", 0)), one = Writer::open(rank_of(dir / "c", 1));
  ASSERT_TRUE(save_share(*one, 1, 1));
  EXPECT_FALSE(save_share(*zero, 0, -5));
  ASSERT_TRUE(save_share(*zero, 0, 2) && save_share(*one, 1, 2));
  ASSERT_TRUE(zero->wait(20));
  EXPECT_EQ(newest_step(dir / "c"), 2);
}

TEST(CheckpointTrouble, RanksThatSaveDifferentStepsAreTold) {
  const Scratch dir;
  auto zero = Writer::open(rank_of(dir / "c", 0)), one = Writer::open(rank_of(dir / "c", 1));
  ASSERT_TRUE(save_share(*zero, 0, 10) && save_share(*one, 1, 11));
  const auto told = zero->wait(20);
  ASSERT_FALSE(told);
  EXPECT_NE(told.error().line().find("rank 1 saved step 11 (full) where rank 0 saved step 10 (full)"),
            std::string::npos)
      << told.error().line();
  ASSERT_TRUE(save_share(*zero, 0, 20) && save_share(*one, 1, 20));
  ASSERT_TRUE(zero->wait(20));
  EXPECT_EQ(newest_step(dir / "c"), 20);
}

TEST(CheckpointTrouble, ARankThatEndedIsNotWaitedFor) {
  const Scratch dir;
  auto zero = Writer::open(rank_of(dir / "c", 0));
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto one = Writer::open(rank_of(dir / "c", 1));
    if (!one || ::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char x = 0;
  ASSERT_EQ(::read(ready[0], &x, 1), 1);
  ASSERT_TRUE(save_share(*zero, 0, 1));
  EXPECT_FALSE(zero->wait(1.5));  // it runs: it may still come
  EXPECT_EQ(zero->stats().abandoned, 0u);
  ::kill(child, SIGKILL);
  const auto told = zero->wait(60);
  ASSERT_FALSE(told);
  EXPECT_NE(told.error().line().find("rank 1 has ended and left no part"), std::string::npos) << told.error().line();
  ::waitpid(child, nullptr, 0);
  for (const int fd : ready) ::close(fd);
}

TEST(CheckpointTrouble, ARankThatClosedIsNotWaitedForAndOneThatComesLateIs) {
  const Scratch dir;
  {
    auto zero = Writer::open(rank_of(dir / "c", 0)), one = Writer::open(rank_of(dir / "c", 1));
    ASSERT_TRUE(save_share(*zero, 0, 1) && save_share(*one, 1, 1));
    ASSERT_TRUE(one->close());  // its part is there: that it ended says nothing
    ASSERT_TRUE(zero->wait(20));
    ASSERT_TRUE(save_share(*zero, 0, 2));
    EXPECT_FALSE(zero->wait(60));
    EXPECT_EQ(zero->stats().abandoned, 1u);
  }
  auto zero = Writer::open(rank_of(dir / "c", 0, "b"));
  ASSERT_TRUE(save_share(*zero, 0, 3));
  EXPECT_FALSE(zero->wait(1.5));  // the lock of rank 1 is free, but of the run before
  EXPECT_EQ(zero->stats().abandoned, 0u);
  auto one = Writer::open(rank_of(dir / "c", 1, "b"));
  ASSERT_TRUE(save_share(*one, 1, 3));
  ASSERT_TRUE(zero->wait(20));
  EXPECT_EQ(newest_step(dir / "c"), 3);
}

TEST(CheckpointTrouble, WithoutItsLockAWriterCommitsNothing) {
  const Scratch dir;
  auto w = Writer::open(small_options(dir / "c"));
  save_now(*w, 1);
  fs::remove(dir / "c/rank-00000.lock");
  auto other = Writer::open(small_options(dir / "c"));  // nothing keeps it out
  ASSERT_TRUE(other);
  const ToyState state(2);
  const auto views = state.views();
  ASSERT_TRUE(w->save(2, Slot::full, views, {}));
  const auto ok = w->wait(20);
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().line().find("its lock was taken away"), std::string::npos) << ok.error().line();
  save_now(*other, 3);
  EXPECT_EQ(steps_in(dir / "c"), (std::vector<std::int64_t>{3, 1}));
}

// To read and close the file drops a POSIX lock of one's own process: the next save takes it again.
TEST(CheckpointTrouble, ALockDroppedByTheProcessItselfIsTakenAgain) {
  const Scratch dir;
  auto w = Writer::open(small_options(dir / "c"));
  save_now(*w, 1);
  const auto locked = [&] {
    const pid_t child = ::fork();
    if (child == 0) {
      const int fd = ::open((dir / "c/rank-00000.lock").c_str(), O_RDWR);
      struct flock l {};
      l.l_type = F_WRLCK;
      ::_exit(fd >= 0 && ::fcntl(fd, F_SETLK, &l) != 0 ? 1 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status) == 1;
  };
  EXPECT_TRUE(locked());
  (void)slurp(dir / "c/rank-00000.lock");
  EXPECT_FALSE(locked());
  save_now(*w, 2);
  EXPECT_TRUE(locked());
}

// A signal handler's word reaches a save() that waits for storage.
TEST(CheckpointTrouble, HurryEndsWhatWaits) {
  const Scratch dir;
  std::atomic<bool> stuck{true};
  Options o = small_options(dir / "c");
  o.buffers = 1;
  o.wait_timeout_s = o.close_timeout_s = 600;
  o.fault = [&](std::string_view op, const std::string&) {
    while (stuck && op == "write") std::this_thread::yield();
    return 0;
  };
  auto w = Writer::open(o);
  ASSERT_TRUE(w);
  const ToyState state(1);
  const auto views = state.views();
  ASSERT_TRUE(w->save(1, Slot::full, views, {}));
  std::atomic<int> outcome{-1};
  std::thread trainer([&] {
    const auto saved = w->save(2, Slot::full, views, {});
    outcome = saved && *saved == Outcome::skipped ? 1 : 0;
  });
  while (w->stats().saves < 2) std::this_thread::yield();
  EXPECT_EQ(outcome, -1);
  w->hurry(0.1);
  trainer.join();
  EXPECT_EQ(outcome, 1);
  const auto waited = w->wait(600);
  ASSERT_FALSE(waited);
  EXPECT_NE(waited.error().line().find("not written after"), std::string::npos) << waited.error().line();
  stuck = false;
  EXPECT_TRUE(w->close().has_value() || w->stats().written == 1 || w->stats().failed == 1);
}

}  // namespace
}  // namespace orrery::ckpt::test
