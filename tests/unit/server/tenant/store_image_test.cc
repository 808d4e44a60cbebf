#include "server/tenant/store_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/tenant/audit_chain.h"
#include "server/tenant/sqlite_store.h"
#include "server/tenant/token.h"
#include "tests/support/temporary_folder.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

AuditNote Note(const std::string& action) { return {"me", "", action, "", "", "ok", 7}; }

// A store with this key, and a log of that many entries.
StoreImage Image(const std::string& name, char key, int entries) {
  StoreImage image;
  image.name = name;
  image.key = std::string(kHashKeyBytes, key);
  const std::string key_id = TokenKeyId(image.key);
  image.keys[key_id] = image.key;
  std::string chain;
  for (int i = 0; i < entries; ++i) {
    image.log.entries.push_back(NextEntry(image.key, i, chain, Note(name)));
    chain = image.log.entries.back().chain;
  }
  image.log.id = AuditLogId(image.log.entries);
  image.log.key_id = key_id;
  return image;
}

void AddToken(StoreImage& image, const std::string& id, const std::string& tenant) {
  image.tokens.push_back({.id = id, .tenant = tenant, .hash = "h" + id});
  image.tokens.back().key_id = TokenKeyId(image.key);
}

std::string Refusal(const std::vector<StoreImage>& sources, const StoreImage& target) {
  const auto plan = PlanCopy(sources, target);
  return plan.ok() ? "" : std::string(plan.status().message());
}

TEST(CopyPlans, HaveWhatTheTargetLacksAndTheKeysForIt) {
  StoreImage one = Image("one", '1', 3);
  StoreImage two = Image("two", '2', 2);
  one.tenants = {{.name = "acme", .quota = {.jobs = 4}, .created_at = 1}, {.name = "zeta"}};
  two.tenants = {{.name = "acme", .quota = {.jobs = 4}, .created_at = 2}};
  AddToken(one, "t1", "acme");
  AddToken(two, "t2", "acme");
  const auto plan = PlanCopy({one, two}, Image("target", '1', 1));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->tenants, SizeIs(2));
  EXPECT_EQ(plan->tenants[0].created_at, 1);
  EXPECT_EQ(plan->equal_tenants, 1u);
  ASSERT_THAT(plan->tokens, SizeIs(2));
  EXPECT_EQ(plan->tokens[0].key_id, "");  // the target has the first store's key
  EXPECT_EQ(plan->tokens[1].key_id, TokenKeyId(two.key));
  ASSERT_THAT(plan->keys, SizeIs(1));
  EXPECT_EQ(plan->keys.at(TokenKeyId(two.key)), two.key);
  EXPECT_EQ(plan->entry_count(), 5u);
}

TEST(CopyPlans, NameEveryDifferenceWithBothValues) {
  StoreImage one = Image("one", '1', 1);
  StoreImage two = Image("two", '2', 1);
  StoreImage target = Image("target", '3', 1);
  one.tenants = {{.name = "acme", .quota = {.jobs = 4}}, {.name = "zeta"}, {.name = "eta"}};
  two.tenants = {{.name = "acme", .quota = {.jobs = 5}}, {.name = "eta"}};
  target.tenants = {{.name = "zeta", .suspended = true}};
  EXPECT_THAT(
      Refusal({one, two}, target),
      AllOf(HasSubstr("tenant acme: two has \"jobs 5\", one has \"jobs 4\""),
            HasSubstr("tenant zeta: one has \"no limits\", target has \"no limits, suspended\""),
            Not(HasSubstr("eta: two"))));
  // A token that was revoked in one of them.
  StoreImage copied = Image("copied", '1', 1);
  AddToken(one, "t1", "");
  AddToken(copied, "t1", "");
  copied.tokens[0].revoked_at = 5;
  one.tenants.clear();
  EXPECT_THAT(Refusal({one}, copied), HasSubstr("token t1: one has"));
  copied.tokens[0] = one.tokens[0];
  copied.tokens[0].hash = "forged";
  EXPECT_THAT(Refusal({one}, copied), HasSubstr("token t1: one has"));
}

