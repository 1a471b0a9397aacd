#include "supervisor/job_runner.h"

namespace orrery {

std::string_view name_of(EndReason reason) {
  switch (reason) {
    case EndReason::none:
      return "none";
    case EndReason::node_fail:
      return "node_fail";
    case EndReason::preempted:
      return "preempted";
    case EndReason::time_limit:
      return "time_limit";
    case EndReason::out_of_memory:
      return "out_of_memory";
    case EndReason::cancelled:
      return "cancelled";
    case EndReason::requeued:
      return "requeued";
    case EndReason::launch_failed:
      return "launch_failed";
  }
  return "";
}

}  // namespace orrery
