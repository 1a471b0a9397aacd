#include "supervisor/launchers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "slurm/slurm.h"
#include "supervisor/ring.h"

namespace orrery {

Status find_addresses(const std::vector<std::string>& nodes, const std::vector<std::string>& given,
                      GroupRunTerms& terms) {
  if (!given.empty() && given.size() != nodes.size())
    return fail(fmt::format("{} addresses of {} nodes", given.size(), nodes.size()), "--addresses", "one for each");
  terms.addresses.clear();
  std::string local, other;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto address = address_of(given.empty() ? nodes[i] : given[i], false);
    if (!address)
      return fail(address.error().what, nodes[i], "--addresses gives addresses that the nodes reach each other by");
    terms.addresses.push_back(digits_of(*address));
    (address->is_loopback() ? local : other) = nodes[i];
  }
  if (!local.empty() && !other.empty())
    return fail(fmt::format("{} is this machine's loopback, where {} cannot reach it", local, other), "--hosts",
                "--addresses gives addresses that the nodes reach each other by");
  return {};
}

Status by_slurm(const std::vector<std::string>& nodes, const std::vector<std::string>& more, GroupRunTerms& terms) {
  const auto known = slurm::nodes(nodes, {.patience_s = 30});
  if (!known) return tl::unexpected(known.error());
  std::vector<std::string> addresses;
  const bool inside = std::getenv("SLURM_JOB_ID") != nullptr;
  for (const std::string& name : nodes) {
    const auto node = std::find_if(known->begin(), known->end(), [&](const auto& n) { return n.name == name; });
    if (!inside && node->state == "allocated")
      return fail("other jobs have all of it", name, "test it when they have ended, or leave it out");
    addresses.push_back(node->address);
  }
  if (const Status ok = find_addresses(nodes, addresses, terms); !ok) return ok;
  terms.launch = {"srun", "--nodes=1", "--ntasks=1", "--nodelist={host}", "--job-name=orrery-checknodes"};
  if (inside) {
    terms.launch.push_back("--overlap");
  } else {
    terms.launch.push_back("--immediate=10");
    terms.launch.push_back(fmt::format("--time={}", 1 + static_cast<int>(std::ceil(terms.timeout_s / 60))));
  }
  terms.launch.insert(terms.launch.end(), more.begin(), more.end());
  return {};
}

std::vector<std::string> mpirun_words(const std::vector<std::string>& more) {
  // One mpirun a member: of several processes Open MPI hands its input to the first alone, whatever --stdin says where
  // one of them is on this machine.
  std::vector<std::string> words = {"mpirun", "--host", "{host}", "-n", "1", "--bind-to", "none"};
  if (::geteuid() == 0) words.push_back("--allow-run-as-root");
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace orrery
