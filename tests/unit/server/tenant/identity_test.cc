// Tokens, the directory that stores them, and the administrator's changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/tenant/authorization.h"
#include "server/tenant/sqlite_store.h"
#include "server/tenant/tenant_admin.h"
#include "server/tenant/token.h"

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class IdentityTest : public ::testing::Test {
 protected:
  IdentityTest() {
    auto store = SqliteStore::Open("", random_);
    AdmissionHooks hooks;
    hooks.set_tenant = [this](const Tenant& tenant) { in_force_.push_back(tenant); };
    hooks.remove_tenant = [this](const std::string&) { return removal_; };
    admin_ = *TenantAdmin::Create(*std::move(store), directory_, random_, hooks);
    admin_caller_.role = Role::kAdmin;
    admin_caller_.name = "uid 0";
    EXPECT_TRUE(admin_->CreateTenant(admin_caller_, "acme", {.jobs = 2}).ok());
  }
  IssuedToken Issue(TokenRequest request) {
    auto issued = admin_->IssueToken(admin_caller_, request);
    EXPECT_TRUE(issued.ok()) << issued.status();
    return issued.ok() ? *std::move(issued) : IssuedToken();
  }
  // "ok", or the fault's number and the message.
  std::string Identify(const std::string& text, WallTimeNs now = WallNow()) {
    fault_ = IdentityFault::kNone;
    const auto caller = directory_.IdentifyToken(text, now, fault_);
    if (!caller.ok()) return std::string(caller.status().message());
    return caller->name;
  }

  SystemRandom random_;
  Directory directory_;
  std::vector<Tenant> in_force_;
  absl::Status removal_;
  Caller admin_caller_;
  std::unique_ptr<TenantAdmin> admin_;
  IdentityFault fault_ = IdentityFault::kNone;
};

TEST(Token, TextsAreReadBackAndNothingElseIs) {
  SystemRandom random;
  const TokenText token = DrawToken(random);
  const std::string text = token.ToString();
  EXPECT_EQ(text.size(), 5 + 16 + 1 + 64u);
  ASSERT_TRUE(ParseToken(text).has_value());
  EXPECT_EQ(ParseToken(text)->secret, token.secret);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string wrong = text;
    wrong[i] = 'G';
    EXPECT_FALSE(ParseToken(wrong).has_value()) << i;
    EXPECT_FALSE(ParseToken(text.substr(0, i)).has_value()) << i;
  }
  EXPECT_FALSE(ParseToken(text + "0").has_value());
  EXPECT_FALSE(ParseToken(std::string(1 << 20, 'a')).has_value());
}

TEST_F(IdentityTest, TokensOfAnotherStoreNeedItsKey) {
  const std::string key(kHashKeyBytes, 'o');
  const TokenText text = DrawToken(random_);
  Token token{.id = text.id, .tenant = "acme", .hash = KeyedHash(key, text.secret)};
  directory_.SetToken(token);
  EXPECT_THAT(Identify(text.ToString()), HasSubstr("is not valid on this daemon"));
  token.key_id = TokenKeyId(key);
  directory_.SetToken(token);
  EXPECT_THAT(Identify(text.ToString()), HasSubstr("the file of token key " + token.key_id));
  EXPECT_THAT(directory_.MissingKeys(), ElementsAre(token.key_id));
  directory_.AddKey(token.key_id, std::string(kHashKeyBytes, 'x'));
  EXPECT_THAT(Identify(text.ToString()), HasSubstr("is not valid on this daemon"));
  directory_.AddKey(token.key_id, key);
  EXPECT_THAT(Identify(text.ToString()), HasSubstr("of tenant acme"));
  EXPECT_TRUE(directory_.MissingKeys().empty());
}

TEST_F(IdentityTest, ATokenIsKnownUntilItIsRevoked) {
  const IssuedToken issued = Issue({.tenant = "acme", .label = "ci"});
  EXPECT_EQ(Identify(issued.text), "token " + issued.token.id + " of tenant acme");
  EXPECT_TRUE(admin_->RevokeToken(admin_caller_, issued.token.id).ok());
  EXPECT_THAT(Identify(issued.text), HasSubstr("revoked"));
  EXPECT_EQ(fault_, IdentityFault::kRevoked);
}

TEST_F(IdentityTest, AForgedSecretIsNotToldFromAnUnknownToken) {
  const IssuedToken issued = Issue({.tenant = "acme"});
  std::string forged = issued.text;
  forged.back() = forged.back() == '0' ? '1' : '0';
  const std::string message = Identify(forged);
  EXPECT_EQ(fault_, IdentityFault::kForged);
  EXPECT_THAT(message, Not(HasSubstr(issued.text.substr(22))));  // no part of the secret
  EXPECT_TRUE(admin_->RevokeToken(admin_caller_, issued.token.id).ok());
  EXPECT_EQ(Identify(forged), message);
  EXPECT_THAT(Identify("phub_x"), HasSubstr("not a phub token"));
  EXPECT_EQ(fault_, IdentityFault::kMalformed);
}

