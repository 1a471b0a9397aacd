// What stands before the message of a log line: rank, node and time, as launchers, schedulers, libraries and kernels
// write them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "data/logs.h"

namespace orrery {

struct LinePrefix {
  std::int32_t rank = -1;
  std::int32_t local_rank = -1;
  std::string_view node;
  LogTime time;
  std::string_view message;  // the rest of the line; a blank that separates it is gone, indentation stays
};

// torchrun [rank3]: and [default3]:, Slurm "3: ", Open MPI [1,3]<stderr>:, NCCL host:pid:tid [gpu], Ray (name pid=,
// ip=), pdsh "node3: ", glog E0321 02:07:08.4 file:12], dmesg [  12.3], syslog "May  4 01:02:03 node3 kernel:", ISO and
// other times, in any order and number.
LinePrefix split_prefix(std::string_view line);

// A time at the start of `text`; `length` of it, 0 = none.
LogTime read_time(std::string_view text, std::size_t& length);

// Could this word be the name of a host? Letters first, a digit in it, no device's name.
bool is_host_name(std::string_view word);

}  // namespace orrery
