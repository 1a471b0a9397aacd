#include "store/sqlite.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace orrery {
namespace {

// As RFC 3986 has it: what means something in a URI by its code.
std::string uri_of(const std::string& path) {
  std::string uri = "file:";
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("/._-").find(c) != std::string_view::npos;
    uri += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return uri;
}

// Why a file cannot be read, where SQLite would only say that it cannot be opened.
Status check_readable(const std::string& path, const std::string& what) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return fail(fmt::format("no {} here", what), path);
  if (fd < 0)
    return fail(fmt::format("the {} cannot be read: {}", what, std::strerror(errno)), path,
                errno == EACCES ? "ask its owner for permission, or name another file" : "");
  struct stat s {};
  const bool file = ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
  ::close(fd);
  return file ? Status{} : Status(fail(fmt::format("not a file, so no {}", what), path));
}

}  // namespace

Statement::Statement(sqlite3* db, std::string_view sql) {
  ok_ = sqlite3_prepare_v2(db, sql.data(), static_cast<int>(sql.size()), &s_, nullptr) == SQLITE_OK;
}
Statement::~Statement() { sqlite3_finalize(s_); }

Statement& Statement::bind(int at, std::int64_t value) {
  ok_ = ok_ && sqlite3_bind_int64(s_, at, value) == SQLITE_OK;
  return *this;
}
Statement& Statement::bind(int at, double value) {
  ok_ = ok_ && sqlite3_bind_double(s_, at, value) == SQLITE_OK;
  return *this;
}
Statement& Statement::bind(int at, std::string_view value) {
  // An empty view may have no address, which SQLite would take for NULL.
  const char* const from = value.empty() ? "" : value.data();
  ok_ = ok_ && sqlite3_bind_text(s_, at, from, static_cast<int>(value.size()), SQLITE_TRANSIENT) == SQLITE_OK;
  return *this;
}
Statement& Statement::bind_null(int at) {
  ok_ = ok_ && sqlite3_bind_null(s_, at) == SQLITE_OK;
  return *this;
}

bool Statement::row() {
  if (!ok_) return false;
  const int state = sqlite3_step(s_);
  ok_ = state == SQLITE_ROW || state == SQLITE_DONE;
  return state == SQLITE_ROW;
}

bool Statement::done() {
  while (row()) continue;
  if (ok_) ok_ = sqlite3_reset(s_) == SQLITE_OK;
  return ok_;
}

bool Statement::is_null(int at) const { return sqlite3_column_type(s_, at) == SQLITE_NULL; }
std::int64_t Statement::integer(int at) const { return sqlite3_column_int64(s_, at); }
double Statement::number(int at) const { return sqlite3_column_double(s_, at); }
std::string Statement::text(int at) const {
  const auto* const t = reinterpret_cast<const char*>(sqlite3_column_text(s_, at));
  return t ? std::string(t, static_cast<std::size_t>(sqlite3_column_bytes(s_, at))) : std::string();
}

void Store::Close::operator()(sqlite3* db) const { sqlite3_close(db); }

tl::unexpected<Error> Store::trouble() const {
  const char* advice = "name a file that orrery made, or one that does not exist yet";
  switch (sqlite3_errcode(db_.get()) & 0xff) {  // the primary code
    case SQLITE_NOTADB:
      return fail(fmt::format("not an SQLite database, so no {}", what_), path_, advice);
    case SQLITE_CORRUPT:
      return fail(
          fmt::format("the {} is damaged: {}", what_, sqlite3_errmsg(db_.get())), path_,
          "use a copy of it, or let sqlite3's `.recover` save what can be read, or move it away and begin anew");
    case SQLITE_FULL:
    case SQLITE_IOERR:
      advice = "make room on its disk, or name a file on another one";
      break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      advice = "another process uses it: try again when that is done";
      break;
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      advice = "name a file that this user may write, in a directory that this user may write";
      break;
    default:
      break;
  }
  return fail(fmt::format("the {} cannot be used: {}", what_, sqlite3_errmsg(db_.get())), path_, advice);
}

