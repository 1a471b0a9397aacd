#include "importers/log_prefix.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/text_match.h"

namespace orrery {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }
bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool starts(std::string_view s, std::string_view with) { return s.substr(0, with.size()) == with; }

std::int32_t to_rank(std::string_view digits) {
  std::int32_t n = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  return error == std::errc() && end == digits.data() + digits.size() && n >= 0 && n < 10000000 ? n : -1;
}

std::size_t digits_at(std::string_view s, std::size_t at) {
  std::size_t n = 0;
  while (at + n < s.size() && digit(s[at + n])) ++n;
  return n;
}

// "... Rank 12" at the end of what brackets hold: [Rank 12], [PG 0 Rank 1], [PG ID 0 PG GUID 0(default_pg) Rank 0]
std::int32_t rank_at_end(std::string_view inside) {
  std::size_t from = inside.size();
  while (from > 0 && digit(inside[from - 1])) --from;
  if (from == inside.size()) return -1;
  std::size_t word = from;
  if (word > 0 && (inside[word - 1] == ' ' || inside[word - 1] == '=' || inside[word - 1] == '_')) --word;
  if (word < 4) return -1;
  const std::string_view name = inside.substr(word - 4, 4);
  if (name != "rank" && name != "Rank" && name != "RANK") return -1;
  if (word > 4 && (letter(inside[word - 5]) || inside[word - 5] == '_')) return -1;  // local_rank
  return to_rank(inside.substr(from));
}

// glog's "E0321 02:07:08.408271 " and the older "E ": 0 = neither.
std::size_t read_glog(std::string_view s, LogTime& time) {
  if (s.size() < 3 || (s[0] != 'I' && s[0] != 'W' && s[0] != 'E' && s[0] != 'F')) return 0;
  if (s[1] == ' ') return 2;
  const std::size_t n = digits_at(s, 1);
  if (n < 3 || n > 4 || s.size() < n + 10 || s[n + 1] != ' ') return 0;
  const int month = n == 4 ? (s[1] - '0') * 10 + s[2] - '0' : s[1] - '0';
  const int day = (s[n - 1] - '0') * 10 + s[n] - '0';
  if (month < 1 || month > 12 || day < 1 || day > 31) return 0;
  std::string full = "2000-" + std::to_string(month) + "-" + std::to_string(day) + " ";
  full += s.substr(n + 2, 20);
  std::size_t length = 0;
  time = read_time(full, length);
  if (length == 0) return n + 2;
  time.year = 0;
  const std::size_t date = full.size() - std::min<std::size_t>(20, s.size() - n - 2);
  return n + 2 + (length - date);
}

bool name_char(char c) { return letter(c) || digit(c) || c == '-' || c == '_' || c == '.'; }

std::size_t name_at(std::string_view s, std::size_t at) {
  std::size_t n = 0;
  while (at + n < s.size() && name_char(s[at + n])) ++n;
  return n;
}

// Four numbers with dots between them: its length, 0 = not an address.
std::size_t address_at(std::string_view s) {
  std::size_t at = 0;
  for (int part = 0; part < 4; ++part) {
    const std::size_t n = digits_at(s, at);
    if (n == 0 || n > 3) return 0;
    at += n;
    if (part < 3 && (at >= s.size() || s[at++] != '.')) return 0;
  }
  return at;
}

// What Python writes of an exception: the head of a traceback, a frame or its source, the last line.
bool of_traceback(std::string_view s) {
  if (starts(s, "Traceback (most recent call last)") || starts(s, "  File \"") || starts(s, "    ")) return true;
  const std::size_t n = name_at(s, 0);
  if (n == 0 || (n < s.size() && s[n] != ':')) return false;
  const std::string_view name = s.substr(0, n);
  for (const std::string_view end : {"Error", "Exception", "Interrupt", "Exit", "Timeout", "ExceptionGroup"})
    if (name.size() > end.size() && name.substr(name.size() - end.size()) == end) return true;
  return false;
}

// "train[991]: ", "kernel: ": who wrote a line of a system's log. 0 = not.
std::size_t writer_at(std::string_view s) {
  std::size_t at = name_at(s, 0);
  if (at == 0) return 0;
  if (at < s.size() && s[at] == '[') {
    const std::size_t pid = digits_at(s, at + 1);
    if (pid == 0 || at + 1 + pid >= s.size() || s[at + 1 + pid] != ']') return 0;
    at += pid + 2;
  } else if (s.substr(0, at) != "kernel") {
    return 0;
  }
  return at + 1 < s.size() && s[at] == ':' && s[at + 1] == ' ' ? at + 2 : 0;
}

