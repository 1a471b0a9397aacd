#include "supervisor/slurm_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <set>
#include <thread>

#include "base/byte_source.h"
#include "base/number_text.h"
#include "base/text_match.h"
#include "slurm/command.h"
#include "slurm/host_list.h"
#include "supervisor/group_runs.h"
#include "supervisor/keeper.h"
#include "supervisor/launchers.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::duration;

std::string text_of(const std::string& path) { return read_at_most(path, std::size_t{1} << 24).value_or(""); }

Status make_private(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return fail(std::string("cannot be written: ") + std::strerror(errno), path);
  ::close(fd);
  return {};
}

EndReason reason_of(slurm::State state) {
  switch (state) {
    case slurm::State::node_fail:
    case slurm::State::boot_fail:  // of a node, not of the job
      return EndReason::node_fail;
    case slurm::State::preempted:
      return EndReason::preempted;
    case slurm::State::timeout:
    case slurm::State::deadline:
      return EndReason::time_limit;
    case slurm::State::out_of_memory:
      return EndReason::out_of_memory;
    case slurm::State::cancelled:
      return EndReason::cancelled;
    default:
      return EndReason::none;
  }
}

// Processes of this machine that have the word in their command line: an sbatch that outlived its supervisor.
bool is_being_submitted(const std::string& token) {
  const std::string word = "--job-name=" + token;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (text_of(entry.path() / "cmdline").find(word) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

SlurmRunner::SlurmRunner(std::string directory, std::string program, SlurmOptions options)
    : directory_(std::move(directory)), program_(std::move(program)), options_(std::move(options)) {
  // The supervisor looks again soon: a controller that is away must not hold it up.
  terms_.timeout_s = 5;
  terms_.patience_s = 0;
  terms_.settle_s = 2;
}

Result<SlurmRunner::Handle> SlurmRunner::read_handle(const std::string& handle) {
  Handle h;
  std::int64_t job = 0;
  const char* const end = handle.data() + handle.size();
  const auto [colon, error] = std::from_chars(handle.data(), end, job);
  if (error != std::errc{} || colon == end || *colon != ':' || job < 1)
    return fail("not an attempt on Slurm: " + handle);
  const auto [last, second] = std::from_chars(colon + 1, end, h.attempt);
  if (second != std::errc{} || last != end || h.attempt < 1) return fail("not an attempt on Slurm: " + handle);
  h.job = slurm::JobId{job};
  return h;
}

SlurmRunner::Known& SlurmRunner::known(std::int64_t attempt) {
  if (known_.attempt != attempt) {
    known_ = {};
    known_.attempt = attempt;
  }
  return known_;
}

Status SlurmRunner::give_orders(const SlurmFiles& files, const Orders& orders) {
  return write_line(files.orders, to_line(orders), true);
}

Status SlurmRunner::revoke(const SlurmFiles& files, Known& known) {
  auto orders = read_orders(read_line(files.orders)).value_or(Orders{});
  if (!orders.revoked) {
    orders.revoked = true;
    if (const Status ok = give_orders(files, orders); !ok) return ok;
  }
  if (!known.revoked) known.revoked = Clock::now();
  return {};
}

Result<std::string> SlurmRunner::start(const AttemptSpec& spec) {
  const SlurmFiles files(directory_, spec.number);
  if (::mkdir(files.directory.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(std::string("cannot be made: ") + std::strerror(errno), files.directory);
  for (const std::string& path : {spec.out, spec.err})
    if (const Status ok = make_private(path); !ok) return tl::unexpected(ok.error());
  if (const Status ok = write_spec(AttemptFiles(directory_, spec.number), spec); !ok) return tl::unexpected(ok.error());
  if (const Status ok = give_orders(files, {}); !ok) return tl::unexpected(ok.error());
  slurm::Batch batch;
  batch.token = spec.token;
  batch.comment = "orrery guard " + directory_;
  batch.directory = spec.directory;
  batch.script = files.script;
  batch.output = files.directory + "/script.log";
  batch.options = {"--nodes=" + nodes_wanted(spec), "--requeue", "--open-mode=append"};
  // Of a number of tasks Slurm makes the smallest number of nodes that takes them; one a node is what it does anyway.
  if (options_.tasks_per_node > 1)
    batch.options.push_back(fmt::format("--ntasks-per-node={}", options_.tasks_per_node));
  if (!options_.partition.empty()) batch.options.push_back("--partition=" + options_.partition);
  if (!spec.exclude.empty()) batch.options.push_back("--exclude=" + slurm::compress_hosts(spec.exclude));
  if (!spec.nodes.empty()) batch.options.push_back("--nodelist=" + slurm::compress_hosts(spec.nodes));
  batch.options.insert(batch.options.end(), options_.sbatch.begin(), options_.sbatch.end());
  batch.argv = {program_, "guard", "batch", directory_, std::to_string(spec.number)};
  batch.argv.push_back("--");
  batch.argv.insert(batch.argv.end(), options_.srun.begin(), options_.srun.end());
  slurm::Terms terms = terms_;
  terms.timeout_s = 20;
  terms.patience_s = 20;
  const auto job = slurm::submit(batch, terms);
  if (job) return fmt::format("{}:{}", static_cast<std::int64_t>(*job), spec.number);
  // Whatever may still arrive of it must not run.
  if (const Status ok = revoke(files, known(spec.number)); !ok) return tl::unexpected(ok.error());
  return tl::unexpected(job.error());
}

// Of N-M with several tasks a node: as many as are free now, of M at most.
std::string SlurmRunner::nodes_wanted(const AttemptSpec& spec) const {
  const std::size_t dash = options_.nodes.find('-');
  if (dash == std::string::npos || options_.tasks_per_node == 1) return options_.nodes;
  const auto all = slurm::nodes({}, terms_);
  if (!all) return options_.nodes;
  std::int64_t least = 0, most = 0, free = 0;
  if (read_int(std::string_view(options_.nodes).substr(0, dash), least) != NumberState::ok ||
      read_int(std::string_view(options_.nodes).substr(dash + 1), most) != NumberState::ok)
    return options_.nodes;
  for (const slurm::Node& n : *all) {
    const bool ours = options_.partition.empty() ||
                      std::find(n.partitions.begin(), n.partitions.end(), options_.partition) != n.partitions.end();
    const bool out = std::find(spec.exclude.begin(), spec.exclude.end(), n.name) != spec.exclude.end();
    free += ours && !out && n.usable() && n.state == "idle" ? 1 : 0;
  }
  return fmt::format("{}-{}", std::clamp(free, least, most), most);
}

// What sbatch refuses in its own words is final, but for what passes by itself.
bool SlurmRunner::is_final(const Error& error, const AttemptSpec& spec) const {
  // Of another command, killed or without an answer, a controller that is away (its advice tells so): it was not
  // refused.
  if (error.where.rfind("sbatch -", 0) != 0 || !error.advice.empty() || slurm::is_unreachable(error.what)) return false;
  if (error.what.rfind("exit status ", 0) == 0 || error.what.rfind("signal ", 0) == 0) return false;
  // Where nodes are left out, one may come back.
  if (!spec.exclude.empty() && has_any(error.what, {"Requested node configuration is not available"})) return false;
  return !has_any(error.what, {"SubmitJob",  // AssocMaxSubmitJobLimit and others: so many at once
                               "Job violates accounting/QOS policy", "temporarily", "ry again", "job queue full",
                               "equested nodes are busy", "Required node not available",
                               "Required partition not available", "not usable now", "presently disabled",
                               "mmediate execution impossible", "I/O error writing script/output", "unge ", "MUNGE",
                               "authentication credential", "Unable to connect to database", "fetch_config",
                               "resolve_ctls_from_dns_srv", "configuration source"});
}

Result<std::optional<std::string>> SlurmRunner::find(const AttemptSpec& spec) {
  const SlurmFiles files(directory_, spec.number);
  const auto found = [&]() -> Result<std::optional<std::string>> {
    const auto jobs = slurm::jobs_named(spec.token, terms_);
    if (!jobs) return tl::unexpected(jobs.error());
    if (!jobs->empty()) return fmt::format("{}:{}", static_cast<std::int64_t>(jobs->front().id), spec.number);
    // It ran, and Slurm has forgotten it.
    if (const std::string claimed = read_line(files.claim); !claimed.empty())
      return fmt::format("{}:{}", claimed, spec.number);
    return std::optional<std::string>();
  };
  if (is_being_submitted(spec.token)) return fail("its sbatch has not ended yet", spec.token, "ask again");
  auto first = found();
  if (!first || *first) return first;
  if (::access(files.directory.c_str(), F_OK) != 0) return std::optional<std::string>();  // never came to sbatch
  if (const Status ok = revoke(files, known(spec.number)); !ok) return tl::unexpected(ok.error());
  return found();
}

Result<slurm::Job> SlurmRunner::job(const Handle& handle) {
  Known& k = known(handle.attempt);
  if (k.job.id == handle.job && Clock::now() - k.asked < duration<double>(options_.ask_s)) return k.job;
  auto job = slurm::job(handle.job, terms_);
  if (!job) return job;
  k.job = *job;
  k.asked = Clock::now();
  return job;
}

// A name that Slurm or the resolver does not tell is not known to be away.
void SlurmRunner::ask_nodes(Known& k, const std::set<std::string>& nodes) {
  constexpr double kAgain_s = 2;
  std::vector<std::string> names;
  for (const std::string& n : nodes)
    if (!k.doors.contains(n)) names.push_back(n);
  if (!names.empty() && Clock::now() - k.doors_asked >= duration<double>(kAgain_s)) {
    k.doors_asked = Clock::now();
    if (const auto found = slurm::nodes(names, terms_))
      for (const slurm::Node& n : *found) k.doors[n.name] = {n.name, n.address, n.port};
  }
  std::vector<NodeDoors::Door> doors;
  for (const std::string& n : nodes)
    if (const auto it = k.doors.find(n); it != k.doors.end()) doors.push_back(it->second);
  doors_.ask(doors);
}

// How long its keeper has said nothing, by this machine's clock.
double SlurmRunner::silent_s(Known& k, const RankReport& report) {
  Beat& beat = k.beats[report.rank];
  if (beat.beats != report.beats) beat = {report.beats, Clock::now()};
  return duration<double>(Clock::now() - beat.moved).count();
}

// Silent keepers on a node whose slurmd takes no connections; where the system takes them and no slurmd ends them (a
// machine that has stopped), after four times as long a silence while others speak. One whose slurmd lives is not lost:
// its keeper may wait for a storage. A job that is over: no waiting, its keepers are done. A keeper on a dying node may
// still have told how its rank ended: where that was badly, the node is asked. `asking`: of one of a job that is over
// the answer is not there yet.
std::vector<std::string> SlurmRunner::lost_nodes(Known& k, const std::vector<RankReport>& reports, bool over,
                                                 bool& asking) {
  constexpr double kTold = 1e9;          // has said all that it had to say
  std::map<std::string, double> silent;  // the shortest of each node
  double least = kTold;
  for (const RankReport& r : reports) {
    if (r.node.empty() || (!r.runs() && !r.failed())) continue;
    if (!r.runs()) {
      silent.emplace(r.node, kTold);
      continue;
    }
    const double s = silent_s(k, r);
    const auto it = silent.emplace(r.node, s).first;
    it->second = std::min(it->second, s);
    least = std::min(least, s);
  }
  std::set<std::string> asked;
  for (const auto& [node, s] : silent)
    if (over || s >= options_.stale_s) asked.insert(node);
  ask_nodes(k, asked);
  std::vector<std::string> lost;
  for (const std::string& node : asked) {
    const double s = silent[node];
    const bool long_silent = !over && s < kTold && s >= 4 * options_.stale_s && least < options_.stale_s;
    const DoorAnswer answer = doors_.of(node);
    if (answer == DoorAnswer::away || (answer == DoorAnswer::mute && long_silent)) lost.push_back(node);
    asking = asking || (over && answer == DoorAnswer::asked && k.doors.contains(node));
  }
  return lost;
}

// The first rank that failed, by the clocks of the nodes; else what srun said.
void SlurmRunner::describe_end(const SlurmFiles& files, const std::vector<RankReport>& reports,
                               AttemptState& state) const {
  const RankReport* first = nullptr;
  for (const RankReport& r : reports) {
    if (r.failed() && (first == nullptr || r.ended < first->ended)) first = &r;
  }
  const std::string ended = read_line(files.ended);
  int number = 0;
  const std::size_t blank = ended.find(' ');
  const bool told = blank != std::string::npos &&
                    std::from_chars(ended.data() + blank + 1, ended.data() + ended.size(), number).ec == std::errc{};
  if (first != nullptr) {
    state.detail += fmt::format("{}rank {} on {} was the first to fail", state.detail.empty() ? "" : "; ", first->rank,
                                first->node);
    if (first->state == RankReport::State::killed) {
      state.signal = first->value;
    } else if (first->state == RankReport::State::failed) {
      state.reason = state.reason == EndReason::none ? EndReason::launch_failed : state.reason;
      state.detail += ": " + first->why;
    } else {
      state.exit_status = first->value;
    }
  } else if (told && ended.rfind("exit ", 0) == 0) {
    state.exit_status = number;
  } else if (told && ended.rfind("signal ", 0) == 0) {
    state.signal = number;
  } else if (ended.rfind("failed ", 0) == 0) {
    state.reason = state.reason == EndReason::none ? EndReason::launch_failed : state.reason;
    state.detail += ended.substr(7);
  }
}

// Having saved, or since it does not hear the signal.
bool ended_on_request(const AttemptState& s) {
  return s.reason == EndReason::none && (s.exit_status == 0 || s.signal == SIGTERM || s.signal == SIGKILL);
}

Result<AttemptState> SlurmRunner::poll(const std::string& handle) {
  const auto h = read_handle(handle);
  if (!h) return tl::unexpected(h.error());
  const SlurmFiles files(directory_, h->attempt);
  Known& k = known(h->attempt);
  const bool ended = !read_line(files.ended).empty();
  if (ended && !slurm::is_over(k.job.state)) k.asked = {};  // news: asked at once
  std::vector<RankReport> reports = read_reports(files);
  const auto told = std::find_if(reports.begin(), reports.end(), [](const RankReport& r) { return r.told != 0; });
  const bool notice = told != reports.end() || !read_line(files.notice).empty();
  if (notice && !std::exchange(k.notice, true)) k.asked = {};
  const auto asked = job(*h);
  if (!asked) return tl::unexpected(asked.error());
  const slurm::Job& j = *asked;
  // What ranks said since: all may have ended between the look at them and Slurm's answer.
  if (slurm::is_over(j.state)) reports = read_reports(files);
  const bool claimed = !read_line(files.claim).empty();
  // Slurm notes it before the ranks' SIGTERM has reached them, and moves the end of the job's time nearer.
  const bool warned = notice || j.preempted_s > 0;
  const bool some_run = std::any_of(reports.begin(), reports.end(),
                                    [&](const RankReport& r) { return r.runs() && silent_s(k, r) < options_.stale_s; });
  AttemptState s;
  s.nodes = j.nodes;
  if (s.nodes.empty()) {
    std::set<std::string> nodes;
    for (const RankReport& r : reports) nodes.insert(r.node);
    nodes.erase("");
    s.nodes.assign(nodes.begin(), nodes.end());
  }
  const bool again = claimed && j.restarts > 0;  // put into the queue once more
  if (!again && j.state != slurm::State::pending) s.started = Ns{j.start_s} * 1'000'000'000;
  bool asking = false;
  if (j.state == slurm::State::pending && !again) {
    s.phase = AttemptPhase::pending;
    s.detail = j.reason;
    s.waits = true;
    return s;
  }
  if (again && !slurm::is_over(j.state)) {
    s.lost = lost_nodes(k, reports, true, asking);
    s.phase = asking ? AttemptPhase::ending : AttemptPhase::ended;
    s.reason = !s.lost.empty() ? EndReason::node_fail : warned ? EndReason::preempted : EndReason::requeued;
    s.detail = "Slurm put it into the queue again";
    return s;
  }
  if (j.state == slurm::State::running || j.state == slurm::State::completing) {
    // Told to end by Slurm, ranks may still save: they have until KillWait or the grace time is over.
    // srun may wait long for a node whose rank has told its end already.
    const bool all_told = !j.nodes.empty() &&
                          std::none_of(reports.begin(), reports.end(), [](const RankReport& r) { return r.runs(); }) &&
                          reports.size() == j.nodes.size() * static_cast<std::size_t>(options_.tasks_per_node);
    const bool ending = ended || all_told || (j.state == slurm::State::completing && !some_run);
    s.phase = ending                        ? AttemptPhase::ending
              : claimed && !reports.empty() ? AttemptPhase::running
                                            : AttemptPhase::pending;
    // A rank that failed is news of the others: their nodes are asked at once.
    const bool failed = std::any_of(reports.begin(), reports.end(), [](const RankReport& r) { return r.failed(); });
    // So is word that it will be ended: Slurm ends what has lost a node.
    const bool told_so = warned || j.state == slurm::State::completing;
    s.lost = lost_nodes(k, reports, failed || told_so || s.phase == AttemptPhase::ending, asking);
    s.waits = slurm::is_suspended(j);  // it cannot save now: what will end it is told once it goes on
    if (s.phase == AttemptPhase::running && told_so && s.lost.empty() && !s.waits) {
      s.reason = EndReason::preempted;
      s.detail = "Slurm has told it so";
    }
    if (j.limit_s > 0 && !s.waits) s.time_left = static_cast<double>(j.limit_s - std::time(nullptr));
    // Slurm takes its time to believe that a lost node is lost: all that can still be heard of it has been.
    const bool heard = std::all_of(reports.begin(), reports.end(), [&](const RankReport& r) {
      return !r.runs() || std::find(s.lost.begin(), s.lost.end(), r.node) != s.lost.end();
    });
    if (!s.lost.empty() && failed && (heard || ended)) s.phase = AttemptPhase::ended;
    if (s.phase == AttemptPhase::ending || s.phase == AttemptPhase::ended) {
      describe_end(files, reports, s);
      if (j.preempted_s > 0 && ended_on_request(s)) s.reason = EndReason::preempted;
    }
    return s;
  }
  // Over, or forgotten: a controller that was killed forgets what came last.
  if (j.state == slurm::State::unknown && some_run) {
    s.phase = AttemptPhase::running;
    s.lost = lost_nodes(k, reports, false, asking);
    s.detail = "Slurm does not know it";
    return s;
  }
  s.phase = AttemptPhase::ended;
  s.reason = reason_of(j.state);
  if (j.state != slurm::State::unknown) {
    s.detail = j.state_text + (j.reason.empty() ? "" : ", " + j.reason);
    if (!claimed && s.reason == EndReason::none && j.state == slurm::State::failed) s.reason = EndReason::launch_failed;
  }
  if (j.state != slurm::State::completed) s.lost = lost_nodes(k, reports, true, asking);
  if (asking) s.phase = AttemptPhase::ending;
  describe_end(files, reports, s);
  // It was told that it will be ended, and ended by itself in time.
  if (warned && ended_on_request(s) && (s.exit_status || j.preempted_s > 0)) s.reason = EndReason::preempted;
  const bool said = s.exit_status || s.signal || s.reason != EndReason::none;
  if (!said && j.state != slurm::State::unknown) {
    if (j.signal != 0) {
      s.signal = j.signal;
    } else {
      s.exit_status = j.exit_status;
    }
  }
  return s;
}

Status SlurmRunner::signal(const std::string& handle, int number) {
  const auto h = read_handle(handle);
  if (!h) return tl::unexpected(h.error());
  const SlurmFiles files(directory_, h->attempt);
  auto orders = read_orders(read_line(files.orders));
  if (!orders) return fail("cannot be read", files.orders);  // what was ordered before must not be taken back
  ++orders->signals;
  orders->signal = number;
  return give_orders(files, *orders);
}

Result<bool> SlurmRunner::fence(const std::string& handle) {
  const auto h = read_handle(handle);
  if (!h) return tl::unexpected(h.error());
  const SlurmFiles files(directory_, h->attempt);
  Known& k = known(h->attempt);
  if (const Status ok = revoke(files, k); !ok) return tl::unexpected(ok.error());
  k.asked = {};
  auto j = job(*h);
  if (!j) return tl::unexpected(j.error());
  if (!slurm::is_over(j->state) && j->state != slurm::State::unknown && j->state != slurm::State::completing) {
    if (const Status ok = slurm::cancel(h->job, terms_); !ok) return tl::unexpected(ok.error());
  }
  const std::vector<RankReport> reports = read_reports(files);
  const double waited = duration<double>(Clock::now() - *k.revoked).count();
  std::set<std::string> left;
  for (const RankReport& r : reports)
    if (r.runs() && !r.node.empty()) left.insert(r.node);
  const bool over = slurm::is_over(j->state) || j->state == slurm::State::unknown;
  std::set<std::string> nodes(j->nodes.begin(), j->nodes.end());
  nodes.insert(left.begin(), left.end());
  ask_nodes(k, nodes);
  // Slurm waits long for nodes that take no connections: told that they are down, it ends the job there, and what else
  // runs on them. A slurmd that is started anew is back before.
  for (const std::string& node : nodes) {
    constexpr double kAgain_s = 5;
    if (over || waited < options_.stale_s || doors_.away_s(node) < options_.lost_after_s || k.set_down.contains(node))
      continue;
    const auto tried = k.telling.find(node);
    if (tried != k.telling.end() && Clock::now() - tried->second < duration<double>(kAgain_s)) continue;
    k.telling[node] = Clock::now();
    if (const Status ok = slurm::set_down({node}, "orrery guard: its slurmd takes no connections", terms_); !ok)
      return tl::unexpected(ok.error());
    k.set_down.insert(node);
  }
  if (!over) return false;
  for (const std::string& node : left) {
    const DoorAnswer answer = doors_.of(node);
    const bool there = answer == DoorAnswer::answers || answer == DoorAnswer::mute;
    // keepers answer for themselves
    if (j->state == slurm::State::unknown && answer != DoorAnswer::away) return false;
    if (!there && waited < options_.lost_after_s) return false;
  }
  if (j->state == slurm::State::unknown && reports.empty() && waited < options_.lost_after_s) return false;
  return true;
}

std::string SlurmRunner::left(const std::string& handle) {
  const auto h = read_handle(handle);
  if (!h) return "";
  Known& k = known(h->attempt);
  std::string text = fmt::format("job {} is {}", static_cast<std::int64_t>(h->job),
                                 k.job.state_text.empty() ? "not known" : k.job.state_text);
  for (const RankReport& r : read_reports(SlurmFiles(directory_, h->attempt)))
    if (r.runs()) text += fmt::format(", rank {} on {} has not ended", r.rank, r.node);
  for (const std::string& node : k.job.nodes)
    if (doors_.of(node) == DoorAnswer::away) text += fmt::format(", {} takes no connections", node);
  return text;
}

Result<std::vector<NodeState>> SlurmRunner::nodes() {
  const auto all = slurm::nodes({}, terms_);
  if (!all) return tl::unexpected(all.error());
  std::vector<NodeState> states;
  for (const slurm::Node& n : *all) {
    const bool ours = options_.partition.empty() ||
                      std::find(n.partitions.begin(), n.partitions.end(), options_.partition) != n.partitions.end();
    if (!ours) continue;
    NodeState s{n.name, n.usable() && n.state != "allocated", {}};
    if (!s.usable) {
      s.why = n.state + (n.drained ? ", drained" : "") + (n.responding ? "" : ", does not respond");
      if (!n.reason.empty()) s.why += ": " + n.reason;
    }
    states.push_back(std::move(s));
  }
  return states;
}

Status SlurmRunner::drain(const std::string& node, const std::string& reason) {
  return slurm::drain({node}, reason, terms_);
}

Result<std::string> SlurmRunner::stacks(const std::string& handle, double timeout_s) {
  const auto h = read_handle(handle);
  if (!h) return tl::unexpected(h.error());
  const SlurmFiles files(directory_, h->attempt);
  auto orders = read_orders(read_line(files.orders));
  if (!orders) return fail("cannot be read", files.orders);
  ++orders->stacks;
  if (const Status ok = give_orders(files, *orders); !ok) return tl::unexpected(ok.error());
  const auto end = Clock::now() + duration<double>(timeout_s);
  std::vector<RankReport> reports;
  for (;;) {
    reports = read_reports(files);
    const bool all = std::all_of(reports.begin(), reports.end(),
                                 [&](const RankReport& r) { return !r.runs() || r.stacks >= orders->stacks; });
    if (all || Clock::now() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  std::string text;
  for (const RankReport& r : reports) {
    if (!r.runs()) continue;
    text += fmt::format("==== rank {} on {}\n", r.rank, r.node);
    text += r.stacks >= orders->stacks ? text_of(files.stacks(r.rank)) : "no answer\n";
  }
  if (text.empty()) return fail("no rank runs", files.directory);
  return text;
}

std::optional<RunGroups> SlurmRunner::tester(const std::vector<std::string>& nodes, double timeout_s) {
  GroupRunTerms terms;
  terms.timeout_s = timeout_s;
  terms.worker = {program_, "checknodes", "member", "{index}"};
  const Status ok = by_slurm(nodes, admission_words(options_), terms);
  return [ok, terms, nodes](const std::vector<NodeGroup>& groups) -> Result<std::vector<GroupOutcome>> {
    if (!ok) return tl::unexpected(ok.error());
    return run_remote_rings(terms, nodes, groups);
  };
}

}  // namespace orrery
