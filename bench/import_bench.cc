// How fast do traces become rows, compared with merely walking them?
//
//   import_bench TRACE [--mb 1000] [--threads N] [--runs 3]
//
// The input is the trace's own events repeated with shifted times and ids, about 1 GB, plain and gzip, in a temporary
// directory that is removed. Every measurement is a process of its own, since first touch of memory is the wall.
// The yardstick ("walk") is inflate -> windows -> simdjson on-demand, which reads every field and keeps nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <simdjson.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/byte_source.h"
#include "importers/importers.h"
#include "importers/trace_text.h"

namespace {

using namespace orrery;
namespace od = simdjson::ondemand;
namespace fs = std::filesystem;

// ---- the yardstick

std::uint64_t walk_value(od::value v) {
  std::uint64_t sum = 0;
  const std::string_view token = v.raw_json_token();
  sum += token.size();
  if (token[0] == '{') {
    od::object o;
    if (v.get_object().get(o)) return sum;
    for (auto result : o) {
      od::field f;
      if (std::move(result).get(f)) return sum;
      sum += static_cast<unsigned char>(*f.key().raw());
      sum += walk_value(f.value());
    }
  } else if (token[0] == '[') {
    od::array a;
    if (v.get_array().get(a)) return sum;
    for (auto result : a) {
      od::value e;
      if (std::move(result).get(e)) return sum;
      sum += walk_value(e);
    }
  }
  return sum;
}

struct Walked {
  std::uint64_t events = 0, sum = 0, bytes = 0;
};

Walked walk_file(const std::string& path, unsigned threads) {
  auto source = decompressed(open_file(path).value(), path).value();
  TraceText text(*source, {});
  std::mutex reading;
  std::atomic<std::uint64_t> events{0}, sum{0};
  auto work = [&] {
    EventWindow w;
    od::parser parser;
    std::uint64_t n = 0, s = 0;
    for (;;) {
      {
        const std::lock_guard lock(reading);
        if (text.next(w) != TraceText::Next::window) break;
      }
      char* const t = w.text.get();
      t[w.begin - 1] = '[';
      t[w.end] = ']';
      od::document d;
      if (parser
              .iterate(simdjson::padded_string_view(t + w.begin - 1, w.end - w.begin + 2,
                                                    w.end - w.begin + 2 + simdjson::SIMDJSON_PADDING))
              .get(d))
        break;
      for (auto result : d.get_array()) {
        od::value e;
        if (std::move(result).get(e)) break;
        s += walk_value(e);
        ++n;
      }
    }
    events += n;
    sum += s;
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& t : others) t.join();
  return {events, sum, text.bytes()};
}

// ---- what is measured

template <class... V>
std::size_t bytes_of(const V&... columns) {
  return (... + (columns.size() * sizeof(columns[0])));
}
std::size_t row_bytes(const RankTrace& t) {
  const auto& o = t.ops;
  const auto& a = t.op_args;
  const auto& k = t.kernel_args;
  const auto& c = t.comm_args;
  const auto& s = t.sync_args;
  const auto& f = t.flows;
  const auto& m = t.memory;
  return bytes_of(o.start, o.dur, o.name, o.lane, o.kind, o.corr, o.ext, o.extra) +
         bytes_of(a.sequence, a.fwd_thread, a.input_dims, a.input_types, a.concrete_inputs, a.comm) +
         bytes_of(t.python_args.id, t.python_args.parent) +
         bytes_of(k.grid_blocks, k.block_threads, k.shared_bytes, k.registers, k.occupancy_pct, k.blocks_per_sm,
                  k.comm) +
         bytes_of(t.copy_args.bytes) +
         bytes_of(c.collective, c.dtype, c.in_elems, c.out_elems, c.group_size, c.group_name, c.group_desc,
                  c.group_ranks, c.seq, c.src_rank, c.dst_rank, c.in_split, c.out_split) +
         bytes_of(s.kind, s.stream, s.wait_stream, s.wait_record_corr, s.wait_event) +
         bytes_of(f.id, f.ts, f.lane, f.kind, f.is_finish) +
         bytes_of(m.ts, m.lane, m.bytes, m.total_allocated, m.total_reserved, m.device_type, m.device) +
         t.strings.bytes();
}

struct Measured {
  double seconds = 0, cpu = 0;  // wall; all threads, user and system
  std::uint64_t events = 0, bytes = 0, rss = 0, rows = 0;
};

int child(const std::string& mode, const std::string& path, unsigned threads) {
  Measured m;
  const auto begin = std::chrono::steady_clock::now();
  if (mode == "walk") {
    const Walked w = walk_file(path, threads);
    m.events = w.events;
    m.bytes = w.bytes;
    if (w.sum == 0) return 1;
  } else {
    ImportOptions options;
    options.threads = threads;
    const auto set = import_traces({path}, options);
    if (!set) {
      fmt::print(stderr, "{}\n", set.error().line());
      return 1;
    }
    m.events = set->ranks[0].events;
    m.bytes = set->ranks[0].json_bytes;
    m.rows = row_bytes(set->ranks[0]);
  }
  m.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  m.rss = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  const auto seconds = [](const timeval& v) {
    return static_cast<double>(v.tv_sec) + static_cast<double>(v.tv_usec) / 1e6;
  };
  m.cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  fmt::print("{} {} {} {} {} {}\n", m.seconds, m.cpu, m.events, m.bytes, m.rss, m.rows);
  std::fflush(stdout);
  std::_Exit(0);
}

bool measure(const std::string& mode, const std::string& path, unsigned threads, Measured& m) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 1);
    close(ends[0]);
    close(ends[1]);
    const std::string n = std::to_string(threads);
    execl("/proc/self/exe", "import_bench", "--child", mode.c_str(), path.c_str(), n.c_str(),
          static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[1]);
  std::string out;
  char buffer[256];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) out.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  unsigned long long events = 0, bytes = 0, rss = 0, rows = 0;
  if (std::sscanf(out.c_str(), "%lf %lf %llu %llu %llu %llu", &m.seconds, &m.cpu, &events, &bytes, &rss, &rows) != 6)
    return false;
  m.events = events;
  m.bytes = bytes;
  m.rss = rss;
  m.rows = rows;
  return true;
}

