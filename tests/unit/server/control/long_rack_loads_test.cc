// Loads in jobs that span racks begin without control's lock, in every rack.
#include "tests/unit/server/control/rack_checkpoint_fixture.h"

namespace phub::server {
namespace {

// Every load begins on another thread, as one of many keys does.
class RackLoadTurnsTest : public RackCheckpointTest {
 protected:
  RackLoadTurnsTest() {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack)
      Start(rack, [](ControlOptions& options) { options.turn.at_once = 0; });
  }
  void SetUp() override {
    RackCheckpointTest::SetUp();
    for (std::uint32_t rack = 0; rack < kRacks; ++rack)
      node(rack).control().turns().SetBackground(backgrounds[rack]);
  }
};

TEST_F(RackLoadTurnsTest, ALoadBeginsWithoutTheLockInEveryRack) {
  ASSERT_TRUE(Bring().ok());
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) ASSERT_NE(Shard(rack).loaded, nullptr);
  Loads& own = node(0).control().loads();
  node(0).control().turns().Begin();
  const auto begun = own.BeginLoad(First());
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(node(0).control().turns().units(), 0u);
  EXPECT_FALSE(own.AcceptsParts(*begun, [] {}));
  EXPECT_TRUE(own.PartsForRacks(*begun).empty());
  EXPECT_TRUE(backgrounds[0].RunOne());
  EXPECT_TRUE(own.AcceptsParts(*begun, [] {}));
  const auto parts = own.PartsForRacks(*begun);
  ASSERT_EQ(parts.size(), kRacks - 1);
  for (const auto& [rack, part] : parts) {
    Control& control = node(rack).control();
    control.turns().Begin();
    const auto load = control.loads().BeginLoad(part);
    ASSERT_TRUE(load.ok()) << load.status();
    EXPECT_EQ(control.turns().units(), 0u);
    EXPECT_FALSE(control.loads().AcceptsParts(*load, [] {}));
    EXPECT_TRUE(backgrounds[rack].RunOne());
    EXPECT_TRUE(control.loads().AcceptsParts(*load, [] {}));
  }
}

// A refusal, or the end of the job, may come while the load is prepared.
TEST_F(RackLoadTurnsTest, ALoadMayBeOverBeforeItIsPrepared) {
  ASSERT_TRUE(node(0).control().loads().BeginLoad(First()).ok());
  Refuse();
  EXPECT_TRUE(backgrounds[0].RunOne());
  EXPECT_EQ(node(0).control().memory_bytes(), used_before[0]);
  ASSERT_TRUE(node(0).control().loads().BeginLoad(First()).ok());
  Leave({0, 1, 2, 3, 4, 5});
  Settle();
  EXPECT_TRUE(backgrounds[0].RunOne());
  ExpectNothingLeft();
}

}  // namespace
}  // namespace phub::server
