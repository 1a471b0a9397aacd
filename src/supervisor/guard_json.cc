#include "supervisor/guard_json.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace orrery {
namespace {

using Json = nlohmann::json;

// JSON has no NaN.
Json number(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return x;
}
void read_number(const Json& v, double& x) {
  if (v.is_string()) {
    x = v == "nan" ? NAN : v == "inf" ? INFINITY : -INFINITY;
  } else {
    x = v.get<double>();
  }
}

// A field in one place for both ways: written where it is not the default, read where it is there.
class Out {
 public:
  template <class T>
  void operator()(const char* key, const T& value, const T& otherwise) {
    if (value != otherwise) json[key] = value;
  }
  void operator()(const char* key, double value, double otherwise) {
    if (value != otherwise) json[key] = number(value);  // NaN differs from everything
  }
  template <class E>
  void choice(const char* key, E value, E otherwise) {
    if (value != otherwise) json[key] = static_cast<int>(value);
  }
  Json json = Json::object();
};

class In {
 public:
  explicit In(const Json& from) : json(from) {}
  template <class T>
  void operator()(const char* key, T& value, const T& otherwise) {
    const auto it = json.find(key);
    value = it == json.end() ? otherwise : it->template get<T>();
  }
  void operator()(const char* key, double& value, double otherwise) {
    const auto it = json.find(key);
    value = otherwise;
    if (it != json.end()) read_number(*it, value);
  }
  template <class E>
  void choice(const char* key, E& value, E otherwise) {
    const auto it = json.find(key);
    value = it == json.end() ? otherwise : static_cast<E>(it->template get<int>());
  }
  const Json& json;
};

template <class Way, class P>
void policy_fields(Way& way, P& p) {
  const GuardPolicy d;
  way("dry_run", p.dry_run, d.dry_run);
  way("most_restarts", p.most_restarts, d.most_restarts);
  way("most_in_window", p.most_in_window, d.most_in_window);
  way("most_without_progress", p.most_without_progress, d.most_without_progress);
  way("window_s", p.window_s, d.window_s);
  way("backoff_first_s", p.backoff_first_s, d.backoff_first_s);
  way("backoff_factor", p.backoff_factor, d.backoff_factor);
  way("backoff_most_s", p.backoff_most_s, d.backoff_most_s);
  way.choice("same_failure", p.same_failure, d.same_failure);
  way.choice("unknown", p.unknown, d.unknown);
  way.choice("bad_loss", p.bad_loss, d.bad_loss);
  way.choice("straggler", p.straggler, d.straggler);
  way("rollback_margin", p.rollback_margin, d.rollback_margin);
  way("skip_extra", p.skip_extra, d.skip_extra);
  way("most_rollbacks", p.most_rollbacks, d.most_rollbacks);
  way("knows_checkpoints", p.knows_checkpoints, d.knows_checkpoints);
  way("check_nodes", p.check_nodes, d.check_nodes);
  way("needed_nodes", p.needed_nodes, d.needed_nodes);
  way("wait_nodes_s", p.wait_nodes_s, d.wait_nodes_s);
  way("save_wait_s", p.save_wait_s, d.save_wait_s);
  way("dump_s", p.dump_s, d.dump_s);
  way("stop_signal", p.stop_signal, d.stop_signal);
}

template <class Way, class F>
void finding_fields(Way& way, F& f) {
  const Finding d;
  way("verdict", f.verdict, d.verdict);
  way("reason", f.reason, d.reason);
  way("category", f.category, d.category);
  way("restart", f.restart, d.restart);
  way("text", f.text, d.text);
  way("at", f.at, d.at);
  way("where", f.where, d.where);
  way("node", f.node, d.node);
  way("rank", f.rank, d.rank);
  way("confidence", f.confidence, d.confidence);
  way("ended", f.ended, d.ended);
  way("sigterm", f.sigterm, d.sigterm);
}

template <class Way, class S>
void state_fields(Way& way, S& s) {
  const AttemptState d;
  way.choice("phase", s.phase, d.phase);
  way.choice("reason", s.reason, d.reason);
  way("detail", s.detail, d.detail);
  way("nodes", s.nodes, d.nodes);
  way("lost", s.lost, d.lost);
}

template <class Way, class E>
void event_fields(Way& way, E& e) {
  const GuardEvent d;
  way("attempt", e.attempt, d.attempt);
  way("step", e.step, d.step);
  way("loss", e.loss, d.loss);
  way("seconds", e.seconds, d.seconds);
  way("limit", e.limit, d.limit);
  way("rank", e.rank, d.rank);
  way("first", e.first, d.first);
  way("fatal", e.fatal, d.fatal);
  way("text", e.text, d.text);
  way("handle", e.handle, d.handle);
  way("node", e.node, d.node);
}

Json state_json(const AttemptState& s) {
  Out out;
  state_fields(out, s);
  if (s.exit_status) out.json["exit_status"] = *s.exit_status;
  if (s.signal) out.json["signal"] = *s.signal;
  if (s.time_left) out.json["time_left"] = *s.time_left;
  return std::move(out.json);
}

AttemptState state_of(const Json& v) {
  AttemptState s;
  In in(v);
  state_fields(in, s);
  if (v.contains("exit_status")) s.exit_status = v["exit_status"].get<int>();
  if (v.contains("signal")) s.signal = v["signal"].get<int>();
  if (v.contains("time_left")) s.time_left = v["time_left"].get<double>();
  return s;
}

}  // namespace

