// Ranks are notified of what an outage of the control port means for lost ranks, in turns.
#include "tests/unit/server/control/control_fixture.h"
#include "tests/unit/server/control/held_background.h"

namespace phub::server {
namespace {

class WaitTurnsTest : public ControlTest {
 protected:
  static constexpr std::uint32_t kRanks = 20;
  static constexpr std::uint32_t kLost = 5;  // the last ones
  static constexpr std::size_t kBudget = 4;

  WaitTurnsTest() { options.turn.ranks = kBudget; }
  void EnterAllAndLoseSome() {
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      v1::JoinRequest request = JoinOf(rank, kRanks);
      request.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
      sessions.push_back(EnterAs(request));
    }
    for (std::uint32_t rank = kRanks - kLost; rank < kRanks; ++rank) {
      Die(sessions[rank], rank, Rank{rank});
    }
    Settle();
  }
  std::size_t AwaitedEvents() {
    std::size_t count = 0;
    for (const std::string& session : sessions) {
      for (const v1::SessionEvent& event : sinks[session]->events) count += event.has_awaited();
    }
    return count;
  }

  HeldBackground background;
  std::vector<std::string> sessions;
};

TEST_F(WaitTurnsTest, AfterAnOutageTheRanksAreNotifiedInTurns) {
  EnterAllAndLoseSome();
  control().turns().SetBackground(background);
  control().liveness().NoteOutage(clock.now - kSecond);
  const std::size_t before = AwaitedEvents();
  control().turns().Begin();
  control().liveness().NoteOutage(0);
  int turns = 0;
  do {
    EXPECT_LE(control().turns().units(), kBudget);
    control().turns().Begin();
  } while (background.RunOne() && ++turns < 1000);
  const std::size_t sent = AwaitedEvents() - before;
  EXPECT_GE(sent, (kRanks - kLost) * kLost);
  EXPECT_GE(turns, static_cast<int>(sent / kBudget) - 1);
}

TEST_F(WaitTurnsTest, AJobThatEndsMeanwhileIsForgotten) {
  EnterAllAndLoseSome();
  control().turns().SetBackground(background);
  control().liveness().NoteOutage(clock.now - kSecond);
  control().liveness().NoteOutage(0);
  ASSERT_TRUE(background.RunOne());
  for (std::uint32_t rank = 0; rank < kRanks - kLost; ++rank) Leave(sessions[rank]);
  Settle();
  int turns = 0;
  do control().turns().Begin();
  while (background.RunOne() && ++turns < 1000);
  EXPECT_LT(turns, 1000);
}

}  // namespace
}  // namespace phub::server
