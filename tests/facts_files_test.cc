// Files of facts: the examples of the documentation, a user's own directory, and what is refused, with its line.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "facts/library.h"
#include "facts/read_facts.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

KnownParts built_in_parts() {
  return {[](const std::string& name) { return gpu_named(name); },
          [](const std::string& name) { return host_named(name); },
          [](const std::string& name) { return link_named(name); }};
}

constexpr const char* kModel =
    "[model]\nname = \"m\"\nsource = \"here\"\nsure = \"seen\"\nlayers = 2\nhidden = 64\nffn = 128\nheads = 8\n"
    "vocab = 100\n";
constexpr const char* kGpu =
    "[gpu]\nname = \"g\"\nsource = \"here\"\nsure = \"seen\"\nsms = 10\nbf16_tflops = 100\nmemory_gib = 16\n"
    "memory_gb_per_s = 500\n";
constexpr const char* kPlatform =
    "[platform]\nname = \"p\"\nsource = \"here\"\nsure = \"seen\"\ngpus_per_node = 4\ngpu = \"L40S\"\n";

// "" = read
template <class Read>
std::string refusal(const std::string& text, const Read& read) {
  const auto file = parse_facts(text, "f.toml");
  if (!file) return file.error().line();
  const auto facts = read(*file, built_in_parts());
  return facts ? "" : facts.error().line();
}
std::string of_model(const std::string& more) { return refusal(kModel + more, model_of); }
std::string of_gpu(const std::string& more) { return refusal(kGpu + more, gpu_of); }
std::string of_platform(const std::string& more) { return refusal(kPlatform + more, platform_of); }

