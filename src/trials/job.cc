#include "trials/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/output.h"
#include "base/unix_time.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

volatile sig_atomic_t asked_to_stop = 0;  // a handler can reach nothing else
void on_stop(int) { asked_to_stop = 1; }

Json read_json(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return nullptr;
  return Json::parse(in, nullptr, false);
}

// Whole and once: the first to make it has it.
bool make_once(const std::string& path, const std::string& text) {
  const std::string mine = fmt::format("{}.{}", path, ::getpid());
  if (!write_file(mine, text)) return false;
  const bool made = ::link(mine.c_str(), path.c_str()) == 0;
  ::unlink(mine.c_str());
  return made;
}

std::optional<JobSpec> read_job(const std::string& directory) {
  const Json j = read_json(directory + "/job.json");
  if (!j.is_object()) return {};
  JobSpec s;
  s.argv = j["argv"].get<std::vector<std::string>>();
  s.environment = j["environment"].get<std::vector<std::pair<std::string, std::string>>>();
  s.directory = j["directory"];
  s.limit_s = j["limit_s"];
  s.loads = j["loads"];
  s.source = j["source"];
  s.fingerprint = j["fingerprint"];
  s.copy = {j["memory"], j["most_bytes"], j["bytes_per_s"]};
  s.storage_when_full = j["storage_when_full"];
  return s;
}

int write_result(const std::string& directory, JobResult r) {
  r.ended = unix_seconds();
  const Json j{{"status", r.exit.status},  {"signal", r.exit.signal},
               {"error", r.error},         {"cannot_start", r.cannot_start},
               {"timed_out", r.timed_out}, {"stopped", r.stopped},
               {"no_model", r.no_model},   {"no_room", r.no_room},
               {"began", r.began},         {"no_room_yet", r.no_room_yet},
               {"started", r.started},     {"ended", r.ended},
               {"load_s", r.load_s},       {"load_from", r.load_from},
               {"load_note", r.load_note}, {"loaded_here", r.loaded_here}};
  const std::string text = j.dump(1, ' ', false, Json::error_handler_t::replace);
  // Durable before it has its name: a result that is there is true, also after the machine went down.
  const std::string path = directory + "/result.json", part = path + ".part";
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return 2;
  const bool written = write_all(fd, text, part).has_value() && ::fsync(fd) == 0;
  ::close(fd);
  return written && ::rename(part.c_str(), path.c_str()) == 0 ? 0 : 2;
}

// Where the model is, for the command. False: `r` says why there is none.
bool load_model(const JobSpec& spec, std::string& path, NodeCopy& copy, JobResult& r) {
  path = spec.source;
  if (!spec.loads) return true;
  const auto refuse = [&](const Error& e) {
    r.error = e.line();
    r.no_model = true;
    return false;
  };
  sweep_copies(spec.copy, 600);  // what others left behind
  const auto files = look_at_checkpoint(spec.source);
  CheckpointFiles gone;
  gone.fingerprint = spec.fingerprint;
  // A checkpoint that vanished may still be in memory.
  if (files && files->fingerprint != spec.fingerprint)
    return refuse({"was altered since it was found", spec.source, "it is found anew under its new state"});
  constexpr double kWaitForRoom = 10;  // seconds: then another trial may have the GPU
  bool no_room = false;
  const auto stop = [] { return asked_to_stop != 0; };
  auto got = acquire_copy(spec.copy, spec.source, files ? *files : gone, no_room, stop);
  while (!got && no_room && !spec.storage_when_full && room_may_come(spec.copy, files ? files->bytes : 0)) {
    r.stopped = asked_to_stop != 0;
    r.no_room_yet = unix_seconds() - r.began > kWaitForRoom;
    if (r.stopped || r.no_room_yet) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    got = acquire_copy(spec.copy, spec.source, files ? *files : gone, no_room, stop);
  }
  if (got) {
    copy = std::move(*got);
    path = copy.path;
    r.load_s = copy.seconds;
    r.load_from = "memory";
    r.loaded_here = copy.made_here;
    return true;
  }
  r.stopped = r.stopped || asked_to_stop != 0;
  r.no_room = no_room;
  if (!no_room || !spec.storage_when_full || r.stopped) return refuse(got.error());
  r.load_from = "storage";
  r.load_note = got.error().line();
  return true;
}

}  // namespace

Status write_job(const std::string& directory, const JobSpec& s) {
  const Json j{{"argv", s.argv},
               {"environment", s.environment},
               {"directory", s.directory},
               {"limit_s", s.limit_s},
               {"loads", s.loads},
               {"source", s.source},
               {"fingerprint", s.fingerprint},
               {"memory", s.copy.directory},
               {"most_bytes", s.copy.most_bytes},
               {"bytes_per_s", s.copy.bytes_per_s},
               {"storage_when_full", s.storage_when_full}};
  return write_file(directory + "/job.json", j.dump(1, ' ', false, Json::error_handler_t::replace));
}

