#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/tenant/ledger.h"

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HandClock final : public Clock {
 public:
  TimeNs Now() const override { return now; }
  TimeNs now = kSecond;
};

Account Job(const char* tenant, std::uint64_t number) {
  return {tenant, "job", Incarnation{number}};
}

class LedgerGrants : public ::testing::Test {
 protected:
  LedgerGrants() {
    ledger_.SetTenant({.name = "acme", .quota = {.jobs = 10, .workers = 100}});
    ledger_.SetTenant({.name = "free"});
    ledger_.UseGrants(clock_);
    ledger_.SetGrantsEnd(10 * kSecond);
  }
  ~LedgerGrants() override { ledger_.CheckInvariants(); }

  HandClock clock_;
  Ledger ledger_{4096};
};

TEST_F(LedgerGrants, ReservationsStayWithinTheGrant) {
  EXPECT_FALSE(ledger_.GrantCovers("acme", {.jobs = 1}));
  EXPECT_THAT(std::string(ledger_.Open(Job("acme", 1), 4).message()),
              HasSubstr("this daemon's part of the cluster's quotas of tenant acme"));
  ledger_.SetGrant("acme", {.jobs = 2, .workers = 10});
  EXPECT_TRUE(ledger_.Open(Job("acme", 1), 4).ok());
  EXPECT_FALSE(ledger_.GrantCovers("acme", {.jobs = 1, .workers = 7}));
  EXPECT_FALSE(ledger_.Open(Job("acme", 2), 7).ok());
  EXPECT_TRUE(ledger_.Open(Job("acme", 2), 6).ok());
  EXPECT_FALSE(ledger_.Open(Job("acme", 3), 0).ok());
  EXPECT_EQ(ledger_.GrantUseOf("acme").charged, (Usage{.jobs = 2, .workers = 10}));
  ledger_.Close(Job("acme", 1));
  EXPECT_EQ(ledger_.GrantUseOf("acme").charged, (Usage{.jobs = 1, .workers = 6}));
  EXPECT_TRUE(ledger_.Open(Job("free", 1), 1000).ok());
  EXPECT_THAT(ledger_.TenantsWithGrants(), ElementsAre("acme", "free"));
}

TEST_F(LedgerGrants, PartsOfAJobThatCountElsewhereNeedNoGrant) {
  EXPECT_TRUE(ledger_.Open(Job("acme", 1), 4, {.job = false, .workers = false}).ok());
  EXPECT_EQ(ledger_.UsageOf("acme").jobs, 1u);
  EXPECT_EQ(ledger_.GrantUseOf("acme").charged, Usage{});
  EXPECT_FALSE(ledger_.Open(Job("acme", 2), 4, {.job = false}).ok());
  ledger_.SetGrant("acme", {.workers = 4});
  EXPECT_TRUE(ledger_.Open(Job("acme", 2), 4, {.job = false}).ok());
}

TEST_F(LedgerGrants, KeysAndMemoryCountToo) {
  ledger_.SetTenant({.name = "acme", .quota = {.memory_bytes = 1000, .keys = 10}});
  EXPECT_TRUE(ledger_.Open(Job("acme", 1), 4).ok());
  EXPECT_TRUE(ledger_.Open(Job("acme", 2), 4, {.keys = false}).ok());
  EXPECT_FALSE(ledger_.AddKeys(Job("acme", 1), 1).ok());
  EXPECT_TRUE(ledger_.AddKeys(Job("acme", 2), 1).ok());
  EXPECT_FALSE(ledger_.Reserve(Job("acme", 2), 1).ok());
  ledger_.SetGrant("acme", {.memory_bytes = 100, .keys = 3});
  EXPECT_TRUE(ledger_.AddKeys(Job("acme", 1), 3).ok());
  EXPECT_TRUE(ledger_.Reserve(Job("acme", 2), 60).ok());
  ledger_.SetLeft("acme", "old", 30);
  EXPECT_FALSE(ledger_.GrantCovers("acme", {.memory_bytes = 11}));
  EXPECT_TRUE(ledger_.Reserve(Job("acme", 1), 10).ok());
  ledger_.SetLeft("acme", "old", 40);  // cannot be refused
  EXPECT_THAT(ledger_.TenantsAboveGrants(), ElementsAre("acme"));
  EXPECT_FALSE(ledger_.Reserve(Job("acme", 1), 1).ok());
  ledger_.ReturnKeys(Job("acme", 1), 1);
  EXPECT_EQ(ledger_.GrantUseOf("acme").charged.keys, 2u);
  ledger_.Close(Job("acme", 1));
  EXPECT_EQ(ledger_.GrantUseOf("acme").charged,
            (Usage{.memory_bytes = 100, .jobs = 1, .workers = 4}));
  ledger_.SetLeft("acme", "old", 0);
}

