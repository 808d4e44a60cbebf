#include "server/tenant/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const Account kDigits{"default", "digits", Incarnation{1}};
const Account kDigitsAgain{"default", "digits", Incarnation{2}};

TEST(Ledger, ReservesUpToTheLimitAndSaysHowMuchIsMissing) {
  Ledger ledger(4096);
  EXPECT_TRUE(ledger.Reserve(kDigits, 3072).ok());
  const absl::Status refused = ledger.Reserve(kDigitsAgain, 2048);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("digits"), HasSubstr("2.0 KiB more"), HasSubstr("1.0 KiB too much"),
                    HasSubstr("daemon's 4.0 KiB")));
  EXPECT_EQ(ledger.used_bytes(), 3072u);
  EXPECT_TRUE(ledger.Reserve(kDigitsAgain, 1024).ok());
  EXPECT_EQ(ledger.used_bytes(), 4096u);
}

TEST(Ledger, SizesThatWouldOverflowAreRefused) {
  Ledger ledger(4096);
  EXPECT_TRUE(ledger.Reserve(kDigits, 1).ok());
  EXPECT_FALSE(ledger.Reserve(kDigits, UINT64_MAX).ok());
  EXPECT_EQ(ledger.used_bytes(), 1u);
}

TEST(Ledger, RunsOfOneNameHaveAccountsOfTheirOwn) {
  Ledger ledger(4096);
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
  ledger.AddTenant("acme", 1000);
  const Account account{"acme", "digits", Incarnation{1}};
  EXPECT_TRUE(ledger.Reserve(account, 600).ok());
  const absl::Status refused = ledger.Reserve(account, 600);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("acme"), HasSubstr("tenant's")));
  EXPECT_TRUE(ledger.Reserve(kDigits, 3000).ok());
  // Expect: the daemon's limit holds for a tenant that is below its quota.
  EXPECT_FALSE(ledger.Reserve(account, 500).ok());
  EXPECT_EQ(ledger.tenant_used_bytes("acme"), 600u);
  EXPECT_EQ(ledger.tenant_limit_bytes("acme"), 1000u);
}

TEST(FormatBytes, IsReadable) {
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(std::uint64_t{3} << 30), "3.0 GiB");
}

}  // namespace
}  // namespace phub::server