Json to_json_value(const GuardEvent& e) {
  Out out;
  out.json["kind"] = name_of(e.kind);
  out.json["at"] = e.at;
  event_fields(out, e);
  if (e.finding) {
    Out finding;
    finding_fields(finding, *e.finding);
    out.json["finding"] = std::move(finding.json);
  }
  if (e.state) out.json["state"] = state_json(*e.state);
  if (e.policy) {
    Out policy;
    policy_fields(policy, *e.policy);
    out.json["policy"] = std::move(policy.json);
  }
  for (const NodeReport& n : e.nodes) out.json["nodes"].push_back({n.node, n.verdict, n.why});
  for (const KnownCheckpoint& c : e.checkpoints) out.json["checkpoints"].push_back({c.id, c.step, c.serial});
  return std::move(out.json);
}

Json to_json_value(const Decision& d) {
  Json v{{"kind", d.kind}, {"text", d.text}};
  if (!d.evidence.empty()) v["evidence"] = d.evidence;
  for (const Action& a : d.actions) {
    Json action{{"do", name_of(a.kind)}};
    if (a.attempt != 0) action["attempt"] = a.attempt;
    if (!a.checkpoint.empty()) action["checkpoint"] = a.checkpoint;
    if (a.skip_to > a.skip_from) action["skip"] = {a.skip_from, a.skip_to};
    if (a.rollback) action["rollback"] = true;
    if (!a.node.empty()) action["node"] = a.node;
    if (!a.text.empty()) action["text"] = a.text;
    if (!a.exclude.empty()) action["exclude"] = a.exclude;
    if (a.kind == ActionKind::signal) action["signal"] = a.number;
    if (a.until != 0) action["until"] = a.until;
    v["actions"].push_back(std::move(action));
  }
  return v;
}

Result<GuardEvent> event_of(const Json& v) {
  GuardEvent e;
  try {
    const std::string kind = v.at("kind").get<std::string>();
    int k = 0;
    while (k <= static_cast<int>(EventKind::suspended) && name_of(static_cast<EventKind>(k)) != kind) ++k;
    if (k > static_cast<int>(EventKind::suspended)) return fail("an event of a kind that is not known: " + kind);
    e.kind = static_cast<EventKind>(k);
    e.at = v.at("at").get<Ns>();
    In in(v);
    event_fields(in, e);
    if (v.contains("finding")) {
      e.finding.emplace();
      In finding(v["finding"]);
      finding_fields(finding, *e.finding);
    }
    if (v.contains("state")) e.state = state_of(v["state"]);
    if (v.contains("policy")) {
      e.policy.emplace();
      In policy(v["policy"]);
      policy_fields(policy, *e.policy);
    }
    if (v.contains("nodes"))
      for (const Json& n : v["nodes"])
        e.nodes.push_back({n.at(0).get<std::string>(), n.at(1).get<std::string>(), n.at(2).get<std::string>()});
    if (v.contains("checkpoints"))
      for (const Json& c : v["checkpoints"])
        e.checkpoints.push_back(
            {c.at(0).get<std::string>(), c.at(1).get<std::int64_t>(), c.at(2).get<std::uint64_t>()});
  } catch (const Json::exception& error) {
    return fail(std::string("not an event: ") + error.what());
  }
  return e;
}

}  // namespace orrery
