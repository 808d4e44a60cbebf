// Searches the protocol by which racks open, run and end a job together (server/control/racks/
// rack_protocol.h) exhaustively for two and three racks. Removing any single rule must make the
// search fail, which shows that it tests every rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "tests/sim/rack_protocol_search.h"

namespace phub::server::rack_search {
namespace {

// Full meshes, chains, stars, an aggregator that takes no part, and one behind all racks that have
// ranks.
std::vector<Shape> Shapes() {
  return {
      {.racks = 2, .with_ranks = 2, .neighbors = {0b10, 0b01}},
      {.racks = 3, .with_ranks = 3, .neighbors = {0b110, 0b101, 0b011}},
      {.racks = 3, .with_ranks = 3, .neighbors = {0b010, 0b101, 0b010}},
      {.racks = 3, .with_ranks = 3, .neighbors = {0b100, 0b100, 0b011}},
      {.racks = 3, .with_ranks = 2, .neighbors = {0b010, 0b001, 0}, .absent = 0b100},
      {.racks = 3, .with_ranks = 2, .neighbors = {0b100, 0b100, 0b011}},
  };
}

std::vector<Shape> ShapesWithTroubles(const std::vector<Shape>& shapes) {
  std::vector<Shape> all;
  for (Shape shape : shapes) {
    all.push_back(shape);
    for (const Trouble trouble :
         {Trouble::kFailure, Trouble::kRefusal, Trouble::kDropping, Trouble::kDeath}) {
      shape.trouble = trouble;
      shape.troubles = 1;
      all.push_back(shape);
    }
  }
  return all;
}

TEST(RackProtocol, WhateverTheOrderARunEndsOrFailsAtEveryRack) {
  std::size_t states = 0;
  for (const Shape& shape : ShapesWithTroubles(Shapes())) {
    Search search(shape);
    EXPECT_EQ(search.Run(), "");
    states += search.states();
  }
  EXPECT_GT(states, 100000u) << "the search sees less than it did";
}

// Whether the search passes with these rules, with two racks, and with two racks that are connected
// only by an aggregator.
bool Passes(const RackRules& rules) {
  return std::ranges::all_of(
      ShapesWithTroubles({Shapes().front(), Shapes().back()}),
      [&](const Shape& shape) { return Search(shape, rules).Run().empty(); });
}
bool Passes(const std::vector<RunRule>& run) {
  return Passes(RackRules{.run = run, .peer = kRackRules.peer});
}
bool Passes(const std::vector<PeerRule>& peer) {
  return Passes(RackRules{.run = kRackRules.run, .peer = peer});
}

// Among the rules that honest racks need, returns those without which the search still passes.
template <typename Rule>
auto Unnoticed(std::span<const Rule> rules) {
  std::vector<std::pair<decltype(Rule::state), decltype(Rule::event)>> unnoticed;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].actions[0] == RackAction::kRefuse) continue;
    std::vector<Rule> fewer(rules.begin(), rules.end());
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (Passes(fewer)) unnoticed.emplace_back(rules[i].state, rules[i].event);
  }
  return unnoticed;
}

// The guards without which the search still passes.
template <typename Rule>
std::vector<RackGuard> UnnoticedGuards(std::span<const Rule> rules) {
  std::vector<RackGuard> unnoticed;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].guard == RackGuard::kAlways) continue;
    std::vector<Rule> laxer(rules.begin(), rules.end());
    laxer[i].guard = RackGuard::kAlways;
    if (Passes(laxer)) unnoticed.push_back(rules[i].guard);
  }
  return unnoticed;
}

TEST(RackProtocol, TheSearchNoticesARuleThatIsMissing) {
  const auto run = Unnoticed(kRackRules.run);
  const auto peer = Unnoticed(kRackRules.peer);
  // These rules are redundant: another rule has the same effect a little later or for another
  // reason (a message from another rack, or another timer).
  using ::testing::Pair;
  EXPECT_THAT(run, ::testing::ElementsAre(
                       Pair(RunState::kConnecting, RunEvent::kLanesAttached),
                       Pair(RunState::kConnecting, RunEvent::kOpeningLate),
                       Pair(RunState::kReady, RunEvent::kOpeningLate),
                       Pair(RunState::kPutOff, RunEvent::kPutOffDue),
                       Pair(RunState::kPutOff, RunEvent::kPeerSilent),  // happens earlier
                       Pair(RunState::kPutOff, RunEvent::kPeerSilent),
                       Pair(RunState::kSound, RunEvent::kPeerSilent),
                       Pair(RunState::kPutOff, RunEvent::kFailedHere),
                       Pair(RunState::kFailedElsewhere, RunEvent::kFailedHere)));
  // Never happens.
  EXPECT_THAT(peer, ::testing::ElementsAre(Pair(PeerState::kAsked, PeerEvent::kSaysReady),
                                           Pair(PeerState::kUnheard, PeerEvent::kSpoke),
                                           Pair(PeerState::kHeard, PeerEvent::kSpoke),
                                           Pair(PeerState::kHeard, PeerEvent::kRestarted)));
}

TEST(RackProtocol, TheSearchNoticesAGuardThatIsMissing) {
  // These guards concern racks that violate the protocol, or time, or only save a message.
  using enum RackGuard;
  EXPECT_THAT(UnnoticedGuards(kRackRules.run),
              ::testing::ElementsAre(kIsRack0, kFromRack0, kFromRack0, kFromRack0, kDue,
                                     kIsPutOffFor, kIsRack0));
  EXPECT_THAT(UnnoticedGuards(kRackRules.peer), ::testing::ElementsAre(kIsLower, kIsOtherInstance));
}

}  // namespace
}  // namespace phub::server::rack_search
