#include "bench/result_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace orrery {
namespace {

constexpr std::array<std::string_view, 9> kStates = {
    "running", "done", "out-of-memory", "hang", "time-limit", "crashed", "missing-package", "refused", "interrupted"};
constexpr int kApplication = 0x6f726263;  // "orbc"

constexpr const char* kSchema = R"sql(
create table environments(id integer primary key, json text not null unique);
create table runs(
  id integer primary key, run text not null, spec text not null, hash text not null, kind integer not null,
  attempt integer not null, batch integer not null, state text not null,
  reason text not null default '', category text not null default '', root_cause text not null default '',
  advice text not null default '', started real not null, seconds real not null default 0, startup_s real,
  pid integer not null default 0, pid_started integer not null default 0, host text not null,
  slurm_job text not null default '', directory text not null, environment integer references environments(id),
  steps integer not null default 0, mean_ms real, median_ms real, sd_ms real, cpu_ms real, prefill_ms real,
  decode_ms real, tokens_per_s real, device_memory_gib real, device_allocated_gib real, host_memory_gib real,
  host_base_gib real,
  device_power_w real, host_power_w real, device_mhz real, host_mhz real, load real, estimated_step_ms real,
  estimated_memory_gib real, overhead_s real not null default 0, after_s real not null default 0,
  traced integer not null default 0);
create index runs_by_hash on runs(hash);
create table steps(run integer not null references runs(id), step integer not null, ms real not null, cpu_ms real,
  primary key(run, step)) without rowid;
create table shares(run integer not null references runs(id), level text not null, name text not null,
  phase text not null, cpu_ms real not null, gpu_ms real not null, pct real not null);
create table operators(run integer not null references runs(id), operation text not null, shape text not null,
  us real, tflops real, gb_per_s real);
)sql";

constexpr const char* kColumns =
    "id, run, spec, hash, kind, attempt, batch, state, reason, category, root_cause, advice, started, seconds, "
    "startup_s, pid, pid_started, host, slurm_job, directory, environment, steps, mean_ms, median_ms, sd_ms, cpu_ms, "
    "prefill_ms, decode_ms, tokens_per_s, device_memory_gib, device_allocated_gib, host_memory_gib, host_base_gib, "
    "device_power_w, host_power_w, device_mhz, host_mhz, load, estimated_step_ms, estimated_memory_gib, overhead_s, "
    "after_s, traced";

void put(Statement& s, int at, const std::optional<double>& value) {
  if (value && std::isfinite(*value)) {
    s.bind(at, *value);
  } else {
    s.bind_null(at);
  }
}

std::optional<double> maybe(const Statement& s, int at) {
  return s.is_null(at) ? std::nullopt : std::optional(s.number(at));
}

RunState state_of(std::string_view name) {
  const auto found = std::find(kStates.begin(), kStates.end(), name);
  return found == kStates.end() ? RunState::interrupted : static_cast<RunState>(found - kStates.begin());
}

}  // namespace

std::string_view name_of(RunState s) { return kStates[static_cast<std::size_t>(s)]; }
bool is_result(RunState s) { return s != RunState::running && s != RunState::interrupted; }

StepSpread times_of(const std::vector<double>& ms) {
  StepSpread t;
  t.count = static_cast<std::int64_t>(ms.size());
  if (ms.empty()) return t;
  const double n = static_cast<double>(ms.size());
  t.mean = std::accumulate(ms.begin(), ms.end(), 0.0) / n;
  std::vector<double> sorted = ms;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  t.median = sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  double squares = 0;
  for (const double x : ms) squares += (x - t.mean) * (x - t.mean);
  t.sd = ms.size() > 1 ? std::sqrt(squares / (n - 1)) : 0;
  return t;
}

