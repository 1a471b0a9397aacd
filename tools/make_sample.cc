// Writes made-up traces: one rank-N.json.gz a rank, the same bytes every time.
//   make_sample DIR [KEY=VALUE ...]      keys: the numbers and switches of SyntheticJob, e.g. layers=8 cuda_sync=1
// samples/gpt-tp2-pp2-dp2/README.md has the command behind the sample.
#include <fmt/format.h>
#include <zlib.h>

#include <charconv>
#include <cstdio>
#include <filesystem>

#include "base/output.h"
#include "synthesis/synthetic_job.h"

namespace orrery {
namespace {

struct Key {
  std::string_view name;
  std::int64_t SyntheticJob::*integer = nullptr;
  double SyntheticJob::*real = nullptr;
  bool SyntheticJob::*flag = nullptr;
};
const Key kKeys[] = {{"layers", &SyntheticJob::layers},
                     {"hidden", &SyntheticJob::hidden},
                     {"heads", &SyntheticJob::heads},
                     {"seq_length", &SyntheticJob::seq_length},
                     {"vocab", &SyntheticJob::vocab},
                     {"micro_batch_size", &SyntheticJob::micro_batch_size},
                     {"tp", &SyntheticJob::tp},
                     {"pp", &SyntheticJob::pp},
                     {"dp", &SyntheticJob::dp},
                     {"num_microbatches", &SyntheticJob::num_microbatches},
                     {"gpus_per_node", &SyntheticJob::gpus_per_node},
                     {"steps", &SyntheticJob::steps},
                     {"first_step", &SyntheticJob::first_step},
                     {"straggler", &SyntheticJob::straggler},
                     {"queue_depth", &SyntheticJob::queue_depth},
                     {"clock_step", &SyntheticJob::clock_step},
                     {"clock_grain", &SyntheticJob::clock_grain},
                     {.name = "noise", .real = &SyntheticJob::noise},
                     {.name = "host_factor", .real = &SyntheticJob::host_factor},
                     {.name = "kernel_factor", .real = &SyntheticJob::kernel_factor},
                     {.name = "gemm_factor", .real = &SyntheticJob::gemm_factor},
                     {.name = "transfer_factor", .real = &SyntheticJob::transfer_factor},
                     {.name = "straggler_factor", .real = &SyntheticJob::straggler_factor},
                     {.name = "item_pageable", .flag = &SyntheticJob::item_pageable},
                     {.name = "step_sync", .flag = &SyntheticJob::step_sync},
                     {.name = "p2p_sync", .flag = &SyntheticJob::p2p_sync},
                     {.name = "cuda_sync", .flag = &SyntheticJob::cuda_sync},
                     {.name = "modules", .flag = &SyntheticJob::modules},
                     {.name = "shapes", .flag = &SyntheticJob::shapes},
                     {.name = "nccl_internal", .flag = &SyntheticJob::nccl_internal}};

template <class T>
bool parse(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

Status set(SyntheticJob& job, std::string_view setting) {
  const std::size_t equals = setting.find('=');
  const std::string_view name = setting.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : setting.substr(equals + 1);
  if (name == "gpu") {
    job.gpu = value;
    return {};
  }
  if (name == "seed" && parse(value, job.seed)) return {};
  for (const Key& k : kKeys) {
    if (k.name != name) continue;
    std::int64_t flag = 0;
    const bool ok = k.integer ? parse(value, job.*k.integer) : k.real ? parse(value, job.*k.real) : parse(value, flag);
    if (k.flag) job.*k.flag = flag != 0;
    if (ok) return {};
  }
  return fail(fmt::format("cannot understand \"{}\"", setting), "", "KEY=VALUE, keys as in SyntheticJob");
}

// gzip -9 without name and time, so that the same text gives the same bytes.
std::string gzip(const std::string& text) {
  z_stream z{};
  deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, static_cast<uLong>(text.size())), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

Status make(const std::string& directory, const SyntheticJob& job) {
  auto ranks = synthesize(job);
  if (!ranks) return tl::unexpected(ranks.error());
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  std::size_t total = 0, text = 0;
  for (const SyntheticRank& r : *ranks) {
    const std::string bytes = gzip(r.json);
    total += bytes.size();
    text += r.json.size();
    if (Status s = write_file(fmt::format("{}/rank-{}.json.gz", directory, r.rank), bytes); !s) return s;
  }
  for (const TrueStep& s : ranks->front().truth.steps)
    fmt::print(
        "rank 0, step {}: {:.3f} ms; exposed compute {:.3f}, overlapped {:.3f}, exposed communication {:.3f}, other "
        "{:.3f}\n",
        s.number, 1e-6 * static_cast<double>(s.duration), 1e-6 * static_cast<double>(s.exposed_compute),
        1e-6 * static_cast<double>(s.overlapped), 1e-6 * static_cast<double>(s.exposed_comm),
        1e-6 * static_cast<double>(s.other));
  fmt::print("{} files, {} bytes ({} uncompressed)\n", ranks->size(), total, text);
  return {};
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  using namespace orrery;
  if (argc < 2 || argv[1][0] == '-') {
    fmt::print(stderr, "usage: make_sample DIR [KEY=VALUE ...]\n");
    return 2;
  }
  SyntheticJob job;
  Status status{};
  for (int i = 2; i < argc && status; ++i) status = set(job, argv[i]);
  if (status) status = make(argv[1], job);
  if (!status) fmt::print(stderr, "make_sample: {}\n", status.error().line());
  return status ? 0 : 2;
}
