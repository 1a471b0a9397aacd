// A little training state whose every number follows from the step, so that torn and stale are seen.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace orrery::ckpt::test {

namespace fs = std::filesystem;

struct Scratch {
  fs::path path;
  explicit Scratch(const fs::path& parent = fs::temp_directory_path()) {
    std::string name = (parent / "orrery-ckpt-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string operator/(const std::string& name) const { return (path / name).string(); }
};

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}
inline void spit(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// "weights" [rows, 3]: element i is 1000 step + i. "steps": one int64, the step.
struct ToyState {
  std::vector<float> weights;
  std::int64_t steps = 0;
  explicit ToyState(std::int64_t step, std::size_t rows = 40) : weights(rows * 3), steps(step) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = static_cast<float>(1000 * step) + static_cast<float>(i);
  }
  std::vector<TensorView> views() const {
    TensorView w, s;
    w.name = "weights";
    w.shape = {static_cast<std::int64_t>(weights.size() / 3), 3};
    w.data = weights.data();
    s.name = "steps";
    s.dtype = DType::i64;
    s.data = &steps;
    return {w, s};
  }
  // Rows [begin, end) of the weights; "steps" of rank 0 alone.
  std::vector<TensorView> piece(std::int64_t begin, std::int64_t end, bool with_steps) const {
    std::vector<TensorView> v = views();
    v[0].split_dim = 0;
    v[0].offset = begin;
    v[0].whole = v[0].shape[0];
    v[0].shape[0] = end - begin;
    v[0].data = weights.data() + 3 * begin;
    if (!with_steps) v.pop_back();
    return v;
  }
};

// "" when the checkpoint holds exactly the state of its step.
inline std::string differs(const Checkpoint& c, std::size_t rows = 40) {
  const ToyState expected(c.step(), rows);
  ToyState got(-1, rows);
  if (c.tensors().size() != 2) return "has other tensors";
  for (const TensorInfo& t : c.tensors()) {
    void* out = t.name == "steps" ? static_cast<void*>(&got.steps) : static_cast<void*>(got.weights.data());
    if (t.bytes != (t.name == "steps" ? 8 : rows * 12)) return "has another shape";
    if (auto ok = c.read(t.name, out); !ok) return ok.error().line();
  }
  if (got.steps != expected.steps) return "stale: steps is " + std::to_string(got.steps);
  return got.weights == expected.weights ? "" : "torn or stale: weights of another step";
}

inline Options small_options(const std::string& directory) {
  Options o;
  o.directory = directory;
  o.wait_timeout_s = 20;
  o.peer_timeout_s = 20;
  o.close_timeout_s = 20;
  o.pin = false;
  return o;
}

// Saves and waits; the test fails if that does.
inline void save_now(Writer& w, std::int64_t step, Slot slot = Slot::full, const Metadata& metadata = {}) {
  const ToyState state(step);
  const auto views = state.views();
  const auto saved = w.save(step, slot, views, metadata);
  ASSERT_TRUE(saved) << saved.error().line();
  ASSERT_EQ(*saved, Outcome::accepted);
  const auto ok = w.wait(20);
  ASSERT_TRUE(ok) << ok.error().line();
}

inline std::vector<std::int64_t> steps_in(const std::string& directory) {
  std::vector<std::int64_t> steps;
  const auto all = list(directory);
  EXPECT_TRUE(all);
  if (!all) return steps;
  for (const Listed& l : *all) steps.push_back(l.step);
  return steps;
}

inline std::int64_t newest_step(const std::string& directory) {
  const auto c = Checkpoint::newest_good(directory);
  if (!c || !*c) return -1;
  EXPECT_EQ(differs(**c), "");
  return (*c)->step();
}

}  // namespace orrery::ckpt::test
