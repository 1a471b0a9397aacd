#include "importers/log_records.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text_match.h"
#include "importers/log_prefix.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLongestRecord = std::size_t{64} << 10;

const Json* text_in(const Json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto it = object.find(key); it != object.end() && it->is_string()) return &*it;
  return nullptr;
}

// One part a line of the message, each behind what says whose it is.
void put_parts(const std::string& lead, std::string_view message, bool& first, std::string& out) {
  while (!message.empty() && (message.back() == '\n' || message.back() == '\r')) message.remove_suffix(1);
  for (std::size_t at = 0; at <= message.size();) {
    const std::size_t end = std::min(message.find('\n', at), message.size());
    if (!first) out += kRecordBreak;
    first = false;
    out += lead;
    out += message.substr(at, end - at);
    at = end + 1;
  }
}

bool open_record(std::string_view lead, std::string_view record, std::string& out) {
  if (record.size() > kLongestRecord) return false;
  const Json object = Json::parse(record, nullptr, false);
  if (!object.is_object()) return false;
  const Json* message = text_in(object, {"log", "message", "msg"});
  if (message == nullptr) return false;
  std::string before(lead);
  if (const Json* time = text_in(object, {"time", "timestamp", "ts", "@timestamp", "asctime"})) {
    std::size_t length = 0;
    const std::string& t = time->get_ref<const std::string&>();
    read_time(t, length);
    if (length == t.size()) before += t + " ";
  }
  if (const auto rank = object.find("rank"); rank != object.end() && rank->is_number_unsigned())
    before += "[rank" + rank->dump() + "]: ";
  bool first = true;
  put_parts(before, message->get_ref<const std::string&>(), first, out);
  for (const char* key : {"exc_info", "exception", "traceback", "stack_trace", "stack", "error"})
    if (const Json* more = text_in(object, {key})) put_parts(before, more->get_ref<const std::string&>(), first, out);
  // How bad the logger calls it.
  if (const Json* level = text_in(object, {"level", "levelname", "severity"})) {
    const std::string how = lower(level->get_ref<const std::string&>());
    const std::string_view all = message->get_ref<const std::string&>();
    if (how == "error" || how == "critical" || how == "fatal")
      put_parts(before, "level=error " + std::string(all.substr(0, all.find('\n'))), first, out);
  }
  // Numbers of a training step stay beside the words.
  std::string numbers;
  bool loss = false;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_number()) continue;
    numbers += (numbers.empty() ? "" : " ") + key + "=" + value.dump();
    loss |= key.find("loss") != std::string::npos;
  }
  if (loss) put_parts(before, numbers, first, out);
  return true;
}

}  // namespace

bool open_records(std::string_view text, std::string& out) {
  if (text.find("}\n") == std::string_view::npos) return false;
  bool any = false;
  out.clear();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    bool opened = false;
    if (!line.empty() && line.back() == '}') {
      const std::string_view record = line.front() == '{' ? line : split_prefix(line).message;
      if (record.size() > 1 && record[0] == '{' && record[1] == '"')
        opened = open_record(line.substr(0, line.size() - record.size()), record, out);
    }
    any |= opened;
    if (!opened) out += line;
    if (end < text.size()) out += '\n';
    at = end + 1;
  }
  return any;
}

}  // namespace orrery
