#include "supervisor/guard_options.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <functional>
#include <variant>

#include "base/closest.h"
#include "base/number_text.h"
#include "base/toml.h"
#include "processes/find.h"
#include "supervisor/tell.h"

namespace orrery {
namespace {

struct Limits {
  double least = 0, most = 1e9;
};

struct Names {  // of an enumeration, in order
  std::vector<std::string_view> names;
  std::function<void(std::size_t)> set;
};

struct Key {
  std::string_view table, key;
  std::variant<std::string*, std::vector<std::string>*, double*, std::int64_t*, bool*, int*, Names> to;
  Limits limits{};
};

template <class E>
Names choice(E& to, std::vector<std::string_view> names) {
  return {std::move(names), [&to](std::size_t i) { to = static_cast<E>(i); }};
}

std::vector<Key> keys_of(GuardOptions& o) {
  GuardPolicy& p = o.policy;
  WatchPolicy& w = o.watch;
  return {
      {"job", "name", &o.name},
      {"job", "command", &o.command},
      {"job", "on_restart", &o.on_restart},
      {"job", "on_rollback", &o.on_rollback},
      {"job", "environment", &o.environment},
      {"job", "directory", &o.directory},
      {"job", "state", &o.state},
      {"job", "time_limit_s", &o.time_limit_s},
      {"job", "poll_s", &o.poll_s, {0.01, 60}},
      {"job", "dry_run", &p.dry_run},
      {"progress", "heartbeat", &o.heartbeat},
      {"progress", "socket", &o.socket},
      {"progress", "start_grace_s", &w.start_grace_s, {0, 1e9}},
      {"progress", "hang_floor_s", &w.hang_floor_s, {0.1, 1e9}},
      {"progress", "hang_factor", &w.hang_factor, {1, 1e6}},
      {"progress", "first_steps", &w.first_steps, {0, 1e6}},
      {"progress", "first_factor", &w.first_factor, {1, 1e6}},
      {"progress", "save_grace_s", &w.save_grace_s},
      {"progress", "chatter_factor", &w.chatter_factor, {1, 1e6}},
      {"progress", "linger_s", &w.linger_s},
      {"progress", "lost_s", &w.lost_s},
      {"progress", "record_s", &o.progress_s},
      {"loss", "action", choice(p.bad_loss, {"report", "rollback"})},
      {"loss", "nan_steps", &w.nan_steps, {1, 1e6}},
      {"loss", "spike_factor", &w.spike_factor, {1.01, 1e6}},
      {"loss", "spike_deviations", &w.spike_deviations, {0, 1e6}},
      {"loss", "spike_floor", &w.spike_floor, {0, 1e6}},
      {"loss", "spike_steps", &w.spike_steps, {1, 1e6}},
      {"loss", "spike_window", &w.spike_window, {4, 1e5}},
      {"loss", "margin_steps", &p.rollback_margin, {0, 1e9}},
      {"loss", "skip_extra", &p.skip_extra, {0, 1e9}},
      {"loss", "most_rollbacks", &p.most_rollbacks, {0, 1e6}},
      {"straggler", "action", choice(p.straggler, {"report", "replace"})},
      {"straggler", "share", &w.straggler_share, {0.01, 1}},
      {"straggler", "slower_factor", &w.slower_factor, {1.01, 1e6}},
      {"straggler", "steps", &w.straggler_steps, {2, 1e5}},
      {"restart", "most", &p.most_restarts, {0, 1e9}},
      {"restart", "window_s", &p.window_s},
      {"restart", "most_in_window", &p.most_in_window, {0, 1e9}},
      {"restart", "most_without_progress", &p.most_without_progress, {0, 1e9}},
      {"restart", "backoff_first_s", &p.backoff_first_s},
      {"restart", "backoff_factor", &p.backoff_factor, {1, 1000}},
      {"restart", "backoff_most_s", &p.backoff_most_s},
      {"restart", "same_failure", choice(p.same_failure, {"stop", "other-nodes"})},
      {"restart", "unknown", choice(p.unknown, {"stop", "restart"})},
      {"nodes", "names", &o.nodes},
      {"nodes", "needed", &p.needed_nodes, {0, 1e6}},
      {"nodes", "wait_s", &p.wait_nodes_s},
      {"nodes", "check", &p.check_nodes},
      {"nodes", "check_command", &o.check_command},
      {"nodes", "check_timeout_s", &o.check_timeout_s, {0.1, 1e6}},
      {"slurm", "used", &o.slurm.used},
      {"slurm", "nodes", &o.slurm.nodes},
      {"slurm", "tasks_per_node", &o.slurm.tasks_per_node, {1, 1024}},
      {"slurm", "partition", &o.slurm.partition},
      {"slurm", "sbatch", &o.slurm.sbatch},
      {"slurm", "srun", &o.slurm.srun},
      {"slurm", "stale_s", &o.slurm.stale_s, {1, 1e6}},
      {"slurm", "lost_after_s", &o.slurm.lost_after_s, {2, 1e6}},
      {"checkpoints", "directory", &o.checkpoints},
      {"checkpoints", "verify", &o.verify},
      {"stop", "signal", &p.stop_signal, {1, 64}},
      {"stop", "save_wait_s", &p.save_wait_s},
      {"stop", "stacks_s", &p.dump_s},
      {"stop", "settle_s", &o.settle_s},
      {"stop", "time_limit_margin_s", &o.time_limit_margin_s},
      {"tell", "metrics", &o.metrics},
      {"tell", "metrics_file", &o.metrics_file},
      {"tell", "webhook", &o.webhook},
      {"tell", "webhook_timeout_s", &o.webhook_timeout_s, {0.1, 600}},
  };
}

class Reader {
 public:
  Reader(const std::string& where, GuardOptions& options) : where_(where), keys_(keys_of(options)) {}

