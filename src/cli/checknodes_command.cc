// orrery checknodes: which nodes are bad.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>

#include "cli/common_options.h"
#include "cli/options.h"
#include "cli/read_options.h"
#include "supervisor/group_runs.h"
#include "supervisor/node_check.h"

namespace orrery {
namespace {

constexpr std::int64_t kMostMib = 4096;   // of this machine's memory, three times
constexpr std::size_t kMostNodes = 1024;  // a process a group, all at once

Result<std::vector<std::string>> read_hosts(const std::string& text) {
  if (text.empty()) return fail("no nodes", "--hosts", "for example --hosts 127.0.0.1,127.0.0.2");
  std::vector<std::string> nodes;
  std::set<std::string> seen;
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    std::string node = text.substr(i, end - i);
    if (node.empty()) return fail("a node without a name: " + text, "--hosts");
    // An option or a path in the place of a name must not reach the command.
    const bool plain = std::all_of(node.begin(), node.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == ':';
    });
    if (!plain || node.front() == '-') return fail("not a name of a node: " + node, "--hosts");
    if (!seen.insert(node).second) return fail("given twice: " + node, "--hosts");
    nodes.push_back(std::move(node));
    i = end + 1;
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
  tests.table.columns = {
      {.key = "round"}, {.key = "group"}, {.key = "passed"}, {.key = "slow"}, {.key = "gb_per_s", .title = "GB/s"}};
  for (const GroupTest& t : check.tests) {
    std::string group;
    for (const std::size_t n : t.nodes) group += (group.empty() ? "" : ",") + nodes[n];
    tests.table.rows.push_back({static_cast<std::int64_t>(t.round), group, t.outcome.passed, t.slow,
                                t.outcome.gb_per_s > 0 ? Cell{t.outcome.gb_per_s} : Cell{}});
  }
  d.sections = {std::move(verdicts), std::move(tests)};
  if (check.no_good_node && nodes.size() > 1)
    d.notes.add("no-good-node", Severity::warning, 1, nodes.front(),
                "no group passed: nodes were tested alone, and what is between them may be at fault");
  return d;
}

Result<int> run_checknodes(const Args& args) {
  const auto options = understand(*find_command("checknodes"), args);
  if (!options) return tl::unexpected(options.error());
  const auto nodes = read_hosts(args.value("--hosts"));
  if (!nodes) return tl::unexpected(nodes.error());
  GroupRunTerms terms;
  std::int64_t mib = 16;
  if (const Status ok =
          all_of({real(args, "--timeout", terms.timeout_s, 0.01, 86'400), whole(args, "--mib", mib, 1024)});
      !ok)
    return tl::unexpected(ok.error());
  if (!args.has("--command") && mib * static_cast<std::int64_t>(nodes->size()) > kMostMib)
    return fail(fmt::format("{} processes of {} MiB, {} MiB at most", nodes->size(), mib, kMostMib), "--mib", "less");
  terms.bytes = static_cast<std::size_t>(mib) << 20;
  if (args.has("--argument") && !args.has("--command"))
    return fail("arguments of no command", "--argument", "--command");
  if (args.has("--command")) {
    if (args.value("--command").empty()) return fail("no program", "--command");
    if (args.has("--mib")) return fail("is of the built-in ring", "--mib", "leave it out with --command");
    terms.argv = {args.value("--command")};
    if (const auto it = args.options.find("--argument"); it != args.options.end())
      terms.argv.insert(terms.argv.end(), it->second.begin(), it->second.end());
  }
  const auto check = check_nodes(nodes->size(), [&](const std::vector<NodeGroup>& groups) {
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
      .most = 0,
      .description =
          "Tests small groups of nodes with an all-gather: first pairs (and a trio when their number is odd), then "
          "each "
          "node of a group that failed or was slow beside a node that passed. bad: fails there too. slow: passes, at "
          "less than half of the median rate in both. link: only one pairing failed or was slow. Where no group "
          "passes, "
          "other pairs are tried, and then each node alone.\n\n"
          "--command names the program that tests a group, for example mpirun with a benchmark. It is started once a "
          "group, those of a round at once, without a shell; status 0 is a pass, and the last number of its last line "
          "is the rate in GB/s. {hosts} in an --argument becomes the names, joined by commas; without it they are the "
          "last arguments. Without --command a ring over TCP runs among processes on this machine: the hosts are "
          "addresses of its loopback.",
      .options = {{"--hosts", "NAME,...", "the nodes", Takes::word},
                  {"--command", "PROGRAM", "tests a group of nodes", Takes::word},
                  {"--argument", "WORD",
                   "an argument of PROGRAM (may be repeated; --argument=-x where it begins with -)", Takes::word, true},
                  {"--timeout", "S", "seconds until a group has failed (default: 60)", Takes::word},
                  {"--mib", "N", "MiB that each node of a ring gives (default: 16)", Takes::word},
                  kCsv,
                  kJson,
                  kQuiet,
                  kThreads,
                  kHelp},
      .when_incomplete = "a node is bad or slow, or what is between two of them",
      .examples = {{"Three processes on this machine:", "orrery checknodes --hosts 127.0.0.1,127.0.0.2,127.0.0.3"},
                   {"A program of one's own, here one that always passes:",
                    "orrery checknodes --hosts a,b,c,d --command echo --argument '{hosts} 12.5'"}},
      .run = run_checknodes};
}

}  // namespace orrery
