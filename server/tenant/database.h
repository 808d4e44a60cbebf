// A wrapper of SQLite that returns statuses instead of codes: open, prepare, bind, step. One thread
// at a time.
//
// A committed transaction survives a kill at any instant and a loss of power (write-ahead log,
// synced at every commit). Only one daemon can open a file: it stays locked until the Database is
// destroyed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace phub::server {

class Database {
 public:
  // Creates the file (mode 0600) if it does not exist. Empty path: in memory, for the lifetime of
  // the object. FAILED_PRECONDITION: another process has locked it; DATA_LOSS: it is damaged.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Statements without results, separated by semicolons.
  absl::Status Execute(const std::string& sql);

  // Begin() ... Commit(). The destructor rolls back a transaction that was not committed.
  class Transaction {
   public:
    static absl::StatusOr<std::unique_ptr<Transaction>> Begin(Database& database);
    ~Transaction();
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;
    absl::Status Commit();

   private:
    explicit Transaction(Database& database) : database_(&database) {}
    Database* database_;  // null: committed
  };

  absl::Status Error(std::string_view doing) const;
  // By the last statement that changes rows.
  std::int64_t changed_rows() const;

 private:
  friend class Statement;
  Database(sqlite3* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  sqlite3* const handle_;
  const std::string path_;
};

// One prepared statement, with its parameters in order:
//   Statement find(database, "SELECT role FROM tokens WHERE id = ?");
//   find.Text(id);
//   while (find.Next()) ... find.GetText(0);
//   if (!find.status().ok()) ...
class Statement {
 public:
  Statement(Database& database, std::string_view sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Text(std::string_view value);
  Statement& Blob(std::string_view value);
  Statement& Int(std::int64_t value);
  Statement& Null();

  // True: there is a row. False: no more rows, or an error (see status()).
  bool Next();
  // For statements without rows.
  absl::Status Run();
  const absl::Status& status() const { return status_; }

  std::string GetText(int column) const;  // blobs, too
  std::int64_t GetInt(int column) const;
  bool IsNull(int column) const;

 private:
  void Check(int code, std::string_view doing);

  Database& database_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
  absl::Status status_;
};

}  // namespace phub::server
