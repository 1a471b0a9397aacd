#include "importers/pipeline_steps.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/json_text.h"
#include "base/median.h"

namespace orrery {
namespace {

using simdjson::dom::element;

constexpr Ns kLongestStep = 10'000'000'000'000;  // ns; what is further away is not of the step
constexpr double kLatest = 4e18;                 // ns; leaves room for sums
constexpr std::int64_t kMostRanks = 1 << 20;     // along one dimension
constexpr std::size_t kMostTypes = 256;          // of operations
constexpr Ns kBetweenSteps = 1'000'000;          // where the file does not say when a step began
constexpr std::string_view kJob = "a job's steps";

bool to_ns(element value, double scale, Ns& out) {
  double v = 0;
  if (value.get_double().get(v) != simdjson::SUCCESS) return false;
  v *= scale;
  if (!std::isfinite(v) || std::abs(v) > kLatest) return false;
  out = std::llround(v);
  return true;
}

// A whole number that may be written as 3 or 3.0; else `none`.
std::int64_t whole(simdjson::simdjson_result<element> value, std::int64_t none) {
  std::int64_t n = 0;
  if (value.get_int64().get(n) == simdjson::SUCCESS) return n;
  double v = 0;
  if (value.get_double().get(v) == simdjson::SUCCESS && std::abs(v) < 1e15 && v == std::floor(v))
    return static_cast<std::int64_t>(v);
  return none;
}

std::int32_t small(std::int64_t n) {  // -1 = not a number of a micro-batch, a chunk, a rank
  return n >= 0 && n < kMostRanks ? static_cast<std::int32_t>(n) : -1;
}

// ---- documents, value by value: what is cut or broken must not take the rest with it -------------------------------

class Walker {
 public:
  Walker(std::string_view text, const std::string& file, bool recover, Notes& notes)
      : text_(text), file_(file), recover_(recover), notes_(notes) {}

