// orrery diagnose: why did it fail? Logs -> rows of interest -> evidence -> verdict.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cli/common_options.h"
#include "cli/diagnose_read.h"
#include "cli/diagnose_templates.h"
#include "cli/diagnose_unknown.h"
#include "cli/options.h"
#include "importers/log_text.h"
#include "rules/diagnose.h"

namespace orrery {
namespace {

constexpr std::size_t kRememberedLines = 200;

LogVerdict verdict_of(const LogTable& table, const Matcher& matcher, const KnownShapes& known,
                      const std::string& label) {
  LogVerdict v;
  v.label = label;
  for (const LogFile& f : table.files) {
    v.files.push_back(f.label);
    v.lines += f.lines;
    v.bytes += f.bytes;
  }
  v.kept_lines = count_kept(table, known);
  v.diagnosis = diagnose(table, matcher, known);
  return v;
}

// Rules of the user's: what they mask must be a kind that some rule has, their samples must behave.
Status check_own(const Matcher& matcher, const std::vector<std::string>& own) {
  const std::vector<Rule>& rules = matcher.rules();
  for (std::uint32_t i = 0; i < rules.size(); ++i) {
    const Rule& r = rules[i];
    if (std::find(own.begin(), own.end(), r.id) == own.end()) continue;
    const std::string where = r.origin + ":" + std::to_string(r.line);
    for (const std::vector<std::string>* kinds : {&r.masks, &r.needs})
      for (const std::string& kind : *kinds)
        if (std::none_of(rules.begin(), rules.end(), [&](const Rule& o) { return o.kind == kind; }) &&
            kind != "straggler" && kind != "hang" && kind != "teardown")
          return fail("rule " + r.id + ": no rule is of the kind " + kind, where, "docs/formats/rules.md");
    if (!r.sample.empty() && !matcher.matches(i, r.sample))
      return fail("rule " + r.id + " does not match its sample", where, "mend its pattern or its sample");
    if (!r.counter.empty() && matcher.matches(i, r.counter))
      return fail("rule " + r.id + " matches its counter-example", where, "mend its pattern or its counter");
  }
  return {};
}

Result<std::shared_ptr<Matcher>> compile_rules(const Args& args, Notes& notes) {
  auto set = built_in_rules();
  if (!set) return tl::unexpected(set.error());
  std::vector<std::string> ids;
  const auto own = args.options.find("--rules");
  if (own != args.options.end()) {
    for (const std::string& path : own->second) {
      // The file in which an agent's rules are to be kept need not be there yet.
      if (args.has("--llm") && ::access(path.c_str(), F_OK) != 0) continue;
      auto rules = read_rule_file(path);
      if (!rules) return tl::unexpected(rules.error());
      for (Rule& r : *rules) {
        std::erase_if(set->rules, [&](const Rule& known) { return known.id == r.id; });
        ids.push_back(r.id);
        set->rules.push_back(std::move(r));
      }
    }
  }
  auto matcher = Matcher::compile(*set, notes);
  if (!matcher) return matcher;
  if (Status ok = check_own(**matcher, ids); !ok) return tl::unexpected(ok.error());
  return matcher;
}

Result<double> seconds_of(const Args& args, const char* option, double otherwise) {
  if (!args.has(option)) return otherwise;
  char* end = nullptr;
  const std::string text = args.value(option);
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 0) || value > 1e9)
    return fail("not a number of seconds: " + text, option, "for example 60");
  return value;
}

