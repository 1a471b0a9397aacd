// How good is the graph of all ranks together? Four tables:
//   1. simulated jobs against their known truth: iteration, steps, classes, clocks, matching, transfer by process group
//   2. perturbed: the base replayed with one change, against the truth of the job that has it (bound: 2%)
//   3. recorded jobs of several ranks: replay against what was measured, collectives matched
//   4. speed and memory, from files to answer
// usage: ranks_bench [DATA]   DATA has traces/ and oracle/ (default: ../shared/data); what is absent is skipped.
#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/build.h"
#include "importers/importers.h"
#include "replay/replay.h"
#include "reports/reports.h"
#include "whatif/layout.h"
#include "whatif/whatif.h"

namespace {

using namespace orrery;
using Json = nlohmann::json;
namespace fs = std::filesystem;

double ms(Ns t) { return static_cast<double>(t) / 1e6; }
double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Job {
  TraceSet traces;
  GraphBuild build;
};

Result<Job> read_job(const fs::path& dir) {
  Job job;
  auto traces = import_traces({dir.string()});
  if (!traces) return tl::unexpected(traces.error());
  job.traces = std::move(*traces);
  auto build = build_graph(job.traces);
  if (!build) return tl::unexpected(build.error());
  job.build = std::move(*build);
  return job;
}

std::vector<StepTimes> step_times(const GraphBuild& build, const Replay& r, const StepRows& rows) {
  const auto tasks = device_tasks(build.graph);
  std::vector<StepTimes> times(rows.size());
  DeviceRuns device;
  for (std::uint32_t rank = 0; rank < build.graph.ranks.size(); ++rank) {
    look_at_device(build.graph, r, tasks, rank, device);
    add_step_times(build.graph, r, device, rows, times);
  }
  return times;
}

// Mean over the steps of the longest rank's.
double iteration(const ExecGraph& g, const Replay& r) {
  std::map<std::int64_t, Ns> longest;
  for (const Step& s : g.steps) {
    const Window w = replayed_window(r, s);
    Ns& t = longest[s.number];
    t = std::max(t, w.end - w.begin);
  }
  double sum = 0;
  for (const auto& [number, t] : longest) sum += ms(t);
  return longest.empty() ? 0 : sum / static_cast<double>(longest.size());
}

Json read_truth(const fs::path& dir) {
  std::ifstream in(dir / "truth.json");
  return in ? Json::parse(in, nullptr, false) : Json();
}

std::vector<fs::path> folders(const fs::path& dir) {
  std::vector<fs::path> out;
  if (!fs::is_directory(dir)) return out;
  for (const auto& e : fs::directory_iterator(dir))
    if (e.is_directory()) out.push_back(e.path());
  std::sort(out.begin(), out.end());
  return out;
}

double off(double ours, double truth) { return truth == 0 ? 0 : 100 * (ours / truth - 1); }

// The generator's names of process groups.
std::string short_name(const std::string& label) {
  static const std::map<std::string, std::string> names = {{"TENSOR_MODEL_PARALLEL_GROUP", "tp"},
                                                           {"DATA_PARALLEL_GROUP", "dp"},
                                                           {"DATA_PARALLEL_GROUP_WITH_CP", "dp"},
                                                           {"PIPELINE_MODEL_PARALLEL_GROUP", "pp"},
                                                           {"MODEL_PARALLEL_GROUP", "mp"},
                                                           {"EMBEDDING_GROUP", "emb"},
                                                           {"default_pg", "world"}};
  const auto it = names.find(label);
  return it == names.end() ? label : it->second;
}

void against_truth(const std::string& name, const Job& job, const Json& truth) {
  const ExecGraph& g = job.build.graph;
  const Communication& c = job.build.communication;
  Replay r;
  replay(g, r);
  const auto rows = *select_steps(g, {});
  const auto times = step_times(job.build, r, rows);
  std::map<std::int64_t, std::size_t> step_index;
  for (std::size_t k = 0; k < truth["steps"].size(); ++k) step_index[truth["steps"][k]] = k;
  const std::int64_t first = truth["steps"][0];

  double worst_step = 0;
  std::map<std::string, double> ours, theirs;
  std::size_t ranks = 0;
  for (const StepTimes& t : times) {
    const Step& s = g.steps[t.step];
    const auto rank = static_cast<std::size_t>(g.ranks[s.rank].rank);
    worst_step = std::max(
        worst_step, std::abs(off(ms(t.replayed), truth["step_ms_per_rank"][step_index[s.number]][rank].get<double>())));
    const std::string key = std::to_string(rank);
    if (s.number != first || !truth["breakdown"].contains(key)) continue;
    const Json& b = truth["breakdown"][key];
    ++ranks;
    ours["compute"] += ms(t.replayed_classes.exposed_compute),
        theirs["compute"] += b["exposed_compute_ms"].get<double>();
    ours["overlap"] += ms(t.replayed_classes.overlapped), theirs["overlap"] += b["overlapped_ms"].get<double>();
    ours["comm"] += ms(t.replayed_classes.exposed_comm), theirs["comm"] += b["exposed_comm_ms"].get<double>();
    ours["other"] += ms(t.replayed_classes.other);
    theirs["other"] += b["exposed_memory_ms"].get<double>() + b["idle_ms"].get<double>();
  }
  const double truth_ms = truth["iteration_ms"];
  double worst_class = 0;
  for (const auto& [k, v] : ours)
    worst_class = std::max(worst_class, 100 * std::abs(v - theirs[k]) / static_cast<double>(ranks) / truth_ms);

  double worst_clock = 0;
  for (std::size_t k = 1; k < c.clocks.size(); ++k) {
    const auto rank = static_cast<std::size_t>(g.ranks[c.clocks[k].ranks.front()].rank);
    const std::string host = std::to_string(rank / truth["config"]["gpus_node"].get<std::size_t>());
    if (!truth["clock_offset_us"].contains(host)) continue;
    const double theirs_us = truth["clock_offset_us"][host].get<double>() - truth["clock_offset_us"]["0"].get<double>();
    worst_clock = std::max(worst_clock, std::abs(static_cast<double>(c.clocks[k].offset) / 1e3 - theirs_us));
  }

  // Point-to-point on the default group (one direction of a pipeline of two stages) counts as pipeline in the truth.
  std::map<std::pair<std::uint32_t, std::string>, double> transfer;
  for (const CommRow& k : c.rows) {
    for (const Step& s : g.steps) {
      if (s.rank != k.rank || s.number != first || k.start < s.begin || k.start >= s.end || k.transfer < 0) continue;
      const std::string group = k.parts != 0 ? "pp" : k.group == kNone ? "none" : short_name(c.groups[k.group].label);
      transfer[{k.rank, group}] += ms(k.transfer);
    }
  }
  double worst_transfer = 0;
  for (std::uint32_t k = 0; k < g.ranks.size(); ++k) {
    const std::string key = std::to_string(g.ranks[k].rank);
    if (!truth["breakdown"].contains(key)) continue;
    for (const auto& [field, value] : truth["breakdown"][key].items()) {
      if (field.rfind("comm_", 0) != 0 || field.find("_transfer_ms") == std::string::npos || value.get<double>() < 0.1)
        continue;
      const std::string group = field.substr(5, field.find("_transfer_ms") - 5);
      worst_transfer = std::max(worst_transfer, std::abs(off(transfer[{k, group}], value.get<double>())));
    }
  }
  fmt::print("{:<12} {:>6} {:>11.3f} {:>11.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.2f} {:>9.2f} {:>10.2f}\n", name,
             g.ranks.size(), truth_ms, iteration(g, r), off(iteration(g, r), truth_ms), worst_step, worst_class,
             worst_clock,
             c.expected == 0 ? 100.0 : 100.0 * static_cast<double>(c.matched) / static_cast<double>(c.expected),
             worst_transfer);
}

// The change that turns the base into `target`; empty when it is another job (layout, model).
std::string change(const Json& base, const Json& target, double truth_ms, Job& job) {
  std::string done;
  const auto number = [](const Json& j, const char* k) { return j.contains(k) ? j[k].get<double>() : 1.0; };
  for (const auto& [key, value] : target.items()) {
    if (base.contains(key) && base[key] == value) continue;
    static const std::vector<std::string> ours = {"launch_factor", "cpu_factor", "gemm_factor",   "net_intra",
                                                  "net_inter",     "straggler",  "straggler_pct", "name",
                                                  "seed",          "dp",         "microbatches",  "layers"};
    if (std::find(ours.begin(), ours.end(), key) == ours.end()) return "";
  }
  ExecGraph& g = job.build.graph;
  if (const double f = number(target, "cpu_factor"); f != number(base, "cpu_factor")) {
    scale_host(g, f);
    done += fmt::format(" host {}x", f);
  }
  // In these jobs the launch factor comes on top of the other: a launch call under both 2 costs four times as much.
  if (const double f = number(target, "launch_factor"); f != number(base, "launch_factor")) {
    Replay r;
    replay(g, r);
    const double alone = iteration(g, r);
    scale_launches(g, f);
    done += fmt::format(" ({:+.2f}% with that alone), launches {}x", off(alone, truth_ms), f);
  }
  if (const double f = number(target, "gemm_factor"); f != number(base, "gemm_factor")) {
    scale_kernels(
        g, job.traces, [](std::string_view n) { return n.find("gemm") != std::string_view::npos; }, f);
    done += fmt::format(" gemm {}x", f);
  }
  if (const double f = number(target, "net_intra"); f != 1) {
    scale_bandwidth(job.build, Link::intra, f);
    done += fmt::format(" intra bandwidth {}x", f);
  }
  if (const double f = number(target, "net_inter"); f != 1) {
    scale_bandwidth(job.build, Link::inter, f);
    done += fmt::format(" inter bandwidth {}x", f);
  }
  if (target.value("dp", 1) != base.value("dp", 1)) {
    auto layout = recognise_layout(job.traces, job.build);
    if (!layout) return layout.error().line();
    if (auto done_dp = change_dp(job.traces, job.build, *layout, target.value("dp", 1)); !done_dp)
      return done_dp.error().line();
    done += fmt::format(" dp {}", target.value("dp", 1));
  }
  if (target.value("straggler", -1) == -1 && base.value("straggler", -1) != -1) {
    const std::vector<Straggler> found = find_stragglers(job.traces, job.build);
    remove_stragglers(job.build, found);
    for (const Straggler& s : found)
      done += fmt::format(" without straggler (rank {}, {}, {:.1f}% slower)", g.ranks[s.rank].rank, name_of(s.kind),
                          100 * (s.slower - 1));
  }
  return done;
}

void simulated(const fs::path& data) {
  fmt::print(
      "1. Simulated jobs against their truth (bounds: iteration and steps 0.5%, classes 2% of the step, clocks 20 us,\n"
      "   matched 100%, transfer 5% of the worst rank and kind of group over 0.1 ms)\n");
  fmt::print("{:<12} {:>6} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10}\n", "set", "ranks", "truth ms",
             "replay ms", "error %", "step %", "class %", "clock us", "matched %", "transfer %");
  for (const fs::path& set : folders(data / "oracle")) {
    const Json truth = read_truth(set / "base");
    const auto job = read_job(set / "base");
    if (truth.is_null() || !job) continue;
    against_truth(set.filename().string(), *job, truth);
  }

  fmt::print("\n2. Perturbed: the base with one change against the truth of the job that has it (bound: 2%)\n");
  fmt::print("{:<12} {:<12} {:>10} {:>10} {:>10} {:>8}  {}\n", "set", "target", "base ms", "truth ms", "replay ms",
             "error %", "change");
  for (const fs::path& set : folders(data / "oracle")) {
    const Json base = read_truth(set / "base");
    if (base.is_null()) continue;
    for (const fs::path& target : folders(set)) {
      const Json truth = read_truth(target);
      if (truth.is_null() || target.filename() == "base") continue;
      Job job;
      job.build.graph.ranks.clear();
      {
        const Json &a = base["config"], &b = truth["config"];
        bool same_job = true;
        for (const char* k : {"tp", "pp", "vpp", "hidden", "ffn", "heads", "seq", "mbs"})
          same_job = same_job && a.value(k, 0) == b.value(k, 0);
        if (!same_job) continue;
      }
      auto read = read_job(set / "base");
      if (!read) continue;
      job = std::move(*read);
      const std::string what = change(base["config"], truth["config"], truth["iteration_ms"], job);
      if (what.empty()) continue;
      Replay r;
      replay(job.build.graph, r);
      const double ours = iteration(job.build.graph, r), theirs = truth["iteration_ms"];
      fmt::print("{:<12} {:<12} {:>10.3f} {:>10.3f} {:>10.3f} {:>8.2f} {}\n", set.filename().string(),
                 target.filename().string(), base["iteration_ms"].get<double>(), theirs, ours, off(ours, theirs), what);
    }
  }
}

void recorded(const fs::path& data) {
  fmt::print("\n3. Recorded jobs of several ranks (bound: 2% on average, 5% at worst by rank and step)\n");
  fmt::print("{:<46} {:>5} {:>6} {:>8} {:>8} {:>10} {:>11} {:>11}\n", "set", "ranks", "steps", "step %", "worst %",
             "matched %", "transfer ms", "waiting ms");
  for (const fs::path& set : folders(data / "traces")) {
    if (set.filename() == "odd" || set.filename() == "single") continue;
    const auto job = read_job(set);
    if (!job) {
      fmt::print("{:<46} {}\n", set.filename().string(), job.error().line());
      continue;
    }
    const ExecGraph& g = job->build.graph;
    if (g.ranks.size() < 2) continue;
    Replay r;
    replay(g, r);
    const auto rows = *select_steps(g, {});
    double sum = 0, worst = 0;
    int steps = 0;
    for (const StepTimes& t : step_times(job->build, r, rows)) {
      if (t.measured <= 0 || t.measured_makespan < 0) continue;
      const double e = 100.0 * std::abs(ms(t.replayed - t.measured)) / ms(t.measured);
      sum += e, worst = std::max(worst, e), ++steps;
    }
    const Communication& c = job->build.communication;
    Ns transfer = 0, waiting = 0;
    for (const CommRow& k : c.rows)
      if (k.transfer >= 0) transfer += k.transfer, waiting += k.end - k.start - k.transfer;
    fmt::print("{:<46} {:>5} {:>6} {:>8.3f} {:>8.3f} {:>10.2f} {:>11.3f} {:>11.3f}\n", set.filename().string(),
               g.ranks.size(), steps, steps == 0 ? 0 : sum / steps, worst,
               c.expected == 0 ? 0.0 : 100.0 * static_cast<double>(c.matched) / static_cast<double>(c.expected),
               ms(transfer), ms(waiting));
  }
}

void speed(const fs::path& data) {
  fmt::print("\n4. From files to answer (bound: gpt3-15b/base under 5 s on two cores and under 1 GB in all)\n");
  fmt::print("{:<28} {:>9} {:>8} {:>9} {:>8} {:>8} {:>8} {:>12}\n", "set", "nodes", "total s", "import s", "graph s",
             "replay s", "report s", "peak RSS MB");
  for (const fs::path& dir : {data / "traces" / "nanogpt-8xh100", data / "oracle" / "gpt-skewed" / "base",
                              data / "oracle" / "gpt3-15b" / "base"}) {
    if (!fs::is_directory(dir)) continue;
    const double t0 = seconds();
    auto traces = import_traces({dir.string()});
    const double t1 = seconds();
    if (!traces) continue;
    const auto build = build_graph(*traces);
    const double t2 = seconds();
    if (!build) continue;
    Replay r;
    replay(build->graph, r);
    const double t3 = seconds();
    const auto document = replay_document(*traces, *build, r);
    const double t4 = seconds();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    fmt::print("{:<28} {:>9} {:>8.3f} {:>9.3f} {:>8.3f} {:>8.3f} {:>8.3f} {:>12.0f}\n",
               dir.parent_path().filename().string() + "/" + dir.filename().string(), build->graph.size(), t4 - t0,
               t1 - t0, t2 - t1, t3 - t2, t4 - t3, static_cast<double>(usage.ru_maxrss) / 1024);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path data = argc > 1 ? argv[1] : "../shared/data";
  if (!fs::is_directory(data)) {
    fmt::print("SKIPPED: no {} (traces/ and oracle/ expected there)\n", data.string());
    return 0;
  }
  simulated(data);
  recorded(data);
  speed(data);
}
