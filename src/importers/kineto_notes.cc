// Names, severities and advice of everything that can be odd about an event.
#include "importers/kineto_rows.h"

namespace orrery {
namespace {

struct OddityText {
  Oddity what;
  std::string_view name;
  Severity severity;
  std::string_view advice;
};

constexpr OddityText kTexts[] = {
    {Oddity::missing_value, "missing-value", Severity::warning,
     "NaN, N/A, Infinity or text where a number belongs: the field is missing, the event is kept"},
    {Oddity::time_as_text, "time-as-text", Severity::warning, "ts or dur in quotes; read as numbers"},
    {Oddity::no_time, "event-without-time", Severity::data_loss,
     "no ts, or one that is no number or does not fit 64-bit nanoseconds: the event cannot be used"},
    {Oddity::open_event, "open-event", Severity::warning,
     "no usable duration (missing, negative or beyond 11 days): closed at the end of its parent or of the window, on "
     "the "
     "GPU given zero length; left out of sums"},
    {Oddity::unknown_category, "unknown-category", Severity::info, "kept, but no model uses this kind of event"},
    {Oddity::unused_instant, "unused-instants", Severity::info, "instant events other than memory are not used"},
    {Oddity::unused_counter, "unused-counters", Severity::info, "counter events are not used"},
    {Oddity::unused_async, "unused-async-events", Severity::info, "async and object events are not used"},
    {Oddity::unused_flow_step, "unused-flow-steps", Severity::info, "only the start and the finish of a flow are used"},
    {Oddity::unknown_phase, "unknown-phase", Severity::warning, "no or an unknown \"ph\": the event is not used"},
    {Oddity::not_an_object, "not-an-object", Severity::warning, "an element of the events that is no event"},
    {Oddity::flow_without_id, "flow-without-id", Severity::warning, "a flow without a numeric id links nothing"},
    {Oddity::unpaired_begin_end, "unpaired-begin-end", Severity::warning,
     "\"B\" without \"E\" or the reverse on one thread: not used"},
    {Oddity::invalid_utf8, "invalid-utf8", Severity::warning, "bytes that are no UTF-8 were replaced by U+FFFD"},
    {Oddity::control_characters, "control-characters", Severity::warning,
     "raw control characters inside strings, which JSON forbids, were read as they are"},
    {Oddity::repeated_key, "repeated-key", Severity::warning,
     "a key given twice in one event: the last one counts (of two args, the keys of both)"},
    {Oddity::odd_rank, "rank-unreadable", Severity::warning,
     "args.rank is no whole number from 0 to 2147483647: the event counts as one that names no rank"},
    {Oddity::odd_number, "odd-number", Severity::warning,
     "numbers that JSON forbids (+5, 007, .5, 5.), read as what they say; those that name a lane count once a lane and "
     "window"},
    {Oddity::broken_escape, "broken-escape", Severity::warning,
     "strings with escapes that JSON does not have (\\q), kept as written"},
    {Oddity::lone_surrogate, "lone-surrogate", Severity::warning,
     "strings with half a UTF-16 pair (\\ud800), which was replaced by U+FFFD"},
    {Oddity::outside_window, "gpu-event-outside-window", Severity::warning,
     "GPU events far outside of the recorded window (wrong time stamps) were dropped"},
    {Oddity::far_event, "far-event", Severity::warning,
     "a few events over an hour away from all others (wrong time stamps) were dropped: they would stretch the window "
     "of the trace, and its only step where it has no step markers"},
    {Oddity::zero_time, "zero-time", Severity::warning, "events at time 0, far before all others, were dropped"},
    {Oddity::overrun, "duration-overrun", Severity::warning,
     "GPU tasks that run over 1 ms past the start of the next one on their stream: their recorded durations are "
     "doubtful"},
    {Oddity::fraction_not_padded, "fraction-not-padded", Severity::warning,
     "some times have one or two decimals, others end in padding zeros: early nanosecond builds wrote .005 as .5, so "
     "these "
     "times may be wrong by up to 1 us"},
};
static_assert(std::size(kTexts) == static_cast<std::size_t>(Oddity::count_));

}  // namespace

void Tallies::merge(const Tallies& later) {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].count == 0) rows_[i].first = later.rows_[i].first;
    rows_[i].count += later.rows_[i].count;
  }
}

void Tallies::clear() {
  for (Tally& t : rows_) {
    t.count = 0;
    t.first.clear();
  }
}

void Tallies::write(Notes& notes) const {
  for (const OddityText& t : kTexts) {
    const Tally& row = rows_[static_cast<std::size_t>(t.what)];
    notes.add(t.name, t.severity, row.count, row.first, t.advice);
  }
}

}  // namespace orrery