Result<std::optional<AgentOptions>> agent_of(const Args& args) {
  std::optional<AgentOptions> agent;
  if (!args.has("--llm")) return agent;
  agent.emplace();
  agent->url = args.value("--llm");
  if (agent->url.rfind("http://", 0) != 0 && agent->url.rfind("https://", 0) != 0)
    return fail("not a URL: " + agent->url, "--llm", "for example http://localhost:8000/v1");
  agent->model = args.value("--llm-model");
  if (args.has("--llm-samples")) {
    agent->samples = std::atoi(args.value("--llm-samples").c_str());
    if (agent->samples < 1 || agent->samples > 99)
      return fail("not from 1 to 99: " + args.value("--llm-samples"), "--llm-samples");
  }
  const auto limit = seconds_of(args, "--llm-timeout", agent->timeout_s);
  if (!limit) return tl::unexpected(limit.error());
  if (!(*limit > 0)) return fail("no time at all", "--llm-timeout", "for example 60");
  agent->timeout_s = std::min(*limit, 1e6);
  if (const char* key = std::getenv("ORRERY_LLM_KEY")) agent->key = key;  // NOLINT: before any thread starts
  return agent;
}

// What the store learns of a log: its case, where rules or a person know the reason; how the job talks.
Status learn(CaseStore& store, const Args& args, const LogVerdict& v, const LogTable& table, const KnownShapes& known) {
  const Diagnosis& d = v.diagnosis;
  PastCase c;
  c.label = v.label;
  c.reason = d.reason;
  c.category = d.category;
  c.restart = d.restart;
  c.root_cause = d.root_cause;
  c.advice = d.advice;
  if (args.has("--remember")) {
    const Reason* reason = find_reason(args.value("--remember"));
    c.reason = reason->name;
    c.category = reason->category == "by-frame" ? "Framework" : reason->category;
    c.restart = reason->restart;
    c.root_cause = "said by a person";
    c.advice.clear();
  }
  const bool known_reason = args.has("--remember") || (d.verdict == Verdict::failed && v.found_by == "rules");
  if (known_reason && !c.reason.empty())
    if (Status ok = store.remember(c, kept_lines(table, known, kRememberedLines)); !ok) return ok;
  if (!args.has("--job-name")) return {};
  const bool healthy = d.verdict == Verdict::healthy;
  return store.learn(args.value("--job-name"), taught_shapes(table, healthy), healthy);
}

Result<std::vector<LogTable>> read_all(const Args& args, const std::vector<TraceInput>& inputs, const Matcher& matcher,
                                       const KnownShapes& known, unsigned threads, Progress& progress, bool& hung) {
  if (!args.has("--follow")) return read_logs(inputs, matcher, threads, progress);
  if (inputs.size() != 1)
    return fail("follows one log, not " + std::to_string(inputs.size()), "--follow", "name one file");
  FollowOptions how;
  const auto settle = seconds_of(args, "--settle", how.settle_s);
  if (!settle) return tl::unexpected(settle.error());
  const auto hang = seconds_of(args, "--hang-after", how.hang_after_s);
  if (!hang) return tl::unexpected(hang.error());
  how.settle_s = *settle;
  how.hang_after_s = *hang;
  how.poll_s = std::max(0.02, std::min(0.5, std::min(how.settle_s, how.hang_after_s) / 4));
  auto table = follow_log(
      inputs.front(), matcher, how, [&](const LogTable& t) { return diagnose(t, matcher, known).ended; }, hung);
  if (!table) return tl::unexpected(table.error());
  std::vector<LogTable> one;
  one.push_back(std::move(*table));
  return one;
}

void say_hung(LogVerdict& v, const std::string& seconds) {
  if (v.diagnosis.verdict == Verdict::failed || v.diagnosis.verdict == Verdict::interrupted || v.diagnosis.ended)
    return;
  Diagnosis& d = v.diagnosis;
  d.verdict = Verdict::failed;
  d.reason = "NCCL Timeout Error";
  d.category = "Infrastructure";
  d.restart = "auto";
  d.root_cause = "no new line for " + seconds + " s and no error: no progress";
  d.advice = "The job says nothing more: look at stacks of all ranks, restart.";
  d.confidence = 0.5;
  d.who = "operator";
}