class Splitter {
 public:
  explicit Splitter(std::string_view line) : rest_(line) {}

  LinePrefix run() {
    for (int parts = 0; parts < 12; ++parts) {
      const std::size_t before = rest_.size();
      if (!part() || rest_.size() == before) break;
    }
    p_.message = rest_;
    return p_;
  }

 private:
  void drop(std::size_t n) {
    rest_.remove_prefix(std::min(n, rest_.size()));
    if (!rest_.empty() && rest_[0] == ' ') rest_.remove_prefix(1);
  }

  bool part() {
    std::size_t blanks = 0;
    while (blanks < rest_.size() && blanks < 8 && rest_[blanks] == ' ') ++blanks;
    const std::string_view s = rest_.substr(blanks);
    if (s.empty()) return false;
    const bool indented = blanks > 0;
    if (s[0] == '[') return bracket(blanks, s);
    if (s[0] == '|' && s.size() > 2 && s[1] == ' ' && digit(s[2])) {  // a column of a log service: | 2024-05-14T... |
      rest_.remove_prefix(blanks + 2);
      return true;
    }
    // The box that Python draws around the members of a group of exceptions.
    if (s[0] == '|' && indented && s.size() > 2 && s[1] == ' ') {
      rest_.remove_prefix(blanks + 2);
      return true;
    }
    if (s[0] == '(' && !indented) return ray(s);
    if (digit(s[0])) {
      if (time(blanks, s)) return true;
      if (const std::size_t ip = address_at(s); ip > 0 && starts(s.substr(ip), ": ")) {
        if (p_.node.empty()) p_.node = s.substr(0, ip);
        rest_.remove_prefix(blanks);
        drop(ip + 1);
        return true;
      }
      const std::size_t n = digits_at(s, 0);  // Slurm's --label, right-aligned
      if (n <= 5 && s.size() > n && s[n] == ':' && (s.size() == n + 1 || s[n + 1] == ' ')) {
        if (p_.rank < 0) p_.rank = to_rank(s.substr(0, n));
        rest_.remove_prefix(blanks);
        drop(n + 1);
        return true;
      }
      return false;
    }
    if (indented) return false;
    return time(0, s) || glog(s) || word(s);
  }

  bool time(std::size_t blanks, std::string_view s) {
    std::size_t length = 0;
    const LogTime t = read_time(s, length);
    if (length == 0) return false;
    if (!p_.time.known()) p_.time = t;
    rest_.remove_prefix(blanks);
    drop(length);
    for (const std::string_view stream : {"stdout F ", "stderr F ", "stdout P ", "stderr P "}) {  // containerd
      if (!starts(rest_, stream)) continue;
      rest_.remove_prefix(stream.size());
      return true;
    }
    // syslog, journald: "May  4 01:02:03 node3 kernel: ...", "2025-05-04T01:02:03+0000 node3 python3[991]: ..."
    const std::size_t end = rest_.find(' ');
    if (const std::size_t host = name_at(rest_, 0); host > 0 && host == end && writer_at(rest_.substr(end + 1)) > 0) {
      p_.node = rest_.substr(0, end);
      rest_.remove_prefix(end + 1);
      // What daemons and the kernel say is theirs; a program's own words stand alone.
      bool daemon = false;
      for (const std::string_view name : {"kernel", "slurm", "systemd", "nv", "dockerd", "containerd", "kubelet"})
        daemon |= starts(rest_, name);
      if (!daemon) rest_.remove_prefix(writer_at(rest_));
      return true;
    }
    if (letter(s[0]) && end != std::string_view::npos && is_host_name(rest_.substr(0, end))) {
      p_.node = rest_.substr(0, end);
      drop(end);
    }
    for (const std::string_view mark : {"- ", "| ", ": "})
      if (starts(rest_, mark)) rest_.remove_prefix(mark.size());
    return true;
  }

  bool glog(std::string_view s) {
    LogTime t;
    const std::size_t n = read_glog(s, t);
    if (n < 6) return false;
    const std::size_t end = s.find("] ");
    if (end == std::string_view::npos || end > 200) return false;
    if (!p_.time.known()) p_.time = t;
    drop(end + 1);
    return true;
  }

