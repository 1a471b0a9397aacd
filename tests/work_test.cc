// The model's dimensions and every GPU task's work, told from rows: of programs that know what they compute, of
// simulated jobs under two configurations, and of real traces that tell little.
#include "whatif/work.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <map>

#include "graph/build.h"
#include "importers/importers.h"
#include "model_program.h"
#include "whatif/operators.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using testing::Expected;
using testing::Program;
using testing::ProgramTrace;

const fs::path kData = fs::path(ORRERY_SOURCE_DIR) / ".." / "shared" / "data";

std::string text(const Term& t) {
  std::string s = std::to_string(static_cast<std::int64_t>(t.factor));
  const std::pair<const char*, int> powers[] = {{"seq", t.seq},     {"mbs", t.mbs},           {"hidden", t.hidden},
                                                {"ffn", t.ffn},     {"attn", t.attn},         {"qkv", t.qkv},
                                                {"heads", t.heads}, {"head_dim", t.head_dim}, {"vocab", t.vocab},
                                                {"tp", t.tp},       {"split", t.split}};
  for (const auto& [name, n] : powers)
    if (n != 0) s += std::string(" ") + name + (n == 1 ? "" : "^" + std::to_string(n));
  return s;
}
std::string text(const Work& w) {
  return "kind " + std::to_string(static_cast<int>(w.kind)) + (w.parameters ? " parameters" : "") + " m " + text(w.m) +
         ", n " + text(w.n) + ", k " + text(w.k) + ", batch " + text(w.batch);
}

ModelShape recognise(const TraceSet& set, std::int64_t tp, const Dims& given = {}) {
  auto m = recognise_model(set, tp, 1, given);
  EXPECT_TRUE(m.has_value()) << m.error().line();
  return *m;
}

void expect_dims(const Dims& d, const Program& p) {
  EXPECT_EQ(d.seq, p.seq);
  EXPECT_EQ(d.mbs, p.mbs);
  EXPECT_EQ(d.hidden, p.hidden);
  EXPECT_EQ(d.ffn, p.ffn);
  EXPECT_EQ(d.heads, p.heads);
  EXPECT_EQ(d.kv_heads, p.kv_heads);
  EXPECT_EQ(d.head_dim, p.head_dim);
  EXPECT_EQ(d.vocab, p.vocab);
  EXPECT_EQ(d.sequence_parallel, p.sequence_parallel);
}

// Every task is recognised as what the program says it is.
void expect_all(const Program& p, const Dims& given = {}) {
  ProgramTrace made(p);
  TraceSet set;
  set.ranks.push_back(made.finish());
  const ModelShape m = recognise(set, p.tp, given);
  expect_dims(m.dims, p);
  EXPECT_EQ(m.gated_mlp, p.gated);
  EXPECT_EQ(m.flash_attention, p.flash);
  EXPECT_EQ(m.recompute, p.recompute);
  for (const std::string& d : m.doubts) ADD_FAILURE() << d;
  const TaskWork w = recognise_work(set.ranks[0], m);
  ASSERT_EQ(w.of_op.size(), set.ranks[0].ops.size());
  int wrong = 0;
  for (const Expected& e : made.expected) {
    ASSERT_NE(w.of_op[raw(e.task)], kNone);
    const Work& got = w.kinds[w.of_op[raw(e.task)]];
    // what a broken task is called once, not a hundred times
    if (!(got == e.work) && wrong++ < 4)
      ADD_FAILURE() << set.ranks[0].name_of(e.task) << " (row " << raw(e.task) << "): " << text(got) << "\n  expected "
                    << text(e.work);
  }
  EXPECT_EQ(wrong, 0) << "of " << made.expected.size();
}

TEST(Work, TensorParallel) { expect_all({}); }
TEST(Work, AloneWithWeightGradientsApart) {
  Program p;
  p.tp = 1;
  p.fused_wgrad = false;
  expect_all(p);
}
TEST(Work, SequenceParallel) {
  Program p;
  p.sequence_parallel = true;
  expect_all(p);
}
TEST(Work, GatedMlpAndGroupedHeads) {
  Program p;
  p.gated = true;
  p.kv_heads = 2;
  expect_all(p);
}
TEST(Work, UnfusedAttention) {
  Program p;
  p.flash = false;
  expect_all(p);
  p.tp = 4;
  expect_all(p);
}
TEST(Work, HuggingFace) {
  Program p;
  p.hugging_face = p.gated = true;
  p.tp = 1;
  p.kv_heads = 2;
  expect_all(p);
}
TEST(Work, SelectiveRecomputation) {
  Program p;
  p.recompute = "selective";
  expect_all(p);
  p.flash = false;
  expect_all(p);
}
TEST(Work, FullRecomputation) {
  Program p;
  p.recompute = "full";
  expect_all(p);
}
TEST(Work, WholeMicroseconds) {
  Program p;
  p.whole_microseconds = true;
  expect_all(p);
}

// All numbers are one: only the place tells the sequence from the width, and attention's width from the hidden one.
TEST(Work, EqualSizesAreToldByPlace) {
  Program p;
  p.tp = 1;
  p.mbs = 1;
  p.seq = p.hidden = p.ffn = 256;
  expect_all(p);
  p.sequences = false;
  expect_all(p);
}

