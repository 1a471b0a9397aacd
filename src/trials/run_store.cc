#include "trials/run_store.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <random>

#include "base/unix_time.h"

namespace orrery {
namespace {

constexpr int kApplication = 0x6f724576;  // "orEv"
constexpr const char* kSchema = R"(
CREATE TABLE agreed(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE checkpoint(id INTEGER PRIMARY KEY, model TEXT, name TEXT, path TEXT, fingerprint TEXT, bytes INTEGER,
  state TEXT, why TEXT, UNIQUE(model, name, fingerprint));
CREATE TABLE trial(id INTEGER PRIMARY KEY, checkpoint INTEGER, node TEXT, gpu INTEGER, state TEXT, handle TEXT,
  kind TEXT, why TEXT, load_from TEXT, begun REAL, loaded REAL, ended REAL, load_s REAL);
CREATE TABLE piece(id INTEGER PRIMARY KEY, trial INTEGER, checkpoint INTEGER, dataset TEXT, first INTEGER,
  items INTEGER, state TEXT, output TEXT, why TEXT, ended REAL, seen TEXT NOT NULL DEFAULT '');
CREATE TABLE setback(id INTEGER PRIMARY KEY, checkpoint INTEGER, dataset TEXT, first INTEGER, items INTEGER, node TEXT,
  gpu INTEGER, trial INTEGER, counts INTEGER, kind TEXT, why TEXT);
CREATE TABLE metric(id INTEGER PRIMARY KEY, checkpoint INTEGER, dataset TEXT, first INTEGER, items INTEGER, state TEXT,
  handle TEXT, kind TEXT, why TEXT, begun REAL, ended REAL);
CREATE TABLE score(metric INTEGER, name TEXT, value REAL, PRIMARY KEY(metric, name));
CREATE TABLE prior(model TEXT, dataset TEXT, what TEXT, value REAL, count INTEGER, at REAL,
  PRIMARY KEY(model, dataset, what));
)";

StoreTerms terms() {
  StoreTerms t;
  t.schema = kSchema;
  t.application = kApplication;
  t.what = "store of evaluations";
  return t;
}

}  // namespace

Result<RunStore> RunStore::open(const std::string& path) {
  auto store = Store::open(path, terms());
  if (!store) return tl::unexpected(store.error());
  // A state that was begun before pieces had it.
  Statement has_seen(store->get(), "SELECT 1 FROM pragma_table_info('piece') WHERE name = 'seen'");
  const bool there = has_seen.row();
  if (!has_seen.ok()) return store->trouble();
  if (!there)
    if (auto ok = store->run("ALTER TABLE piece ADD COLUMN seen TEXT NOT NULL DEFAULT ''"); !ok)
      return tl::unexpected(ok.error());
  return RunStore(std::move(*store));
}

Result<std::optional<RunStore>> RunStore::look(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0 || s.st_size == 0) return std::optional<RunStore>();
  StoreTerms to_read = terms();
  to_read.read_only = true;
  auto store = Store::open(path, to_read);
  if (!store) return tl::unexpected(store.error());
  return std::optional<RunStore>(RunStore(std::move(*store)));
}

std::int64_t RunStore::last_id() const { return sqlite3_last_insert_rowid(store_.get()); }

Status RunStore::agree(const std::string& key, const std::string& value, const std::string& advice) {
  Statement seen(store_.get(), "SELECT value FROM agreed WHERE key = ?");
  seen.bind(1, std::string_view(key));
  if (seen.row()) {
    if (seen.text(0) == value) return {};
    return fail(key + " was " + seen.text(0) + " and is " + value, store_.path(), advice);
  }
  if (!seen.ok()) return store_.trouble();
  Statement add(store_.get(), "INSERT INTO agreed VALUES(?, ?)");
  add.bind(1, std::string_view(key)).bind(2, std::string_view(value));
  return add.done() ? Status() : store_.trouble();
}

