// A small Slurm of one's own on this machine: munged, slurmctld and several slurmd, under one temporary directory, on
// ports that the kernel chooses, bound to the loopback alone. By hand: `build/slurm_lab`, then `export SLURM_CONF=...`
// as it says; it ends at the end of its input (Ctrl-D).
//
// All daemons stay in the foreground as children of this process, and what they leave behind (slurmstepd, tasks) comes
// to it as well, since it is the subreaper. So it knows every process of the lab, and ends all of them when its input
// ends: that is also what happens when the test that started it is killed.
//
// Input, one a line: kill NODE (slurmd, steps and tasks, SIGKILL), freeze NODE, thaw NODE, start NODE; stop controller
// (it saves its state first; killed, it forgets the last seconds), kill controller, start controller. Output: "ready
// CONF" or "error WHY"; then "ok" or "error WHY" for each line of input.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

volatile sig_atomic_t told_to_end = 0;

struct Terms {
  int nodes = 4, cpus = 8, gpus = 0;
  int slurmd_timeout_s = 20, min_job_age_s = 300;
  fs::path directory;
};

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

bool wait_for(int seconds, const std::function<bool()>& condition) {
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  while (!condition()) {
    if (Clock::now() > end || told_to_end != 0) return false;
    sleep_ms(20);
  }
  return true;
}

// Ports that are free now: all are held while the others are asked for, so that no two are the same.
std::vector<int> free_ports(std::size_t n) {
  std::vector<int> sockets, ports;
  for (std::size_t i = 0; i < n; ++i) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof a;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&a), size) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) != 0)
      return {};
    sockets.push_back(fd);
    ports.push_back(ntohs(a.sin_port));
  }
  for (const int fd : sockets) ::close(fd);
  return ports;
}

bool answers(int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<std::uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool ok = fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
  if (fd >= 0) ::close(fd);
  return ok;
}

class Lab {
 public:
  explicit Lab(Terms terms) : t_(std::move(terms)) {}

  std::string up();  // "" or why not
  void down();
  std::string command(const std::string& line);
  void reap() {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
  }
  fs::path conf() const { return t_.directory / "etc/slurm.conf"; }

 private:
  std::string node(int i) const { return "node" + std::to_string(i); }
  pid_t start(const std::vector<std::string>& words, const std::string& output);
  bool alive(pid_t pid) {
    reap();
    return pid > 0 && ::kill(pid, 0) == 0;
  }
  std::string output_of(const std::vector<std::string>& words);
  std::string daemons_up();
  std::string start_controller();
  std::string start_node(const std::string& name);
  std::map<pid_t, pid_t> descendants() const;  // process -> its parent
  std::set<pid_t> processes_of(const std::string& name) const;
  void signal_node(const std::string& name, int signal);
  std::string write_files();

  Terms t_;
  std::vector<int> ports_;  // of slurmctld, then of the nodes
  std::map<std::string, pid_t> daemons_;
};

pid_t Lab::start(const std::vector<std::string>& words, const std::string& output) {
  std::vector<char*> argv;
  std::vector<std::string> copies = words;
  for (std::string& w : copies) argv.push_back(w.data());
  argv.push_back(nullptr);
  const std::string log = (t_.directory / "log" / output).string();
  const pid_t self = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != self) ::_exit(127);
  ::setsid();
  const int in = ::open("/dev/null", O_RDONLY), out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(in, 0);
  ::dup2(out, 1);
  ::dup2(out, 2);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

std::string Lab::output_of(const std::vector<std::string>& words) {
  const std::string name = "output." + std::to_string(::getpid());
  fs::remove(t_.directory / "log" / name);
  const pid_t pid = start(words, name);
  ::waitpid(pid, nullptr, 0);
  return read_all(t_.directory / "log" / name);
}

