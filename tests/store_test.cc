#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "store/sqlite.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

const StoreTerms kTerms{.schema = "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT NOT NULL, x REAL)",
                        .application = 77,
                        .what = "store of tests"};

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "orrery-store-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory = name;
    path = (directory / "a.db").string();
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(directory, ignored);
  }
  static std::int64_t rows(const Store& store) {
    Statement s(store.get(), "SELECT COUNT(*) FROM t");
    return s.row() ? s.integer(0) : -1;
  }
  fs::path directory;
  std::string path;
};

TEST_F(StoreTest, ReadingLeavesNothingBesideIt) {
  for (const std::string& name : {std::string("a.db"), std::string("what? 100% #1.db")}) {
    const std::string at = (directory / name).string();
    {
      const auto store = Store::open(at, kTerms);
      ASSERT_TRUE(store) << store.error().line();
      ASSERT_TRUE(store->run("INSERT INTO t VALUES (1, 'a', 2)"));
    }
    StoreTerms read = kTerms;
    read.create = false, read.read_only = true;
    {
      const auto store = Store::open(at, read);
      ASSERT_TRUE(store) << store.error().line();
      EXPECT_EQ(rows(*store), 1);
    }
    for (const char* const end : {"-wal", "-shm"}) EXPECT_FALSE(fs::exists(at + end)) << at << end;
    // What is written at the same time is read all the same.
    const auto writer = Store::open(at, kTerms);
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->run("INSERT INTO t VALUES (2, 'b', 2)"));
    EXPECT_EQ(rows(*Store::open(at, read)), 2);
  }
}

TEST_F(StoreTest, AFullDiskIsToldAsThat) {
  const auto store = Store::open(path, kTerms);
  ASSERT_TRUE(store->run("PRAGMA max_page_count = 4"));
  Status ok;
  for (int i = 0; i < 100 && ok; ++i) ok = store->run("INSERT INTO t(name) VALUES (hex(randomblob(4000)))");
  ASSERT_FALSE(ok);
  EXPECT_NE(ok.error().line().find("is full"), std::string::npos) << ok.error().line();
  EXPECT_NE(ok.error().line().find("make room"), std::string::npos) << ok.error().line();
}

