// The file of a matrix -> BenchConfig.
#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>

#include "base/byte_source.h"
#include "base/closest.h"
#include "base/json_text.h"
#include "base/toml.h"
#include "bench/launch.h"
#include "bench/matrix.h"
#include "costs/operators.h"
#include "facts/library.h"
#include "facts/read_facts.h"

namespace orrery {
namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 20;
constexpr std::size_t kMostValues = 1000;  // of a list

constexpr std::array<std::string_view, 4> kTasks = {"pretrain", "finetune", "inference", "operators"};
constexpr std::array<std::string_view, 7> kFrameworks = {"pytorch", "fsdp",    "deepspeed", "megatron",
                                                         "trainer", "command", "orrery"};

struct Reader {
  std::string path, folder;
  OwnFacts own;
  const toml::table* shapes = nullptr;  // [models]

  tl::unexpected<Error> fail_at(std::int64_t line, std::string what, std::string advice = {}) const {
    return fail(quote_for_people(what, 400), path + ":" + std::to_string(std::max<std::int64_t>(1, line)),
                std::move(advice));
  }
  tl::unexpected<Error> fail_at(const toml::node& n, std::string what, std::string advice = {}) const {
    return fail_at(static_cast<std::int64_t>(n.source().begin.line), std::move(what), std::move(advice));
  }
  tl::unexpected<Error> unknown_key(const toml::node& n, std::string_view key, std::string_view table,
                                    const std::vector<std::string_view>& keys) const {
    const std::string_view near = closest(key, keys);
    std::string all;
    for (const std::string_view k : keys) all += (all.empty() ? "" : ", ") + std::string(k);
    return fail_at(n, fmt::format("no key of {}: {}", table, key),
                   near.empty() ? all : fmt::format("did you mean {}?", near));
  }

  Status word(const toml::node& n, std::string& out) const {
    const auto value = n.value_exact<std::string>();
    if (!value) return fail_at(n, "not a text in quotes");
    out = *value;
    return {};
  }
  Status count(const toml::node& n, std::int64_t& out, std::int64_t least, std::int64_t most) const {
    const auto value = n.value_exact<std::int64_t>();
    if (!value || *value < least || *value > most)
      return fail_at(n, fmt::format("not a whole number from {} to {}", least, most));
    out = *value;
    return {};
  }
  Status amount(const toml::node& n, double& out, double least, double most) const {
    const auto value = n.value<double>();
    if (!n.is_number() || !value || !(*value >= least) || !(*value <= most))
      return fail_at(n, fmt::format("not a number from {:g} to {:g}", least, most));
    out = *value;
    return {};
  }
  Status words(const toml::node& n, std::vector<std::string>& out) const {
    const toml::array* list = n.as_array();
    if (!list || list->size() > kMostValues) return fail_at(n, "not a list of texts");
    for (const toml::node& item : *list) {
      out.emplace_back();
      if (const Status ok = word(item, out.back()); !ok) return ok;
    }
    return {};
  }
  Status variables(const toml::node& n, std::vector<std::pair<std::string, std::string>>& out) const {
    const toml::table* t = n.as_table();
    if (!t) return fail_at(n, "not a table of variables", "environment = { NAME = \"value\" }");
    for (const auto& [key, node] : *t) {
      std::string value;
      if (const Status ok = word(node, value); !ok) return ok;
      if (key.str().empty() || key.str().find('=') != std::string_view::npos || value.find('\0') != std::string::npos)
        return fail_at(node, "not a variable of an environment");
      out.emplace_back(std::string(key.str()), std::move(value));
    }
    return {};
  }

  // One value or a list of them.
  Status each(const toml::node& n, const std::function<Status(const toml::node&)>& take) const {
    const toml::array* list = n.as_array();
    if (!list) return take(n);
    if (list->empty()) return fail_at(n, "an empty list");
    if (list->size() > kMostValues) return fail_at(n, "a list of more than 1000 values");
    for (const toml::node& item : *list)
      if (const Status ok = take(item); !ok) return ok;
    return {};
  }

