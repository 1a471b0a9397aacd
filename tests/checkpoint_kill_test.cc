// Killed with -9: what was complete is still there, and nothing else is ever loaded.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "checkpoint_helpers.h"

namespace orrery::ckpt::test {
namespace {

// The job of the child: goes on from the newest good checkpoint, says through `told` what it knows to be complete.
[[noreturn]] void train(const std::string& directory, int rank, int world, const std::string& session, int told,
                        const StorageFault& fault, std::int64_t last_step) {
  const auto found = Checkpoint::newest_good(directory);
  if (!found) ::_exit(3);
  std::int64_t step = 0;
  if (*found) {
    if (!differs(**found).empty()) ::_exit(4);
    step = (*found)->step();
  }
  Options o = small_options(directory);
  o.rank = rank;
  o.world = world;
  o.session = session;
  o.fault = fault;
  o.keep_full = 1;  // the old one goes as soon as it may
  auto w = Writer::open(o);
  if (!w) ::_exit(5);
  while (step < last_step) {
    ++step;
    const ToyState state(step);
    const auto views = world == 1 ? state.views() : state.piece(40 * rank / world, 40 * (rank + 1) / world, rank == 0);
    const Slot slot = step % 3 == 0 ? Slot::snapshot : Slot::full;
    if (!w->save(step, slot, views, {})) ::_exit(6);
    if (rank == 0 && step % 2 == 0) {
      if (const auto ok = w->wait(20); !ok) {
        while (ok.error().what.find("has ended") != std::string::npos) ::pause();  // the next strike is for this one
        ::_exit(7);
      }
      if (told >= 0 && ::write(told, &step, sizeof step) != sizeof step) ::_exit(8);
    }
  }
  (void)w->close();
  ::_exit(0);
}

struct Told {
  int ends[2];
  Told() {
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  ~Told() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  std::int64_t newest = 0;
  void read_all() {
    std::int64_t step = 0;
    while (::read(ends[0], &step, sizeof step) == sizeof step) newest = std::max(newest, step);
  }
};

int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// What the kernel was given survives a kill, whether or not it reached a disk: in memory there are many more moments to
// strike at in the same time, since syncs cost nothing.
fs::path in_memory() { return fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path(); }

// Before each single operation on the storage in turn, from the first of a start to the end of the third save.
TEST(CheckpointKill, BeforeEveryOperation) {
  const Scratch dir(in_memory());
  int struck = 0;
  for (int at = 0; at < 400; ++at) {
    const std::string directory = dir / ("c" + std::to_string(at));
    Told told;
    const auto run = [&](int die_at, std::int64_t last_step, const std::string& session) {
      const pid_t child = ::fork();
      if (child == 0) {
        std::atomic<int> left{die_at};
        const auto fault = [&](std::string_view, const std::string&) {
          if (left-- == 0) ::kill(::getpid(), SIGKILL);
          return 0;
        };
        train(directory, 0, 1, session, told.ends[1], fault, last_step);
      }
      const int status = wait_for(child);
      told.read_all();
      return status;
    };
    const int status = run(at, 4, "first");
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++struck;
    const std::int64_t newest = newest_step(directory);
    EXPECT_GE(newest, told.newest == 0 ? -1 : told.newest) << "operation " << at;
    EXPECT_EQ(WEXITSTATUS(run(-1, 6, "second")), 0) << "operation " << at;
    EXPECT_EQ(newest_step(directory), 6) << "operation " << at;
    std::error_code ignored;
    fs::remove_all(directory, ignored);
  }
  EXPECT_GT(struck, 50);
}

// What would be left after the power went: of what the log of operations says, data that was not synced may be zeros,
// names that were made or changed may be missing until their directory was synced.
struct PowerLoss {
  std::set<std::string> unsynced_data, unsynced_names;