Status Store::run(const std::string& sql) const {
  if (sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) return trouble();
  return {};
}

std::int64_t Store::changes() const { return sqlite3_changes64(db_.get()); }

Result<Store> Store::open(const std::string& path, const StoreTerms& terms) {
  if (terms.create && !terms.read_only) {
    // Made here, not by SQLite: nobody else may read it.
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
      return fail(fmt::format("cannot be written: {}", std::strerror(errno)), path,
                  errno == EACCES ? "name a file that this user may read and write, in a directory of theirs" : "");
    ::close(fd);
  } else if (const Status ok = check_readable(path, terms.what); !ok) {
    return tl::unexpected(ok.error());
  }
  sqlite3* db = nullptr;
  const int how = terms.read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
  // Where nobody has it open to write and none was killed there is no log: it is read as it stands, or reading would
  // leave a log and its index beside it, and could not be where nothing can be written.
  const bool as_it_stands = terms.read_only && ::access((path + "-wal").c_str(), F_OK) != 0;
  const int state = as_it_stands ? sqlite3_open_v2((uri_of(path) + "?immutable=1").c_str(), &db,
                                                   how | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI, nullptr)
                                 : sqlite3_open_v2(path.c_str(), &db, how | SQLITE_OPEN_NOMUTEX, nullptr);
  Store store(db, path, terms.what);
  if (state != SQLITE_OK) return fail(fmt::format("no {} here: {}", terms.what, sqlite3_errstr(state)), path);
  sqlite3_busy_timeout(db, static_cast<int>(terms.busy_s * 1000));
  const auto number_of = [&](const char* pragma) {
    Statement s(db, pragma);
    return s.row() ? std::optional<std::int64_t>(s.integer(0)) : std::nullopt;
  };
  const auto tables = number_of("SELECT COUNT(*) FROM sqlite_master");
  if (!tables) return store.trouble();
  if (*tables == 0 && terms.read_only) return fail(fmt::format("an empty file, not a {}", terms.what), path);
  if (*tables != 0) {
    if (number_of("PRAGMA application_id") != terms.application)
      return fail(fmt::format("an SQLite file, but not a {}", terms.what), path, "another file");
    if (const auto version = number_of("PRAGMA user_version"); version != terms.version)
      return fail(
          fmt::format("a {} of version {}, this program has {}", terms.what, version.value_or(0), terms.version), path,
          "the program that made it, or another file");
  }
  if (terms.read_only) return store;
  // Write-ahead: who reads does not wait for who writes. Full: a transaction that was told done survives a power cut.
  for (const char* const pragma :
       {"PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON"})
    if (Status ok = store.run(pragma); !ok) return tl::unexpected(ok.error());
  if (*tables != 0) return store;
  Transaction making(store);
  if (!making.begun()) return tl::unexpected(making.begun().error());
  // Another process may have made them while this one waited for its turn.
  if (number_of("SELECT COUNT(*) FROM sqlite_master") == 0) {
    const std::string all = terms.schema + fmt::format(";PRAGMA application_id = {};PRAGMA user_version = {};",
                                                       terms.application, terms.version);
    if (Status ok = store.run(all); !ok) return tl::unexpected(ok.error());
  }
  if (Status ok = making.commit(); !ok) return tl::unexpected(ok.error());
  return store;
}

Store::Transaction::Transaction(const Store& store) : store_(store), begun_(store.run("BEGIN IMMEDIATE")) {
  open_ = begun_.has_value();
}
Store::Transaction::~Transaction() {
  if (open_) (void)store_.run("ROLLBACK");
}
Status Store::Transaction::commit() {
  if (!open_) return begun_;
  if (Status ok = store_.run("COMMIT"); !ok) return ok;
  open_ = false;
  return {};
}

}  // namespace orrery