Status RunStore::agree_anew(const std::string& key, const std::string& value) {
  Statement s(store_.get(), "INSERT OR REPLACE INTO agreed VALUES(?, ?)");
  s.bind(1, std::string_view(key)).bind(2, std::string_view(value));
  return s.done() ? Status() : store_.trouble();
}

Result<std::string> RunStore::token() {
  std::random_device device;
  Statement add(store_.get(), "INSERT OR IGNORE INTO agreed VALUES('token', ?)");
  add.bind(1, std::string_view(fmt::format("{:08x}{:08x}", device(), device())));
  if (!add.done()) return store_.trouble();
  Statement seen(store_.get(), "SELECT value FROM agreed WHERE key = 'token'");
  if (!seen.row()) return store_.trouble();
  return seen.text(0);
}

Result<std::vector<StoredCheckpoint>> RunStore::checkpoints() {
  std::vector<StoredCheckpoint> all;
  Statement s(store_.get(), "SELECT id, model, name, path, fingerprint, bytes, state, why FROM checkpoint ORDER BY id");
  while (s.row())
    all.push_back({s.integer(0), s.text(1), s.text(2), s.text(3), s.text(4), static_cast<std::uint64_t>(s.integer(5)),
                   s.text(6), s.text(7)});
  if (!s.ok()) return store_.trouble();
  return all;
}

Result<std::vector<StoredTrial>> RunStore::trials() {
  std::vector<StoredTrial> all;
  Statement s(store_.get(),
              "SELECT id, checkpoint, node, gpu, state, handle, kind, why, load_from, begun, loaded, ended, load_s "
              "FROM trial ORDER BY id");
  while (s.row()) {
    StoredTrial t;
    t.id = s.integer(0);
    t.checkpoint = s.integer(1);
    t.node = s.text(2);
    t.gpu = s.integer(3);
    t.state = s.text(4);
    t.handle = s.text(5);
    t.kind = s.text(6);
    t.why = s.text(7);
    t.load_from = s.text(8);
    t.begun = s.number(9);
    t.loaded = s.number(10);
    t.ended = s.number(11);
    t.load_s = s.number(12);
    all.push_back(std::move(t));
  }
  if (!s.ok()) return store_.trouble();
  return all;
}

Result<std::vector<StoredPiece>> RunStore::pieces() {
  std::vector<StoredPiece> all;
  Statement s(store_.get(),
              "SELECT id, trial, checkpoint, first, items, dataset, state, output, why, ended, seen FROM piece "
              "ORDER BY id");
  while (s.row())
    all.push_back({s.integer(0), s.integer(1), s.integer(2), s.integer(3), s.integer(4), s.text(5), s.text(6),
                   s.text(7), s.text(8), s.number(9), s.text(10)});
  if (!s.ok()) return store_.trouble();
  return all;
}

Result<std::vector<StoredMetric>> RunStore::metrics() {
  std::vector<StoredMetric> all;
  Statement s(store_.get(),
              "SELECT id, checkpoint, first, items, dataset, state, handle, kind, why, begun, ended FROM metric "
              "ORDER BY id");
  while (s.row())
    all.push_back({s.integer(0), s.integer(1), s.integer(2), s.integer(3), s.text(4), s.text(5), s.text(6), s.text(7),
                   s.text(8), s.number(9), s.number(10)});
  if (!s.ok()) return store_.trouble();
  return all;
}

Result<std::map<std::int64_t, Scores>> RunStore::scores() {
  std::map<std::int64_t, Scores> all;
  Statement s(store_.get(), "SELECT metric, name, value FROM score ORDER BY metric, name");
  while (s.row()) all[s.integer(0)].emplace_back(s.text(1), s.number(2));
  if (!s.ok()) return store_.trouble();
  return all;
}

