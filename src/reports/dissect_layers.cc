// Which layer each GPU task is of. By nn.Module frames: the class with several numbered instances, none inside of
// another of its kind, that hold most of the GPU's time. Without frames, in each pass: the longest stretch of kernels
// that repeats itself. Backward tasks go with their forward operator, else by repetition too, counted from the end.
#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>

#include "reports/dissect.h"

namespace orrery {
namespace {

struct Instance {
  std::uint32_t cls = 0;  // number of the class
  std::int32_t number = -1;
};

class LayerFinder {
 public:
  explicit LayerFinder(Dissection& d) : d_(d), t_(*d.trace), o_(d.operators), parents_(d.frame_parent) {}

  void run() {
    const bool frames = by_frames();
    if (!frames) by_repetition(false);
    by_link();
    for (const DissectedTask& task : d_.tasks) d_.layers_told = d_.layers_told || task.layer >= 0;
    if (!frames && d_.layers_told) by_repetition(true);
  }

 private:
  Instance instance_of(std::uint32_t row) {
    constexpr std::string_view kModule = "nn.Module: ";
    std::string_view name = t_.name_of(OpId{row});
    if (name.substr(0, kModule.size()) != kModule) return {};
    name.remove_prefix(kModule.size());
    const auto at = name.rfind('_');
    if (at == std::string_view::npos) return {};
    Instance x;
    const auto read = std::from_chars(name.data() + at + 1, name.data() + name.size(), x.number);
    if (read.ec != std::errc{} || read.ptr != name.data() + name.size() || x.number < 0) return {};
    x.cls = classes_.emplace(name.substr(0, at), static_cast<std::uint32_t>(classes_.size())).first->second;
    return x;
  }

  bool by_frames() {
    if (parents_.empty()) return false;
    struct Class {
      Ns time = 0;
      bool nested = false;
      std::map<std::int32_t, Ns> instances;
    };
    std::unordered_map<std::uint32_t, Class> all;
    std::vector<std::vector<Instance>> chains(d_.tasks.size());  // innermost first
    for (std::size_t i = 0; i < d_.tasks.size(); ++i) {
      for (std::uint32_t f = d_.tasks[i].frame; f != kNone; f = parents_[f])
        if (const Instance x = instance_of(f); x.number >= 0) chains[i].push_back(x);
      for (std::size_t k = 0; k < chains[i].size(); ++k) {
        Class& c = all[chains[i][k].cls];
        for (std::size_t m = 0; m < k; ++m) c.nested = c.nested || chains[i][m].cls == chains[i][k].cls;
        const Ns time = t_.ops.dur[d_.tasks[i].row];
        c.time += time;
        c.instances[chains[i][k].number] += time;
      }
    }
    const Class* best = nullptr;
    std::uint32_t chosen = kNone;
    for (const auto& [cls, c] : all) {
      if (c.nested || c.instances.size() < 2) continue;
      const bool better = best == nullptr || c.time > best->time ||
                          (c.time == best->time && (c.instances.size() > best->instances.size() ||
                                                    (c.instances.size() == best->instances.size() && cls < chosen)));
      if (better) best = &c, chosen = cls;
    }
    if (best == nullptr) return false;
    std::map<std::int32_t, std::int32_t> place;
    for (const auto& [number, time] : best->instances) place.emplace(number, static_cast<std::int32_t>(place.size()));
    for (std::size_t i = 0; i < d_.tasks.size(); ++i)
      for (const Instance& x : chains[i])
        if (x.cls == chosen) d_.tasks[i].layer = place[x.number];
    return true;
  }

  void by_link() {
    std::vector<std::uint32_t> task_of(o_.launches.size(), kNone);
    for (std::uint32_t i = 0; i < d_.tasks.size(); ++i)
      if (d_.tasks[i].launch != kNone) task_of[d_.tasks[i].launch] = i;
    for (DissectedTask& task : d_.tasks) {
      if (task.launch == kNone || task.layer >= 0) continue;
      const std::uint32_t node = o_.launches[task.launch].node;
      if (node == kNone || o_.name(node).find("Compiled") != std::string_view::npos) continue;
      const std::uint32_t f = o_.forward_launch(node, task.at);
      if (f != kNone && task_of[f] != kNone) task.layer = d_.tasks[task_of[f]].layer;
    }
  }