  // [rank3]: [default3]: [1,3]<stderr>: [E0321 ...] [E file:12] [PG 0 Rank 1] [node3 dmesg] [ 12.3] [2024-05-14 ...]
  bool bracket(std::size_t blanks, std::string_view s) {
    const std::size_t close = s.find(']');
    if (close == std::string_view::npos || close > 160) return false;
    if (const std::size_t n = digits_at(s, 1);
        n > 0 && s.size() > n + 1 && s[n + 1] == 'm') {  // a colour without its escape
      rest_.remove_prefix(blanks + n + 2);
      return true;
    }
    std::string_view inside = s.substr(1, close - 1);
    std::size_t end = close + 1;
    bool mine = false;
    if (starts(inside, "pod/")) {  // kubectl logs --prefix: [pod/train-3/trainer]
      p_.node = inside.substr(4, inside.find('/', 4) - 4);
      mine = true;
    } else if (starts(inside, "default") && digits_at(inside, 7) == inside.size() - 7 && inside.size() > 7) {
      p_.local_rank = to_rank(inside.substr(7));
      mine = true;
    } else if (const std::int32_t rank = rank_at_end(inside); rank >= 0) {
      if (p_.rank < 0) p_.rank = rank;
      mine = true;
    } else if (const std::size_t comma = inside.find(',');
               comma != std::string_view::npos && comma > 0 && digits_at(inside, 0) == comma &&
               digits_at(inside, comma + 1) == inside.size() - comma - 1 && end < s.size() && s[end] == '<') {
      p_.rank = to_rank(inside.substr(comma + 1));
      const std::size_t stream = s.find('>', end);
      if (stream == std::string_view::npos) return false;
      end = stream + 1;
      mine = true;
    } else {
      mine = time_or_node(inside);
    }
    if (!mine) return false;
    if (end < s.size() && s[end] == ':') ++end;
    rest_.remove_prefix(blanks);
    drop(end);
    return true;
  }

  bool time_or_node(std::string_view inside) {
    while (!inside.empty() && inside.front() == ' ') inside.remove_prefix(1);
    LogTime t;
    std::size_t length = 0;
    if (const std::size_t n = read_glog(inside, t); n > 0) {
      if (!p_.time.known() && t.known()) p_.time = t;
      return true;
    }
    t = read_time(inside, length);
    if (length > 0) {
      if (!p_.time.known()) p_.time = t;
      return true;
    }
    if (const std::size_t n = digits_at(inside, 0);
        n > 0 && n < inside.size() && inside[n] == '.' && digits_at(inside, n + 1) == inside.size() - n - 1)
      return true;  // seconds since the kernel started: no time of day
    const std::string_view name = inside.substr(0, inside.find(' '));
    if (is_host_name(name) || starts(name, "node-")) {
      if (p_.node.empty()) p_.node = name;
      return true;
    }
    if (inside.size() >= 4 && digits_at(inside, 0) == inside.size()) return true;  // a number of the collector
    return inside == "INFO" || inside == "WARNING" || inside == "ERROR" || inside == "DEBUG" || inside == "CRITICAL";
  }

  // (RayTrainWorker pid=123, ip=10.0.0.1), (raylet)
  bool ray(std::string_view s) {
    const std::size_t close = s.find(')');
    if (close == std::string_view::npos || close > 120) return false;
    const std::string_view inside = s.substr(1, close - 1);
    const std::size_t ip = inside.find("ip=");
    if (ip != std::string_view::npos && p_.node.empty()) p_.node = inside.substr(ip + 3, inside.find(',', ip) - ip - 3);
    if (ip == std::string_view::npos && !has(inside, "pid=") && inside != "raylet" && inside != "autoscaler" &&
        inside != "gcs_server")
      return false;
    drop(close + 1);
    return true;
  }

