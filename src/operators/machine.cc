#include "operators/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>

#include "base/fnv.h"
#include "facts/gpus.h"

namespace orrery {
namespace {

// Of a host whose memory was not measured: what servers of these years have for a core (facts/hosts), assumed.
constexpr double kHostGbPerCore = 5;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// A TOML basic string.
std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (const char c : s)
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)
      out += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "\"";
}

double memory_of_this_process() {
  double bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  std::ifstream limit("/sys/fs/cgroup/memory.max");  // of a container; "max" is no number
  double most = 0;
  if (limit >> most && most > 0) bytes = std::min(bytes, most);
  return bytes / kGiB;
}

}  // namespace

Machine this_machine() {
  Machine m;
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof set, &set) == 0;
  if (known) m.cores = std::max(1, CPU_COUNT(&set));
  m.memory_gib = memory_of_this_process();
  // Cores share a part of the last level, of which a processor may have many.
  std::set<std::string> parts;
  for (int cpu = 0; known && cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/cache/index3/", cpu);
    std::ifstream size(folder + "size"), shared(folder + "shared_cpu_list");  // "32768K", "0-7,64-71"
    std::string cores;
    double kib = 0;
    if (size >> kib && kib > 0 && shared >> cores && parts.insert(cores).second) m.cache_mib += kib / 1024;
  }
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    m.cpu = line.substr(std::min(colon + 2, line.size()));
    break;
  }
  return m;
}

std::int64_t cores_of_rank(RankGroup& ranks) {
  cpu_set_t set;
  CPU_ZERO(&set);
  char host[256] = {};
  if (::sched_getaffinity(0, sizeof set, &set) != 0 || ::gethostname(host, sizeof host - 1) != 0) return 1;
  std::string which = host;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) which += fmt::format(" {}", cpu);
  // As whole numbers that a float holds.
  const std::uint64_t hash = fnv1a(which);
  constexpr std::size_t kParts = 4;
  std::array<float, kParts> mine{};
  for (std::size_t i = 0; i < kParts; ++i) mine[i] = static_cast<float>(hash >> (16 * i) & 0xffff);
  std::vector<float> all(kParts * static_cast<std::size_t>(ranks.size()));
  if (!ranks.all_gather(mine.data(), kParts, all.data())) return 0;
  std::int64_t sharing = 0;
  for (std::size_t at = 0; at < all.size(); at += kParts)
    sharing += std::equal(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(at)) ? 1 : 0;
  return std::max<std::int64_t>(1, CPU_COUNT(&set) / std::max<std::int64_t>(1, sharing));
}

Result<std::string> platform_facts(const OperatorTable& table, const Machine& machine, const std::string& name) {
  const double stream = table.best_bytes_per_ns(OperatorKind::stream);
  const auto peak = [&](Precision p) {
    return std::max(table.best_flop_per_ns(OperatorKind::peak, p), table.best_flop_per_ns(OperatorKind::gemm, p));
  };
  const double fp32 = peak(Precision::fp32), bf16 = peak(Precision::bf16), fp16 = peak(Precision::fp16),
               tf32 = peak(Precision::tf32);
  if (fp32 <= 0 && bf16 <= 0 && fp16 <= 0)
    return fail("no matrix product was measured", "--platform-file", "measure gemm, too");
  if (stream <= 0) return fail("memory bandwidth was not measured", "--platform-file", "measure all operators");
  std::int64_t threads = 1, ranks = 1;
  for (const OperatorRow& r : table.rows) threads = std::max(threads, r.threads), ranks = std::max(ranks, r.ranks);
  const bool cpu = table.device == "cpu";
  const double n = static_cast<double>(ranks);
  const GpuFacts* known = cpu ? nullptr : find_gpu(table.machine);
  if (known != nullptr)
    return fmt::format(
        "# Written by `orrery bench ops`.\n[platform]\nname = {}\nsource = \"orrery bench ops\"\nsure = "
        "\"measured\"\n\ngpu = {}\ngpus_per_node = {}\n\n[host]\ncores = {}\nmemory_gb_per_s = {:.6g}\n"
        "memory_gib = {:.6g}\n",
        quoted(name), quoted(known->name), ranks, machine.cores, kHostGbPerCore * static_cast<double>(machine.cores),
        std::max(1.0, machine.memory_gib));
  if (!cpu && machine.multiprocessors < 1)
    return fail("the multiprocessors of " + table.machine + " are not known", "--platform-file",
                "write a file of its facts: docs/formats/facts.md");
  std::string out = fmt::format(
      "# Written by `orrery bench ops`: {} process{} of {} thread{} on {}.\n"
      "[platform]\nname = {}\nsource = \"orrery bench ops\"\nsure = \"measured\"\n\ngpus_per_node = "
      "{}\nnvlink_gb_per_s = "
      "0\n\n[gpu]\nname = {}\n",
      ranks, ranks == 1 ? "" : "es", threads, threads == 1 ? "" : "s", table.machine, quoted(name), ranks,
      quoted(table.machine.empty() ? name : table.machine));
  if (cpu) out += "arch = \"CPU\"\n";
  out += fmt::format("sms = {}\n", cpu ? threads : machine.multiprocessors);
  const auto rate = [&](const char* key, double flop_per_ns) {
    if (flop_per_ns > 0) out += fmt::format("{} = {:.6g}\n", key, flop_per_ns / 1e3);
  };
  rate("fp32_tflops", fp32), rate("tf32_tflops", tf32), rate("bf16_tflops", bf16), rate("fp16_tflops", fp16);
  out += fmt::format("memory_gib = {:.6g}\nmemory_gb_per_s = {:.6g}\n",
                     std::max(0.5, cpu ? machine.memory_gib / n : machine.gpu_memory_gib), stream);
  if (cpu && machine.cache_mib > 0) out += fmt::format("l2_mib = {:.6g}\n", machine.cache_mib / n);
  // What processes exchange passes through memory twice; tables of collectives say better.
  if (cpu) out += fmt::format("pcie_gb_per_s = {:.6g}\npcie_p2p = true\n", std::max(0.5, stream / 2));
  out += fmt::format("\n[host]\ncores = {}\nmemory_gb_per_s = {:.6g}\nmemory_gib = {:.6g}\n", machine.cores,
                     cpu ? stream * n : kHostGbPerCore * static_cast<double>(machine.cores),
                     std::max(1.0, machine.memory_gib));
  return out;
}

}  // namespace orrery
