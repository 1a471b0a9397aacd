#include "importers/log_steps.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/text_match.h"

namespace orrery {
namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }
bool word_char(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || digit(c) || c == '_'; }

bool number_at(std::string_view s, std::size_t at, double& value, std::size_t* end = nullptr) {
  const auto [stop, error] = std::from_chars(s.data() + at, s.data() + s.size(), value);  // also nan, inf
  if (error == std::errc::result_out_of_range) value = std::numeric_limits<double>::infinity();
  if (error == std::errc::invalid_argument) return false;
  if (end != nullptr) *end = static_cast<std::size_t>(stop - s.data());
  return true;
}

// After the name of a quantity: quotes, blanks, ':' or '=', brackets and tensor(; at least one of them.
bool value_after(std::string_view s, std::size_t at, double& value) {
  const std::size_t from = at;
  while (at < s.size() && (s[at] == '\'' || s[at] == '"')) ++at;
  while (at < s.size() && s[at] == ' ') ++at;
  if (at < s.size() && (s[at] == ':' || s[at] == '=')) ++at;
  while (at < s.size() && s[at] == ' ') ++at;
  if (s.substr(at, 7) == "tensor(") at += 7;
  return at > from && at < s.size() && number_at(s, at, value);
}

bool read_loss(std::string_view s, double& loss) {
  for (std::size_t at = s.find("oss"); at != std::string_view::npos; at = s.find("oss", at + 3)) {
    if (at == 0 || (s[at - 1] != 'l' && s[at - 1] != 'L')) continue;
    if (at >= 2 && s[at - 2] == 'g') continue;  // gloss
    if (value_after(s, at + 3, loss)) return true;
  }
  return false;
}

std::int64_t read_step_number(std::string_view s, bool& named) {
  for (const std::string_view name : {"iteration", "step", "Step", "Iteration", "iter"}) {
    for (std::size_t at = s.find(name); at != std::string_view::npos; at = s.find(name, at + 1)) {
      if (at > 0 && word_char(s[at - 1]) && s[at - 1] != '_') continue;
      double value = 0;
      if (!value_after(s, at + name.size(), value) || !(value >= 0) || value > 1e15) continue;
      named = true;
      return static_cast<std::int64_t>(value);
    }
  }
  // a progress bar: 667/2002 [
  for (std::size_t at = s.find('/'); at != std::string_view::npos; at = s.find('/', at + 1)) {
    std::size_t from = at;
    while (from > 0 && digit(s[from - 1])) --from;
    std::size_t to = at + 1;
    while (to < s.size() && s[to] == ' ') ++to;
    const std::size_t digits = to;
    while (to < s.size() && digit(s[to])) ++to;
    if (from == at || to == digits || at - from > 15) continue;
    std::int64_t n = 0;
    std::from_chars(s.data() + from, s.data() + at, n);
    return n;
  }
  return -1;
}

double read_seconds(std::string_view s, bool& relative) {
  relative = false;
  double value = 0;
  std::size_t at = s.find("time per iteration (");
  if (at != std::string_view::npos) {
    const bool milli = s.substr(at + 20, 2) == "ms";
    const std::size_t close = s.find(')', at);
    if (close != std::string_view::npos && value_after(s, close + 1, value) && value >= 0)
      return milli ? value * 1e-3 : value;
  }
  for (const std::string_view unit : {"s/it", "it/s"}) {
    at = s.rfind(unit);
    if (at == std::string_view::npos) continue;
    std::size_t from = at;
    if (from > 0 && s[from - 1] == ' ') --from;
    const std::size_t last = from;
    while (from > 0 && (digit(s[from - 1]) || s[from - 1] == '.')) --from;
    if (from == last || !number_at(s.substr(0, last), from, value) || !(value > 0)) continue;
    return unit == "s/it" ? value : 1 / value;
  }
  for (const std::string_view name : {"step_time", "iter_time", "time_per_step", "time/iter", "sec/iter"}) {
    at = s.find(name);
    if (at != std::string_view::npos && value_after(s, at + name.size(), value) && value >= 0) return value;
  }
  // Only how fast: good for comparing steps with each other.
  for (const std::string_view name : {"samples per second", "samples/s", "samples/sec", "tokens per second", "tokens/s",
                                      "tokens_per_sec", "tokens/gpu/second)", "throughput", "wps", "tps", "TFLOPs"}) {
    at = s.find(name);
    if (at != std::string_view::npos && value_after(s, at + name.size(), value) && value > 0) {
      relative = true;
      return 1 / value;
    }
  }
  return -1;
}

double read_grad_norm(std::string_view s) {
  double value = 0;
  for (const std::string_view name : {"grad norm", "grad_norm", "gnorm", "gradient_norm"}) {
    const std::size_t at = s.find(name);
    if (at != std::string_view::npos && value_after(s, at + name.size(), value)) return value;
  }
  return -1;
}

// A bar of the training itself, which has no name or the name of an epoch: " 33%|###  | 667/2002
// [4:51:05<8:54:01, 26.24s/it]".
bool is_training_bar(std::string_view s) {
  const std::size_t percent = s.find("%|");
  if (percent == std::string_view::npos) return false;
  std::string_view name = s.substr(0, percent);
  while (!name.empty() && (digit(name.back()) || name.back() == ' ')) name.remove_suffix(1);
  while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  if (name.empty()) return true;
  for (const std::string_view known : {"Epoch", "epoch", "Train", "train", "Step", "step", "Iter"})
    if (name.substr(0, known.size()) == known) return true;
  return false;
}

// A bar of something else, which may show a loss of its own: "Validation DataLoader 0:  12%|#   | 5/40".
bool is_other_bar(std::string_view s) {
  const std::size_t percent = s.find("%|");
  if (percent == std::string_view::npos) return false;
  const std::string_view name = s.substr(std::min(s.find_first_not_of(' '), percent));
  for (const std::string_view other :
       {"Valid", "valid", "Eval", "eval", "Test", "test", "Sanity", "Predict", "predict"})
    if (name.substr(0, other.size()) == other) return true;
  return false;
}

}  // namespace

bool read_step(std::string_view message, StepValues& values) {
  values = {};
  if (is_other_bar(message)) return false;
  bool named = false;
  values.has_loss = read_loss(message, values.loss);
  values.step = read_step_number(message, named);
  values.seconds = read_seconds(message, values.relative);
  values.grad_norm = read_grad_norm(message);
  if (values.has_loss || (named && values.seconds >= 0)) return true;
  if (values.step <= 0 || !is_training_bar(message)) return false;  // at 0 it was drawn, and nothing done
  values.seconds = -1;  // what a bar says is a mean of many steps, and of whatever came between them
  return true;
}

}  // namespace orrery