// As the keys of a group inside a rack that is charged no keys of its jobs.
TEST_F(LedgerGrants, KeysOfNoOtherDaemonAreChargedInAnyCase) {
  ledger_.SetTenant({.name = "acme", .quota = {.keys = 10}});
  ledger_.SetGrant("acme", {.jobs = 1, .workers = 4, .keys = 3});
  EXPECT_TRUE(ledger_.Open(Job("acme", 1), 4, {.keys = false}).ok());
  EXPECT_TRUE(ledger_.AddKeys(Job("acme", 1), 5).ok());
  EXPECT_FALSE(ledger_.AddKeys(Job("acme", 1), 4, /*only_here=*/true).ok());
  EXPECT_TRUE(ledger_.AddKeys(Job("acme", 1), 3, /*only_here=*/true).ok());
  EXPECT_EQ(ledger_.GrantUseOf("acme").charged.keys, 3u);
  ledger_.ReturnKeys(Job("acme", 1), 4);
  ledger_.ReturnKeys(Job("acme", 1), 1, /*only_here=*/true);
  EXPECT_EQ(ledger_.GrantUseOf("acme").charged.keys, 2u);
  ledger_.CheckInvariants();
  ledger_.Close(Job("acme", 1));
  EXPECT_EQ(ledger_.GrantUseOf("acme").charged.keys, 0u);
  ledger_.CheckInvariants();
}

TEST_F(LedgerGrants, AGrantEndsWithItsLease) {
  ledger_.SetGrant("acme", {.jobs = 2, .workers = 10});
  EXPECT_TRUE(ledger_.Open(Job("acme", 1), 1).ok());
  clock_.now = 10 * kSecond;
  EXPECT_FALSE(ledger_.Open(Job("acme", 2), 1).ok());
  // Other daemons may have deleted a tenant without limits, too.
  EXPECT_THAT(std::string(ledger_.Open(Job("free", 1), 1).message()),
              HasSubstr("this daemon has no place in the cluster now"));
  ledger_.SetGrantsEnd(20 * kSecond);
  EXPECT_TRUE(ledger_.Open(Job("acme", 2), 1).ok());
  EXPECT_TRUE(ledger_.Open(Job("free", 1), 1).ok());
}

TEST_F(LedgerGrants, ATenantThatIsBeingDeletedHasNoNewJobs) {
  EXPECT_TRUE(ledger_.Open(Job("free", 1), 1).ok());
  ledger_.SetLeaving("free", true);
  ledger_.SetLeaving("unknown", true);
  EXPECT_THAT(std::string(ledger_.Open(Job("free", 2), 1).message()),
              HasSubstr("tenant free is being deleted"));
  // The jobs that it has go on, whatever else is changed.
  EXPECT_TRUE(ledger_.AddKeys(Job("free", 1), 1).ok());
  EXPECT_TRUE(ledger_.Reserve(Job("free", 1), 10).ok());
  ledger_.SetTenant({.name = "free", .quota = {.keys = 5}});
  EXPECT_TRUE(ledger_.GrantUseOf("free").leaving);
  EXPECT_FALSE(ledger_.Open(Job("free", 2), 1).ok());
  ledger_.SetLeaving("free", false);
  EXPECT_TRUE(ledger_.Open(Job("free", 2), 1).ok());
}

TEST_F(LedgerGrants, ALowerQuotaTakesWhatIsFreeAtOnce) {
  ledger_.SetGrant("acme", {.jobs = 5, .workers = 50});
  EXPECT_TRUE(ledger_.Open(Job("acme", 1), 5).ok());
  ledger_.SetTenant({.name = "acme", .quota = {.jobs = 9, .workers = 100}});
  EXPECT_EQ(ledger_.GrantUseOf("acme").grant, (Usage{.jobs = 1, .workers = 50}));
  EXPECT_FALSE(ledger_.Open(Job("acme", 2), 5).ok());
  // A quota that is not limited any more, and then is again.
  ledger_.SetTenant({.name = "acme"});
  EXPECT_TRUE(ledger_.Open(Job("acme", 2), 5).ok());
  ledger_.SetTenant({.name = "acme", .quota = {.jobs = 9}});
  EXPECT_FALSE(ledger_.GrantCovers("acme", {.jobs = 1}));
  EXPECT_EQ(ledger_.GrantUseOf("acme").charged.jobs, 2u);
}

}  // namespace
}  // namespace phub::server
