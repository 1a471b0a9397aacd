// Layers and their parts told by the order of kernels alone, where no operators were recorded (CUDA graphs) or these
// say too little. Between two attentions of a decoder stand the output projection, a norm, the MLP or the experts, a
// norm and the projection of the next layer's queries, keys and values; norms, activations and routing kernels have
// names, matrix products are what stands between them.
#include <algorithm>
#include <unordered_map>

#include "reports/dissect.h"

namespace orrery {

std::vector<std::string_view> modules_of_sequence(std::span<const SequenceItem> items) {
  enum class Spot { qkv, projection, mlp_up, mlp_down, experts };
  std::vector<std::string_view> out(items.size());
  std::vector<std::string_view> named(items.size());
  std::size_t last_attention = items.size();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].communicates) named[i] = items[i].word;
    if (items[i].kind == KernelClass::attention) {
      named[i] = "attention";
      last_attention = i;
    }
  }
  if (last_attention == items.size()) return out;
  // Whether a product is followed by routing before anything else that has a name of its own.
  const auto routes = [&](std::size_t i) {
    for (std::size_t k = i + 1; k < items.size() && k < i + 6; ++k) {
      if (named[k] == "router") return true;
      if (items[k].kind == KernelClass::gemm && !is_split_reduction(items[k].name)) return false;
      if (named[k] == "norm" || named[k] == "activation" || named[k] == "attention") return false;
    }
    return false;
  };
  Spot spot = Spot::qkv;
  std::string_view product;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const SequenceItem& item = items[i];
    const std::string_view name = named[i];
    if (name == "attention") {
      spot = Spot::projection;
    } else if (name == "norm") {
      if (spot == Spot::projection)
        spot = Spot::mlp_up;
      else if (spot == Spot::mlp_down || spot == Spot::experts)
        spot = Spot::qkv;
    } else if (name == "activation") {
      if (spot == Spot::mlp_up) spot = Spot::mlp_down;
    } else if (name == "router" || name == "experts") {
      spot = Spot::experts;
    }
    if (item.communicates) continue;
    if (item.kind == KernelClass::gemm && is_split_reduction(item.name)) {
      out[i] = product;
    } else if (item.kind == KernelClass::gemm) {
      const bool head = spot == Spot::qkv && i > last_attention;
      product = name == "experts"          ? "experts"
                : routes(i)                ? "router"
                : spot == Spot::projection ? "output projection"
                : spot == Spot::mlp_up     ? "mlp up"
                : spot == Spot::mlp_down   ? "mlp down"
                : spot == Spot::experts    ? "experts"
                : head                     ? "lm head"
                                           : "qkv";
      out[i] = product;
    } else if (spot == Spot::experts && (name == "activation" || name == "quantisation" || name.empty())) {
      out[i] = "experts";
    } else {
      out[i] = name;
    }
  }
  return out;
}

Repetition find_repetition(std::span<const std::uint32_t> keys) {
  // Periods worth a look: the commonest distances between a key and its next occurrence.
  std::unordered_map<std::uint32_t, std::size_t> last;
  std::unordered_map<std::size_t, std::size_t> votes;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto [it, fresh] = last.emplace(keys[i], i);
    if (fresh) continue;
    ++votes[i - it->second];
    it->second = i;
  }
  std::vector<std::pair<std::size_t, std::size_t>> periods(votes.begin(), votes.end());
  std::sort(periods.begin(), periods.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  if (periods.size() > 24) periods.resize(24);
  Repetition best;
  std::size_t most = 0;
  for (const auto& [period, n] : periods) {
    if (period < 3) continue;  // runs of one kernel are no layers
    for (std::size_t i = 0, run = 0; i + period <= keys.size(); ++i) {
      const bool same = i + period < keys.size() && keys[i] == keys[i + period];
      if (same) {
        ++run;
        continue;
      }
      const std::size_t count = run / period + 1;
      const std::size_t length = count * period;
      if (count >= 2 && (length > most || (length == most && period < best.period))) {
        most = length;
        best = {i - run, period, count};
      }
      run = 0;
    }
  }
  return best;
}

}  // namespace orrery
