// Policies as people write them.
#include <set>

#include "base/number_text.h"
#include "cluster/scheduler.h"

namespace orrery {
namespace {

tl::unexpected<Error> refuse(const std::string& what) {
  return fail(what, "--what-if", "for example --what-if gpus=2048,policy=easy,reserve=Pretrain:1024");
}

bool gpus_of(std::string_view text, std::int64_t& milli) {
  return read_scaled(text, 3, milli) == NumberState::ok && milli > 0 && milli <= 10'000'000'000;
}

}  // namespace

Result<SimQuestion> read_sim_question(const std::string& text) {
  SimQuestion q;
  q.text = text;
  std::set<std::string> seen;
  SimPolicy& p = q.policy;
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    const std::string part = text.substr(i, end - i);
    i = end + 1;
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos) return refuse("not KEY=VALUE: " + part);
    const std::string key = part.substr(0, equals), value = part.substr(equals + 1);
    std::int64_t n = 0;
    if (!seen.insert(key).second) return refuse("given twice: " + key);
    if (key == "gpus") {
      if (!gpus_of(value, p.gpu_milli)) return refuse("not a number of GPUs: " + value);
    } else if (key == "policy") {
      if (value == "fifo")
        p.order = SimPolicy::Order::fifo;
      else if (value == "easy" || value == "backfill")
        p.order = SimPolicy::Order::easy;
      else if (value == "conservative")
        p.order = SimPolicy::Order::conservative;
      else
        return refuse("no policy " + value + ": fifo, easy or conservative");
    } else if (key == "reserve") {
      const std::size_t colon = value.rfind(':');
      if (colon == std::string::npos || colon == 0 ||
          !gpus_of(std::string_view(value).substr(colon + 1), p.reserved_milli))
        return refuse("not TYPE:GPUS: " + value);
      q.favoured_type = value.substr(0, colon);
    } else if (key == "preempt") {
      if (value != "on" && value != "off") return refuse("preempt is on or off, not " + value);
      p.preempt = value == "on";
    } else if (key == "checkpoint") {
      if (read_scaled(value, 3, p.checkpoint_ms) != NumberState::ok || p.checkpoint_ms < 0)
        return refuse("not seconds: " + value);
    } else if (key == "depth") {
      if (read_int(value, n) != NumberState::ok || n < 1 || n > 1'000'000'000) return refuse("not a depth: " + value);
      p.depth = static_cast<std::size_t>(n);
      q.depth_given = true;
    } else {
      return refuse("unknown key " + key + ": gpus, policy, reserve, preempt, checkpoint, depth");
    }
  }
  if (p.gpu_milli == 0) return refuse("how many GPUs? gpus=N");
  if (p.reserved_milli > p.gpu_milli) return refuse("more GPUs are reserved than there are");
  if (p.preempt && p.reserved_milli == 0) return refuse("preempt=on needs reserve=TYPE:GPUS");
  return q;
}

}  // namespace orrery
