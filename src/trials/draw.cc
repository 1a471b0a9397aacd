#include "trials/draw.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "base/parallel.h"
#include "trials/measured.h"

namespace orrery {
namespace {

constexpr TrialPolicy kBaseline{SimLoads::each_trial, SimMetrics::on_gpu};
constexpr TrialPolicy kSizePartitioner{SimLoads::each_trial, SimMetrics::after_barrier};

// The standard's distributions differ between libraries; the generator does not.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : bits_(seed) {}
  double even() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(even()));
    return radius * std::cos(2 * std::numbers::pi * even());
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(even() * static_cast<double>(n)); }

 private:
  std::mt19937_64 bits_;
};

std::int32_t judge_index(const EvalConfig& config, const std::string& name) {
  for (std::size_t i = 0; i < config.judges.size(); ++i)
    if (config.judges[i].name == name) return static_cast<std::int32_t>(i);
  return -1;
}

}  // namespace

BelievedUnits draw_units(const EvalConfig& config, std::uint64_t seed, const MeasuredByName& measured) {
  BelievedUnits out;
  const auto add = [&](EvalUnit u, std::string name) {
    u.dataset = static_cast<std::int32_t>(out.datasets.size());
    out.datasets.push_back(std::move(name));
    out.units.push_back(u);
  };
  std::vector<bool> lacks(config.datasets.size());  // a time of some model
  const auto unit_of = [&](const EvalDataset& d, const EvalModel& model) {
    EvalUnit u;
    u.items = d.items;
    MeasuredTimes known;
    if (const auto it = measured.find({model.name, d.name}); it != measured.end()) known = it->second;
    u.prepare_s = std::isnan(known.item_s) ? d.prepare_s : 0;  // measured times have it in them
    if (std::isnan(known.item_s)) known.item_s = d.item_s;
    u.item_s = std::isnan(known.item_s) ? config.prior.item_s : known.item_s;
    u.metric_s = std::isnan(d.metric_s) ? config.prior.metric_s : d.metric_s;
    if (!std::isnan(known.metric_item_s)) {
      const BelievedMetric m = believed_metric(known, static_cast<double>(d.items), config.trial.least_s);
      u.metric_s = m.seconds;
      u.metric_fixed_s = d.metric_by_item ? m.fixed_s : 0;
      u.metric_least_items = m.least_items;
    }
    if (config.scored_by_trials()) u.metric_s = u.metric_fixed_s = 0;
    u.judge = judge_index(config, d.judge);
    u.split = config.may_split(d);
    u.metric_by_item = d.metric_by_item;
    const bool no_metric = config.scored_by_trials();
    out.guessed = out.guessed || std::isnan(known.item_s);
    if (std::isnan(known.item_s) || (!no_metric && std::isnan(known.metric_item_s) && std::isnan(d.metric_s)))
      lacks[static_cast<std::size_t>(&d - config.datasets.data())] = true;
    out.start_s = std::max(out.start_s, known.item_fixed_s);
    return u;
  };
  for (const EvalDataset& d : config.datasets) add(unit_of(d, config.models.front()), d.name);
  Draws draws(seed);
  for (const DrawnDatasets& d : config.drawn) {
    for (std::int64_t i = 0; i < d.count; ++i) {
      const double busy = std::min(d.busy_most_s, d.busy_median_s * std::exp(d.busy_sigma * draws.normal()));
      const double share = d.metric_share_least + (d.metric_share_most - d.metric_share_least) * draws.even();
      EvalUnit u;
      u.metric_s = config.scored_by_trials() ? 0 : std::min(d.metric_most_s, share * busy);
      const double inference = busy - u.metric_s;
      u.items = std::max<std::int64_t>(1, std::llround(inference / d.item_s));
      u.item_s = inference / static_cast<double>(u.items);
      u.prepare_s = d.prepare_s;
      u.judge = judge_index(config, d.judge);
      u.split = config.may_split(d);
      u.metric_by_item = d.metric_by_item;
      add(u, d.name + "-" + std::to_string(i + 1));
    }
  }
  if (!config.drawn.empty())
    for (std::size_t i = out.units.size(); i > 1; --i) std::swap(out.units[i - 1], out.units[draws.below(i)]);
  const std::vector<EvalUnit> of_one = out.units;
  for (std::size_t m = 1; m < config.models.size(); ++m)
    for (EvalUnit u : of_one) {
      const auto dataset = static_cast<std::size_t>(u.dataset);  // those that are drawn come after those of the file
      if (dataset < config.datasets.size()) {
        u = unit_of(config.datasets[dataset], config.models[m]);
        u.dataset = static_cast<std::int32_t>(dataset);
      }
      u.checkpoint = static_cast<std::int32_t>(m);
      out.units.push_back(u);
    }
  out.defaulted = std::count(lacks.begin(), lacks.end(), true);
  return out;
}

std::vector<EvalUnit> draw_truth(const std::vector<EvalUnit>& believed, double error, std::uint64_t seed) {
  Draws draws(seed ^ 0x9e3779b97f4a7c15ULL);
  std::vector<EvalUnit> truth = believed;
  for (EvalUnit& u : truth) {
    const double factor = std::exp(error * draws.normal());
    u.item_s *= factor;
    u.prepare_s *= factor;
    u.metric_s *= factor;
    u.metric_fixed_s *= factor;
  }
  return truth;
}

double load_seconds(const SimCluster& cluster) {
  return *std::min_element(cluster.model_bytes.begin(), cluster.model_bytes.end()) / cluster.link_bytes_per_s;
}

