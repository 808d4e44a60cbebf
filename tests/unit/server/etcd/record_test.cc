#include "server/etcd/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "phub/store/records.pb.h"

namespace phub::server::etcd {
namespace {

using ::testing::HasSubstr;

const Tenant kAcme{.name = "acme",
                   .suspended = true,
                   .quota = {.memory_bytes = 0, .weight = 7},
                   .created_at = 17,
                   .encryption_required = true};
const Token kToken{"0123456789abcdef", Role::kTenant, "acme", "ci", "hash", 1, 2, 3, "uid 0"};

class RecordsTest : public ::testing::Test {
 protected:
  const Records records_{std::string(32, 'k'), "cluster"};
  const std::string key_ = TenantKey("acme");
};

TEST_F(RecordsTest, AreReadAsTheyWereWritten) {
  EXPECT_EQ(*records_.ToTenant(key_, records_.OfTenant(kAcme)), kAcme);
  const auto token = records_.ToToken(TokenKey(kToken), records_.OfToken(kToken));
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->hash, "hash");
  EXPECT_EQ(token->revoked_at, 3);
  EXPECT_EQ(token->role, Role::kTenant);
  EXPECT_EQ(records_.ToHead(records_.OfHead({5, "chain"}))->sequence, 5);
  const GrantRecord grant{"acme", "b", {1, 2, 3, 4}, true, "id", {5, 6, 7, 8}};
  Token other = kToken;
  other.key_id = "1a2b3c4d";
  EXPECT_EQ(records_.ToToken(TokenKey(other), records_.OfToken(other))->key_id, "1a2b3c4d");
  const AuditLog log{"aa", "1a2b3c4d", "sqlite:/x", 7, {}};
  std::int64_t entries = 0;
  const auto read = records_.ToLog(LogKey("aa"), records_.OfLog(log, 9), entries);
  EXPECT_EQ(read->source, "sqlite:/x");
  EXPECT_EQ(read->key_id, "1a2b3c4d");
  EXPECT_EQ(entries, 9);
  // An entry of a copied log cannot be put into another place.
  const AuditEntry entry{.sequence = 3, .chain = "c"};
  const std::string value = records_.OfEntryAt(LogEntryKey("aa", 3), entry, "");
  EXPECT_TRUE(records_.ToEntry(LogEntryKey("aa", 3), value).ok());
  EXPECT_FALSE(records_.ToEntry(AuditKey(3), value).ok());
  EXPECT_FALSE(records_.ToEntry(LogEntryKey("bb", 3), value).ok());
  EXPECT_EQ(records_.ToFreeze(records_.OfFreeze({"moved", "node1", 17, 3}))->process, 17);
  EXPECT_EQ(*records_.ToGrant(GrantKey("acme", "b"), records_.OfGrant(grant)), grant);
}

// Each changed byte, each part and each addition is noticed: protobuf alone would read most of
// them.
TEST_F(RecordsTest, ThatSomethingElseHasTouchedAreRefused) {
  const std::string right = records_.OfTenant(kAcme);
  for (std::size_t i = 0; i < right.size(); ++i) {
    EXPECT_FALSE(records_.ToTenant(key_, right.substr(0, i)).ok()) << i;
    for (const char bit : {'\x01', '\x80'}) {
      std::string wrong = right;
      wrong[i] = static_cast<char>(wrong[i] ^ bit);
      EXPECT_FALSE(records_.ToTenant(key_, wrong).ok()) << i;
    }
  }
  EXPECT_TRUE(absl::IsDataLoss(records_.ToTenant(key_, "{\"name\": \"acme\"}").status()));
}

TEST_F(RecordsTest, BelongToTheirKeyAndCluster) {
  const std::string right = records_.OfTenant(kAcme);
  EXPECT_TRUE(absl::IsDataLoss(records_.ToTenant(TenantKey("zeta"), right).status()));
  const Records other(std::string(32, 'k'), "another cluster");
  EXPECT_TRUE(absl::IsDataLoss(other.ToTenant(key_, right).status()));
}

TEST_F(RecordsTest, OfAnotherTokenKeyOrANewerVersionSaySo) {
  const Records other(std::string(32, 'x'), "cluster");
  const absl::Status refused = other.ToTenant(key_, records_.OfTenant(kAcme)).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr(records_.key_id()));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(other.key_id()));
  phub::store::v1::Record newer;
  newer.set_version(kRecordVersion + 1);
  EXPECT_THAT(std::string(records_.Open(key_, newer.SerializeAsString()).status().message()),
              HasSubstr("a newer phubd"));
}

}  // namespace
}  // namespace phub::server::etcd
