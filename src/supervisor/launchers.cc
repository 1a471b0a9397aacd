#include "supervisor/launchers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "slurm/host_list.h"
#include "slurm/slurm.h"
#include "supervisor/ring.h"

extern char** environ;

namespace orrery {
namespace {

// The allocation that this process is in has all of them.
bool are_ours(const std::vector<std::string>& nodes) {
  const char* const list = std::getenv("SLURM_JOB_NODELIST");
  const auto own = slurm::expand_hosts(std::getenv("SLURM_JOB_ID") != nullptr && list != nullptr ? list : "");
  return own && std::all_of(nodes.begin(), nodes.end(),
                            [&](const std::string& n) { return std::find(own->begin(), own->end(), n) != own->end(); });
}

// srun takes what it finds of a job in its environment for its own: a step of that one.
std::vector<std::string> outside_of_any_job() {
  std::vector<std::string> words = {"env"};
  for (char** v = environ; v && *v; ++v) {
    const std::string_view line = *v;
    const std::string_view name = line.substr(0, line.find('='));
    if (name.starts_with("SLURM_") && !name.starts_with("SLURM_CONF"))
      words.insert(words.end(), {"-u", std::string(name)});
  }
  if (words.size() == 1) words.clear();
  return words;
}

}  // namespace

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
  const bool inside = are_ours(nodes);
  for (const std::string& name : nodes) {
    const auto node = std::find_if(known->begin(), known->end(), [&](const auto& n) { return n.name == name; });
    if (!inside && node->state == "allocated")
      return fail("other jobs have all of it", name, "test it when they have ended, or leave it out");
    addresses.push_back(node->address);
  }
  if (const Status ok = find_addresses(nodes, addresses, terms); !ok) return ok;
  terms.launch = inside ? std::vector<std::string>() : outside_of_any_job();
  terms.launch.insert(terms.launch.end(),
                      {"srun", "--nodes=1", "--ntasks=1", "--nodelist={host}", "--job-name=orrery-checknodes"});
  if (inside) {
    terms.launch.push_back("--overlap");
  } else {
    terms.launch.push_back("--immediate=10");
    terms.launch.push_back(fmt::format("--time={}", 1 + static_cast<int>(std::ceil(terms.timeout_s / 60))));
  }
  terms.launch.insert(terms.launch.end(), more.begin(), more.end());
  return {};
}

std::vector<std::string> admission_words(const SlurmOptions& options) {
  std::vector<std::string> words;
  if (!options.partition.empty()) words.push_back("--partition=" + options.partition);
  for (const std::string& word : options.sbatch)
    for (const std::string_view name :
         {"--account=", "--qos=", "--reservation=", "--partition=", "--wckey=", "-A", "-q", "-p"})
      if (word.starts_with(name)) words.push_back(word);
  return words;
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
