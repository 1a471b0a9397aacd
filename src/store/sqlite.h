// One SQLite file, opened so that a kill at any moment leaves it whole.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace orrery {

struct StoreTerms {
  std::string schema = {};  // SQL that makes the tables; runs once, in one transaction
  int application = 0;      // SQLite's application_id: which tool's file it is; not 0
  int version = 1;          // user_version: another one is refused
  bool create = true;       // make the file where there is none (mode 0600)
  bool read_only = false;
  double busy_s = 10;          // how long to wait for another process's transaction
  std::string what = "store";  // in errors: "not a store of ..."
};

// A prepared statement; columns and parameters as SQLite counts them (parameters from 1, columns from 0). The first
// error stays until the statement is gone: ask ok() or finished() at the end.
class Statement {
 public:
  Statement(sqlite3* db, std::string_view sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(int at, std::int64_t value);
  Statement& bind(int at, double value);
  Statement& bind(int at, std::string_view value);
  Statement& bind_null(int at);
  bool row();   // the next row, if there is one
  bool done();  // runs to the end and makes ready for other values; false: an error
  bool ok() const { return ok_; }
  bool is_null(int at) const;
  std::int64_t integer(int at) const;
  double number(int at) const;
  std::string text(int at) const;

 private:
  sqlite3_stmt* s_ = nullptr;
  bool ok_ = false;
};

class Store {
 public:
  // Errors: no such file, not this tool's file, another version, cannot be written.
  static Result<Store> open(const std::string& path, const StoreTerms& terms);

  sqlite3* get() const { return db_.get(); }
  const std::string& path() const { return path_; }
  Status run(const std::string& sql) const;  // no values, no rows
  tl::unexpected<Error> trouble() const;     // the last error of the file, in words
  std::int64_t changes() const;              // rows that the last statement changed

  // BEGIN IMMEDIATE; ROLLBACK unless commit() was called.
  class Transaction {
   public:
    explicit Transaction(const Store& store);
    ~Transaction();
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;
    Status begun() const { return begun_; }
    Status commit();

   private:
    const Store& store_;
    Status begun_;
    bool open_ = false;
  };

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  Store(sqlite3* db, std::string path, std::string what) : db_(db), path_(std::move(path)), what_(std::move(what)) {}
  std::unique_ptr<sqlite3, Close> db_;
  std::string path_, what_;
};

}  // namespace orrery
