// Suspensions and revocations while the shared store does not answer, and when it answers again.
#include "server/tenant/local_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "server/tenant/tenant_admin.h"
#include "tests/unit/server/tenant/shared_store.h"

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class LocalChangesTest : public ::testing::Test {
 protected:
  LocalChangesTest() {
    caller_.role = Role::kAdmin;
    caller_.name = "uid 0";
    EXPECT_TRUE(Start().ok());
    EXPECT_TRUE(admin_->CreateTenant(caller_, "acme", {}).ok());
    const auto issued = admin_->IssueToken(caller_, {.tenant = "acme", .label = "ci"});
    EXPECT_TRUE(issued.ok()) << issued.status();
    token_ = issued->token.id;
    text_ = issued->text;
    cluster_.log.clear();
  }
  // Kills the daemon, if there is one, and starts it again.
  absl::Status Start() {
    admin_ = nullptr;
    directory_ = std::make_unique<Directory>();
    admitted_.clear();
    AdmissionHooks hooks;
    hooks.set_tenant = [this](const Tenant& tenant) { admitted_[tenant.name] = !tenant.suspended; };
    hooks.remove_tenant = [](const std::string&) { return absl::OkStatus(); };
    auto admin = TenantAdmin::Create(std::make_unique<SharedStore>(cluster_, disk_), *directory_,
                                     random_, hooks);
    if (admin.ok()) admin_ = *std::move(admin);
    return admin.status();
  }
  void CutOff() { cluster_.reachable = absl::UnavailableError("etcd does not answer"); }
  void Reconnect() {
    cluster_.reachable = absl::OkStatus();
    admin_->Tick(0);
  }
  bool IsTokenValid() const {
    IdentityFault fault = IdentityFault::kNone;
    return directory_->IdentifyToken(text_, WallNow(), fault).ok();
  }
  // "action: detail" of the audit log.
  std::vector<std::string> Log() const {
    std::vector<std::string> lines;
    for (const AuditNote& note : cluster_.log) lines.push_back(note.action + ": " + note.detail);
    return lines;
  }
  std::string Resume() {
    return std::string(admin_->SuspendTenant(caller_, "acme", false).status().message());
  }

  SystemRandom random_;
  Cluster cluster_;
  Disk disk_;
  Caller caller_;
  std::unique_ptr<Directory> directory_;
  std::map<std::string, bool> admitted_;  // [tenant]
  std::unique_ptr<TenantAdmin> admin_;
  std::string token_;
  std::string text_;
};

TEST_F(LocalChangesTest, ApplyHereAtOnceAndInTheStoreLater) {
  CutOff();
  const auto tenant = admin_->SuspendTenant(caller_, "acme", true);
  ASSERT_TRUE(tenant.ok()) << tenant.status();
  EXPECT_TRUE(tenant->suspended);
  EXPECT_FALSE(admitted_["acme"]);
  EXPECT_TRUE(directory_->FindTenant("acme")->suspended);
  EXPECT_FALSE(cluster_.tenants["acme"].suspended);
  const auto token = admin_->RevokeToken(caller_, token_);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_NE(token->revoked_at, 0);
  EXPECT_FALSE(IsTokenValid());
  EXPECT_EQ(disk_.contents.size(), 2u);
  EXPECT_THAT(admin_->Warning(), HasSubstr("2 suspensions and revocations apply only at this"));
  EXPECT_THAT(admin_->Warning(), HasSubstr(disk_.name));
  // Again: nothing more is kept.
  EXPECT_TRUE(admin_->SuspendTenant(caller_, "acme", true).ok());
  EXPECT_TRUE(admin_->RevokeToken(caller_, token_).ok());
  EXPECT_EQ(disk_.contents.size(), 2u);
  admin_->Tick(0);
  EXPECT_EQ(disk_.contents.size(), 2u);

  Reconnect();
  EXPECT_TRUE(cluster_.tenants["acme"].suspended);
  EXPECT_EQ(cluster_.tokens[token_].revoked_at, token->revoked_at);
  EXPECT_THAT(Log(), ElementsAre("tenant.suspend: made while etcd did not answer",
                                 "token.revoke: ci; made while etcd did not answer"));
  EXPECT_THAT(disk_.contents, IsEmpty());
  EXPECT_THAT(admin_->Warning(), IsEmpty());
  EXPECT_FALSE(admitted_["acme"]);
  EXPECT_THAT(Resume(), IsEmpty());
  EXPECT_TRUE(admitted_["acme"]);
}

