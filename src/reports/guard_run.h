// What became of a guarded job, while it runs and in the end.
#pragma once
#include "data/table.h"
#include "supervisor/guard_account.h"
#include "supervisor/journal.h"

namespace orrery {

struct GuardStory {
  std::string job;
  GuardState state;
  std::vector<JournalEntry> entries;  // all; those without a decision are left out
  GuardAccount account;
  bool guarded = false;  // a supervisor has the directory now
};

// Keys: job, state, attempt, step, restarts, goodput_pct, ettr_pct, ...; events, attempts, lost, saves.
Document guard_run_document(const GuardStory& story, Notes notes);

// "2026-11-30T22:18:26Z".
std::string utc(Ns at);

}  // namespace orrery