// ---- the input

// The text of the events, cut at the numbers that each repetition shifts.
struct Template {
  std::string text;  // events, separated by commas
  struct Number {
    std::size_t begin, end;
    bool time;
  };
  std::vector<Number> numbers;
  std::uint64_t events = 0;
  std::int64_t period_us = 1;
};

bool make_template(const std::string& path, Template& t) {
  auto opened = open_file(path);
  if (!opened) return false;
  auto source = decompressed(std::move(*opened), path);
  if (!source) return false;
  TraceText text(**source, {});
  EventWindow w;
  for (;;) {
    const auto next = text.next(w);
    if (next == TraceText::Next::error) return false;
    if (next == TraceText::Next::end) break;
    if (!t.text.empty()) t.text += ",\n  ";
    t.text += w.view();
  }
  std::int64_t first = INT64_MAX, last = INT64_MIN;
  for (const auto& [key, time] : {std::pair<const char*, bool>{"\"ts\": ", true},
                                  {"\"correlation\": ", false},
                                  {"\"External id\": ", false},
                                  {"\"id\": ", false},
                                  {"\"Python id\": ", false},
                                  {"\"Python parent id\": ", false}}) {
    const std::size_t length = std::strlen(key);
    for (std::size_t i = t.text.find(key); i != std::string::npos; i = t.text.find(key, i + length)) {
      const std::size_t begin = i + length;
      std::size_t end = begin;
      while (end < t.text.size() && t.text[end] >= '0' && t.text[end] <= '9') ++end;
      if (end == begin || end - begin > 18) continue;
      t.numbers.push_back({begin, end, time});
      if (!time) continue;
      const std::int64_t us = std::strtoll(t.text.c_str() + begin, nullptr, 10);
      first = std::min(first, us);
      last = std::max(last, us);
    }
  }
  std::sort(t.numbers.begin(), t.numbers.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  if (last > first) t.period_us = last - first + 1000;
  const auto bytes = "[" + t.text + "]";
  const auto trace = import_kineto_bytes(bytes, path);
  if (!trace) return false;
  t.events = trace->events;
  return true;
}

class GzWriter {
 public:
  explicit GzWriter(const std::string& path)
      : out_(path, std::ios::binary), buffer_(1 << 20), level_(ISAL_DEF_LVL1_DEFAULT) {
    isal_deflate_init(&z_);
    z_.gzip_flag = IGZIP_GZIP;
    z_.level = 1;
    z_.level_buf = level_.data();
    z_.level_buf_size = static_cast<std::uint32_t>(level_.size());
  }
  void write(const std::string& text, bool last) {
    z_.next_in = reinterpret_cast<std::uint8_t*>(const_cast<char*>(text.data()));
    z_.avail_in = static_cast<std::uint32_t>(text.size());
    z_.end_of_stream = last ? 1 : 0;
    do {
      z_.next_out = buffer_.data();
      z_.avail_out = static_cast<std::uint32_t>(buffer_.size());
      isal_deflate(&z_);
      out_.write(reinterpret_cast<const char*>(buffer_.data()),
                 static_cast<std::streamsize>(buffer_.size() - z_.avail_out));
    } while (z_.avail_out == 0);
  }

 private:
  std::ofstream out_;
  std::vector<std::uint8_t> buffer_, level_;
  isal_zstream z_{};
};

std::uint64_t make_input(const Template& t, std::uint64_t bytes, const std::string& plain, const std::string& gz) {
  std::ofstream out(plain, std::ios::binary);
  GzWriter packed(gz);
  auto write = [&](const std::string& s, bool last) {
    out.write(s.data(), static_cast<std::streamsize>(s.size()));
    packed.write(s, last);
  };
  write(
      "{\n  \"schemaVersion\": 1,\n  \"distributedInfo\": {\"rank\": 0, \"world_size\": 1},\n  \"traceEvents\": [\n  ",
      false);
  std::uint64_t events = 0, written = 0;
  for (std::int64_t round = 0; written < bytes; ++round) {
    std::string s = round == 0 ? "" : ",\n  ";
    s.reserve(t.text.size() + t.text.size() / 16);
    std::size_t at = 0;
    for (const auto& n : t.numbers) {
      s.append(t.text, at, n.begin - at);
      const std::int64_t v = std::strtoll(t.text.c_str() + n.begin, nullptr, 10);
      s += std::to_string(v + round * (n.time ? t.period_us : 1'000'000));
      at = n.end;
    }
    s.append(t.text, at, std::string::npos);
    write(s, false);
    written += s.size();
    events += t.events;
  }
  write("\n  ],\n  \"traceName\": \"bench\",\n  \"baseTimeNanoseconds\": 1719853884000000000\n}\n", true);
  return events;
}

int run(int argc, char** argv) {
  std::string trace;
  std::uint64_t megabytes = 1000;
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  int runs = 3;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--mb" && i + 1 < argc)
      megabytes = std::strtoull(argv[++i], nullptr, 10);
    else if (a == "--threads" && i + 1 < argc)
      threads = static_cast<unsigned>(std::strtoul(argv[++i], nullptr, 10));
    else if (a == "--runs" && i + 1 < argc)
      runs = std::atoi(argv[++i]);
    else
      trace = a;
  }
  if (trace.empty()) {
    fmt::print("usage: import_bench TRACE [--mb 1000] [--threads N] [--runs 3]\nno trace given: nothing measured\n");
    return 0;
  }
  Template t;
  if (!make_template(trace, t)) {
    fmt::print(stderr, "{}: cannot be read\n", trace);
    return 2;
  }
  std::string pattern = (fs::temp_directory_path() / "orrery-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) return 2;
  const fs::path dir = pattern;
  const std::string plain = (dir / "rank0.json").string(), gz = (dir / "rank0.json.gz").string();
  const std::uint64_t events = make_input(t, megabytes * 1'000'000, plain, gz);
  fmt::print("{} repeated to {} events, {:.0f} MB plain, {:.0f} MB gzip; {} threads, best of {}\n", trace, events,
             static_cast<double>(fs::file_size(plain)) / 1e6, static_cast<double>(fs::file_size(gz)) / 1e6, threads,
             runs);
  fmt::print("{:<6} {:>10} {:>10} {:>6} {:>11} {:>11} {:>9} {:>12} {:>12} {:>8}\n", "input", "walk MB/s", "rows MB/s",
             "ratio", "walk CPU s", "rows CPU s", "CPU ratio", "walk RSS MB", "rows RSS MB", "B/event");
  int status = 0;
  for (const auto& [name, path] : {std::pair<const char*, std::string>{"plain", plain}, {"gzip", gz}}) {
    Measured walk, rows;
    walk.seconds = rows.seconds = walk.cpu = rows.cpu = 1e30;
    for (int r = 0; r < runs && status == 0; ++r) {
      for (const auto& [mode, best] : {std::pair<const char*, Measured*>{"walk", &walk}, {"rows", &rows}}) {
        Measured m;
        if (!measure(mode, path, threads, m) || m.events != events) {
          fmt::print(stderr, "{} of {}: {} events instead of {}\n", mode, name, m.events, events);
          status = 1;
          break;
        }
        const std::uint64_t rss = std::max(best->rss, m.rss);
        const double cpu = std::min(best->cpu, m.cpu);
        if (m.seconds < best->seconds) *best = m;
        best->rss = rss;
        best->cpu = cpu;
      }
    }
    if (status != 0) break;
    const double mb = static_cast<double>(walk.bytes) / 1e6;
    fmt::print("{:<6} {:>10.0f} {:>10.0f} {:>6.2f} {:>11.2f} {:>11.2f} {:>9.2f} {:>12.0f} {:>12.0f} {:>8.1f}\n", name,
               mb / walk.seconds, mb / rows.seconds, walk.seconds / rows.seconds, walk.cpu, rows.cpu,
               walk.cpu / rows.cpu, static_cast<double>(walk.rss) / 1e6, static_cast<double>(rows.rss) / 1e6,
               static_cast<double>(rows.rows) / static_cast<double>(events));
  }
  fs::remove_all(dir);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "--child") == 0)
    return child(argv[2], argv[3], static_cast<unsigned>(std::strtoul(argv[4], nullptr, 10)));
  return run(argc, argv);
}
