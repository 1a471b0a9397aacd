#include <simdjson.h>

#include <algorithm>
#include <set>

#include "base/json_text.h"
#include "base/number_text.h"
#include "importers/kineto.h"

namespace orrery {
namespace {

namespace dom = simdjson::dom;

std::int64_t integer(dom::element e, std::int64_t missing) {
  std::int64_t v = 0;
  if (e.get(v) == simdjson::SUCCESS) return v;
  double d = 0;
  if (e.get(d) == simdjson::SUCCESS && d > -9e18 && d < 9e18) return static_cast<std::int64_t>(d);
  std::string_view s;
  if (e.get(s) == simdjson::SUCCESS && read_int(s, v) == NumberState::ok) return v;
  return missing;
}

// The member `key`; of several the last.
bool find(dom::object o, std::string_view key, dom::element& e) {
  bool found = false;
  for (auto field : o)
    if (field.key == key) e = field.value, found = true;
  return found;
}

std::int64_t integer(dom::object o, std::string_view key, std::int64_t missing) {
  dom::element e;
  return find(o, key, e) ? integer(e, missing) : missing;
}

std::string text(dom::object o, std::string_view key) {
  std::string_view s;
  dom::element e;
  if (find(o, key, e) && e.get(s) == simdjson::SUCCESS) return std::string(s);
  const std::int64_t v = integer(o, key, INT64_MIN);
  return v == INT64_MIN ? std::string() : std::to_string(v);
}

std::int32_t small(std::int64_t v) { return static_cast<std::int32_t>(std::clamp<std::int64_t>(v, 0, INT32_MAX)); }

// [0, 1], "[0, 1]", or {"0": 0, "1": 1} with the ranks as keys.
std::vector<std::int32_t> rank_list(dom::element e) {
  std::vector<std::int32_t> ranks;
  auto from_text = [&](std::string_view s) {
    for (std::size_t i = 0; i < s.size();) {
      std::size_t j = i;
      while (j < s.size() && s[j] >= '0' && s[j] <= '9') ++j;
      std::int64_t v = 0;
      if (j > i && read_int(s.substr(i, j - i), v) == NumberState::ok && v <= INT32_MAX)
        ranks.push_back(static_cast<std::int32_t>(v));
      i = j + 1;
    }
  };
  dom::array a;
  dom::object o;
  std::string_view s;
  if (e.get(a) == simdjson::SUCCESS) {
    for (dom::element r : a) {
      const std::int64_t v = integer(r, -1);
      if (v >= 0 && v <= INT32_MAX) ranks.push_back(static_cast<std::int32_t>(v));
    }
  } else if (e.get(o) == simdjson::SUCCESS) {
    for (auto field : o) from_text(field.key);
  } else if (e.get(s) == simdjson::SUCCESS) {
    from_text(s);
  }
  return ranks;
}

ProcessGroup process_group(std::string_view key, dom::object o) {
  ProcessGroup g;
  auto first = [&](std::initializer_list<std::string_view> keys) {
    for (const std::string_view k : keys)
      if (std::string s = text(o, k); !s.empty()) return s;
    return std::string();
  };
  g.name = first({"pg_name", "name", "pg_id"});
  if (g.name.empty()) g.name = key;
  g.desc = first({"pg_desc", "desc", "group_desc"});
  g.backend = first({"backend_config", "backend"});
  for (const std::string_view k : {"ranks", "pg_ranks"}) {
    dom::element e;
    if (find(o, k, e)) g.ranks = rank_list(e);
  }
  for (const std::string_view k : {"pg_size", "group_size", "size"})
    if (g.size == 0) g.size = std::max<std::int64_t>(0, integer(o, k, 0));
  if (g.size == 0) g.size = static_cast<std::int64_t>(g.ranks.size());
  return g;
}

void note_unreadable(RankTrace& t, const std::string& what, std::string_view advice) {
  t.notes.add("metadata-unreadable", Severity::warning, 1, what, advice);
}
constexpr std::string_view kNotUsed = "this part of the metadata was not used";

void note_repeated(RankTrace& t, std::string_view key, std::uint64_t times) {
  t.notes.add("metadata-repeated", Severity::warning, times, key,
              "a key of the metadata given more than once: the last one counts");
}

// A count or a rank of distributedInfo: a whole number from `least` on, else `missing` and a note.
std::int64_t whole(dom::object o, std::string_view key, std::int64_t least, std::int64_t missing, RankTrace& t) {
  dom::element e;
  if (!find(o, key, e) || e.is_null()) return missing;
  const std::string as_written = simdjson::minify(e);
  std::int64_t v = 0;
  std::string_view s = as_written;
  if (s.size() >= 2 && s.front() == '"') s = s.substr(1, s.size() - 2);
  if (read_int(s, v) != NumberState::ok || v < least) {
    note_unreadable(t, std::string(key) + " " + quote_for_people(as_written, 40) + " of distributedInfo", kNotUsed);
    return missing;
  }
  if (s != std::to_string(v))
    t.notes.add("odd-number", Severity::warning, 1,
                std::string(key) + " " + quote_for_people(as_written, 40) + " of distributedInfo",
                "read as the whole number that it is");
  return v;
}

void groups_of(dom::element config, RankTrace& t) {
  dom::array a;
  dom::object o;
  if (config.get(a) == simdjson::SUCCESS) {
    for (dom::element e : a)
      if (dom::object g; e.get(g) == simdjson::SUCCESS) t.groups.push_back(process_group({}, g));
  } else if (config.get(o) == simdjson::SUCCESS) {
    for (auto field : o)
      if (dom::object g; field.value.get(g) == simdjson::SUCCESS) t.groups.push_back(process_group(field.key, g));
  }
}

// distributedInfo has been an object, the text of one, and an object inside of "metadata".
void distributed_info(dom::object o, RankTrace& t) {
  std::set<std::string_view> keys;
  for (auto field : o)
    if (!keys.insert(field.key).second) note_repeated(t, std::string(field.key) + " of distributedInfo", 1);
  for (const std::string_view k : {"rank", "global_rank"})
    if (t.rank < 0) t.rank = whole(o, k, 0, -1, t);
  if (const std::int64_t world = whole(o, "world_size", 1, 0, t); world > 0) t.world_size = world;
  for (const std::string_view k : {"hostname", "host_name", "host"})
    if (t.host.empty()) t.host = text(o, k);
  dom::element config;
  if (find(o, "pg_config", config) && t.groups.empty()) {
    std::string_view inner;
    dom::parser parser;
    dom::element parsed;
    if (config.get(inner) == simdjson::SUCCESS) {
      if (const auto error = parser.parse(simdjson::padded_string(inner)).get(parsed))
        note_unreadable(t, std::string("pg_config: ") + simdjson::error_message(error), kNotUsed);
      else
        groups_of(parsed, t);
    } else {
      groups_of(config, t);
    }
  }
}

void devices_of(dom::array a, RankTrace& t) {
  for (dom::element e : a) {
    dom::object o;
    if (e.get(o) != simdjson::SUCCESS) continue;
    Device d;
    d.id = integer(o, "id", static_cast<std::int64_t>(t.devices.size()));
    d.name = text(o, "name");
    d.memory_bytes = std::max<std::int64_t>(0, integer(o, "totalGlobalMem", 0));
    d.sms = small(integer(o, "numSms", 0));
    d.compute_major = small(integer(o, "computeMajor", 0));
    d.compute_minor = small(integer(o, "computeMinor", 0));
    t.devices.push_back(std::move(d));
  }
}

// "worker3_step", "rank3", "dp-03.x": a word, the rank's own number (of an unknown rank: any) and what may follow.
bool names_worker(std::string_view name, std::int64_t rank) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto letter = [](char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; };
  const auto number = std::find_if(name.begin(), name.end(), digit);
  const auto after = std::find_if_not(number, name.end(), digit);
  if (number == name.begin() || number == name.end()) return false;
  if (!std::all_of(name.begin(), number, [&](char c) { return letter(c) || c == '-' || c == '_'; })) return false;
  if (after != name.end() && *after != '-' && *after != '_' && *after != '.') return false;
  std::int64_t n = 0;
  if (read_int({&*number, static_cast<std::size_t>(after - number)}, n) != NumberState::ok) return false;
  return rank < 0 || n == rank;
}

// tensorboard_trace_handler names files HOST_PID.TIME.pt.trace.json, unless it was given another name for the worker.
// The process is one of the trace's then; where it is not and the rest looks like a worker's name, there is no host in
// it.
std::string host_in_trace_name(std::string_view name, const RankTrace& t) {
  const std::size_t slash = name.rfind('/');
  if (slash != std::string_view::npos) name.remove_prefix(slash + 1);
  const std::size_t end = name.find(".pt.trace.json");
  if (end == std::string_view::npos) return {};
  name = name.substr(0, end);
  auto digits_from = [&](std::size_t from, std::size_t to) {
    return from < to &&
           std::all_of(name.begin() + static_cast<std::ptrdiff_t>(from), name.begin() + static_cast<std::ptrdiff_t>(to),
                       [](char c) { return c >= '0' && c <= '9'; });
  };
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || !digits_from(dot + 1, name.size())) return {};
  const std::size_t underscore = name.rfind('_', dot);
  if (underscore == std::string_view::npos || underscore == 0 || !digits_from(underscore + 1, dot)) return {};
  const std::string_view host = name.substr(0, underscore);
  std::int64_t pid = -1;
  bool known = false;
  if (read_int(name.substr(underscore + 1, dot - underscore - 1), pid) == NumberState::ok)
    for (std::size_t l = 0; l < t.lanes.size(); ++l)
      known = known || (t.lanes.kind[l] == LaneKind::thread && t.lanes.pid[l] == pid);
  if (!known && names_worker(host, t.rank)) return {};
  return std::string(host);
}

}  // namespace

