// What guard reads that others may have written: settings, a journal, heartbeats, lines that go to a webhook.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "supervisor/decide.h"
#include "supervisor/guard_options.h"
#include "supervisor/heartbeats.h"
#include "supervisor/journal.h"
#include "supervisor/secrets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orrery;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  GuardOptions options;
  (void)read_guard_options(text, "fuzz", options);
  if (const auto journal = parse_journal(text, "fuzz")) (void)replay(journal->entries);
  Beat beat;
  (void)read_beat(text, true, beat);
  (void)read_beat(text, false, beat);
  (void)without_secrets(text.substr(0, 4096));
  (void)replaced(std::string(text.substr(0, 4096)), {{"checkpoint", "step-5"}, {"attempt", "{state}"}});
  return 0;
}
