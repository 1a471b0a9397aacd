#include "cli/bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/output.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "cli/bench_runs.h"
#include "cli/common_options.h"
#include "cli/options.h"
#include "cli/output_paths.h"
#include "cli/read_options.h"
#include "facts/library.h"
#include "operators/cpu_operators.h"
#include "operators/gpu_operators.h"
#include "operators/machine.h"
#include "operators/measure_operators.h"
#include "operators/mpi_ranks.h"
#include "operators/operator_plan.h"
#include "writers/json.h"

namespace orrery {
namespace {

struct Asked {
  PlanTerms plan;
  ModelFacts model;
  CpuTerms cpu;
  MeasureAllTerms measure;
  std::string table_path, platform_path;
  std::int64_t ranks = 1;
  bool own_blas = false, pin = true;
  bool mpi = false;  // ranks that a launcher started
};

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(',', i), text.size());
    parts.push_back(text.substr(i, end - i));
    i = end + 1;
  }
  return parts;
}

Status read_shapes(const Args& args, std::string_view option, std::vector<std::array<double, 4>>& out) {
  if (!args.has(option)) return {};
  const std::string form = option == "--attention" ? "QxKxD or BxQxKxD" : "MxNxK or BxMxNxK";
  for (const std::string& part : parts_of(args.value(option))) {
    std::array<double, 4> size = {1, 1, 1, 1};
    std::vector<double> numbers;
    for (std::size_t i = 0; i <= part.size();) {
      const std::size_t end = std::min(part.find('x', i), part.size());
      double x = 0;
      if (read_double(part.substr(i, end - i), x) != NumberState::ok || x < 1 || x > 1e6 || x != std::floor(x))
        return fail("not a shape: " + part, std::string(option), form + ", each from 1 to 1000000");
      numbers.push_back(x);
      i = end + 1;
    }
    if (numbers.size() != 3 && numbers.size() != 4) return fail("not a shape: " + part, std::string(option), form);
    std::copy(numbers.begin(), numbers.end(), size.begin() + static_cast<std::ptrdiff_t>(4 - numbers.size()));
    out.push_back(size);
  }
  return {};
}

