// The logs of an attempt, read while they grow: a thread a file, which keeps the rows that the rules ask for.
#pragma once
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rules/matcher.h"
#include "supervisor/watch.h"

namespace orrery {

inline constexpr std::string_view kSavingRule = "saving-checkpoint";  // id of the rule that tells when a save begins

struct LogNews {
  std::vector<StepSample> steps;    // that came since the last look, in order of their lines
  std::vector<std::int64_t> saves;  // iterations of saves that began since
  bool grew = false;
  bool saving = false;             // the last that was said of steps and saves, in whichever log, is a save
  std::string unreadable;          // a log that cannot be read now, and why; "" = all can
  std::optional<Finding> finding;  // where it changed since the last look
};

using SharedRules = std::shared_future<std::shared_ptr<Matcher>>;  // compiling them takes as long as starting a job

class AttemptLogs {
 public:
  // A file that is not there yet is waited for; one that is cut short or replaced is read from its begin, and one that
  // cannot be read is tried again and again. Precondition: the rules are never null.
  AttemptLogs(SharedRules rules, std::vector<std::string> paths);
  ~AttemptLogs();
  AttemptLogs(const AttemptLogs&) = delete;
  AttemptLogs& operator=(const AttemptLogs&) = delete;

  LogNews look();
  LogNews finish();  // reads to the end of what is there; look() must not be called afterwards

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace orrery
