#include "cli/guard_run.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "base/byte_source.h"
#include "base/output.h"
#include "cli/common_options.h"
#include "cli/options.h"
#include "cli/read_options.h"
#include "reports/guard_run.h"
#include "supervisor/guard_run.h"
#include "supervisor/keeper.h"
#include "supervisor/local_runner.h"
#include "supervisor/slurm_runner.h"
#include "supervisor/tell.h"

namespace orrery {
namespace {

volatile std::sig_atomic_t stops = 0;  // a handler of signals has no other way to tell

// SIGINT and SIGTERM ask to save and end; the second at once. A hang-up ends the supervisor alone, as kill -9 does.
void listen_to_signals() {
  struct sigaction how {};
  how.sa_handler = [](int) { stops = stops + 1; };
  how.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &how, nullptr);
  ::sigaction(SIGTERM, &how, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

Result<std::string> text_of(const std::string& path) {
  constexpr std::size_t kMost = std::size_t{16} << 20;
  auto text = read_at_most(path, kMost + 1);
  if (!text) return fail(text.error().what, path, "a TOML file: docs/guard.md");
  if (text->size() > kMost) return fail("larger than any configuration", path, "16 MiB at most");
  return text;
}

void text(const Args& args, std::string_view option, std::string& out) {
  if (args.has(option)) out = args.value(option);
}

std::string absolute(const std::string& path) { return std::filesystem::absolute(path).lexically_normal().string(); }

Result<GuardOptions> read_options(const Args& args) {
  GuardOptions o;
  if (args.has("--config")) {
    const auto config = text_of(args.value("--config"));
    if (!config) return tl::unexpected(config.error());
    if (const Status ok = read_guard_options(*config, args.value("--config"), o); !ok)
      return tl::unexpected(ok.error());
  }
  if (args.before_dashes)
    o.command.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(*args.before_dashes), args.positional.end());
  text(args, "--state", o.state);
  text(args, "--name", o.name);
  text(args, "--heartbeat", o.heartbeat);
  text(args, "--socket", o.socket);
  text(args, "--checkpoints", o.checkpoints);
  text(args, "--metrics", o.metrics);
  text(args, "--metrics-file", o.metrics_file);
  text(args, "--webhook", o.webhook);
  if (const auto it = args.options.find("--on-rollback"); it != args.options.end()) o.on_rollback = it->second;
  if (args.has("--slurm")) o.slurm.used = true;
  if (args.has("--local")) o.slurm.used = false;
  text(args, "--nodes", o.slurm.nodes);
  text(args, "--partition", o.slurm.partition);
  for (const auto& [option, words] : {std::pair{"--sbatch", &o.slurm.sbatch}, std::pair{"--srun", &o.slurm.srun}})
    if (const auto it = args.options.find(option); it != args.options.end())
      words->insert(words->end(), it->second.begin(), it->second.end());
  if (args.has("--dry-run")) o.policy.dry_run = true;
  static constexpr Choice<OnBadLoss> losses[] = {{"rollback", OnBadLoss::rollback}, {"report", OnBadLoss::report}};
  static constexpr Choice<OnStraggler> slow[] = {{"report", OnStraggler::report}, {"replace", OnStraggler::replace}};
  static constexpr Choice<OnSameFailure> same[] = {{"stop", OnSameFailure::stop},
                                                   {"other-nodes", OnSameFailure::other_nodes}};
  if (const Status ok = all_of({choose(args, "--bad-loss", losses, o.policy.bad_loss),
                                choose(args, "--stragglers", slow, o.policy.straggler),
                                choose(args, "--same-failure", same, o.policy.same_failure),
                                whole(args, "--tasks-per-node", o.slurm.tasks_per_node, 1024),
                                whole(args, "--restarts", o.policy.most_restarts, 1'000'000'000, 0),
                                real(args, "--backoff", o.policy.backoff_first_s, 0, 1e6),
                                real(args, "--hang-after", o.watch.hang_floor_s, 0.1, 1e9),
                                real(args, "--save-wait", o.policy.save_wait_s, 0, 1e9),
                                real(args, "--time-limit", o.time_limit_s, 0, 1e9)});
      !ok)
    return tl::unexpected(ok.error());
  const Placeholders state{{"state", absolute(o.state)}};
  for (std::string* path : {&o.checkpoints, &o.heartbeat, &o.socket, &o.metrics_file}) *path = replaced(*path, state);
  if (o.name.empty() && !o.command.empty()) o.name = std::filesystem::path(o.command.front()).filename().string();
  if (const Status ok = check_options(o); !ok) return tl::unexpected(ok.error());
  return o;
}

// One line a decision, and one for each piece of evidence, on standard error.
void say(const GuardEvent& e, const Decision& d) {
  std::string lines = fmt::format("{} {}: {}\n", utc(e.at), d.kind, printable(d.text));
  for (const std::string& why : d.evidence) lines += "    " + printable(why) + "\n";
  (void)write_all(STDERR_FILENO, lines, "standard error");
}

Ns unix_time() { return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count(); }

// Metrics and the webhook, as far as they were asked for.
class Tellers {
 public:
  Status open(const GuardOptions& o) {
    job_ = o.name;
    file_ = o.metrics_file;
    if (!o.metrics.empty()) {
      auto server = MetricsServer::open(o.metrics);
      if (!server) return tl::unexpected(server.error());
      server_ = std::move(*server);
      (void)write_all(STDERR_FILENO, fmt::format("metrics: port {}\n", server_->port()), "standard error");
    }
    if (!file_.empty())
      if (const Status ok = check_writable(file_); !ok) return ok;
    if (!o.webhook.empty()) webhook_ = std::make_unique<Webhook>(o.webhook, o.webhook_timeout_s);
    return {};
  }
  void decided(const GuardEvent& e, const Decision& d, const GuardState& s) {
    if (webhook_) webhook_->post(webhook_body(job_, e, d, s.attempt, s.step));
    last_ = {};
    looked(s);
  }
  void looked(const GuardState& s) {
    const auto now = std::chrono::steady_clock::now();
    if ((!server_ && file_.empty()) || now - last_ < std::chrono::seconds(1)) return;
    last_ = now;
    const std::string text =
        metrics_text(job_, s, account(s, unix_time()), webhook_ ? webhook_->unsent() : std::uint64_t{0});
    if (server_) server_->set(text);
    if (file_.empty()) return;
    if (const Status ok = write_file(file_, text); !ok) {
      ++unwritten_;
      problem_ = ok.error().line();
    }
  }
  void end(const GuardState& s, Notes& notes) {
    const std::uint64_t unsent = webhook_ ? webhook_->finish() : std::uint64_t{0};
    last_ = {};
    looked(s);  // with what is known of the posts in the end
    if (unwritten_ > 0)
      notes.add("metrics-not-written", Severity::warning, unwritten_, problem_, "the job was guarded all the same");
    if (unsent > 0)
      notes.add("webhook-unsent", Severity::warning, unsent, webhook_->last_error(),
                "decisions that it did not take; guard status has them");
  }

 private:
  std::string job_, file_, problem_;
  std::unique_ptr<MetricsServer> server_;
  std::unique_ptr<Webhook> webhook_;
  std::chrono::steady_clock::time_point last_{};
  std::uint64_t unwritten_ = 0;
};

Result<GuardStory> story_of(const std::string& directory) {
  const std::string path = journal_path(directory);
  if (::access(path.c_str(), F_OK) != 0)
    return fail("no job is guarded here", directory, "name the directory that --state named");
  auto known = read_journal(path);
  if (!known) return tl::unexpected(known.error());
  GuardStory story;
  story.job = known->entries.empty() ? "" : known->entries.front().event.node;
  story.state = replay(known->entries);
  story.entries = std::move(known->entries);
  story.guarded = is_locked(directory);
  story.account = account(story.state, unix_time());
  return story;
}

std::unique_ptr<JobRunner> runner_of(const GuardOptions& o, const std::string& directory) {
  if (o.slurm.used) {
    std::error_code error;
    const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
    return std::make_unique<SlurmRunner>(directory, error ? "orrery" : program, o.slurm);
  }
  return std::make_unique<LocalRunner>(LocalOptions{.directory = directory,
                                                    .keeper = {"/proc/self/exe", "guard", "keep"},
                                                    .nodes = o.nodes,
                                                    .time_limit_s = o.time_limit_s});
}

int status_of(const GuardState& s) {
  return s.phase == GuardPhase::stopped && s.outcome != GuardOutcome::done ? kIncomplete : kDone;
}

}  // namespace

std::vector<OptionSpec> guard_run_options() {
  return {
      {"--local", "", "run COMMAND as processes of this machine (the default)"},
      {"--slurm", "", "run COMMAND as jobs of Slurm, once a task"},
      {"--nodes", "N[-M]", "of Slurm: so many, at least N where M are not to be had (default: 1)", Takes::word},
      {"--tasks-per-node", "N", "of Slurm (default: 1)", Takes::word},
      {"--partition", "NAME", "of Slurm", Takes::word},
      {"--sbatch", "OPTION", "one more option of sbatch, as in --sbatch=--time=600", Takes::word, true},
      {"--srun", "OPTION", "one more option of srun", Takes::word, true},
      {"--config", "FILE.toml", "all settings (docs/guard.md); options go before them", Takes::file},
      {"--state", "DIR", "what guard remembers, and the logs of all attempts (default: guard-state)", Takes::directory},
      {"--name", "NAME", "of the job, for reports (default: the program's)", Takes::word},
      {"--checkpoints", "DIR", "checkpoints of liborrery_ckpt: which is good, what was gained, where to go back to",
       Takes::directory},
      {"--heartbeat", "DIR", "files that ranks write: rank-NNNNN with iteration, nanoseconds, what it does",
       Takes::directory},
      {"--socket", "PATH", "the same as datagrams to this Unix socket", Takes::file},
      {"--on-rollback", "ARG", "more arguments of COMMAND when it goes back to an earlier checkpoint", Takes::word,
       true},
      {"--bad-loss", "rollback|report", "when the loss stays bad (default: rollback)", Takes::word},
      {"--stragglers", "report|replace", "when one rank is slow (default: report)", Takes::word},
      {"--same-failure", "stop|other-nodes",
       "when a failure comes again at the same step (default: one try on other nodes, if there are any)", Takes::word},
      {"--restarts", "N", "after failures, in all (default: 100)", Takes::word},
      {"--backoff", "S", "before a restart; doubles while nothing is gained (default: 1)", Takes::word},
      {"--hang-after", "S", "never call less than this without progress a hang (default: 300)", Takes::word},
      {"--save-wait", "S", "from the signal to save until it is ended by force (default: 300)", Takes::word},
      {"--time-limit", "S", "of an attempt: it is asked to save before, and started again", Takes::word},
      {"--metrics", "ADDRESS:PORT", "Prometheus metrics over HTTP; :PORT alone listens on 127.0.0.1", Takes::word},
      {"--metrics-file", "FILE", "the same as a file, written anew", Takes::file},
      {"--webhook", "URL", "post each decision there as JSON", Takes::word},
      {"--dry-run", "", "start COMMAND once and only say what guard would do"}};
}

Result<int> run_guard_command(const Args& args) {
  const auto options = understand(*find_command("guard"), args);
  if (!options) return tl::unexpected(options.error());
  const auto guard = read_options(args);
  if (!guard) return tl::unexpected(guard.error());
  const std::string directory = absolute(guard->state);
  Notes notes;
  const SharedRules rules = guard_rules();
  const std::unique_ptr<JobRunner> runner = runner_of(*guard, directory);
  std::optional<GuardStory> before;
  if (!guard->slurm.used && ::access(journal_path(directory).c_str(), F_OK) == 0) {
    auto story = story_of(directory);
    if (!story) return tl::unexpected(story.error());
    before = std::move(*story);
    if (const Status ok = same_machine(directory, before->state.attempt); !ok) return tl::unexpected(ok.error());
  }
  const bool begun = before && before->state.phase != GuardPhase::nothing;
  if (!guard->slurm.used && !begun)
    if (const Status ok = check_program(*guard); !ok) return tl::unexpected(ok.error());
  // What is told may be written there; what else it takes to make it is told when it is locked.
  (void)::mkdir(directory.c_str(), 0700);
  Tellers tellers;
  if (const Status ok = tellers.open(*guard); !ok) return tl::unexpected(ok.error());
  listen_to_signals();
  GuardHooks hooks;
  hooks.stops_asked = [] { return static_cast<int>(stops); };
  hooks.told = [&](const GuardEvent& e, const Decision& d, const GuardState& s) {
    if (d.kind.empty()) return;
    if (!options->quiet) say(e, d);
    tellers.decided(e, d, s);
  };
  hooks.warned = [](const std::string& line) {
    (void)write_all(STDERR_FILENO, fmt::format("orrery: guard: {}\n", printable(line)), "standard error");
  };
  hooks.looked = [&](const GuardState& s) { tellers.looked(s); };
  const auto state = run_guard(*guard, *runner, rules, hooks, notes);
  if (!state) return tl::unexpected(state.error());
  tellers.end(*state, notes);
  auto story = story_of(directory);
  if (!story) return tl::unexpected(story.error());
  story->guarded = false;
  const auto status = emit(guard_run_document(*story, std::move(notes)), *options);
  if (!status) return status;
  return std::max(*status, status_of(*state));
}

Result<int> run_guard_status(const Args& args) {
  const auto options = understand(*find_command("guard"), args);
  if (!options) return tl::unexpected(options.error());
  if (args.positional.size() > 2) return fail("too many operands: " + args.positional[2], "guard status", "DIR");
  std::string directory = args.positional.size() > 1 ? args.positional[1] : "guard-state";
  if (args.has("--state")) directory = args.value("--state");
  auto story = story_of(absolute(directory));
  if (!story) return tl::unexpected(story.error());
  if (story->state.phase == GuardPhase::nothing)
    return fail("no job was begun here: its journal is empty", directory,
                "orrery guard [OPTION...] -- COMMAND... begins one");
  const int status = status_of(story->state);
  const auto emitted = emit(guard_run_document(*story, {}), *options);
  if (!emitted) return emitted;
  return std::max(*emitted, status);
}

Result<int> run_guard_on_node(const Args& args) {
  const std::vector<std::string>& words = args.positional;
  const std::size_t own = std::min(args.before_dashes.value_or(words.size()), words.size());
  std::int64_t number = 0;
  const std::string text = own == 3 ? words[2] : "";
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 1)
    return fail("of guard's own use", "guard " + words[0], "orrery help guard");
  if (words[0] == "rank") return run_slurm_rank(words[1], number);
  return run_slurm_batch(words[1], number, {words.begin() + static_cast<std::ptrdiff_t>(own), words.end()});
}

Result<int> run_guard_keeper(const Args& args) {
  std::int64_t number = 0;
  const std::string text = args.positional.size() == 3 ? args.positional[2] : "";
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 1)
    return fail("of guard's own use", "guard keep", "orrery help guard");
  return run_keeper(args.positional[1], number);
}

}  // namespace orrery
