#include "slurm/rows.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/number_text.h"
#include "base/text_match.h"
#include "slurm/host_list.h"

namespace orrery::slurm {
namespace {

constexpr std::pair<std::string_view, State> kStates[] = {
    {"PENDING", State::pending},       {"REQUEUED", State::pending},
    {"REQUEUE_HOLD", State::pending},  {"REQUEUE_FED", State::pending},
    {"RESV_DEL_HOLD", State::pending}, {"SPECIAL_EXIT", State::pending},
    {"RUNNING", State::running},       {"CONFIGURING", State::running},
    {"SUSPENDED", State::running},     {"RESIZING", State::running},
    {"STOPPED", State::running},       {"SIGNALING", State::running},
    {"COMPLETING", State::completing}, {"STAGE_OUT", State::completing},
    {"COMPLETED", State::completed},   {"FAILED", State::failed},
    {"CANCELLED", State::cancelled},   {"REVOKED", State::cancelled},
    {"TIMEOUT", State::timeout},       {"NODE_FAIL", State::node_fail},
    {"PREEMPTED", State::preempted},   {"OUT_OF_MEMORY", State::out_of_memory},
    {"BOOT_FAIL", State::boot_fail},   {"DEADLINE", State::deadline}};

template <class Each>
void each_line(std::string_view text, Each each) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = std::min(text.find('\n', i), text.size());
    std::string_view line = text.substr(i, end - i);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    each(line);
    i = end + 1;
  }
}

// The last field is the rest of the line.
template <std::size_t N>
bool split(std::string_view line, std::array<std::string_view, N>& fields) {
  for (std::size_t f = 0; f + 1 < N; ++f) {
    const std::size_t end = line.find('|');
    if (end == std::string_view::npos) return false;
    fields[f] = line.substr(0, end);
    line.remove_prefix(end + 1);
  }
  fields[N - 1] = line;
  return true;
}

std::int64_t whole(std::string_view text) {
  std::int64_t value = 0;
  return read_int(text, value) == NumberState::ok ? value : 0;
}

std::string unless_none(std::string_view text) {
  for (const std::string_view none : {"None", "none", "(null)", "N/A"})
    if (text == none) return {};
  return std::string(text);
}

std::vector<std::string> hosts_of(std::string_view list) {
  auto hosts = expand_hosts(list == "None assigned" ? std::string_view() : list);
  return hosts ? std::move(*hosts) : std::vector<std::string>();
}

void set_state(std::string_view text, Job& job) {
  job.state_text = std::string(text.substr(0, text.find(' ')));
  job.state = state_of(text);
}

void set_exit(std::string_view text, Job& job) {  // "3:0": status, signal
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return;
  job.exit_status = static_cast<int>(whole(text.substr(0, colon)));
  job.signal = static_cast<int>(whole(text.substr(colon + 1)));
}

// The value of KEY= in a line of "   KEY=value KEY=value"; "" = not there.
std::string_view value_of(std::string_view line, std::string_view key) {
  for (std::size_t at = 0; (at = line.find(key, at)) != std::string_view::npos; at += key.size()) {
    const std::size_t after = at + key.size();
    if ((at != 0 && line[at - 1] != ' ') || after >= line.size() || line[after] != '=') continue;
    return line.substr(after + 1, std::min(line.find(' ', after), line.size()) - after - 1);
  }
  return {};
}

bool begins(std::string_view line, std::string_view with) { return line.substr(0, with.size()) == with; }

}  // namespace

std::string_view name_of(State state) {
  for (const auto& [name, s] : kStates)
    if (s == state) return name;
  return "UNKNOWN";
}

State state_of(std::string_view text) {
  text = text.substr(0, text.find_first_of(" +"));
  for (const auto& [name, state] : kStates)
    if (text == name) return state;
  return State::unknown;
}

std::vector<Job> read_squeue(std::string_view text) {
  std::vector<Job> jobs;
  each_line(text, [&](std::string_view line) {
    std::array<std::string_view, 7> f;
    Job j;
    if (!split(line, f)) return;
    j.id = JobId{whole(f[0])};
    set_state(f[1], j);
    if (j.id == JobId{} || j.state == State::unknown) return;
    j.reason = unless_none(f[2]);
    j.start_s = whole(f[3]);
    j.end_s = is_over(j.state) ? whole(f[4]) : 0;  // before, it is when the time limit ends
    j.nodes = hosts_of(f[5]);
    j.name = std::string(f[6]);
    j.restarts = -1;
    jobs.push_back(std::move(j));
  });
  return jobs;
}