Result<Asked> understood(const Args& args, const RunOptions& options) {
  constexpr Choice<SizeSet> kSizes[] = {
      {"tiny", SizeSet::tiny}, {"small", SizeSet::small}, {"medium", SizeSet::medium}, {"large", SizeSet::large}};
  constexpr Choice<std::string_view> kDevices[] = {{"cpu", "cpu"}, {"cuda", "cuda"}, {"rocm", "rocm"}};
  Asked a;
  std::string_view device = "cpu";
  double budget = 40, tokens = 2'048, sequence = 1'024;
  std::int64_t tp = 1;
  const Status read =
      all_of({choose(args, "--sizes", kSizes, a.plan.sizes), choose(args, "--device", kDevices, device),
              whole(args, "--ranks", a.ranks, 64), real(args, "--budget", budget, 0.1, 86'400),
              real(args, "--tokens", tokens, 1, 1e7), whole(args, "--tp", tp, 10'000),
              real(args, "--seq-length", sequence, 1, 1e7), choose(args, "--pin", kSwitch, a.pin),
              read_shapes(args, "--gemm", a.plan.gemms), read_shapes(args, "--attention", a.plan.attentions)});
  if (!read) return tl::unexpected(read.error());
  a.plan.device = device;
  const std::int64_t started = device == "cpu" ? ranks_of_launcher() : 0;
  const std::string transport = args.value("--transport");
  if (!transport.empty() && transport != "shm" && transport != "mpi")
    return fail("not known: " + transport, "--transport", "one of shm, mpi");
  if (transport == "mpi" && started == 0)
    return fail("no MPI launcher started this", "--transport mpi", "mpirun -n N orrery bench ops --transport mpi");
  a.mpi = transport != "shm" && started > 1;
  if (a.mpi && args.has("--ranks") && a.ranks != started)
    return fail(fmt::format("MPI started {} ranks", started), "--ranks", "leave it out");
  if (a.mpi) a.ranks = started;
  a.plan.tokens = tokens, a.plan.tensor_parallel = static_cast<double>(tp), a.plan.sequence = sequence;
  a.plan.ranks = a.ranks;
  a.measure.budget_s = budget;
  if (args.has("--only")) {
    for (const std::string& part : parts_of(args.value("--only"))) {
      OperatorKind k{};
      if (!read_operator(part, k))
        return fail("not an operator: " + part, "--only",
                    "gemm, attention, copy, add, silu, norm, softmax, embedding, adamw, launch, all_reduce ...");
      if (is_collective(k) && a.ranks < 2)
        return fail("a collective needs ranks to be among", "--only " + part, "add --ranks 2");
      a.plan.only.push_back(k);
    }
  }
  if (args.has("--dtypes")) {
    a.plan.precisions.clear();
    for (const std::string& part : parts_of(args.value("--dtypes"))) {
      Precision p{};
      const bool of_all = read_precision(part, p) && (p == Precision::fp32 || p == Precision::bf16);
      if (!of_all && (a.plan.device == "cpu" || (p != Precision::tf32 && p != Precision::fp16)))
        return fail("not a precision of this device: " + part, "--dtypes",
                    a.plan.device == "cpu" ? "fp32, bf16" : "fp32, tf32, bf16, fp16");
      if (std::find(a.plan.precisions.begin(), a.plan.precisions.end(), p) == a.plan.precisions.end())
        a.plan.precisions.push_back(p);
    }
  }
  if (args.has("--model")) {
    auto model = model_named_or_read(args.value("--model"));
    if (!model) return tl::unexpected(model.error());
    a.model = std::move(*model);
    for (const auto& [n, what] :
         {std::pair{a.model.heads, "attention heads"}, std::pair{a.model.ffn, "columns of the feed-forward layers"}})
      if (n % tp != 0)
        return fail(fmt::format("{} {} cannot be divided by {}", n, what, tp), "--tp",
                    fmt::format("choose a divisor of {}", n));
  }
  for (const char* of_model : {"--tokens", "--tp", "--seq-length"})
    if (args.has(of_model) && !args.has("--model"))
      return fail("says how --model's shapes are cut", of_model, "add --model");
  for (const char* of_cpu : {"--threads", "--blas", "--pin"})
    if (args.has(of_cpu) && a.plan.device != "cpu") return fail("is of a CPU", of_cpu, "leave it out with --device");
  if (args.has("--gpu-library") && a.plan.device == "cpu")
    return fail("is of a GPU", "--gpu-library", "add --device cuda or --device rocm");
  const Machine machine = this_machine();
  const std::int64_t cores = machine.cores;
  // Never so large that the memory is short.
  a.plan.cache_mib = std::min(machine.cache_mib, machine.memory_gib * 1024 / 16);
  a.cpu.threads =
      options.threads > 0 ? options.threads : static_cast<unsigned>(std::max<std::int64_t>(1, cores / a.ranks));
  if (a.cpu.threads > 1'024) return fail("at most 1024 threads", "--threads");
  a.plan.threads = a.cpu.threads;
  a.own_blas = args.value("--blas") == "own";
  a.table_path = args.value("-o"), a.platform_path = args.value("--platform-file");
  if (args.has("-o") && !a.table_path.ends_with(".csv") && !a.table_path.ends_with(".json"))
    return fail("neither .csv nor .json: " + a.table_path, "-o", "the ending says the format");
  if (const Status ok = refuse_output_over("--platform-file", a.platform_path, {a.table_path, args.value("--model")});
      !ok)
    return tl::unexpected(ok.error());
  if (const Status ok = refuse_output_over("-o", a.table_path, {args.value("--model")}); !ok)
    return tl::unexpected(ok.error());
  for (const std::string& path : {a.table_path, a.platform_path})
    if (!path.empty())
      if (const Status ok = check_writable(path); !ok) return tl::unexpected(ok.error());
  return a;
}

struct Answer {
  MeasuredAll measured;
  bool first = true;  // this process is rank 0: it answers
  bool pinned = false;
  std::int64_t threads = 1;  // of a rank
  std::string kernels, blas, transport;
  Machine machine;
  std::string device_name;
};

Result<MeasuredAll> measure_all(OperatorDevice& device, const PlanTerms& plan, const Asked& asked, Lockstep& ranks,
                                bool show_progress) {
  Progress progress(show_progress);
  progress.stage("measuring operators");
  MeasureAllTerms how = asked.measure;
  how.now_s = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  how.progress = [&](std::size_t done, std::size_t all) { progress.update(done, all); };
  return measure_operators(device, plan_operators(plan), how, ranks);
}

Status measure_on_gpu(const Asked& asked, const Args& args, const RunOptions& options, Answer& answer) {
  auto api =
      GpuApi::open(asked.plan.device == "rocm" ? GpuVendor::amd : GpuVendor::nvidia, args.value("--gpu-library"));
  if (!api) return tl::unexpected(api.error());
  if (asked.ranks > (*api)->devices())
    return fail(fmt::format("{} GPUs are asked for, {} are here", asked.ranks, (*api)->devices()), "--ranks");
  GpuOperators device(*api, static_cast<int>(asked.ranks));
  PlanTerms plan = asked.plan;
  if (args.has("--model")) plan.model = &asked.model;
  if (!args.has("--dtypes"))
    for (const Precision p : {Precision::tf32, Precision::bf16, Precision::fp16})
      if ((*api)->supports(p)) plan.precisions.push_back(p);
  Lockstep alone;
  auto measured = measure_all(device, plan, asked, alone, options.show_progress);
  if (!measured) return tl::unexpected(measured.error());
  answer.measured = std::move(*measured);
  answer.measured.notes.add(
      "attention-composed", Severity::info, 1, (*api)->blas_name(),
      "attention is two batched products and a softmax, not a fused kernel: `estimate` takes such "
      "from its own laws");
  answer.pinned = true;
  answer.blas = (*api)->blas_name();
  answer.transport = (*api)->collectives_name();
  answer.device_name = (*api)->device_name();
  answer.machine.multiprocessors = (*api)->multiprocessors();
  answer.machine.gpu_memory_gib = (*api)->memory_gib();
  return {};
}

// Rank by rank; rank 0's rows are the answer.
Status measure_as_rank(const Asked& asked, const Args& args, RankGroup& group, const RunOptions& options,
                       Answer& answer) {
  CpuTerms terms = asked.cpu;
  const bool first = group.rank() == 0;
  if (asked.mpi && options.threads == 0) {
    const std::int64_t cores = cores_of_rank(group);
    if (cores < 1) return fail("a rank is gone", "--transport mpi");
    terms.threads = static_cast<unsigned>(std::min<std::int64_t>(cores, 1'024));
  }
  // Before any thread is pinned: a library's threads begin where this one may run.
  if (!asked.own_blas) {
    terms.blas = Blas::find(args.value("--blas"));
    if (terms.blas == nullptr && args.has("--blas"))
      return fail("no BLAS there: " + args.value("--blas"), "--blas", "a shared library with sgemm_, or own");
  }
  const int core = group.rank() * static_cast<int>(terms.threads);
  terms.first_core = asked.pin && !asked.mpi ? core : -1;  // MPI's launcher binds its ranks itself
  CpuOperators device(terms, group);
  PlanTerms plan = asked.plan;
  plan.threads = terms.threads;
  if (args.has("--model")) plan.model = &asked.model;
  if (!args.has("--dtypes") && device.has_bf16()) plan.precisions.push_back(Precision::bf16);
  auto measured = measure_all(device, plan, asked, group, first && options.show_progress);
  if (!measured) return tl::unexpected(measured.error());
  answer.first = first;
  answer.threads = terms.threads;
  if (!first) return {};
  answer.measured = std::move(*measured);
  answer.pinned = device.pinned();
  answer.kernels = device.kernels().name;
  answer.blas = terms.blas ? terms.blas->name() : "";
  answer.transport = group.transport();
  return {};
}

// What options name and what was not measured: a note that --quiet shows, too.
bool note_what_is_missing(const PlanTerms& plan, const OperatorTable& table, Notes& notes) {
  bool missing = false;
  const auto look = [&](OperatorKind kind, const std::vector<std::array<double, 4>>& sizes, Precision p) {
    for (const std::array<double, 4>& size : sizes) {
      OperatorRow wanted;
      wanted.kind = kind, wanted.size = size, wanted.precision = p;
      if (std::any_of(table.rows.begin(), table.rows.end(),
                      [&](const OperatorRow& r) { return r.kind == kind && r.size == size && r.precision == p; }))
        continue;
      missing = true;
      notes.add("asked-and-not-measured", Severity::warning, 1, kernel_text(wanted) + " " + shape_text(wanted),
                "too long for --budget, left out by --only, or more than the device has or does: the notes beside say");
    }
  };
  for (const Precision p : plan.precisions) look(OperatorKind::gemm, plan.gemms, p);
  bool attends = false;
  for (const Precision p : plan.precisions) {
    if (!attends_in(p, plan.device != "cpu")) continue;
    attends = true;
    look(OperatorKind::attention, plan.attentions, p);
  }
  if (!attends) look(OperatorKind::attention, plan.attentions, Precision::fp32);
  return missing;
}

// FLOP a ns that products cannot exceed: measured on a CPU, of a GPU as its facts have it; 0 = not known.
double peak_of(const OperatorTable& table, Precision p) {
  if (table.device == "cpu") return table.best_flop_per_ns(OperatorKind::peak, p);
  const GpuFacts* gpu = find_gpu(table.machine);
  return gpu == nullptr ? 0 : peak_flop_per_ns(*gpu, p);
}

Section machine_section(const OperatorTable& table, const Machine& machine, const Asked& asked, const Answer& answer) {
  Section s{.key = "machine", .title = "Machine", .single = true, .table = {}};
  s.table.columns = {{.key = "device"},
                     {.key = "name"},
                     {.key = "cores"},
                     {.key = "ranks"},
                     {.key = "threads", .title = "threads of a rank"},
                     {.key = "pinned"},
                     {.key = "memory_gib", .title = "memory GiB", .digits = 1},
                     {.key = "vectors"},
                     {.key = "blas"},
                     {.key = "transport", .json_only = true},
                     {.key = "fp32_tflops", .title = "peak fp32 TFLOP/s"},
                     {.key = "bf16_tflops", .title = "peak bf16 TFLOP/s"},
                     {.key = "memory_gb_per_s", .title = "memory GB/s", .digits = 1}};
  const bool cpu = table.device == "cpu";
  const auto rate = [&](Precision p) -> Cell {
    const double x = peak_of(table, p) / 1e3;
    return x > 0 ? Cell{x} : Cell{};
  };
  const double stream = table.best_bytes_per_ns(OperatorKind::stream);
  s.table.rows.push_back({table.device, table.machine, machine.cores, asked.ranks, cpu ? Cell{answer.threads} : Cell{},
                          cpu ? Cell{answer.pinned} : Cell{}, cpu ? machine.memory_gib : machine.gpu_memory_gib,
                          cpu ? Cell{answer.kernels} : Cell{}, answer.blas.empty() ? std::string("own") : answer.blas,
                          asked.ranks > 1 ? Cell{answer.transport} : Cell{}, rate(Precision::fp32),
                          rate(Precision::bf16), stream > 0 ? Cell{stream} : Cell{}});
  return s;
}

// Bus bandwidth as NCCL's tests count it.
double bus_factor(const OperatorRow& r) {
  const double n = static_cast<double>(r.ranks);
  return r.kind == OperatorKind::all_reduce ? 2 * (n - 1) / n : is_collective(r.kind) ? (n - 1) / n : 1;
}

Section operators_section(const OperatorTable& table) {
  Section s{.key = "operators", .title = "Operators", .table = {}};
  s.table.columns = {{.key = "kernel"},
                     {.key = "operator", .json_only = true},
                     {.key = "way", .json_only = true},
                     {.key = "causal", .json_only = true},
                     {.key = "shape"},
                     {.key = "dtype", .json_only = true},
                     {.key = "time_us", .title = "us"},
                     {.key = "least_us", .title = "least us"},
                     {.key = "spread_pct", .title = "spread %", .digits = 1},
                     {.key = "gflops", .title = "GFLOP/s", .digits = 1},
                     {.key = "gb_per_s", .title = "GB/s", .digits = 2},
                     {.key = "of_floor_pct", .title = "% of floor", .digits = 1},
                     {.key = "bytes", .json_only = true},
                     {.key = "flops", .json_only = true},
                     {.key = "threads", .json_only = true},
                     {.key = "ranks", .json_only = true},
                     {.key = "repetitions", .title = "times"},
                     {.key = "noisy"},
                     {.key = "device", .json_only = true},
                     {.key = "machine", .json_only = true},
                     {.key = "library"}};
  const double stream = table.best_bytes_per_ns(OperatorKind::stream);
  for (const OperatorRow& r : table.rows) {
    const bool attends = r.kind == OperatorKind::attention, computes = r.flops > 0;
    const double rate = computes ? r.flops / r.ns : bus_factor(r) * r.bytes / r.ns;
    const double floor = computes ? peak_of(table, r.precision) : stream;
    const bool bound = moves_memory(r.kind) || computes || r.kind == OperatorKind::stream;
    s.table.rows.push_back({kernel_text(r),
                            std::string(name_of(r.kind)),
                            attends ? Cell{std::string(name_of(r.way))} : Cell{},
                            attends ? Cell{r.causal} : Cell{},
                            shape_text(r),
                            std::string(name_of(r.precision)),
                            r.ns / 1e3,
                            r.least_ns / 1e3,
                            100 * r.spread,
                            computes ? Cell{rate} : Cell{},
                            !computes && r.bytes > 0 ? Cell{rate} : Cell{},
                            bound && floor > 0 ? Cell{100 * rate / floor} : Cell{},
                            r.bytes,
                            r.flops,
                            r.threads,
                            r.ranks,
                            r.repetitions,
                            r.noisy,
                            table.device,
                            table.machine,
                            r.library});
  }
  return s;
}

}  // namespace

std::vector<OptionSpec> bench_ops_options() {
  return {
      {"--device", "cpu|cuda|rocm",
       "what is measured (default: cpu); a GPU through its vendor's libraries, opened where they are found",
       Takes::word},
      {"--gpu-library", "FILE", "one library instead of the vendor's: runtime, BLAS, collectives, compiler",
       Takes::file},
      {"--sizes", "SET", "tiny (to try it), small, medium or large shapes (default: medium)", Takes::word},
      {"--dtypes", "NAME,...",
       "precisions: fp32, bf16; of a GPU tf32 and fp16, too (default: those that it multiplies)", Takes::word},
      {"--only", "KIND,...",
       "these alone: gemm, attention, copy, add, silu, norm, softmax, embedding, adamw, launch, to_device, to_host, "
       "all_reduce, all_gather, reduce_scatter, all_to_all",
       Takes::word},
      {"--gemm", "MxNxK,...", "further products; BxMxNxK: a batch of them", Takes::word},
      {"--attention", "QxKxD,...", "further attention: queries, keys, head size; BxQxKxD: of so many heads",
       Takes::word},
      {"--model", "NAME|FILE", "the products and the attention of a model, forward and backward", Takes::file},
      {"--tokens", "N", "... of so many tokens (default: 2048)", Takes::word},
      {"--seq-length", "N", "... in sequences of so many (default: 1024)", Takes::word},
      {"--tp", "N", "... on one of so many tensor-parallel ranks (default: 1)", Takes::word},
      {"--ranks", "N",
       "in N processes at once, which share cores and memory as ranks of a job do, and exchange; of GPUs: exchange "
       "among N of them (default: 1)",
       Takes::word},
      {"--transport", "shm|mpi",
       "how processes exchange: through shared memory, or by the MPI whose launcher started them: mpirun -n 2 orrery "
       "bench ops (default: mpi where one did)",
       Takes::word},
      {"--mpi-library", "FILE", "MPI's library (default: Open MPI's or MPICH's as the system finds it)", Takes::file},
      {"--blas", "FILE|own",
       "a library with BLAS's sgemm_ for products, or our own kernels (default: MKL, OpenBLAS or BLIS where one is "
       "found)",
       Takes::file},
      {"--pin", "on|off", "each thread stays on a core of its own (default: on, where there are enough)", Takes::word},
      {"--budget", "S", "seconds for all of it; what would take too long for that is left out (default: 40)",
       Takes::word},
      {"-o", "TABLE",
       "write the table: TABLE.csv or TABLE.json, which `estimate --calibrate` takes, and of a GPU `predict "
       "--cost-table`",
       Takes::file},
      {"--platform-file", "FILE.toml", "write what was measured as a platform, which `estimate --platform` takes",
       Takes::file}};
}

std::vector<Example> bench_ops_examples() {
  return {{"Operators of this machine, as a table and as a platform:",
           "orrery bench ops --sizes tiny --budget 1 -o operators.csv --platform-file this-machine.toml"},
          {"Two processes and what they exchange:", "orrery bench ops --sizes tiny --budget 1 --ranks 2 --threads 1"}};
}

Status check_bench_ops(const std::vector<std::string>& words) {
  const Command& bench = *find_command("bench");
  if (std::any_of(words.begin(), words.end(), [](const std::string& w) { return w == "--help" || w == "-h"; }))
    return fail("is for people", "--help", "leave it out");
  std::vector<std::string> all = {"ops"};
  all.insert(all.end(), words.begin(), words.end());
  auto args = parse(bench, all);
  if (!args) return tl::unexpected(args.error());
  if (args->positional.size() > 1) return fail("takes no operand: " + args->positional[1], "bench ops");
  for (const OptionSpec& of_runs : bench_runs_options())
    if (args->has(of_runs.name)) return fail("is of other parts of bench", std::string(of_runs.name));
  // Where they are written is a run's own directory, which there is not yet.
  for (const char* const written : {"-o", "--platform-file"}) args->options.erase(written);
  const auto options = understand(bench, *args);
  if (!options) return tl::unexpected(options.error());
  const auto asked = understood(*args, *options);
  if (!asked) return tl::unexpected(asked.error());
  if (args->has("--blas") && !asked->own_blas && Blas::find(args->value("--blas")) == nullptr)
    return fail("no BLAS there: " + args->value("--blas"), "--blas", "a shared library with sgemm_, or own");
  return {};
}

Result<int> run_bench_ops(const Args& args) {
  const auto options = understand(*find_command("bench"), args);
  if (!options) return tl::unexpected(options.error());
  const auto asked = understood(args, *options);
  if (!asked) return tl::unexpected(asked.error());
  const bool cpu = asked->plan.device == "cpu";
  Answer answer;
  answer.machine = this_machine();
  const auto as_rank = [&](RankGroup& group) { return measure_as_rank(*asked, args, group, *options, answer); };
  const Status done = !cpu         ? measure_on_gpu(*asked, args, *options, answer)
                      : asked->mpi ? run_on_mpi(args.value("--mpi-library"), as_rank)
                                   : run_on_shared_memory(static_cast<int>(asked->ranks), as_rank);
  if (!done) return tl::unexpected(done.error());
  if (!answer.first) return kDone;
  const Machine& machine = answer.machine;
  OperatorTable table;
  table.device = asked->plan.device;
  table.machine = cpu ? machine.cpu : answer.device_name;
  table.rows = std::move(answer.measured.rows);
  Document d;
  d.command = "bench ops";
  d.notes = std::move(answer.measured.notes);
  const bool missing = note_what_is_missing(asked->plan, table, d.notes);
  const double stream = table.best_bytes_per_ns(OperatorKind::stream);
  for (const OperatorRow& r : table.rows)
    if (moves_memory(r.kind) && stream > 0 && r.bytes / r.ns > stream)
      d.notes.add("above-the-floor", Severity::info, 1, kernel_text(r) + " " + shape_text(r),
                  "more than 100 % of the floor: their data stay in caches, the floor is the rate of the memory");
  if (!answer.pinned)
    d.notes.add("threads-not-pinned", Severity::info, 1, fmt::format("{} threads a rank", answer.threads),
                !asked->pin  ? "as --pin says"
                : asked->mpi ? "MPI's launcher binds its ranks"
                             : "fewer cores than threads: they share them");
  const SizeSet sizes = asked->plan.sizes;
  if (!asked->platform_path.empty() && asked->plan.device == "cpu" &&
      (sizes == SizeSet::tiny || sizes == SizeSet::small))
    d.notes.add("memory-in-caches", Severity::warning, 1, asked->platform_path,
                "with so few sizes what is read and written may stay in caches, whose rate is then taken for the "
                "memory's: --sizes medium for a platform to estimate by");
  d.sections = {machine_section(table, machine, *asked, answer), operators_section(table)};
  if (!asked->table_path.empty()) {
    const Status ok =
        write_file(asked->table_path, asked->table_path.ends_with(".csv") ? write_operator_table(table) : to_json(d));
    if (!ok) return tl::unexpected(ok.error());
  }
  if (!asked->platform_path.empty()) {
    const auto facts = platform_facts(table, machine, "this machine");
    if (!facts) return tl::unexpected(facts.error());
    if (const Status ok = write_file(asked->platform_path, *facts); !ok) return tl::unexpected(ok.error());
  }
  const auto status = emit(d, *options);
  return status && missing ? Result<int>(kIncomplete) : status;
}

}  // namespace orrery
