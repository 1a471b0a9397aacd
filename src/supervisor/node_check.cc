#include "supervisor/node_check.h"

#include <algorithm>
#include <utility>

namespace orrery {
namespace {

constexpr double kSlow = 0.5;  // of the median rate

std::vector<NodeGroup> paired(const std::vector<std::size_t>& order) {
  std::vector<NodeGroup> groups;
  for (std::size_t i = 0; i + 1 < order.size(); i += 2) groups.push_back({order[i], order[i + 1]});
  if (order.size() == 1) return {order};
  if (order.size() % 2 == 1) groups.back().push_back(order.back());
  return groups;
}

// Of the rates that are told; of an even number the higher of the middle two, so that of two groups the slower can be
// told. 0 = none is.
double median_rate(const std::vector<GroupTest>& tests) {
  std::vector<double> rates;
  for (const GroupTest& t : tests)
    if (t.outcome.passed && t.outcome.gb_per_s > 0) rates.push_back(t.outcome.gb_per_s);
  if (rates.empty()) return 0;
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

class Check {
 public:
  Check(std::size_t nodes, const RunGroups& run) : nodes_(nodes), run_(run) {}

  Result<NodeCheck> all() {
    std::vector<std::size_t> order(nodes_);
    for (std::size_t i = 0; i < nodes_; ++i) order[i] = i;
    if (const Status ok = round(1, paired(order)); !ok) return tl::unexpected(ok.error());
    int next = 2;
    if (good().empty() && nodes_ > 2) {
      if (const Status ok = others(order, next++); !ok) return tl::unexpected(ok.error());
    }
    const std::vector<std::size_t> healthy = good();
    if (healthy.empty()) {
      if (const Status ok = alone(next); !ok) return tl::unexpected(ok.error());
    } else {
      if (const Status ok = beside(suspects_of(healthy), healthy, next++); !ok) return tl::unexpected(ok.error());
      if (const Status ok = look_again(next++); !ok) return tl::unexpected(ok.error());
    }
    for (std::size_t i = 0; i < nodes_; ++i) {
      check_.verdicts.push_back(verdict(i));
      check_.untested.push_back(untested(i));
    }
    return std::move(check_);
  }

 private:
  Status round(int number, const std::vector<NodeGroup>& groups) {
    const auto outcomes = run_(groups);
    if (!outcomes) return tl::unexpected(outcomes.error());
    for (std::size_t g = 0; g < groups.size(); ++g)
      check_.tests.push_back({.round = number, .nodes = groups[g], .outcome = (*outcomes)[g]});
    // The yardstick stays that of the first round in which a group passed.
    if (median_ <= 0) median_ = median_rate(check_.tests);
    for (GroupTest& t : check_.tests)
      t.slow = t.outcome.passed && t.outcome.gb_per_s > 0 && t.outcome.gb_per_s < kSlow * median_;
    return {};
  }

  // Other neighbours than in round 1: shifted by one. Three nodes have only their pairs, one after the other.
  Status others(std::vector<std::size_t> order, int number) {
    if (nodes_ == 3) {
      for (const NodeGroup& pair : {NodeGroup{0, 1}, NodeGroup{1, 2}, NodeGroup{0, 2}})
        if (const Status ok = round(number, {pair}); !ok) return ok;
      return {};
    }
    std::rotate(order.begin(), order.begin() + 1, order.end());
    return round(number, paired(order));
  }

  std::vector<std::size_t> suspects_of(const std::vector<std::size_t>& healthy) const {
    std::vector<std::size_t> suspects;
    for (std::size_t i = 0; i < nodes_; ++i)
      if (!std::binary_search(healthy.begin(), healthy.end(), i)) suspects.push_back(i);
    return suspects;
  }

  // Slowness that was seen once may be of the moment: a node that was slow in the only test of it that tells is tried
  // beside another, and a pairing that was slow, of nodes that are well elsewhere, is tried again.
  Status look_again(int number) {
    std::vector<std::size_t> once;
    for (std::size_t i = 0; i < nodes_; ++i)
      if (passed(i) && !well(i) && slow_tests(i) == 1) once.push_back(i);
    if (!once.empty())
      if (const Status ok = beside(once, good(), number++); !ok) return ok;
    std::vector<NodeGroup> again;
    for (const GroupTest& t : check_.tests)
      if (t.slow && std::all_of(t.nodes.begin(), t.nodes.end(), [&](std::size_t n) { return well(n); }))
        again.push_back(t.nodes);
    for (std::size_t i = 0; i < again.size();) {  // those without a node in common at once
      std::vector<NodeGroup> now;
      std::vector<bool> used(nodes_, false);
      for (; i < again.size(); ++i) {
        if (std::any_of(again[i].begin(), again[i].end(), [&](std::size_t n) { return used[n]; })) break;
        for (const std::size_t n : again[i]) used[n] = true;
        now.push_back(again[i]);
      }
      if (const Status ok = round(number, now); !ok) return ok;
    }
    return {};
  }

  Status beside(const std::vector<std::size_t>& suspects, const std::vector<std::size_t>& healthy, int number) {
    for (std::size_t i = 0; i < suspects.size();) {
      std::vector<NodeGroup> groups;
      for (const std::size_t g : healthy)
        if (i < suspects.size()) groups.push_back({suspects[i++], g});
      if (const Status ok = round(number, groups); !ok) return ok;
    }
    return {};
  }

  Status alone(int number) {
    check_.no_good_node = true;
    if (nodes_ == 1) return {};  // that was round 1
    std::vector<NodeGroup> groups;
    for (std::size_t i = 0; i < nodes_; ++i) groups.push_back({i});
    return round(number, groups);
  }

  // Passed once, and not slowly: ascending.
  std::vector<std::size_t> good() const {
    std::vector<std::size_t> nodes;
    for (const GroupTest& t : check_.tests)
      if (t.outcome.passed && !t.slow) nodes.insert(nodes.end(), t.nodes.begin(), t.nodes.end());
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    return nodes;
  }

  // A test that went ill says nothing of a node where another of its nodes turned out ill itself: that one explains it.
  bool explained(const GroupTest& t, std::size_t node) const {
    return std::any_of(t.nodes.begin(), t.nodes.end(), [&](std::size_t other) {
      return other != node && (t.outcome.passed ? !well(other) : !passed(other));
    });
  }
  bool passed(std::size_t node) const {
    return std::any_of(check_.tests.begin(), check_.tests.end(),
                       [&](const GroupTest& t) { return has(t, node) && t.outcome.passed; });
  }
  std::size_t slow_tests(std::size_t node) const {
    return static_cast<std::size_t>(std::count_if(check_.tests.begin(), check_.tests.end(),
                                                  [&](const GroupTest& t) { return has(t, node) && t.slow; }));
  }
  // The same nodes were not slow another time.
  bool was_chance(const GroupTest& slow) const {
    return std::any_of(check_.tests.begin(), check_.tests.end(),
                       [&](const GroupTest& t) { return t.nodes == slow.nodes && t.outcome.passed && !t.slow; });
  }
  bool well(std::size_t node) const {
    return std::any_of(check_.tests.begin(), check_.tests.end(),
                       [&](const GroupTest& t) { return has(t, node) && t.outcome.passed && !t.slow; });
  }
  static bool has(const GroupTest& t, std::size_t node) {
    return std::find(t.nodes.begin(), t.nodes.end(), node) != t.nodes.end();
  }

  bool untested(std::size_t node) const {
    const auto last =
        std::find_if(check_.tests.rbegin(), check_.tests.rend(), [&](const GroupTest& t) { return has(t, node); });
    return !passed(node) && last != check_.tests.rend() && last->outcome.absent;
  }
  NodeVerdict verdict(std::size_t node) const {
    if (!passed(node)) return NodeVerdict::bad;
    if (!well(node)) return NodeVerdict::slow;
    for (const GroupTest& t : check_.tests)
      if (has(t, node) && (!t.outcome.passed || (t.slow && !was_chance(t))) && !explained(t, node))
        return NodeVerdict::link;
    return NodeVerdict::good;
  }

  std::size_t nodes_;
  const RunGroups& run_;
  NodeCheck check_;
  double median_ = 0;
};

}  // namespace

std::string_view name_of(NodeVerdict verdict) {
  constexpr std::string_view kNames[] = {"good", "bad", "slow", "link"};
  return kNames[static_cast<std::size_t>(verdict)];
}

Result<NodeCheck> check_nodes(std::size_t nodes, const RunGroups& run) { return Check(nodes, run).all(); }

}  // namespace orrery