std::vector<Job> read_sacct(std::string_view text) {
  std::vector<Job> jobs;
  each_line(text, [&](std::string_view line) {
    std::array<std::string_view, 7> f;
    Job j;
    if (!split(line, f)) return;
    j.id = JobId{whole(f[0])};
    set_state(f[1], j);
    if (j.id == JobId{} || j.state == State::unknown) return;
    set_exit(f[2], j);
    j.start_s = whole(f[3]);
    j.end_s = whole(f[4]);
    j.nodes = hosts_of(f[5]);
    j.name = std::string(f[6]);
    const auto same = std::find_if(jobs.begin(), jobs.end(), [&](const Job& other) { return other.id == j.id; });
    if (same == jobs.end()) {
      jobs.push_back(std::move(j));
    } else {
      j.restarts = same->restarts + 1;
      *same = std::move(j);
    }
  });
  return jobs;
}

void read_job_details(std::string_view text, Job& job) {
  bool first = true;  // only what comes before a second job counts
  each_line(text, [&](std::string_view line) {
    if (begins(line, "JobId=")) {
      if (std::exchange(first, job.id == JobId{})) job.id = JobId{whole(value_of(line, "JobId"))};
    } else if (begins(line, "   JobState=")) {
      set_state(value_of(line, "JobState"), job);
      job.reason = unless_none(value_of(line, "Reason"));
    } else if (begins(line, "   Requeue=")) {
      job.restarts = static_cast<int>(whole(value_of(line, "Restarts")));
      set_exit(value_of(line, "ExitCode"), job);
    } else if (begins(line, "   StartTime=")) {
      job.start_s = whole(value_of(line, "StartTime"));
      const std::int64_t end_s = whole(value_of(line, "EndTime"));
      job.end_s = is_over(job.state) ? end_s : 0;
      job.limit_s = job.state == State::running ? end_s : 0;
    } else if (begins(line, "   PreemptEligibleTime=")) {
      job.preempted_s = whole(value_of(line, "PreemptTime"));
    } else if (begins(line, "   NodeList=")) {
      job.nodes = hosts_of(value_of(line, "NodeList"));
    }
  });
}

std::vector<Step> read_steps(std::string_view text) {
  std::vector<Step> steps;
  each_line(text, [&](std::string_view line) {
    std::array<std::string_view, 3> f;
    if (!split(line, f) || f[0].empty()) return;
    steps.push_back({std::string(f[0]), std::string(f[2]), hosts_of(f[1])});
  });
  return steps;
}

std::vector<Node> read_nodes(std::string_view text) {
  std::vector<Node> nodes;
  each_line(text, [&](std::string_view line) {
    if (begins(line, "NodeName=")) {
      nodes.emplace_back().name = std::string(value_of(line, "NodeName"));
      return;
    }
    if (nodes.empty()) return;
    Node& n = nodes.back();
    if (begins(line, "   NodeAddr=")) {
      n.address = std::string(value_of(line, "NodeAddr"));
      const std::int64_t port = whole(value_of(line, "Port"));
      n.port = port > 0 && port < 65'536 ? static_cast<int>(port) : 6818;
    } else if (begins(line, "   State=")) {
      // IDLE, MIXED+DRAIN, DOWN*, DOWN+DRAIN+NOT_RESPONDING: the first word, then flags
      std::string_view all = value_of(line, "State");
      n.state = lower(all.substr(0, all.find_first_of("+*$#~%!@^-")));
      n.drained = has_any(all, {"DRAIN", "FAIL"});
      n.responding = !has_any(all, {"NOT_RESPONDING", "*"});
      n.completing = has(all, "COMPLETING");
    } else if (begins(line, "   Partitions=")) {
      const std::string_view list = value_of(line, "Partitions");
      for (std::size_t i = 0; i < list.size();) {
        const std::size_t end = std::min(list.find(',', i), list.size());
        n.partitions.emplace_back(list.substr(i, end - i));
        i = end + 1;
      }
    } else if (begins(line, "   Reason=")) {
      std::string_view reason = line.substr(10);
      if (const std::size_t at = reason.rfind(" ["); at != std::string_view::npos && reason.back() == ']')
        reason = reason.substr(0, at);  // who set it, and when
      n.reason = unless_none(reason);
    }
  });
  return nodes;
}

}  // namespace orrery::slurm
