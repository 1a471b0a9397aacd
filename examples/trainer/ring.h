// Ranks in a ring of TCP connections: each sends to the next and receives from the one before. A peer that dies or
// stays silent is an error that names the operation, never a hang.
#pragma once
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainer {

struct CommunicationError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Address {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
};

// A socket that listens; port 0 takes a free one and sets it. Throws CommunicationError.
int listen_at(Address& address);

class Ring {
 public:
  // Takes over `listening`. Connects to the rank after this one and waits for the one before, for `timeout_s` at most.
  Ring(int rank, int listening, const std::vector<Address>& addresses, double timeout_s);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }
  // Sums: reduce-scatter, then all-gather. Integers, so that neither order nor number of ranks shows in the result.
  void all_reduce(std::span<std::int64_t> values);
  // Rank r has [n r / world, n (r + 1) / world) right; afterwards all have all.
  void all_gather(std::span<float> values);
  void broadcast(std::string& text);  // of rank 0
  std::pair<std::size_t, std::size_t> share(std::size_t n, int of_rank) const;

 private:
  void exchange(const char* operation, const void* out, std::size_t out_bytes, void* in, std::size_t in_bytes);
  template <class T, class Merge>
  void pass_round(const char* operation, std::span<T> values, int first_sent, Merge&& merge);
  int rank_, world_, next_ = -1, previous_ = -1;
  double timeout_s_;
  std::uint64_t operations_ = 0;
};

}  // namespace trainer
