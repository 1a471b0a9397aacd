#include "bench/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/closest.h"
#include "base/fnv.h"
#include "base/json_text.h"
#include "base/output.h"
#include "bench/embedded.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json shape_of(const ModelFacts& m) {
  Json j = {{"name", m.name},
            {"layers", m.layers},
            {"hidden", m.hidden},
            {"ffn", m.ffn},
            {"heads", m.heads},
            {"kv_heads", m.kv_heads},
            {"head_dim", m.head_dim},
            {"vocab", m.vocab},
            {"experts", m.experts},
            {"tied_embeddings", m.tied_embeddings},
            {"gated_mlp", m.gated_mlp},
            {"rms_norm", m.rms_norm},
            {"learned_positions", m.learned_positions},
            {"linear_bias", m.linear_bias},
            {"qkv_bias", m.qkv_bias}};
  // Of models that have it alone: without, a specification is what it always was.
  if (m.qk_norm) j["qk_norm"] = true;
  if (m.layer_norms != 2) j["layer_norms"] = m.layer_norms;
  if (m.sliding_window > 0) j["sliding_window"] = m.sliding_window;
  if (m.full_attention_every > 0) j["full_attention_every"] = m.full_attention_every;
  return j;
}

// One entry a name, the last that says it: programs and launchers differ in which of two they take.
void set_variables(const std::vector<std::pair<std::string, std::string>>& more,
                   std::vector<std::pair<std::string, std::string>>& environment) {
  for (const auto& [name, value] : more) {
    std::erase_if(environment, [&, n = name](const auto& v) { return v.first == n; });
    environment.emplace_back(name, value);
  }
}

Json run_json(const BenchConfig& c, const BenchRun& r) {
  Json j = {{"task", name_of(r.task)},
            {"framework", name_of(r.framework)},
            {"model", shape_of(r.model)},
            {"techniques", r.techniques.letters},
            {"precision", r.precision},
            {"seq_length", r.seq_length},
            {"gpus", r.gpus},
            {"lora_rank", c.lora_rank},
            {"prompt_tokens", r.techniques.has("P") ? c.prompt_tokens : 0},
            {"output_tokens", r.output_tokens},
            {"device", c.device},
            {"seed", 1}};
  if (c.threads > 0) j["threads"] = c.threads;
  return j;
}

// Its path: "/proc/self/exe" would be another program where one is started in between (prlimit, a job of Slurm).
fs::path this_program() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
}

// The trainer's own names for the sizes that it has.
Result<std::vector<std::string>> trainer_words(const BenchConfig& c, const BenchRun& r, const MeasuredAs& as) {
  const std::string program =
      c.trainer.empty() ? (this_program().parent_path() / "orrery_trainer").string() : c.trainer;
  if (c.trainer.empty() && ::access(program.c_str(), X_OK) != 0)
    return fail("the example trainer is not beside this program", program, "name it: trainer = \"PATH\" in [bench]");
  const auto n = [](std::int64_t x) { return std::to_string(x); };
  return std::vector<std::string>{program,
                                  "--world",
                                  n(r.gpus),
                                  "--steps",
                                  n(as.warmup_steps + as.steps),
                                  "--layers",
                                  n(r.model.layers),
                                  "--width",
                                  n(r.model.hidden),
                                  "--heads",
                                  n(r.model.heads),
                                  "--vocabulary",
                                  n(r.model.vocab),
                                  "--sequence",
                                  n(r.seq_length),
                                  "--micro-batches",
                                  n(r.gpus),
                                  "--micro-batch",
                                  n(as.batch),
                                  "--timeout",
                                  fmt::format("{:g}", std::max(60.0, c.silence_limit_s))};
}

// What stands for the placeholders of a command.
std::vector<std::pair<std::string, std::string>> values_of(const BenchConfig& c, const BenchRun& r,
                                                           const MeasuredAs& as, const std::string& directory) {
  const auto n = [](std::int64_t x) { return std::to_string(x); };
  return {{"task", std::string(name_of(r.task))},
          {"model", r.model.name},
          {"layers", n(r.model.layers)},
          {"hidden", n(r.model.hidden)},
          {"ffn", n(r.model.ffn)},
          {"heads", n(r.model.heads)},
          {"kv_heads", n(r.model.kv_heads)},
          {"vocab", n(r.model.vocab)},
          {"techniques", r.techniques_text()},
          {"precision", r.precision},
          {"batch", n(as.batch)},
          {"global_batch", n(as.batch * r.gpus)},
          {"seq_length", n(r.seq_length)},
          {"output_tokens", n(r.output_tokens)},
          {"gpus", n(r.gpus)},
          {"warmup_steps", n(as.warmup_steps)},
          {"steps", n(as.steps)},
          {"total_steps", n(as.warmup_steps + as.steps)},
          {"trace_steps", n(as.trace_steps)},
          {"trace_directory", directory + "/traces"},
          {"directory", directory},
          {"spec", directory + "/spec.json"},
          {"python", c.python}};
}

