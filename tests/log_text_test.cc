// Logs of any kind become rows: bad bytes, long lines, bars that redraw themselves, ranks mixed line by line.
#include "importers/log_text.h"

#include <gtest/gtest.h>

#include "log_helpers.h"

namespace orrery::test {
namespace {

std::string steps(int from, int to) {
  std::string s;
  for (int i = from; i < to; ++i) s += "step " + std::to_string(i) + " loss 2." + std::to_string(100 + i) + "\n";
  return s;
}

TEST(LogText, LinesRanksAndTextOfRows) {
  const LogTable t =
      read_text_log("hello\n[rank4]: KeyError: 'a'\nnode7: OSError: [Errno 5] Input/output error: 'x'\n");
  ASSERT_EQ(t.rows.size(), 2u);
  EXPECT_EQ(t.rows.line[0], 2u);
  EXPECT_EQ(t.rows.rank[0], 4);
  EXPECT_EQ(t.rows.text[0], "KeyError: 'a'");
  EXPECT_EQ(t.rows.line[1], 3u);
  EXPECT_EQ(t.rows.node[1], "node7");
  EXPECT_EQ(t.files[0].lines, 3u);
}

TEST(LogText, LineEndsColoursAndNoFinalNewline) {
  for (const char* text : {"a\r\n\x1b[31mKeyError: 'a'\x1b[0m\r\n", "a\nKeyError: 'a'", "a\nKeyError: 'a'\n"}) {
    const LogTable t = read_text_log(text);
    ASSERT_EQ(t.rows.size(), 1u) << text;
    EXPECT_EQ(t.rows.line[0], 2u);
    EXPECT_EQ(t.rows.text[0], "KeyError: 'a'");
    EXPECT_EQ(t.files[0].lines, 2u);
  }
}

TEST(LogText, ABarThatRedrawsItselfIsOneLine) {
  std::string bar;
  for (int i = 0; i < 1000; ++i) bar += " " + std::to_string(i / 10) + "%|##| " + std::to_string(i) + "/1000\r";
  const LogTable t = read_text_log(bar + "[rank2]: KeyError: 'a'\nnext\n");
  ASSERT_EQ(t.rows.size(), 1u);
  EXPECT_EQ(t.rows.line[0], 1u);
  EXPECT_EQ(t.rows.rank[0], 2);
  EXPECT_EQ(t.rows.text[0], "KeyError: 'a'");
}

TEST(LogText, BinaryJunkIsReadPast) {
  std::string junk(5000, '\0');
  for (std::size_t i = 0; i < junk.size(); ++i) junk[i] = static_cast<char>(i * 37 % 256);
  const LogTable t = read_text_log(junk + "\nKeyError: 'a'\n");
  ASSERT_EQ(t.rows.size(), 1u);
  EXPECT_EQ(t.rows.text[0], "KeyError: 'a'");
  ASSERT_EQ(t.notes.rows.size(), 1u);
  EXPECT_EQ(t.notes.rows[0].name, "binary-bytes");
}

TEST(LogText, ALineLongerThanABlockIsReadInParts) {
  LogReadOptions small;
  small.block = 4096;
  const LogTable t = read_text_log("a\n" + std::string(50000, 'x') + "\nKeyError: 'a'\n", small);
  EXPECT_EQ(t.files[0].lines, 3u);
  ASSERT_EQ(t.rows.size(), 1u);
  EXPECT_EQ(t.rows.line[0], 3u);
  ASSERT_FALSE(t.notes.rows.empty());
  EXPECT_EQ(t.notes.rows[0].name, "line-cut");
  EXPECT_GE(t.notes.rows[0].count, 1u);
}

// However the text falls into blocks, the rows are the same.
TEST(LogText, BlocksDoNotMatter) {
  const std::string text = steps(0, 40) +
                           "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/d/a.py\", line 3, in f\n"
                           "[rank1]:     raise ValueError(x)\n[rank1]: ValueError: bad\n" +
                           steps(40, 42);
  const LogTable whole = read_text_log(text);
  ASSERT_EQ(whole.rows.size(), 1u);
  for (const std::size_t block : {300u, 512u, 1000u, 1400u}) {
    LogReadOptions options;
    options.block = block;
    const LogTable t = read_text_log(text, options);
    ASSERT_EQ(t.rows.size(), 1u) << block;
    EXPECT_EQ(t.rows.line, whole.rows.line);
    EXPECT_EQ(t.rows.text, whole.rows.text);
    EXPECT_EQ(t.rows.steps_before, whole.rows.steps_before);
    EXPECT_EQ(t.steps.line, whole.steps.line);
    EXPECT_EQ(t.files[0].lines, whole.files[0].lines);
  }
}

TEST(LogText, Utf16IsReadByItsMark) {
  std::string text = "\xff\xfe";
  for (const char c : std::string("a\nKeyError: 'a'\n")) text += std::string(1, c) + '\0';
  const LogTable t = read_text_log(text);
  ASSERT_EQ(t.rows.size(), 1u);
  EXPECT_EQ(t.rows.line[0], 2u);
}

// The exception belongs to the frame above it, rank by rank, also where ranks are mixed; what a line of source would
// raise has not been raised.
TEST(LogText, ATracebackIsAUnit) {
  const LogTable t = read_text_log(
      "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
      "[rank0]:   File \"/d/train.py\", line 3, in main\n[rank0]:     raise RuntimeError(\"CUDA out of memory\")\n"
      "[rank1]:   File \"/d/site-packages/torch/x.py\", line 9, in g\n[rank1]:     return f(x)\n"
      "[rank1]: ValueError: one\n[rank0]: RuntimeError: zero\n");
  ASSERT_EQ(t.rows.size(), 2u);
  EXPECT_EQ(t.rows.frame[0], "/d/site-packages/torch/x.py:g");
  EXPECT_EQ(t.rows.frame[1], "/d/train.py:main");
  EXPECT_EQ(t.rows.code[1], "raise RuntimeError(\"CUDA out of memory\")");
}

TEST(LogText, StepsOfManyTrainers) {
  const LogTable t = read_text_log(
      " iteration     9110/  500000 | elapsed time per iteration (ms): 5321.4 | lm loss: 1.913000E+00 | loss scale: "
      "1.0 | "
      "grad norm: 0.412 |\n"
      "{'loss': 0.6312, 'grad_norm': nan, 'learning_rate': 9.1e-06, 'epoch': 0.41}\n"
      "Epoch 0:  31%|###| 15502/50015 [11:02:44<24:11:19,  2.52s/it, loss=2.31]\n"
      "2024-11-24 02:35:28,531 INFO x -- tflops=229.64 step=642 loss=2.1725 loss_scale=16384.0 grad_norm={'0': 2.1}\n"
      "no step here: loss scale 5\n"
      " 33%|###   | 667/2002 [4:51:05<8:54:01, 26.24s/it]\n"
      "Running tokenizer on dataset:  33%|###   | 667/2002 [4:51:05<8:54:01, 26.24s/it]\n");
  ASSERT_EQ(t.steps.size(), 5u);
  EXPECT_EQ(t.steps.step, (std::vector<std::int64_t>{9110, -1, 15502, 642, 667}));
  EXPECT_LT(t.steps.seconds[4], 0);
  EXPECT_DOUBLE_EQ(t.steps.loss[0], 1.913);
  EXPECT_DOUBLE_EQ(t.steps.seconds[0], 5.3214);
  EXPECT_TRUE(t.steps.grad_norm[1] != t.steps.grad_norm[1]);
  EXPECT_DOUBLE_EQ(t.steps.loss[2], 2.31);
  EXPECT_DOUBLE_EQ(t.steps.seconds[2], 2.52);
  EXPECT_DOUBLE_EQ(t.steps.loss[3], 2.1725);
  const LogTable fast = read_text_log("step: 5 loss: 2.1 tps: 7654\nstep: 6 loss: 2.1 tps: 7654 step_time: 60\n");
  EXPECT_EQ(fast.steps.relative, (std::vector<std::uint8_t>{1, 0})) << "how fast is not how long";
  EXPECT_DOUBLE_EQ(fast.steps.seconds[1], 60);
}

// Steps of 100 s that say how many tokens a second they took: 20 minutes without one is no hang.
TEST(LogText, AThroughputIsNotTakenForTheTimeOfAStep) {
  std::string text;
  const auto at = [](int seconds) {
    char time[64];
    std::snprintf(time, sizeof time, "2024-11-24 %02d:%02d:%02d,000 INFO ", 2 + seconds / 3600, seconds / 60 % 60,
                  seconds % 60);
    return std::string(time);
  };
  for (int i = 0; i < 20; ++i) text += at(100 * i) + "step: " + std::to_string(i) + " loss: 2.1 tps: 7654\n";
  text += at(1900 + 1200) + "still evaluating\n";
  for (const Evidence& e : diagnose_text(text).evidence) EXPECT_NE(e.why, "no-progress") << e.text;
  text += at(1900 + 2400) + "still evaluating\n";
  bool hangs = false;
  for (const Evidence& e : diagnose_text(text).evidence) hangs = hangs || e.why == "no-progress";
  EXPECT_TRUE(hangs);
}

// A flood of one message, with steps between, keeps so many first and so many last rows, whatever its length.
TEST(LogText, RowsAreBounded) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "[rank1]: KeyError: 'k" + std::to_string(i) + "'\n";
  LogReadOptions options;
  options.most_rows = 10;
  const LogTable t = read_text_log(text, options);
  ASSERT_EQ(t.rows.size(), 10u);
  EXPECT_EQ(t.rows.line.front(), 1u);
  EXPECT_EQ(t.rows.line[4], 5u);
  EXPECT_EQ(t.rows.line[5], 19996u);
  EXPECT_EQ(t.rows.line.back(), 20000u);
  LogReadOptions few;
  few.most_steps = 100;
  const LogTable s = read_text_log(steps(0, 5000), few);
  EXPECT_LE(s.steps.size(), 100u);
  EXPECT_EQ(s.steps.step.back(), 4999);
  EXPECT_EQ(s.files[0].steps, 5000u);
}

TEST(LogText, ShapesCountLinesThatDifferInNumbers) {
  const LogTable t = read_text_log("read block 7 of 9\nread block 8 of 9\nread file 8 of 9\n");
  ASSERT_EQ(t.shapes.size(), 2u);
  EXPECT_EQ(t.shapes.count[0], 2u);
  EXPECT_EQ(t.shapes.text[1], "read file 8 of 9");
}

}  // namespace
}  // namespace orrery::test
