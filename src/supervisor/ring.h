// An all-gather in a ring over TCP: each member sends to the next and receives from the one before.
#pragma once
#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.h"

namespace orrery {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int port() const;
  void set_port(int port);
  bool is_loopback() const;
};

// Of an address in digits (IPv4 or IPv6), or of a name, which is looked up. Errors: no such name.
Result<SocketAddress> address_of(const std::string& host, bool digits_only);
std::string digits_of(const SocketAddress& address);  // without the port

// Listens at that address, at a port that the system chooses; it is set. -1 = errno says why.
int listen_at(SocketAddress& address);
// Connects from `own` (its port does not matter) to `to`. -1 = errno says why.
int connect_from(SocketAddress own, const SocketAddress& to);

// Member `index` of `members`: chunks of `bytes` bytes go round, for a fifth of a second and once at least; what
// arrives is compared. Bus bandwidth of the fastest round in GB/s: what slows a node down is there every time, what a
// busy machine does to one round is not. Below 0: something was lost or altered, or `watched` (-1 = nothing) has ended
// or has something to say.
double gather_in_ring(int to, int from, std::size_t index, std::size_t members, std::size_t bytes, int watched);

}  // namespace orrery