constexpr std::string_view kTechniqueWords = "{technique_words}";

}  // namespace

const BenchCommand* command_named(const BenchConfig& c, const std::string& name) {
  for (const BenchCommand& k : c.commands)
    if (k.name == name) return &k;
  return nullptr;
}

std::string untold_technique(const BenchCommand& k, const Techniques& techniques) {
  for (const std::string& w : k.argv)  // the program sees to it
    if (w.find("{techniques}") != std::string::npos || w.find("{spec}") != std::string::npos) return "";
  for (const std::string& letter : techniques.letters)
    if (std::none_of(k.technique_words.begin(), k.technique_words.end(),
                     [&](const auto& t) { return t.first == letter; }))
      return letter;
  return "";
}

std::string shape_text(const ModelFacts& model) { return shape_of(model).dump(); }

Status check_words(const std::vector<std::string>& words, bool of_technique) {
  std::vector<std::string> with_values;
  std::copy_if(words.begin(), words.end(), std::back_inserter(with_values),
               [&](const std::string& w) { return of_technique || w != kTechniqueWords; });
  const auto filled = fill_in(with_values, values_of({}, {}, {}, ""));
  return filled ? Status{} : Status(tl::unexpected(filled.error()));
}

std::string spec_of(const BenchConfig& c, const BenchRun& r) {
  Json j = run_json(c, r);
  j["batch"] = r.batch;
  j["warmup_steps"] = c.warmup_steps;
  j["steps"] = c.steps;
  j["trace_steps"] = c.trace_steps;
  j["memory_limit_gib"] = c.memory_limit_gib;
  if (r.framework == BenchFramework::command) {
    const BenchCommand* k = command_named(c, r.command);
    j["command"] = {{"name", r.command}, {"argv", k->argv}, {"environment", k->environment}};
    for (const auto& [letter, words] : k->technique_words)
      if (r.techniques.has(letter)) j["command"]["technique_words"][letter] = words;
    if (k->reports == BenchCommand::Reports::log) j["command"]["reports"] = "log";
    if (!k->step_ms.empty()) j["command"]["step_ms"] = k->step_ms;
  }
  if (r.task == BenchTask::operators && !c.operator_options.empty()) j["operator_options"] = c.operator_options;
  if (!c.environment.empty()) j["environment"] = c.environment;
  return j.dump();
}

std::string hash_of(const std::string& spec) { return fmt::format("{:016x}", fnv1a(spec)); }

Result<BenchRun> run_of_spec(const std::string& spec) {
  const auto bad = [&] { return fail("not a run that `orrery bench` wrote: " + quote_for_people(spec, 100)); };
  const Json j = Json::parse(spec, nullptr, false);
  if (!j.is_object() || !j.contains("model") || !j["model"].is_object()) return bad();
  try {
    BenchRun r;
    const std::string task = j.at("task"), framework = j.at("framework");
    for (int i = 0; i < 4; ++i)
      if (name_of(static_cast<BenchTask>(i)) == task) r.task = static_cast<BenchTask>(i);
    for (int i = 0; i < 7; ++i)
      if (name_of(static_cast<BenchFramework>(i)) == framework) r.framework = static_cast<BenchFramework>(i);
    const Json& m = j.at("model");
    r.model.name = m.at("name");
    for (const auto& [key, to] :
         std::initializer_list<std::pair<const char*, std::int64_t*>>{{"layers", &r.model.layers},
                                                                      {"hidden", &r.model.hidden},
                                                                      {"ffn", &r.model.ffn},
                                                                      {"heads", &r.model.heads},
                                                                      {"kv_heads", &r.model.kv_heads},
                                                                      {"head_dim", &r.model.head_dim},
                                                                      {"vocab", &r.model.vocab},
                                                                      {"experts", &r.model.experts}})
      *to = m.at(key);
    for (const auto& [key, to] :
         std::initializer_list<std::pair<const char*, bool*>>{{"tied_embeddings", &r.model.tied_embeddings},
                                                              {"gated_mlp", &r.model.gated_mlp},
                                                              {"rms_norm", &r.model.rms_norm},
                                                              {"learned_positions", &r.model.learned_positions},
                                                              {"linear_bias", &r.model.linear_bias},
                                                              {"qkv_bias", &r.model.qkv_bias}})
      *to = m.at(key);
    r.model.qk_norm = m.value("qk_norm", false);
    r.model.layer_norms = m.value("layer_norms", std::int64_t{2});
    r.model.sliding_window = m.value("sliding_window", std::int64_t{0});
    r.model.full_attention_every = m.value("full_attention_every", std::int64_t{0});
    for (const Json& letter : j.at("techniques")) r.techniques.letters.push_back(letter);
    r.precision = j.at("precision");
    r.batch = j.at("batch");
    r.seq_length = j.at("seq_length");
    r.output_tokens = j.at("output_tokens");
    r.gpus = j.at("gpus");
    if (j.contains("command")) r.command = j.at("command").at("name");
    return r;
  } catch (const Json::exception&) {
    return bad();
  }
}

