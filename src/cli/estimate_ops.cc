#include "cli/estimate_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iostream>
#include <sstream>

#include "data/rate_digits.h"
#include "estimate/ops.h"
#include "facts/library.h"

namespace orrery {
namespace {

struct Asked {
  std::string text, where;
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i <= text.size();) {
    const std::size_t end = std::min(text.find(at, i), text.size());
    parts.push_back(text.substr(i, end - i));
    i = end + 1;
  }
  return parts;
}

// MxNxK[xBATCH],...
Status add_products(const std::string& text, std::vector<Asked>& out) {
  for (const std::string& one : split(text, ',')) {
    const std::vector<std::string> n = split(one, 'x');
    if (n.size() != 3 && n.size() != 4)
      return fail("not MxNxK: " + one, "--gemm", "for example --gemm 2048x12288x4096,1x4096x4096");
    out.push_back({fmt::format("gemm m={} n={} k={}{}", n[0], n[1], n[2], n.size() == 4 ? " batch=" + n[3] : ""),
                   "--gemm " + one});
  }
  return {};
}

Status add_file(const std::string& path, std::vector<Asked>& out) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file) return fail("cannot be read", path);
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos || line[line.find_first_not_of(" \t\r")] == '#') continue;
    out.push_back({line, fmt::format("{}:{}", path == "-" ? "standard input" : path, number)});
  }
  if (in.bad()) return fail("cannot be read", path);
  return {};
}

Result<std::vector<Asked>> asked_in(const Args& args) {
  std::vector<Asked> asked;
  if (args.has("--gemm"))
    if (Status ok = add_products(args.value("--gemm"), asked); !ok) return tl::unexpected(ok.error());
  if (args.has("--attention"))
    for (const std::string& one : split(args.value("--attention"), ';'))
      asked.push_back({"attention " + one, "--attention " + one});
  if (args.has("--memcpy"))
    for (const std::string& bytes : split(args.value("--memcpy"), ','))
      for (const char* pinned : {"on", "off"})
        asked.push_back({fmt::format("memcpy bytes={} pinned={}", bytes, pinned), "--memcpy " + bytes});
  if (args.has("--collective")) {
    const std::string gpus = args.has("--gpus") ? args.value("--gpus") : "8";
    const std::string sizes = args.has("--bytes") ? args.value("--bytes") : "65536,1048576,16777216,268435456";
    const std::string servers =
        args.has("--gpus-per-node") ? " gpus-per-node=" + args.value("--gpus-per-node") : std::string();
    for (const std::string& op : split(args.value("--collective"), ','))
      for (const std::string& bytes : split(sizes, ','))
        asked.push_back({fmt::format("collective op={} bytes={} gpus={}{}", op, bytes, gpus, servers),
                         fmt::format("--collective {} --bytes {}", op, bytes)});
  } else if (args.has("--bytes")) {
    return fail("the sizes of what?", "--bytes", "give --collective OP as well");
  }
  if (args.has("--questions"))
    if (Status ok = add_file(args.value("--questions"), asked); !ok) return tl::unexpected(ok.error());
  if (args.has("--questions") && asked.empty()) return fail("no question in it", args.value("--questions"));
  if (!asked.empty() && !args.has("--model")) return asked;
  const std::string name = args.has("--model") ? args.value("--model") : "llama-2-7b";
  const auto model = model_named_or_read(name);
  if (!model) return tl::unexpected(model.error());
  std::int64_t gpus = 8;
  if (args.has("--gpus")) {
    const std::string text = args.value("--gpus");
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gpus);
    if (error != std::errc{} || end != text.data() + text.size() || gpus < 1 || gpus > 1'000'000)
      return fail("not a whole number from 1 to 1000000: " + text, "--gpus");
  }
  for (std::string& q : ops_of_model(*model, gpus)) asked.push_back({std::move(q), "--model " + name});
  return asked;
}

struct Kind {
  std::string_view name, key, title;
};
constexpr std::array<Kind, 6> kKinds = {{{"gemm", "gemm", "Matrix products"},
                                         {"attention", "attention", "Attention"},
                                         {"memory", "memory", "Kernels that move data"},
                                         {"memcpy", "memcpy", "Copies between host and GPU"},
                                         {"adam", "host_adam", "Adam on the host"},
                                         {"collective", "collectives", "Collectives"}}};