Result<std::map<std::pair<std::string, std::string>, std::map<std::string, StoredPrior>>> RunStore::priors() {
  std::map<std::pair<std::string, std::string>, std::map<std::string, StoredPrior>> all;
  Statement s(store_.get(), "SELECT model, dataset, what, value, count FROM prior");
  while (s.row()) all[{s.text(0), s.text(1)}][s.text(2)] = {s.number(3), s.integer(4)};
  if (!s.ok()) return store_.trouble();
  return all;
}

Status RunStore::add(StoredCheckpoint& c) {
  Statement s(store_.get(),
              "INSERT INTO checkpoint(model, name, path, fingerprint, bytes, state, why) VALUES(?,?,?,?,?,?,?)");
  s.bind(1, std::string_view(c.model)).bind(2, std::string_view(c.name)).bind(3, std::string_view(c.path));
  s.bind(4, std::string_view(c.fingerprint)).bind(5, static_cast<std::int64_t>(c.bytes));
  s.bind(6, std::string_view(c.state)).bind(7, std::string_view(c.why));
  if (!s.done()) return store_.trouble();
  c.id = last_id();
  return {};
}

Status RunStore::update(const StoredCheckpoint& c) {
  Statement s(store_.get(), "UPDATE checkpoint SET path = ?, state = ?, why = ? WHERE id = ?");
  s.bind(1, std::string_view(c.path)).bind(2, std::string_view(c.state)).bind(3, std::string_view(c.why)).bind(4, c.id);
  return s.done() ? Status() : store_.trouble();
}

Status RunStore::write(const StoredTrial& t) {
  Statement s(store_.get(),
              "UPDATE trial SET node = ?, gpu = ?, state = ?, handle = ?, kind = ?, why = ?, load_from = ?, begun = ?, "
              "loaded = ?, ended = ?, load_s = ? WHERE id = ?");
  s.bind(1, std::string_view(t.node)).bind(2, t.gpu).bind(3, std::string_view(t.state));
  s.bind(4, std::string_view(t.handle)).bind(5, std::string_view(t.kind)).bind(6, std::string_view(t.why));
  s.bind(7, std::string_view(t.load_from)).bind(8, t.begun).bind(9, t.loaded).bind(10, t.ended);
  s.bind(11, t.load_s).bind(12, t.id);
  return s.done() ? Status() : store_.trouble();
}

Status RunStore::write(const StoredPiece& p) {
  Statement s(store_.get(), "UPDATE piece SET state = ?, output = ?, why = ?, ended = ?, seen = ? WHERE id = ?");
  s.bind(1, std::string_view(p.state)).bind(2, std::string_view(p.output)).bind(3, std::string_view(p.why));
  s.bind(4, p.ended).bind(5, std::string_view(p.seen)).bind(6, p.id);
  return s.done() ? Status() : store_.trouble();
}

Status RunStore::write(const StoredMetric& m) {
  Statement s(store_.get(),
              "UPDATE metric SET state = ?, handle = ?, kind = ?, why = ?, begun = ?, ended = ? WHERE id = ?");
  s.bind(1, std::string_view(m.state)).bind(2, std::string_view(m.handle)).bind(3, std::string_view(m.kind));
  s.bind(4, std::string_view(m.why)).bind(5, m.begun).bind(6, m.ended).bind(7, m.id);
  return s.done() ? Status() : store_.trouble();
}

Status RunStore::add(StoredPiece& p) {
  Statement s(store_.get(),
              "INSERT INTO piece(trial, checkpoint, dataset, first, items, state, output, why, ended) "
              "VALUES(?,?,?,?,?,?,?,?,?)");
  s.bind(1, p.trial).bind(2, p.checkpoint).bind(3, std::string_view(p.dataset)).bind(4, p.first).bind(5, p.items);
  s.bind(6, std::string_view(p.state)).bind(7, std::string_view(p.output)).bind(8, std::string_view(p.why));
  s.bind(9, p.ended);
  if (!s.done()) return store_.trouble();
  p.id = last_id();
  return {};
}

