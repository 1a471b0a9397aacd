#include "trials/config.h"

#include <cmath>
#include <filesystem>
#include <set>

#include "base/byte_source.h"
#include "trials/templates.h"
#include "trials/toml_fields.h"

namespace orrery {
namespace {

constexpr std::size_t kLargest = std::size_t{4} << 20;  // bytes of a file
constexpr double kDay = 86'400, kYear = 365 * kDay;
constexpr std::size_t kMostDatasets = 100'000;
constexpr const char* kNameRule =
    "ASCII letters, digits and signs, without blanks, commas and slashes, no dot or hyphen at the beginning";

bool is_name(std::string_view s) {
  if (s.empty() || s.size() > 200 || s.front() == '.' || s.front() == '-') return false;
  return std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isgraph(c) != 0 && c != '/' && c != ','; });
}

struct Reader {
  const std::string& where;
  EvalConfig& config;
  std::set<std::string> models, datasets, judges;

  tl::unexpected<Error> fail_at(const toml::node& n, std::string what, std::string advice = {}) const {
    std::replace_if(
        what.begin(), what.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
    return fail(std::move(what), where + ":" + std::to_string(n.source().begin.line), std::move(advice));
  }

  Status name(const toml::table& t, const char* kind, const std::string& text, std::set<std::string>& seen) const {
    if (text.empty()) return fail_at(t, std::string("a [[") + kind + "]] without a name", "name = \"...\"");
    if (!is_name(text)) return fail_at(*t.get("name"), "not a name: " + text, kNameRule);
    if (!seen.insert(text).second) return fail_at(t, std::string("a second ") + kind + " of the name " + text);
    return {};
  }

  Status evals(const toml::table& t) const {
    TomlFields f(t, where, "evals");
    f.text("name", config.name).text("state", config.state);
    if (auto ok = f.finish(); !ok) return ok;
    if (!is_name(config.name)) return fail_at(*t.get("name"), "not a name: " + config.name, kNameRule);
    return {};
  }

  Status cluster(const toml::table& t) const {
    EvalCluster& c = config.cluster;
    TomlFields f(t, where, "cluster");
    std::string runs = "local", full = "storage";
    f.text("runs", runs)
        .whole("nodes", c.nodes, 1, 10'000)
        .whole("gpus_per_node", c.gpus_per_node, 1, 1024)
        .whole("cpu_jobs_per_node", c.cpu_jobs_per_node, 1, 4096)
        .flag("metrics_on_gpus", c.metrics_on_gpus)
        .number("link_gbit_per_s", c.link_gbit_per_s, 1e-6, 1e6)
        .text("shared_memory", c.shared_memory)
        .number("shared_memory_gb", c.shared_memory_gb, 0, 1e6)
        .text("when_full", full)
        .number("load_bytes_per_s", c.load_bytes_per_s, 0, 1e15)
        .texts("slurm_options", c.slurm_options)
        .texts("slurm_cpu_options", c.slurm_cpu_options);
    if (auto ok = f.finish(); !ok) return ok;
    if (runs != "local" && runs != "slurm" && runs != "steps")
      return fail_at(t, "runs = " + runs + " is not known", "local, slurm or steps");
    if (full != "storage" && full != "stop")
      return fail_at(t, "when_full = " + full + " is not known", "storage or stop");
    if (c.shared_memory.empty()) return fail_at(t, "shared_memory names no directory");
    c.runs = runs == "local" ? RunsOn::local : runs == "slurm" ? RunsOn::slurm : RunsOn::steps;
    c.storage_when_full = full == "storage";
    if (c.nodes * c.gpus_per_node > 100'000) return fail_at(t, "more than 100,000 GPUs");
    return {};
  }

  Status trial(const toml::table& t) const {
    TrialTerms& r = config.trial;
    TomlFields f(t, where, "trial");
    f.number("start_s", r.start_s, 0, kDay)
        .number("least_s", r.least_s, 0.001, kYear)
        .number("limit_s", r.limit_s, 0.1, kYear)
        .whole("retries", r.retries, 0, 1000);
    return f.finish();
  }

  Status model(const toml::table& t) {
    EvalModel m;
    TomlFields f(t, where, "model");
    std::string complete = "automatic";
    f.text("name", m.name)
        .number("size_gb", m.size_gb, 1e-9, 1e6)
        .text("checkpoints", m.checkpoints)
        .text("only", m.only)
        .text("complete", complete)
        .text("complete_marker", m.complete_marker)
        .number("settle_s", m.settle_s, 0, kDay);
    if (auto ok = f.finish(); !ok) return ok;
    if (auto ok = name(t, "model", m.name, models); !ok) return ok;
    constexpr std::pair<std::string_view, CompleteRule> kRules[] = {{"automatic", CompleteRule::automatic},
                                                                    {"manifest", CompleteRule::manifest},
                                                                    {"safetensors", CompleteRule::safetensors},
                                                                    {"marker", CompleteRule::marker},
                                                                    {"settled", CompleteRule::settled}};
    const auto* rule = std::find_if(std::begin(kRules), std::end(kRules), [&](auto r) { return r.first == complete; });
    if (rule == std::end(kRules))
      return fail_at(t, "complete = " + complete + " is not known",
                     "automatic, manifest, safetensors, marker or settled");
    m.complete = rule->second;
    if ((m.complete == CompleteRule::marker) == m.complete_marker.empty())
      return fail_at(t, "complete = \"marker\" and complete_marker = \"NAME\" belong together");
    config.models.push_back(std::move(m));
    return {};
  }

  Status dataset(const toml::table& t) {
    EvalDataset d;
    TomlFields f(t, where, "dataset");
    f.text("name", d.name)
        .text("task", d.task)
        .text("results", d.results)
        .whole("items", d.items, 1, 1'000'000'000)
        .number("item_s", d.item_s, 0, kDay)
        .number("prepare_s", d.prepare_s, 0, kDay)
        .number("metric_s", d.metric_s, 0, kYear)
        .text("judge", d.judge)
        .flag("split", d.split)
        .flag("metric_by_item", d.metric_by_item);
    if (auto ok = f.finish(); !ok) return ok;
    if (auto ok = name(t, "dataset", d.name, datasets); !ok) return ok;
    if (d.task.empty()) d.task = d.name;
    if (d.results.empty()) d.results = d.name;
    config.datasets.push_back(std::move(d));
    return {};
  }

  Status judge(const toml::table& t) {
    EvalJudge j;
    TomlFields f(t, where, "judge");
    f.text("name", j.name).whole("at_once", j.at_once, 1, 100'000);
    if (auto ok = f.finish(); !ok) return ok;
    if (auto ok = name(t, "judge", j.name, judges); !ok) return ok;
    config.judges.push_back(std::move(j));
    return {};
  }

  Status draw(const toml::table& t) {
    DrawnDatasets d;
    TomlFields f(t, where, "drawn");
    f.text("name", d.name)
        .whole("count", d.count, 1, 10'000)
        .number("busy_median_s", d.busy_median_s, 0.001, kYear)
        .number("busy_sigma", d.busy_sigma, 0, 5)
        .number("busy_most_s", d.busy_most_s, 0.001, kYear)
        .number("item_s", d.item_s, 1e-6, kDay)
        .number("prepare_s", d.prepare_s, 0, kDay)
        .number("metric_most_s", d.metric_most_s, 0, kYear)
        .text("judge", d.judge)
        .flag("split", d.split)
        .flag("metric_by_item", d.metric_by_item);
    if (const toml::node* n = f.node("metric_share")) {
      const toml::array* both = n->as_array();
      const auto at = [&](std::size_t i) { return both->get(i)->value<double>().value_or(kNotKnown); };
      if (both != nullptr && both->size() == 2) {
        d.metric_share_least = at(0);
        d.metric_share_most = at(1);
      } else {
        d.metric_share_least = d.metric_share_most =
            both == nullptr ? n->value<double>().value_or(kNotKnown) : kNotKnown;
      }
      if (!(d.metric_share_least >= 0 && d.metric_share_least <= d.metric_share_most && d.metric_share_most <= 1))
        f.refuse(*n, "metric_share is neither a share from 0 to 1 nor [least, most]");
    }
    if (auto ok = f.finish(); !ok) return ok;
    if (auto ok = name(t, "drawn", d.name, datasets); !ok) return ok;
    if (d.busy_median_s <= 0) return fail_at(t, "[drawn] has no busy_median_s");
    if (d.busy_most_s <= 0) d.busy_most_s = std::numeric_limits<double>::infinity();
    config.drawn.push_back(std::move(d));
    return {};
  }

  Status command(const toml::table& t, const char* table, EvalCommand& c, bool metric) const {
    TomlFields f(t, where, table);
    std::string ignored;
    const std::string known_rule = c.dumped;
    f.texts("command", c.argv);
    if (metric) {
      f.text("scores_file", c.scores_file).text("scores_at", c.scores_at).number("limit_s", c.limit_s, 0.1, kYear);
    } else {
      f.text("template", ignored).text("dumped", c.dumped).flag("splits", c.splits).flag("several", c.several);
      if (c.dumped != known_rule) c.dumped_directories = 0;
    }
    return f.finish();
  }

  Status prior(const toml::table& t) const {
    TomlFields f(t, where, "prior");
    f.number("item_s", config.prior.item_s, 1e-9, kDay).number("metric_s", config.prior.metric_s, 0, kYear);
    return f.finish();
  }

  Status simulate(const toml::table& t) const {
    SimulateTerms& s = config.simulate;
    TomlFields f(t, where, "simulate");
    f.whole("seeds", s.seeds, 1, 100'000).number("prior_error", s.prior_error, 0, 3);
    if (const toml::node* n = f.node("nodes")) {
      const toml::array* list = n->as_array();
      for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
        const std::int64_t count = list->get(i)->value<std::int64_t>().value_or(0);
        if (!list->get(i)->is_integer() || count < 1 || count > 10'000) f.refuse(*n, "nodes holds no number of nodes");
        s.nodes.push_back(count);
      }
      if (list == nullptr || list->empty() || list->size() > 100) f.refuse(*n, "nodes is not a list of numbers");
    }
    return f.finish();
  }

  // Tables that may stand several times: [[dataset]].
  template <class Each>
  Status each(const toml::node& n, const std::string& key, Each&& read) {
    const toml::array* list = n.as_array();
    if (list == nullptr) return fail_at(n, "[" + key + "] may stand several times", "[[" + key + "]]");
    if (list->size() > kMostDatasets) return fail_at(n, "more than 100,000 tables [[" + key + "]]");
    for (const toml::node& one : *list) {
      const toml::table* t = one.as_table();
      if (t == nullptr) return fail_at(one, key + " holds something else than tables", "[[" + key + "]]");
      if (auto ok = read(*t); !ok) return ok;
    }
    return {};
  }

  // A template's commands first: what the file says itself wins.
  Status template_of(const toml::table& file) const {
    const toml::table* t = file["inference"].as_table();
    const toml::node* n = t == nullptr ? nullptr : t->get("template");
    if (n == nullptr) return {};
    const auto* name = n->as_string();
    if (name == nullptr) return fail_at(*n, "template is not a text");
    const EvalTemplate* known = find_eval_template(name->get());
    if (known == nullptr)
      return fail_at(*n, "no template of the name " + name->get(), "one of " + eval_template_names());
    config.inference = known->inference;
    config.inference.suite = known->name;
    config.metric = known->metric;
    return {};
  }

  Status read(const toml::table& file) {
    if (auto ok = template_of(file); !ok) return ok;
    constexpr std::string_view kTables[] = {"evals", "cluster",   "trial",  "model", "dataset", "judge",
                                            "drawn", "inference", "metric", "prior", "simulate"};
    const std::vector<std::string_view> known(std::begin(kTables), std::end(kTables));
    for (const auto& [k, n] : file) {
      const std::string key(k.str());
      Status ok;
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        const std::string_view near = closest(key, known);
        return fail_at(n, "unknown table [" + key + "]",
                       near.empty() ? std::string() : "did you mean [" + std::string(near) + "]?");
      }
      if (key == "model") {
        ok = each(n, key, [&](const toml::table& t) { return model(t); });
      } else if (key == "dataset") {
        ok = each(n, key, [&](const toml::table& t) { return dataset(t); });
      } else if (key == "judge") {
        ok = each(n, key, [&](const toml::table& t) { return judge(t); });
      } else if (key == "drawn") {
        ok = each(n, key, [&](const toml::table& t) { return draw(t); });
      } else {
        const toml::table* t = n.as_table();
        if (t == nullptr) return fail_at(n, key + " is not a table", "[" + key + "]");
        ok = key == "evals"       ? evals(*t)
             : key == "cluster"   ? cluster(*t)
             : key == "trial"     ? trial(*t)
             : key == "inference" ? command(*t, "inference", config.inference, false)
             : key == "metric"    ? command(*t, "metric", config.metric, true)
             : key == "prior"     ? prior(*t)
                                  : simulate(*t);
      }
      if (!ok) return ok;
    }
    return finish(file);
  }

  Status finish(const toml::table& file) const {
    if (config.datasets.empty() && config.drawn.empty())
      return fail_at(file, "nothing to evaluate on", "[[dataset]] with name and items");
    if (config.models.empty()) return fail_at(file, "nothing to evaluate", "[[model]] with name and size_gb");
    for (const EvalDataset& d : config.datasets)
      if (!d.judge.empty() && config.judge(d.judge) == nullptr)
        return fail_at(file, "dataset " + d.name + " names a judge that is not there: " + d.judge,
                       "[[judge]] with name and at_once");
    for (const DrawnDatasets& d : config.drawn)
      if (!d.judge.empty() && config.judge(d.judge) == nullptr)
        return fail_at(file, "drawn " + d.name + " names a judge that is not there: " + d.judge,
                       "[[judge]] with name and at_once");
    return {};
  }
};

}  // namespace

const EvalJudge* EvalConfig::judge(std::string_view wanted) const {
  for (const EvalJudge& j : judges)
    if (j.name == wanted) return &j;
  return nullptr;
}

Result<EvalConfig> parse_eval_config(std::string_view text, const std::string& where) {
  if (text.size() > kLargest) return fail("too large for a configuration", where, "4 MiB at most");
  const auto parsed = toml_text::parse(text);
  if (!parsed) return fail(parsed.error().what, where + ":" + std::to_string(parsed.error().line));
  EvalConfig config;
  config.where = where;
  const std::filesystem::path parent = std::filesystem::path(where).parent_path();
  config.directory = parent.empty() ? "." : parent.string();
  Reader reader{where, config, {}, {}, {}};
  if (auto ok = reader.read(*parsed); !ok) return tl::unexpected(ok.error());
  if (config.state.empty()) config.state = "orrery-evals-" + config.name;
  return config;
}

Result<EvalConfig> read_eval_config(const std::string& path) {
  const auto text = read_at_most(path, kLargest + 1);
  if (!text) return tl::unexpected(text.error());
  return parse_eval_config(*text, path);
}

Status check_runnable(const EvalConfig& config) {
  if (!config.drawn.empty())
    return fail("[[drawn]] datasets are made up and cannot be run", config.where, "orrery evals simulate");
  if (config.inference.argv.empty() || config.inference.argv.front().empty())
    return fail("no command for inference", config.where, "[inference] command = [...] or template = \"...\"");
  for (const EvalModel& m : config.models)
    if (m.checkpoints.empty())
      return fail("model " + m.name + " names no directory of checkpoints", config.where, "checkpoints = \"...\"");
  return {};
}

}  // namespace orrery
