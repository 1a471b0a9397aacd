// Logs of runs, by diagnose's code.
#include "cli/bench_readers.h"

#include <unistd.h>

#include <memory>

#include "base/byte_source.h"
#include "importers/log_text.h"
#include "rules/diagnose.h"

namespace orrery {
namespace {

constexpr std::size_t kLongestCause = 300;

// The rules as one automaton: made when first needed, some tenths of a second.
class Rules {
 public:
  Result<std::shared_ptr<Matcher>> get() {
    if (!matcher_) {
      const auto set = built_in_rules();
      if (!set) return tl::unexpected(set.error());
      Notes notes;
      auto made = Matcher::compile(*set, notes);
      if (!made) return made;
      matcher_ = *made;
    }
    return matcher_;
  }

 private:
  std::shared_ptr<Matcher> matcher_;
};

Result<LogTable> read_one(const std::string& path, const Matcher& matcher, bool shapes) {
  auto source = open_file(path);
  if (!source) return tl::unexpected(source.error());
  LogReadOptions how;
  how.shapes = shapes;
  return read_log(std::move(*source), path, matcher, how);
}

Result<FoundCause> diagnosed(Rules& rules, const std::vector<std::string>& logs) {
  const auto matcher = rules.get();
  if (!matcher) return tl::unexpected(matcher.error());
  LogTable all;
  for (const std::string& path : logs) {
    if (::access(path.c_str(), R_OK) != 0) continue;
    auto table = read_one(path, **matcher, true);
    if (!table) return tl::unexpected(table.error());
    append_log(all, std::move(*table));
  }
  const Diagnosis d = diagnose(all, **matcher);
  FoundCause v;
  if (d.verdict != Verdict::failed && d.verdict != Verdict::interrupted) return v;
  v.reason = d.reason;
  v.category = d.category;
  v.root_cause = d.evidence.empty() ? d.root_cause : d.evidence.front().text;
  if (v.root_cause.size() > kLongestCause) v.root_cause.resize(kLongestCause);
  v.advice = d.advice;
  return v;
}

}  // namespace

BenchReaders bench_readers(unsigned threads) {
  auto rules = std::make_shared<Rules>();
  BenchReaders r;
  r.diagnose = [rules](const std::vector<std::string>& logs) { return diagnosed(*rules, logs); };
  r.logged_steps = [rules](const std::string& log) -> Result<std::vector<LoggedStep>> {
    const auto matcher = rules->get();
    if (!matcher) return tl::unexpected(matcher.error());
    const auto table = read_one(log, **matcher, false);
    if (!table) return tl::unexpected(table.error());
    std::vector<LoggedStep> steps;
    for (std::size_t i = 0; i < table->steps.size(); ++i)
      steps.push_back({table->steps.step[i], table->steps.relative[i] == 0 ? table->steps.seconds[i] : -1});
    return steps;
  };
  r.dissect = [threads](const std::string& directory) { return dissected_shares(directory, threads); };
  return r;
}

}  // namespace orrery
