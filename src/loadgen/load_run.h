// A workload sent for real to a server that speaks OpenAI's API with streaming, on time whatever the server does (open
// loop), by one thread over libcurl's socket interface and epoll: what a token costs does not grow with the requests in
// flight.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "serving/summary.h"
#include "serving/workload.h"

namespace orrery {

struct LoadTarget {
  std::string url;    // of the endpoint itself: http://host:8000/v1/completions
  std::string model;  // as the server calls it
  bool chat = false;
  bool token_ids = false;  // prompts as arrays of token numbers (exact lengths); else words
  bool ignore_eos = true;  // asks for the whole length (an extension that most servers know)
  double temperature = 0;
  std::vector<std::string> headers;  // "Name: value"
  double timeout_s = 600;            // of one request
  std::int64_t most_in_flight = 0;   // 0 = as many as there are
};

struct LoadRequest {
  RequestRecord record;      // arrival: when it was due; end below 0: failed
  double sent = -1;          // ns
  std::int64_t chunks = 0;   // events with text
  bool counted = false;      // the server told the tokens (usage); else chunks stand for them
  bool implausible = false;  // what it told cannot be: more tokens than were asked for and sent
  long status = 0;           // of HTTP; 0 = no answer
  std::string error;
};

struct LoadResult {
  std::vector<LoadRequest> requests;
  LogHistogram itl;         // between events with text
  double seconds = 0;       // from the first arrival to the last end
  double client_cpu_s = 0;  // of the thread that sends and receives
  std::int64_t most_in_flight = 0;
  std::uint64_t dropped_events = 0;  // larger than EventStream::kMostLine
};

// "http://host:8000" -> ".../v1/completions" (or chat); a URL that ends in one of them stays as it is.
Result<std::string> endpoint_of(const std::string& url, bool chat);

// The first model that the server lists. Errors: no answer in `timeout_s`, none listed.
Result<std::string> first_model(const std::string& url, const std::vector<std::string>& headers, double timeout_s = 30);

// Raises the process's limit of file handles as far as it may. Errors: libcurl does not start. Requests that fail are
// in the result.
Result<LoadResult> send_load(const LoadTarget& target, const Workload& workload,
                             const std::function<void(std::uint64_t done)>& on_progress);

}  // namespace orrery
