#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "base/text_match.h"
#include "slurm/command.h"
#include "slurm/host_list.h"
#include "slurm/rows.h"
#include "slurm/slurm.h"

namespace orrery::slurm {
namespace {

using Clock = std::chrono::steady_clock;

Result<std::string> list_of(const std::vector<std::string>& names) {
  if (names.empty()) return fail("no nodes", "slurm", "name them");
  for (const std::string& name : names)
    if (!is_host_name(name)) return fail("not a name of a node: " + name, "slurm");
  return compress_hosts(names);
}

// One line, and no longer than what sinfo still shows well.
std::string plain(const std::string& reason) {
  constexpr std::size_t kLongest = 200;
  std::string text = reason.substr(0, kLongest);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = ' ';
  return text.empty() ? "no reason given" : text;
}

// `is_so`: whether a refusal may be left at that.
Status set_state(const std::vector<std::string>& names, const std::string& state, const std::string& reason,
                 const Terms& terms, const std::function<bool()>& is_so = {}) {
  const auto list = list_of(names);
  if (!list) return tl::unexpected(list.error());
  std::vector<std::string> argv = {"scontrol", "update", "nodename=" + *list, "state=" + state};
  if (!reason.empty()) argv.push_back("reason=" + reason);
  const auto end = Clock::now() + std::chrono::duration<double>(terms.settle_s);
  for (;;) {
    const auto said = ask(argv, terms);
    if (!said) return tl::unexpected(said.error());
    if (said->exit.good()) return {};
    // A node whose job is just ending refuses what it takes a second later.
    const bool between = has(said->errors, "Invalid node state");
    if (between && is_so && is_so()) return {};
    if (!between || Clock::now() > end) return tl::unexpected(refused(argv, *said));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

}  // namespace

Result<std::vector<Node>> nodes(const std::vector<std::string>& names, const Terms& terms) {
  std::vector<std::string> argv = {"scontrol", "show", "node"};
  if (!names.empty()) {
    const auto list = list_of(names);
    if (!list) return tl::unexpected(list.error());
    argv.push_back(*list);
  }
  const auto said = ask(argv, terms);
  if (!said) return tl::unexpected(said.error());
  if (!said->exit.good() && !has(said->errors + said->output, "not found")) return tl::unexpected(refused(argv, *said));
  auto found = read_nodes(said->output);
  for (const std::string& name : names)
    if (std::none_of(found.begin(), found.end(), [&](const Node& n) { return n.name == name; }))
      return fail("no such node: " + name, "scontrol show node", "sinfo lists the nodes");
  return found;
}

Status drain(const std::vector<std::string>& names, const std::string& reason, const Terms& terms) {
  return set_state(names, "drain", plain(reason), terms);
}

Status set_down(const std::vector<std::string>& names, const std::string& reason, const Terms& terms) {
  return set_state(names, "down", plain(reason), terms);
}

Status resume(const std::vector<std::string>& names, const Terms& terms) {
  // Slurm also calls it an invalid state to resume a node that came back by itself.
  return set_state(names, "resume", "", terms, [&] {
    const auto now = nodes(names, terms);
    return now && std::all_of(now->begin(), now->end(), [](const Node& n) { return n.usable(); });
  });
}

}  // namespace orrery::slurm