std::optional<JobResult> read_result(const std::string& directory) {
  const Json j = read_json(directory + "/result.json");
  if (!j.is_object()) return {};
  JobResult r;
  r.exit = {j["status"], j["signal"]};
  r.error = j["error"];
  r.cannot_start = j["cannot_start"];
  r.timed_out = j["timed_out"];
  r.stopped = j["stopped"];
  r.no_model = j["no_model"];
  r.no_room = j.value("no_room", false);
  r.no_room_yet = j.value("no_room_yet", false);
  r.began = j["began"];
  r.started = j["started"];
  r.ended = j["ended"];
  r.load_s = j["load_s"];
  r.load_from = j["load_from"];
  r.loaded_here = j["loaded_here"];
  r.load_note = j["load_note"];
  return r;
}

std::string identity(const Child& child) { return fmt::format("{} {}", child.pid, child.started); }

Child child_of(const std::string& text) {
  Child c;
  const std::size_t blank = text.find(' ');
  if (blank == std::string::npos) return c;
  c.pid = static_cast<pid_t>(std::strtol(text.c_str(), nullptr, 10));
  c.started = std::strtoull(text.c_str() + blank, nullptr, 10);
  return c;
}

std::optional<JobOwner> read_owner(const std::string& directory) {
  std::ifstream in(directory + "/owner");
  if (!in) return {};
  JobOwner o;
  std::string word;
  in >> word;
  if (word == "revoked") {
    o.revoked = true;
    return o;
  }
  o.process.pid = static_cast<pid_t>(std::strtol(word.c_str(), nullptr, 10));
  in >> o.process.started >> o.host >> o.job >> o.step >> o.element;
  for (std::string* text : {&o.step, &o.element})
    if (*text == "-") text->clear();
  return o;
}

bool revoke_job(const std::string& directory) {
  if (make_once(directory + "/owner", "revoked\n")) return true;
  const auto owner = read_owner(directory);
  return owner && owner->revoked;
}

std::optional<Child> read_child(const std::string& directory) {
  std::ifstream in(directory + "/child");
  Child c;
  if (!(in >> c.pid >> c.started)) return {};
  return c;
}

std::string job_of_array(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return path;
  const char* const index = std::getenv("SLURM_ARRAY_TASK_ID");
  std::ifstream in(path);
  std::string line;
  for (long i = index == nullptr ? 0 : std::strtol(index, nullptr, 10); i >= 0; --i)
    if (!std::getline(in, line)) return path;
  return line;
}

int run_job(const std::string& directory) {
  const auto spec = read_job(directory);
  if (!spec) return 2;
  struct sigaction action {};
  action.sa_handler = on_stop;
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) ::sigaction(s, &action, nullptr);
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const Child self{::getpid(), start_time_of(::getpid())};
  const char* const node = std::getenv("SLURMD_NODENAME");
  const char* const job = std::getenv("SLURM_JOB_ID");
  const char* const step = std::getenv("SLURM_STEP_ID");
  const char* const array = std::getenv("SLURM_ARRAY_JOB_ID");
  const char* const index = std::getenv("SLURM_ARRAY_TASK_ID");
  const std::string element = array != nullptr && index != nullptr ? fmt::format("{}_{}", array, index) : "-";
  const std::string who = fmt::format("{} {} {} {} {}\n", identity(self), node != nullptr ? node : host,
                                      job != nullptr ? job : "0", step != nullptr ? step : "-", element);
  if (!make_once(directory + "/owner", who)) return 2;  // revoked, or somebody's
  JobResult r;
  r.began = unix_seconds();
  NodeCopy copy;
  std::string model;
  if (!load_model(*spec, model, copy, r)) return write_result(directory, r);
  ChildTerms terms;
  for (std::string word : spec->argv) {
    constexpr std::string_view kModel = "{model}";
    for (std::size_t at = 0; (at = word.find(kModel, at)) != std::string::npos; at += model.size())
      word.replace(at, kModel.size(), model);
    terms.argv.push_back(std::move(word));
  }
  terms.environment = spec->environment;
  terms.directory = spec->directory.empty() ? directory : spec->directory;
  terms.output = directory + "/out.log";
  terms.errors = "=";
  terms.dies_with_parent = true;
  const auto end = [&] {
    copy = {};  // before the coordinator hears of the end, and lets copies go
    return write_result(directory, r);
  };
  r.started = unix_seconds();
  if (asked_to_stop != 0) {
    r.stopped = true;
    return end();
  }
  const auto child = start_child(terms);
  if (!child) {
    r.error = child.error().line();
    r.cannot_start = true;
    return end();
  }
  (void)write_file(directory + "/child", identity(*child) + "\n");
  for (;;) {
    if (const auto exit = wait_child(*child, 0.2)) {
      r.exit = *exit;
      break;
    }
    r.timed_out = unix_seconds() - r.started > spec->limit_s;
    r.stopped = asked_to_stop != 0;
    if (!r.timed_out && !r.stopped) continue;
    stop_session(*child, 5);
    r.exit.signal = SIGKILL;
    break;
  }
  stop_session(*child, 0);  // what the command left behind holds the GPU
  return end();
}

}  // namespace orrery
