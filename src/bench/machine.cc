#include "bench/machine.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/number_text.h"
#include "bench/commit.h"
#include "processes/find.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

std::optional<double> number_in(const std::string& path) {
  const auto line = first_line(path);
  double x = 0;
  if (!line || read_double(*line, x) != NumberState::ok) return std::nullopt;
  return x;
}

// "key : value" of /proc/cpuinfo, "key:  N kB" of /proc/meminfo.
std::optional<std::string> field_of(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t from = line.find_first_not_of(" \t", colon + 1);
    return from == std::string::npos ? std::string() : line.substr(from);
  }
  return std::nullopt;
}

std::optional<double> kilobytes(const std::string& path, const std::string& key) {
  const auto text = field_of(path, key);
  double x = 0;
  if (!text || read_double(text->substr(0, text->find(' ')), x) != NumberState::ok) return std::nullopt;
  return x * 1024;
}

// Energy counters of the processors' packages.
std::vector<std::string> energy_files() {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/sys/class/powercap", error)) {
    const auto name = first_line(entry.path() / "name");
    if (name && name->rfind("package", 0) == 0 && number_in(entry.path() / "energy_uj"))
      files.push_back((entry.path() / "energy_uj").string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<double> energies() {
  static const std::vector<std::string> files = energy_files();
  std::vector<double> all;
  for (const std::string& f : files)
    if (const auto uj = number_in(f)) all.push_back(*uj);
  return all;
}

// The mean of what the kernel says of its processors now.
std::optional<double> host_clock() {
  double sum = 0;
  int n = 0;
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    double mhz = 0;
    if (line.rfind("cpu MHz", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos || read_double(line.substr(colon + 2), mhz) != NumberState::ok) continue;
    sum += mhz;
    ++n;
  }
  return n > 0 ? std::optional(sum / n) : std::nullopt;
}

}  // namespace

// ---- NVIDIA's management library: its stable C interface, by hand ----

struct DeviceLibrary::State {
  void* library = nullptr;
  std::vector<void*> devices;
  int (*shutdown)() = nullptr;
  int (*driver)(char*, unsigned) = nullptr;
  int (*name)(void*, char*, unsigned) = nullptr;
  int (*uuid)(void*, char*, unsigned) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  struct Memory {
    unsigned long long total, free, used;
  };
  int (*memory)(void*, Memory*) = nullptr;
};

DeviceLibrary::DeviceLibrary(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceLibrary::~DeviceLibrary() {
  if (state_->shutdown) state_->shutdown();
  ::dlclose(state_->library);
}

std::shared_ptr<DeviceLibrary> DeviceLibrary::open(const std::string& given) {
  const char* named = std::getenv("ORRERY_NVML");  // NOLINT: before any thread starts
  const std::string path = !given.empty() ? given : named != nullptr ? named : "libnvidia-ml.so.1";
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return nullptr;
  auto s = std::make_unique<State>();
  s->library = library;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  int (*init)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, void**) = nullptr;
  unsigned n = 0;
  if (!find("nvmlInit_v2", init) || !find("nvmlDeviceGetCount_v2", count) ||
      !find("nvmlDeviceGetHandleByIndex_v2", handle) || !find("nvmlShutdown", s->shutdown) || init() != 0) {
    ::dlclose(library);
    return nullptr;
  }
  find("nvmlSystemGetDriverVersion", s->driver);
  find("nvmlDeviceGetName", s->name);
  find("nvmlDeviceGetUUID", s->uuid);
  find("nvmlDeviceGetPowerUsage", s->power);
  find("nvmlDeviceGetClockInfo", s->clock);
  find("nvmlDeviceGetMemoryInfo", s->memory);
  if (count(&n) != 0) n = 0;
  for (unsigned i = 0; i < n; ++i) {
    void* device = nullptr;
    if (handle(i, &device) == 0) s->devices.push_back(device);
  }
  return std::shared_ptr<DeviceLibrary>(new DeviceLibrary(std::move(s)));
}

std::size_t DeviceLibrary::count() const { return state_->devices.size(); }
std::string DeviceLibrary::driver() const {
  char text[96] = {};
  return state_->driver && state_->driver(text, sizeof text) == 0 ? text : "";
}
std::string DeviceLibrary::name(std::size_t device) const {
  char text[96] = {};
  return state_->name && state_->name(state_->devices[device], text, sizeof text) == 0 ? text : "";
}
std::string DeviceLibrary::uuid(std::size_t device) const {
  char text[96] = {};
  return state_->uuid && state_->uuid(state_->devices[device], text, sizeof text) == 0 ? text : "";
}
std::optional<double> DeviceLibrary::watts(std::size_t device) const {
  unsigned mw = 0;
  if (!state_->power || state_->power(state_->devices[device], &mw) != 0) return std::nullopt;
  return mw / 1e3;
}
std::optional<double> DeviceLibrary::mhz(std::size_t device) const {
  constexpr int kMultiprocessors = 1;  // NVML_CLOCK_SM
  unsigned mhz = 0;
  if (!state_->clock || state_->clock(state_->devices[device], kMultiprocessors, &mhz) != 0) return std::nullopt;
  return mhz;
}
std::optional<double> DeviceLibrary::used_bytes(std::size_t device) const {
  State::Memory m{};
  if (!state_->memory || state_->memory(state_->devices[device], &m) != 0) return std::nullopt;
  return static_cast<double>(m.used);
}

std::vector<std::size_t> visible_devices(const char* variable, const std::vector<std::string>& uuids) {
  std::vector<std::size_t> seen;
  if (variable == nullptr) {
    for (std::size_t i = 0; i < uuids.size(); ++i) seen.push_back(i);
    return seen;
  }
  std::string_view text = variable;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string word(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    word.erase(std::remove(word.begin(), word.end(), ' '), word.end());
    std::int64_t number = -1;
    std::size_t found = uuids.size();
    if (word.rfind("GPU-", 0) == 0) {
      found = static_cast<std::size_t>(
          std::find_if(uuids.begin(), uuids.end(), [&](const std::string& u) { return u.rfind(word, 0) == 0; }) -
          uuids.begin());
    } else if (read_int(word, number) == NumberState::ok && number >= 0) {
      found = static_cast<std::size_t>(number);
    }
    if (found >= uuids.size()) break;
    seen.push_back(found);
  }
  return seen;
}

// ---- what the machine is ----

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

std::optional<double> load_average() {
  const auto line = first_line("/proc/loadavg");
  double x = 0;
  if (!line || read_double(line->substr(0, line->find(' ')), x) != NumberState::ok) return std::nullopt;
  return x;
}

double resident_bytes() { return kilobytes("/proc/self/status", "VmRSS").value_or(0); }

std::string environment_json(const DeviceLibrary* devices, const std::string& worker, bool here) {
  Json j;
  j["orrery"] = ORRERY_VERSION;
  j["commit"] = commit_of_build().empty() ? Json(nullptr) : Json(std::string(commit_of_build()));
  const auto finished = [&] {
    j["worker"] = worker.empty() ? Json(nullptr) : Json::parse(worker, nullptr, false);
    return environment_alone(j.dump(-1, ' ', false, Json::error_handler_t::replace));
  };
  if (!here) return finished();
  j["host"] = host_name();
  utsname system{};
  if (::uname(&system) == 0) {
    j["kernel"] = std::string(system.sysname) + " " + system.release;
    j["machine"] = system.machine;
  }
  const auto cpu = field_of("/proc/cpuinfo", "model name");
  j["cpu"] = cpu ? Json(*cpu) : Json(nullptr);
  j["cores"] = std::thread::hardware_concurrency();
  const auto governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  j["cpu_governor"] = governor ? Json(*governor) : Json(nullptr);
  const auto memory = kilobytes("/proc/meminfo", "MemTotal");
  j["memory_gib"] = memory ? Json(std::round(*memory / (1 << 20) / 1024 * 100) / 100) : Json(nullptr);
  Json gpus = Json::array();
  if (devices != nullptr)
    for (std::size_t i = 0; i < devices->count(); ++i) gpus.push_back(devices->name(i));
  j["gpus"] = gpus;
  j["driver"] = devices != nullptr && !devices->driver().empty() ? Json(devices->driver()) : Json(nullptr);
  return finished();
}

std::string environment_alone(const std::string& environment) {
  Json j = Json::parse(environment, nullptr, false);
  if (!j.is_object() || !j.contains("worker") || !j["worker"].is_object()) return environment;
  for (const char* const of_run : {"world", "threads"}) j["worker"].erase(of_run);
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// ---- samples ----

constexpr std::int64_t kMembersEvery = 4, kMembersAtFirst = 5;  // samples
constexpr std::int64_t kClockEvery = 8;  // samples: the kernel asks every processor for its clock

std::optional<double> joules_between(const std::vector<double>& before, const std::vector<double>& now) {
  if (before.empty() || before.size() != now.size()) return std::nullopt;
  double joules = 0;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] < before[i]) return std::nullopt;
    joules += (now[i] - before[i]) / 1e6;
  }
  return joules;
}

