// Back-end of checknodes: rings whose members a launcher starts on the nodes.
#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>

#include "base/number_text.h"
#include "processes/child.h"
#include "supervisor/end_signals.h"
#include "supervisor/group_runs.h"
#include "supervisor/ring_worker.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

std::string new_token() {
  unsigned char bytes[kRingToken / 2];
  std::size_t got = 0;
  while (got < sizeof bytes) {
    const ssize_t n = ::getrandom(bytes + got, sizeof bytes - got, 0);
    if (n > 0) got += static_cast<std::size_t>(n);
  }
  std::string token;
  for (const unsigned char b : bytes) token += fmt::format("{:02x}", b);
  return token;
}

std::vector<std::string> with(const std::vector<std::string>& words, std::string_view name, const std::string& value) {
  std::vector<std::string> out = words;
  for (std::string& word : out)
    for (std::size_t at = 0; (at = word.find(name, at)) != std::string::npos; at += value.size())
      word.replace(at, name.size(), value);
  return out;
}

// A launcher and what came from it.
struct Line {
  PipedChild process;
  std::string pending;
  std::string said;  // its last line that is none of ours: why it failed
  bool ended = false;
};

struct Group {
  std::vector<Line> lines;  // one a member
  std::vector<int> ports;   // 0 = not there yet
  std::vector<double> rates;
  std::vector<bool> came;  // said anything
  std::string why;
  bool told = false, over = false, absent = false;
};

class Rings {
 public:
  Rings(const GroupRunTerms& terms, const std::vector<std::string>& nodes) : terms_(terms), nodes_(nodes) {}

