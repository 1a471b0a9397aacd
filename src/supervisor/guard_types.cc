#include "supervisor/guard_types.h"

#include <array>

namespace orrery {
namespace {

template <class E, std::size_t N>
std::string_view nth(const std::array<std::string_view, N>& names, E value) {
  const auto i = static_cast<std::size_t>(value);
  return i < N ? names[i] : std::string_view();
}

}  // namespace

std::string_view name_of(EventKind kind) {
  static constexpr std::array<std::string_view, 23> names{
      "begin",      "resumed",  "started",     "not_started", "progress",    "finding",
      "lost",       "bad_loss", "no_progress", "straggler",   "preemption",  "time_limit_near",
      "ended",      "stacks",   "fenced",      "nodes",       "checkpoints", "saved",
      "stop_asked", "tick",     "queued",      "trouble",     "suspended"};
  return nth(names, kind);
}

std::string_view name_of(ActionKind kind) {
  static constexpr std::array<std::string_view, 12> names{
      "start",  "find",   "check_nodes", "list_nodes", "list_checkpoints", "drain",
      "stacks", "signal", "fence",       "wait",       "notify",           "stop"};
  return nth(names, kind);
}

std::string_view name_of(GuardPhase phase) {
  static constexpr std::array<std::string_view, 10> names{"nothing", "choosing", "starting", "running", "saving",
                                                          "dumping", "fencing",  "checking", "waiting", "stopped"};
  return nth(names, phase);
}

std::string_view name_of(GuardOutcome outcome) {
  static constexpr std::array<std::string_view, 4> names{"open", "done", "failed", "stopped"};
  return nth(names, outcome);
}

std::string_view name_of(FailureKind kind) {
  static constexpr std::array<std::string_view, 10> names{
      "none", "infrastructure", "program", "hang", "numbers", "interrupted", "straggler", "launch", "unknown", "held"};
  return nth(names, kind);
}

}  // namespace orrery
