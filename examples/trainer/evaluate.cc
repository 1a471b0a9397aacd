#include "evaluate.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/shared_rate.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "data.h"
#include "model.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using namespace orrery;

// Every byte of the file, at the rate that is shared with others.
std::string read_whole(const std::string& path, const SharedRate& rate) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path + ": cannot read the weights");
  std::string all, piece(1 << 18, '\0');
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    rate.take(static_cast<std::uint64_t>(in.gcount()));
    all.append(piece, 0, static_cast<std::size_t>(in.gcount()));
  }
  return all;
}

void from_safetensors(const std::string& bytes, const std::string& path, const Model& model,
                      std::vector<float>& weights) {
  const auto header = ckpt::read_safetensors_header(bytes, bytes.size());
  if (!header) throw std::runtime_error(path + ": " + header.error().what);
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
  for (const Parameter& p : model.parameters()) {
    const auto t = std::find_if(header->tensors.begin(), header->tensors.end(),
                                [&](const ckpt::FileTensor& f) { return f.name == p.name; });
    if (t == header->tensors.end() || t->shape != p.shape || t->dtype != ckpt::DType::f32)
      throw std::runtime_error(path + ": is of another model: " + p.name);
    std::memcpy(weights.data() + p.begin, bytes.data() + 8 + length + t->begin, 4 * p.size);
  }
}

std::vector<float> load(const Settings& s, const Model& model) {
  SharedRate rate;
  if (!s.read_rate_file.empty()) {
    auto opened = SharedRate::open(s.read_rate_file, static_cast<double>(s.read_bytes_per_second));
    if (!opened) throw std::runtime_error(opened.error().line());
    rate = std::move(*opened);
  }
  std::vector<float> weights(model.size());
  if (!fs::is_directory(s.evaluate)) {
    from_safetensors(read_whole(s.evaluate, rate), s.evaluate, model, weights);
    return weights;
  }
  const fs::path path(s.evaluate);
  for (const auto& file : fs::directory_iterator(path)) (void)read_whole(file.path().string(), rate);  // all of it
  const auto c = ckpt::Checkpoint::open(path.parent_path().string(), path.filename().string());
  if (!c) throw std::runtime_error(c.error().line());
  for (const Parameter& p : model.parameters()) {
    const ckpt::TensorInfo* info = c->find(p.name);
    if (info == nullptr || info->dtype != ckpt::DType::f32 || info->shape != p.shape)
      throw std::runtime_error(s.evaluate + ": is of another model: " + p.name);
    if (const auto ok = c->read(p.name, weights.data() + p.begin); !ok) throw std::runtime_error(ok.error().line());
  }
  return weights;
}

std::uint64_t number_of(const std::string& name) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h;
}

}  // namespace

int evaluate(const Settings& s) {
  Model model(s.shape);
  const std::vector<float> weights = load(s, model);
  std::ifstream in(s.work);
  const auto work = nlohmann::json::parse(in, nullptr, false);
  if (!work.is_array()) throw std::runtime_error(s.work + ": is not a list of pieces");
  if (!work.empty())  // says when the items begin: what came before is the start
    std::ofstream(fs::path(work.front().at("output").get<std::string>()).parent_path() / "started");
  std::vector<float> gradient(model.size());
  for (const auto& piece : work) {
    const std::string output = piece.at("output"), part = output + ".part";
    const std::uint64_t seed = number_of(piece.at("dataset"));
    const auto first = piece.at("first").get<std::uint64_t>(), items = piece.at("items").get<std::uint64_t>();
    std::ofstream out(part);
    for (std::uint64_t i = first; i < first + items; ++i) {
      const auto tokens = sample(seed, i, s.shape.sequence, s.shape.vocabulary);
      out << fmt::format("{} {:.6f}\n", i, model.loss(weights, tokens, 1.0f, gradient));
    }
    out.close();
    if (!out || std::rename(part.c_str(), output.c_str()) != 0)
      throw std::runtime_error(output + ": cannot be written");
  }
  return 0;
}

int score(const Settings& s) {
  std::vector<double> losses;
  for (const std::string& file : s.score) {
    std::ifstream in(file);
    if (!in) throw std::runtime_error(file + ": cannot be read");
    std::uint64_t item = 0;
    for (double loss = 0; in >> item >> loss;) losses.push_back(loss);
  }
  if (losses.empty()) throw std::runtime_error("no item to score");
  const auto n = static_cast<double>(losses.size());
  double sum = 0;
  for (const double l : losses) sum += l;
  std::vector<double> means(std::max<std::size_t>(s.resamples, 2));
  std::uint64_t state = 1;
  for (double& mean : means) {
    double of_resample = 0;
    for (std::size_t i = 0; i < losses.size(); ++i) of_resample += losses[(state = mix(state)) % losses.size()];
    mean = of_resample / n;
  }
  std::sort(means.begin(), means.end());
  const auto at = [&](double q) { return means[static_cast<std::size_t>(q * static_cast<double>(means.size() - 1))]; };
  fmt::print("{{\"loss\": {:.6f}, \"perplexity\": {:.6f}, \"loss_p5\": {:.6f}, \"loss_p95\": {:.6f}, \"items\": {}}}\n",
             sum / n, std::exp(sum / n), at(0.05), at(0.95), losses.size());
  return 0;
}

}  // namespace trainer