TEST(Work, OneLayerAStage) {
  Program p;
  p.layers = 1;
  p.micro_batches = 1;
  expect_all(p);
}

// Without autograd numbers or shapes the order of layers is all there is; a lone layer's head is told by the loss.
TEST(Work, PlacesByOrderAlone) {
  Program p;
  Dims given;
  given.seq = 64, given.mbs = 2, given.hidden = 256, given.ffn = 768;
  given.heads = given.kv_heads = 8, given.head_dim = 32, given.vocab = 2048;
  for (const bool gated : {false, true}) {
    for (const bool shapes : {false, true}) {
      for (const std::int64_t layers : {1, 2, 3}) {
        SCOPED_TRACE("gated " + std::to_string(gated) + " shapes " + std::to_string(shapes) + " layers " +
                     std::to_string(layers));
        p.sequences = false;
        p.whole_microseconds = true;
        p.gated = gated;
        p.shapes = shapes;
        p.layers = layers;
        expect_all(p, given);
      }
    }
  }
}

// Without shapes the dimensions are said by hand; the order of the layers still tells what is what.
TEST(Work, WithoutShapesDimensionsAreGiven) {
  Program p;
  p.shapes = false;
  ProgramTrace made(p);
  TraceSet set;
  set.ranks.push_back(made.finish());
  const ModelShape none = recognise(set, p.tp);
  EXPECT_EQ(none.dims.hidden, 0);
  EXPECT_EQ(none.confidence, 0);
  EXPECT_EQ(none.doubts.size(), 7u);
  for (const Work& w : recognise_work(set.ranks[0], none).kinds)
    EXPECT_TRUE(w.kind == WorkKind::unknown || w.kind == WorkKind::fixed || w.parameters) << text(w);

  Dims given;
  given.seq = 64, given.mbs = 2, given.hidden = 256, given.ffn = 768;
  given.heads = given.kv_heads = 8, given.head_dim = 32, given.vocab = 2048;
  expect_all(p, given);
}

TEST(Work, GivenDimensionsWinAndContradictionsAreDoubts) {
  ProgramTrace made{Program{}};
  TraceSet set;
  set.ranks.push_back(made.finish());
  Dims given;
  given.hidden = 512;
  const ModelShape m = recognise(set, 2, given);
  EXPECT_EQ(m.dims.hidden, 512);
  ASSERT_EQ(m.doubts.size(), 1u);
  EXPECT_EQ(m.doubts[0], "hidden: said to be 512, the traces tell 256");
  ASSERT_EQ(m.contradictions.size(), 1u) << "all shapes agree";
  EXPECT_EQ(m.contradictions[0], "--layout says hidden=512, the shapes in the traces 256");
  EXPECT_FALSE(recognise_model({}, 1, 1, {}).has_value());
  EXPECT_FALSE(recognise_model(set, 0, 1, {}).has_value());
}

// ---- simulated jobs ----

bool at_hand(const fs::path& path) {
  if (fs::exists(path)) return true;
  std::cout << "SKIP: no " << path.string() << "\n";
  return false;
}

