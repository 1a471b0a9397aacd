#include "trials/simulate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <tuple>

namespace orrery {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::size_t kNoTrial = static_cast<std::size_t>(-1);

class Simulation {
 public:
  Simulation(const std::vector<EvalTrial>& trials, const std::vector<EvalUnit>& truth, const SimCluster& cluster,
             TrialPolicy policy)
      : trials_(trials), truth_(truth), cluster_(cluster), policy_(policy) {
    out_.trials.resize(trials.size());
    gpus_.assign(static_cast<std::size_t>(cluster.nodes * cluster.gpus_per_node), kNoTrial);
    links_.resize(static_cast<std::size_t>(cluster.nodes));
    for (std::int64_t i = 0; i < cluster.cpu_jobs; ++i) free_lanes_.insert(static_cast<std::int32_t>(i));
    ready_.resize(1 + cluster.judge_at_once.size());
    judges_.assign(cluster.judge_at_once.size(), 0);
    left_.assign(truth.size(), 0);
    for (const EvalTrial& t : trials)
      for (const TrialPiece& p : t.pieces) left_[p.unit] += p.items;
  }

  EvalTimeline run() {
    for (;;) {
      start_trials();
      start_metrics();
      double at = events_.empty() ? kNever : events_.top().at;
      std::size_t link = links_.size();
      for (std::size_t n = 0; n < links_.size(); ++n) {
        const double end = link_end(n);
        if (end >= at) continue;
        at = end;
        link = n;
      }
      if (at == kNever) break;
      pass(at);
      if (link < links_.size()) {
        end_load(link);
      } else {
        const Event e = events_.top();
        events_.pop();
        handle(e);
      }
    }
    out_.makespan_s = now_;
    return std::move(out_);
  }

 private:
  enum class Kind : std::uint8_t { piece, trial, metric };
  struct Event {
    double at;
    std::uint64_t id;  // order of events at the same time
    Kind kind;
    std::size_t gpu_or_metric, piece;
    bool operator>(const Event& o) const { return std::tie(at, id) > std::tie(o.at, o.id); }
  };
  struct Load {
    double bytes_left;
    std::size_t gpu;          // each_trial: whose; else kNoTrial
    std::int32_t checkpoint;  // once_a_node: of which
    std::size_t row;          // once_a_node: of out_.loads
  };
  struct Link {
    std::vector<Load> loads;
    std::map<std::int32_t, bool> resident;  // checkpoint -> read whole
    std::vector<std::size_t> waiting_gpus;  // for a load of the node
  };
  struct Ready {
    double metric_s;
    std::uint64_t id;
    std::size_t unit;
    std::int64_t items;
    // Longest first, then first come.
    bool operator<(const Ready& o) const { return metric_s != o.metric_s ? metric_s > o.metric_s : id < o.id; }
  };

  double bytes_of(std::int32_t checkpoint) const { return cluster_.model_bytes[static_cast<std::size_t>(checkpoint)]; }
  std::size_t node_of(std::size_t gpu) const { return gpu / static_cast<std::size_t>(cluster_.gpus_per_node); }

  void start_trials() {
    const auto nodes = static_cast<std::size_t>(cluster_.nodes);
    for (std::size_t i = 0; i < gpus_.size() && next_ < trials_.size(); ++i) {
      const std::size_t gpu = (i % nodes) * static_cast<std::size_t>(cluster_.gpus_per_node) + i / nodes;
      if (gpus_[gpu] != kNoTrial) continue;
      gpus_[gpu] = next_++;
      TrialSpan& span = out_.trials[gpus_[gpu]];
      span.node = static_cast<std::int32_t>(node_of(gpu));
      span.gpu = static_cast<std::int32_t>(gpu % static_cast<std::size_t>(cluster_.gpus_per_node));
      span.start_s = now_;
      load(gpu);
    }
    if (!cluster_.metrics_on_gpus || policy_.metrics != SimMetrics::on_cpu || next_ < trials_.size()) return;
    for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu)
      if (gpus_[gpu] == kNoTrial && given_.insert(gpu).second)
        free_lanes_.insert(static_cast<std::int32_t>(cluster_.cpu_jobs + static_cast<std::int64_t>(gpu)));
  }

  void load(std::size_t gpu) {
    Link& link = links_[node_of(gpu)];
    const std::int32_t checkpoint = trials_[gpus_[gpu]].checkpoint;
    if (policy_.loads == SimLoads::each_trial) {
      link.loads.push_back({bytes_of(checkpoint), gpu, checkpoint, 0});
      return;
    }
    const auto there = link.resident.find(checkpoint);
    if (there != link.resident.end() && there->second) {
      loaded(gpu);
      return;
    }
    link.waiting_gpus.push_back(gpu);
    if (there != link.resident.end()) return;
    link.resident[checkpoint] = false;
    link.loads.push_back({bytes_of(checkpoint), kNoTrial, checkpoint, out_.loads.size()});
    out_.loads.push_back({static_cast<std::int32_t>(node_of(gpu)), checkpoint, now_, now_});
  }

  double link_end(std::size_t n) const {
    double least = kNever;
    for (const Load& l : links_[n].loads) least = std::min(least, l.bytes_left);
    if (least == kNever) return kNever;
    return now_ + std::max(0.0, least) * static_cast<double>(links_[n].loads.size()) / cluster_.link_bytes_per_s;
  }