  std::size_t skip_space(std::size_t at) const {
    while (at < text_.size() && is_json_space(text_[at])) ++at;
    return at;
  }
  char at(std::size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  // Elements of the array that opens at `open`. `use` says what is wrong with one, or "".
  Status elements(std::size_t open, const std::function<std::string(std::string_view)>& use) {
    return walk(open + 1, ']', [&](std::size_t from, std::size_t& end) { return element_at(from, end, use); });
  }
  // Members of the object that opens at `open`; `stop` may end the walk early by returning true.
  Status members(std::size_t open, const std::function<std::string(std::string_view key, std::size_t value)>& enter,
                 const std::function<std::string(std::string_view key, std::string_view value)>& use) {
    return walk(open + 1, '}', [&](std::size_t from, std::size_t& end) -> Status {
      const JsonScan key = scan_json_value(text_, from);
      if (at(from) != '"' || key.state == JsonScan::State::bad) return broken(from, "expected a key", end);
      if (key.state == JsonScan::State::cut) return cut(from);
      const std::string_view name = text_.substr(from + 1, key.at - from - 2);
      const std::size_t colon = skip_space(key.at);
      if (colon >= text_.size()) return cut(from);
      if (text_[colon] != ':') return broken(colon, "expected ':'", end);
      const std::size_t value = skip_space(colon + 1);
      if (enter) {
        if (enter(name, value) == "done") {
          done_ = true;
          return {};
        }
      }
      return element_at(value, end, [&](std::string_view v) { return use(name, v); });
    });
  }

 private:
  Status element_at(std::size_t from, std::size_t& end, const std::function<std::string(std::string_view)>& use) {
    const JsonScan scan = scan_json_value(text_, from);
    if (scan.state == JsonScan::State::cut) return cut(from);
    if (scan.state == JsonScan::State::bad) return broken(scan.at, json_problem(scan), end);
    end = scan.at;
    const std::string wrong = use(text_.substr(from, scan.at - from));
    if (wrong.empty()) return {};
    if (!recover_) return error(from, wrong);
    lost(from, wrong);
    return {};
  }

  template <class Element>
  Status walk(std::size_t from, char close, Element&& element) {
    std::size_t i = skip_space(from);
    if (at(i) == close && i < text_.size()) return {};
    while (!done_) {
      i = skip_space(i);
      if (i >= text_.size()) return cut(i);
      std::size_t end = i;
      if (Status s = element(i, end); !s || done_) return s;
      i = skip_space(end);
      if (i >= text_.size()) return cut(i);
      if (text_[i] == close) return {};
      if (text_[i] != ',') {
        if (!recover_) return error(i, "expected ',' or the end");
        lost(i, "expected ',' or the end");
        i = text_.find(',', i);
        if (i == std::string_view::npos) return cut(text_.size());
      }
      ++i;
    }
    return {};
  }

  tl::unexpected<Error> error(std::size_t at_byte, const std::string& what) const {
    return fail(fmt::format("not a valid file of {}: {} at byte {}", kJob, what, at_byte), file_,
                "--recover skips what is broken");
  }
  Status broken(std::size_t at_byte, const std::string& what, std::size_t& end) {
    if (!recover_) return error(at_byte, what);
    lost(at_byte, what);
    const std::size_t next = text_.find("},", at_byte);  // behind the element, or inside of it: then once more
    end = next == std::string_view::npos ? text_.size() : next + 1;
    return {};
  }
  void lost(std::size_t at_byte, const std::string& what) {
    notes_.add("broken-json", Severity::data_loss, 1, fmt::format("{}: {} at byte {}", file_, what, at_byte),
               "skipped");
  }
  Status cut(std::size_t from) {
    done_ = true;
    notes_.add("truncated", Severity::data_loss, 1,
               fmt::format("{}: the text ends at byte {}, {} bytes after the last whole value", file_, text_.size(),
                           text_.size() - std::min(from, text_.size())),
               "what comes before is used");
    return {};
  }

  std::string_view text_;
  const std::string& file_;
  bool recover_;
  Notes& notes_;
  bool done_ = false;
};

// ---- a Chrome trace of operations ----------------------------------------------------------------------------------

struct LaneName {
  std::int32_t pp = -1, tp = 0, dp = -1;
  std::string lane;  // "compute", "pp-comm", "dp-comm"
};

// The number behind `word` in `text`, -1 = none.
std::int32_t number_after(std::string_view text, std::string_view word) {
  std::size_t i = text.find(word);
  if (i == std::string_view::npos) return -1;
  i += word.size();
  while (i < text.size() && (text[i] == ' ' || text[i] == '[' || text[i] == '=' || text[i] == ':')) ++i;
  std::int64_t n = -1;
  for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) && n < kMostRanks; ++i)
    n = std::max<std::int64_t>(n, 0) * 10 + (text[i] - '0');
  return small(n);
}

LaneName lane_of(std::string_view name) {
  LaneName lane;
  lane.pp = number_after(name, "PP rank");
  lane.dp = number_after(name, "DP rank");
  lane.tp = std::max(0, number_after(name, "TP rank"));
  const std::size_t comma = name.rfind(',');
  std::string_view last = comma == std::string_view::npos ? name : name.substr(comma + 1);
  while (!last.empty() && last.front() == ' ') last.remove_prefix(1);
  lane.lane = std::string(last);
  return lane;
}

PipelineKind kind_of(std::string_view name, std::string_view lane) {
  const auto has = [&](std::string_view word) { return name.find(word) != std::string_view::npos; };
  if (name == "forward-compute" || name == "forward") return PipelineKind::forward;
  if (name == "backward-compute" || name == "backward" || name == "backward-input") return PipelineKind::backward;
  if (name == "backward-weight" || name == "weight-compute" || name == "weight") return PipelineKind::weight;
  if (has("forward") && has("send")) return PipelineKind::send_forward;
  if (has("forward") && has("recv")) return PipelineKind::recv_forward;
  if (has("backward") && has("send")) return PipelineKind::send_backward;
  if (has("backward") && has("recv")) return PipelineKind::recv_backward;
  if (lane.find("comm") != std::string_view::npos) return PipelineKind::collective;
  return PipelineKind::compute;
}

class Timeline {
 public:
  explicit Timeline(PipelineFile& out) : out_(out) {}

  std::string use(std::string_view text) {
    element event;
    if (const auto e = parser_.parse(text.data(), text.size()).get(event)) return simdjson::error_message(e);
    if (!event.is_object()) {
      unused("unused-event", "no object", text);
      return "";
    }
    std::string_view ph;
    if (event["ph"].get_string().get(ph) != simdjson::SUCCESS) ph = "";
    if (ph == "M") {
      metadata(event);
    } else if (ph == "X") {
      operation(event, text);
    } else {
      unused("unused-event", "neither an operation nor a name", text);
    }
    return "";
  }