Result<ResultStore> ResultStore::open(const std::string& path, bool create) {
  auto store = Store::open(path, {.schema = kSchema,
                                  .application = kApplication,
                                  .version = 1,
                                  .create = create,
                                  .read_only = !create,
                                  .what = "store of `orrery bench`"});
  if (!store) return tl::unexpected(store.error());
  ResultStore opened(std::move(*store));
  if (!create) return opened;
  // Of their own, since stores that were made before there were these are read as well.
  const Status made = opened.store_.run(
      "create table if not exists dropped(run integer primary key references runs(id), what text not null);"
      "create table if not exists operator_spreads(run integer not null references runs(id), operation text not null,"
      "  shape text not null, spread real not null, primary key(run, operation, shape)) without rowid;"
      "create table if not exists identity(token text not null);"
      "insert into identity select lower(hex(randomblob(16))) where not exists (select 1 from identity)");
  if (!made) return tl::unexpected(made.error());
  Statement s(opened.store_.get(), "select token from identity");
  if (!s.row()) return opened.store_.trouble();
  opened.token_ = s.text(0);
  return opened;
}

Result<std::int64_t> ResultStore::begin(const RunRow& r) {
  Store::Transaction t(store_);
  if (const Status ok = t.begun(); !ok) return tl::unexpected(ok.error());
  Statement s(store_.get(),
              "insert into runs(run, spec, hash, kind, attempt, batch, state, started, host, directory, load, "
              "estimated_step_ms, estimated_memory_gib, slurm_job) "
              "values(?, ?, ?, ?, ?, ?, 'running', ?, ?, ?, ?, ?, ?, ?)");
  s.bind(1, r.run).bind(2, r.spec).bind(3, r.hash).bind(4, static_cast<std::int64_t>(r.kind)).bind(5, r.attempt);
  s.bind(6, r.batch).bind(7, r.started).bind(8, r.host).bind(9, r.directory);
  put(s, 10, r.load);
  put(s, 11, r.estimated_step_ms);
  put(s, 12, r.estimated_memory_gib);
  s.bind(13, r.slurm_job);
  if (!s.done()) return store_.trouble();
  Statement last(store_.get(), "select last_insert_rowid()");
  if (!last.row()) return store_.trouble();
  const std::int64_t id = last.integer(0);
  (void)last.done();
  if (const Status ok = t.commit(); !ok) return tl::unexpected(ok.error());
  return id;
}

Status ResultStore::started(std::int64_t id, const Child& child, const std::string& slurm_job) {
  Statement s(store_.get(), "update runs set pid = ?, pid_started = ?, slurm_job = ? where id = ?");
  s.bind(1, static_cast<std::int64_t>(child.pid)).bind(2, static_cast<std::int64_t>(child.started));
  s.bind(3, slurm_job).bind(4, id);
  if (!s.done()) return store_.trouble();
  return {};
}