std::string Lab::write_files() {
  for (const char* d : {"etc", "log", "pid", "state", "munge", "spool", "run", "dev"})
    fs::create_directories(t_.directory / d);
  fs::permissions(t_.directory / "munge", fs::perms::owner_all);
  for (int i = 0; i < t_.nodes; ++i) fs::create_directories(t_.directory / "spool" / node(i));
  {
    std::random_device random;
    std::string key(1024, '\0');
    for (char& c : key) c = static_cast<char>(random());
    const fs::path path = t_.directory / "munge/munge.key";
    std::ofstream(path, std::ios::binary) << key;
    fs::permissions(path, fs::perms::owner_read);
  }
  std::string host(256, '\0');
  ::gethostname(host.data(), host.size() - 1);
  host = host.c_str();
  host = host.substr(0, host.find('.'));
  const passwd* user = ::getpwuid(::geteuid());
  if (user == nullptr) return "this user has no name";
  const std::string lab = t_.directory.string();
  std::ofstream c(conf());
  c << "ClusterName=lab\nSlurmctldHost=" << host << "(127.0.0.1)\nSlurmctldPort=" << ports_[0]
    << "\nSlurmUser=" << user->pw_name << "\nSlurmdUser=" << user->pw_name
    << "\nAuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket=" << lab << "/run/munge.socket\n"
    << "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n"
    << "StateSaveLocation=" << lab << "/state\nSlurmdSpoolDir=" << lab << "/spool/%n\nSlurmctldPidFile=" << lab
    << "/pid/slurmctld.pid\nSlurmdPidFile=" << lab << "/pid/slurmd.%n.pid\nSlurmctldLogFile=" << lab
    << "/log/slurmctld.log\nSlurmdLogFile=" << lab << "/log/slurmd.%n.log\n"
    << "SlurmctldDebug=info\nSlurmdDebug=info\nMailProg=/bin/true\n"
    // without systemd and cgroups; more CPUs than there are
    << "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n"
    << "JobAcctGatherType=jobacct_gather/none\nSlurmdParameters=config_overrides\n"
    << "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nSchedulerType=sched/backfill\n"
    << "SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=100000\n"
    << "ReturnToService=2\nSlurmdTimeout=" << t_.slurmd_timeout_s
    << "\nSlurmctldTimeout=20\nInactiveLimit=0\nKillWait=3\n"
    << "MinJobAge=" << t_.min_job_age_s << "\nMessageTimeout=10\nJobRequeue=1\n"
    << "AccountingStorageType=accounting_storage/none\n"
    << "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n";
  if (t_.gpus > 0) c << "GresTypes=gpu\n";
  for (int i = 0; i < t_.nodes; ++i) {
    c << "NodeName=" << node(i) << " NodeHostname=" << host << " NodeAddr=127.0.0.1 Port=" << ports_[1 + i]
      << " CPUs=" << t_.cpus << " Boards=1 SocketsPerBoard=1 CoresPerSocket=" << t_.cpus
      << " ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN";
    if (t_.gpus > 0) c << " Gres=gpu:" << t_.gpus;
    c << "\n";
  }
  c << "PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO GraceTime=20\n"
    << "PartitionName=eval Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO PreemptMode=OFF\n"
    << "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=10 PreemptMode=OFF\n";
  c.close();
  std::ofstream(t_.directory / "etc/cgroup.conf") << "CgroupAutomount=no\n";
  if (t_.gpus > 0) {
    // A GPU without a device file is reported as none: copies of /dev/null do.
    for (int g = 0; g < t_.gpus; ++g)
      if (::mknod((t_.directory / "dev" / ("gpu" + std::to_string(g))).c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0)
        return "no device files for GPUs: " + std::string(std::strerror(errno));
    std::ofstream(t_.directory / "etc/gres.conf")
        << "NodeName=node[0-" << t_.nodes - 1 << "] Name=gpu File=" << lab << "/dev/gpu[0-" << t_.gpus - 1 << "]\n";
  }
  return c ? "" : "cannot write " + conf().string();
}

std::string Lab::start_controller() {
  if (alive(daemons_["controller"])) return "controller runs already";
  daemons_["controller"] = start({"slurmctld", "-D"}, "slurmctld.out");
  if (!wait_for(60, [&] { return answers(ports_[0]) || !alive(daemons_["controller"]); }) || !answers(ports_[0]))
    return "slurmctld does not answer";
  return "";
}

std::string Lab::start_node(const std::string& name) {
  if (alive(daemons_[name])) return name + " runs already";
  daemons_[name] = start({"slurmd", "-D", "-N", name}, "slurmd." + name + ".out");
  return "";
}

std::string Lab::daemons_up() {
  const std::string socket = (t_.directory / "run/munge.socket").string();
  const std::string munge = (t_.directory / "munge").string(), log = (t_.directory / "log").string();
  // --force: the directory of temporary files may be written by everyone, which munged refuses otherwise.
  daemons_["munged"] = start({"munged", "-F", "--force", "--num-threads=2", "--key-file=" + munge + "/munge.key",
                              "--socket=" + socket, "--pid-file=" + (t_.directory / "pid/munged.pid").string(),
                              "--log-file=" + log + "/munged.log", "--seed-file=" + munge + "/seed"},
                             "munged.out");
  if (!wait_for(60, [&] { return fs::exists(socket) || !alive(daemons_["munged"]); }) || !fs::exists(socket))
    return "munged does not answer";
  if (const std::string why = start_controller(); !why.empty()) return why;
  for (int i = 0; i < t_.nodes; ++i) start_node(node(i));
  const bool idle = wait_for(60, [&] {
    const std::string out = output_of({"sinfo", "-h", "-N", "-p", "train", "-t", "idle", "-o", "%N"});
    bool all = true;
    for (int i = 0; i < t_.nodes; ++i) {
      all = all && ("\n" + out).find("\n" + node(i) + "\n") != std::string::npos;
      if (!alive(daemons_[node(i)])) return true;
    }
    return all;
  });
  for (int i = 0; i < t_.nodes; ++i)
    if (!alive(daemons_[node(i)])) return "slurmd of " + node(i) + " ended";
  return idle ? "" : "nodes are not idle";
}

std::string Lab::up() {
  ::setenv("SLURM_CONF", conf().c_str(), 1);
  const char* path = std::getenv("PATH");
  ::setenv("PATH", ((path == nullptr ? "" : path + std::string(":")) + "/usr/sbin:/usr/bin:/sbin:/bin").c_str(), 1);
  std::string why;
  // Between asking for a free port and using it, someone else may have taken it.
  for (int attempt = 0; attempt < 3 && told_to_end == 0; ++attempt) {
    fs::remove_all(t_.directory);
    fs::create_directories(t_.directory);
    ports_ = free_ports(static_cast<std::size_t>(t_.nodes) + 1);
    if (ports_.empty()) return "no free ports";
    if (why = write_files(); !why.empty()) return why;
    if (why = daemons_up(); why.empty()) return "";
    for (const char* file : {"slurmctld.log", "slurmctld.out", "munged.out", "slurmd.node0.log"}) {
      const std::string text = read_all(t_.directory / "log" / file);
      std::cerr << "---- " << file << "\n" << text.substr(text.size() > 2000 ? text.size() - 2000 : 0);
    }
    down();
  }
  return why;
}

std::map<pid_t, pid_t> Lab::descendants() const {
  std::map<pid_t, pid_t> parents, found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = read_all(entry.path() / "stat");
    const std::size_t close = stat.rfind(')');
    if (close == std::string::npos || close + 4 >= stat.size() || stat[close + 2] == 'Z') continue;
    parents[std::stoi(name)] = std::stoi(stat.substr(close + 4));
  }
  const pid_t self = ::getpid();
  for (const auto& [pid, parent] : parents) {
    pid_t p = pid;
    for (int depth = 0; depth < 100 && p != self; ++depth) {
      const auto it = parents.find(p);
      if (it == parents.end()) break;
      p = it->second;
    }
    if (p == self && pid != self) found[pid] = parent;
  }
  return found;
}

