// orrery checknodes: which nodes are bad.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>

#include "base/number_text.h"
#include "cli/common_options.h"
#include "cli/options.h"
#include "cli/read_options.h"
#include "slurm/host_list.h"
#include "supervisor/group_runs.h"
#include "supervisor/launchers.h"
#include "supervisor/node_check.h"
#include "supervisor/ring_worker.h"

namespace orrery {
namespace {

constexpr std::int64_t kMostMib = 4096;   // of this machine's memory, three times
constexpr std::size_t kMostNodes = 1024;  // a process a group, all at once

Result<std::vector<std::string>> read_hosts(const std::string& text) {
  if (text.empty()) return fail("no nodes", "--hosts", "for example --hosts 127.0.0.1,127.0.0.2");
  std::vector<std::string> names;
  if (text.find('[') != std::string::npos) {
    auto expanded = slurm::expand_hosts(text);
    if (!expanded) return tl::unexpected(expanded.error());
    names = std::move(*expanded);
  } else {
    for (std::size_t i = 0; i <= text.size();) {
      const std::size_t end = std::min(text.find(',', i), text.size());
      names.push_back(text.substr(i, end - i));
      i = end + 1;
    }
  }
  std::vector<std::string> nodes;
  std::set<std::string> seen;
  for (std::string& node : names) {
    if (node.empty()) return fail("a node without a name: " + text, "--hosts");
    // An option or a path in the place of a name must not reach the command.
    if (!slurm::is_host_name(node)) return fail("not a name of a node: " + node, "--hosts");
    if (!seen.insert(node).second) return fail("given twice: " + node, "--hosts");
    nodes.push_back(std::move(node));
  }
  if (nodes.size() > kMostNodes)
    return fail(fmt::format("{} nodes, {} at most", nodes.size(), kMostNodes), "--hosts", "check them in parts");
  return nodes;
}

Document document_of(const std::vector<std::string>& nodes, const NodeCheck& check) {
  Document d;
  d.command = "checknodes";
  Section verdicts{.key = "nodes", .title = "Nodes", .table = {}};
  verdicts.table.columns = {
      {.key = "node"}, {.key = "verdict"}, {.key = "rounds", .json_only = true}, {.key = "gb_per_s", .title = "GB/s"}};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::vector<double> rounds;  // of each test: 0 = failed, null = passed without a rate
    double best = 0;
    for (const GroupTest& t : check.tests) {
      if (std::find(t.nodes.begin(), t.nodes.end(), i) == t.nodes.end()) continue;
      const GroupOutcome& o = t.outcome;
      rounds.push_back(!o.passed ? 0 : o.gb_per_s > 0 ? o.gb_per_s : std::numeric_limits<double>::quiet_NaN());
      if (o.passed) best = std::max(best, o.gb_per_s);
    }
    verdicts.table.rows.push_back(
        {nodes[i], std::string(name_of(check.verdicts[i])), std::move(rounds), best > 0 ? Cell{best} : Cell{}});
  }
  Section tests{.key = "tests", .title = "Tests", .table = {}};
  const bool some_why =
      std::any_of(check.tests.begin(), check.tests.end(), [](const GroupTest& t) { return !t.outcome.why.empty(); });
  tests.table.columns = {{.key = "round"},
                         {.key = "group"},
                         {.key = "passed"},
                         {.key = "slow"},
                         {.key = "gb_per_s", .title = "GB/s"},
                         {.key = "why", .json_only = !some_why}};
  for (const GroupTest& t : check.tests) {
    std::string group;
    for (const std::size_t n : t.nodes) group += (group.empty() ? "" : ",") + nodes[n];
    tests.table.rows.push_back({static_cast<std::int64_t>(t.round), group, t.outcome.passed, t.slow,
                                t.outcome.gb_per_s > 0 ? Cell{t.outcome.gb_per_s} : Cell{},
                                t.outcome.why.empty() ? Cell{} : Cell{t.outcome.why}});
  }
  d.sections = {std::move(verdicts), std::move(tests)};
  const auto silent = std::find_if(check.tests.begin(), check.tests.end(),
                                   [](const GroupTest& t) { return t.outcome.passed && t.outcome.gb_per_s <= 0; });
  if (silent != check.tests.end()) {
    const auto n = std::count_if(silent, check.tests.end(),
                                 [](const GroupTest& t) { return t.outcome.passed && t.outcome.gb_per_s <= 0; });
    d.notes.add(
        "no-rate", Severity::warning, static_cast<std::uint64_t>(n), nodes[silent->nodes.front()],
        "the last line of the program's output ends in no rate above 0 (GB/s): whether these are slow is unknown");
  }
  if (check.no_good_node && nodes.size() > 1)
    d.notes.add("no-good-node", Severity::warning, 1, nodes.front(),
                "no group passed: nodes were tested alone, and what is between them may be at fault");
  return d;
}

std::vector<std::string> words_of(const Args& args, std::string_view option) {
  const auto it = args.options.find(option);
  return it == args.options.end() ? std::vector<std::string>() : it->second;
}

// What tests a group: sets the terms' words. Precondition: their time and bytes are set.
Status read_back_end(const Args& args, const std::vector<std::string>& nodes, std::int64_t mib, GroupRunTerms& terms) {
  std::vector<std::string_view> chosen;
  for (const std::string_view o : {"--command", "--launch", "--slurm", "--mpirun"})
    if (args.has(o)) chosen.push_back(o);
  if (chosen.size() > 1) return fail("beside " + std::string(chosen[0]), std::string(chosen[1]), "one of them");
  const std::vector<std::string> more = words_of(args, "--argument");
  if (chosen.empty() && !more.empty())
    return fail("arguments of no command", "--argument", "--command, --launch, --slurm or --mpirun");
  const bool elsewhere = !chosen.empty() && chosen[0] != "--command";
  for (const std::string_view o : {"--worker", "--addresses"})
    if (args.has(o) && !elsewhere)
      return fail("is of rings on other nodes", std::string(o), "--launch, --slurm or --mpirun");
  if (args.has("--command")) {
    if (args.value("--command").empty()) return fail("no program", "--command");
    if (args.has("--mib")) return fail("is of the built-in ring", "--mib", "leave it out with --command");
    terms.argv = {args.value("--command")};
    terms.argv.insert(terms.argv.end(), more.begin(), more.end());
    return {};
  }
  if (!elsewhere && mib * static_cast<std::int64_t>(nodes.size()) > kMostMib)
    return fail(fmt::format("{} processes of {} MiB, {} MiB at most", nodes.size(), mib, kMostMib), "--mib", "less");
  if (!elsewhere) return {};

  std::error_code error;
  const std::string program =
      args.has("--worker") ? args.value("--worker") : std::filesystem::read_symlink("/proc/self/exe", error).string();
  const bool plain = !program.empty() && std::all_of(program.begin(), program.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("/._-+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (!plain || program.front() == '-')  // ssh hands its words to a shell
    return fail("not a plain path: " + program, "--worker",
                "a path of orrery on the nodes, of letters, digits and /._-+");
  terms.worker = {program, "checknodes", "member", "{index}"};
  std::vector<std::string> given;
  const std::string addresses = args.value("--addresses");
  for (std::size_t i = 0; i < addresses.size();) {
    const std::size_t end = std::min(addresses.find(',', i), addresses.size());
    given.push_back(addresses.substr(i, end - i));
    i = end + 1;
  }
  if (chosen[0] == "--slurm") {
    if (const Status ok = by_slurm(nodes, more, terms); !ok) return ok;
    return given.empty() ? Status{} : find_addresses(nodes, given, terms);
  }
  if (chosen[0] == "--mpirun") {
    terms.launch = mpirun_words(more);
  } else {
    if (args.value("--launch").empty()) return fail("no program", "--launch");
    terms.launch = {args.value("--launch")};
    terms.launch.insert(terms.launch.end(), more.begin(), more.end());
    if (std::none_of(more.begin(), more.end(),
                     [](const std::string& w) { return w.find("{host}") != std::string::npos; }))
      return fail("no argument has {host}", "--launch", "as in --launch ssh --argument {host}");
  }
  return find_addresses(nodes, given, terms);
}

// A member of a ring, started by a launcher: not for people.
Result<int> run_member(const Args& args) {
  std::int64_t index = 0;
  const auto& words = args.positional;
  if (words[0] != "member" || words.size() != 2 || read_int(words[1], index) != NumberState::ok || index < 0 ||
      index > kMostMib)
    return fail("takes no " + words[0], "checknodes", "--hosts NAME,... names the nodes");
  return run_ring_worker(static_cast<std::size_t>(index));
}

Result<int> run_checknodes(const Args& args) {
  if (!args.positional.empty()) return run_member(args);
  const auto options = understand(*find_command("checknodes"), args);
  if (!options) return tl::unexpected(options.error());
  std::string hosts = args.value("--hosts");
  const char* const allocated = std::getenv("SLURM_JOB_NODELIST");
  if (hosts.empty() && args.has("--slurm") && allocated != nullptr) hosts = allocated;
  const auto nodes = read_hosts(hosts);
  if (!nodes) return tl::unexpected(nodes.error());
  GroupRunTerms terms;
  std::int64_t mib = 16;
  if (const Status ok =
          all_of({real(args, "--timeout", terms.timeout_s, 0.01, 86'400), whole(args, "--mib", mib, 1024)});
      !ok)
    return tl::unexpected(ok.error());
  terms.bytes = static_cast<std::size_t>(mib) << 20;
  if (const Status ok = read_back_end(args, *nodes, mib, terms); !ok) return tl::unexpected(ok.error());
  const auto check = check_nodes(nodes->size(), [&](const std::vector<NodeGroup>& groups) {
    if (!terms.worker.empty()) return run_remote_rings(terms, *nodes, groups);
    return terms.argv.empty() ? run_rings(terms, *nodes, groups) : run_commands(terms, *nodes, groups);
  });
  if (!check) return tl::unexpected(check.error());
  const auto status = emit(document_of(*nodes, *check), *options);
  if (!status) return status;
  const bool ill =
      std::any_of(check->verdicts.begin(), check->verdicts.end(), [](NodeVerdict v) { return v != NodeVerdict::good; });
  return ill ? kIncomplete : *status;
}

}  // namespace

Command checknodes_command() {
  return {
      .name = "checknodes",
      .summary = "which nodes of a cluster are bad, slow or badly connected",
      .operands = "",
      .least = 0,
      .most = 2,
      .description =
          "Tests small groups of nodes with an all-gather: first pairs (and a trio when their number is odd), then "
          "each "
          "node of a group that failed or was slow beside a node that passed. bad: fails there too. slow: passes, at "
          "less than half of the median rate in both. link: only one pairing failed or was slow. Where no group "
          "passes, "
          "other pairs are tried, and then each node alone.\n\n"
          "What tests a group, without a shell:\n\n"
          "By itself, a ring over TCP among processes of this machine: the hosts are addresses of its loopback.\n\n"
          "--slurm, --launch, --mpirun: the same ring among the nodes themselves. --slurm starts its members by srun: "
          "as steps of the allocation that it is in (its nodes, unless --hosts says which), or, where that has not all "
          "of them, as short jobs. --launch "
          "names another program that starts a program on a node and passes its input and output on; {host} in an "
          "--argument becomes the node's name. --mpirun leaves that to Open MPI, one mpirun a member. A member listens "
          "at the address of its node alone and lets nobody in without a token that is made for this group; it goes "
          "with whoever started it.\n\n"
          "--command names a program that tests a group, for example mpirun with a benchmark. It is started once a "
          "group, those of a round at once; status 0 is a pass, and the last number of its last line is the rate in "
          "GB/s. {hosts} in an --argument becomes the names, joined by commas; without it they are the last "
          "arguments.",
      .options = {{"--hosts", "NAME,...", "the nodes, also as node[0-3,7]", Takes::word},
                  {"--slurm", "", "start members of rings by Slurm's srun"},
                  {"--launch", "PROGRAM", "starts members of rings, for example ssh", Takes::word},
                  {"--mpirun", "", "start members of rings by Open MPI's mpirun"},
                  {"--command", "PROGRAM", "tests a group of nodes", Takes::word},
                  {"--argument", "WORD",
                   "an argument of PROGRAM, srun or mpirun (may be repeated; --argument=-x where it begins with -)",
                   Takes::word, true},
                  {"--addresses", "A,...",
                   "of the nodes, in their order, where their names are not what they reach "
                   "each other by",
                   Takes::word},
                  {"--worker", "PATH", "of orrery on the nodes (default: of this program)", Takes::file},
                  {"--timeout", "S", "seconds until a group has failed (default: 60)", Takes::word},
                  {"--mib", "N", "MiB that each node of a ring gives (default: 16)", Takes::word},
                  kCsv,
                  kJson,
                  kQuiet,
                  kThreads,
                  kHelp},
      .when_incomplete = "a node is bad or slow, or what is between two of them",
      .examples = {{"Three processes on this machine:", "orrery checknodes --hosts 127.0.0.1,127.0.0.2,127.0.0.3"},
                   {"Members started by a program, as ssh would on other machines (--launch ssh --argument {host}):",
                    "orrery checknodes --hosts 127.0.0.1,127.0.0.2 --launch env --argument NODE={host}"},
                   {"A program of one's own, here one that always passes:",
                    "orrery checknodes --hosts a,b,c,d --command echo --argument '{hosts} 12.5'"}},
      .run = run_checknodes};
}

}  // namespace orrery
