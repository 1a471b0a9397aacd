#include "cli/measured_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "facts/library.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr double kLeastDoubt = 0.03;
const std::string kAdvice = "JSON lines with step_ms, or the document of `orrery bench report --json`";

class StepReader {
 public:
  StepReader(const Json& run, const EstimateJob& base, std::string place)
      : run_(run), job_(base), place_(std::move(place)) {}

  // Of a run that is done; an empty name: it is not.
  Result<CalibrationStep> read() {
    CalibrationStep s;
    if (run_.contains("state") && run_["state"].is_string() && run_["state"] != "done") return s;
    s.ns = 1e6 * step_ms();
    if (!(s.ns > 0) || s.ns > 1e15) return wrong("no step_ms above 0");
    if (const auto it = run_.find("step_ms"); it->is_object() && it->contains("sd") && (*it)["sd"].is_number())
      s.doubt = std::max(kLeastDoubt, (*it)["sd"].get<double>() * 1e6 / s.ns);
    for (const Status& ok : {model(), layout(), techniques(), precision()})
      if (!ok) return tl::unexpected(ok.error());
    if (const Status ok = check(job_); !ok) return wrong(ok.error().what);
    if (const Json* held = find({"held_out"}); held != nullptr && held->is_boolean()) s.held_out = held->get<bool>();
    s.job = job_;
    s.name = place_;
    return s;
  }

 private:
  tl::unexpected<Error> wrong(const std::string& what) const { return fail(what, place_, kAdvice); }
  const Json* find(std::initializer_list<const char*> keys) const {
    for (const char* key : keys)
      if (const auto it = run_.find(key); it != run_.end() && !it->is_null()) return &*it;
    return nullptr;
  }
  double step_ms() const {
    const Json* step = find({"step_ms"});
    if (step == nullptr) return 0;
    if (step->is_number()) return step->get<double>();
    for (const char* key : {"median", "mean"})
      if (step->is_object() && step->contains(key) && (*step)[key].is_number()) return (*step)[key].get<double>();
    return 0;
  }
  Status whole(std::initializer_list<const char*> keys, std::int64_t& out) const {
    const Json* x = find(keys);
    if (x == nullptr) return {};
    if (!x->is_number() || x->get<double>() < 1 || x->get<double>() > 1e8)
      return wrong(fmt::format("{} is not a whole number from 1", *keys.begin()));
    out = x->get<std::int64_t>();
    return {};
  }

