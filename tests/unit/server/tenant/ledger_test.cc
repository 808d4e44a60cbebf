#include "server/tenant/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Account kDigits{"default", "digits", Incarnation{1}};
const Account kDigitsAgain{"default", "digits", Incarnation{2}};

TEST(Ledger, ReservesUpToTheLimitAndSaysHowMuchIsMissing) {
  Ledger ledger(4096);
  EXPECT_TRUE(ledger.Open(kDigits, 1).ok());
  EXPECT_TRUE(ledger.Open(kDigitsAgain, 1).ok());
  EXPECT_TRUE(ledger.Reserve(kDigits, 3072).ok());
  const absl::Status refused = ledger.Reserve(kDigitsAgain, 2048);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      AllOf(HasSubstr("digits"), HasSubstr("2.0 KiB more"),
            HasSubstr("1.0 KiB too much (exactly 1024 bytes)"), HasSubstr("hold: digits (3.0 KiB)"),
            HasSubstr("daemon's memory_max is 4.0 KiB")));
  EXPECT_EQ(ledger.used_bytes(), 3072u);
  EXPECT_TRUE(ledger.Reserve(kDigitsAgain, 1024).ok());
  EXPECT_EQ(ledger.used_bytes(), 4096u);
}

TEST(Ledger, SizesThatWouldOverflowAreRefused) {
  Ledger ledger(4096);
  EXPECT_TRUE(ledger.Open(kDigits, 1).ok());
  EXPECT_TRUE(ledger.Reserve(kDigits, 1).ok());
  EXPECT_FALSE(ledger.Reserve(kDigits, UINT64_MAX).ok());
  EXPECT_EQ(ledger.used_bytes(), 1u);
}

TEST(Ledger, RunsOfOneNameHaveAccountsOfTheirOwn) {
  Ledger ledger(4096);
  EXPECT_TRUE(ledger.Open(kDigits, 1).ok());
  EXPECT_TRUE(ledger.Open(kDigitsAgain, 1).ok());
  EXPECT_TRUE(ledger.Reserve(kDigits, 100).ok());
  EXPECT_TRUE(ledger.Reserve(kDigits, 11).ok());
  EXPECT_TRUE(ledger.Reserve(kDigitsAgain, 200).ok());
  EXPECT_EQ(ledger.Close(kDigits), 111u);
  EXPECT_EQ(ledger.Close(kDigits), 0u);
  EXPECT_EQ(ledger.used_bytes(kDigitsAgain), 200u);
  EXPECT_EQ(ledger.used_bytes(), 200u);
  ledger.Return(kDigitsAgain, 50);
  EXPECT_EQ(ledger.used_bytes(), 150u);
}

TEST(Ledger, ATenantHasAQuotaOfItsOwn) {
  Ledger ledger(4096);
  EXPECT_FALSE(ledger.HasTenant("acme"));
  ledger.SetTenant({.name = "acme", .quota = {.memory_bytes = 1000}});
  const Account account{"acme", "digits", Incarnation{1}};
  EXPECT_TRUE(ledger.Open(account, 1).ok());
  EXPECT_TRUE(ledger.Open(kDigits, 1).ok());
  EXPECT_TRUE(ledger.Reserve(account, 600).ok());
  const absl::Status refused = ledger.Reserve(account, 600);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("acme"), HasSubstr("tenant's memory quota")));
  EXPECT_TRUE(ledger.Reserve(kDigits, 3000).ok());
  // Expect: the daemon's limit also applies to a tenant below its quota.
  EXPECT_FALSE(ledger.Reserve(account, 500).ok());
  EXPECT_EQ(ledger.UsageOf("acme").memory_bytes, 600u);
  EXPECT_EQ(ledger.tenant_limit_bytes("acme"), 1000u);
}