// slurmd; slurmstepd, which keeps slurmd's log open; tasks, by their environment; and what these started.
std::set<pid_t> Lab::processes_of(const std::string& name) const {
  const auto all = descendants();
  std::set<pid_t> own;
  const std::string log = (t_.directory / "log" / ("slurmd." + name + ".log")).string();
  const std::string variable = std::string("SLURMD_NODENAME=") + name + '\0';
  for (const auto& [pid, parent] : all) {
    const fs::path proc = fs::path("/proc") / std::to_string(pid);
    const std::string environment = '\0' + read_all(proc / "environ");
    bool mine = daemons_.count(name) != 0 && daemons_.at(name) == pid;
    mine = mine || environment.find('\0' + variable) != std::string::npos;
    std::error_code none;
    for (auto fd = fs::directory_iterator(proc / "fd", none); !mine && fd != fs::directory_iterator(); ++fd)
      mine = fs::read_symlink(fd->path(), none) == log;
    if (mine) own.insert(pid);
  }
  for (std::size_t before = 0; before != own.size();) {
    before = own.size();
    for (const auto& [pid, parent] : all)
      if (own.count(parent) != 0) own.insert(pid);
  }
  return own;
}

// All of them stop first: nobody notices that another one dies.
void Lab::signal_node(const std::string& name, int signal) {
  std::set<pid_t> seen;
  for (;;) {
    const std::set<pid_t> now = processes_of(name);
    bool more = false;
    for (const pid_t pid : now)
      if (seen.insert(pid).second) {
        more = true;
        ::kill(pid, signal == SIGCONT ? SIGCONT : SIGSTOP);
      }
    if (!more) break;
  }
  if (signal == SIGKILL)
    for (const pid_t pid : seen) ::kill(pid, SIGKILL);
  if (signal == SIGKILL) wait_for(10, [&] { return reap(), processes_of(name).empty(); });
}