  // Once all names are known: which rank each operation is of.
  void finish() {
    std::uint64_t nowhere = 0;
    std::string first;
    for (const Raw& raw : raw_) {
      const auto lane = lanes_.find({raw.pid, raw.tid});
      if (lane == lanes_.end() || lane->second.pp < 0) {
        if (++nowhere == 1) first = fmt::format("{} of pid {}, tid {}", raw.name, raw.pid, raw.tid);
        continue;
      }
      PipelineFile::Operation o = raw.operation;
      o.pp = lane->second.pp;
      o.tp = lane->second.tp;
      o.dp = lane->second.dp;
      if (o.dp < 0) {
        const auto process = processes_.find(raw.pid);
        o.dp = process != processes_.end() ? process->second : small(raw.pid);
      }
      if (o.dp < 0) {
        if (++nowhere == 1) first = fmt::format("{} of pid {}", raw.name, raw.pid);
        continue;
      }
      if (!type_of(raw.name, lane->second.lane, o.type)) continue;
      const PipelineKind k = out_.types[o.type].kind;
      if (is_pass(k) && o.micro_batch < 0) o.micro_batch = raw.sequence;
      if (is_pass(k) && o.chunk < 0) o.chunk = 0;
      if (!is_pass(k)) o.micro_batch = o.chunk = -1;  // of transfers it is told from their order
      out_.operations.push_back(o);
    }
    out_.notes.add("operation-without-rank", Severity::data_loss, nowhere, first,
                   "its thread has no name like \"PP rank 0, TP rank 0, compute\": not used");
  }

 private:
  struct Raw {
    PipelineFile::Operation operation;
    std::int64_t pid = 0, tid = 0;
    std::int32_t sequence = -1;
    std::string name;
  };

  void metadata(element event) {
    std::string_view what, name;
    if (event["name"].get_string().get(what) != simdjson::SUCCESS) return;
    if (event["args"]["name"].get_string().get(name) != simdjson::SUCCESS) return;
    const std::int64_t pid = whole(event["pid"], -1);
    if (what == "thread_name") lanes_[{pid, whole(event["tid"], -1)}] = lane_of(name);
    if (what == "process_name")
      if (const std::int32_t dp = number_after(name, "DP rank"); dp >= 0) processes_[pid] = dp;
  }

  void operation(element event, std::string_view text) {
    Raw raw;
    std::string_view name;
    element ts, dur;
    PipelineFile::Operation& o = raw.operation;
    Ns length = 0;
    if (event["name"].get_string().get(name) != simdjson::SUCCESS || event["ts"].get(ts) != simdjson::SUCCESS ||
        event["dur"].get(dur) != simdjson::SUCCESS || !to_ns(ts, 1e3, o.start) || !to_ns(dur, 1e3, length) ||
        length < 0) {
      return unused("operation-without-time", "name, ts or dur missing or not usable", text, Severity::data_loss);
    }
    o.end = o.start + length;
    o.step = whole(event["args"]["step"], -1);
    if (o.step < 0) return unused("operation-without-step", "no args.step", text, Severity::data_loss);
    o.micro_batch = small(whole(event["args"]["mb_id"], -1));
    o.chunk = small(whole(event["args"]["model_chunk"], -1));
    if (o.micro_batch >= 0) out_.has_micro_batches = true;
    raw.sequence = small(whole(event["args"]["seq_id"], -1));
    raw.pid = whole(event["pid"], -1);
    raw.tid = whole(event["tid"], -1);
    raw.name = std::string(name);
    raw_.push_back(std::move(raw));
  }

  bool type_of(const std::string& name, const std::string& lane, std::uint32_t& type) {
    const auto [it, fresh] = types_.emplace(name, static_cast<std::uint32_t>(out_.types.size()));
    if (fresh) {
      if (out_.types.size() >= kMostTypes) {
        types_.erase(it);
        out_.notes.add("too-many-types", Severity::data_loss, 1, quote_for_people(name, 80),
                       "a job has a few kinds of operations: this one is not used");
        return false;
      }
      out_.types.push_back({name, kind_of(name, lane)});
    }
    type = it->second;
    return true;
  }