  // A pass: the tasks of one thread (or one graph launch) that follow each other in one phase; communication apart.
  void by_repetition(bool backward) {
    struct Pass {
      std::vector<std::uint32_t> tasks;
      std::uint32_t graph = kNone;
      Phase phase = Phase::unattributed;
      bool attention = false, linked = false;
    };
    std::unordered_map<std::uint32_t, Pass> open;  // by lane
    const auto close = [&](Pass& pass) {
      if (!pass.linked) number_layers(pass.tasks, backward);
      pass = {};
    };
    for (std::uint32_t i = 0; i < d_.tasks.size(); ++i) {
      const DissectedTask& task = d_.tasks[i];
      if (task.communicates || task.call == kNone) continue;
      const bool wanted = backward ? task.phase == Phase::backward : is_forward(task.phase);
      Pass& pass = open[raw(task.lane)];
      const std::uint32_t graph = task.graph ? task.call : kNone;
      const bool embeds = !backward && pass.attention && task.kind == KernelClass::embedding;
      if (!pass.tasks.empty() && (!wanted || pass.phase != task.phase || pass.graph != graph || embeds)) close(pass);
      if (!wanted) continue;
      pass.phase = task.phase;
      pass.graph = graph;
      pass.attention = pass.attention || task.kind == KernelClass::attention;
      pass.linked = pass.linked || task.layer >= 0;
      pass.tasks.push_back(i);
    }
    for (auto& [lane, pass] : open) close(pass);
  }

  void number_layers(const std::vector<std::uint32_t>& tasks, bool backward) {
    std::vector<std::uint32_t> keys;
    for (const std::uint32_t i : tasks) keys.push_back(raw(t_.ops.name[d_.tasks[i].row]));
    const Repetition r = find_repetition(keys);
    if (r.count * r.period * 2 < tasks.size()) return;  // not what the pass is made of
    const std::vector<std::size_t> begins = layers_of_period(tasks, r);
    const std::size_t all = r.count * begins.size();
    for (std::size_t k = 0; k < r.count * r.period; ++k) {
      const auto within = std::upper_bound(begins.begin(), begins.end(), k % r.period) - begins.begin() - 1;
      const std::size_t layer = k / r.period * begins.size() + static_cast<std::size_t>(within);
      d_.tasks[tasks[r.begin + k]].layer = static_cast<std::int32_t>(backward ? all - 1 - layer : layer);
    }
  }

  // Where the layers of one period begin: layers may alternate (attention over a window and over all), so that a
  // period is several. Each has one attention and an MLP or experts; it begins as far ahead of its attention as the
  // first does.
  std::vector<std::size_t> layers_of_period(const std::vector<std::uint32_t>& tasks, const Repetition& r) const {
    const auto at = [&](std::size_t k) -> const DissectedTask& { return d_.tasks[tasks[r.begin + k]]; };
    std::vector<std::size_t> attentions;
    for (std::size_t k = 0; k < r.period; ++k)
      if (at(k).kind == KernelClass::attention && (k == 0 || at(k - 1).kind != KernelClass::attention))
        attentions.push_back(k);
    std::vector<std::size_t> begins{0};
    for (std::size_t i = 1; i < attentions.size(); ++i) begins.push_back(attentions[i] - attentions[0]);
    for (std::size_t i = 0; i < begins.size(); ++i) {
      const std::size_t end = i + 1 < begins.size() ? begins[i + 1] : r.period;
      bool mlp = false;
      for (std::size_t k = begins[i]; k < end && !mlp; ++k) {
        const std::string& module = d_.modules[at(k).module];
        mlp = module == "mlp down" || module == "experts";
      }
      if (!mlp) return {0};
    }
    return begins;
  }

  Dissection& d_;
  const RankTrace& t_;
  const Operators& o_;
  const std::vector<std::uint32_t>& parents_;
  std::map<std::string_view, std::uint32_t> classes_;
};

}  // namespace

void find_layers(Dissection& d) { LayerFinder(d).run(); }

}  // namespace orrery
