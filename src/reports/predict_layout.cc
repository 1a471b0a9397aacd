// The configuration before and after, and how much work it does in a step.
#include <algorithm>
#include <cmath>

#include "reports/predict_parts.h"
#include "whatif/target.h"

namespace orrery {

void add_column(Section& s, Column column, Cell cell) {
  s.table.columns.push_back(std::move(column));
  if (s.table.rows.empty()) s.table.rows.emplace_back();
  s.table.rows.front().push_back(std::move(cell));
}

Section layout_section(const PredictReportOptions& options) {
  Section layout{.key = "layout", .title = "", .single = true, .table = {}};
  const auto add_layout = [&](const std::string& side, const JobLayout& l, bool with_confidence) {
    add_column(layout, {.key = side + ".tp"}, l.tp);
    add_column(layout, {.key = side + ".pp"}, l.pp);
    add_column(layout, {.key = side + ".dp"}, l.dp);
    add_column(layout, {.key = side + ".cp"}, l.cp);
    add_column(layout, {.key = side + ".ep"}, l.ep);
    add_column(layout, {.key = side + ".num_microbatches"}, l.num_microbatches > 0 ? Cell{l.num_microbatches} : Cell{});
    add_column(layout, {.key = side + ".layers"}, l.layers > 0 ? Cell{l.layers} : Cell{});
    add_column(layout, {.key = side + ".distributed_optimizer"}, l.distributed_optimizer);
    if (with_confidence) add_column(layout, {.key = side + ".confidence", .digits = 2}, l.confidence);
  };
  const auto add_shape = [&](const std::string& side, const JobShape* shape) {
    if (shape == nullptr) return;
    const Dims& m = shape->dims;
    for (const auto& [key, value] : std::initializer_list<std::pair<const char*, double>>{{"hidden", m.hidden},
                                                                                          {"ffn", m.ffn},
                                                                                          {"heads", m.heads},
                                                                                          {"kv_heads", m.kv_heads},
                                                                                          {"head_dim", m.head_dim},
                                                                                          {"seq_length", m.seq},
                                                                                          {"micro_batch_size", m.mbs},
                                                                                          {"vocab", m.vocab}})
      add_column(layout, {.key = side + "." + key},
                 value > 0 ? Cell{static_cast<std::int64_t>(std::llround(value))} : Cell{});
    add_column(layout, {.key = side + ".schedule"}, schedule_text(*shape));
    add_column(layout, {.key = side + ".recompute"}, std::string(name_of(shape->recompute)));
    add_column(layout, {.key = side + ".sequence_parallel"}, m.sequence_parallel);
    add_column(layout, {.key = side + ".gpus_per_node"}, shape->layout.gpus_per_node);
  };
  if (options.layout == nullptr) return layout;
  add_layout("base", *options.layout, true);
  add_shape("base", options.shape);
  add_layout("new", options.new_layout != nullptr ? *options.new_layout : *options.layout, false);
  add_shape("new", options.new_shape != nullptr ? options.new_shape : options.shape);
  return layout;
}

Section layout_for_people(const Section& layout) {
  Section s{.key = "layout", .title = "Configuration", .table = {}};
  s.table.columns = {
      {.key = "of the job", .text_only = true}, {.key = "base", .text_only = true}, {.key = "new", .text_only = true}};
  const auto& columns = layout.table.columns;
  const auto find = [&](const std::string& key) -> Cell {
    for (std::size_t c = 0; c < columns.size(); ++c)
      if (columns[c].key == key) return layout.table.rows.front()[c];
    return {};
  };
  for (const Column& c : columns) {
    if (!c.key.starts_with("base.")) continue;
    std::string name = c.key.substr(5);
    const Cell before = find(c.key), after = find("new." + name);
    if ((name == "cp" || name == "ep") && before == Cell{std::int64_t{1}} && after == before) continue;
    std::replace(name.begin(), name.end(), '_', ' ');
    s.table.rows.push_back({name, before, after});
  }
  return s;
}

Throughput throughput_of(const JobLayout* layout, const JobShape* shape, double iteration_ms) {
  Throughput t;
  if (layout == nullptr) return t;
  t.gpus = layout->world;
  if (shape == nullptr || shape->dims.mbs <= 0 || layout->num_microbatches <= 0) return t;
  t.global_batch = std::llround(shape->dims.mbs) * layout->num_microbatches * layout->dp;
  if (shape->dims.seq > 0 && iteration_ms > 0)
    t.tokens_per_s = static_cast<double>(*t.global_batch) * shape->dims.seq / iteration_ms * 1000;
  return t;
}

Section edits_for_people(const std::vector<AppliedEdit>& edits) {
  constexpr std::size_t kWidth = 52;
  Section s{.key = "edits", .title = "Edits", .table = {}};
  s.table.columns = {{.key = "edit", .text_only = true},
                     {.key = "nodes changed", .text_only = true},
                     {.key = "edges changed", .text_only = true},
                     {.key = "assumes", .text_only = true}};
  for (const AppliedEdit& e : edits) {
    std::vector<Cell> row{e.edit.name + (e.edit.value.empty() ? "" : " " + e.edit.value),
                          static_cast<std::int64_t>(e.changed.nodes), static_cast<std::int64_t>(e.changed.edges)};
    std::string_view rest = e.assumes;
    do {
      std::size_t cut = rest.size() <= kWidth ? rest.size() : rest.rfind(' ', kWidth);
      if (cut == std::string_view::npos) cut = kWidth;
      row.emplace_back(std::string(rest.substr(0, cut)));
      rest.remove_prefix(std::min(rest.size(), cut + 1));
      s.table.rows.push_back(std::move(row));
      row.assign(3, std::string());
    } while (!rest.empty());
  }
  return s;
}

}  // namespace orrery