  void unused(std::string_view note, std::string_view why, std::string_view text, Severity severity = Severity::info) {
    out_.notes.add(note, severity, 1, fmt::format("{}: {}", why, quote_for_people(text, 80)), "not used");
  }

  PipelineFile& out_;
  simdjson::dom::parser parser_;
  std::vector<Raw> raw_;
  std::map<std::pair<std::int64_t, std::int64_t>, LaneName> lanes_;
  std::map<std::int64_t, std::int32_t> processes_;
  std::map<std::string, std::uint32_t> types_;
};

Status read_timeline(std::string_view text, bool recover, PipelineFile& out) {
  Timeline timeline(out);
  Walker walker(text, out.file, recover, out.notes);
  const auto use = [&](std::string_view event) { return timeline.use(event); };
  const std::size_t open = walker.skip_space(0);
  if (walker.at(open) == '[') {
    if (Status s = walker.elements(open, use); !s) return s;
  } else {
    std::size_t events = std::string_view::npos;
    const auto enter = [&](std::string_view key, std::size_t value) -> std::string {
      if (key != "traceEvents" || walker.at(value) != '[') return "";
      events = value;
      return "done";
    };
    if (Status s = walker.members(open, enter, [](auto, auto) { return std::string(); }); !s) return s;
    if (events == std::string_view::npos) return fail(fmt::format("not a file of {}: no traceEvents", kJob), out.file);
    Walker inside(text, out.file, recover, out.notes);
    if (Status s = inside.elements(events, use); !s) return s;
  }
  timeline.finish();
  return {};
}

// ---- starts and ends of passes -------------------------------------------------------------------------------------

bool times_of(element iteration, const char* key, std::vector<Ns>& out) {
  simdjson::dom::array values;
  if (iteration[key].get_array().get(values) != simdjson::SUCCESS) return false;
  for (const element v : values) {
    Ns t = 0;
    if (!to_ns(v, 1e6, t) || t > kLongestStep || t < -kLongestStep) return false;
    out.push_back(t);
  }
  return true;
}

std::string add_iteration(simdjson::dom::parser& parser, std::string_view key, std::string_view text,
                          PipelineFile& out) {
  element iteration;
  if (const auto e = parser.parse(text.data(), text.size()).get(iteration)) return simdjson::error_message(e);
  std::int64_t step = -1;
  const auto [at, error] = std::from_chars(key.data(), key.data() + key.size(), step);
  if (error != std::errc() || at != key.data() + key.size() || step < 0 || !iteration.is_object()) {
    out.notes.add("unused-member", Severity::info, 1, out.file + ": " + quote_for_people(key, 40), "no iteration");
    return "";
  }
  const auto lost = [&](std::string_view why) {
    out.notes.add("iteration-not-usable", Severity::data_loss, 1,
                  fmt::format("{}: iteration {}: {}", out.file, step, why), "left out on this rank");
    return std::string();
  };
  std::array<std::vector<Ns>, 2> start, end;  // forward, backward
  if (!times_of(iteration, "fwd_start", start[0]) || !times_of(iteration, "fwd_end", end[0]) ||
      !times_of(iteration, "bwd_start", start[1]) || !times_of(iteration, "bwd_end", end[1]))
    return lost("starts and ends must be lists of milliseconds");
  if (start[0].size() != end[0].size() || start[1].size() != end[1].size() || start[0].empty())
    return lost("starts and ends do not pair");
  Ns last = 0;
  for (std::uint32_t pass = 0; pass < 2; ++pass)
    for (std::size_t i = 0; i < start[pass].size(); ++i) {
      if (end[pass][i] < start[pass][i]) return lost("a pass ends before it starts");
      last = std::max(last, end[pass][i]);
    }
  if (std::any_of(out.step_ends.begin(), out.step_ends.end(), [&](const auto& s) { return s.first == step; }))
    return lost("it is there twice");
  for (std::uint32_t pass = 0; pass < 2; ++pass)
    for (std::size_t i = 0; i < start[pass].size(); ++i) {
      PipelineFile::Operation o;
      o.step = step;
      o.type = pass;
      o.start = start[pass][i];
      o.end = end[pass][i];
      out.operations.push_back(o);
    }
  Ns total = 0;
  element value;
  if (iteration["total"].get(value) != simdjson::SUCCESS || !to_ns(value, 1e6, total) || total < last ||
      total > kLongestStep)
    total = last;
  out.step_ends.emplace_back(step, total);
  return "";
}

Status read_passes(std::string_view text, bool recover, PipelineFile& out) {
  out.types = {{"forward", PipelineKind::forward}, {"backward", PipelineKind::backward}};
  simdjson::dom::parser parser;
  Walker walker(text, out.file, recover, out.notes);
  return walker.members(walker.skip_space(0), nullptr, [&](std::string_view key, std::string_view value) {
    return add_iteration(parser, key, value, out);
  });
}

Status read_settings(std::string_view text, PipelineFile& out) {
  simdjson::dom::parser parser;
  element e;
  if (const auto bad = parser.parse(text.data(), text.size()).get(e))
    return fail(std::string("not valid JSON: ") + simdjson::error_message(bad), out.file);
  const struct {
    const char* key;
    std::int32_t PipelineFile::*to;
  } keys[] = {{"world_size", &PipelineFile::world}, {"pp_size", &PipelineFile::pp},
              {"dp_size", &PipelineFile::dp},       {"tp_size", &PipelineFile::tp},
              {"vp_size", &PipelineFile::chunks},   {"num_mbs", &PipelineFile::micro_batches}};
  for (const auto& k : keys) out.*k.to = std::max(0, small(whole(e[k.key], 0)));
  return {};
}

// ---- all files of a job --------------------------------------------------------------------------------------------

// Passes of one rank and step, in the order of execution, are those of micro-batches and chunks as Megatron-LM
// interleaves them: groups of as many micro-batches as there are stages, chunk after chunk (backward from the last).
void number_passes(const std::vector<std::uint32_t>& rows, std::int32_t stages, std::int32_t chunks, bool forward,
                   PipelineRows& out) {
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const auto i = static_cast<std::int64_t>(k);
    std::int64_t micro_batch = i, chunk = 0;
    if (chunks > 1) {
      micro_batch = i / (std::int64_t{stages} * chunks) * stages + i % stages;
      chunk = i / stages % chunks;
      if (!forward) chunk = chunks - 1 - chunk;
    }
    out.micro_batch[rows[k]] = static_cast<std::int32_t>(micro_batch);
    out.chunk[rows[k]] = static_cast<std::int32_t>(chunk);
  }
}