Section section_of(const Kind& kind, const std::vector<OpsAnswer>& answers) {
  Section s{.key = std::string(kind.key), .title = std::string(kind.title), .table = {}};
  const bool work = kind.name == "gemm" || kind.name == "attention", transfer = kind.name == "collective";
  double least = 1;  // TFLOP/s
  for (const OpsAnswer& a : answers)
    if (a.kind == kind.name && a.flops > 0) least = std::min(least, a.flops / a.ns / 1e3);
  s.table.columns = {{.key = "question", .json_only = true}, {.key = "platform"}, {.key = "shape"}};
  if (work) s.table.columns.push_back({.key = "precision"});
  s.table.columns.push_back({.key = "time_us", .title = "us", .digits = 2});
  if (work) s.table.columns.push_back({.key = "tflops", .title = "TFLOP/s", .digits = rate_digits(least)});
  s.table.columns.push_back({.key = "gb_per_s", .title = "GB/s", .digits = 1});
  if (transfer) s.table.columns.push_back({.key = "bus_gb_per_s", .title = "bus GB/s", .digits = 1});
  s.table.columns.push_back({.key = "error_pct", .title = "+- %", .digits = 0});
  s.table.columns.push_back({.key = "binds"});
  for (const OpsAnswer& a : answers) {
    if (a.kind != kind.name) continue;
    const double us = a.ns / 1e3, error = 100 * a.relative_error;
    // a transfer of one GPU takes nothing: infinite rates, which are printed as not known
    const double tflops = a.flops / a.ns / 1e3, gb = a.bytes / a.ns;
    if (work)
      s.table.rows.push_back({a.number, a.platform, a.shape, a.precision, us, tflops, gb, error, a.bound});
    else if (transfer)
      s.table.rows.push_back({a.number, a.platform, a.shape, us, gb, a.bus_gb_per_s, error, a.bound});
    else
      s.table.rows.push_back({a.number, a.platform, a.shape, us, gb, error, a.bound});
  }
  return s;
}

}  // namespace

std::vector<OptionSpec> ops_options() {
  return {{"--gemm", "MxNxK[xBATCH],...", "ops: matrix products [M, K] x [K, N]", Takes::word},
          {"--memcpy", "BYTES,...", "ops: copies between host and GPU, pinned and pageable", Takes::word},
          {"--collective", "OP,...",
           "ops: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all or send over --gpus GPUs", Takes::word},
          {"--bytes", "N,...", "ops: message sizes of --collective", Takes::word},
          {"--questions", "FILE",
           "ops: one operator a line (docs/model.md, \"Operators\"); - is standard input. Each may name a platform of "
           "its own",
           Takes::file}};
}

Result<int> run_estimate_ops(const Args& args, const RunOptions& options) {
  Precision precision = Precision::bf16;
  if (args.has("--precision") && !read_precision(args.value("--precision"), precision))
    return fail("not known: " + args.value("--precision"), "--precision",
                "one of fp32, tf32, fp16, bf16, fp8, fp8-block, int8, nvfp4");
  if (!args.has("--platform") && !args.has("--questions"))
    return fail("no platform", "estimate ops", "--platform NAME; --platform list names them");
  const auto asked = asked_in(args);
  if (!asked) return tl::unexpected(asked.error());
  OpsAnswers questions(args.value("--platform"), precision);
  std::vector<OpsAnswer> answers;
  answers.reserve(asked->size());
  for (const Asked& q : *asked) {
    auto answer = questions.ask(q.text);
    if (!answer) {
      Error e = answer.error();
      e.where = e.where.empty() ? q.where : q.where + ", " + e.where;
      return tl::unexpected(std::move(e));
    }
    answers.push_back(std::move(*answer));
  }
  Document d;
  d.command = "estimate";
  for (const Kind& kind : kKinds) {
    Section s = section_of(kind, answers);
    if (!s.table.rows.empty()) d.sections.push_back(std::move(s));
  }
  if (answers.size() > 0 && asked->front().where == "--model llama-2-7b" && !args.has("--model"))
    d.notes.add("model", Severity::info, 1, "llama-2-7b",
                "no operator is named: those of a usual model; --model names another");
  return emit(d, options);
}

}  // namespace orrery
