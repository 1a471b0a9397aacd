// Back-end of checknodes: an external command.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/number_text.h"
#include "processes/child.h"
#include "supervisor/group_processes.h"
#include "supervisor/group_runs.h"

namespace orrery {
namespace {

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using TempFile = std::unique_ptr<std::FILE, CloseFile>;  // gone with its last descriptor

std::vector<std::string> argv_of(const GroupRunTerms& terms, const std::vector<std::string>& nodes,
                                 const NodeGroup& group) {
  std::string hosts;
  for (const std::size_t n : group) hosts += (hosts.empty() ? "" : ",") + nodes[n];
  std::vector<std::string> argv;
  bool named = false;
  for (std::string word : terms.argv) {
    constexpr std::string_view kHosts = "{hosts}";
    for (std::size_t at = 0; !argv.empty() && (at = word.find(kHosts, at)) != std::string::npos; at += hosts.size()) {
      word.replace(at, kHosts.size(), hosts);
      named = true;
    }
    argv.push_back(std::move(word));
  }
  if (!named)
    for (const std::size_t n : group) argv.push_back(nodes[n]);
  return argv;
}

// The last number of the last line that is not empty; 0 = none.
double last_number(std::FILE* file) {
  std::string text(4096, '\0');
  std::fseek(file, 0, SEEK_END);
  const long size = std::ftell(file);
  std::fseek(file, std::max(0L, size - static_cast<long>(text.size())), SEEK_SET);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  text.erase(0, text.find_last_of("\r\n") + 1);
  double last = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \t", i), text.size());
    double x = 0;
    if (read_double(std::string_view(text).substr(i, end - i), x) == NumberState::ok && x > 0) last = x;
    i = end + 1;
  }
  return last;
}

}  // namespace

Result<std::vector<GroupOutcome>> run_commands(const GroupRunTerms& terms, const std::vector<std::string>& nodes,
                                               const std::vector<NodeGroup>& groups) {
  std::vector<std::vector<pid_t>> started;
  std::vector<TempFile> outputs;
  const auto cannot = [&](const Error& why) {
    (void)wait_for_groups(started, 0);
    return tl::unexpected(why);
  };
  for (const NodeGroup& group : groups) {
    outputs.emplace_back(std::tmpfile());
    if (!outputs.back())
      return cannot(Error{std::string("no temporary file: ") + std::strerror(errno), terms.argv.front(), ""});
    const auto child = start_child({.argv = argv_of(terms, nodes, group),
                                    .output = fmt::format("/dev/fd/{}", ::fileno(outputs.back().get())),
                                    .errors = "&",
                                    .dies_with_parent = true});
    if (!child) return cannot(child.error());
    started.push_back({child->pid});
  }
  const auto passed = wait_for_groups(started, terms.timeout_s);
  if (!passed) return tl::unexpected(passed.error());
  std::vector<GroupOutcome> outcomes;
  for (std::size_t g = 0; g < groups.size(); ++g)
    outcomes.push_back({.passed = (*passed)[g], .gb_per_s = (*passed)[g] ? last_number(outputs[g].get()) : 0});
  return outcomes;
}

}  // namespace orrery
