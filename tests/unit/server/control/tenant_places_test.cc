#include "server/control/rpc/tenant_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/base/random.h"

namespace phub::server {
namespace {

using Holder = TenantPlaces::Holder;
using Answer = TenantPlaces::Answer;

constexpr CrowdLimits kLimits = {.connections_max = 40, .known_max = 30, .known_per_block_max = 12};

int TakeAll(TenantPlaces& places, const std::string& tenant, const std::string& block) {
  int taken = 0;
  while (!places.Take({tenant, block}).refusal.has_value()) ++taken;
  return taken;
}

TEST(TenantPlaces, ATenantHasThreeQuartersOfAnAddressAndHalfOfAll) {
  TenantPlaces places(kLimits);
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.1"), 9);
  const Answer refused = places.Take({"acme", "10.0.0.1"});
  ASSERT_TRUE(refused.refusal.has_value());
  EXPECT_FALSE(refused.refusal->crowd);
  EXPECT_EQ(refused.refusal->status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.refusal->status.message(),
            "tenant acme already has 9 connections from 10.0.0.1, the most that one tenant may "
            "have; close some");
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.2"), 9);
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.3"), 2);
  EXPECT_EQ(places.Take({"acme", "10.0.0.4"}).refusal->status.message(),
            "tenant acme already has 20 connections, the most that one tenant may have; close "
            "some");
  // Expect: another tenant is not affected.
  for (int i = 0; i < 3; ++i) {
    const Answer taken = places.Take({"zeta", "10.0.0.1"});
    EXPECT_FALSE(taken.refusal.has_value() || taken.displaced.has_value());
  }
}

TEST(TenantPlaces, WhatIsReturnedCanBeTakenAgain) {
  TenantPlaces places(kLimits);
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.1"), 9);
  for (int i = 0; i < 9; ++i) places.Return({"acme", "10.0.0.1"});
  EXPECT_EQ(TakeAll(places, "acme", "10.0.0.1"), 9);
}

TEST(TenantPlaces, FewDescriptorsLeavePlacesForSeveralTenants) {
  TenantPlaces places(ScaledTo({}, 64));
  EXPECT_GT(TakeAll(places, "acme", "10.0.0.1"), 0);
  EXPECT_GT(TakeAll(places, "zeta", "10.0.0.1"), 0);
}

TEST(TenantPlaces, WhenAnAddressIsFullNewcomersTakeFromTheTenantThatHasTheMostThere) {
  TenantPlaces places(kLimits);
  EXPECT_EQ(TakeAll(places, "one", "10.0.0.1"), 9);
  // "two" takes the three places that are left, then others of "one" until they are equal.
  EXPECT_EQ(TakeAll(places, "two", "10.0.0.1"), 6);
  EXPECT_TRUE(places.Take({"one", "10.0.0.1"}).refusal->crowd);
  const Answer newcomer = places.Take({"zeta", "10.0.0.1"});
  EXPECT_FALSE(newcomer.refusal.has_value());
  EXPECT_EQ(newcomer.displaced, (Holder{"one", "10.0.0.1"}));
  // Expect: the tenant that was displaced cannot take its place back, from anybody.
  EXPECT_EQ(places.Take({"one", "10.0.0.1"}).refusal->status.message(),
            "all 12 places for connections from 10.0.0.1 are taken; try again later");
  // Administrators get in, too, and give up nothing.
  EXPECT_EQ(places.Take({"", "10.0.0.1"}).displaced, (Holder{"two", "10.0.0.1"}));
  EXPECT_EQ(TakeAll(places, "", "10.0.0.1"), 11);
  EXPECT_TRUE(places.Take({"one", "10.0.0.1"}).refusal->crowd);
}

TEST(TenantPlaces, WhenAllAreTakenNewcomersTakeFromTheTenantThatHasTheMostInAll) {
  TenantPlaces places(kLimits);
  EXPECT_EQ(TakeAll(places, "one", "10.0.0.1"), 9);
  EXPECT_EQ(TakeAll(places, "one", "10.0.0.2"), 9);
  EXPECT_EQ(TakeAll(places, "two", "10.0.0.3"), 9);
  for (int i = 0; i < 3; ++i) places.Take({"two", "10.0.0.2"});
  EXPECT_EQ(places.Take({"zeta", "10.0.0.9"}).displaced, (Holder{"one", "10.0.0.1"}));
  EXPECT_EQ(places.Take({"zeta", "10.0.0.9"}).displaced, (Holder{"one", "10.0.0.2"}));
}

// What the front has not closed yet is not displaced twice, and whichever connection ends first,
// the counts agree in the end.
TEST(TenantPlaces, ADisplacedConnectionIsReturnedOnce) {
  TenantPlaces places(kLimits);
  EXPECT_EQ(TakeAll(places, "one", "10.0.0.1"), 9);
  for (int i = 0; i < 3; ++i) places.Take({"two", "10.0.0.1"});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(places.Take({"zeta", "10.0.0.1"}).displaced.has_value());
  for (int i = 0; i < 9; ++i) places.Return({"one", "10.0.0.1"});
  for (int i = 0; i < 3; ++i) places.Return({"two", "10.0.0.1"});
  for (int i = 0; i < 3; ++i) places.Return({"zeta", "10.0.0.1"});
  EXPECT_EQ(TakeAll(places, "one", "10.0.0.1"), 9);
}

// Tenants that want all places, at three addresses, and whose displaced connections come back at
// once, in random order, against honest ones that want two places each.
TEST(TenantPlaces, HonestNewcomersGetInWhateverGreedyTenantsDo) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SeededRandom random(seed);
    TenantPlaces places(kLimits);
    std::map<Holder, int> held;
    const std::vector<std::string> greedy = {"a", "b", "c"};
    const auto block = [&] { return "10.0.0." + std::to_string(random.Below(3)); };
    const auto come = [&](const Holder& holder) {
      const Answer answer = places.Take(holder);
      if (answer.refusal.has_value()) return false;
      ++held[holder];
      if (answer.displaced.has_value()) {
        EXPECT_GT(held[*answer.displaced]--, 0);
        places.Return(*answer.displaced);
      }
      return true;
    };
    const auto flood = [&] {
      for (int i = 0; i < 100; ++i) come({greedy[random.Below(greedy.size())], block()});
    };
    flood();
    for (const std::string honest : {"x", "y", "z"}) {
      const Holder place{honest, block()};
      EXPECT_TRUE(come(place)) << "seed " << seed;
      flood();
      EXPECT_TRUE(come(place)) << "seed " << seed;
      flood();
      // Expect: it keeps its places.
      EXPECT_EQ(held[place], 2) << "seed " << seed;
    }
    std::map<std::string, int> at;
    int all = 0;
    for (const auto& [holder, count] : held) {
      at[holder.block] += count;
      all += count;
    }
    for (const auto& [address, count] : at) EXPECT_LE(count, 12) << address;
    EXPECT_EQ(all, 30);
  }
}

}  // namespace
}  // namespace phub::server