  // node12:2201:2388 [3] ... of NCCL, "node3: " of pdsh, "slurmstepd-node3: "
  bool word(std::string_view s) {
    if (const std::size_t n = name_at(s, 0); n > 0 && n < s.size() && s[n] == ' ') return named_stream(s, n);
    const std::size_t colon = s.substr(0, 80).find(':');
    if (colon == std::string_view::npos || colon == 0) return false;
    const std::string_view name = s.substr(0, colon);
    const std::size_t pid = digits_at(s, colon + 1);
    if (pid > 0 && colon + 1 + pid < s.size() && s[colon + 1 + pid] == ':') {
      const std::size_t tid = digits_at(s, colon + 2 + pid);
      std::size_t at = colon + 2 + pid + tid;
      if (tid == 0 || at >= s.size() || s[at] != ' ') return false;
      p_.node = name;
      ++at;
      if (at < s.size() && s[at] == '[' && digits_at(s, at + 1) > 0) {
        const std::size_t close = s.find(']', at);
        if (close != std::string_view::npos) at = close + 1;
      }
      drop(at);
      return true;
    }
    if (colon + 1 >= s.size() || s[colon + 1] != ' ') {
      if (colon + 1 != s.size()) return false;
    }
    std::string_view host = name;
    for (const std::string_view daemon : {"slurmstepd-", "slurmd-"})
      if (starts(host, daemon)) host.remove_prefix(daemon.size());
    const bool of_kernel = starts(s.substr(colon), ": NVRM: ") || starts(s.substr(colon), ": kernel: ");
    const bool shortest = host.size() == 2 && host[0] == 'n' && digit(host[1]);  // n3
    if (!is_host_name(host) && !shortest && !(of_kernel && name_at(host, 0) == host.size() && host != "kernel"))
      return false;
    if (p_.node.empty()) p_.node = host;
    if (host.size() != name.size()) return false;  // whose message it is belongs to it
    drop(colon + 1);
    return true;
  }

  // "train-3 | " (docker compose), "train-3 trainer Traceback ..." (stern), "node3 kernel: NVRM: ..."
  bool named_stream(std::string_view s, std::size_t n) {
    const std::string_view name = s.substr(0, n);
    if (starts(s.substr(n), " kernel: ")) {
      p_.node = name;
      drop(n);
      return true;
    }
    if (name[0] < 'a' || name[0] > 'z') return false;
    const bool numbered = digit(name.back()) && name.find('-') != std::string_view::npos;
    std::size_t at = n;
    while (at < s.size() && s[at] == ' ') ++at;
    if (starts(s.substr(at), "| ")) {
      if (numbered && p_.node.empty()) p_.node = name;
      drop(at + 1);
      return true;
    }
    if (name.find('-') == std::string_view::npos) return false;
    at = n + 1;
    if (!of_traceback(s.substr(at))) {
      const std::size_t container = name_at(s, at);
      at += container + 1;
      if (container == 0 || at > s.size() || s[at - 1] != ' ' || !of_traceback(s.substr(at))) return false;
    }
    if (p_.node.empty()) p_.node = name;
    drop(at - 1);
    return true;
  }

  std::string_view rest_;
  LinePrefix p_;
};

}  // namespace

LinePrefix split_prefix(std::string_view line) { return Splitter(line).run(); }

bool is_host_name(std::string_view word) {
  if (word.size() < 2 || word.size() > 64 || !letter(word[0])) return false;
  bool number = false;
  for (const char c : word) {
    if (!letter(c) && !digit(c) && c != '-' && c != '.' && c != '_') return false;
    number |= digit(c);
  }
  if (!number || digits_at(word, 1) == word.size() - 1)
    return word.size() > 2 && number && letter(word[0]) &&
           (starts(word, "n") || starts(word, "c") || starts(word, "g"));
  for (const std::string_view device :
       {"mlx",     "nvme",    "eth",    "ib",      "sd",      "gpu",     "GPU",     "cuda", "CUDA", "md",
        "loop",    "nvidia",  "rank",   "Rank",    "default", "tensor",  "layer",   "step", "Step", "epoch",
        "Epoch",   "attempt", "python", "bond",    "ens",     "eno",     "enp",     "dm-",  "EXT4", "Xid",
        "utf",     "fp16",    "bf16",   "int8",    "cuDNN",   "E0",      "W0",      "I0",   "F0",   "level",
        "libnccl", "blk",     "task",   "worker_", "stage",   "iter",    "version", "v1",   "v2",   "torch",
        "Python",  "SHA",     "md5",    "H2D",     "D2H",     "x86",     "i386",    "s3",   "S3",   "http",
        "ipv",     "IPv",     "utf8",   "log",     "test",    "Channel", "group"})
    if (starts(word, device)) return false;
  return true;
}

}  // namespace orrery