// Chunks of a stage where nothing says it: before its first backward the last stage has done (chunks - 1) * stages + 1
// forward passes; 1 where that does not fit.
std::int32_t infer_chunks(const PipelineTrace& t) {
  if (t.stages < 2) return 1;
  struct Seen {
    Ns first_backward = std::numeric_limits<Ns>::max();
    std::int64_t before = 0, all = 0;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Seen> last_stage;  // by step and rank
  for (const bool forward : {false, true})
    for (std::size_t i = 0; i < t.rows.size(); ++i) {
      if (t.ranks[t.rows.rank[i]].pp != t.stages - 1) continue;
      if ((t.types[t.rows.type[i]].kind == PipelineKind::forward) != forward) continue;
      Seen& seen = last_stage[{t.rows.step[i], t.rows.rank[i]}];
      if (forward)
        ++seen.all, seen.before += t.rows.start[i] < seen.first_backward;
      else
        seen.first_backward = std::min(seen.first_backward, t.rows.start[i]);
    }
  std::vector<std::int64_t> found;
  for (const auto& [at, seen] : last_stage) {
    const std::int64_t chunks =
        seen.before > 1 && (seen.before - 1) % t.stages == 0 ? (seen.before - 1) / t.stages + 1 : 1;
    found.push_back(seen.all % (t.stages * chunks) == 0 ? chunks : 1);
  }
  return found.empty() ? 1 : static_cast<std::int32_t>(median(found));
}

void sort_rows(PipelineRows& rows) {
  std::vector<std::uint32_t> order(rows.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tie(rows.step[a], rows.rank[a], rows.start[a], rows.end[a]) <
           std::tie(rows.step[b], rows.rank[b], rows.start[b], rows.end[b]);
  });
  const auto take = [&](auto& column) {
    auto sorted = column;
    for (std::size_t i = 0; i < order.size(); ++i) sorted[i] = column[order[i]];
    column = std::move(sorted);
  };
  take(rows.rank);
  take(rows.step);
  take(rows.type);
  take(rows.micro_batch);
  take(rows.chunk);
  take(rows.start);
  take(rows.end);
}