TEST(CopyPlans, ContinueALogThatWasCopiedBefore) {
  const StoreImage longer = Image("one", '1', 5);
  StoreImage target = Image("target", '3', 1);
  target.old_logs = {Image("one", '1', 3).log};
  auto plan = PlanCopy({longer}, target);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->logs, SizeIs(1));
  ASSERT_THAT(plan->logs[0].entries, SizeIs(2));
  EXPECT_EQ(plan->logs[0].entries[0].sequence, 4);
  // The same log in two sources is copied once.
  plan = PlanCopy({Image("one", '1', 4), longer}, target);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->entry_count(), 2u);
  // All of it is there: as an old log, or as the target's own.
  target.old_logs = {longer.log};
  EXPECT_TRUE(PlanCopy({Image("one", '1', 5)}, target)->empty());
  EXPECT_TRUE(PlanCopy({Image("one", '1', 4)}, longer)->empty());
}

TEST(CopyPlans, RefuseLogsThatDoNotContinueEachOther) {
  StoreImage one = Image("one", '1', 3);
  StoreImage target = Image("target", '3', 1);
  target.old_logs = {one.log};
  one.log.entries.back().chain = "else";
  EXPECT_THAT(Refusal({one}, target), HasSubstr("one does not continue the other"));
  // The target is an older state of the source.
  EXPECT_THAT(Refusal({Image("one", '1', 3)}, Image("one", '1', 2)),
              HasSubstr("one has 3 entries, one has 2"));
}

TEST(CopyPlans, NeedIntactLogs) {
  StoreImage one = Image("one", '1', 3);
  EXPECT_TRUE(CheckLogs(one).ok());
  one.log.entries[1].detail = "changed";
  EXPECT_THAT(std::string(CheckLogs(one).message()), HasSubstr("audit entry 2 was changed"));
  one = Image("one", '1', 3);
  one.old_logs = {Image("two", '2', 1).log};
  EXPECT_THAT(std::string(CheckLogs(one).message()), HasSubstr("token key"));
  one.keys[TokenKeyId(std::string(kHashKeyBytes, '2'))] = std::string(kHashKeyBytes, '2');
  EXPECT_TRUE(CheckLogs(one).ok());
}

TEST(SqliteCopies, HaveEverythingAndAreFrozen) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/state";
  SystemRandom random;
  StoreImage source = Image("one", '1', 3);
  source.tenants = {{.name = "acme", .suspended = true, .quota = {.jobs = 4, .weight = 2}}};
  AddToken(source, "t1", "acme");
  {
    auto store = *SqliteStore::Open(path, random);
    const auto plan = PlanCopy({source}, *store->Read("target"));
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(store->Import(*plan, Note("store.copy")).ok());
    const auto image = store->Read("target");
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE(CheckLogs(*image).ok());
    EXPECT_TRUE(image->tenants[0].suspended);
    EXPECT_EQ(image->tenants[0].quota, source.tenants[0].quota);
    EXPECT_EQ(image->tokens[0].key_id, TokenKeyId(source.key));
    EXPECT_THAT(image->old_logs, SizeIs(1));
    EXPECT_TRUE(PlanCopy({source}, *image)->empty());
    EXPECT_EQ(*store->ReadOtherKey(TokenKeyId(source.key)), source.key);
    // Nothing of a plan that fails is written.
    EXPECT_FALSE(store->Import(*plan, Note("store.copy")).ok());
    EXPECT_EQ(*store->LastAuditSequence(), 1);
    ASSERT_TRUE(store->Freeze("it was copied to etcd", Note("store.freeze")).ok());
  }
  const auto refused = SqliteStore::Open(path, random);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("is frozen, because it was copied to etcd"),
                    HasSubstr("phubctl store thaw sqlite:" + path)));
  ASSERT_TRUE((*SqliteStore::Open(path, random, Frozen::kAccepted))->Thaw(Note("t")).ok());
  EXPECT_TRUE(SqliteStore::Open(path, random).ok());
}

}  // namespace
}  // namespace phub::server
