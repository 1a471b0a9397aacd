// How fast are logs diagnosed, with all rules on, beside `grep -F` of one word on the same file?
//
//   diagnose_bench [--mb 400] [--runs 3] [--lines FILE]
//
// The log is repetitive, as training logs are: steps, warnings that come again, a failure at the end; or the lines of
// FILE, repeated. One thread. The answer is checked before anything is timed. Rules are compiled once, apart.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "importers/log_text.h"
#include "rules/diagnose.h"

namespace {

using namespace orrery;
namespace fs = std::filesystem;

// Time of this thread's core, not of the clock: other work on the machine does not count.
double now() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

double children() {
  rusage u{};
  getrusage(RUSAGE_CHILDREN, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

std::string repetitive(std::size_t bytes) {
  std::string text;
  text.reserve(bytes + 4096);
  for (std::int64_t i = 0; text.size() < bytes; ++i) {
    text += fmt::format(
        " [2024-05-14 {:02}:{:02}:{:02}] iteration {:8}/  500000 | consumed samples: {:12} | elapsed time per "
        "iteration "
        "(ms): {:.1f} | learning rate: 1.452E-04 | global batch size:  1024 | lm loss: {:.6E} | loss scale: 1.0 | grad "
        "norm: {:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |\n",
        3 + i / 3600 % 20, i / 60 % 60, i % 60, 80000 + i, (80000 + i) * 1024, 5300 + static_cast<double>(i % 59),
        2 + static_cast<double>(i % 97) * 2e-4, 0.2 + static_cast<double>(i % 31) * 1e-3);
    if (i % 50 == 7) text += "wandb: Network error (ReadTimeout), entering retry loop.\n";
    if (i % 50 == 19)
      text += "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n";
    if (i % 50 == 31)
      text +=
          "site-packages/torch/utils/checkpoint.py:460: UserWarning: torch.utils.checkpoint: please pass in "
          "use_reentrant=True or use_reentrant=False explicitly.\n";
    if (i % 50 == 43) text += "[metrics] dataloader_errors=0 nccl_timeouts=0 ecc_uncorrected=0 retries=0\n";
  }
  return text + "[rank7]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.12 GiB.\n";
}

double grep_seconds(const std::string& path) {
  const double from = children();
  const std::string command = "grep -cF Watchdog '" + path + "' > /dev/null";
  if (std::system(command.c_str()) < 0) return 0;
  return children() - from;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t megabytes = 400;
  int runs = 3;
  std::string lines;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--mb")) megabytes = static_cast<std::size_t>(std::atol(argv[i + 1]));
    if (!std::strcmp(argv[i], "--runs")) runs = std::atoi(argv[i + 1]);
    if (!std::strcmp(argv[i], "--lines")) lines = argv[i + 1];
  }
  std::string text;
  if (lines.empty()) {
    text = repetitive(megabytes << 20);
  } else {
    std::ifstream in(lines, std::ios::binary);
    const std::string one((std::istreambuf_iterator<char>(in)), {});
    if (one.empty()) return std::fprintf(stderr, "nothing in %s\n", lines.c_str()), 2;
    while (text.size() < megabytes << 20) text += one;
  }
  const std::string path = (fs::temp_directory_path() / fmt::format("orrery-diagnose-{}.log", ::getpid())).string();
  std::ofstream(path, std::ios::binary) << text;
  const double from = now();
  Notes notes;
  const auto matcher = *Matcher::compile(*built_in_rules(), notes);
  fmt::print("{} rules compiled in {:.0f} ms\n", matcher->rules().size(), (now() - from) * 1e3);
  double best = 1e9, grep = 1e9;
  for (int run = 0; run < runs; ++run) {
    const double start = now();
    const auto table = read_log(*open_file(path), "a.log", *matcher, {});
    const Diagnosis d = diagnose(*table, *matcher);
    best = std::min(best, now() - start);
    grep = std::min(grep, grep_seconds(path));
    if (lines.empty() && (d.reason != "Out of Memory Error" || d.evidence.at(0).line != table->files[0].lines)) {
      fs::remove(path);
      return std::fprintf(stderr, "wrong answer: %s\n", d.reason.c_str()), 1;
    }
  }
  fs::remove(path);
  const double mb = static_cast<double>(text.size()) * 1e-6;
  fmt::print("{:.0f} MB: {:.2f} s, {:.0f} MB/s of one core; grep -F of one word {:.0f} MB/s; {:.1f} times its time\n",
             mb, best, mb / best, mb / grep, best / grep);
  return 0;
}