TEST_F(StoreTest, ValuesComeBackAsTheyWere) {
  {
    const auto store = Store::open(path, kTerms);
    ASSERT_TRUE(store.has_value()) << store.error().line();
    Statement add(store->get(), "INSERT INTO t(name, x) VALUES(?, ?)");
    EXPECT_TRUE(add.bind(1, std::string_view("a'b\0c", 5)).bind(2, 0.1).done());
    EXPECT_TRUE(add.bind(1, std::string_view()).bind_null(2).done());
  }
  struct stat s {};
  ASSERT_EQ(::stat(path.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777u, 0600u);
  const auto again = Store::open(path, kTerms);
  ASSERT_TRUE(again.has_value());
  Statement all(again->get(), "SELECT name, x FROM t ORDER BY id");
  ASSERT_TRUE(all.row());
  EXPECT_EQ(all.text(0), std::string("a'b\0c", 5));
  EXPECT_EQ(all.number(1), 0.1);
  ASSERT_TRUE(all.row());
  EXPECT_EQ(all.text(0), "");
  EXPECT_TRUE(all.is_null(1));
  EXPECT_FALSE(all.row());
  EXPECT_TRUE(all.ok());
}

TEST_F(StoreTest, ATransactionIsWholeOrNothing) {
  const auto store = Store::open(path, kTerms);
  ASSERT_TRUE(store.has_value());
  {
    Store::Transaction dropped(*store);
    ASSERT_TRUE(dropped.begun().has_value());
    EXPECT_TRUE(store->run("INSERT INTO t(name) VALUES('a')").has_value());
  }
  EXPECT_EQ(rows(*store), 0);
  Store::Transaction kept(*store);
  EXPECT_TRUE(store->run("INSERT INTO t(name) VALUES('a')").has_value());
  EXPECT_TRUE(kept.commit().has_value());
  EXPECT_EQ(rows(*store), 1);
}

TEST_F(StoreTest, AKilledWriterLeavesWhatItCommitted) {
  { ASSERT_TRUE(Store::open(path, kTerms).has_value()); }
  const pid_t writer = ::fork();
  if (writer == 0) {
    const auto store = Store::open(path, kTerms);
    (void)store->run("INSERT INTO t(name) VALUES('committed')");
    Store::Transaction open(*store);
    (void)store->run("INSERT INTO t(name) VALUES('not committed')");
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(writer, nullptr, 0);
  const auto store = Store::open(path, kTerms);
  ASSERT_TRUE(store.has_value());
  EXPECT_EQ(rows(*store), 1);
}

TEST_F(StoreTest, AnotherWriterWaitsAndThenIsTold) {
  StoreTerms hasty = kTerms;
  hasty.busy_s = 0.05;
  const auto first = Store::open(path, kTerms), second = Store::open(path, hasty);
  ASSERT_TRUE(first.has_value() && second.has_value());
  Store::Transaction one(*first);
  ASSERT_TRUE(one.begun().has_value());
  EXPECT_FALSE(Store::Transaction(*second).begun().has_value());
  EXPECT_TRUE(one.commit().has_value());
  EXPECT_TRUE(Store::Transaction(*second).begun().has_value());
}

TEST_F(StoreTest, FilesOfOthersAreRefused) {
  StoreTerms other = kTerms;
  other.application = 78;
  { ASSERT_TRUE(Store::open(path, kTerms).has_value()); }
  EXPECT_FALSE(Store::open(path, other).has_value());
  other = kTerms;
  other.version = 2;
  const auto newer = Store::open(path, other);
  ASSERT_FALSE(newer.has_value());
  EXPECT_NE(newer.error().line().find("version 1"), std::string::npos);
  const std::string text = (directory / "text").string();
  std::ofstream(text) << std::string(5000, 'x');
  EXPECT_FALSE(Store::open(text, kTerms).has_value());
  EXPECT_FALSE(Store::open("/no/such/place/a.db", kTerms).has_value());
  EXPECT_FALSE(Store::open(directory.string(), kTerms).has_value());
}

TEST_F(StoreTest, WhatIsWrongWithAFileIsTold) {
  StoreTerms reading = kTerms;
  reading.read_only = true;
  const auto said = [&](const StoreTerms& terms) {
    const auto store = Store::open(path, terms);
    return store ? std::string() : store.error().line();
  };
  EXPECT_EQ(said(reading), path + ": no store of tests here");
  std::ofstream(path) << std::string(5000, 'x');
  for (const StoreTerms& terms : {reading, kTerms})
    EXPECT_NE(said(terms).find("not an SQLite database, so no store of tests (name a"), std::string::npos);
  fs::remove(path);
  { ASSERT_TRUE(Store::open(path, kTerms)); }
  fs::resize_file(path, 1000);
  for (const StoreTerms& terms : {reading, kTerms})
    EXPECT_NE(said(terms).find("the store of tests is damaged"), std::string::npos) << said(terms);
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_NE(said(reading).find("not a file"), std::string::npos) << said(reading);
}

TEST_F(StoreTest, ReadingMakesNothing) {
  StoreTerms reading = kTerms;
  reading.read_only = true;
  EXPECT_FALSE(Store::open(path, reading).has_value());
  EXPECT_FALSE(fs::exists(path));
  { ASSERT_TRUE(Store::open(path, kTerms).has_value()); }
  const auto store = Store::open(path, reading);
  ASSERT_TRUE(store.has_value());
  EXPECT_FALSE(store->run("INSERT INTO t(name) VALUES('a')").has_value());
}

}  // namespace
}  // namespace orrery
