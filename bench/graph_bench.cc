// How good and how fast are graph and replay? Four tables:
//   1. replay against what was measured, by set: step, classes, GPU makespan, stalls, unexplained idle
//   2. event edges inferred with cuda_sync events hidden, against those the events give
//   3. perturbed replays, whole and with one kind of edge left out: what no undisturbed replay can show
//   4. speed, warm and cold, beside one pass of memory over the same bytes
// usage: graph_bench [DATA]   DATA has traces/ and oracle/ (default: ../shared/data); sets that are absent are skipped.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "graph/build.h"
#include "importers/importers.h"
#include "replay/replay.h"
#include "reports/reports.h"

namespace {

using namespace orrery;
namespace fs = std::filesystem;

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::vector<std::string> files_in(const fs::path& dir) {
  std::vector<std::string> files;
  if (!fs::is_directory(dir)) return files;
  for (const auto& e : fs::directory_iterator(dir)) {
    const std::string name = e.path().filename().string();
    if (name.find(".json") != std::string::npos && name.rfind("truth", 0) != 0) files.push_back(e.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Each file alone: a rank by itself.
Result<TraceSet> import_alone(const std::string& file) {
  ImportOptions options;
  options.threads = 1;
  return import_traces({file}, options);
}

struct Set {
  std::string name;
  std::vector<std::string> files;
};

std::vector<Set> sets_of(const fs::path& data) {
  std::vector<Set> sets;
  for (const char* name : {"gpt-small", "gpt-skewed", "gpt3-15b"}) {
    sets.push_back({std::string("oracle/") + name, files_in(data / "oracle" / name / "base")});
  }
  if (fs::is_directory(data / "traces")) {
    std::vector<fs::path> dirs;
    for (const auto& e : fs::directory_iterator(data / "traces")) {
      if (e.is_directory()) dirs.push_back(e.path());
    }
    std::sort(dirs.begin(), dirs.end());
    for (const fs::path& d : dirs) {
      const std::string name = d.filename().string();
      if (name == "odd") continue;
      if (name == "single") {
        for (const std::string& f : files_in(d)) sets.push_back({"single/" + fs::path(f).stem().stem().string(), {f}});
      } else {
        sets.push_back({name, files_in(d)});
      }
    }
  }
  std::erase_if(sets, [](const Set& s) { return s.files.empty(); });
  return sets;
}

double ms(Ns t) { return static_cast<double>(t) / 1e6; }

struct Score {
  int steps = 0, unread = 0;
  double step_sum = 0, step_max = 0, span_sum = 0, span_max = 0, class_max = 0;
  std::uint64_t stalls = 0;
  Ns stall = 0, idle = 0, unexplained = 0;
};

// The class's error in percent of its size, where it is more than 0.1 ms.
double class_error(Ns measured, Ns replayed) {
  const Ns diff = std::abs(measured - replayed);
  if (diff <= 100'000) return 0;
  return measured == 0 ? 100.0 : 100.0 * static_cast<double>(diff) / static_cast<double>(measured);
}

void score_file(const std::string& file, Score& score) {
  const auto traces = import_alone(file);
  if (!traces) {
    ++score.unread;
    return;
  }
  const auto build = build_graph(*traces, {.threads = 1});
  if (!build) {
    ++score.unread;
    return;
  }
  Replay r;
  replay(build->graph, r);
  const ExecGraph& g = build->graph;
  const auto tasks = device_tasks(g);
  const auto rows = select_steps(g, {});
  std::vector<StepTimes> times(rows->size());
  DeviceRuns device;
  for (std::uint32_t rank = 0; rank < g.ranks.size(); ++rank) {
    look_at_device(g, r, tasks, rank, device);
    add_step_times(g, r, device, *rows, times);
  }
  for (const StepTimes& s : times) {
    if (s.measured_makespan < 0 || s.measured <= 0) continue;  // steps with GPU work
    const double step = 100.0 * std::abs(ms(s.replayed - s.measured)) / ms(s.measured);
    const double span = s.measured_makespan == 0
                            ? 0
                            : 100.0 * std::abs(ms(s.replayed_makespan - s.measured_makespan)) / ms(s.measured_makespan);
    ++score.steps;
    score.step_sum += step;
    score.span_sum += span;
    score.step_max = std::max(score.step_max, step);
    score.span_max = std::max(score.span_max, span);
    const ClassTimes &m = s.measured_classes, &p = s.replayed_classes;
    for (const auto& [a, b] : {std::pair{m.exposed_compute, p.exposed_compute}, std::pair{m.overlapped, p.overlapped},
                               std::pair{m.exposed_comm, p.exposed_comm}, std::pair{m.other, p.other}}) {
      score.class_max = std::max(score.class_max, class_error(a, b));
    }
  }
  for (const RankQuality& q : build->quality) {
    score.stalls += q.stalls;
    score.stall += q.stall_ns;
    score.idle += q.idle_ns;
    score.unexplained += q.unexplained_idle_ns;
  }
}

void accuracy(const std::vector<Set>& sets) {
  fmt::print(
      "\n1. Replay with constant lags against what was measured (errors in %; class: worst of those over 0.1 ms)\n");
  fmt::print("{:<30} {:>5} {:>5} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>9} {:>10} {:>8}\n", "set", "files", "steps",
             "step", "worst", "span", "worst", "class", "stalls", "stall ms", "idle ms", "unexpl.");
  Score all;
  for (const Set& set : sets) {
    Score s;
    for (const std::string& f : set.files) score_file(f, s);
    if (s.unread > 0) fmt::print("{:<30} {} files could not be read\n", set.name, s.unread);
    const double n = std::max(1, s.steps);
    fmt::print("{:<30} {:>5} {:>5} {:>7.3f} {:>7.3f} {:>7.3f} {:>7.3f} {:>7.2f} {:>7} {:>9.2f} {:>10.2f} {:>7.2f}%\n",
               set.name, set.files.size(), s.steps, s.step_sum / n, s.step_max, s.span_sum / n, s.span_max, s.class_max,
               s.stalls, ms(s.stall), ms(s.idle),
               s.idle == 0 ? 0.0 : 100.0 * static_cast<double>(s.unexplained) / static_cast<double>(s.idle));
    if (set.name.rfind("oracle", 0) == 0) continue;
    all.steps += s.steps;
    all.step_sum += s.step_sum;
    all.step_max = std::max(all.step_max, s.step_max);
  }
  fmt::print("public traces: {} steps with GPU work, step error {:.3f}% on average, {:.3f}% at worst (bound: 2%, 5%)\n",
             all.steps, all.step_sum / std::max(1, all.steps), all.step_max);
}

using Edges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;  // rows of the trace: source, target

Edges event_edges(const ExecGraph& g) {
  Edges edges;
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    for (std::uint32_t e = g.first_pred[i]; e < g.first_pred[i + 1]; ++e) {
      if (g.pred_kind[e] == EdgeKind::event) edges.emplace_back(raw(g.source[raw(g.pred[e])]), raw(g.source[i]));
    }
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

void inference(const std::vector<Set>& sets) {
  fmt::print("\n2. Event edges inferred with cuda_sync events hidden (bound: 99.9% of the inferred are true)\n");
  fmt::print("{:<30} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "set", "true", "inferred", "right", "right %", "found %");
  for (const Set& set : sets) {
    std::size_t truth = 0, inferred = 0, right = 0;
    bool any_sync = false;
    for (const std::string& f : set.files) {
      const auto traces = import_alone(f);
      if (!traces || traces->ranks.front().sync_args.size() == 0) continue;
      any_sync = true;
      const auto with = build_graph(*traces, {.threads = 1});
      const auto without = build_graph(*traces, {.hide_sync_events = true, .threads = 1});
      if (!with || !without) continue;
      const Edges a = event_edges(with->graph), b = event_edges(without->graph);
      Edges both;
      std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
      truth += a.size();
      inferred += b.size();
      right += both.size();
    }
    if (!any_sync || truth + inferred == 0) continue;
    fmt::print("{:<30} {:>9} {:>9} {:>9} {:>9.3f} {:>9.3f}\n", set.name, truth, inferred, right,
               inferred == 0 ? 100.0 : 100.0 * static_cast<double>(right) / static_cast<double>(inferred),
               truth == 0 ? 100.0 : 100.0 * static_cast<double>(right) / static_cast<double>(truth));
  }
}

struct Change {
  const char* name;
  double host, kernel, comm;
};
constexpr Change kChanges[] = {{"as is", 1, 1, 1},
                               {"host x2", 2, 1, 1},
                               {"host x0.5", 0.5, 1, 1},
                               {"kernels x0.5", 1, 0.5, 1},
                               {"transfers x3", 1, 1, 3}};

// Mean replayed step of a changed graph, ms.
double changed_step(ExecGraph g, const Change& c, Replay& r) {
  for (std::uint32_t i = 0; i < g.size(); ++i) {
    const double f = g.kind[i] == NodeKind::host     ? c.host
                     : g.kind[i] == NodeKind::kernel ? c.kernel
                     : g.kind[i] == NodeKind::comm   ? c.comm
                                                     : 1.0;
    g.duration[i] = static_cast<Ns>(static_cast<double>(g.duration[i]) * f);
  }
  refresh_queue_lags(g);
  replay(g, r);
  double sum = 0;
  for (const Step& s : g.steps) sum += ms(r.end[raw(s.end_node)] - r.end[raw(s.begin_node)]);
  return sum / static_cast<double>(g.steps.size());
}

void perturbed(const fs::path& data) {
  fmt::print("\n3. Perturbed replays of one rank, mean step in ms; below it the same with one kind of edge left out\n");
  fmt::print("   (communication keeps its measured duration; * = differs from the whole graph by more than 0.1%)\n");
  const std::vector<std::string> files = {"oracle/gpt-small/base/rank-5.json.gz", "oracle/gpt3-15b/base/rank-9.json.gz",
                                          "traces/nanogpt-8xh100/rank-4.json.gz", "traces/megatron-tp2/rank-0.json.gz",
                                          "traces/cuda-graph-decode-h200/rank-0.json.gz"};
  Replay r;
  std::map<EdgeKind, bool> mattered;
  for (const std::string& f : files) {
    const auto traces = import_alone((data / f).string());
    if (!traces) continue;
    fmt::print("{}\n   {:<22}", f, "graph");
    for (const Change& c : kChanges) fmt::print(" {:>13}", c.name);
    fmt::print("\n");
    std::vector<double> whole;
    const auto full = build_graph(*traces, {.threads = 1});
    if (!full) continue;
    fmt::print("   {:<22}", "whole");
    for (const Change& c : kChanges) {
      whole.push_back(changed_step(full->graph, c, r));
      fmt::print(" {:>12.3f} ", whole.back());
    }
    fmt::print("\n");
    for (const EdgeKind k : {EdgeKind::launch, EdgeKind::stream, EdgeKind::event, EdgeKind::sync, EdgeKind::queue,
                             EdgeKind::handoff, EdgeKind::graph, EdgeKind::stall}) {
      if (full->quality.front().edges[static_cast<std::size_t>(k)] == 0) continue;
      const auto cut = build_graph(*traces, {.without_edges = 1u << static_cast<unsigned>(k), .threads = 1});
      if (!cut) continue;
      fmt::print("   without {:<14}", name_of(k));
      for (std::size_t c = 0; c < whole.size(); ++c) {
        const double t = changed_step(cut->graph, kChanges[c], r);
        const bool differs = std::abs(t - whole[c]) > 1e-3 * whole[c];
        if (differs && c > 0) mattered[k] = true;
        fmt::print(" {:>12.3f}{}", t, differs ? '*' : ' ');
      }
      fmt::print("\n");
    }
  }
  fmt::print("kinds of edge whose loss changed a perturbed result:");
  for (const auto& [k, yes] : mattered) fmt::print(" {}", name_of(k));
  fmt::print("\n");
}

std::size_t bytes_of(const TraceSet& traces, const ExecGraph& g) {
  std::size_t n = 0;
  for (const RankTrace& t : traces.ranks) n += t.ops.size() * (8 + 8 + 4 + 4 + 1 + 8 + 4);
  return n + g.size() * (8 + 8 + 4 + 1 + 1 + 4 + 4 + 4 + 21) + g.edges() * (4 + 1 + 8);
}

void speed(const fs::path& data) {
  fmt::print(
      "\n4. Speed of graph and replay on one core (bound: 5 million nodes a second warm; ASTRA-sim's analytical "
      "core\n");
  fmt::print(
      "   0.1, HTA's critical path 0.02). Floor: reading and writing the bytes of rows, graph and replay once.\n");
  fmt::print("{:<34} {:>9} {:>10} {:>10} {:>10} {:>10} {:>12} {:>9}\n", "trace", "nodes", "cold M/s", "warm M/s",
             "median", "replay M/s", "floor M/s", "x floor");
  const std::vector<std::vector<std::string>> inputs = {{"traces/nanogpt-8xh100/rank-0.json.gz"},
                                                        {"traces/single/queue-16ranks-rank0.json.gz"},
                                                        {"oracle/gpt3-15b/base/rank-9.json.gz"},
                                                        {"oracle/gpt3-15b/base"}};
  for (const auto& input : inputs) {
    std::vector<std::string> paths;
    for (const std::string& p : input) {
      if (fs::is_directory(data / p)) {
        for (const std::string& f : files_in(data / p)) paths.push_back(f);
      } else if (fs::exists(data / p)) {
        paths.push_back((data / p).string());
      }
    }
    if (paths.empty()) continue;
    const auto traces = import_traces(paths);
    if (!traces) continue;
    GraphBuilder builder;
    GraphBuild build;
    Replay r;
    double cold = 0;
    std::vector<double> warm, loop;
    for (int k = 0; k < 21; ++k) {
      const double t0 = cpu_seconds();
      if (!builder.build(*traces, {.threads = 1}, build)) return;
      const double t1 = cpu_seconds();
      replay(build.graph, r);
      const double t2 = cpu_seconds();
      if (k == 0) {
        if (auto ok = check(build.graph); !ok) fmt::print("{}: {}\n", input.front(), ok.error().line());
        cold = t2 - t0;
      } else {
        warm.push_back(t2 - t0);
        loop.push_back(t2 - t1);
      }
    }
    const std::size_t bytes = bytes_of(*traces, build.graph);
    std::vector<char> from(bytes / 2, 1), to(bytes / 2, 2);
    double floor = 1e9;
    for (int k = 0; k < 9; ++k) {
      const double t0 = cpu_seconds();
      std::memcpy(to.data(), from.data(), from.size());
      floor = std::min(floor, cpu_seconds() - t0);
      from[static_cast<std::size_t>(k)] = to[from.size() / 2];
    }
    std::sort(warm.begin(), warm.end());
    const double nodes = static_cast<double>(build.graph.size()) / 1e6;
    fmt::print("{:<34} {:>9} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.1f} {:>12.1f} {:>9.1f}\n", input.front(),
               build.graph.size(), nodes / cold, nodes / warm.front(), nodes / warm[warm.size() / 2],
               nodes / *std::min_element(loop.begin(), loop.end()), nodes / floor, warm.front() / floor);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path data = argc > 1 ? argv[1] : "../shared/data";
  const std::vector<Set> sets = sets_of(data);
  if (sets.empty()) {
    fmt::print("graph_bench: no traces under {}: nothing measured (give the directory that has traces/ and oracle/)\n",
               data.string());
    return 0;
  }
  accuracy(sets);
  inference(sets);
  perturbed(data);
  speed(data);
  return 0;
}
