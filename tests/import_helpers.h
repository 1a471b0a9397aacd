// Small hand-made traces for the tests of the importer.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "importers/importers.h"

namespace orrery::testing {

// One event each; `more` is inserted behind the fields: "\"args\": {...}".
inline std::string event(std::string_view name, std::string_view cat, std::string_view tid, std::string_view ts,
                         std::string_view dur, std::string_view more = {}) {
  std::string s = R"({"ph": "X", "cat": ")";
  s += cat;
  s += R"(", "name": ")";
  s += name;
  s += R"(", "pid": 1, "tid": )";
  s += tid;
  s += R"(, "ts": )";
  s += ts;
  s += R"(, "dur": )";
  s += dur;
  if (!more.empty()) (s += ", ") += more;
  return s + "}";
}
// X(name, cat, stream, ts, dur, corr) of the fault list: a GPU task of device 0.
inline std::string gpu(std::string_view name, std::string_view cat, std::string_view stream, std::string_view ts,
                       std::string_view dur, std::string_view corr) {
  std::string args = R"("args": {"device": 0, "stream": )";
  args += stream;
  args += R"(, "correlation": )";
  args += corr;
  return event(name, cat, stream, ts, dur, args + "}");
}
inline std::string kernel(std::string_view name, std::string_view stream, std::string_view ts, std::string_view dur,
                          std::string_view corr) {
  return gpu(name, "kernel", stream, ts, dur, corr);
}
// L(api, ts, dur, corr): a launch on CPU thread 100.
inline std::string launch(std::string_view api, std::string_view ts, std::string_view dur, std::string_view corr) {
  std::string args = R"("args": {"correlation": )";
  args += corr;
  return event(api, "cuda_runtime", "100", ts, dur, args + "}");
}
inline std::string cpu_op(std::string_view name, std::string_view ts, std::string_view dur) {
  return event(name, "cpu_op", "100", ts, dur);
}

inline std::string document(const std::vector<std::string>& events, std::string_view after = {}) {
  std::string s = "{\n\"schemaVersion\": 1,\n\"traceEvents\": [\n";
  for (std::size_t i = 0; i < events.size(); ++i) s += events[i] + (i + 1 < events.size() ? ",\n" : "\n");
  s += "]";
  if (!after.empty()) (s += ",\n") += after;
  return s + "\n}\n";
}

inline Result<RankTrace> import_text(std::string_view text, bool recover = false, unsigned threads = 1) {
  ImportOptions options;
  options.threads = threads;
  options.recover = recover;
  return import_kineto_bytes(text, "test.json", options);
}

inline const Note* note(const Notes& notes, std::string_view name) {
  for (const Note& n : notes.rows)
    if (n.name == name) return &n;
  return nullptr;
}
inline std::uint64_t noted(const Notes& notes, std::string_view name) {
  const Note* n = note(notes, name);
  return n == nullptr ? 0 : n->count;
}
inline std::string all_notes(const Notes& notes) {
  std::string s;
  for (const Note& n : notes.rows) s += n.name + " x" + std::to_string(n.count) + " (" + n.first + ") ";
  return s;
}

inline std::string name(const RankTrace& t, std::size_t row) { return std::string(t.strings.view(t.ops.name[row])); }

#define ORRERY_IMPORTED(result) ASSERT_TRUE(result.has_value()) << (result ? "" : result.error().line())

}  // namespace orrery::testing