Status ResultStore::finish(const RunRow& r, const std::vector<MeasuredStep>& steps, const std::string& environment,
                           const std::vector<OperatorRate>& operators) {
  Store::Transaction t(store_);
  if (const Status ok = t.begun(); !ok) return ok;
  if (!environment.empty()) {
    Statement add(store_.get(), "insert or ignore into environments(json) values(?)");
    add.bind(1, environment);
    if (!add.done()) return store_.trouble();
  }
  Statement s(store_.get(),
              "update runs set state = ?, reason = ?, category = ?, root_cause = ?, advice = ?, seconds = ?, "
              "startup_s = ?, environment = (select id from environments where json = ?), steps = ?, mean_ms = ?, "
              "median_ms = ?, sd_ms = ?, cpu_ms = ?, prefill_ms = ?, decode_ms = ?, tokens_per_s = ?, "
              "device_memory_gib = ?, device_allocated_gib = ?, host_memory_gib = ?, host_base_gib = ?, "
              "device_power_w = ?, host_power_w = ?, device_mhz = ?, host_mhz = ?, overhead_s = ?, after_s = ?, traced "
              "= ?, batch = ? "
              "where id = ?");
  s.bind(1, name_of(r.state)).bind(2, r.reason).bind(3, r.category).bind(4, r.root_cause).bind(5, r.advice);
  s.bind(6, r.seconds).bind(8, environment).bind(9, r.step_ms.count);
  put(s, 7, r.startup_s);
  const bool any = r.step_ms.count > 0;
  put(s, 10, any ? std::optional(r.step_ms.mean) : std::nullopt);
  put(s, 11, any ? std::optional(r.step_ms.median) : std::nullopt);
  put(s, 12, any ? std::optional(r.step_ms.sd) : std::nullopt);
  const std::array<const std::optional<double>*, 12> more = {
      &r.cpu_ms,          &r.prefill_ms,        &r.decode_ms,
      &r.tokens_per_s,    &r.device_memory_gib, &r.device_allocated_gib,
      &r.host_memory_gib, &r.host_base_gib,     &r.device_power_w,
      &r.host_power_w,    &r.device_mhz,        &r.host_mhz};
  for (std::size_t i = 0; i < more.size(); ++i) put(s, 13 + static_cast<int>(i), *more[i]);
  s.bind(25, r.overhead_s).bind(26, r.after_s).bind(27, static_cast<std::int64_t>(r.traced)).bind(28, r.batch);
  s.bind(29, r.id);
  if (!s.done()) return store_.trouble();
  if (!r.dropped.empty()) {
    Statement add(store_.get(), "insert or replace into dropped(run, what) values(?, ?)");
    add.bind(1, r.id).bind(2, r.dropped);
    if (!add.done()) return store_.trouble();
  }
  Statement step(store_.get(), "insert or replace into steps(run, step, ms, cpu_ms) values(?, ?, ?, ?)");
  for (const MeasuredStep& m : steps) {
    step.bind(1, r.id).bind(2, m.step).bind(3, m.ms);
    put(step, 4, m.cpu_ms);
    if (!step.done()) return store_.trouble();
  }
  Statement rate(store_.get(),
                 "insert into operators(run, operation, shape, us, tflops, gb_per_s) values(?, ?, ?, ?, ?, ?)");
  Statement spread(store_.get(),
                   "insert or replace into operator_spreads(run, operation, shape, spread) values(?, ?, ?, ?)");
  for (const OperatorRate& o : operators) {
    rate.bind(1, r.id).bind(2, o.operation).bind(3, o.shape);
    put(rate, 4, o.us);
    put(rate, 5, o.tflops);
    put(rate, 6, o.gb_per_s);
    if (!rate.done()) return store_.trouble();
    if (!(o.spread > 0)) continue;
    spread.bind(1, r.id).bind(2, o.operation).bind(3, o.shape).bind(4, o.spread);
    if (!spread.done()) return store_.trouble();
  }
  return t.commit();
}

Status ResultStore::add_shares(std::int64_t id, int traced, const std::vector<ShareRow>& shares, double seconds) {
  Store::Transaction t(store_);
  if (const Status ok = t.begun(); !ok) return ok;
  Statement s(store_.get(),
              "insert into shares(run, level, name, phase, cpu_ms, gpu_ms, pct) values(?, ?, ?, ?, ?, ?, ?)");
  for (const ShareRow& r : shares) {
    s.bind(1, id).bind(2, r.level).bind(3, r.name).bind(4, r.phase);
    s.bind(5, r.cpu_ms).bind(6, r.gpu_ms).bind(7, r.pct);
    if (!s.done()) return store_.trouble();
  }
  Statement mark(store_.get(), "update runs set traced = ?, after_s = after_s + ? where id = ?");
  mark.bind(1, static_cast<std::int64_t>(traced)).bind(2, seconds).bind(3, id);
  if (!mark.done()) return store_.trouble();
  return t.commit();
}

Status ResultStore::interrupted(std::int64_t id, const std::string& reason) {
  Statement s(store_.get(), "update runs set state = 'interrupted', reason = ? where id = ?");
  s.bind(1, reason).bind(2, id);
  if (!s.done()) return store_.trouble();
  return {};
}