Status check_options(const Args& args) {
  for (const char* option : {"--job-name", "--remember"})
    if (args.has(option) && !args.has("--cases")) return fail("needs a store of cases", option, "add --cases FILE.db");
  if (args.has("--remember") && find_reason(args.value("--remember")) == nullptr)
    return fail("not a reason: " + args.value("--remember"), "--remember", "docs/formats/rules.md lists them");
  for (const char* option : {"--settle", "--hang-after"})
    if (args.has(option) && !args.has("--follow")) return fail("only with --follow", option);
  for (const char* option : {"--llm-model", "--llm-samples", "--llm-timeout"})
    if (args.has(option) && !args.has("--llm")) return fail("only with --llm URL", option);
  return {};
}

}  // namespace

Result<int> run_diagnose(const Args& args) {
  auto options = understand(*find_command("diagnose"), args);
  if (!options) return tl::unexpected(options.error());
  if (Status ok = check_options(args); !ok) return tl::unexpected(ok.error());
  auto agent = agent_of(args);
  if (!agent) return tl::unexpected(agent.error());
  Notes notes;
  const auto matcher = compile_rules(args, notes);
  if (!matcher) return tl::unexpected(matcher.error());
  auto inputs = find_inputs(args.positional);
  if (!inputs) return tl::unexpected(inputs.error());
  std::erase_if(*inputs, [&](const TraceInput& i) {
    if (i.unusable.empty()) return false;
    notes.add("input-skipped", Severity::warning, 1, i.label + ": " + i.unusable, "not among the logs");
    return true;
  });
  std::optional<CaseStore> store;
  KnownShapes known;
  UnknownOptions unknown;
  unknown.agent = std::move(*agent);
  unknown.rule_file = args.value("--rules");
  if (args.has("--cases")) {
    auto opened = CaseStore::open(args.value("--cases"));
    if (!opened) return tl::unexpected(opened.error());
    store.emplace(std::move(*opened));
    unknown.cases = &*store;
    auto lines = store->healthy_lines();
    if (!lines) return tl::unexpected(lines.error());
    unknown.healthy = std::move(*lines);
    if (args.has("--job-name")) {
      auto shapes = store->known(args.value("--job-name"));
      if (!shapes) return tl::unexpected(shapes.error());
      known = std::move(*shapes);
    }
  }
  Progress progress(options->show_progress);
  if (args.has("--templates")) {
    progress.stage("finding templates");
    if (const Status ok = write_templates(*inputs, args.value("--templates"), notes); !ok)
      return tl::unexpected(ok.error());
  }
  progress.stage("reading");
  bool hung = false;
  auto tables = read_all(args, *inputs, **matcher, known, options->threads, progress, hung);
  if (!tables) return tl::unexpected(tables.error());
  for (LogTable& t : *tables) {
    notes.merge(t.notes);
    t.notes = {};
  }
  if (args.has("--job")) {
    LogTable job;
    for (LogTable& t : *tables) append_log(job, std::move(t));
    tables->clear();
    tables->push_back(std::move(job));
  }
  std::vector<LogVerdict> verdicts;
  for (std::size_t i = 0; i < tables->size(); ++i)
    verdicts.push_back(
        verdict_of((*tables)[i], **matcher, known, args.has("--job") ? args.positional.front() : (*inputs)[i].label));
  if (hung) say_hung(verdicts.front(), args.has("--hang-after") ? args.value("--hang-after") : "1800");
  for (std::size_t i = 0; i < verdicts.size(); ++i)
    if (verdicts[i].diagnosis.verdict == Verdict::healthy)
      for (const auto& [shape, text] : taught_shapes((*tables)[i], true)) unknown.healthy.push_back(text);
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    UnknownOptions how = unknown;
    for (const auto& [shape, text] : taught_shapes((*tables)[i], false)) how.healthy.push_back(text);
    if (Status ok = answer_unknown(verdicts[i], (*tables)[i], known, how, notes); !ok)
      return tl::unexpected(ok.error());
    if (!how.agent) unknown.agent.reset();
    if (store)
      if (Status ok = learn(*store, args, verdicts[i], (*tables)[i], known); !ok) return tl::unexpected(ok.error());
  }
  progress.finish();
  Document document = diagnose_document(verdicts, std::move(notes));
  document.inputs = args.positional;
  const auto status = emit(document, *options);
  if (!status) return status;
  const bool open = std::any_of(verdicts.begin(), verdicts.end(),
                                [](const LogVerdict& v) { return v.diagnosis.verdict == Verdict::unknown; });
  return open ? kIncomplete : *status;
}