// The sizes of a known work, computed with the dimensions, are those that the trace has.
void expect_recorded_sizes(const RankTrace& t, const ModelShape& m, const TaskWork& w) {
  const Operators o = read_operators(t);
  double known = 0, all = 0;
  int wrong = 0;
  for (std::uint32_t i = 0; i < t.ops.size(); ++i) {
    if (!is_gpu_task(t.ops.kind[i]) || is_communication(t, OpId{i})) continue;
    const auto dur = static_cast<double>(t.ops.dur[i]);
    all += dur;
    if (w.kinds[w.of_op[i]].kind != WorkKind::unknown) known += dur;
  }
  for (const Launch& l : o.launches) {
    const Work& k = w.kinds[w.of_op[l.task]];
    if (k.kind == WorkKind::unknown || k.kind == WorkKind::fixed || k.parameters || l.op == kNone) continue;
    const auto value = [&](const Term& x) { return x.value(m.dims); };
    bool same = true;
    if (k.kind == WorkKind::gemm) {
      const Gemm g = o.gemm(l.op);
      if (g.m == 0) continue;
      same = value(k.m) == static_cast<double>(g.m) && value(k.n) == static_cast<double>(g.n) &&
             value(k.k) == static_cast<double>(g.k) && value(k.batch) == static_cast<double>(g.batch);
    } else if (k.kind == WorkKind::memory && t.ops.kind[l.task] != OpKind::kernel) {
      const auto bytes = static_cast<double>(t.copy_args.bytes[t.ops.extra[l.task]]);
      same = false;
      for (const double e : {1.0, 2.0, 4.0, 8.0}) same = same || value(k.m) * e == bytes;
    } else if (k.kind == WorkKind::memory) {
      const std::vector<Tensor>& tensors = o.tensors(l.op);
      if (tensors.empty() || (o.flags(l.op) & NameFlags::embedding) != 0 ||
          t.name_of(OpId{l.op}) == "aten::index_select")
        continue;
      same = false;
      for (const Tensor& x : tensors) same = same || value(k.m) == elements_of(x);
    }
    if (!same && wrong++ < 5) ADD_FAILURE() << t.name_of(OpId{l.task}) << " in " << o.name(l.op) << ": " << text(k);
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(known, 0.98 * all);
}

TraceSet load(const fs::path& set, const std::vector<int>& ranks) {
  std::vector<std::string> files;
  for (const int r : ranks) files.push_back((set / ("rank-" + std::to_string(r) + ".json.gz")).string());
  auto t = import_traces(files);
  EXPECT_TRUE(t.has_value()) << t.error().line();
  return std::move(*t);
}

TEST(WorkOfSimulatedJobs, DimensionsAndSizes) {
  struct Case {
    const char* set;
    std::vector<int> ranks;
    double hidden, ffn, heads, vocab;
  };
  // vocab: padded to multiples of 128 a rank, as Megatron does
  for (const Case& c : {Case{"gpt-small", {0, 4}, 2048, 8192, 16, 50432}, Case{"gpt3-15b", {8}, 6144, 12288, 48, 51200},
                        Case{"gpt-skewed", {0, 15}, 3072, 12288, 24, 50432}}) {
    SCOPED_TRACE(c.set);
    const fs::path path = kData / "oracle" / c.set / "base";
    if (!at_hand(path)) GTEST_SKIP();
    const TraceSet set = load(path, c.ranks);
    const ModelShape m = recognise(set, 2);
    EXPECT_EQ(m.dims.seq, 2048);
    EXPECT_EQ(m.dims.mbs, 1);
    EXPECT_EQ(m.dims.hidden, c.hidden);
    EXPECT_EQ(m.dims.ffn, c.ffn);
    EXPECT_EQ(m.dims.heads, c.heads);
    EXPECT_EQ(m.dims.kv_heads, c.heads);
    EXPECT_EQ(m.dims.head_dim, 128);
    EXPECT_EQ(m.dims.vocab, c.vocab);
    EXPECT_EQ(m.recompute, "none");
    EXPECT_EQ(m.tied_embedding, 1);
    EXPECT_EQ(m.confidence, 1);
    EXPECT_TRUE(m.doubts.empty());
    for (const RankTrace& t : set.ranks) expect_recorded_sizes(t, m, recognise_work(t, m));
  }
}

// The same program under another width: task by task the same terms. The order of launches is the program's.
TEST(WorkOfSimulatedJobs, TermsDoNotDependOnTheSizes) {
  const fs::path small = kData / "oracle/gpt-small";
  if (!at_hand(small / "base") || !at_hand(small / "hidden4096")) GTEST_SKIP();
  for (const int rank : {0, 4}) {
    std::vector<std::vector<Work>> works;
    for (const char* run : {"base", "hidden4096"}) {
      const TraceSet set = load(small / run, {rank});
      // a stage alone tells the vocabulary all the same: the first has the embedding, the last the head
      const ModelShape m = recognise(set, 2);
      const TaskWork w = recognise_work(set.ranks[0], m);
      expect_recorded_sizes(set.ranks[0], m, w);
      works.emplace_back();
      for (const Launch& l : read_operators(set.ranks[0]).launches) {
        const Work& k = w.kinds[w.of_op[l.task]];
        // buckets of gradients and chunks of parameters are cut by size
        if (!k.parameters && !is_communication(set.ranks[0], OpId{l.task})) works.back().push_back(k);
      }
    }
    ASSERT_EQ(works[0].size(), works[1].size());
    int wrong = 0;
    for (std::size_t i = 0; i < works[0].size(); ++i)
      if (!(works[0][i] == works[1][i]) && wrong++ < 5)
        ADD_FAILURE() << "task " << i << ": " << text(works[0][i]) << "\n  and " << text(works[1][i]);
    EXPECT_EQ(wrong, 0);
  }
}

// Real traces: one without shapes, one that a compiler took apart. Nothing is made up for what they do not tell.
TEST(WorkOfRealTraces, WhatIsNotToldIsADoubt) {
  const fs::path traces = kData / "traces";
  if (!at_hand(traces / "megatron-tp2") || !at_hand(traces / "nanogpt-8xh100")) GTEST_SKIP();
  const TraceSet megatron = load(traces / "megatron-tp2", {0});
  const ModelShape none = recognise(megatron, 2);
  EXPECT_EQ(none.dims.hidden, 0);
  EXPECT_EQ(none.dims.vocab, 0);
  EXPECT_EQ(none.confidence, 0);
  const TraceSet nano = load(traces / "nanogpt-8xh100", {0});
  const ModelShape m = recognise(nano, 1);
  EXPECT_EQ(m.dims.hidden, 768);
  EXPECT_EQ(m.dims.heads, 6);
  EXPECT_EQ(m.dims.ffn, 0);
  EXPECT_EQ(m.dims.vocab, 0);
  EXPECT_LT(m.confidence, 0.5);
  EXPECT_FALSE(m.doubts.empty());
}

}  // namespace
}  // namespace orrery