SimCluster cluster_of(const EvalConfig& config, std::int64_t nodes) {
  SimCluster c;
  c.nodes = nodes;
  c.gpus_per_node = config.cluster.gpus_per_node;
  c.cpu_jobs = nodes * config.cluster.cpu_jobs_per_node;
  c.metrics_on_gpus = config.cluster.metrics_on_gpus;
  c.link_bytes_per_s = config.cluster.link_gbit_per_s * 1e9 / 8;
  for (const EvalModel& m : config.models) c.model_bytes.push_back(std::isnan(m.size_gb) ? 0 : m.size_gb * 1e9);
  c.start_s = config.trial.start_s;
  for (const EvalJudge& j : config.judges) c.judge_at_once.push_back(j.at_once);
  return c;
}

TrialShape shape_of(const EvalConfig& config, std::int64_t nodes) {
  TrialShape s;
  s.gpus = nodes * config.cluster.gpus_per_node;
  s.start_s = config.trial.start_s;
  s.least_s = config.trial.least_s;
  s.error = config.simulate.prior_error;
  s.several = config.inference.several;
  s.once = config.scored_by_trials();
  s.limit_s = config.trial.limit_s;
  return s;
}

PlannedEvals plan_evals(const EvalConfig& config, BelievedUnits believed) {
  PlannedEvals out;
  out.nodes = config.cluster.nodes;
  SimCluster cluster = cluster_of(config, out.nodes);
  TrialShape shape = shape_of(config, out.nodes);
  cluster.start_s += believed.start_s;
  shape.start_s += believed.start_s;
  if (believed.guessed) shape.error = std::max(kErrorOfGuesses, shape.error);
  const std::vector<EvalUnit>& units = believed.units;
  out.trials = plan_trials(units, shape);
  out.timeline = simulate_trials(out.trials, units, cluster, {});
  out.baseline_s = simulate_trials(one_trial_a_unit(units), units, cluster, kBaseline).makespan_s;
  out.size_partitioner_s = simulate_trials(size_partition(units), units, cluster, kSizePartitioner).makespan_s;
  out.terms = makespan_terms(units, shape.gpus, cluster.cpu_jobs, cluster.judge_at_once, load_seconds(cluster));
  if (cluster.metrics_on_gpus) {  // places of both kinds share what inference leaves of them
    const double gpus = static_cast<double>(shape.gpus), jobs = static_cast<double>(cluster.cpu_jobs);
    out.terms.cpu_jobs_s = (out.terms.gpus_s * gpus + out.terms.cpu_jobs_s * jobs) / (gpus + jobs);
  }
  out.bound_s = out.terms.bound_s();
  if (out.timeline.makespan_s > out.baseline_s) {
    // Where CPU jobs are scarce the order of metrics decides: one trial a dataset may be the better one here too.
    std::vector<EvalTrial> single = one_trial_a_unit(units);
    keep_below_limit(units, shape, single);
    EvalTimeline other = simulate_trials(single, units, cluster, {});
    if (other.makespan_s < out.timeline.makespan_s) {
      out.trials = std::move(single);
      out.timeline = std::move(other);
    }
  }
  for (const EvalUnit& u : units)
    if (const double s = shortest_trial_s(u, shape); s > shape.limit_s) {
      const std::string& name = believed.datasets[static_cast<std::size_t>(u.dataset)];
      const auto same =
          std::find_if(out.over_limit.begin(), out.over_limit.end(), [&](const auto& o) { return o.first == name; });
      if (same == out.over_limit.end())
        out.over_limit.emplace_back(name, s);
      else
        same->second = std::max(same->second, s);  // of another model
    }
  out.believed = std::move(believed);
  return out;
}

SimulatedRuns simulate_runs(const EvalConfig& config, std::int64_t nodes, unsigned threads) {
  SimulatedRuns out;
  out.nodes = nodes;
  out.gpus = nodes * config.cluster.gpus_per_node;
  out.runs.resize(static_cast<std::size_t>(config.simulate.seeds));
  const SimCluster cluster = cluster_of(config, nodes);
  const TrialShape shape = shape_of(config, nodes);
  for_each_row(out.runs.size(), worker_count(threads), [&](std::size_t i, unsigned) {
    SimulatedRun& run = out.runs[i];
    run.seed = i + 1;
    BelievedUnits believed = draw_units(config, run.seed);
    const std::vector<EvalUnit> truth = draw_truth(believed.units, config.simulate.prior_error, run.seed);
    std::vector<EvalTrial> planned = plan_trials(believed.units, shape);
    const std::vector<EvalTrial> single = one_trial_a_unit(believed.units);
    EvalTimeline ours = simulate_trials(planned, truth, cluster, {});
    EvalTimeline baseline = simulate_trials(single, truth, cluster, kBaseline);
    run.makespan_s = ours.makespan_s;
    run.baseline_s = baseline.makespan_s;
    run.loads_once_s = simulate_trials(single, truth, cluster, {SimLoads::once_a_node, SimMetrics::on_gpu}).makespan_s;
    run.metrics_on_cpu_s =
        simulate_trials(single, truth, cluster, {SimLoads::once_a_node, SimMetrics::on_cpu}).makespan_s;
    run.size_partitioner_s =
        simulate_trials(size_partition(believed.units), truth, cluster, kSizePartitioner).makespan_s;
    run.bound_s = makespan_bound(truth, out.gpus, load_seconds(cluster));
    for (const EvalUnit& u : truth) run.gpu_s += u.gpu_s();
    if (i != 0) return;
    out.first_units = std::move(believed);
    out.first_trials = std::move(planned);
    out.first = std::move(ours);
    out.first_baseline = std::move(baseline);
  });
  return out;
}

}  // namespace orrery