void expect_at(const std::string& line, int number, const std::string& what) {
  EXPECT_EQ(line.rfind("f.toml:" + std::to_string(number) + ": ", 0), 0u) << line;
  EXPECT_NE(line.find(what), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
}

TEST(FactFiles, WhatIsLeftOutFollows) {
  const auto file = parse_facts(kModel, "f.toml");
  ASSERT_TRUE(file);
  const auto m = model_of(*file, built_in_parts());
  ASSERT_TRUE(m) << m.error().line();
  EXPECT_EQ(m->kv_heads, 8);
  EXPECT_EQ(m->head_dim, 8);
  EXPECT_EQ(m->experts, 0);
}

TEST(FactFiles, ANumberHasTheSourceOfTheFileOrItsOwn) {
  const auto file =
      parse_facts(std::string(kModel) + "kv_heads = { value = 2, source = \"there\", sure = \"derived\" }\n", "f.toml");
  ASSERT_TRUE(file);
  const auto m = model_of(*file, built_in_parts());
  ASSERT_TRUE(m) << m.error().line();
  EXPECT_EQ(m->kv_heads, 2);
  EXPECT_EQ(m->source, "here; kv_heads: there");
  EXPECT_EQ(m->sure, "seen; kv_heads: derived");
}

TEST(FactFiles, RefusedWithTheirLine) {
  expect_at(of_model("lairs = 3\n"), 10, "did you mean layers?");
  expect_at(of_model("kv_heads = 3\n"), 10, "do not divide");
  expect_at(of_model("kv_heads = \"2\"\n"), 10, "must be a whole number");
  expect_at(of_model("kv_heads = 2.5\n"), 10, "must be a whole number");
  expect_at(of_model("max_context = -1\n"), 10, "max_context = -1 is not possible");
  expect_at(of_model("gated_mlp = 1\n"), 10, "true or false");
  expect_at(of_model("experts = 4\n"), 10, "experts_per_token");
  expect_at(of_model("expert_ffn = 4\n"), 10, "needs experts");
  expect_at(of_model("experts = 4\nexpert_ffn = 8\nexperts_per_token = 5\n"), 12, "not possible");
  expect_at(of_model("kv_lora_rank = 4\n"), 10, "rope_head_dim");
  expect_at(of_model("vocab = 7\n"), 10, "not TOML");
  const auto brackets = parse_facts("[[[name]", "f.toml");  // an assertion in toml++ 3.3
  ASSERT_FALSE(brackets);
  EXPECT_EQ(brackets.error().line(), "f.toml:1: not TOML");
  expect_at(of_model("kv_heads = { value = 2, sauce = \"x\" }\n"), 10, "unknown part sauce");
  expect_at(of_model("kv_heads = { source = \"x\" }\n"), 10, "no value");
  expect_at(of_model("kv_heads = { value = 2, sure = \"certainly\" }\n"), 10, "says nothing");
  expect_at(of_model("kv_heads = 1979-05-27\n"), 10, "neither a number");
  expect_at(of_model("aliases = [1]\n"), 10, "something else than texts");
  expect_at(of_model("[extra]\nx = 1\n"), 10, "[extra]");
  expect_at(refusal("[model]\nname = \"m\"\nsource = \"s\"\nsure = \"seen\"\n", model_of), 1, "no layers");
  expect_at(refusal("layers = 3\n", model_of), 1, "outside of a table");
  EXPECT_NE(of_model("learned_positions = true\n").find("max_context"), std::string::npos);
}

TEST(FactFiles, AbsurdNumbersOfGpusAndPlatformsAreRefused) {
  EXPECT_EQ(of_gpu(""), "");
  expect_at(of_gpu("nvlink_gb_per_s = 1e9\n"), 9, "not possible");
  expect_at(of_gpu("nvlink_gb_per_s = nan\n"), 9, "not possible");
  expect_at(of_gpu("nvlink_gb_per_s = inf\n"), 9, "not possible");
  expect_at(of_gpu("pcie_gb_per_s = \"no-such-link\"\n"), 9, "no link is named no-such-link");
  expect_at(of_gpu("nvlink_in_pairs = true\n"), 9, "needs nvlink_gb_per_s");
  expect_at(refusal("[gpu]\nname = \"g\"\nsource = \"s\"\nsure = \"seen\"\nsms = 1\nmemory_gib = 1\n"
                    "memory_gb_per_s = 100\n",
                    gpu_of),
            5, "none of bf16_tflops");
  EXPECT_EQ(of_platform(""), "");
  expect_at(of_platform("host = \"none-such\"\n"), 7, "no host is named");
  expect_at(of_platform("nvlink_domain = 6\nnvlink_gb_per_s = 100\n"), 7, "do not divide");
  expect_at(of_platform("nvlink_in_pairs = true\n"), 7, "without any NVLink");
  expect_at(of_platform("[gpu]\nsms = 1\n"), 6, "by name and a table");
  expect_at(refusal("[platform]\nname = \"p\"\nsource = \"s\"\nsure = \"seen\"\ngpus_per_node = 4\n", platform_of), 1,
            "no gpu");
  expect_at(refusal("[platform]\nname = \"p\"\nsource = \"s\"\nsure = \"seen\"\ngpus_per_node = 4\n[gpu]\nsms = -1\n",
                    platform_of),
            7, "sms = -1 is not possible");
}

TEST(FactFiles, WhatIsNoFileOfFacts) {
  for (const std::string& text :
       {std::string("\0\0", 2), std::string("\xff\xfe"), std::string("[model"), std::string("[[model]]\nname = 1\n"),
        std::string(70'000, '\n'), "a" + std::string(1000, '.') + "b = 1\n"}) {
    const auto file = parse_facts(text, "f.toml");
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().line().rfind("f.toml:", 0), 0u) << file.error().line();
  }
  const auto empty = parse_facts("", "f.toml");
  ASSERT_TRUE(empty);
  EXPECT_FALSE(kind_of_facts(*empty));
}

TEST(FactFiles, APlatformHoldsItsOwnGpuAndHost) {
  const auto file = parse_facts(
      "[platform]\nname = \"p\"\nsource = \"s\"\nsure = \"seen\"\ngpus_per_node = 2\n[gpu]\nsms = 10\n"
      "bf16_tflops = 100\nmemory_gib = 16\nmemory_gb_per_s = 500\nnvlink_gb_per_s = 50\nnvlink_in_pairs = true\n"
      "[host]\ncores = 8\nmemory_gb_per_s = 80\n",
      "f.toml");
  ASSERT_TRUE(file) << file.error().line();
  const auto p = platform_of(*file, built_in_parts());
  ASSERT_TRUE(p) << p.error().line();
  EXPECT_EQ(p->gpu.name, "p");
  EXPECT_EQ(p->gpu.source, "s");
  EXPECT_EQ(p->nvlink_gb_per_s, 50);
  EXPECT_EQ(p->nvlink_domain, 2);
  EXPECT_EQ(p->host.cores, 8);
  EXPECT_EQ(p->host.launch_us, 4.5);
}

// ---- the documentation, and a user's own directory ----

struct TempFolder {
  fs::path path = fs::temp_directory_path() / ("orrery-facts-" + std::to_string(::getpid()));
  TempFolder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~TempFolder() {
    std::error_code ignored;  // what still writes there
    fs::remove_all(path, ignored);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name) << text;
    return (path / name).string();
  }
};

std::vector<std::string> examples() {
  std::ifstream in(fs::path(ORRERY_SOURCE_DIR) / "docs/formats/facts.md");
  std::vector<std::string> out;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("```", 0) == 0) {
      inside = line == "```toml";
      if (inside) out.emplace_back();
    } else if (inside) {
      out.back() += line + "\n";
    }
  }
  return out;
}

