// The supervisor's memory: one line an event with what was decided, appended and synced before anything is done.
//
//   {"crc":"1c291ca3","seq":7,"record":{"event":{...},"decision":{...}}}
//
// The checksum (CRC-32C) is of everything after it. A last line without its newline, or with bytes of value zero, was
// being written when the machine or the supervisor stopped: nothing had been done for it, and it is dropped. Any other
// line that is not as it was written is an error: what was done for it is not known.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "supervisor/guard_types.h"

namespace orrery {

struct JournalEntry {
  GuardEvent event;
  std::string kind, text;  // of the decision
  std::vector<std::string> evidence;
};

struct JournalRead {
  std::vector<JournalEntry> entries;
  std::uint64_t good_bytes = 0;
  bool torn = false;  // a last line was dropped
};

// Without a lock: also of a supervisor that runs. An absent file is an empty journal. Errors: a line that was altered,
// cannot be read.
Result<JournalRead> read_journal(const std::string& path);
Result<JournalRead> parse_journal(std::string_view text, const std::string& path);

// What became of it: decide() over all events.
GuardState replay(const std::vector<JournalEntry>& entries);

// One supervisor at a time has a state directory. Released when this process ends, however it does.
class StateLock {
 public:
  // Makes the directory (rights 0700) if it is not there. Errors: another supervisor has it (its process is named).
  static Result<StateLock> take(const std::string& directory);
  StateLock(StateLock&& other) noexcept;
  StateLock& operator=(StateLock&&) = delete;
  StateLock(const StateLock&) = delete;
  ~StateLock();

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};
bool is_locked(const std::string& directory);  // a supervisor has it now

class Journal {
 public:
  // Precondition: the caller has the directory's lock. `known` is what read_journal() said of it: a torn line is cut
  // off.
  static Result<Journal> open(const std::string& path, const JournalRead& known);
  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&&) = delete;
  Journal(const Journal&) = delete;
  ~Journal();

  // On storage when it returns. After an error nothing may be done for the event; it may be appended again.
  Status append(const GuardEvent& event, const Decision& decision);

 private:
  Journal(int fd, std::string path, std::uint64_t next, std::uint64_t size)
      : fd_(fd), path_(std::move(path)), next_(next), size_(size) {}
  int fd_ = -1;
  std::string path_;
  std::uint64_t next_ = 1, size_ = 0;  // of the next line, of the good ones
  bool torn_ = false;                  // something may stand behind them
};

}  // namespace orrery