  void pass(double to) {
    for (Link& link : links_)
      for (Load& l : link.loads)
        l.bytes_left -= (to - now_) * cluster_.link_bytes_per_s / static_cast<double>(link.loads.size());
    now_ = to;
  }

  void end_load(std::size_t n) {
    Link& link = links_[n];
    const auto done = std::min_element(link.loads.begin(), link.loads.end(),
                                       [](const Load& a, const Load& b) { return a.bytes_left < b.bytes_left; });
    const Load load = *done;
    link.loads.erase(done);
    if (load.gpu != kNoTrial) {
      loaded(load.gpu);
      return;
    }
    out_.loads[load.row].end_s = now_;
    link.resident[load.checkpoint] = true;
    std::vector<std::size_t> still;
    for (const std::size_t gpu : link.waiting_gpus) {
      if (trials_[gpus_[gpu]].checkpoint == load.checkpoint) {
        loaded(gpu);
      } else {
        still.push_back(gpu);
      }
    }
    link.waiting_gpus = std::move(still);
  }

  void loaded(std::size_t gpu) {
    const std::size_t t = gpus_[gpu];
    out_.trials[t].loaded_s = now_;
    double at = now_ + cluster_.start_s;
    for (std::size_t p = 0; p < trials_[t].pieces.size(); ++p) {
      const TrialPiece& piece = trials_[t].pieces[p];
      const EvalUnit& unit = truth_[piece.unit];
      at += gpu_seconds(unit, piece);
      out_.trials[t].piece_end_s.push_back(at);
      if (policy_.metrics == SimMetrics::on_gpu) at += metric_seconds(unit, piece);
      events_.push({at, ids_++, Kind::piece, gpu, p});
    }
    events_.push({at, ids_++, Kind::trial, gpu, 0});
  }

  void handle(const Event& e) {
    if (e.kind == Kind::metric) {
      const MetricSpan& m = out_.metrics[e.gpu_or_metric];
      free_lanes_.insert(m.lane);
      if (const std::int32_t judge = truth_[m.unit].judge; judge >= 0) --judges_[static_cast<std::size_t>(judge)];
      return;
    }
    const std::size_t t = gpus_[e.gpu_or_metric];
    if (e.kind == Kind::trial) {
      out_.trials[t].end_s = now_;
      gpus_[e.gpu_or_metric] = kNoTrial;
      ++ended_;
      return;
    }
    if (policy_.metrics == SimMetrics::on_gpu) return;
    const TrialPiece& piece = trials_[t].pieces[e.piece];
    const EvalUnit& unit = truth_[piece.unit];
    left_[piece.unit] -= piece.items;
    if (unit.metric_by_item) {
      ready(piece.unit, piece.items);
    } else if (left_[piece.unit] == 0) {
      ready(piece.unit, unit.items);
    }
  }

  void ready(std::size_t unit, std::int64_t items) {
    const double s = metric_seconds(truth_[unit], {unit, 0, items});
    if (s > 0) ready_[static_cast<std::size_t>(truth_[unit].judge + 1)].insert({s, ids_++, unit, items});
  }

  // Free lanes go to the longest of those whose judge, if any, has a place: lists in order, as there may be many.
  void start_metrics() {
    if (policy_.metrics == SimMetrics::after_barrier && ended_ < trials_.size()) return;
    while (!free_lanes_.empty()) {
      std::size_t best = ready_.size();
      for (std::size_t k = 0; k < ready_.size(); ++k) {
        if (ready_[k].empty() || (k > 0 && judges_[k - 1] >= cluster_.judge_at_once[k - 1])) continue;
        if (best == ready_.size() || *ready_[k].begin() < *ready_[best].begin()) best = k;
      }
      if (best == ready_.size()) return;
      const Ready r = *ready_[best].begin();
      ready_[best].erase(ready_[best].begin());
      const std::int32_t lane = *free_lanes_.begin();
      free_lanes_.erase(free_lanes_.begin());
      if (best > 0) ++judges_[best - 1];
      events_.push({now_ + r.metric_s, ids_++, Kind::metric, out_.metrics.size(), 0});
      out_.metrics.push_back({r.unit, r.items, lane, now_, now_ + r.metric_s});
    }
  }

  const std::vector<EvalTrial>& trials_;
  const std::vector<EvalUnit>& truth_;
  const SimCluster& cluster_;
  const TrialPolicy policy_;
  EvalTimeline out_;
  double now_ = 0;
  std::uint64_t ids_ = 0;
  std::size_t next_ = 0, ended_ = 0;
  std::vector<std::size_t> gpus_;      // the trial on each
  std::set<std::size_t> given_;        // GPUs whose places became lanes
  std::vector<Link> links_;            // of each node
  std::set<std::int32_t> free_lanes_;  // of CPU jobs
  std::vector<std::int64_t> judges_;
  std::vector<std::int64_t> left_;      // items of each unit without outputs
  std::vector<std::set<Ready>> ready_;  // metrics that ask nobody; those of each judge
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

EvalTimeline simulate_trials(const std::vector<EvalTrial>& trials, const std::vector<EvalUnit>& truth,
                             const SimCluster& cluster, TrialPolicy policy) {
  return Simulation(trials, truth, cluster, policy).run();
}

}  // namespace orrery
