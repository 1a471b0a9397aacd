// libFuzzer target of what Slurm's commands print, of lists of hosts, and of what a member of a ring is told. Any bytes
// must give rows or one line, and a list that can be read must come back when it is written again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "slurm/host_list.h"
#include "slurm/rows.h"
#include "supervisor/ring_worker.h"
#include "supervisor/slurm_attempt.h"

namespace {

using namespace orrery::slurm;

void require(bool ok) {
  if (!ok) std::abort();
}

void check(const std::vector<Job>& jobs) {
  for (const Job& j : jobs) require(j.id != JobId{} && j.state != State::unknown);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (auto hosts = expand_hosts(text)) {
    require(hosts->size() <= kMostHosts);
    for (const std::string& h : *hosts) require(is_host_name(h));
    std::sort(hosts->begin(), hosts->end());
    hosts->erase(std::unique(hosts->begin(), hosts->end()), hosts->end());
    auto back = expand_hosts(compress_hosts(*hosts));
    require(back.has_value());
    std::sort(back->begin(), back->end());
    require(*back == *hosts);
  } else {
    require(!hosts.error().what.empty());
  }
  check(read_squeue(text));
  check(read_sacct(text));
  Job j;
  read_job_details(text, j);
  for (const Node& n : read_nodes(text)) require(n.port >= 0 && n.port < 65'536);
  (void)read_steps(text);
  if (const auto task = orrery::read_ring_task(text)) {
    const std::string line = orrery::to_line(*task);
    require(orrery::read_ring_task(std::string_view(line).substr(0, line.size() - 1)).has_value());
  }
  (void)orrery::read_ring_ports(text, 2);
  if (const auto orders = orrery::read_orders(text)) require(orrery::read_orders(orrery::to_line(*orders)).has_value());
  if (const auto report = orrery::read_report(text)) require(orrery::read_report(orrery::to_line(*report)).has_value());
  const std::string script = script_of({"x", std::string(text)});
  require(script.find("\r\n") == std::string::npos);
  return 0;
}
