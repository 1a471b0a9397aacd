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

}  // namespace

Result<CaseStore> CaseStore::open(const std::string& path) {
  auto store = Store::open(
      path,
      {.schema = "CREATE TABLE cases(id INTEGER PRIMARY KEY, label TEXT, reason TEXT, category TEXT, restart TEXT,"
                 " root_cause TEXT, advice TEXT, print INTEGER, UNIQUE(print, reason));"
                 "CREATE TABLE grams(gram INTEGER, of INTEGER, n REAL, PRIMARY KEY(gram, of)) WITHOUT ROWID;"
                 "CREATE TABLE shapes(job TEXT, shape INTEGER, text TEXT, healthy INTEGER, PRIMARY KEY(job, shape))",
       .application = 0x6f726361,  // "orca"
       .what = "store of cases"});
  if (!store) return tl::unexpected(store.error());
  return CaseStore(std::move(*store));
}

Status CaseStore::remember(const PastCase& c, const std::vector<KeptLine>& lines) {
  const Grams grams = grams_of(lines);
  if (grams.empty()) return {};
  std::uint64_t print = 0;
  for (const auto& [gram, n] : grams) print = print * 1099511628211ull ^ static_cast<std::uint64_t>(gram);
  Store::Transaction all(store_);
  if (!all.begun()) return all.begun();
  Statement add(store_.get(),
                "INSERT OR IGNORE INTO cases(label, reason, category, restart, root_cause, advice, print)"
                " VALUES(?,?,?,?,?,?,?)");
  add.bind(1, c.label).bind(2, c.reason).bind(3, c.category).bind(4, c.restart).bind(5, c.root_cause).bind(6, c.advice);
  bool good = add.bind(7, static_cast<std::int64_t>(print)).done();
  if (good && store_.changes() == 1) {
    const std::int64_t id = sqlite3_last_insert_rowid(store_.get());
    Statement gram(store_.get(), "INSERT INTO grams(gram, of, n) VALUES(?,?,?)");
    for (const auto& [g, n] : grams) good = good && gram.bind(1, g).bind(2, id).bind(3, n).done();
  }
  if (!good) return store_.trouble();
  return all.commit();
}

Result<std::optional<PastCase>> CaseStore::nearest(const std::vector<KeptLine>& lines) const {
  const Grams query = grams_of(lines);
  Statement count(store_.get(), "SELECT COUNT(*) FROM cases");
  if (!count.row()) return store_.trouble();
  const auto cases = static_cast<double>(count.integer(0));
  if (cases == 0) return std::optional<PastCase>();
  // Weights of all grams, to know the length of every case.
  const auto weight = [&](double n, double in) { return (1 + std::log(n)) * std::log((cases + 1) / (in + 0.5)); };
  std::unordered_map<std::int64_t, double> length, product, in;
  {
    Statement df(store_.get(), "SELECT gram, COUNT(*) FROM grams GROUP BY gram");
    while (df.row()) in[df.integer(0)] = static_cast<double>(df.integer(1));
    if (!df.ok()) return store_.trouble();
  }
  double query_length = 0;
  for (const auto& [gram, n] : query) {
    const auto it = in.find(gram);
    const double w = weight(n, it == in.end() ? 0 : it->second);
    query_length += w * w;
  }
  Statement all(store_.get(), "SELECT gram, of, n FROM grams");
  while (all.row()) {
    const double df = in[all.integer(0)];
    const double w = weight(all.number(2), df);
    length[all.integer(1)] += w * w;
    const auto q = query.find(all.integer(0));
    if (q != query.end()) product[all.integer(1)] += w * weight(q->second, df);
  }
  if (!all.ok()) return store_.trouble();
  PastCase best;
  for (const auto& [id, p] : product) {
    const double similarity = p / std::sqrt(std::max(1e-12, length[id] * query_length));
    if (similarity > best.similarity || (similarity == best.similarity && id < best.id)) {
      best.similarity = similarity;
      best.id = id;
    }
  }
  if (best.id == 0) return std::optional<PastCase>();
  Statement one(store_.get(), "SELECT label, reason, category, restart, root_cause, advice FROM cases WHERE id = ?");
  if (!one.bind(1, best.id).row()) return store_.trouble();
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
  Store::Transaction all(store_);
  if (!all.begun()) return all.begun();
  Statement add(store_.get(), "INSERT OR IGNORE INTO shapes(job, shape, text, healthy) VALUES(?,?,?,?)");
  bool good = add.ok();
  for (const auto& [shape, text] : shapes)
    good =
        good &&
        add.bind(1, job).bind(2, static_cast<std::int64_t>(shape)).bind(3, text).bind(4, std::int64_t{healthy}).done();
  if (!good) return store_.trouble();
  return all.commit();
}

Result<KnownShapes> CaseStore::known(const std::string& job) const {
  KnownShapes out;
  Statement s(store_.get(), "SELECT shape FROM shapes WHERE job = ?");
  s.bind(1, job);
  while (s.row()) out.insert(static_cast<std::uint64_t>(s.integer(0)));
  if (!s.ok()) return store_.trouble();
  return out;
}

Result<std::vector<std::string>> CaseStore::healthy_lines() const {
  std::vector<std::string> out;
  Statement s(store_.get(), "SELECT text FROM shapes WHERE healthy = 1 LIMIT ?");
  s.bind(1, static_cast<std::int64_t>(kMostHealthyLines));
  while (s.row()) out.push_back(s.text(0));
  if (!s.ok()) return store_.trouble();
  return out;
}

}  // namespace orrery
