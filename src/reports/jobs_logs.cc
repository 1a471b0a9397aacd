#include "reports/jobs_logs.h"

#include "reports/jobs.h"

namespace orrery {

void describe_progress(const RunProgress& run, std::vector<Section>& out) {
  Section s{.key = "run", .title = "The run", .single = true, .table = {}};
  s.table.columns = {{.key = "first_step", .title = "first step"},
                     {.key = "last_step", .title = "last step"},
                     {.key = "highest_step", .title = "highest step"},
                     {.key = "printed_steps", .title = "steps in the logs"},
                     {.key = "wall_s", .title = "from first to last step s", .digits = 1},
                     {.key = "step_s", .title = "a usual step s", .digits = 3},
                     {.key = "rollbacks"},
                     {.key = "lost_s", .title = "done again s", .digits = 1},
                     {.key = "down_s", .title = "standing still s", .digits = 1},
                     {.key = "ettr_pct", .title = "ETTR %", .digits = 2}};
  // Without any time, or without those of the lines, what is not known is not zero.
  const bool lasts = run.wall_s > 0;
  s.table.rows.push_back({run.first_step, run.last_step, run.highest_step, cell_of_count(run.steps_done),
                          cell_if(lasts, run.wall_s), cell_if(lasts, run.step_s), cell_of_count(run.rollbacks.size()),
                          cell_if(lasts, run.lost_s), cell_if(lasts && run.timed, run.down_s),
                          cell_if(lasts && run.timed, run.ettr_pct())});
  out.push_back(std::move(s));
  Section r{.key = "rollbacks", .title = "Rollbacks", .table = {}};
  r.table.columns = {{.key = "at_s", .title = "after s", .digits = 1},
                     {.key = "from_step", .title = "from step"},
                     {.key = "to_step", .title = "to step"},
                     {.key = "lost_steps", .title = "lost steps"},
                     {.key = "lost_s", .title = "lost s", .digits = 1},
                     {.key = "down_s", .title = "down s", .digits = 1}};
  for (const Rollback& b : run.rollbacks)
    r.table.rows.push_back({cell_if(lasts, b.at_s), b.from_step, b.to_step, b.lost_steps, cell_if(lasts, b.lost_s),
                            cell_if(lasts && run.timed, b.down_s)});
  out.push_back(std::move(r));
  Section still{.key = "standstills", .title = "Standstills (a pause without a rollback)", .table = {}};
  still.table.columns = {{.key = "at_s", .title = "after s", .digits = 1},
                         {.key = "after_step", .title = "after step"},
                         {.key = "down_s", .title = "down s", .digits = 1}};
  for (const Standstill& b : run.standstills) still.table.rows.push_back({b.at_s, b.after_step, b.down_s});
  out.push_back(std::move(still));
  Section c{.key = "curve", .title = "", .table = {}};
  c.table.columns = {{.key = "s"}, {.key = "step"}};
  for (const auto& [at, step] : run.curve) c.table.rows.push_back({at, step});
  out.push_back(std::move(c));
}

Chart progress_chart(const RunProgress& run) {
  Chart c{.kind = Chart::Kind::lines, .title = "Progress"};
  c.x_title = "hours since the first step";
  c.y_title = "step";
  c.series = {{"step", {}, {}}};
  for (const auto& [at, step] : run.curve) {
    c.series[0].x.push_back(at / 3600);
    c.series[0].y.push_back(static_cast<double>(step));
  }
  return c;
}

void describe_trials(const std::vector<TrialLog>& trials, std::vector<Section>& out) {
  Section s{.key = "trials", .title = "Stages of evaluation trials", .table = {}};
  s.table.columns = {{.key = "trial"},
                     {.key = "load_s", .title = "load s", .digits = 1},
                     {.key = "inference_s", .title = "inference s", .digits = 1},
                     {.key = "metric_s", .title = "metric s", .digits = 1},
                     {.key = "total_s", .title = "total s", .digits = 1},
                     {.key = "load_pct", .title = "load %", .digits = 1},
                     {.key = "inference_pct", .title = "inference %", .digits = 1},
                     {.key = "metric_pct", .title = "metric %", .digits = 1},
                     {.key = "gpu_idle_pct", .title = "GPU idle %", .digits = 1}};
  const auto add = [&](const std::string& name, double load, double inference, double metric) {
    const double total = load + inference + metric;
    std::vector<Cell> row{name, load / 1000, inference / 1000, metric / 1000, total / 1000};
    for (const double part : {load, inference, metric, load + metric})
      row.push_back(cell_if(total > 0, 100 * part / std::max(1.0, total)));
    s.table.rows.push_back(std::move(row));
  };
  double load = 0, inference = 0, metric = 0;
  for (const TrialLog& t : trials) {
    add(t.file, static_cast<double>(t.load_ms), static_cast<double>(t.inference_ms), static_cast<double>(t.metric_ms));
    load += static_cast<double>(t.load_ms);
    inference += static_cast<double>(t.inference_ms);
    metric += static_cast<double>(t.metric_ms);
  }
  if (trials.size() > 1) add("ALL", load, inference, metric);
  out.push_back(std::move(s));
}

Chart trials_chart(const std::vector<TrialLog>& trials) {
  Chart c{.kind = Chart::Kind::bars,
          .title = "Stages of evaluation trials",
          .caption = "the GPU is idle while it loads and scores"};
  c.x_title = "s";
  c.series = {{"load", {}, {}}, {"inference", {}, {}}, {"metric", {}, {}}};
  for (std::size_t i = 0; i < std::min<std::size_t>(trials.size(), 40); ++i) {
    const TrialLog& t = trials[i];
    c.labels.push_back(t.file.substr(t.file.find_last_of('/') + 1));
    c.series[0].y.push_back(static_cast<double>(t.load_ms) / 1000);
    c.series[1].y.push_back(static_cast<double>(t.inference_ms) / 1000);
    c.series[2].y.push_back(static_cast<double>(t.metric_ms) / 1000);
  }
  return c;
}

}  // namespace orrery