Command diagnose_command() {
  return {
      .name = "diagnose",
      .summary = "why a job failed, who has to act, and whether a restart helps, from its logs",
      .operands = "LOG...",
      .least = 1,
      .most = kMany,
      .description =
          "Reads logs of training jobs (of ranks, launchers, schedulers, kernels) in one pass and names the root "
          "cause, not "
          "the last error: what went wrong first in the causal order of all evidence. Time-outs of ranks that wait, "
          "lost "
          "peers, SIGTERM and exit codes are consequences. Each LOG gets a verdict: failed, interrupted (time limit, "
          "preemption, requeue), healthy or unknown. With --job all LOGs together are one job's.\n\n"
          "What counts as evidence is data: rules in readable files (docs/formats/rules.md), all of them compiled to "
          "one "
          "automaton. Also without an error line: steps that became slow, losses that are not finite, no more "
          "progress. "
          "docs/model.md says how a cause is chosen.\n\n"
          "LOG is a file, a directory, a glob or - for standard input; plain, gzip, zstd or zip, told by content. "
          "Nothing "
          "leaves the machine, unless --llm names a server: then the lines that are left after everything common was "
          "taken out are sent there, and only where no rule and no past case gives an answer. The key of the server is "
          "taken from the environment (ORRERY_LLM_KEY).",
      .options =
          {{"--job", "", "all LOGs are one job's (ranks, nodes, kernels): one verdict"},
           {"--rules", "FILE",
            "rules of your own beside the built-in ones, or instead of those of the same id (may be repeated); the "
            "first is "
            "where rules of --llm are kept",
            Takes::file, true},
           {"--templates", "OUT.csv", "write line,id,template of every line", Takes::file},
           {"--follow", "",
            "read on while the log grows; ends when the job has failed, was interrupted or says that it is done, when "
            "nothing comes any more, or at "
            "SIGINT or SIGTERM with the verdict so far; a log that was truncated is read again from its start"},
           {"--settle", "S", "with --follow: so long must a log be quiet that ended badly (default: 5)", Takes::word},
           {"--hang-after", "S", "with --follow: no new line for so long is no progress (default: 1800)", Takes::word},
           {"--cases", "FILE.db", "a store of past cases: asked when no rule fires; cases that rules decide are added",
            Takes::file},
           {"--remember", "REASON", "add LOG to the store as a case of this reason", Takes::word},
           {"--job-name", "NAME",
            "what resubmissions of this job share: what its earlier runs said is filtered out (with --cases)",
            Takes::word},
           {"--llm", "URL", "ask the model behind this OpenAI-compatible server when nothing else gives an answer",
            Takes::word},
           {"--llm-model", "NAME", "its model", Takes::word},
           {"--llm-samples", "N", "how often it is asked; more than half must agree (default: 3)", Takes::word},
           {"--llm-timeout", "S", "how long all its samples of a log may take together (default: 60)", Takes::word},
           kCsv,
           kJson,
           kQuiet,
           kThreads,
           kHelp},
      .when_incomplete = "a verdict is unknown, or a log was damaged; the rest is answered",
      .examples = {{"Why did the sample job fail?", "orrery diagnose samples/failed-job --job"},
                   {"One log, for a script:",
                    "orrery diagnose samples/failed-job/rank-2.log --json | jq -r '.logs[0] | .reason, .restart'"}},
      .run = run_diagnose};
}

}  // namespace orrery
