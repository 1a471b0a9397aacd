// Ranks that are started one by one, on machines that share a directory, find each other there.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "train.h"

namespace trainer {

void meet(Settings& s) {
  namespace fs = std::filesystem;
  const fs::path directory = s.rendezvous;
  fs::create_directories(directory);
  const auto name = [&](int rank) { return directory / ("rank-" + std::to_string(rank)); };
  const Address& own = s.addresses[static_cast<std::size_t>(s.rank)];
  const fs::path partial = name(s.rank).string() + ".partial";
  std::ofstream(partial) << own.host << ' ' << own.port << '\n';
  fs::rename(partial, name(s.rank));  // appears whole
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(s.timeout_s);
  for (int r = 0; r < s.world; ++r) {
    Address& a = s.addresses[static_cast<std::size_t>(r)];
    while (r != s.rank && !(std::ifstream(name(r)) >> a.host >> a.port)) {
      if (std::chrono::steady_clock::now() > end) {
        throw CommunicationError("rendezvous: rank " + std::to_string(r) + " did not come");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
}

}  // namespace trainer