void add_row(PipelineRows& rows, std::uint32_t rank, std::uint32_t step, const PipelineFile::Operation& o, Ns shift) {
  rows.rank.push_back(rank);
  rows.step.push_back(step);
  rows.type.push_back(o.type);
  rows.micro_batch.push_back(o.micro_batch);
  rows.chunk.push_back(o.chunk);
  rows.start.push_back(o.start + shift);
  rows.end.push_back(o.end + shift);
}

// What lies hours away from the middle of its step, or takes hours, is no operation of it.
void drop_far(PipelineFile& file, Notes& notes) {
  std::map<std::int64_t, std::vector<Ns>> starts;
  for (const PipelineFile::Operation& o : file.operations) starts[o.step].push_back(o.start);
  std::map<std::int64_t, Ns> middle;
  for (const auto& [step, all] : starts) middle[step] = median(all);
  std::uint64_t dropped = 0;
  std::string first;
  std::erase_if(file.operations, [&](const PipelineFile::Operation& o) {
    const Ns m = middle[o.step];
    const bool far = o.start - m > kLongestStep || m - o.start > kLongestStep || o.end - o.start > kLongestStep;
    if (far && ++dropped == 1) first = fmt::format("{} of step {}", file.types[o.type].name, o.step);
    return far;
  });
  notes.add("far-times", Severity::data_loss, dropped, first, "hours away from the rest of the step: not used");
}

Status join_timeline(PipelineFile& file, PipelineTrace& out) {
  drop_far(file, out.notes);
  if (file.operations.empty()) return fail("no usable operation", file.file);
  out.types = std::move(file.types);
  for (const PipelineFile::Operation& o : file.operations) {
    out.stages = std::max(out.stages, o.pp + 1);
    out.dp = std::max(out.dp, o.dp + 1);
    out.tp = std::max(out.tp, o.tp + 1);
  }
  std::map<std::int64_t, std::uint32_t> rank_rows, step_rows;
  const auto number = [&](const PipelineFile::Operation& o) {  // Megatron-LM: tp fastest, then dp, then pp
    return (std::int64_t{o.pp} * out.dp + o.dp) * out.tp + o.tp;
  };
  for (const PipelineFile::Operation& o : file.operations) {
    rank_rows.emplace(number(o), 0);
    step_rows.emplace(o.step, 0);
  }
  for (auto& [rank, row] : rank_rows) {
    row = static_cast<std::uint32_t>(out.ranks.size());
    out.ranks.push_back({rank, static_cast<std::int32_t>(rank / out.tp / out.dp),
                         static_cast<std::int32_t>(rank / out.tp % out.dp), static_cast<std::int32_t>(rank % out.tp),
                         file.file});
  }
  for (auto& [step, row] : step_rows) {
    row = static_cast<std::uint32_t>(out.steps.size());
    out.steps.push_back({step, std::numeric_limits<Ns>::max(), {}});
  }
  for (const PipelineFile::Operation& o : file.operations) {
    const std::uint32_t step = step_rows[o.step];
    add_row(out.rows, rank_rows[number(o)], step, o, 0);
    out.steps[step].begin = std::min(out.steps[step].begin, o.start);
    out.has_transfers |= is_transfer(out.types[o.type].kind);
    if (is_pass(out.types[o.type].kind)) {
      out.chunks = std::max(out.chunks, o.chunk + 1);
      out.micro_batches = std::max(out.micro_batches, o.micro_batch + 1);
    }
  }
  for (PipelineStep& s : out.steps) s.end.assign(out.ranks.size(), s.begin - 1);
  for (std::size_t i = 0; i < out.rows.size(); ++i) {
    Ns& end = out.steps[out.rows.step[i]].end[out.rows.rank[i]];
    end = std::max(end, out.rows.end[i]);
  }
  return {};
}

