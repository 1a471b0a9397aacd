#include "supervisor/checkpoint_interval.h"

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

// Failures at the middle of equally likely classes of age: the mean over them is smooth in the interval. Their ages
// count from the first training on, since how long a start takes changes no choice.
constexpr int kAges = 20'000;

double mean_kept(const SaveRhythm& rhythm, double mtbf_s) {
  double sum = 0;
  for (int i = 0; i < kAges; ++i) sum += progress_at(rhythm, -mtbf_s * std::log((i + 0.5) / kAges)).kept;
  return sum / kAges;
}

}  // namespace

RhythmProgress progress_at(const SaveRhythm& r, double age) {
  RhythmProgress p;
  p.starting = std::min(age, r.startup);
  const double at = age - p.starting;
  const double first = r.interval + r.block;  // no earlier save to wait for
  if (at < first) {
    p.trained = std::min(at, r.interval);
  } else {
    const double saves = 1 + std::floor((at - first) / r.period());
    const double since = at - first - (saves - 1) * r.period();
    p.trained = saves * r.interval + std::min(since, r.interval);
    const double counted = at - first - r.persist;
    if (counted >= 0) p.kept = r.interval * (1 + std::floor(counted / r.period()));
  }
  p.saving = at - p.trained;
  return p;
}

double young_interval_s(double block_s, double mtbf_s) { return std::sqrt(2 * block_s * mtbf_s); }

double daly_interval_s(double block_s, double mtbf_s) {
  if (block_s >= 2 * mtbf_s) return mtbf_s;
  const double x = block_s / (2 * mtbf_s);
  return std::sqrt(2 * block_s * mtbf_s) * (1 + std::sqrt(x) / 3 + x / 9) - block_s;
}

double best_interval_s(SaveRhythm rhythm, double mtbf_s) {
  rhythm.startup = 0;
  const auto kept = [&](double log_interval) {
    rhythm.interval = std::exp(log_interval);
    return mean_kept(rhythm, mtbf_s);
  };
  // Steps of 15 % around Young's interval, and what storage takes: a kink, often the best, since shorter intervals make
  // training wait (they pay where runs hardly live longer). Then the parabola through the best and its neighbours, wide
  // enough that the steps of single failures do not show.
  const double least = std::log(std::max(1e-3 * rhythm.block, 1e-3));
  const double centre = std::max(least, std::log(std::max(1e-3, young_interval_s(rhythm.block, mtbf_s))));
  constexpr double kStep = 0.15;
  double best = centre, most = kept(centre);
  const auto consider = [&](double at) {
    if (const double k = kept(at); k > most) {
      most = k;
      best = at;
    }
  };
  for (int i = -40; i <= 20; ++i) consider(std::max(least, centre + i * kStep));
  const double kink = std::log(std::max(rhythm.persist, 1e-3));
  for (int i = -3; i <= 3; ++i) consider(std::max(least, kink + i * kStep));
  if (best <= least || std::abs(best - kink) < kStep) return std::exp(best);
  const double below = kept(best - kStep), above = kept(best + kStep), bend = below - 2 * most + above;
  return std::exp(bend < 0 ? best + 0.5 * kStep * (below - above) / bend : best);
}

}  // namespace orrery