  // A key of a table and what reads its value.
  struct Key {
    std::string_view name;
    std::function<Status(const toml::node&)> read;
  };
  Status keys(const toml::table& t, std::string_view table, const std::vector<Key>& known) const {
    for (const auto& [key, node] : t) {
      const auto found = std::find_if(known.begin(), known.end(), [&](const Key& k) { return k.name == key.str(); });
      if (found == known.end()) {
        std::vector<std::string_view> names;
        for (const Key& k : known) names.push_back(k.name);
        return unknown_key(node, key.str(), table, names);
      }
      if (const Status ok = found->read(node); !ok) {
        Error e = ok.error();
        // "not a whole number" is of something.
        if (e.what.starts_with("not ") || e.what.starts_with("an empty list"))
          e.what = fmt::format("{}: {}", std::string_view(key.str()), e.what);
        return tl::unexpected(std::move(e));
      }
    }
    return {};
  }

  std::string beside(const std::string& file) const {  // the config
    return file.empty() || file.front() == '/' || folder.empty() ? file : folder + "/" + file;
  }

  Status bench(const toml::table& t, BenchConfig& c) const;
  Status matrix(const toml::table& t, const BenchConfig& c, MatrixAxes& out) const;
  Status technique_words(const toml::node& n, BenchCommand& out) const;
  Status command(std::string name, const toml::table& t, BenchCommand& out) const;
  Result<ModelFacts> model(const toml::node& n) const;
  Result<ModelFacts> shape(const std::string& name, const toml::table& t) const;
};

Status Reader::bench(const toml::table& t, BenchConfig& c) const {
  const auto text = [&](std::string& to) { return [&](const toml::node& n) { return word(n, to); }; };
  const auto whole = [&](std::int64_t& to, std::int64_t least, std::int64_t most) {
    return [&to, least, most, this](const toml::node& n) { return count(n, to, least, most); };
  };
  const auto real = [&](double& to, double least, double most) {
    return [&to, least, most, this](const toml::node& n) { return amount(n, to, least, most); };
  };
  return keys(t, "[bench]",
              {{"name", text(c.name)},
               {"store",
                [&](const toml::node& n) -> Status {
                  if (const Status ok = word(n, c.store); !ok) return ok;
                  if (c.store.empty()) return fail_at(n, "not a file's name: \"\"", "without the key it is NAME.db");
                  return {};
                }},
               {"platform", text(c.platform)},
               {"facts", text(c.facts)},
               {"calibrate", [&](const toml::node& n) { return words(n, c.calibrate); }},
               {"calibrate_runs", whole(c.calibrate_runs, 0, 1000)},
               {"compare",
                [&](const toml::node& n) -> Status {
                  std::string with;
                  if (const Status ok = word(n, with); !ok) return ok;
                  if (with != "wall" && with != "cpu") return fail_at(n, "no time: " + with, "wall or cpu");
                  c.compare_cpu = with == "cpu";
                  return {};
                }},
               {"python", text(c.python)},
               {"trainer", text(c.trainer)},
               {"environment", [&](const toml::node& n) { return variables(n, c.environment); }},
               {"operator_options", [&](const toml::node& n) { return words(n, c.operator_options); }},
               {"device",
                [&](const toml::node& n) -> Status {
                  if (const Status ok = word(n, c.device); !ok) return ok;
                  if (c.device != "auto" && c.device != "cpu" && c.device != "cuda")
                    return fail_at(n, "no device: " + c.device, "auto, cpu or cuda (ROCm's, too)");
                  return {};
                }},
               {"warmup_steps", whole(c.warmup_steps, 0, 100'000)},
               {"steps", whole(c.steps, 1, 1'000'000)},
               {"trace_steps", whole(c.trace_steps, 0, 100)},
               {"lora_rank", whole(c.lora_rank, 1, 65'536)},
               {"prompt_tokens", whole(c.prompt_tokens, 1, 65'536)},
               {"output_tokens", whole(c.output_tokens, 1, 1'000'000)},
               {"threads", whole(c.threads, 1, 4096)},
               {"largest_batch", whole(c.largest_batch, 1, 1'000'000)},
               {"reference_every", whole(c.reference_every, 0, 1'000'000)},
               {"time_limit_s", real(c.time_limit_s, 0.1, 1e7)},
               {"silence_limit_s", real(c.silence_limit_s, 0.1, 1e7)},
               {"budget_s", real(c.budget_s, 1, 1e9)},
               {"memory_limit_gib", real(c.memory_limit_gib, 0.01, 1e6)}});
}

Result<ModelFacts> Reader::shape(const std::string& name, const toml::table& t) const {
  // As a file of facts has it: the same fields, limits and checks.
  std::string text = "[model]\nsource = \"the matrix\"\nsure = \"stated\"\nname = \"" + name + "\"\n";
  for (const auto& [key, node] : t) {
    const std::string k(key.str());
    if (k.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos || k == "source" || k == "sure" ||
        k == "name")
      return fail_at(node, "no field of a shape: " + k, "docs/formats/facts.md");
    if (const auto whole = node.value_exact<std::int64_t>()) {
      text += fmt::format("{} = {}\n", k, *whole);
    } else if (const auto yes = node.value_exact<bool>()) {
      text += fmt::format("{} = {}\n", k, *yes);
    } else {
      return fail_at(node, "a shape has whole numbers, true and false");
    }
  }
  const auto file = parse_facts(text, path);
  if (!file) return fail_at(t, file.error().what);
  const KnownParts none{[](const std::string& n) { return gpu_named(n); },
                        [](const std::string& n) { return host_named(n); },
                        [](const std::string& n) { return link_named(n); }};
  auto model = model_of(*file, none);
  if (!model) return fail_at(t, "model " + name + ": " + model.error().what, model.error().advice);
  return model;
}

Result<ModelFacts> Reader::model(const toml::node& n) const {
  std::string name;
  if (const Status ok = word(n, name); !ok) return tl::unexpected(ok.error());
  if (shapes != nullptr)
    if (const toml::table* own_shape = (*shapes)[name].as_table()) return shape(name, *own_shape);
  auto model = model_named_or_read(name.ends_with(".toml") ? beside(name) : name, own);
  if (!model) return fail_at(n, model.error().what, model.error().advice);
  return model;
}

template <std::size_t N>
std::size_t place(const std::array<std::string_view, N>& names, std::string_view name) {
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

template <std::size_t N>
std::string joined(const std::array<std::string_view, N>& names, std::size_t n = N) {
  std::string all;
  for (std::size_t i = 0; i < n; ++i) all += (all.empty() ? "" : ", ") + std::string(names[i]);
  return all;
}

Status Reader::matrix(const toml::table& t, const BenchConfig& c, MatrixAxes& out) const {
  const auto numbers = [&](std::vector<std::int64_t>& to, std::int64_t most) {
    return [&to, most, this](const toml::node& list) {
      return each(list, [&](const toml::node& n) { return to.push_back(0), count(n, to.back(), 1, most); });
    };
  };
  const toml::node* mixed = t.get("mix");
  Status ok = keys(t, "[[matrix]]",
                   {{"task",
                     [&](const toml::node& list) {
                       return each(list, [&](const toml::node& n) -> Status {
                         std::string name;
                         if (const Status good = word(n, name); !good) return good;
                         const std::size_t i = place(kTasks, name);
                         if (i == kTasks.size()) return fail_at(n, "no task: " + name, joined(kTasks));
                         out.tasks.push_back(static_cast<BenchTask>(i));
                         return {};
                       });
                     }},
                    {"model",
                     [&](const toml::node& list) {
                       return each(list, [&](const toml::node& n) -> Status {
                         auto m = model(n);
                         if (!m) return tl::unexpected(m.error());
                         for (const MatrixAxes& a : c.matrices)
                           for (const ModelFacts& other : a.models)
                             if (other.name == m->name && shape_text(other) != shape_text(*m))
                               return fail_at(n, "another model of another shape has the name " + m->name,
                                              "runs are told apart by it");
                         out.models.push_back(std::move(*m));
                         return {};
                       });
                     }},
                    {"techniques",
                     [&](const toml::node& list) {
                       return each(list, [&](const toml::node& n) -> Status {
                         std::string text;
                         if (const Status good = word(n, text); !good) return good;
                         auto read = read_techniques(text);
                         if (!read) return fail_at(n, read.error().what, read.error().advice);
                         out.techniques.push_back(std::move(*read));
                         return {};
                       });
                     }},
                    {"mix",
                     [&](const toml::node& n) -> Status {
                       if (!n.is_boolean()) return fail_at(n, "not true or false");
                       out.mix = *n.value<bool>();
                       return {};
                     }},
                    {"batch",
                     [&](const toml::node& list) {
                       return each(list, [&](const toml::node& n) -> Status {
                         out.batches.push_back(0);
                         if (n.value_exact<std::string>() == "max") return {};
                         return count(n, out.batches.back(), 1, 1'000'000);
                       });
                     }},
                    {"seq_length", numbers(out.seq_lengths, 100'000'000)},
                    {"gpus", numbers(out.gpus, 100'000)},
                    {"precision",
                     [&](const toml::node& list) {
                       return each(list, [&](const toml::node& n) -> Status {
                         std::string text;
                         if (const Status good = word(n, text); !good) return good;
                         if (text != "fp32" && text != "tf32" && text != "bf16" && text != "fp16")
                           return fail_at(n, "no precision: " + text, "fp32, tf32, bf16 or fp16");
                         out.precisions.push_back(std::move(text));
                         return {};
                       });
                     }},
                    {"framework", [&](const toml::node& list) {
                       return each(list, [&](const toml::node& n) -> Status {
                         std::string name;
                         if (const Status good = word(n, name); !good) return good;
                         const bool own_command = std::any_of(c.commands.begin(), c.commands.end(),
                                                              [&](const BenchCommand& k) { return k.name == name; });
                         const std::size_t i = place(kFrameworks, name);
                         if (own_command) {
                           out.frameworks.emplace_back(BenchFramework::command, name);
                         } else if (i < 5) {
                           out.frameworks.emplace_back(static_cast<BenchFramework>(i), "");
                         } else {
                           return fail_at(n, "no framework: " + name,
                                          joined(kFrameworks, 5) + ", or the NAME of a [commands.NAME]");
                         }
                         return {};
                       });
                     }}});
  if (!ok) return ok;
  if (out.tasks.empty()) return fail_at(t, "a matrix without a task", joined(kTasks));
  const bool models_needed =
      std::any_of(out.tasks.begin(), out.tasks.end(), [](BenchTask k) { return k != BenchTask::operators; });
  if (out.models.empty() && models_needed) return fail_at(t, "a matrix without a model", "model = [\"llama-2-7b\"]");
  if (out.techniques.empty()) out.techniques.emplace_back();
  if (out.mix) {
    Techniques all;
    for (const Techniques& k : out.techniques)
      for (const std::string& letter : k.letters)
        if (!all.has(letter)) all.letters.push_back(letter);
    out.techniques = all_mixes(read_techniques(to_text(all)).value());  // in the table's order
    if (mixed != nullptr && out.techniques.size() > 1024) return fail_at(*mixed, "too many mixes");
  }
  if (out.batches.empty()) out.batches = {1};
  if (out.seq_lengths.empty()) out.seq_lengths = {512};
  if (out.gpus.empty()) out.gpus = {1};
  if (out.frameworks.empty()) out.frameworks.emplace_back(BenchFramework::pytorch, "");
  return {};
}

Status Reader::technique_words(const toml::node& n, BenchCommand& out) const {
  const toml::table* t = n.as_table();
  if (!t) return fail_at(n, "not a table of words by letter", "techniques = { R = [\"--recompute\"] }");
  for (const auto& [key, node] : *t) {
    const auto letter = read_techniques(key.str());
    if (!letter || letter->letters.size() != 1) return fail_at(node, "no technique " + std::string(key.str()));
    out.technique_words.emplace_back(letter->letters.front(), std::vector<std::string>());
    if (const Status ok = words(node, out.technique_words.back().second); !ok) return ok;
  }
  return {};
}

Status Reader::command(std::string name, const toml::table& t, BenchCommand& out) const {
  out.name = std::move(name);
  const std::size_t i = place(kFrameworks, out.name);
  if (i < kFrameworks.size()) return fail_at(t, "a framework has the name " + out.name, "call the command otherwise");
  std::string reports;
  const Status ok = keys(t, "[commands." + out.name + "]",
                         {{"argv", [&](const toml::node& n) { return words(n, out.argv); }},
                          {"environment", [&](const toml::node& n) { return variables(n, out.environment); }},
                          {"techniques", [&](const toml::node& n) { return technique_words(n, out); }},
                          {"reports",
                           [&](const toml::node& n) -> Status {
                             if (const Status good = word(n, reports); !good) return good;
                             if (reports == "lines") return {};
                             if (reports != "log") return fail_at(n, "no way to report: " + reports, "lines or log");
                             out.reports = BenchCommand::Reports::log;
                             return {};
                           }},
                          {"step_ms", [&](const toml::node& n) -> Status {
                             if (const Status good = word(n, out.step_ms); !good) return good;
                             RE2::Options quiet;
                             quiet.set_log_errors(false);
                             const RE2 pattern(out.step_ms, quiet);
                             if (!pattern.ok()) return fail_at(n, "not a regular expression: " + pattern.error());
                             if (pattern.NumberOfCapturingGroups() != 1)
                               return fail_at(n, "needs one group, the milliseconds of a step",
                                              "step_ms = 'step time: ([0-9.]+) ms'");
                             out.reports = BenchCommand::Reports::pattern;
                             return {};
                           }}});
  if (!ok) return ok;
  if (out.argv.empty() || out.argv.front().empty())
    return fail_at(t, "command " + out.name + " has no argv", "argv = [\"python3\", \"train.py\"]");
  const auto known = [&](const std::vector<std::string>& of, const char* key) -> Status {
    const Status good = check_words(of, key == std::string_view("techniques"));
    return good ? good : fail_at(*t.get(key), good.error().what, good.error().advice);
  };
  if (const Status good = known(out.argv, "argv"); !good) return good;
  for (const auto& [letter, of] : out.technique_words)
    if (const Status good = known(of, "techniques"); !good) return good;
  if (!reports.empty() && !out.step_ms.empty()) return fail_at(t, "reports beside step_ms", "one of both");
  return {};
}

template <std::size_t N>
Status known_tables(const Reader& r, const toml::table& t, const std::array<std::string_view, N>& names) {
  for (const auto& [key, node] : t)
    if (place(names, key.str()) == N)
      return r.unknown_key(node, key.str(), "a matrix's file", {names.begin(), names.end()});
  return {};
}

}  // namespace

std::string_view name_of(BenchTask t) { return kTasks[static_cast<std::size_t>(t)]; }
std::string_view name_of(BenchFramework f) { return kFrameworks[static_cast<std::size_t>(f)]; }

Result<BenchConfig> parse_bench_config(std::string_view text, const std::string& path) {
  Reader r{path, std::filesystem::path(path).parent_path().string(), {}, nullptr};
  if (text.size() > kLargestFile) return fail("larger than any description of a matrix", path, "1 MiB at most");
  const auto parsed = toml_text::parse(text);
  if (!parsed) return r.fail_at(parsed.error().line, parsed.error().what);
  const toml::table& top = *parsed;
  constexpr std::array<std::string_view, 5> kTables = {"bench", "matrix", "models", "commands", "slurm"};
  if (const Status ok = known_tables(r, top, kTables); !ok) return tl::unexpected(ok.error());

  BenchConfig c;
  c.path = path;
  c.name = std::filesystem::path(path).stem().string();
  if (const toml::node* n = top.get("bench")) {
    if (!n->is_table()) return r.fail_at(*n, "[bench] is a table");
    if (const Status ok = r.bench(*n->as_table(), c); !ok) return tl::unexpected(ok.error());
  }
  c.store = r.beside(c.store.empty() ? c.name + ".db" : c.store);
  if (!c.facts.empty()) {
    c.facts = r.beside(c.facts);
    auto own = read_facts_directory(c.facts);
    if (!own) return tl::unexpected(own.error());
    r.own = std::move(*own);
  }
  // Programs are started in other directories.
  for (std::string* program : {&c.python, &c.trainer})
    if (program->find('/') != std::string::npos) *program = std::filesystem::absolute(r.beside(*program)).string();
  if (c.platform.ends_with(".toml")) c.platform = r.beside(c.platform);
  for (std::string& table : c.calibrate) table = r.beside(table);
  // Runs begin in directories of their own: files of their options are those beside the config.
  for (std::size_t i = 1; i < c.operator_options.size(); ++i) {
    constexpr std::string_view kOfFiles[] = {"--model", "--blas", "--gpu-library", "--mpi-library"};
    std::string& word = c.operator_options[i];
    std::error_code error;
    if (std::find(std::begin(kOfFiles), std::end(kOfFiles), c.operator_options[i - 1]) != std::end(kOfFiles) &&
        std::filesystem::is_regular_file(r.beside(word), error))
      word = std::filesystem::absolute(r.beside(word)).string();
  }
  if (const toml::node* n = top.get("models")) {
    r.shapes = n->as_table();
    if (!r.shapes) return r.fail_at(*n, "[models] is a table");
    for (const auto& [key, node] : *r.shapes)
      if (!node.is_table() || key.str().empty() || key.str().find_first_of("\"\\\n/") != std::string_view::npos)
        return r.fail_at(node, "a model is a table of its shape", "[models.NAME]");
  }
  if (const toml::node* n = top.get("commands")) {
    if (!n->is_table()) return r.fail_at(*n, "[commands] is a table");
    for (const auto& [key, node] : *n->as_table()) {
      if (!node.is_table()) return r.fail_at(node, "a command is a table", "[commands.NAME]");
      c.commands.emplace_back();
      if (const Status ok = r.command(std::string(key.str()), *node.as_table(), c.commands.back()); !ok)
        return tl::unexpected(ok.error());
    }
  }
  if (const toml::node* n = top.get("slurm")) {
    if (!n->is_table()) return r.fail_at(*n, "[slurm] is a table");
    c.slurm.asked = true;
    const Status ok =
        r.keys(*n->as_table(), "[slurm]",
               {{"partition", [&](const toml::node& v) { return r.word(v, c.slurm.partition); }},
                {"account", [&](const toml::node& v) { return r.word(v, c.slurm.account); }},
                {"gpus_per_node", [&](const toml::node& v) { return r.count(v, c.slurm.gpus_per_node, 0, 1024); }},
                {"options", [&](const toml::node& v) { return r.words(v, c.slurm.options); }}});
    if (!ok) return tl::unexpected(ok.error());
  }
  const toml::node* matrices = top.get("matrix");
  const toml::array* list = matrices != nullptr ? matrices->as_array() : nullptr;
  if (list == nullptr || list->empty() || !list->is_homogeneous(toml::node_type::table))
    return r.fail_at(1, "no [[matrix]]: nothing to measure", "docs/formats/bench.md");
  double runs = 0;
  for (const toml::node& n : *list) {
    MatrixAxes& a = c.matrices.emplace_back();
    if (const Status ok = r.matrix(*n.as_table(), c, a); !ok) return tl::unexpected(ok.error());
    double product = 1;
    for (const std::size_t size : {a.tasks.size(), a.models.size(), a.techniques.size(), a.batches.size(),
                                   a.seq_lengths.size(), a.gpus.size(), a.precisions.size(), a.frameworks.size()})
      product *= static_cast<double>(std::max<std::size_t>(1, size));
    runs += product;
    if (runs > static_cast<double>(kMostRuns))
      return r.fail_at(n, fmt::format("more than {} runs", kMostRuns), "fewer values, or several files");
  }
  return c;
}

Result<BenchConfig> read_bench_config(const std::string& path) {
  const auto text = read_at_most(path, kLargestFile + 1);
  if (!text) return tl::unexpected(text.error());
  return parse_bench_config(*text, path);
}

}  // namespace orrery