TEST_F(LocalChangesTest, OutliveTheDaemon) {
  CutOff();
  ASSERT_TRUE(admin_->SuspendTenant(caller_, "acme", true).ok());
  ASSERT_TRUE(admin_->RevokeToken(caller_, token_).ok());
  cluster_.reachable = absl::OkStatus();
  ASSERT_TRUE(Start().ok());
  // Nothing has been written yet.
  EXPECT_FALSE(cluster_.tenants["acme"].suspended);
  EXPECT_FALSE(admitted_["acme"]);
  EXPECT_FALSE(IsTokenValid());
  admin_->Tick(0);
  EXPECT_TRUE(cluster_.tenants["acme"].suspended);
  EXPECT_NE(cluster_.tokens[token_].revoked_at, 0);
  // A daemon that was killed before it forgot them writes them again.
  disk_.contents = {{LocalKind::kSuspend, "acme", 1, {.subject = "acme"}},
                    {LocalKind::kRevoke, "acme", 2, {.subject = token_, .at = 3}}};
  const WallTimeNs revoked_at = cluster_.tokens[token_].revoked_at;
  ASSERT_TRUE(Start().ok());
  admin_->Tick(0);
  EXPECT_THAT(disk_.contents, IsEmpty());
  EXPECT_TRUE(cluster_.tenants["acme"].suspended);
  EXPECT_EQ(cluster_.tokens[token_].revoked_at, revoked_at);
  // A file that cannot be read is not ignored.
  disk_.fault = absl::DataLossError("/disk/local cannot be read");
  EXPECT_THAT(std::string(Start().message()), HasSubstr("cannot be read"));
}

TEST_F(LocalChangesTest, StayInForceWhenAnotherDaemonChangesTheRecord) {
  CutOff();
  ASSERT_TRUE(admin_->SuspendTenant(caller_, "acme", true).ok());
  ASSERT_TRUE(admin_->RevokeToken(caller_, token_).ok());
  // The watch is back before the store's own calls, with a resumed tenant and a rotated token.
  Tenant tenant = cluster_.tenants["acme"];
  tenant.quota.jobs = 7;
  tenant.revision = 100;
  cluster_.follower->TenantChanged(tenant);
  cluster_.follower->TokenChanged(cluster_.tokens[token_]);
  EXPECT_FALSE(admitted_["acme"]);
  EXPECT_EQ(directory_->FindTenant("acme")->quota.jobs, 7u);
  EXPECT_FALSE(IsTokenValid());
}

TEST_F(LocalChangesTest, TheStricterStateWins) {
  ASSERT_TRUE(admin_->CreateTenant(caller_, "zeta", {}).ok());
  ASSERT_TRUE(admin_->CreateTenant(caller_, "eta", {}).ok());
  cluster_.log.clear();
  CutOff();
  for (const char* name : {"acme", "zeta", "eta"})
    ASSERT_TRUE(admin_->SuspendTenant(caller_, name, true).ok());
  Tenant resumed = cluster_.tenants["acme"];
  resumed.quota.jobs = 3;
  cluster_.Change(resumed);
  Tenant suspended = cluster_.tenants["zeta"];
  suspended.suspended = true;
  cluster_.Change(suspended);
  cluster_.tenants.erase("eta");
  Reconnect();
  EXPECT_TRUE(cluster_.tenants["acme"].suspended);
  EXPECT_EQ(cluster_.tenants["acme"].quota.jobs, 3u);
  EXPECT_TRUE(cluster_.tenants["zeta"].suspended);
  EXPECT_FALSE(cluster_.tenants.contains("eta"));
  const std::string made = "tenant.suspend: made while etcd did not answer";
  EXPECT_THAT(Log(), ElementsAre(made + "; overrides what another daemon changed meanwhile", made,
                                 made + "; it was deleted meanwhile"));
  EXPECT_THAT(disk_.contents, IsEmpty());
}

