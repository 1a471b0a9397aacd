// What an edit of one dimension leaves as it is, and the options that would change it too.
#include <cmath>

#include "whatif/target.h"

namespace orrery {
namespace {

std::string number(double x) { return std::to_string(static_cast<std::int64_t>(std::llround(x))); }

// `part` in the ratio that it has to the old whole; 0 where that is no whole number.
double in_ratio(double part, double before, double after) {
  const double x = part * after / before;
  return x == std::floor(x) ? x : 0;
}

}  // namespace

std::vector<LeftAsItIs> left_as_it_is(const JobShape& base, const JobShape& next,
                                      const std::map<std::string, std::string>& asked) {
  std::vector<LeftAsItIs> out;
  const Dims &a = base.dims, &b = next.dims;
  const JobLayout &x = base.layout, &y = next.layout;
  const auto has = [&](const char* name) { return asked.contains(name); };
  if (a.hidden != b.hidden && a.hidden > 0) {
    LeftAsItIs left{"dimensions-stay", "--hidden " + number(b.hidden), {}, {}};
    if (!has("--ffn") && a.ffn > 0) {
      left.stays += "ffn " + number(a.ffn);
      if (const double n = in_ratio(a.ffn, a.hidden, b.hidden); n > 0) left.options += "--ffn " + number(n);
    }
    if (!has("--heads") && !has("--head-dim") && a.heads > 0) {
      left.stays +=
          (left.stays.empty() ? "" : ", ") + std::string("heads ") + number(a.heads) + " of " + number(a.head_dim);
      const double heads = in_ratio(a.heads, a.hidden, b.hidden), wide = in_ratio(a.head_dim, a.hidden, b.hidden);
      const std::string space = left.options.empty() ? "" : " ";
      if (heads > 0)
        left.options += space + "--heads " + number(heads);
      else if (wide > 0)
        left.options += space + "--head-dim " + number(wide);
    }
    if (!left.stays.empty()) out.push_back(std::move(left));
  } else if (a.heads * a.head_dim != b.heads * b.head_dim && !has("--hidden") && a.hidden == a.heads * a.head_dim) {
    LeftAsItIs left{"dimensions-stay",
                    has("--heads") ? "--heads " + number(b.heads) : "--head-dim " + number(b.head_dim),
                    "hidden " + number(a.hidden),
                    {}};
    if (has("--heads") && !has("--head-dim")) {
      left.stays += ", head dimension " + number(a.head_dim);
      if (const double n = in_ratio(a.head_dim, b.heads, a.heads); n > 0) left.options = "--head-dim " + number(n);
    }
    if (left.options.empty()) left.options = "--hidden " + number(b.heads * b.head_dim);
    out.push_back(std::move(left));
  }
  // micro-batches of a pipeline stay, so the batch goes with the replicas
  if (x.dp != y.dp && a.mbs > 0 && x.num_microbatches > 0 && !has("--num-microbatches") && !has("--micro-batch-size") &&
      !has("--global-batch-size")) {
    const double batch = a.mbs * static_cast<double>(x.num_microbatches * x.dp);
    LeftAsItIs left{"batch-changes",
                    "--dp " + std::to_string(y.dp),
                    "micro-batches of a pipeline " + std::to_string(x.num_microbatches) + " (the batch becomes " +
                        number(batch * static_cast<double>(y.dp) / static_cast<double>(x.dp)) + " sequences)",
                    {}};
    if (std::fmod(batch, b.mbs * static_cast<double>(y.dp)) == 0) left.options = "--global-batch-size " + number(batch);
    out.push_back(std::move(left));
  }
  return out;
}

}  // namespace orrery