Result<std::vector<RunRow>> ResultStore::rows() const {
  std::vector<RunRow> rows;
  Statement s(store_.get(), std::string("select ") + kColumns + " from runs order by id");
  while (s.row()) {
    RunRow r;
    r.id = s.integer(0), r.run = s.text(1), r.spec = s.text(2), r.hash = s.text(3);
    r.kind = static_cast<RunKind>(std::clamp<std::int64_t>(s.integer(4), 0, 2));
    r.attempt = s.integer(5), r.batch = s.integer(6), r.state = state_of(s.text(7));
    r.reason = s.text(8), r.category = s.text(9), r.root_cause = s.text(10), r.advice = s.text(11);
    r.started = s.number(12), r.seconds = s.number(13), r.startup_s = maybe(s, 14);
    r.child = {static_cast<pid_t>(s.integer(15)), static_cast<std::uint64_t>(s.integer(16))};
    r.host = s.text(17), r.slurm_job = s.text(18), r.directory = s.text(19);
    r.environment = s.is_null(20) ? 0 : s.integer(20);
    r.step_ms = {s.integer(21), s.number(22), s.number(23), s.number(24)};
    const std::array<std::optional<double>*, 15> more = {&r.cpu_ms,
                                                         &r.prefill_ms,
                                                         &r.decode_ms,
                                                         &r.tokens_per_s,
                                                         &r.device_memory_gib,
                                                         &r.device_allocated_gib,
                                                         &r.host_memory_gib,
                                                         &r.host_base_gib,
                                                         &r.device_power_w,
                                                         &r.host_power_w,
                                                         &r.device_mhz,
                                                         &r.host_mhz,
                                                         &r.load,
                                                         &r.estimated_step_ms,
                                                         &r.estimated_memory_gib};
    for (std::size_t i = 0; i < more.size(); ++i) *more[i] = maybe(s, 25 + static_cast<int>(i));
    r.overhead_s = s.number(40), r.after_s = s.number(41), r.traced = static_cast<int>(s.integer(42));
    rows.push_back(std::move(r));
  }
  if (!s.ok()) return store_.trouble();
  const auto newer = has_table("dropped");
  if (!newer) return tl::unexpected(newer.error());
  if (!*newer) return rows;
  Statement dropped(store_.get(), "select run, what from dropped order by run");
  auto at = rows.begin();
  while (dropped.row()) {
    while (at != rows.end() && at->id < dropped.integer(0)) ++at;
    if (at != rows.end() && at->id == dropped.integer(0)) at->dropped = dropped.text(1);
  }
  if (!dropped.ok()) return store_.trouble();
  return rows;
}

Result<std::vector<MeasuredStep>> ResultStore::steps(std::int64_t id) const {
  std::vector<MeasuredStep> out;
  Statement s(store_.get(), "select step, ms, cpu_ms from steps where run = ? order by step");
  s.bind(1, id);
  while (s.row()) out.push_back({s.integer(0), s.number(1), maybe(s, 2)});
  if (!s.ok()) return store_.trouble();
  return out;
}

Result<std::vector<std::pair<std::int64_t, ShareRow>>> ResultStore::shares() const {
  std::vector<std::pair<std::int64_t, ShareRow>> out;
  Statement s(store_.get(), "select run, level, name, phase, cpu_ms, gpu_ms, pct from shares order by run, rowid");
  while (s.row())
    out.emplace_back(s.integer(0), ShareRow{s.text(1), s.text(2), s.text(3), s.number(4), s.number(5), s.number(6)});
  if (!s.ok()) return store_.trouble();
  return out;
}

Result<bool> ResultStore::has_table(const char* name) const {
  Statement s(store_.get(), "select 1 from sqlite_master where type = 'table' and name = ?");
  s.bind(1, name);
  const bool has = s.row();
  if (!s.ok()) return store_.trouble();
  return has;
}

Result<std::vector<std::pair<std::int64_t, OperatorRate>>> ResultStore::operators() const {
  std::vector<std::pair<std::int64_t, OperatorRate>> out;
  const auto newer = has_table("operator_spreads");
  if (!newer) return tl::unexpected(newer.error());
  const std::string spread =
      *newer ? "(select spread from operator_spreads s where s.run = o.run and s.operation = o.operation and "
               "s.shape = o.shape)"
             : "null";
  Statement s(store_.get(), "select run, operation, shape, us, tflops, gb_per_s, " + spread +
                                " from operators o order by run, rowid");
  while (s.row())
    out.emplace_back(s.integer(0), OperatorRate{s.text(1), s.text(2), maybe(s, 3), maybe(s, 4), maybe(s, 5),
                                                maybe(s, 6).value_or(0)});
  if (!s.ok()) return store_.trouble();
  return out;
}

Result<std::vector<std::pair<std::int64_t, std::string>>> ResultStore::environments() const {
  std::vector<std::pair<std::int64_t, std::string>> out;
  Statement s(store_.get(), "select id, json from environments order by id");
  while (s.row()) out.emplace_back(s.integer(0), s.text(1));
  if (!s.ok()) return store_.trouble();
  return out;
}

}  // namespace orrery