std::string Lab::command(const std::string& line) {
  std::istringstream words(line);
  std::string verb, name;
  words >> verb >> name;
  const bool controller = name == "controller";
  bool known = controller;
  for (int i = 0; i < t_.nodes; ++i) known = known || name == node(i);
  if (!known) return "no such node: " + name;
  if (verb == "start") return controller ? start_controller() : start_node(name);
  if (controller && (verb == "kill" || verb == "stop")) {
    ::kill(daemons_[name], verb == "kill" ? SIGKILL : SIGTERM);
    return wait_for(10, [&] { return !alive(daemons_[name]); }) ? "" : "it does not end";
  }
  if (controller) return "not of the controller: " + verb;
  if (verb == "kill") return signal_node(name, SIGKILL), "";
  if (verb == "freeze") return signal_node(name, SIGSTOP), "";
  if (verb == "thaw") return signal_node(name, SIGCONT), "";
  return "no such command: " + verb;
}

void Lab::down() {
  const auto end = Clock::now() + std::chrono::seconds(20);
  do {  // whatever starts while others are killed
    for (const auto& [pid, parent] : descendants()) ::kill(pid, SIGKILL);
    reap();
    sleep_ms(10);
  } while (!descendants().empty() && Clock::now() < end);
  while (::waitpid(-1, nullptr, 0) > 0) continue;  // all are dead: none is left to whoever comes after this process
  std::error_code ignored;
  fs::remove_all(t_.directory, ignored);
}

}  // namespace

int main(int argc, char** argv) {
  Terms t;
  std::string base = (fs::temp_directory_path() / "slurm-XXXXXX").string();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    const std::map<std::string, int*> numbers = {{"--nodes", &t.nodes},
                                                 {"--cpus", &t.cpus},
                                                 {"--gpus", &t.gpus},
                                                 {"--slurmd-timeout", &t.slurmd_timeout_s},
                                                 {"--min-job-age", &t.min_job_age_s}};
    const auto it = numbers.find(name);
    if (it == numbers.end()) return std::cerr << "slurm_lab: no such option: " << name << "\n", 2;
    *it->second = std::atoi(value.c_str());
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const int s : {SIGINT, SIGTERM, SIGHUP}) ::signal(s, [](int) { told_to_end = 1; });
  ::signal(SIGPIPE, SIG_IGN);
  if (::mkdtemp(base.data()) == nullptr) return std::cout << "error no temporary directory\n", 1;
  t.directory = base;
  ::umask(022);
  Lab lab(t);
  if (const std::string why = lab.up(); !why.empty()) {
    lab.down();
    std::cout << "error " << why << "\n";
    return 1;
  }
  std::cout << "ready " << lab.conf().string() << std::endl;
  std::string input;
  while (told_to_end == 0) {
    pollfd p{0, POLLIN, 0};
    const int ready = ::poll(&p, 1, 200);
    lab.reap();
    if (ready <= 0) continue;
    char buffer[512];
    const ssize_t n = ::read(0, buffer, sizeof buffer);
    if (n <= 0) break;
    input.append(buffer, static_cast<std::size_t>(n));
    for (std::size_t at; (at = input.find('\n')) != std::string::npos; input.erase(0, at + 1)) {
      const std::string why = lab.command(input.substr(0, at));
      std::cout << (why.empty() ? "ok" : "error " + why) << std::endl;
    }
  }
  lab.down();
  return 0;
}
