#include "cluster/progress.h"

#include <algorithm>

#include "base/median.h"

namespace orrery {

RunProgress run_progress(const std::vector<ProgressLog>& logs) {
  RunProgress p;
  std::vector<ProgressPoint> points;
  for (const ProgressLog& log : logs) points.insert(points.end(), log.points.begin(), log.points.end());
  if (points.empty()) return p;
  p.timed = std::all_of(logs.begin(), logs.end(), [](const ProgressLog& log) { return log.timed; });
  const std::int64_t begin = points.front().at_ms;
  std::vector<double> paces;  // seconds a step, of printed steps one after the other
  for (std::size_t i = 1; i < points.size(); ++i) {
    const std::int64_t steps = points[i].step - points[i - 1].step;
    if (steps > 0 && points[i].at_ms > points[i - 1].at_ms)
      paces.push_back(static_cast<double>(points[i].at_ms - points[i - 1].at_ms) / 1000 / static_cast<double>(steps));
  }
  if (!paces.empty()) p.step_s = median(paces);
  p.first_step = points.front().step;
  p.last_step = points.back().step;
  p.steps_done = points.size();
  std::vector<std::size_t> lineage;  // points that led to where the run is
  std::vector<bool> kink(points.size());
  const auto seconds = [&](std::size_t i) { return static_cast<double>(points[i].at_ms - begin) / 1000; };
  for (std::size_t i = 0; i < points.size(); ++i) {
    p.highest_step = std::max(p.highest_step, points[i].step);
    if (i == 0) {
      lineage.push_back(i);
      continue;
    }
    const double pause = seconds(i) - seconds(i - 1);
    if (points[i].step + 2 <= points[i - 1].step) {
      // What was done from the step it went back to is lost.
      while (!lineage.empty() && points[lineage.back()].step >= points[i].step) lineage.pop_back();
      Rollback r;
      r.at_s = seconds(i);
      r.from_step = points[i - 1].step;
      r.to_step = points[i].step;
      r.lost_steps = r.from_step - r.to_step + 1;
      const std::size_t kept = lineage.empty() ? 0 : lineage.back();
      r.lost_s = std::max(0.0, seconds(i - 1) - seconds(kept));
      r.down_s = std::max(0.0, pause - p.step_s);
      p.lost_s += r.lost_s;
      p.down_s += r.down_s;
      p.rollbacks.push_back(r);
      kink[i] = kink[i - 1] = true;
    } else if (const double usual =
                   p.step_s * static_cast<double>(std::max<std::int64_t>(1, points[i].step - points[i - 1].step));
               pause > 60 && pause > 20 * usual) {
      p.down_s += pause - usual;
      p.standstills.push_back({seconds(i), points[i - 1].step, pause - usual});
      kink[i] = kink[i - 1] = true;
    }
    lineage.push_back(i);
  }
  p.wall_s = seconds(points.size() - 1);
  const std::size_t each = std::max<std::size_t>(1, points.size() / 1500);
  for (std::size_t i = 0; i < points.size(); ++i)
    if (i % each == 0 || kink[i] || i + 1 == points.size()) p.curve.emplace_back(seconds(i), points[i].step);
  return p;
}

}  // namespace orrery