TEST_F(IdentityTest, ATokenEndsWhenItsTimeIsOver) {
  const IssuedToken issued = Issue({.tenant = "acme", .lifetime = 60 * kSecond});
  EXPECT_THAT(Identify(issued.text, issued.token.expires_at - 1), HasSubstr("acme"));
  EXPECT_THAT(Identify(issued.text, issued.token.expires_at), HasSubstr("expired"));
  EXPECT_EQ(fault_, IdentityFault::kExpired);
}

TEST_F(IdentityTest, ARotatedTokenIsGoodForItsGrace) {
  const IssuedToken old = Issue({.tenant = "acme", .label = "ci"});
  const IssuedToken renewed = Issue({.replaces = old.token.id, .grace = 60 * kSecond});
  EXPECT_EQ(renewed.token.label, "ci");
  EXPECT_THAT(Identify(renewed.text), HasSubstr("acme"));
  EXPECT_THAT(Identify(old.text), HasSubstr("acme"));
  EXPECT_THAT(Identify(old.text, WallNow() + 61 * kSecond), HasSubstr("expired"));
  // Expect: rotation does not extend the old token's lifetime.
  const WallTimeNs end = directory_.FindToken(old.token.id)->expires_at;
  Issue({.replaces = old.token.id, .grace = 3600 * kSecond});
  EXPECT_EQ(directory_.FindToken(old.token.id)->expires_at, end);
}

TEST_F(IdentityTest, ARotatedTokenLivesAsLongAsTheOneBefore) {
  const IssuedToken old = Issue({.tenant = "acme", .lifetime = 720 * 3600 * kSecond});
  const IssuedToken renewed = Issue({.replaces = old.token.id, .grace = kSecond});
  EXPECT_EQ(renewed.token.expires_at - renewed.token.created_at, 720 * 3600 * kSecond);
  const IssuedToken shorter =
      Issue({.lifetime = 60 * kSecond, .replaces = renewed.token.id, .grace = kSecond});
  EXPECT_EQ(shorter.token.expires_at - shorter.token.created_at, 60 * kSecond);
  const IssuedToken forever = Issue({.tenant = "acme"});
  EXPECT_EQ(Issue({.replaces = forever.token.id}).token.expires_at, 0);
}

TEST_F(IdentityTest, WrongRequestsForTokensAreRefused) {
  const auto code = [&](const TokenRequest& request) {
    return admin_->IssueToken(admin_caller_, request).status().code();
  };
  EXPECT_EQ(code({.tenant = "nobody"}), absl::StatusCode::kNotFound);
  EXPECT_EQ(code({.role = Role::kAdmin, .tenant = "acme"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.role = Role::kTenant}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.role = Role::kNone}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.tenant = "acme", .label = "a\nb"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.tenant = "acme", .lifetime = -1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.replaces = "0000000000000000"}), absl::StatusCode::kNotFound);
}

TEST_F(IdentityTest, CertificatesNameTenantsAndRoles) {
  const auto identify = [&](const std::string& uri) {
    return directory_.IdentifyUri(uri, "rack.example", fault_);
  };
  const auto tenant = identify("spiffe://rack.example/tenant/acme");
  ASSERT_TRUE(tenant.ok());
  EXPECT_EQ(tenant->role, Role::kTenant);
  EXPECT_EQ(tenant->tenant, "acme");
  EXPECT_EQ(identify("spiffe://rack.example/admin/ada")->role, Role::kAdmin);
  EXPECT_EQ(identify("spiffe://rack.example/operator/bob")->role, Role::kOperator);
  EXPECT_EQ(identify("spiffe://rack.example/server/node1")->role, Role::kServer);
  for (const char* wrong :
       {"", "spiffe://rack.example/", "spiffe://rack.example/tenant",
        "spiffe://rack.example/tenant/", "spiffe://rack.example/tenant/acme/x",
        "spiffe://rack.example/none/x", "spiffe://rack.example.evil/tenant/acme",
        "spiffe://other/tenant/acme", "https://rack.example/tenant/acme"}) {
    EXPECT_EQ(identify(wrong).status().code(), absl::StatusCode::kUnauthenticated) << wrong;
    EXPECT_EQ(fault_, IdentityFault::kCertificate) << wrong;
  }
  EXPECT_FALSE(identify("spiffe://rack.example/tenant/nobody").ok());
  EXPECT_EQ(fault_, IdentityFault::kTenantGone);
}