Status RunStore::add(StoredTrial& t, std::vector<StoredPiece>& pieces) {
  Store::Transaction whole(store_);
  if (auto ok = whole.begun(); !ok) return ok;
  Statement s(store_.get(), "INSERT INTO trial(checkpoint) VALUES(?)");
  s.bind(1, t.checkpoint);
  if (!s.done()) return store_.trouble();
  t.id = last_id();
  if (auto ok = write(t); !ok) return ok;
  for (StoredPiece& p : pieces) {
    p.trial = t.id;
    if (auto ok = add(p); !ok) return ok;
  }
  return whole.commit();
}

Status RunStore::update(const StoredTrial& t) { return write(t); }
Status RunStore::update(const StoredPiece& p) { return write(p); }
Status RunStore::update(const StoredMetric& m) { return write(m); }

Status RunStore::settle(const StoredTrial& t, const std::vector<StoredPiece>& pieces,
                        const std::vector<StoredSetback>& setbacks, const std::vector<StoredMetric>& voided) {
  Store::Transaction whole(store_);
  if (auto ok = whole.begun(); !ok) return ok;
  if (auto ok = write(t); !ok) return ok;
  for (const StoredPiece& p : pieces)
    if (auto ok = write(p); !ok) return ok;
  for (const StoredSetback& b : setbacks) {
    Statement s(store_.get(),
                "INSERT INTO setback(checkpoint, dataset, first, items, node, gpu, trial, counts, kind, why) "
                "VALUES(?,?,?,?,?,?,?,?,?,?)");
    s.bind(1, b.checkpoint).bind(2, std::string_view(b.dataset)).bind(3, b.first).bind(4, b.items);
    s.bind(5, std::string_view(b.node)).bind(6, b.gpu).bind(7, b.trial);
    s.bind(8, static_cast<std::int64_t>(b.counts)).bind(9, std::string_view(b.kind)).bind(10, std::string_view(b.why));
    if (!s.done()) return store_.trouble();
  }
  for (const StoredMetric& m : voided) {
    if (auto ok = write(m); !ok) return ok;
    Statement s(store_.get(), "DELETE FROM score WHERE metric = ?");
    s.bind(1, m.id);
    if (!s.done()) return store_.trouble();
  }
  return whole.commit();
}

Status RunStore::add(StoredMetric& m) {
  Store::Transaction whole(store_);
  if (auto ok = whole.begun(); !ok) return ok;
  Statement s(store_.get(), "INSERT INTO metric(checkpoint, dataset, first, items) VALUES(?,?,?,?)");
  s.bind(1, m.checkpoint).bind(2, std::string_view(m.dataset)).bind(3, m.first).bind(4, m.items);
  if (!s.done()) return store_.trouble();
  m.id = last_id();
  if (auto ok = write(m); !ok) return ok;
  return whole.commit();
}

Status RunStore::settle(const StoredMetric& m, const Scores& scores) {
  Store::Transaction whole(store_);
  if (auto ok = whole.begun(); !ok) return ok;
  if (auto ok = write(m); !ok) return ok;
  for (const auto& [name, value] : scores) {
    Statement s(store_.get(), "INSERT INTO score VALUES(?,?,?)");
    s.bind(1, m.id).bind(2, std::string_view(name)).bind(3, value);
    if (!s.done()) return store_.trouble();
  }
  return whole.commit();
}

Status RunStore::measured(const std::string& model, const std::string& dataset, const std::string& what, double value) {
  Statement s(store_.get(),
              "INSERT INTO prior VALUES(?1, ?2, ?3, ?4, 1, ?5) ON CONFLICT(model, dataset, what) DO UPDATE SET "
              "value = value + (?4 - value) * max(1.0 / (count + 1), 0.0625), count = count + 1, at = ?5");
  s.bind(1, std::string_view(model)).bind(2, std::string_view(dataset)).bind(3, std::string_view(what));
  s.bind(4, value).bind(5, unix_seconds());
  return s.done() ? Status() : store_.trouble();
}

}  // namespace orrery
