#include "supervisor/failure.h"

#include <fmt/format.h>

namespace orrery {
namespace {

constexpr double kSure = 0.5;        // a finding below it explains nothing by itself
constexpr double kSureOfNode = 0.7;  // ... below it no node is left out for it

// Of those who may be restarted: a signal that the machine or a person sends, not the program's own mistake.
bool from_outside(int signal) { return signal == 9 || signal == 15 || signal == 1 || signal == 2; }

Failure interrupted(Failure f, const std::string& what, const std::string& cause) {
  f.kind = FailureKind::interrupted;
  f.reason = what;
  f.cause = cause;
  return f;
}

void from_finding(const Finding& found, Failure& f) {
  f.reason = found.reason.empty() ? "unknown" : found.reason;
  f.cause = f.reason;
  f.node = found.node;
  if (found.restart == "auto-rollback") {
    f.kind = FailureKind::numbers;
    f.cause = "loss";
  } else if (found.restart == "auto" || found.restart == "auto-exclude") {
    f.kind = FailureKind::infrastructure;
    f.exclude = found.restart == "auto-exclude" && !found.node.empty() && found.confidence >= kSureOfNode;
  } else {
    f.kind = FailureKind::program;
  }
}

}  // namespace

std::string describe_end(const AttemptState& end) {
  if (end.signal) return fmt::format("signal {}", *end.signal);
  if (end.exit_status) return fmt::format("exit status {}", *end.exit_status);
  return "ended, and nobody saw how";
}

std::string describe(const Finding& found) {
  std::string line = found.at.empty() ? found.text : found.at + ": " + found.text;
  if (!found.reason.empty() && found.reason != "None")
    line += fmt::format(" [{}, {}, restart: {}]", found.reason, found.category, found.restart);
  return line;
}

Failure classify(const GuardState& s, const AttemptState& end) {
  Failure f;
  f.step = s.step;
  f.at = s.now;
  f.lost = end.lost;
  std::string how = describe_end(end);
  if (end.reason != EndReason::none) how += fmt::format(", {}", name_of(end.reason));
  if (!end.detail.empty()) how += ": " + end.detail;
  f.evidence.push_back(how);
  const bool well = end.exit_status == 0;
  const Finding* found = s.finding ? &*s.finding : nullptr;
  if (found != nullptr && found->verdict != "healthy" && !found->text.empty()) f.evidence.push_back(describe(*found));

  if (end.reason == EndReason::launch_failed && end.lost.empty()) {
    f.kind = FailureKind::launch;
    f.reason = f.cause = "cannot be started";
    return f;
  }
  if (end.reason == EndReason::cancelled) {
    f.kind = FailureKind::program;  // a person wanted it to end: it is not started again behind their back
    f.reason = f.cause = "cancelled";
    return f;
  }
  if (end.reason == EndReason::node_fail || (!end.lost.empty() && !well)) {
    f.kind = FailureKind::infrastructure;
    f.reason = f.cause = "Node Failure";
    f.exclude = !f.lost.empty();
    if (!f.lost.empty()) f.node = f.lost.front();
    for (const std::string& n : f.lost)
      f.evidence.push_back(n + " does not answer: neither its keepers nor its daemon");
    return f;
  }
  const bool bad_numbers = found != nullptr && found->verdict == "failed" && found->restart == "auto-rollback";
  if (end.reason == EndReason::preempted) return interrupted(f, "Preemption", "preemption");
  if (end.reason == EndReason::time_limit) return interrupted(f, "Time Limit", "time limit");
  if (end.reason == EndReason::requeued) return interrupted(f, "Requeue", "requeue");
  if (end.reason == EndReason::out_of_memory && (found == nullptr || found->verdict != "failed")) {
    f.kind = FailureKind::program;
    f.reason = f.cause = "Out of Memory Error";
    return f;
  }
  if (bad_numbers && !(well && s.policy.bad_loss == OnBadLoss::report)) {
    from_finding(*found, f);
    return f;
  }
  const bool says_interrupted = found != nullptr && found->verdict == "interrupted";
  // It saved and ended on request: of someone other than the supervisor.
  if (well && says_interrupted) return interrupted(f, found->reason, "preemption");
  if (well && found != nullptr && found->sigterm) return interrupted(f, "SIGTERM from outside", "preemption");
  if (well) {
    f.reason = "done";
    return f;
  }
  // As liborrery_ckpt says it of its lock (src/checkpoint/writer.cc).
  if (found != nullptr && found->text.find("another writer has it") != std::string::npos) {
    f.kind = FailureKind::held;
    f.reason = "Checkpoints held by an attempt before";
    f.cause = "held";
    return f;
  }
  if (says_interrupted && found->confidence >= kSure)
    return interrupted(f, found->reason, found->reason == "Time Limit" ? "time limit" : "preemption");
  if (found != nullptr && found->verdict == "failed" && found->confidence >= kSure) {
    from_finding(*found, f);
    return f;
  }
  f.reason = describe_end(end);
  f.kind = FailureKind::unknown;
  f.cause = "unknown";
  if (!end.exit_status && (!end.signal || from_outside(*end.signal))) {
    f.kind = FailureKind::infrastructure;  // killed, or gone with whoever watched it: not of itself
    f.cause = "killed";
  }
  return f;
}

}  // namespace orrery
