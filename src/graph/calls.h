// What a CUDA or HIP call on a CPU thread does to streams and to the caller.
#pragma once
#include <string_view>

#include "data/trace.h"

namespace orrery {

enum class Call : std::uint8_t {
  other,        // costs host time only; a launch is told by its correlation, never by its name
  record,       // cudaEventRecord*: marks the tail of a stream
  wait,         // cudaStreamWaitEvent: a stream waits for a record
  stream_sync,  // blocks until a stream is empty
  device_sync,  // blocks until the device is empty
  event_sync,   // blocks until a record has happened
  poll,         // cudaEventQuery, cudaStreamQuery: never blocks
  copy,         // memcpy: blocks when it outlasts its own GPU task
  free_memory,  // cudaFree and the like: may synchronise the device
  graph_launch
};

Call classify_call(std::string_view api_name);

}  // namespace orrery
