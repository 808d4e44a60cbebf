#include "server/tenant/sqlite_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "server/tenant/migrations.h"
#include "server/tenant/token.h"
#include "tests/support/temporary_folder.h"

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SqliteStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<SqliteStore> Open() {
    auto store = SqliteStore::Open(folder_, random_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  // Changes the file as another process could.
  void Tamper(const std::string& sql) {
    sqlite3* handle = nullptr;
    ASSERT_EQ(sqlite3_open((folder_ + "/control.db").c_str(), &handle), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(handle);
    sqlite3_close(handle);
  }
  static AuditNote Note(const std::string& action) {
    return {"uid 0", "control socket", action, "acme", "", "ok"};
  }

  SystemRandom random_;
  const TemporaryFolder root_;
  const std::string folder_ = root_.path() + "/state";
};

const Tenant kAcme{"acme", false, {.memory_bytes = 1u << 30, .jobs = 4}, 17};

TEST_F(SqliteStoreTest, WhatWasWrittenIsThereAgain) {
  Token token{
      "0123456789abcdef", Role::kTenant, "acme", "ci", std::string(32, 'h'), 1, 2, 0, "uid 0"};
  {
    auto store = Open();
    Tenant changed = kAcme;
    ASSERT_TRUE(store->CreateTenant(changed, Note("tenant.create")).ok());
    ASSERT_TRUE(store->AddToken(token, Note("token.issue")).ok());
    changed.suspended = true;
    changed.quota.jobs.reset();
    changed.quota.weight = 300;
    changed.quota.bandwidth_bytes = 1'000'000'000;
    ASSERT_TRUE(store->UpdateTenant(changed, Note("tenant.suspend")).ok());
    token.revoked_at = 99;
    ASSERT_TRUE(store->RevokeToken(token, Note("token.revoke")).ok());
  }
  auto store = Open();
  const auto tenants = store->Tenants();
  ASSERT_THAT(*tenants, SizeIs(1));
  EXPECT_TRUE((*tenants)[0].suspended);
  EXPECT_EQ((*tenants)[0].quota, (Quota{
                                     .memory_bytes = 1u << 30,
                                     .weight = 300,
                                     .bandwidth_bytes = 1'000'000'000,
                                 }));
  EXPECT_EQ((*tenants)[0].created_at, 17);
  EXPECT_EQ((*tenants)[0].revision, 2);
  const auto tokens = store->Tokens();
  ASSERT_THAT(*tokens, SizeIs(1));
  EXPECT_EQ((*tokens)[0].hash, token.hash);
  EXPECT_EQ((*tokens)[0].revoked_at, 99);
  EXPECT_EQ((*tokens)[0].revision, token.revision);
  const auto audit = store->ReadAudit(0, 100);
  ASSERT_THAT(*audit, SizeIs(4));
  EXPECT_EQ((*audit)[3].action, "token.revoke");
  EXPECT_EQ((*audit)[3].sequence, 4);
  EXPECT_TRUE(store->VerifyAudit().ok());
}

TEST_F(SqliteStoreTest, AChangeThatFailsLeavesNoAuditEntry) {
  auto store = Open();
  Tenant acme = kAcme;
  ASSERT_TRUE(store->CreateTenant(acme, Note("tenant.create")).ok());
  EXPECT_EQ(store->CreateTenant(acme, Note("tenant.create")).code(),
            absl::StatusCode::kAlreadyExists);
  Token orphan{"0123456789abcdef", Role::kTenant, "nobody", "", "h", 1, 0, 0, ""};
  EXPECT_FALSE(store->AddToken(orphan, Note("token.issue")).ok());
  EXPECT_EQ(*store->LastAuditSequence(), 1);
}

TEST_F(SqliteStoreTest, AChangeOfAnotherRevisionIsAborted) {
  auto store = Open();
  Tenant acme = kAcme;
  ASSERT_TRUE(store->CreateTenant(acme, Note("tenant.create")).ok());
  const Tenant before = acme;
  acme.suspended = true;
  ASSERT_TRUE(store->UpdateTenant(acme, Note("tenant.suspend")).ok());
  // A decision on the record as it was before: it would resume the tenant.
  Tenant outdated = before;
  outdated.quota.jobs = 9;
  EXPECT_TRUE(absl::IsAborted(store->UpdateTenant(outdated, Note("tenant.set-quota"))));
  EXPECT_TRUE(absl::IsAborted(store->DeleteTenant(before, Note("tenant.delete"))));
  EXPECT_EQ(store->Tenants()->front(), acme);
  Token token{"0123456789abcdef", Role::kTenant, "acme", "", "h", 1, 0, 0, ""};
  ASSERT_TRUE(store->AddToken(token, Note("token.issue")).ok());
  const Token issued = token;
  token.revoked_at = 5;
  ASSERT_TRUE(store->RevokeToken(token, Note("token.revoke")).ok());
  Token renewed{"fedcba9876543210", Role::kTenant, "acme", "", "h", 6, 0, 0, ""};
  Token old = issued;  // not revoked yet
  EXPECT_TRUE(absl::IsAborted(store->RotateToken(renewed, old, Note("token.rotate"))));
  ASSERT_THAT(*store->Tokens(), SizeIs(1));
  EXPECT_EQ(store->Tokens()->front().revoked_at, 5);
  EXPECT_EQ(*store->LastAuditSequence(), 4);
}

TEST_F(SqliteStoreTest, ADeletedTenantTakesItsTokensAndLeavesItsHistory) {
  auto store = Open();
  Tenant acme = kAcme;
  ASSERT_TRUE(store->CreateTenant(acme, Note("tenant.create")).ok());
  Token token{"0123456789abcdef", Role::kTenant, "acme", "", "h", 1, 0, 0, ""};
  ASSERT_TRUE(store->AddToken(token, Note("token.issue")).ok());
  ASSERT_TRUE(store->DeleteTenant(acme, Note("tenant.delete")).ok());
  EXPECT_THAT(*store->Tenants(), IsEmpty());
  EXPECT_THAT(*store->Tokens(), IsEmpty());
  EXPECT_THAT(*store->ReadAudit(1, 100), SizeIs(2));
}

TEST_F(SqliteStoreTest, FilesAreTheirOwnersAlone) {
  Open();
  for (const char* name : {"", "/control.db", "/token.key"}) {
    struct stat facts {};
    ASSERT_EQ(stat((folder_ + name).c_str(), &facts), 0) << name;
    EXPECT_EQ(facts.st_mode & 077, 0u) << name;
  }
  std::filesystem::permissions(folder_, std::filesystem::perms{0755});
  const auto refused = SqliteStore::Open(folder_, random_);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("chmod 700"));
}

TEST_F(SqliteStoreTest, ADirectoryIsOneDaemons) {
  auto store = Open();
  const auto second = SqliteStore::Open(folder_, random_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another phubd"));
}

TEST_F(SqliteStoreTest, TheAuditLogIsAppendOnlyAndSaysWhatWasChanged) {
  {
    auto store = Open();
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(store->Audit(Note("server.drain")).ok());
  }
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ + "/control.db").c_str(), &handle), SQLITE_OK);
  for (const char* sql : {"DELETE FROM audit", "UPDATE audit SET actor = 'nobody'"}) {
    EXPECT_NE(sqlite3_exec(handle, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sql;
    EXPECT_THAT(sqlite3_errmsg(handle), HasSubstr("append-only"));
  }
  sqlite3_close(handle);
  EXPECT_TRUE(Open()->VerifyAudit().ok());
  // A process that may write the file can drop the triggers, but does not have the key.
  Tamper("DROP TRIGGER audit_is_not_changed; UPDATE audit SET actor = 'me' WHERE sequence = 3");
  EXPECT_THAT(std::string(Open()->VerifyAudit().message()), HasSubstr("entry 3 was changed"));
  Tamper("DROP TRIGGER audit_is_not_deleted; DELETE FROM audit WHERE sequence = 2");
  EXPECT_THAT(std::string(Open()->VerifyAudit().message()), HasSubstr("entry 2 is missing"));
}

TEST_F(SqliteStoreTest, AnotherKeyIsNoticed) {
  Open();
  std::ofstream(folder_ + "/token.key") << std::string(32, 'x');
  const auto refused = SqliteStore::Open(folder_, random_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("token.key"));
}

TEST_F(SqliteStoreTest, ADamagedFileIsDataLoss) {
  Open();
  std::ofstream(folder_ + "/control.db", std::ios::trunc) << std::string(8192, 'x');
  EXPECT_EQ(SqliteStore::Open(folder_, random_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SqliteStoreTest, InMemoryStoresAreTheirOwn) {
  auto first = SqliteStore::Open("", random_);
  auto second = SqliteStore::Open("", random_);
  ASSERT_TRUE(first.ok() && second.ok());
  Tenant acme = kAcme;
  EXPECT_TRUE((*first)->CreateTenant(acme, Note("tenant.create")).ok());
  EXPECT_THAT(*(*second)->Tenants(), IsEmpty());
}

TEST(Migrations, StepsAreTakenOnceAndANewerFileIsRefused) {
  auto database = *Database::Open("");
  const char* const first[] = {"CREATE TABLE a (x INTEGER)"};
  const char* const both[] = {"CREATE TABLE a (x INTEGER)", "CREATE TABLE b (y INTEGER)"};
  EXPECT_TRUE(Migrate(*database, first).ok());
  EXPECT_TRUE(database->Execute("INSERT INTO a VALUES (7)").ok());
  EXPECT_TRUE(Migrate(*database, both).ok());
  EXPECT_TRUE(Migrate(*database, both).ok());
  Statement kept(*database, "SELECT x FROM a");
  ASSERT_TRUE(kept.Next());
  EXPECT_EQ(kept.GetInt(0), 7);
  EXPECT_EQ(Migrate(*database, first).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Migrations, AStepThatFailsChangesNothing) {
  auto database = *Database::Open("");
  const char* const broken[] = {"CREATE TABLE a (x INTEGER); CREATE TABLE a (x INTEGER)"};
  EXPECT_FALSE(Migrate(*database, broken).ok());
  EXPECT_TRUE(database->Execute("CREATE TABLE a (x INTEGER)").ok());
}

}  // namespace
}  // namespace phub::server