Result<std::vector<std::string>> fill_in(const std::vector<std::string>& words,
                                         const std::vector<std::pair<std::string, std::string>>& values) {
  std::vector<std::string> out;
  for (const std::string& w : words) {
    std::string filled;
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (w[i] != '{' && w[i] != '}') {
        filled += w[i];
      } else if (i + 1 < w.size() && w[i + 1] == w[i]) {  // {{ and }} are braces
        filled += w[i++];
      } else {
        const std::size_t end = w.find('}', i);
        if (w[i] == '}' || end == std::string::npos) return fail("a brace that stands alone: " + w, "argv", "{{ or }}");
        const std::string name = w.substr(i + 1, end - i - 1);
        const auto found = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == name; });
        if (found == values.end()) {
          std::vector<std::string_view> names;
          for (const auto& [key, value] : values) names.push_back(key);
          const std::string_view near = closest(name, names);
          return fail("no placeholder {" + name + "}", "argv",
                      near.empty() ? "docs/formats/bench.md has them" : "did you mean {" + std::string(near) + "}?");
        }
        filled += found->second;
        i = end;
      }
    }
    out.push_back(std::move(filled));
  }
  return out;
}

Result<RunLaunch> launch_of(const BenchConfig& c, const BenchRun& r, const MeasuredAs& as, const std::string& directory,
                            const std::string& workers) {
  RunLaunch l;
  Json spec = run_json(c, r);
  spec["batch"] = as.batch;
  spec["warmup_steps"] = as.warmup_steps;
  spec["steps"] = as.steps;
  spec["trace_steps"] = as.trace_steps;
  spec["trace_directory"] = directory + "/traces";
  spec["directory"] = directory;
  l.spec = spec.dump(1) + "\n";
  l.start_in = directory;
  set_variables({{"PYTHONUNBUFFERED", "1"}}, l.environment);
  set_variables(c.environment, l.environment);
  if (r.framework == BenchFramework::command) set_variables(command_named(c, r.command)->environment, l.environment);
  set_variables({{kRunVariable, directory}}, l.environment);
  const std::string spec_path = directory + "/spec.json";
  const auto worker = [&](const char* script) {
    l.argv = {c.python, workers + "/" + script, spec_path};
    l.one_a_rank = true;
    set_variables({{kLaunchVariable, "one"}}, l.environment);
    return std::move(l);
  };
  switch (r.framework) {
    case BenchFramework::pytorch:
    case BenchFramework::fsdp:
      return worker("torch_worker.py");
    case BenchFramework::deepspeed:
      return worker("deepspeed_worker.py");
    case BenchFramework::megatron:
      return worker("megatron_worker.py");
    case BenchFramework::trainer: {
      auto words = trainer_words(c, r, as);
      if (!words) return tl::unexpected(words.error());
      l.argv = std::move(*words);
      l.reports = BenchCommand::Reports::log;
      return l;
    }
    case BenchFramework::orrery:
      l.argv = {this_program().string(), "bench", "ops", "--quiet", "-o", directory + "/" + kOperatorsFile};
      if (r.gpus > 1) l.argv.insert(l.argv.end(), {"--ranks", std::to_string(r.gpus)});
      l.argv.insert(l.argv.end(), c.operator_options.begin(), c.operator_options.end());
      return l;
    case BenchFramework::command:
      break;
  }
  const BenchCommand& k = *command_named(c, r.command);
  if (const std::string letter = untold_technique(k, r.techniques); !letter.empty())
    return fail("command " + k.name + " does not say how it takes technique " + letter, "",
                "[commands." + k.name + ".techniques], {techniques} or {spec}");
  std::vector<std::string> words;
  for (const std::string& w : k.argv) {
    if (w != kTechniqueWords) {
      words.push_back(w);
      continue;
    }
    for (const auto& [letter, of] : k.technique_words)
      if (r.techniques.has(letter)) words.insert(words.end(), of.begin(), of.end());
  }
  auto filled = fill_in(words, values_of(c, r, as, directory));
  if (!filled) return tl::unexpected(filled.error());
  l.argv = std::move(*filled);
  l.start_in = fs::absolute(c.path).parent_path().string();
  l.reports = k.reports;
  l.step_ms = k.step_ms;
  return l;
}

Status write_workers(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return fail("cannot be made: " + error.message(), directory);
  for (const EmbeddedBench& e : embedded_bench())
    if (e.folder == "workers")
      if (const Status ok = write_file(fmt::format("{}/{}.py", directory, e.name), e.text); !ok) return ok;
  return {};
}

}  // namespace orrery