TEST(Ledger, JobsWorkersAndKeysAreLimitedAndComeBack) {
  Ledger ledger(4096);
  ledger.SetTenant({.name = "acme", .quota = {.jobs = 2, .workers = 5, .keys = 10}});
  const Account first{"acme", "first", Incarnation{1}};
  const Account second{"acme", "second", Incarnation{2}};
  const Account third{"acme", "third", Incarnation{3}};
  EXPECT_TRUE(ledger.Open(first, 4).ok());
  EXPECT_THAT(std::string(ledger.Open(second, 2).message()),
              AllOf(HasSubstr("2 workers, 1 too many"), HasSubstr("may have 5")));
  EXPECT_TRUE(ledger.Open(second, 1).ok());
  const absl::Status refused = ledger.Open(third, 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("has 2: first (0 B), second (0 B)"));
  EXPECT_TRUE(ledger.AddKeys(first, 7).ok());
  EXPECT_THAT(std::string(ledger.AddKeys(second, 4).message()), HasSubstr("1 too many"));
  EXPECT_TRUE(ledger.AddKeys(second, 3).ok());
  // Expect: the memory of a closed account is available again; other tenants are not affected.
  EXPECT_EQ(ledger.Close(first), 0u);
  EXPECT_EQ(ledger.UsageOf("acme").jobs, 1u);
  EXPECT_EQ(ledger.UsageOf("acme").workers, 1u);
  EXPECT_EQ(ledger.UsageOf("acme").keys, 3u);
  EXPECT_TRUE(ledger.Open(third, 4).ok());
  EXPECT_TRUE(ledger.Open(kDigits, 1000).ok());
}

TEST(Ledger, ALoweredQuotaRefusesWhatIsNewAndTakesNothingAway) {
  Ledger ledger(4096);
  ledger.SetTenant({.name = "acme", .quota = {.memory_bytes = 1000}});
  const Account account{"acme", "digits", Incarnation{1}};
  EXPECT_TRUE(ledger.Open(account, 1).ok());
  EXPECT_TRUE(ledger.Reserve(account, 900).ok());
  ledger.SetTenant({.name = "acme", .suspended = true, .quota = {.memory_bytes = 100}});
  EXPECT_TRUE(ledger.IsSuspended("acme"));
  EXPECT_FALSE(ledger.Reserve(account, 1).ok());
  EXPECT_EQ(ledger.used_bytes(account), 900u);
  const absl::Status kept = ledger.RemoveTenant("acme");
  EXPECT_EQ(kept.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(kept.message()), HasSubstr("digits"));
  EXPECT_EQ(ledger.Close(account), 900u);
  EXPECT_TRUE(ledger.RemoveTenant("acme").ok());
  EXPECT_FALSE(ledger.HasTenant("acme"));
}

TEST(FormatBytes, IsReadable) {
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(std::uint64_t{3} << 30), "3.0 GiB");
}

TEST(Ledger, MemoryThatFormerJobsHaveLeftInUseCounts) {
  Ledger ledger(4096);
  ledger.SetTenant({.name = "acme", .quota = {.memory_bytes = 1000}});
  const Account account{"acme", "digits", Incarnation{2}};
  ledger.SetLeft("acme", "digits", 300);
  ledger.SetLeft("acme", "words", 400);
  ledger.SetLeft("acme", "digits", 350);
  EXPECT_EQ(ledger.UsageOf("acme").memory_bytes, 750u);
  EXPECT_EQ(ledger.used_bytes(), 750u);
  EXPECT_EQ(ledger.left_bytes(), 750u);
  EXPECT_TRUE(ledger.OnlyLeftIsInTheWay("acme", 251));
  EXPECT_FALSE(ledger.OnlyLeftIsInTheWay("acme", 250));
  EXPECT_FALSE(ledger.OnlyLeftIsInTheWay("acme", 1001));
  // Other tenants are limited by it only as far as memory_max is.
  EXPECT_TRUE(ledger.OnlyLeftIsInTheWay(kDefaultTenant, 4096));
  EXPECT_FALSE(ledger.OnlyLeftIsInTheWay(kDefaultTenant, 4096 - 750));
  ASSERT_TRUE(ledger.Open(account, 1).ok());
  EXPECT_TRUE(ledger.Reserve(account, 250).ok());
  EXPECT_THAT(std::string(ledger.Reserve(account, 1).message()),
              AllOf(HasSubstr("1000 B are reserved"), HasSubstr("digits (350 B), words (400 B)")));
  EXPECT_THAT(ledger.DescribeHolders(), HasSubstr("acme 1000 B"));
  // It may exceed a limit, because it cannot be refused; then nothing is free.
  ledger.SetLeft("acme", "words", 10'000);
  EXPECT_FALSE(ledger.Reserve(account, 1).ok());
  EXPECT_FALSE(ledger.Reserve(account, UINT64_MAX).ok());
  ledger.CheckInvariants();
  ledger.SetLeft("acme", "words", 0);
  ledger.SetLeft("acme", "digits", 0);
  EXPECT_EQ(ledger.used_bytes(), 250u);
  EXPECT_TRUE(ledger.Reserve(account, 750).ok());
  ledger.CheckInvariants();
}

}  // namespace
}  // namespace phub::server