  void operation(const std::string& op, const std::string& path) {
    const std::string partial = path + ".partial";
    if (op == "write") unsynced_data.insert(path);
    if (op == "sync") unsynced_data.erase(path);
    if (op == "mkdir" || op == "rename") unsynced_names.insert(path);
    if (op == "rename" && unsynced_data.erase(partial) > 0) unsynced_data.insert(path);
    if (op == "sync_dir") {
      std::erase_if(unsynced_names, [&](const std::string& name) { return fs::path(name).parent_path() == path; });
    }
  }
  void strike(std::mt19937& random) const {
    for (const std::string& file : unsynced_data) {
      if (fs::is_regular_file(file) && random() % 2 == 0) spit(file, std::string(fs::file_size(file), '\0'));
    }
    for (const std::string& name : unsynced_names) {
      std::error_code ignored;
      if (random() % 2 == 0) fs::remove_all(name, ignored);
    }
  }
};

TEST(CheckpointKill, PowerLostBeforeEveryOperation) {
  const Scratch dir(in_memory());
  std::mt19937 random(3);
  int struck = 0, lost = 0;
  for (int at = 0; at < 600; ++at) {
    const std::string directory = dir / ("c" + std::to_string(at)), log = dir / "log";
    fs::remove(log);
    Told told;
    const pid_t child = ::fork();
    if (child == 0) {
      std::atomic<int> left{at / 2};  // every moment twice: chance decides what is lost
      const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      const auto fault = [&](std::string_view op, const std::string& path) {
        // Looks change nothing: between two of them there is nothing new to lose.
        if (op != "stat" && op != "list" && left-- == 0) ::kill(::getpid(), SIGKILL);
        const std::string line = std::string(op) + " " + path + "\n";
        return ::write(fd, line.data(), line.size()) < 0 ? EIO : 0;
      };
      train(directory, 0, 1, "first", told.ends[1], fault, 5);
    }
    const int status = wait_for(child);
    if (WIFEXITED(status)) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    told.read_all();
    ++struck;
    PowerLoss power;
    std::istringstream lines(slurp(log));
    for (std::string op, path; lines >> op >> path;) power.operation(op, path);
    lost += static_cast<int>(power.unsynced_data.size() + power.unsynced_names.size());
    power.strike(random);
    EXPECT_GE(newest_step(directory), told.newest == 0 ? -1 : told.newest) << "operation " << at / 2;
    std::error_code ignored;
    fs::remove_all(directory, ignored);
  }
  EXPECT_GT(struck, 150);
  EXPECT_GT(lost, struck);  // there was something to lose
}

// At random moments, again and again in the same directory: a job that never gets far.
// The longest wait follows what this machine gets done, so that about every second strike hits work under way.
void strike(int world, int strikes, double longest_us, const fs::path& where) {
  const Scratch dir(where);
  std::mt19937 random(static_cast<unsigned>(world));
  std::int64_t last = 0;
  int advanced = 0;
  for (int i = 0; i < strikes; ++i) {
    Told told;
    std::vector<pid_t> children;
    for (int r = 0; r < world; ++r) {
      const pid_t child = ::fork();
      if (child == 0) train(dir / "c", r, world, "run " + std::to_string(i), told.ends[1], {}, 1'000'000);
      children.push_back(child);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(longest_us)));
    // One first, or all at once.
    const std::size_t first = random() % children.size();
    ::kill(children[first], SIGKILL);
    if (random() % 2 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(longest_us / 4 + 1)));
    for (const pid_t child : children) ::kill(child, SIGKILL);
    for (const pid_t child : children) {
      const int status = wait_for(child);
      EXPECT_TRUE(WIFSIGNALED(status)) << "exit status " << WEXITSTATUS(status) << ", strike " << i;
    }
    told.read_all();
    const std::int64_t newest = newest_step(dir / "c");
    EXPECT_GE(newest, told.newest == 0 ? -1 : told.newest) << "lost, strike " << i;
    if (last > 0) {
      EXPECT_GE(newest, last) << "went back, strike " << i;
    }
    const bool further = newest > last;
    // Until it is known how long a save takes here the reach grows quickly.
    longest_us = std::clamp(longest_us * (further ? 0.95 : advanced == 0 ? 1.5 : 1.1), 1000.0, 5'000'000.0);
    advanced += further ? 1 : 0;
    last = std::max(last, newest);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(advanced, strikes / 20) << "the strikes came too early to mean anything";
}

TEST(CheckpointKill, AtRandomMoments) { strike(1, 500, 8'000, in_memory()); }
TEST(CheckpointKill, AtRandomMomentsSeveralRanks) { strike(3, 150, 20'000, in_memory()); }
TEST(CheckpointKill, AtRandomMomentsOnADisk) { strike(1, 30, 100'000, fs::temp_directory_path()); }

}  // namespace
}  // namespace orrery::ckpt::test
