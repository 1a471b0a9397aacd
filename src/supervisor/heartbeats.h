// Heartbeats of ranks: what each is at. From files, one a rank, or from a Unix socket; a line is
//
//   STEP NANOSECONDS PHASE [NODE]        in DIRECTORY/rank-NNNNN, written anew with each beat
//   RANK STEP NANOSECONDS PHASE [NODE]   a datagram to the socket
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "supervisor/watch.h"

namespace orrery {

// False: not a heartbeat (half of one, somebody else's file).
bool read_beat(std::string_view line, bool with_rank, Beat& beat);

class Heartbeats {
 public:
  // "" = none. The socket is made with rights 0600; what was there under its name must have been a socket. Errors: it
  // cannot be made.
  static Result<Heartbeats> open(const std::string& directory, const std::string& socket);
  Heartbeats(Heartbeats&& other) noexcept;
  Heartbeats& operator=(Heartbeats&&) = delete;
  Heartbeats(const Heartbeats&) = delete;
  ~Heartbeats();

  void begin_attempt(Ns now);  // older beats are of ranks that are dead
  std::vector<Beat> read();    // the last of each rank, by rank

 private:
  Heartbeats() = default;
  std::string directory_, socket_path_;
  int socket_ = -1;
  Ns since_ = 0;
  std::map<std::int32_t, Beat> beats_;
};

}  // namespace orrery