TEST_F(LocalChangesTest, AreMergedByTheseRules) {
  const LocalChange suspension{LocalKind::kSuspend, "acme", 5, {.subject = "acme", .at = 9}};
  const auto merged = [&](absl::StatusOr<Tenant> record) {
    const auto outcome = Merge(suspension, record);
    EXPECT_TRUE(!record.ok() || record->suspended);
    return outcome.ok() ? ToString(*outcome) : std::string(outcome.status().message());
  };
  EXPECT_EQ(merged(Tenant{.name = "acme", .revision = 5}), "written");
  EXPECT_EQ(merged(Tenant{.name = "acme", .revision = 6}), "overrides");
  EXPECT_EQ(merged(Tenant{.name = "acme", .suspended = true, .revision = 6}), "already");
  EXPECT_EQ(merged(absl::NotFoundError("")), "gone");
  EXPECT_EQ(merged(absl::DataLossError("damaged")), "damaged");
  const LocalChange revocation{LocalKind::kRevoke, "acme", 5, {.subject = "3f2a", .at = 9}};
  absl::StatusOr<Token> token = Token{.id = "3f2a", .revision = 6};
  EXPECT_EQ(*Merge(revocation, token), LocalOutcome::kOverrides);
  EXPECT_EQ(token->revoked_at, 9);
  token->revoked_at = 4;
  EXPECT_EQ(*Merge(revocation, token), LocalOutcome::kAlready);
  EXPECT_EQ(token->revoked_at, 4);
}

TEST_F(LocalChangesTest, OtherChangesAreRefusedAndTheResumptionHereToo) {
  CutOff();
  ASSERT_TRUE(admin_->SuspendTenant(caller_, "acme", true).ok());
  EXPECT_THAT(Resume(), HasSubstr("is not in etcd yet: etcd does not answer"));
  EXPECT_FALSE(admin_->SetQuota(caller_, "acme", {.set = {.jobs = 1}}).ok());
  EXPECT_FALSE(admin_->CreateTenant(caller_, "zeta", {}).ok());
  EXPECT_FALSE(admin_->DeleteTenant(caller_, "acme").ok());
  EXPECT_FALSE(admin_->IssueToken(caller_, {.tenant = "acme"}).ok());
  EXPECT_EQ(disk_.contents.size(), 1u);
  // A tenant that is deleted and created again once etcd answers is another tenant.
  cluster_.reachable = absl::OkStatus();
  ASSERT_TRUE(admin_->DeleteTenant(caller_, "acme").ok());
  ASSERT_TRUE(admin_->CreateTenant(caller_, "acme", {}).ok());
  admin_->Tick(0);
  EXPECT_TRUE(admitted_["acme"]);
}

TEST_F(LocalChangesTest, AStoreThatAnswersAndRefusesIsNotAway) {
  cluster_.frozen = absl::FailedPreconditionError("the control store is frozen");
  EXPECT_THAT(std::string(admin_->SuspendTenant(caller_, "acme", true).status().message()),
              HasSubstr("frozen"));
  EXPECT_FALSE(admin_->RevokeToken(caller_, token_).ok());
  EXPECT_THAT(disk_.contents, IsEmpty());
  EXPECT_TRUE(admitted_["acme"]);
}

