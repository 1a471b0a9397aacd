// A member of a ring whose others run elsewhere, started on its node by a launcher (srun, ssh, mpirun): it is talked to
// by its standard input and output, so nothing but the ring itself goes over a network socket. Lines, all with
// "orrery-ring " in front:
//
//   to it     TOKEN BYTES SECONDS ADDRESS,ADDRESS,...   the members' own addresses, in digits
//   from it   at INDEX PORT                             it listens, at its address alone
//   to it     go PORT,PORT,...
//   from it   rate INDEX GB_PER_S, or: failed INDEX WHY
//
// Whoever connects must send the token first, which is used once and shown in no list of processes. It ends when its
// input ends, or after SECONDS.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

inline constexpr std::string_view kRingLine = "orrery-ring ";
inline constexpr std::size_t kRingToken = 64;  // letters

struct RingTask {
  std::string token;
  std::size_t bytes = 0;
  double seconds = 0;
  std::vector<std::string> addresses;
};
std::optional<RingTask> read_ring_task(std::string_view line);  // without its newline; nothing: not one
std::string to_line(const RingTask& task);                      // with its newline
std::optional<std::vector<int>> read_ring_ports(std::string_view line, std::size_t members);

// Member `index` of its ring. The exit status: 0 = took part.
int run_ring_worker(std::size_t index);

}  // namespace orrery
