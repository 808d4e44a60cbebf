#include "server/control/rpc/tenant_places.h"

#include <gtest/gtest.h>

namespace phub::server {
namespace {

constexpr CrowdLimits kLimits = {.connections_max = 40, .known_per_block_max = 12};

int TakeAll(TenantPlaces& places, const std::string& tenant, const std::string& block) {
  int taken = 0;
  while (places.Take(tenant, block).ok()) ++taken;
  return taken;
}

TEST(TenantPlaces, ATenantHasThreeQuartersOfAnAddressAndHalfOfAll) {
  TenantPlaces places(kLimits);
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.1"), 9);
  const absl::Status refused = places.Take("acme", "10.0.0.1");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "tenant acme already has 9 connections from 10.0.0.1, the most that one tenant may "
            "have; close some");
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.2"), 9);
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.3"), 2);
  EXPECT_EQ(places.Take("acme", "10.0.0.4").message(),
            "tenant acme already has 20 connections, the most that one tenant may have; close "
            "some");
  // Expect: another tenant is not affected.
  EXPECT_EQ(TakeAll(places, "zeta", "10.0.0.1"), 9);
}

TEST(TenantPlaces, WhatIsReturnedCanBeTakenAgain) {
  TenantPlaces places(kLimits);
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.1"), 9);
  for (int i = 0; i < 9; ++i) places.Return("acme", "10.0.0.1");
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.1"), 9);
}

TEST(TenantPlaces, FewDescriptorsLeavePlacesForSeveralTenants) {
  TenantPlaces places(ScaledTo({}, 64));
  EXPECT_GT(TakeAll(places, "acme", "10.0.0.1"), 0);
  EXPECT_GT(TakeAll(places, "zeta", "10.0.0.1"), 0);
}

}  // namespace
}  // namespace phub::server