  Status run(const toml::table& all) {
    for (const auto& [name, node] : all) {
      const toml::table* const table = node.as_table();
      const std::vector<std::string_view> tables = tables_known();
      if (table == nullptr || std::find(tables.begin(), tables.end(), name.str()) == tables.end())
        return unknown(node, "[" + std::string(name.str()) + "]", name.str(), tables);
      for (const auto& [key, value] : *table)
        if (Status ok = put(name.str(), key.str(), value); !ok) return ok;
    }
    return {};
  }

 private:
  std::vector<std::string_view> tables_known() const {
    std::vector<std::string_view> names;
    for (const Key& k : keys_)
      if (names.empty() || names.back() != k.table) names.push_back(k.table);
    return names;
  }

  tl::unexpected<Error> at(const toml::node& node, std::string what, std::string advice = {}) const {
    return fail(std::move(what), fmt::format("{}:{}", where_, node.source().begin.line), std::move(advice));
  }

  tl::unexpected<Error> unknown(const toml::node& node, const std::string& shown, std::string_view name,
                                const std::vector<std::string_view>& known) const {
    const std::string_view near = closest(name, known);
    return at(node, "not known: " + shown,
              near.empty() ? "docs/guard.md lists the keys" : "did you mean " + std::string(near) + "?");
  }

  Status put(std::string_view table, std::string_view key, const toml::node& value) {
    std::vector<std::string_view> known;
    for (Key& k : keys_) {
      if (k.table != table) continue;
      if (k.key == key) return std::visit([&](auto& to) { return set(k, to, value); }, k.to);
      known.push_back(k.key);
    }
    return unknown(value, fmt::format("{} in [{}]", key, table), key, known);
  }

  tl::unexpected<Error> kind(const Key& k, const toml::node& value, std::string_view what) const {
    return at(value, fmt::format("{} in [{}] is not {}", k.key, k.table, what));
  }
  Status within(const Key& k, const toml::node& value, double x) const {
    if (x >= k.limits.least && x <= k.limits.most) return {};
    return at(value, fmt::format("{} in [{}] is not from {:g} to {:g}", k.key, k.table, k.limits.least, k.limits.most));
  }

  Status set(const Key& k, std::string* to, const toml::node& value) const {
    if (!value.is_string()) return kind(k, value, "a text");
    *to = **value.as_string();
    return {};
  }
  Status set(const Key& k, std::vector<std::string>* to, const toml::node& value) const {
    if (!value.is_array()) return kind(k, value, "a list of texts");
    to->clear();
    for (const toml::node& one : *value.as_array()) {
      if (!one.is_string()) return kind(k, one, "a list of texts");
      to->push_back(**one.as_string());
    }
    return {};
  }
  Status set(const Key& k, double* to, const toml::node& value) const {
    const auto x = value.is_number() ? value.value<double>() : std::nullopt;
    if (!x) return kind(k, value, "a number");
    if (Status ok = within(k, value, *x); !ok) return ok;
    *to = *x;
    return {};
  }
  template <class Int>
    requires std::is_integral_v<Int>
  Status whole(const Key& k, Int* to, const toml::node& value) const {
    if (!value.is_integer()) return kind(k, value, "a whole number");
    const std::int64_t x = **value.as_integer();
    if (Status ok = within(k, value, static_cast<double>(x)); !ok) return ok;
    *to = static_cast<Int>(x);
    return {};
  }
  Status set(const Key& k, std::int64_t* to, const toml::node& value) const { return whole(k, to, value); }
  Status set(const Key& k, int* to, const toml::node& value) const { return whole(k, to, value); }
  Status set(const Key& k, bool* to, const toml::node& value) const {
    if (!value.is_boolean()) return kind(k, value, "true or false");
    *to = **value.as_boolean();
    return {};
  }
  Status set(const Key& k, const Names& to, const toml::node& value) const {
    std::string all;
    for (std::size_t i = 0; i < to.names.size(); ++i) {
      if (value.is_string() && **value.as_string() == to.names[i]) {
        to.set(i);
        return {};
      }
      all += (i == 0 ? "" : ", ") + std::string(to.names[i]);
    }
    return kind(k, value, "one of " + all);
  }

