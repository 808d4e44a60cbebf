// What control does about the lost ranks of a job that spans racks, in turns of bounded work.
#include "tests/unit/server/control/held_background.h"
#include "tests/unit/server/control/rack_waiting_fixture.h"

namespace phub::server {
namespace {

// A job may have 1024 ranks.
TEST_F(RackWaitingTest, LostRanksOfOtherRacksAreDescribedInTurns) {
  constexpr std::size_t kBudget = 2;
  Start(0, [](ControlOptions& options) { options.turn.at_once = options.turn.ranks = kBudget; });
  EnterAll();
  for (const std::uint32_t rank : {2u, 3u, 4u, 5u})
    Say(RackOf(rank), 0, incarnation, Awaited(rank));
  Settle();
  HeldBackground background;
  node(0).control().turns().SetBackground(background);
  node(0).control().turns().Begin();
  v1::GetJobRequest request;
  request.set_job("digits");
  const auto job = node(0).GetJob(request);
  v1::ListStallsRequest stalls_request;
  stalls_request.set_job("digits");
  const auto stalls = node(0).ListStalls(stalls_request);
  const auto run_turns = [&] {
    int turns = 0;
    do {
      EXPECT_LE(node(0).control().turns().units(),
                kBudget + 1);  // a job and its first rank are two
      node(0).control().turns().Begin();
    } while (background.RunOne() && ++turns < 100);
    return turns;
  };
  EXPECT_GE(run_turns(), 3);  // a job, two ranks of its own, four of others
  node(0).Settle();           // the core loops answer
  EXPECT_GE(run_turns(), 1);
  ASSERT_TRUE(job->ok()) << job->message();
  ASSERT_EQ(job->response.lost_elsewhere_size(), 4);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(job->response.lost_elsewhere(i).rank(), 2u + static_cast<unsigned>(i));
  ASSERT_TRUE(stalls->ok()) << stalls->message();
  ASSERT_EQ(stalls->response.lost_elsewhere_size(), 4);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(stalls->response.lost_elsewhere(i).rank(), 2u + static_cast<unsigned>(i));
}

TEST_F(RackWaitingTest, ARankThatAttachesIsSentTheLostRanksInTurns) {
  constexpr std::size_t kBudget = 2;
  Start(0, [](ControlOptions& options) { options.turn.at_once = options.turn.ranks = kBudget; });
  EnterAll();
  Lose(1);
  for (const std::uint32_t rank : {2u, 3u, 4u, 5u})
    Say(RackOf(rank), 0, incarnation, Awaited(rank));
  Settle();
  HeldBackground background;
  node(0).control().turns().SetBackground(background);
  const auto run_turn = [&] {
    EXPECT_LE(node(0).control().turns().units(), kBudget);
    node(0).control().turns().Begin();
    return background.RunOne();
  };
  node(0).control().turns().Begin();
  Return(0);
  EXPECT_EQ(ToldTo(0), (std::vector<std::string>{"awaited 1", "awaited 2"}));
  // Expect: a rank that has returned meanwhile is not reported as lost, and events of the old
  // stream do not come on a new one.
  Say(RackOf(3), 0, incarnation, Returned(3));
  Settle();
  EXPECT_TRUE(run_turn());
  EXPECT_EQ(ToldTo(0), (std::vector<std::string>{"awaited 1", "awaited 2", "returned 3",
                                                 "awaited 4", "awaited 5"}));
  EXPECT_FALSE(run_turn());
  node(0).control().turns().Begin();
  Return(0);
  Return(0);
  EXPECT_TRUE(run_turn());
  EXPECT_TRUE(run_turn());
  EXPECT_FALSE(run_turn());
  EXPECT_EQ(ToldTo(0),
            (std::vector<std::string>{"awaited 1", "awaited 2", "awaited 4", "awaited 5"}));
}

}  // namespace
}  // namespace phub::server
