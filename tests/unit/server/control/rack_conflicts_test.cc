// Ranks of different racks that disagree about hyper-parameters: the error shows both values,
// though each rack knows only its own.
#include "server/control/racks/rack_conflicts.h"

#include "server/core/exchange/shard_exchange.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const wire::HyperParameters kOurs{.learning_rate = 0.1, .momentum = 0.9};
const wire::HyperParameters kTheirs{.learning_rate = 0.5, .momentum = 0.9};

class RackConflictsTest : public RackJobsTest {
 protected:
  // The core loops of this rack know the values of version 2.
  void Know(std::uint32_t rack, const wire::HyperParameters& values) {
    node(rack).cores[0]->fill_stalls = [values](StallReport& report) {
      if (report.record && report.record->version == HyperVersion{2}) report.values = values;
    };
  }
  // Rack 0 receives a partial sum of rack 1 with other hyper-parameters.
  void Disagree() {
    FakeCore& core = *node(0).cores[0];
    JobShard* const shard = core.Executed(Command::Kind::kAddJob).back().shard;
    shard->conflict.source = {
        .is_known = true, .version = HyperVersion{2}, .values_hash = exchange::HashOf(kTheirs)};
    shard->conflict.other = {.is_known = true,
                             .version = HyperVersion{2},
                             .has_values = true,
                             .values = kOurs,
                             .values_hash = exchange::HashOf(kOurs)};
    core.Emit({.kind = Event::Kind::kFault,
               .code = FaultCode::kRoundMismatch,
               .source = RackIndex{1},
               .other = RackIndex{0},
               .key = KeyIndex{0},
               .iteration = Iteration{3},
               .shard = shard});
    Settle();
  }
};

TEST_F(RackConflictsTest, ShowTheValuesOfBothRacksToAllRanks) {
  EnterAllWithAKey();
  Know(1, kTheirs);
  Know(2, kOurs);
  Disagree();
  Advance(RackConflicts::kAnswerTimeout / 2);
  for (const std::uint32_t rank : {0u, 3u, 5u}) {
    EXPECT_THAT(FaultOf(rank),
                AllOf(HasSubstr("ranks 2 to 3 in rack 1 (node1:7700) pushed a gradient with "
                                "learning_rate=0.5 and ranks 0 to 1 in rack 0 (node0:7700) pushed "
                                "a gradient with learning_rate=0.1"),
                      HasSubstr("key w iteration 3")))
        << rank;
  }
}

TEST_F(RackConflictsTest, EndTheJobWithoutAnAnswer) {
  EnterAllWithAKey();
  Know(1, kOurs);  // not the values that were pushed
  Disagree();
  EXPECT_EQ(FaultOf(0), "");
  Advance(RackConflicts::kAnswerTimeout + 100 * kMillisecond);
  EXPECT_THAT(FaultOf(0), HasSubstr("rack 1 (node1:7700) pushed a gradient with other "
                                    "hyper-parameters and ranks 0 to 1 in rack 0"));
}

TEST_F(RackConflictsTest, AQuestionAboutAnUnknownKeyHasNoAnswer) {
  EnterAllWithAKey();
  v1::PeerMessage message;
  message.mutable_hyper_parameters_asked()->set_key(77);
  message.mutable_hyper_parameters_asked()->set_version(1);
  Say(1, 0, incarnation, message);
  v1::PeerMessage unasked;
  unasked.mutable_hyper_parameters()->mutable_values()->set_learning_rate(0.5);
  Say(1, 0, incarnation, unasked);
  Advance(kSecond);
  EXPECT_EQ(node(0).network.sent[v1::PeerMessage::kHyperParameters], 0);
  EXPECT_EQ(FaultOf(0), "");
}

}  // namespace
}  // namespace phub::server
