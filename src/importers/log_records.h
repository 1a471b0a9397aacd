// Lines that are JSON objects (Docker's json-file, structured loggers): the message in them is what was logged.
#pragma once
#include <string>
#include <string_view>

namespace orrery {

// Stands between the lines of one message: they keep the number of the line that they came in.
inline constexpr char kRecordBreak = '\x1e';

// `text` is whole lines. False: none of them is an object with a message, `out` is not to be used. Otherwise `out` has
// as many lines, each object replaced by its time, rank and message (a traceback as several parts).
bool open_records(std::string_view text, std::string& out);

}  // namespace orrery