  Result<std::vector<GroupOutcome>> run(const std::vector<NodeGroup>& groups) {
    const EndSignals ends;
    groups_.resize(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (const Status ok = start(groups[g], groups_[g]); !ok) {
        finish_all();
        return tl::unexpected(ok.error());
      }
    const auto end = Clock::now() + std::chrono::duration<double>(terms_.timeout_s);
    bool told = false;
    while (std::any_of(groups_.begin(), groups_.end(), [](const Group& g) { return !g.over; })) {
      told = ends.came();
      if (told || Clock::now() > end) break;
      wait_for_news();
      for (Group& g : groups_)
        if (!g.over) look(g);
    }
    for (Group& g : groups_)
      if (!g.over) {
        g.absent = std::find(g.came.begin(), g.came.end(), false) != g.came.end();
        g.why = last_said(g, fmt::format("not done within {:g} s", terms_.timeout_s));
      }
    finish_all();
    if (told) return fail("told to end", "a test of nodes");
    std::vector<GroupOutcome> outcomes;
    for (const Group& g : groups_) {
      GroupOutcome o{.passed = g.over && g.why.empty(), .why = g.why, .absent = g.absent};
      if (o.passed) o.gb_per_s = *std::min_element(g.rates.begin(), g.rates.end());
      outcomes.push_back(std::move(o));
    }
    return outcomes;
  }

 private:
  Status start(const NodeGroup& members, Group& group) {
    // Members give up by themselves only where nobody is left to tell them.
    RingTask task{new_token(), terms_.bytes, terms_.timeout_s + 10, {}};
    std::vector<std::string> names;
    for (const std::size_t n : members) {
      task.addresses.push_back(terms_.addresses[n]);
      names.push_back(nodes_[n]);
    }
    group.ports.assign(members.size(), 0);
    group.rates.assign(members.size(), 0);
    group.came.assign(members.size(), false);
    std::vector<std::vector<std::string>> commands;
    for (std::size_t i = 0; i < members.size(); ++i) {
      commands.push_back(with(terms_.launch, "{host}", names[i]));
      append(commands.back(), terms_.worker, std::to_string(i));
    }
    for (const std::vector<std::string>& argv : commands) {
      auto process = start_piped(argv);
      if (!process) return tl::unexpected(process.error());
      group.lines.push_back({*process, {}, {}, false});
      tell(group.lines.back(), to_line(task));
    }
    return {};
  }

  static void append(std::vector<std::string>& argv, const std::vector<std::string>& worker, const std::string& index) {
    for (std::string& word : with(worker, "{index}", index)) argv.push_back(std::move(word));
  }

  // A few hundred bytes: a pipe takes them whole, or its reader is gone and its end is seen elsewhere.
  static void tell(const Line& line, const std::string& text) {
    sigset_t pipe, before;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, &before);
    if (::write(line.process.to, text.data(), text.size()) < 0 && errno == EPIPE) {
      const timespec now{};
      (void)::sigtimedwait(&pipe, nullptr, &now);
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void wait_for_news() {
    std::vector<pollfd> all;
    for (const Group& g : groups_)
      for (const Line& l : g.lines)
        if (!g.over && !l.ended) all.push_back({l.process.from, POLLIN, 0});
    (void)::poll(all.data(), all.size(), 20);
  }

  void look(Group& g) {
    for (Line& l : g.lines) {
      constexpr std::size_t kAtOnce = 1 << 16;  // of a launcher that says more than it should: the others' turn
      char buffer[4096];
      ssize_t n = 1;
      for (std::size_t got = 0; !l.ended && got < kAtOnce && n > 0; got += sizeof buffer)
        if ((n = ::read(l.process.from, buffer, sizeof buffer)) > 0)
          l.pending.append(buffer, static_cast<std::size_t>(n));
      if (!l.ended && n == 0) {
        l.ended = true;
        l.pending += '\n';
      }
      for (std::size_t at; (at = l.pending.find('\n')) != std::string::npos; l.pending.erase(0, at + 1))
        hear(g, l, std::string_view(l.pending).substr(0, at));
      if (l.pending.size() > kAtOnce) l.pending.clear();
      const bool early = std::any_of(g.rates.begin(), g.rates.end(), [](double r) { return r <= 0; });
      if (l.ended && early && done_with(g, l)) {
        g.absent = g.absent || (g.why.empty() && !g.came[index_of(g, l)]);
        g.why = last_said(g, "ended before it was done");
      }
    }
    const auto all = [](const auto& values) {
      return std::all_of(values.begin(), values.end(), [](auto v) { return v > 0; });
    };
    if (g.why.empty() && !g.told && all(g.ports)) {
      g.told = true;
      for (const Line& l : g.lines) tell(l, fmt::format("{}go {}\n", kRingLine, fmt::join(g.ports, ",")));
    }
    g.over = !g.why.empty() || all(g.rates);
    if (!g.why.empty()) finish(g);  // the others wait for whoever failed
  }

  // Of a launcher whose member has told its rate nothing more is expected.
  static bool done_with(const Group& g, const Line& l) { return g.rates[index_of(g, l)] <= 0; }
  static std::size_t index_of(const Group& g, const Line& l) { return static_cast<std::size_t>(&l - g.lines.data()); }

  static void hear(Group& g, Line& l, std::string_view text) {
    while (!text.empty() && (text.back() == '\r' || text.back() == ' ')) text.remove_suffix(1);
    const std::size_t at = text.find(kRingLine);
    if (at == std::string_view::npos) {
      constexpr std::size_t kShown = 300;
      if (!text.empty()) l.said = std::string(text.substr(0, kShown));
      return;
    }
    text.remove_prefix(at + kRingLine.size());
    const std::size_t first = text.find(' '), second = text.find(' ', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) return;
    std::int64_t index = 0, port = 0;
    if (read_int(text.substr(first + 1, second - first - 1), index) != NumberState::ok || index < 0 ||
        static_cast<std::size_t>(index) >= g.ports.size())
      return;
    const auto i = static_cast<std::size_t>(index);
    const std::string_view what = text.substr(0, first), value = text.substr(second + 1);
    double rate = 0;
    g.came[i] = g.came[i] || what == "at" || what == "failed";
    if (what == "at" && read_int(value, port) == NumberState::ok && port > 0 && port < 65'536)
      g.ports[i] = static_cast<int>(port);
    if (what == "rate" && read_double(value, rate) == NumberState::ok && rate > 0) g.rates[i] = rate;
    if (what == "failed" && g.why.empty()) g.why = fmt::format("member {}: {}", i, value);
  }

  static std::string last_said(const Group& g, const std::string& otherwise) {
    if (!g.why.empty()) return g.why;
    for (const Line& l : g.lines)
      if (!l.said.empty()) return otherwise + ": " + l.said;
    return otherwise;
  }

  // Its input ends, so that workers end; launchers get a moment to end what they started.
  static void finish(Group& g) {
    for (Line& l : g.lines) {
      if (l.process.to >= 0) ::close(std::exchange(l.process.to, -1));
    }
    constexpr double kGrace_s = 2;
    const auto end = Clock::now() + std::chrono::duration<double>(g.why.empty() ? kGrace_s : 0.3);
    for (Line& l : g.lines) {
      const double left = std::chrono::duration<double>(end - Clock::now()).count();
      (void)wait_child(l.process.child, std::max(0.0, left));
      stop_session(l.process.child, kGrace_s);
      if (l.process.from >= 0) ::close(std::exchange(l.process.from, -1));
      l.ended = true;
    }
  }
  void finish_all() {
    for (Group& g : groups_)
      for (Line& l : g.lines)
        if (l.process.to >= 0) ::close(std::exchange(l.process.to, -1));
    for (Group& g : groups_) finish(g);
  }

  const GroupRunTerms& terms_;
  const std::vector<std::string>& nodes_;
  std::vector<Group> groups_;
};

}  // namespace

Result<std::vector<GroupOutcome>> run_remote_rings(const GroupRunTerms& terms, const std::vector<std::string>& nodes,
                                                   const std::vector<NodeGroup>& groups) {
  return Rings(terms, nodes).run(groups);
}

}  // namespace orrery