Status join_passes(std::vector<PipelineFile>& files, const PipelineFile* settings, PipelineTrace& out) {
  std::stable_sort(files.begin(), files.end(),
                   [](const PipelineFile& a, const PipelineFile& b) { return a.rank < b.rank; });
  for (std::size_t k = 0; k + 1 < files.size(); ++k)
    if (files[k].rank == files[k + 1].rank)
      return fail(fmt::format("both are rank {}", files[k].rank), files[k].file + ", " + files[k + 1].file,
                  "leave one out, or tell them apart with --rank FILE=N");
  out.types = files.front().types;
  std::int32_t pp = 0, dp = 1, tp = 1;
  if (settings != nullptr) {
    pp = settings->pp;
    dp = std::max(1, settings->dp);
    tp = std::max(1, settings->tp);
    out.chunks = std::max(1, settings->chunks);
  }
  // Numbers of files count stages, unless there are more of them.
  const bool stages_only = pp == 0 || files.back().rank < pp;
  if (stages_only) dp = tp = 1;
  std::set<std::int64_t> numbers;
  for (const PipelineFile& f : files) {
    const std::int64_t stage = stages_only ? f.rank : f.rank / tp / dp;
    if (f.rank < 0 || stage >= kMostRanks) return fail("not the rank of a stage: " + std::to_string(f.rank), f.file);
    out.ranks.push_back({f.rank, static_cast<std::int32_t>(stage),
                         static_cast<std::int32_t>(stages_only ? 0 : f.rank / tp % dp),
                         static_cast<std::int32_t>(stages_only ? 0 : f.rank % tp), f.file});
    out.stages = std::max({out.stages, pp, static_cast<std::int32_t>(stage + 1)});
    for (const auto& [step, end] : f.step_ends) numbers.insert(step);
  }
  out.dp = dp;
  out.tp = tp;
  // Each iteration counts from its own zero, which all ranks share: lay one after the other.
  Ns base = 0;
  std::map<std::int64_t, std::uint32_t> step_rows;
  for (const std::int64_t n : numbers) {
    step_rows[n] = static_cast<std::uint32_t>(out.steps.size());
    PipelineStep step{n, base, std::vector<Ns>(files.size(), base - 1)};
    Ns longest = 0, earliest = 0;
    for (std::size_t k = 0; k < files.size(); ++k) {
      for (const auto& [number, end] : files[k].step_ends)
        if (number == n) longest = std::max(longest, end);
      for (const PipelineFile::Operation& o : files[k].operations)
        if (o.step == n) earliest = std::min(earliest, o.start);
    }
    step.begin = base - earliest;  // a start before the zero moves the whole iteration
    for (std::size_t k = 0; k < files.size(); ++k)
      for (const auto& [number, end] : files[k].step_ends)
        if (number == n) step.end[k] = step.begin + end;
    if (longest - earliest > static_cast<Ns>(kLatest) - base) return fail("times too large", files.front().file);
    base += longest - earliest + kBetweenSteps;
    out.steps.push_back(std::move(step));
  }
  for (std::uint32_t k = 0; k < files.size(); ++k)
    for (const PipelineFile::Operation& o : files[k].operations)
      add_row(out.rows, k, step_rows[o.step], o, out.steps[step_rows[o.step]].begin);
  return {};
}

// Micro-batches and chunks of passes that do not tell theirs.
void number_all(PipelineTrace& t, const PipelineFile* settings) {
  const bool told = settings != nullptr && settings->chunks > 0;
  if (!told) {
    t.chunks = infer_chunks(t);
    if (t.chunks > 1)
      t.notes.add("chunks-inferred", Severity::info, 1, fmt::format("{} chunks a stage", t.chunks),
                  "told from the passes before the last stage's first backward: config.json beside the files says it");
  }
  std::uint64_t uneven = 0;
  std::vector<std::uint32_t> forward, backward;
  const auto flush = [&] {
    for (const auto* passes : {&forward, &backward}) {
      if (passes->empty()) continue;
      const bool fits = static_cast<std::int64_t>(passes->size()) % (std::int64_t{t.stages} * t.chunks) == 0;
      uneven += t.chunks > 1 && !fits;
      number_passes(*passes, t.stages, t.chunks, passes == &forward, t.rows);
    }
    forward.clear();
    backward.clear();
  };
  for (std::uint32_t i = 0; i < t.rows.size(); ++i) {
    if (i > 0 && (t.rows.step[i] != t.rows.step[i - 1] || t.rows.rank[i] != t.rows.rank[i - 1])) flush();
    (t.types[t.rows.type[i]].kind == PipelineKind::forward ? forward : backward).push_back(i);
  }
  flush();
  for (std::size_t i = 0; i < t.rows.size(); ++i)
    t.micro_batches = std::max(t.micro_batches, t.rows.micro_batch[i] + 1);
  t.notes.add(
      "passes-do-not-fill", Severity::warning, uneven, "",
      "passes of a rank and step are no multiple of stages times chunks: which micro-batch is which is a guess");
  if (settings != nullptr && settings->micro_batches > 0 && settings->micro_batches != t.micro_batches)
    t.notes.add("micro-batches-differ", Severity::warning, 1,
                fmt::format("config.json says {}, the files have {}", settings->micro_batches, t.micro_batches),
                "the files count");
}

}  // namespace

