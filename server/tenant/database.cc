#include "server/tenant/database.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <cerrno>
#include <cstring>

#include "common/base/check.h"
#include "common/base/descriptor.h"
#include "common/base/log.h"
#include "common/base/secret_file.h"

namespace phub::server {
namespace {

absl::StatusCode CodeOf(int sqlite_code) {
  switch (sqlite_code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY: return absl::StatusCode::kFailedPrecondition;
    case SQLITE_FULL: return absl::StatusCode::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return absl::StatusCode::kDataLoss;
    case SQLITE_CONSTRAINT: return absl::StatusCode::kAlreadyExists;
    default: return absl::StatusCode::kInternal;
  }
}

// SQLite gives its -wal file the mode of the database file, so the mode must be right from the
// start.
absl::Status MakeFile(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kSecretFileMode));
  if (file) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("cannot open {}: {}", path, std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path) {
  const bool in_memory = path.empty();
  if (!in_memory) {
    if (absl::Status status = MakeFile(path); !status.ok()) return status;
  }
  sqlite3* handle = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_FULLMUTEX;
  const int code = sqlite3_open_v2(in_memory ? ":memory:" : path.c_str(), &handle, flags, nullptr);
  if (handle == nullptr)
    return absl::ResourceExhaustedError("not enough memory to open a database");
  std::unique_ptr<Database> database(new Database(handle, in_memory ? "memory" : path));
  if (code != SQLITE_OK) return database->Error("open");
  sqlite3_extended_result_codes(handle, 1);
  // Exclusive locking holds the lock from the first access on, and the log needs no shared memory.
  const absl::Status status = database->Execute(
      "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
      "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;"
      "BEGIN IMMEDIATE; COMMIT;");
  if (status.code() == absl::StatusCode::kFailedPrecondition) {
    return absl::FailedPreconditionError(fmt::format(
        "{} is locked or not writable; probably another phubd uses this state_dir", path));
  }
  if (!status.ok()) return status;
  return database;
}

Database::~Database() {
  const int code = sqlite3_close(handle_);
  PHUB_CHECK(code == SQLITE_OK, "database={} code={}", path_,
             code);  // fails if a statement is open
}

absl::Status Database::Error(std::string_view doing) const {
  return absl::Status(
      CodeOf(sqlite3_extended_errcode(handle_)),
      fmt::format("control store ({}): cannot {}: {}", path_, doing, sqlite3_errmsg(handle_)));
}

std::int64_t Database::changed_rows() const { return sqlite3_changes64(handle_); }

absl::Status Database::Execute(const std::string& sql) {
  if (sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return Error("execute a statement");
}

absl::StatusOr<std::unique_ptr<Database::Transaction>> Database::Transaction::Begin(
    Database& database) {
  if (absl::Status status = database.Execute("BEGIN IMMEDIATE"); !status.ok()) return status;
  return std::unique_ptr<Transaction>(new Transaction(database));
}

Database::Transaction::~Transaction() {
  if (database_ == nullptr) return;
  // SQLite has already rolled back after some errors; then there is nothing to do.
  if (sqlite3_get_autocommit(database_->handle_) != 0) return;
  if (absl::Status status = database_->Execute("ROLLBACK"); !status.ok()) {
    LogError("event=rollback_failed error=\"{}\"", std::string(status.message()));
  }
}

absl::Status Database::Transaction::Commit() {
  PHUB_CHECK(database_ != nullptr);
  if (absl::Status status = database_->Execute("COMMIT"); !status.ok()) return status;
  database_ = nullptr;
  return absl::OkStatus();
}

Statement::Statement(Database& database, std::string_view sql) : database_(database) {
  Check(sqlite3_prepare_v2(database.handle_, sql.data(), static_cast<int>(sql.size()), &statement_,
                           nullptr),
        "prepare a statement");
}

Statement::~Statement() { sqlite3_finalize(statement_); }

void Statement::Check(int code, std::string_view doing) {
  if (code != SQLITE_OK && status_.ok()) status_ = database_.Error(doing);
}

Statement& Statement::Text(std::string_view value) {
  if (!status_.ok()) return *this;
  Check(sqlite3_bind_text(statement_, ++bound_, value.data(), static_cast<int>(value.size()),
                          SQLITE_TRANSIENT),
        "bind text");
  return *this;
}

Statement& Statement::Blob(std::string_view value) {
  if (!status_.ok()) return *this;
  Check(sqlite3_bind_blob(statement_, ++bound_, value.data(), static_cast<int>(value.size()),
                          SQLITE_TRANSIENT),
        "bind bytes");
  return *this;
}

Statement& Statement::Int(std::int64_t value) {
  if (status_.ok()) Check(sqlite3_bind_int64(statement_, ++bound_, value), "bind a number");
  return *this;
}

Statement& Statement::Null() {
  if (status_.ok()) Check(sqlite3_bind_null(statement_, ++bound_), "bind null");
  return *this;
}

bool Statement::Next() {
  if (!status_.ok()) return false;
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) status_ = database_.Error("run a statement");
  return false;
}

absl::Status Statement::Run() {
  while (Next()) {
  }
  return status_;
}

std::string Statement::GetText(int column) const {
  const void* const data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  if (data == nullptr || size <= 0) return {};
  return {static_cast<const char*>(data), static_cast<std::size_t>(size)};
}

std::int64_t Statement::GetInt(int column) const {
  return sqlite3_column_int64(statement_, column);
}

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

}  // namespace phub::server