TEST_F(LocalChangesTest, AChangeThatIsNotDurableIsRefusedButADrainIsNot) {
  CutOff();
  disk_.fault = absl::ResourceExhaustedError("cannot write /disk/local: No space left on device");
  const absl::Status refused = admin_->SuspendTenant(caller_, "acme", true).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("No space left"));
  EXPECT_FALSE(admin_->RevokeToken(caller_, token_).ok());
  EXPECT_TRUE(admitted_["acme"]);
  EXPECT_TRUE(IsTokenValid());
  EXPECT_TRUE(admin_->Audit(caller_, {.action = "server.drain"}).ok());
  EXPECT_THAT(admin_->Warning(), HasSubstr("lost if phubd stops: cannot write"));
  disk_.fault = absl::OkStatus();
  admin_->Tick(0);
  EXPECT_EQ(disk_.contents.size(), 1u);
  EXPECT_THAT(admin_->Warning(), HasSubstr("1 audit entry waits for etcd; kept in"));
  ASSERT_TRUE(Start().ok());
  Reconnect();
  EXPECT_THAT(Log(), ElementsAre("server.drain: "));
  EXPECT_THAT(disk_.contents, IsEmpty());
}

TEST_F(LocalChangesTest, TheirNumberIsLimited) {
  for (std::size_t i = 0; i < kLocalChangesMax; ++i) {
    const std::string name = "t" + std::to_string(i);
    cluster_.Change(Tenant{.name = name});
    if (i + 1 == kLocalChangesMax) break;
    disk_.contents.push_back({LocalKind::kSuspend, name, cluster_.revision, {.subject = name}});
    disk_.contents.push_back({.kind = LocalKind::kAudit, .note = {.action = "server.drain"}});
  }
  CutOff();
  ASSERT_TRUE(Start().ok());
  ASSERT_TRUE(admin_->SuspendTenant(caller_, "t999", true).ok());
  const absl::Status refused = admin_->SuspendTenant(caller_, "acme", true).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 1000 suspensions"));
  EXPECT_TRUE(admitted_["acme"]);
  // Entries of the audit log have a limit of their own.
  ASSERT_TRUE(admin_->Audit(caller_, {.action = "server.drain"}).ok());
  EXPECT_THAT(std::string(admin_->Audit(caller_, {.action = "server.drain"}).message()),
              HasSubstr("at most 1000 audit entries"));
  Reconnect();
  EXPECT_EQ(cluster_.log.size(), kLocalChangesMax + kLocalEntriesMax);
  EXPECT_THAT(disk_.contents, IsEmpty());
}

// A damaged record delays neither the changes of other tenants nor their entries.
TEST_F(LocalChangesTest, AChangeThatTheStoreRefusesIsTriedAgain) {
  ASSERT_TRUE(admin_->CreateTenant(caller_, "zeta", {}).ok());
  CutOff();
  ASSERT_TRUE(admin_->SuspendTenant(caller_, "acme", true).ok());
  ASSERT_TRUE(admin_->SuspendTenant(caller_, "zeta", true).ok());
  cluster_.damaged = {"acme"};
  Reconnect();
  EXPECT_TRUE(cluster_.tenants["zeta"].suspended);
  EXPECT_FALSE(cluster_.tenants["acme"].suspended);
  EXPECT_EQ(disk_.contents.size(), 1u);
  EXPECT_THAT(Resume(), HasSubstr("not in etcd yet"));
  cluster_.damaged.clear();
  admin_->Tick(0);
  EXPECT_TRUE(cluster_.tenants["acme"].suspended);
  EXPECT_THAT(disk_.contents, IsEmpty());
}

TEST_F(LocalChangesTest, ManyThatTheStoreRefusesDoNotStopTheRest) {
  for (int i = 0; i < 40; ++i) {
    cluster_.Change(Tenant{.name = "t" + std::to_string(i)});
    cluster_.damaged.insert("t" + std::to_string(i));
  }
  CutOff();
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(admin_->SuspendTenant(caller_, "t" + std::to_string(i), true).ok());
  ASSERT_TRUE(admin_->SuspendTenant(caller_, "acme", true).ok());
  for (int i = 0; i < 3; ++i) Reconnect();
  EXPECT_TRUE(cluster_.tenants["acme"].suspended);
  EXPECT_EQ(disk_.contents.size(), 40u);
}

}  // namespace
}  // namespace phub::server
