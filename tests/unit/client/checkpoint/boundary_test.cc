#include "client/checkpoint/boundary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub::client {
namespace {

using ::testing::ElementsAre;

struct At {
  std::uint64_t first_iteration = 0;
  std::uint64_t reductions_min = 0;
  std::uint64_t reductions_max = 0;
  std::uint32_t chunk_count = 1;
};

v1::GetVersionsResponse Daemon(const std::vector<At>& keys) {
  v1::GetVersionsResponse response;
  for (const At& at : keys) {
    v1::KeyVersions& key = *response.add_keys();
    key.set_first_iteration(at.first_iteration);
    key.set_chunk_count(at.chunk_count);
    key.set_reductions_min(at.reductions_min);
    key.set_reductions_max(at.reductions_max);
  }
  return response;
}

Boundary Choose(const std::vector<v1::GetVersionsResponse>& versions,
                const std::vector<v1::GetVersionsResponse>& before, std::uint64_t margin) {
  const auto boundary = ChooseBoundary(versions, before, margin);
  EXPECT_TRUE(boundary.ok()) << boundary.status();
  return boundary.ok() ? *boundary : Boundary{};
}

TEST(Boundary, KeysInLockstepAreSavedAtTheHighestIterationOfTheJob) {
  // Receive: two daemons, a key that was added at iteration 10, a chunk one round ahead.
  const Boundary boundary =
      Choose({Daemon({{0, 30, 30}, {10, 20, 20}}), Daemon({{0, 30, 31}, {10, 20, 20}})}, {}, 0);
  EXPECT_TRUE(boundary.lockstep);
  EXPECT_EQ(boundary.iteration, 31u);
  EXPECT_THAT(boundary.targets, ElementsAre(31, 21));
}

TEST(Boundary, TheMarginMovesAllKeysOfAJobInLockstep) {
  const Boundary boundary = Choose({Daemon({{0, 30, 30}, {10, 20, 20}})}, {}, 4);
  EXPECT_EQ(boundary.iteration, 34u);
  EXPECT_THAT(boundary.targets, ElementsAre(34, 24));
}

TEST(Boundary, ADaemonWithoutChunksOfAKeySaysNothingOfIt) {
  const Boundary boundary = Choose({Daemon({{0, 7, 7}}), Daemon({{0, 0, 0, 0}})}, {}, 0);
  EXPECT_TRUE(boundary.lockstep);
  EXPECT_THAT(boundary.targets, ElementsAre(7));
}

TEST(Boundary, KeysApartAreSavedEachAtItsHighestAndOnlyThoseThatMoveGetTheMargin) {
  const std::vector<v1::GetVersionsResponse> before = {Daemon({{0, 30, 30}, {0, 3, 3}})};
  const Boundary boundary = Choose({Daemon({{0, 32, 33}, {0, 3, 3}})}, before, 2);
  EXPECT_FALSE(boundary.lockstep);
  EXPECT_EQ(boundary.iteration, 35u);
  EXPECT_THAT(boundary.targets, ElementsAre(35, 3));
}

TEST(Boundary, KeysThatLookApartAreAskedForAgain) {
  EXPECT_EQ(ChooseBoundary(std::vector{Daemon({{0, 30, 30}, {0, 3, 3}})}, {}, 0).status().code(),
            absl::StatusCode::kAborted);
}

// The daemons did not answer at the same moment.
TEST(Boundary, AFastJobIsInLockstepIfItCanHaveBeenBetweenTwoAnswers) {
  const std::vector<v1::GetVersionsResponse> before = {Daemon({{0, 30, 30}}),
                                                       Daemon({{0, 33, 34}})};
  const Boundary boundary = Choose({Daemon({{0, 50, 51}}), Daemon({{0, 55, 55}})}, before, 2);
  EXPECT_TRUE(boundary.lockstep);
  EXPECT_EQ(boundary.iteration, 57u);
  EXPECT_THAT(boundary.targets, ElementsAre(57));
  // Expect: not in lockstep, because one key had passed an iteration that another has not reached
  // yet.
  EXPECT_FALSE(Choose({Daemon({{0, 50, 51}, {0, 32, 32}}), Daemon({{0, 55, 55}, {0, 32, 32}})},
                      {Daemon({{0, 30, 30}, {0, 30, 30}}), Daemon({{0, 33, 34}, {0, 30, 30}})}, 2)
                   .lockstep);
}

TEST(Boundary, DaemonsThatDoNotKnowTheSameKeysAreAskedAgain) {
  const std::vector<v1::GetVersionsResponse> versions = {Daemon({{}, {}}), Daemon({{}})};
  EXPECT_EQ(ChooseBoundary(versions, {}, 0).status().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace phub::client
