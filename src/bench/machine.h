// The machine that runs: what it is, and what it draws and holds while a run goes on. What cannot be read is absent,
// never zero.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "processes/child.h"

namespace orrery {

// NVIDIA's driver through its own library, opened when there is one.
class DeviceLibrary {
 public:
  // `path`: "" = libnvidia-ml.so.1 as the system finds it; ORRERY_NVML names another.
  static std::shared_ptr<DeviceLibrary> open(const std::string& path = "");
  ~DeviceLibrary();
  DeviceLibrary(const DeviceLibrary&) = delete;
  DeviceLibrary& operator=(const DeviceLibrary&) = delete;

  std::size_t count() const;
  std::string driver() const;
  std::string name(std::size_t device) const;
  std::string uuid(std::size_t device) const;  // "GPU-..."; "" = not told
  std::optional<double> watts(std::size_t device) const;
  std::optional<double> mhz(std::size_t device) const;         // multiprocessors, now
  std::optional<double> used_bytes(std::size_t device) const;  // by all processes

 private:
  struct State;
  explicit DeviceLibrary(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Of `uuids`, one of each device of the machine, those that a program sees by CUDA_VISIBLE_DEVICES (numbers, or as much
// of an identity as is unambiguous; null: all), in its order. As CUDA has it, what cannot be a device ends the list.
std::vector<std::size_t> visible_devices(const char* variable, const std::vector<std::string>& uuids);

// JSON: host, kernel, CPU, cores, memory, GPUs with their driver; what the worker told of itself (`worker`, a JSON
// object or "") and this program's version and commit. `here` false: the run was another machine's, of which only the
// worker tells.
std::string environment_json(const DeviceLibrary* devices, const std::string& worker, bool here);

// Without what the run itself says (ranks, threads of a rank): what tells one environment from another.
std::string environment_alone(const std::string& environment);

struct MachineSamples {                                // while a run went on
  std::optional<double> host_peak_bytes{};             // of all its processes together
  std::optional<double> device_peak_bytes{};           // the fullest device
  std::optional<double> device_watts{}, host_watts{};  // means; all devices together
  std::optional<double> device_mhz{}, host_mhz{};      // means
};

// What counters of energy (microjoules, one a package) grew by from one sample to the next, in joules; nothing where
// they cannot be compared: one ran over, or they are not the same.
std::optional<double> joules_between(const std::vector<double>& before, const std::vector<double>& now);

// Takes a sample when asked, some hundred microseconds each.
class Sampler {
 public:
  // `child`: whose session is looked at, with those in sessions of their own whose environment has `mark`, a variable
  // and its value; pid 0 = none (the run is elsewhere). `of_run`: those of `devices` that it may use; none where
  // `devices` is null.
  Sampler(Child child, std::pair<std::string, std::string> mark, const DeviceLibrary* devices,
          std::vector<std::size_t> of_run);
  void sample();
  MachineSamples result() const;

 private:
  Child child_;
  std::pair<std::string, std::string> mark_;
  const DeviceLibrary* devices_;
  std::vector<std::size_t> of_run_;
  struct Mean {
    double sum = 0;
    std::int64_t n = 0;
    void add(double x) { sum += x, ++n; }
    std::optional<double> value() const { return n > 0 ? std::optional(sum / static_cast<double>(n)) : std::nullopt; }
  };
  Mean watts_, device_mhz_, host_mhz_;
  std::int64_t samples_ = 0;
  std::vector<pid_t> members_;
  double host_peak_ = 0, device_peak_ = 0;
  std::vector<double> energy_now_;  // microjoules of each package of the host
  double joules_ = 0, powered_s_ = 0;
  std::chrono::steady_clock::time_point now_;
};

double resident_bytes();               // of this process; 0 = not known
std::optional<double> load_average();  // of one minute
std::string host_name();

}  // namespace orrery
