#include "reports/guard_run.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace orrery {
namespace {

constexpr std::size_t kShownEvents = 30;

Cell step_cell(std::int64_t step) { return step < 0 ? Cell() : Cell(step); }

std::string joined(const std::vector<std::string>& lines, const char* between) {
  std::string all;
  for (const std::string& l : lines) all += (all.empty() ? "" : between) + l;
  return all;
}

std::string state_name(const GuardState& s) {
  if (s.phase == GuardPhase::stopped) return std::string(name_of(s.outcome));
  if (s.phase == GuardPhase::running && s.attempts.back().is_suspended()) return "suspended";
  return std::string(name_of(s.phase));
}

Section head(const GuardStory& story) {
  const GuardState& s = story.state;
  Section section{.key = "", .title = "Guarded job", .single = true, .table = {}};
  section.table.columns = {{.key = "job"},
                           {.key = "state"},
                           {.key = "attempt"},
                           {.key = "step"},
                           {.key = "restarts"},
                           {.key = "goodput_pct", .title = "goodput %", .digits = 1},
                           {.key = "ettr_pct", .title = "ETTR %", .digits = 1},
                           {.key = "wall_s", .title = "wall s", .digits = 1},
                           {.key = "running_s", .title = "running s", .digits = 1},
                           {.key = "useful_s", .title = "useful s", .digits = 1},
                           {.key = "guarded"},
                           {.key = "saves", .json_only = true},
                           {.key = "saving_s", .json_only = true},
                           {.key = "why", .json_only = true}};
  const GuardAccount& a = story.account;
  section.table.rows.push_back({story.job, state_name(s), s.attempt, step_cell(s.step), a.restarts, 100 * a.goodput(),
                                100 * a.ettr(), a.wall_s, a.running_s, a.useful_s, story.guarded, a.saves, a.saving_s,
                                s.outcome_text.empty() ? Cell() : Cell(s.outcome_text)});
  // "saves" is the table's key.
  section.table.columns[11].key = "saves_completed";
  return section;
}

Section attempts(const GuardState& s, const GuardAccount& account) {
  Section section{.key = "attempts", .title = "Attempts", .table = {}};
  section.table.columns = {{.key = "attempt"},
                           {.key = "from", .title = "from"},
                           {.key = "skip", .title = "left out"},
                           {.key = "nodes", .json_only = true},
                           {.key = "first_step", .title = "first step"},
                           {.key = "last_step", .title = "last step"},
                           {.key = "to_first_step_s", .title = "to first step s", .digits = 2},
                           {.key = "ran_s", .title = "ran s", .digits = 2},
                           {.key = "ended", .title = "ended by"},
                           {.key = "step", .title = "after step"},
                           {.key = "kind", .json_only = true}};
  for (std::size_t i = 0; i < s.attempts.size(); ++i) {
    const AttemptRecord& a = s.attempts[i];
    const AttemptTime& time = account.attempts[i];
    const bool over = a.fenced != 0;
    const std::string skip = a.skip_to > a.skip_from ? fmt::format("{}:{}", a.skip_from, a.skip_to) : "";
    section.table.rows.push_back(
        {a.number, a.checkpoint.empty() ? Cell() : Cell(a.checkpoint), skip.empty() ? Cell() : Cell(skip),
         joined(a.nodes, ","), step_cell(time.first_step), step_cell(a.last_step),
         time.to_first_step_s < 0 ? Cell() : Cell(time.to_first_step_s), a.started == 0 ? Cell() : Cell(time.ran_s),
         over ? Cell(a.failure.reason) : Cell(), step_cell(a.failure.step),
         over ? Cell(std::string(name_of(a.failure.kind))) : Cell()});
  }
  return section;
}

Section lost(const GuardAccount& account) {
  Section section{.key = "lost", .title = "Time lost", .table = {}};
  section.table.columns = {{.key = "cause"},
                           {.key = "failures"},
                           {.key = "lost_s", .title = "lost s", .digits = 2},
                           {.key = "work_s", .title = "done again", .digits = 2},
                           {.key = "noticing_s", .title = "noticing", .digits = 2},
                           {.key = "ending_s", .title = "ending", .digits = 2},
                           {.key = "down_s", .title = "down", .digits = 2},
                           {.key = "starting_s", .title = "starting", .digits = 2}};
  for (const LostTime& l : account.lost)
    section.table.rows.push_back(
        {l.cause, l.failures, l.all_s(), l.work_s, l.noticing_s, l.ending_s, l.down_s, l.starting_s});
  return section;
}

Section saves(const GuardState& s) {
  Section section{.key = "saves", .title = "Saves", .table = {}, .text_rows = 10};
  section.table.columns = {{.key = "time", .json_only = true},
                           {.key = "attempt"},
                           {.key = "step"},
                           {.key = "checkpoint"},
                           {.key = "cost_ms", .title = "training stood still, ms", .digits = 1}};
  for (const SaveRecord& r : s.saves)
    section.table.rows.push_back({utc(r.at), r.attempt, r.step, r.id, r.cost_s < 0 ? Cell() : Cell(1e3 * r.cost_s)});
  return section;
}

Section events(const std::vector<JournalEntry>& entries) {
  Section section{.key = "events", .title = "Decisions (the last of them)", .table = {}};
  section.table.columns = {{.key = "time"}, {.key = "kind"},     {.key = "decision"},
                           {.key = "text"}, {.key = "evidence"}, {.key = "step", .json_only = true}};
  for (const JournalEntry& e : entries) {
    if (e.kind.empty()) continue;
    section.table.rows.push_back({utc(e.event.at), std::string(name_of(e.event.kind)), e.kind, e.text,
                                  joined(e.evidence, "; "), step_cell(e.event.step)});
  }
  return section;
}

}  // namespace

std::string utc(Ns at) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(static_cast<std::time_t>(at / 1'000'000'000)));
}

Document guard_run_document(const GuardStory& story, Notes notes) {
  Document d;
  d.command = "guard";
  d.notes = std::move(notes);
  d.sections.push_back(head(story));
  d.sections.push_back(attempts(story.state, story.account));
  d.sections.push_back(lost(story.account));
  if (!story.state.saves.empty()) d.sections.push_back(saves(story.state));
  Section all = events(story.entries);
  Section last = all;
  all.title.clear();
  const std::size_t n = last.table.rows.size();
  if (n > kShownEvents)
    last.table.rows.erase(last.table.rows.begin(), last.table.rows.end() - static_cast<std::ptrdiff_t>(kShownEvents));
  last.key = "last_events";
  for (Column& c : last.table.columns) c.text_only = true;
  last.table.columns.pop_back();
  for (auto& row : last.table.rows) row.pop_back();
  d.sections.push_back(std::move(all));
  d.sections.push_back(std::move(last));
  return d;
}

}  // namespace orrery