PipelineForm pipeline_form(std::string_view head) {
  const auto has = [&](std::string_view word) { return head.find(word) != std::string_view::npos; };
  std::size_t i = 0;
  while (i < head.size() && is_json_space(head[i])) ++i;
  if (i >= head.size()) return PipelineForm::none;
  if (head[i] == '{' && (has("\"fwd_start\"") || has("\"bwd_start\"") || has("\"fwd_end\"") || has("\"bwd_end\"")))
    return PipelineForm::passes;
  if ((head[i] == '[' || head[i] == '{') &&
      (has("\"PP rank ") || (has("\"step\"") && (has("\"mb_id\"") || has("\"seq_id\"")))))
    return PipelineForm::timeline;
  if (head[i] == '{' && has("\"pp_size\"") && (has("\"vp_size\"") || has("\"num_mbs\""))) return PipelineForm::settings;
  return PipelineForm::none;
}

Result<PipelineFile> read_pipeline_file(std::string_view text, const std::string& file, bool recover) {
  PipelineFile out;
  out.file = file;
  out.form = pipeline_form(text.substr(0, std::size_t{64} << 10));
  Status s;
  switch (out.form) {
    case PipelineForm::timeline:
      s = read_timeline(text, recover, out);
      break;
    case PipelineForm::passes:
      s = read_passes(text, recover, out);
      break;
    case PipelineForm::settings:
      s = read_settings(text, out);
      break;
    case PipelineForm::none:
      return fail(fmt::format("not a file of {}", kJob), file);
  }
  if (!s) return tl::unexpected(s.error());
  if (out.form != PipelineForm::settings && out.operations.empty())
    return fail(fmt::format("no usable operation in a file of {}", kJob), file,
                out.notes.rows.empty() ? "" : out.notes.rows.front().name + ": " + out.notes.rows.front().first);
  return out;
}

Result<PipelineTrace> join_pipeline(std::vector<PipelineFile> files) {
  PipelineTrace out;
  std::vector<PipelineFile> timelines, passes, settings;
  for (PipelineFile& f : files) {
    out.notes.merge(f.notes);
    (f.form == PipelineForm::timeline ? timelines
     : f.form == PipelineForm::passes ? passes
                                      : settings)
        .push_back(std::move(f));
  }
  if (timelines.empty() && passes.empty()) return fail(fmt::format("no file of {} among the inputs", kJob));
  if (!timelines.empty() && !passes.empty())
    return fail("these record steps in two ways: they are not one job",
                timelines.front().file + ", " + passes.front().file, "name one of them");
  if (timelines.size() > 1)
    return fail("each holds all ranks of a job", timelines[0].file + ", " + timelines[1].file, "name one of them");
  const PipelineFile* told = settings.empty() ? nullptr : &settings.front();
  if (Status s = timelines.empty() ? join_passes(passes, told, out) : join_timeline(timelines.front(), out); !s)
    return tl::unexpected(s.error());
  if (out.rows.size() >= kNone) return fail("too many operations for 32 bits");
  sort_rows(out.rows);
  if (timelines.empty()) number_all(out, told);
  std::set<std::int32_t> stages;
  for (const PipelineRank& r : out.ranks) stages.insert(r.pp);
  const auto missing = static_cast<std::uint64_t>(out.stages) - stages.size();
  out.notes.add("stages-missing", Severity::warning, missing,
                fmt::format("{} of {} stages are there", stages.size(), out.stages),
                "what waits for a missing stage is replayed as if it need not");
  return out;
}

}  // namespace orrery