TEST_F(IdentityTest, ChangesAreInForceAndAudited) {
  EXPECT_TRUE(admin_->SetQuota(admin_caller_, "acme", {.set = {.memory_bytes = 4096}}).ok());
  EXPECT_EQ(in_force_.back().quota, (Quota{.memory_bytes = 4096, .jobs = 2}));
  EXPECT_TRUE(admin_->SetQuota(admin_caller_, "acme", {.set = {}, .clear = {"jobs"}}).ok());
  EXPECT_EQ(in_force_.back().quota, Quota{.memory_bytes = 4096});
  EXPECT_FALSE(admin_->SetQuota(admin_caller_, "acme", {.set = {}, .clear = {"cores"}}).ok());
  EXPECT_TRUE(admin_->SuspendTenant(admin_caller_, "acme", true).ok());
  EXPECT_TRUE(in_force_.back().suspended);
  const auto audit = admin_->store().ReadAudit(0, 100);
  std::vector<std::string> actions;
  for (const AuditEntry& entry : *audit) actions.push_back(entry.action);
  EXPECT_THAT(actions, ElementsAre("tenant.create", "tenant.set-quota", "tenant.set-quota",
                                   "tenant.suspend"));
  EXPECT_EQ((*audit)[1].actor, "uid 0");
  EXPECT_EQ((*audit)[1].detail, "memory 4KiB, jobs 2");
}

TEST_F(IdentityTest, SharesAreSetWithinBoundsAndLifted) {
  const Quota shares = {.weight = 200, .bandwidth_bytes = 1 << 30};
  EXPECT_TRUE(admin_->SetQuota(admin_caller_, "acme", {.set = shares}).ok());
  EXPECT_EQ(in_force_.back().quota.weight, 200u);
  EXPECT_EQ(in_force_.back().quota.bandwidth_bytes, 1u << 30);
  for (const Quota& wrong :
       {Quota{.weight = 0}, Quota{.weight = 10'001}, Quota{.bandwidth_bytes = 1}}) {
    EXPECT_EQ(admin_->SetQuota(admin_caller_, "acme", {.set = wrong}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(
      admin_->SetQuota(admin_caller_, "acme", {.set = {}, .clear = {"weight", "bandwidth_bytes"}})
          .ok());
  EXPECT_EQ(in_force_.back().quota.weight, std::nullopt);
  EXPECT_EQ((*admin_->store().ReadAudit(1, 100))[0].detail, "jobs 2, weight 200, bandwidth 1GiB/s");
}

TEST_F(IdentityTest, ATenantWithJobsIsNotDeletedAndADeletedOnesTokensAreNothing) {
  const IssuedToken issued = Issue({.tenant = "acme"});
  removal_ = absl::FailedPreconditionError("it has jobs");
  EXPECT_FALSE(admin_->DeleteTenant(admin_caller_, "acme").ok());
  EXPECT_THAT(Identify(issued.text), HasSubstr("acme"));
  removal_ = absl::OkStatus();
  EXPECT_TRUE(admin_->DeleteTenant(admin_caller_, "acme").ok());
  Identify(issued.text);
  EXPECT_EQ(fault_, IdentityFault::kForged);
  EXPECT_EQ(admin_->DeleteTenant(admin_caller_, "acme").code(), absl::StatusCode::kNotFound);
  // Expect: creating a tenant of the same name does not revive the old tokens.
  EXPECT_TRUE(admin_->CreateTenant(admin_caller_, "acme", {}).ok());
  Identify(issued.text);
  EXPECT_EQ(fault_, IdentityFault::kForged);
}

TEST_F(IdentityTest, NamesOfTenantsArePlain) {
  for (const char* name : {"a", "acme", "team-7", "7.x_y"}) EXPECT_TRUE(IsTenantName(name)) << name;
  for (const char* name : {"", "-a", "Acme", "a b", "a/b", "a\n", "ä"}) {
    EXPECT_FALSE(IsTenantName(name)) << name;
  }
  EXPECT_FALSE(IsTenantName(std::string(64, 'a')));
  EXPECT_EQ(admin_->CreateTenant(admin_caller_, "a/b", {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(admin_->CreateTenant(admin_caller_, "acme", {}).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST(Authorization, WhatHasNoRowIsNobodys) {
  Caller caller;
  caller.role = Role::kAdmin;
  EXPECT_EQ(Authorize(caller, "phub.v1.Admin/Explode").code(), absl::StatusCode::kPermissionDenied);
  caller.open = true;
  EXPECT_EQ(Authorize(caller, "phub.v1.Admin/Explode").code(), absl::StatusCode::kPermissionDenied);
}

TEST(Authorization, NobodyMayNothingAndEveryRowIsThereOnce) {
  std::set<std::string_view> seen;
  for (const MethodRule& rule : MethodRules()) {
    EXPECT_TRUE(seen.insert(rule.method).second) << rule.method;
    EXPECT_FALSE(rule.Allows(Role::kNone)) << rule.method;
    EXPECT_EQ(Authorize(Caller{}, rule.method).code(), absl::StatusCode::kUnauthenticated);
    EXPECT_NE(rule.roles, 0u) << rule.method;
  }
}

}  // namespace
}  // namespace phub::server