  const std::string& where_;
  std::vector<Key> keys_;
};

}  // namespace

Status read_guard_options(std::string_view text, const std::string& where, GuardOptions& options) {
  auto table = toml_text::parse(text);
  if (!table) return fail(table.error().what, fmt::format("{}:{}", where, table.error().line));
  return Reader(where, options).run(*table);
}

std::string replaced(const std::string& argument, const Placeholders& values) {
  std::string out;
  for (std::size_t i = 0; i < argument.size();) {
    bool found = false;
    if (argument[i] == '{') {
      for (const auto& [name, value] : values) {
        if (argument.compare(i + 1, name.size(), name) != 0 || argument.compare(i + 1 + name.size(), 1, "}") != 0)
          continue;
        out += value;
        i += name.size() + 2;
        found = true;
        break;
      }
    }
    if (!found) out += argument[i++];
  }
  return out;
}

Status check_options(const GuardOptions& o) {
  if (o.command.empty()) return fail("no command to guard", "guard", "orrery guard [OPTION...] -- COMMAND...");
  if (o.state.empty()) return fail("no state directory", "--state");
  if (o.slurm.used) {
    const std::string& n = o.slurm.nodes;
    std::int64_t least = 0, most = 0;
    const std::size_t dash = std::min(n.find('-'), n.size());
    const bool read = read_int(n.substr(0, dash), least) == NumberState::ok;
    most = least;
    if (!read || least < 1 || (dash < n.size() && read_int(n.substr(dash + 1), most) != NumberState::ok) ||
        most < least)
      return fail("not a number of nodes: " + n, "nodes in [slurm]", "for example 4, or 3-4");
    for (const auto* words : {&o.slurm.sbatch, &o.slurm.srun})
      for (const std::string& word : *words)
        if (word.size() < 2 || word.front() != '-')
          return fail("not an option in one word: " + word, "[slurm]", "as in --time=600");
    if (o.time_limit_s > 0) return fail("is of local jobs", "--time-limit", "Slurm's own: --sbatch=--time=MINUTES");
  }
  for (const std::string& line : o.environment)
    if (line.find('=') == std::string::npos || line.front() == '=')
      return fail("not NAME=VALUE: " + line, "environment in [job]");
  if (o.policy.needed_nodes > static_cast<std::int64_t>(o.nodes.size()) && !o.nodes.empty())
    return fail(fmt::format("{} nodes needed, {} named", o.policy.needed_nodes, o.nodes.size()), "needed in [nodes]");
  if (o.policy.needed_nodes > 1 && o.nodes.empty() && !o.slurm.used)
    return fail(fmt::format("{} nodes needed, and there is this machine alone", o.policy.needed_nodes),
                "needed in [nodes]", "name them (names in [nodes]), or --slurm");
  if (!o.webhook.empty()) return check_webhook_url(o.webhook);
  return {};
}

Status check_program(const GuardOptions& o) {
  const std::string word = replaced(o.command.front(), {{"state", o.state}});
  for (const std::string_view late :
       {"{checkpoint}", "{skip_from}", "{skip_to}", "{attempt}", "{heartbeat}", "{nodes}"})
    if (word.find(late) != std::string::npos) return {};
  const std::string from = o.directory.empty() ? "." : o.directory;
  struct stat file {};
  if (::stat(from.c_str(), &file) != 0 || !S_ISDIR(file.st_mode))
    return fail("no such directory", o.directory, "directory in [job] is where the command runs");
  if (!find_program(word, from).empty()) return {};
  const std::string path = word.starts_with('/') ? word : from + "/" + word;
  const bool there = word.find('/') != std::string::npos && ::stat(path.c_str(), &file) == 0;
  return fail(there ? "not a program that may be run: " + word : "no such program: '" + word + "'", "guard",
              "after --: the name of a program on PATH, or its path");
}

}  // namespace orrery