void read_metadata(const std::vector<MetadataMember>& members, RankTrace& t) {
  dom::parser parser;
  for (const MetadataMember& m : members) {
    if (m.repeated != 0) note_repeated(t, m.key, m.repeated);
    if (m.key == "baseTimeNanoseconds") {
      std::string_view s = m.text;
      while (!s.empty() && is_json_space(s.back())) s.remove_suffix(1);
      if (s.size() >= 2 && s.front() == '"') s = s.substr(1, s.size() - 2);
      std::int64_t base = 0;
      const bool read = read_int(s, base) == NumberState::ok;
      if (read) t.base_ns = base;
      if (read && !plainly_written(s))
        t.notes.add("odd-number", Severity::warning, 1, "baseTimeNanoseconds " + quote_for_people(s, 40),
                    "read as the whole number that it is");
      if (!read)
        t.notes.add(
            "base-time-unreadable", Severity::warning, 1, quote_for_people(s, 60),
            "baseTimeNanoseconds is no 64-bit integer: times are relative and cannot be compared between ranks");
      continue;
    }
    std::string repaired;
    repair_json_characters(m.text, repaired);
    dom::element e;
    if (const auto error = parser.parse(simdjson::padded_string(repaired)).get(e)) {
      note_unreadable(t, m.key + ": " + simdjson::error_message(error), kNotUsed);
      continue;
    }
    dom::object o;
    dom::array a;
    std::string_view s;
    if (m.key == "traceName") {
      if (e.get(s) == simdjson::SUCCESS)
        t.trace_name = s;
      else if (!e.is_null())
        note_unreadable(t, "traceName is no text", kNotUsed);
    } else if (m.key == "deviceProperties") {
      if (e.get(a) == simdjson::SUCCESS) {
        devices_of(a, t);
      } else if (!e.is_null()) {
        note_unreadable(t, "deviceProperties is no list", kNotUsed);
      }
    } else if (m.key == "host_name" || m.key == "hostname") {
      if (e.get(s) == simdjson::SUCCESS)
        t.host = s;
      else if (!e.is_null())
        note_unreadable(t, m.key + " is no text", kNotUsed);
    } else if (m.key == "distributedInfo") {
      dom::parser inner;
      dom::element parsed;
      if (e.get(o) == simdjson::SUCCESS)
        distributed_info(o, t);
      else if (e.get(s) == simdjson::SUCCESS &&
               inner.parse(simdjson::padded_string(s)).get(parsed) == simdjson::SUCCESS &&
               parsed.get(o) == simdjson::SUCCESS)
        distributed_info(o, t);
      else
        note_unreadable(t, "distributedInfo is no object", kNotUsed);
    } else if (e.get(o) == simdjson::SUCCESS) {  // "metadata", "otherData"
      dom::element info;
      dom::object inner;
      if (find(o, "distributedInfo", info) && info.get(inner) == simdjson::SUCCESS) distributed_info(inner, t);
    }
  }
  if (t.host.empty()) t.host = host_in_trace_name(t.trace_name, t);
  if (t.host.empty()) t.host = host_in_trace_name(t.file, t);
}

}  // namespace orrery