TEST(FactFiles, EnginesOfUnknownWaysAreRefused) {
  const std::string engine = "[engine]\nname = \"e\"\nsource = \"here\"\nsure = \"seen\"\n";
  const auto of_engine = [&](const std::string& more) { return refusal(engine + more, engine_of); };
  EXPECT_EQ(of_engine(""), "");
  expect_at(of_engine("scheduling = \"fair\"\n"), 5, "chunked, prefill-first or static");
  expect_at(of_engine("kv_growth = \"slow\"\n"), 5, "paged or reserved");
  expect_at(of_engine("preemption = \"never\"\n"), 5, "recompute or swap");
  expect_at(of_engine("kernels = \"good\"\n"), 5, "fused, separate or unfused");
  expect_at(of_engine("multi_gpu = \"any\"\n"), 5, "tensor or layers");
  expect_at(of_engine("block_size = 0\n"), 5, "not possible");
  expect_at(of_engine("step = 3\n"), 5, "step");
}

TEST(FactFiles, EveryBuiltInEngineIsRead) {
  const auto all = known_engines();
  ASSERT_TRUE(all) << all.error().line();
  EXPECT_GE(all->size(), 9u);
  for (const EngineFacts& e : *all) {
    EXPECT_FALSE(e.source.empty()) << e.name;
    EXPECT_EQ(engine_named_or_read(e.name)->name, e.name);
  }
  EXPECT_FALSE(engine_named_or_read("vlm"));
}

TEST(FactFiles, ExamplesOfTheDocumentationAreADirectoryOfFacts) {
  const std::vector<std::string> texts = examples();
  ASSERT_EQ(texts.size(), 6u);
  const TempFolder folder;
  for (std::size_t i = 0; i < texts.size(); ++i) folder.write(std::to_string(i) + ".toml", texts[i]);
  const auto own = read_facts_directory(folder.path.string());
  ASSERT_TRUE(own) << own.error().line();
  ASSERT_EQ(own->models.size(), 1u);
  EXPECT_EQ(parameters(own->models[0]), own->models[0].published_parameters);
  const auto p = platform_named_or_read("My-Server", *own);
  ASSERT_TRUE(p) << p.error().line();
  EXPECT_EQ(p->nic_gb_per_s, 25);
  EXPECT_EQ(p->host.cores, 48);
  EXPECT_EQ(p->host.memory_gib, 256);
  const auto e = engine_named_or_read("My Engine", *own);
  ASSERT_TRUE(e) << e.error().line();
  EXPECT_EQ(e->step_us, 900);
  EXPECT_EQ(e->block_size, 16);
  const auto g = platform_named_or_read("2x my gpu", *own);
  ASSERT_TRUE(g) << g.error().line();
  EXPECT_EQ(g->gpus_per_node, 2);
  EXPECT_EQ(g->pcie_gb_per_s, 31);
  EXPECT_FALSE(platform_named_or_read("my-server")) << "built-in facts do not have it";
}

TEST(FactFiles, AUsersOwnComesBeforeTheBuiltIn) {
  const TempFolder folder;
  std::string text = kModel;
  text.replace(text.find("\"m\""), 3, "\"Llama2-7B\"");
  const std::string path = folder.write("a.toml", text);
  folder.write("notes.txt", "not read");
  const auto own = read_facts_directory(folder.path.string());
  ASSERT_TRUE(own) << own.error().line();
  EXPECT_EQ(model_named_or_read("llama-2-7b", *own)->layers, 2);
  EXPECT_EQ(model_named_or_read("llama-2-7b")->layers, 32);
  EXPECT_EQ(model_named_or_read(path)->layers, 2) << "a file by its path";
  EXPECT_EQ(known_models(*own)->size(), known_models()->size()) << "each name once";
  folder.write("b.toml", text);
  const auto twice = read_facts_directory(folder.path.string());
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().line().find("second file"), std::string::npos) << twice.error().line();
}

TEST(FactFiles, DirectoriesThatAreNone) {
  const TempFolder folder;
  EXPECT_FALSE(read_facts_directory(folder.path.string())) << "no files";
  EXPECT_FALSE(read_facts_directory((folder.path / "none").string()));
  folder.write("a.toml", "[model]\n");
  const auto bad = read_facts_directory(folder.path.string());
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().line().find("a.toml:1"), std::string::npos) << bad.error().line();
}

}  // namespace
}  // namespace orrery
