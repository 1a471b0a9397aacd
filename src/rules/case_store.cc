#include "rules/case_store.h"

#include <sqlite3.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "rules/templates.h"

namespace orrery {
namespace {

constexpr std::size_t kMostHealthyLines = 20000;

using Grams = std::map<std::int64_t, double>;  // hash -> how often

std::int64_t hashed(std::string_view a, std::string_view b) {
  std::uint64_t h = 1469598103934665603ull;
  for (const std::string_view part : {a, b}) {
    for (const char c : part) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    h = (h ^ 0x1f) * 1099511628211ull;
  }
  return static_cast<std::int64_t>(h);
}

// Words and pairs of words of masked lines.
Grams grams_of(const std::vector<KeptLine>& lines) {
  Grams grams;
  for (const KeptLine& line : lines) {
    std::string before;
    for (const std::string& token : masked_tokens(line.text)) {
      if (token == "*" || token.size() < 3) continue;
      grams[hashed(token, "")] += 1;
      if (!before.empty()) grams[hashed(before, token)] += 1;
      before = token;
    }
  }
  return grams;
}

// A statement that is finished when it goes out of scope.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) { ok_ = sqlite3_prepare_v2(db, sql, -1, &s_, nullptr) == SQLITE_OK; }
  ~Statement() { sqlite3_finalize(s_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(int at, std::int64_t v) {
    ok_ = ok_ && sqlite3_bind_int64(s_, at, v) == SQLITE_OK;
    return *this;
  }
  Statement& bind(int at, double v) {
    ok_ = ok_ && sqlite3_bind_double(s_, at, v) == SQLITE_OK;
    return *this;
  }
  Statement& bind(int at, const std::string& v) {
    ok_ = ok_ && sqlite3_bind_text(s_, at, v.data(), static_cast<int>(v.size()), SQLITE_TRANSIENT) == SQLITE_OK;
    return *this;
  }
  bool row() {
    if (!ok_) return false;
    const int state = sqlite3_step(s_);
    ok_ = state == SQLITE_ROW || state == SQLITE_DONE;
    return state == SQLITE_ROW;
  }
  bool done() {
    while (row()) continue;
    if (ok_) sqlite3_reset(s_);
    return ok_;
  }
  bool ok() const { return ok_; }
  std::int64_t integer(int at) const { return sqlite3_column_int64(s_, at); }
  double number(int at) const { return sqlite3_column_double(s_, at); }
  std::string text(int at) const {
    const auto* t = reinterpret_cast<const char*>(sqlite3_column_text(s_, at));
    return t ? std::string(t, static_cast<std::size_t>(sqlite3_column_bytes(s_, at))) : std::string();
  }

 private:
  sqlite3_stmt* s_ = nullptr;
  bool ok_ = false;
};

tl::unexpected<Error> broken(sqlite3* db, const std::string& path) {
  return fail(std::string("the store of cases cannot be used: ") + sqlite3_errmsg(db), path,
              "name a file that orrery made, or one that does not exist yet");
}

}  // namespace

void CaseStore::Close::operator()(sqlite3* db) const { sqlite3_close(db); }

Status CaseStore::run(const char* sql) const {
  if (sqlite3_exec(db_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) return broken(db_.get(), path_);
  return {};
}

Result<CaseStore> CaseStore::open(const std::string& path) {
  sqlite3* db = nullptr;
  const int state = sqlite3_open(path.c_str(), &db);
  CaseStore store(db, path);
  if (state != SQLITE_OK) return broken(db, path);
  sqlite3_busy_timeout(db, 5000);
  const Status ok = store.run(
      "CREATE TABLE IF NOT EXISTS cases(id INTEGER PRIMARY KEY, label TEXT, reason TEXT, category TEXT, restart TEXT,"
      " root_cause TEXT, advice TEXT, print INTEGER, UNIQUE(print, reason));"
      "CREATE TABLE IF NOT EXISTS grams(gram INTEGER, of INTEGER, n REAL, PRIMARY KEY(gram, of)) WITHOUT ROWID;"
      "CREATE TABLE IF NOT EXISTS shapes(job TEXT, shape INTEGER, text TEXT, healthy INTEGER, PRIMARY KEY(job, "
      "shape));");
  if (!ok) return tl::unexpected(ok.error());
  return store;
}

Status CaseStore::remember(const PastCase& c, const std::vector<KeptLine>& lines) {
  const Grams grams = grams_of(lines);
  if (grams.empty()) return {};
  std::uint64_t print = 0;
  for (const auto& [gram, n] : grams) print = print * 1099511628211ull ^ static_cast<std::uint64_t>(gram);
  if (Status ok = run("BEGIN"); !ok) return ok;
  Statement add(db_.get(),
                "INSERT OR IGNORE INTO cases(label, reason, category, restart, root_cause, advice, print)"
                " VALUES(?,?,?,?,?,?,?)");
  add.bind(1, c.label).bind(2, c.reason).bind(3, c.category).bind(4, c.restart).bind(5, c.root_cause).bind(6, c.advice);
  bool good = add.bind(7, static_cast<std::int64_t>(print)).done();
  if (good && sqlite3_changes(db_.get()) == 1) {
    const std::int64_t id = sqlite3_last_insert_rowid(db_.get());
    Statement gram(db_.get(), "INSERT INTO grams(gram, of, n) VALUES(?,?,?)");
    for (const auto& [g, n] : grams) good = good && gram.bind(1, g).bind(2, id).bind(3, n).done();
  }
  if (!good) {
    auto error = broken(db_.get(), path_);
    (void)run("ROLLBACK");
    return error;
  }
  return run("COMMIT");
}

Result<std::optional<PastCase>> CaseStore::nearest(const std::vector<KeptLine>& lines) const {
  const Grams query = grams_of(lines);
  Statement count(db_.get(), "SELECT COUNT(*) FROM cases");
  if (!count.row()) return broken(db_.get(), path_);
  const auto cases = static_cast<double>(count.integer(0));
  if (cases == 0) return std::optional<PastCase>();
  // Weights of all grams, to know the length of every case.
  const auto weight = [&](double n, double in) { return (1 + std::log(n)) * std::log((cases + 1) / (in + 0.5)); };
  std::unordered_map<std::int64_t, double> length, product, in;
  {
    Statement df(db_.get(), "SELECT gram, COUNT(*) FROM grams GROUP BY gram");
    while (df.row()) in[df.integer(0)] = static_cast<double>(df.integer(1));
    if (!df.ok()) return broken(db_.get(), path_);
  }
  double query_length = 0;
  for (const auto& [gram, n] : query) {
    const auto it = in.find(gram);
    const double w = weight(n, it == in.end() ? 0 : it->second);
    query_length += w * w;
  }
  Statement all(db_.get(), "SELECT gram, of, n FROM grams");
  while (all.row()) {
    const double df = in[all.integer(0)];
    const double w = weight(all.number(2), df);
    length[all.integer(1)] += w * w;
    const auto q = query.find(all.integer(0));
    if (q != query.end()) product[all.integer(1)] += w * weight(q->second, df);
  }
  if (!all.ok()) return broken(db_.get(), path_);
  PastCase best;
  for (const auto& [id, p] : product) {
    const double similarity = p / std::sqrt(std::max(1e-12, length[id] * query_length));
    if (similarity > best.similarity || (similarity == best.similarity && id < best.id)) {
      best.similarity = similarity;
      best.id = id;
    }
  }
  if (best.id == 0) return std::optional<PastCase>();
  Statement one(db_.get(), "SELECT label, reason, category, restart, root_cause, advice FROM cases WHERE id = ?");
  if (!one.bind(1, best.id).row()) return broken(db_.get(), path_);
  best.label = one.text(0);
  best.reason = one.text(1);
  best.category = one.text(2);
  best.restart = one.text(3);
  best.root_cause = one.text(4);
  best.advice = one.text(5);
  return std::optional<PastCase>(best);
}

Status CaseStore::learn(const std::string& job, const std::vector<std::pair<std::uint64_t, std::string>>& shapes,
                        bool healthy) {
  if (Status ok = run("BEGIN"); !ok) return ok;
  Statement add(db_.get(), "INSERT OR IGNORE INTO shapes(job, shape, text, healthy) VALUES(?,?,?,?)");
  bool good = add.ok();
  for (const auto& [shape, text] : shapes)
    good =
        good &&
        add.bind(1, job).bind(2, static_cast<std::int64_t>(shape)).bind(3, text).bind(4, std::int64_t{healthy}).done();
  if (!good) {
    auto error = broken(db_.get(), path_);
    (void)run("ROLLBACK");
    return error;
  }
  return run("COMMIT");
}

Result<KnownShapes> CaseStore::known(const std::string& job) const {
  KnownShapes out;
  Statement s(db_.get(), "SELECT shape FROM shapes WHERE job = ?");
  s.bind(1, job);
  while (s.row()) out.insert(static_cast<std::uint64_t>(s.integer(0)));
  if (!s.ok()) return broken(db_.get(), path_);
  return out;
}

Result<std::vector<std::string>> CaseStore::healthy_lines() const {
  std::vector<std::string> out;
  Statement s(db_.get(), "SELECT text FROM shapes WHERE healthy = 1 LIMIT ?");
  s.bind(1, static_cast<std::int64_t>(kMostHealthyLines));
  while (s.row()) out.push_back(s.text(0));
  if (!s.ok()) return broken(db_.get(), path_);
  return out;
}

}  // namespace orrery