Sampler::Sampler(Child child, std::pair<std::string, std::string> mark, const DeviceLibrary* devices,
                 std::vector<std::size_t> of_run)
    : child_(child),
      mark_(std::move(mark)),
      devices_(devices),
      of_run_(devices != nullptr ? std::move(of_run) : std::vector<std::size_t>()),
      energy_now_(energies()),
      now_(std::chrono::steady_clock::now()) {}

void Sampler::sample() {
  if (child_.pid <= 0) return;  // it runs elsewhere: this machine's clocks and watts are not its own
  double host = 0;
  // Every process of the machine is looked at for that: not each time.
  if (samples_ < kMembersAtFirst || samples_ % kMembersEvery == 0) {
    members_ = session_members(child_.pid);
    // torchrun's ranks: sessions of their own.
    for (const pid_t pid : processes_with(mark_.first, mark_.second, child_.started))
      if (pid != ::getpid() && std::find(members_.begin(), members_.end(), pid) == members_.end())
        members_.push_back(pid);
  }
  for (const pid_t pid : members_) host += kilobytes(fmt::format("/proc/{}/status", pid), "VmHWM").value_or(0);
  host_peak_ = std::max(host_peak_, host);
  double watts = 0;
  bool powered = !of_run_.empty();
  for (const std::size_t i : of_run_) {
    const auto w = devices_->watts(i);
    powered = powered && w.has_value();
    watts += w.value_or(0);
    if (const auto mhz = devices_->mhz(i)) device_mhz_.add(*mhz);
    device_peak_ = std::max(device_peak_, devices_->used_bytes(i).value_or(0));
  }
  if (powered) watts_.add(watts);
  if (samples_++ % kClockEvery == 0)
    if (const auto mhz = host_clock()) host_mhz_.add(*mhz);
  // Added up from sample to sample: a counter runs over within minutes, which begin and end alone do not show.
  std::vector<double> energy = energies();
  const auto now = std::chrono::steady_clock::now();
  if (const auto joules = joules_between(energy_now_, energy)) {
    joules_ += *joules;
    powered_s_ += std::chrono::duration<double>(now - now_).count();
  }
  energy_now_ = std::move(energy);
  now_ = now;
}

MachineSamples Sampler::result() const {
  MachineSamples s;
  if (host_peak_ > 0) s.host_peak_bytes = host_peak_;
  if (device_peak_ > 0) s.device_peak_bytes = device_peak_;
  s.device_watts = watts_.value();
  s.device_mhz = device_mhz_.value();
  s.host_mhz = host_mhz_.value();
  if (powered_s_ > 0) s.host_watts = joules_ / powered_s_;
  return s;
}

}  // namespace orrery