  Status model() {
    const Json* named = find({"model"});
    const Json& shape = named != nullptr && named->is_object() ? *named : run_;
    const bool stated = shape.contains("layers") && shape.contains("hidden") && shape.contains("heads");
    if (!stated) {
      if (named == nullptr || !named->is_string() || *named == job_.model.name) return {};
      auto known = model_named_or_read(named->get<std::string>());
      if (!known) return wrong(known.error().what);
      job_.model = std::move(*known);
      return {};
    }
    ModelFacts& m = job_.model;
    const StepReader reader(shape, job_, place_);
    m.head_dim = m.kv_heads = 0;
    for (const Status& ok :
         {reader.whole({"layers"}, m.layers), reader.whole({"hidden"}, m.hidden), reader.whole({"ffn"}, m.ffn),
          reader.whole({"heads"}, m.heads), reader.whole({"kv_heads"}, m.kv_heads),
          reader.whole({"head_dim"}, m.head_dim), reader.whole({"vocab"}, m.vocab)})
      if (!ok) return ok;
    if (m.kv_heads == 0) m.kv_heads = m.heads;
    if (m.head_dim == 0) m.head_dim = m.hidden / m.heads;
    const std::pair<const char*, bool ModelFacts::*> flags[] = {{"gated_mlp", &ModelFacts::gated_mlp},
                                                                {"rms_norm", &ModelFacts::rms_norm},
                                                                {"tied_embeddings", &ModelFacts::tied_embeddings},
                                                                {"learned_positions", &ModelFacts::learned_positions},
                                                                {"linear_bias", &ModelFacts::linear_bias}};
    for (const auto& [key, member] : flags)
      if (shape.contains(key) && shape[key].is_boolean()) m.*member = shape[key].get<bool>();
    return {};
  }
  Status layout() {
    for (const Status& ok : {whole({"batch", "micro_batch_size"}, job_.micro_batch_size),
                             whole({"seq_length", "seq"}, job_.seq_length), whole({"gpus", "procs", "ranks"}, job_.dp)})
      if (!ok) return ok;
    job_.num_microbatches = 1;
    return {};
  }
  // The study's letters, as a list, or in one text joined by + or commas.
  Status techniques() {
    std::vector<std::string> letters;
    if (const Json* t = find({"techniques", "technique"}); t != nullptr && t->is_array()) {
      for (const Json& letter : *t) letters.push_back(letter.is_string() ? letter.get<std::string>() : letter.dump());
    } else if (t != nullptr) {
      if (!t->is_string()) return wrong("techniques are no text");
      std::string text = t->get<std::string>();
      std::replace(text.begin(), text.end(), '+', ',');
      for (std::size_t i = 0; i <= text.size();) {
        const std::size_t end = std::min(text.find(',', i), text.size());
        letters.push_back(text.substr(i, end - i));
        i = end + 1;
      }
    } else {
      return {};
    }
    job_.recompute = Recompute::none, job_.attention = AttentionKind::unfused, job_.method = Method::full;
    for (const std::string& letter : letters)
      if (const Status ok = technique(letter); !ok) return ok;
    return whole({"lora_rank"}, job_.lora_rank);
  }
  Status technique(const std::string& letter) {
    if (letter.empty() || letter == "none" || letter == "-") return {};
    if (letter == "R") return job_.recompute = Recompute::full, Status{};
    if (letter == "F") return job_.attention = AttentionKind::flash, Status{};
    if (letter == "L" || letter == "QL" || letter == "P") {
      job_.method = letter == "L" ? Method::lora : letter == "QL" ? Method::qlora : Method::prompt;
      job_.finetune = true;
      job_.lora_rank = 64;
      if (letter == "QL") job_.quantize = Quantize::nf4;
      return {};
    }
    if (letter == "Q") return job_.quantize = Quantize::nf4, Status{};
    if (letter == "Z2" || letter == "Z2O" || letter == "Z3" || letter == "Z3O") {
      job_.zero = letter[1] - '0';
      if (letter.size() == 3) job_.offload = letter[1] == '2' ? Offload::optimizer : Offload::all;
      return {};
    }
    return wrong("not a technique: " + letter);
  }
  Status precision() {
    const Json* p = find({"precision", "dtype"});
    if (p == nullptr) return {};
    if (!p->is_string() || !read_precision(p->get<std::string>(), job_.precision))
      return wrong("not a precision: " + p->dump());
    return {};
  }

  const Json& run_;
  EstimateJob job_;
  std::string place_;
};

Status add(const Json& run, const EstimateJob& base, std::string place, std::vector<CalibrationStep>& out) {
  if (!run.is_object()) return fail("not an object", place, kAdvice);
  auto sample = StepReader(run, base, std::move(place)).read();
  if (!sample) return tl::unexpected(sample.error());
  if (!sample->name.empty()) out.push_back(std::move(*sample));
  return {};
}

}  // namespace

bool looks_like_steps(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || text[begin] != '{') return false;
  const std::string_view head = text.substr(begin, 4'096);
  if (const std::size_t command = head.find("\"command\""); command != std::string_view::npos)
    return head.substr(command, 40).find("\"bench") != std::string_view::npos &&
           head.find("\"bench ops\"") == std::string_view::npos;
  return head.substr(0, head.find('\n')).find("\"step_ms\"") != std::string_view::npos;
}

Result<std::vector<CalibrationStep>> parse_steps(std::string_view text, const std::string& where,
                                                 const EstimateJob& base) {
  std::vector<CalibrationStep> samples;
  const Json whole = Json::parse(text, nullptr, false);
  if (whole.is_object() && whole.contains("runs")) {
    if (!whole["runs"].is_array()) return fail("runs are no list", where, kAdvice);
    std::size_t number = 0;
    for (const Json& run : whole["runs"])
      if (const Status ok = add(run, base, fmt::format("{}, run {}", where, ++number), samples); !ok)
        return tl::unexpected(ok.error());
  } else {
    std::size_t number = 0;
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t end = std::min(text.find('\n', i), text.size());
      const std::string_view line = text.substr(i, end - i);
      i = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const Json run = Json::parse(line, nullptr, false);
      if (const Status ok = add(run, base, fmt::format("{}, line {}", where, number), samples); !ok)
        return tl::unexpected(ok.error());
    }
  }
  if (samples.empty()) return fail("no run that is done", where, kAdvice);
  return samples;
}

}  // namespace orrery
