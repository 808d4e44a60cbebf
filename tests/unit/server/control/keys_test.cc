#include <limits>
#include <set>

#include "server/placement/placement.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class KeysTest : public ControlTest {
 protected:
  // The bin of a job's first chunk, with two core loops, and the other bin.
  static std::uint32_t First(const std::string& job = "digits") {
    return BinsForJob(2, job)[0].bin.value;
  }
  static std::uint32_t Second() { return 1 - First(); }
};

TEST_F(KeysTest, AreAnsweredOnceEveryCoreAcknowledgedWithTheSamePlacementForAll) {
  const std::vector<std::string> sessions = EnterAll(2);
  const auto first = AddKeys(Batch(sessions[0], 0, {Key("a", 1000), Key("b", 3)}));
  const auto second = AddKeys(Batch(sessions[1], 0, {Key("a", 1000), Key("b", 3)}));
  cores[0]->Run();
  control().Poll();
  EXPECT_FALSE(first->answered());
  cores[1]->Run();
  control().Poll();
  ASSERT_TRUE(first->ok() && second->ok());
  // 4000 bytes in chunks of 1024: three full chunks and one of 928 bytes; b is 12 bytes.
  const v1::AddKeysResponse& response = first->response;
  ASSERT_EQ(response.placements_size(), 2);
  EXPECT_EQ(response.placements(0).key_index(), 0u);
  EXPECT_THAT(response.placements(0).chunk_bins(),
              ::testing::ElementsAre(First(), Second(), First(), Second()));
  EXPECT_THAT(response.placements(1).chunk_bins(), ::testing::ElementsAre(Second()));
  EXPECT_EQ(response.SerializeAsString(), second->response.SerializeAsString());
  // Expect: every core received every key, but only its own chunks.
  const auto commands = cores[First()]->Executed(Command::Kind::kAddKeys);
  ASSERT_EQ(commands.size(), 1u);
  const KeyBatch& batch = *commands[0].batch;
  ASSERT_EQ(batch.keys.size(), 2u);
  EXPECT_EQ(batch.keys[1].key, KeyIndex{1});
  EXPECT_EQ(batch.chunks.size(), 2u);
  EXPECT_EQ(batch.chunks[0].element_count, 256u);
  EXPECT_EQ(batch.keys[0].optimizer, Optimizer::kMomentum);
  EXPECT_EQ(batch.keys[0].hyper_parameters[1].values.learning_rate, 0.1f);
  const KeyBatch& other = *cores[Second()]->Executed(Command::Kind::kAddKeys)[0].batch;
  ASSERT_EQ(other.chunks.size(), 3u);
  EXPECT_EQ(other.chunks[1].element_count, 232u);
  EXPECT_EQ(other.chunks[1].element_offset, 768u);
  // Expect: a key's chunks are contiguous in one memory, even across cores.
  EXPECT_EQ(other.chunks[0].parameters[0], batch.chunks[0].parameters[0] + 1024);
  EXPECT_EQ(other.chunks[1].parameters[0], batch.chunks[0].parameters[0] + 3 * 1024);
  EXPECT_EQ(other.chunks[2].element_count, 3u);
}

TEST_F(KeysTest, LaterBatchesContinueTheNumbersAndBalanceOnTop) {
  const std::string session = Enter(0, 1);
  AddKeys(Batch(session, 0, {Key("a", 256)}));
  Settle();
  const auto call = AddKeys(Batch(session, 1, {Key("b", 256), Key("c", 256)}));
  Settle();
  ASSERT_TRUE(call->ok());
  EXPECT_EQ(call->response.placements(0).key_index(), 1u);
  EXPECT_THAT(call->response.placements(0).chunk_bins(), ::testing::ElementsAre(Second()));
  // Expect: a repeated call has the same answer and adds nothing.
  const auto again = AddKeys(Batch(session, 0, {Key("a", 256)}));
  Settle();
  EXPECT_TRUE(again->ok());
  EXPECT_EQ(cores[0]->Executed(Command::Kind::kAddKeys).size(), 2u);
}

TEST_F(KeysTest, SmallJobsDoNotAllLieOnTheFirstCore) {
  std::set<std::uint32_t> bins;
  for (int i = 0; i < 16; ++i) {
    const std::string job = "small-" + std::to_string(i);
    const auto call = AddKeys(Batch(Enter(0, 1, job), 0, {Key("a", 10)}));
    Settle();
    ASSERT_TRUE(call->ok()) << call->message();
    // Expect: the placement depends only on the name, so that every daemon of a rack computes the
    // same.
    EXPECT_THAT(call->response.placements(0).chunk_bins(), ::testing::ElementsAre(First(job)));
    bins.insert(First(job));
  }
  EXPECT_EQ(bins.size(), 2u);
}

TEST_F(KeysTest, ADifferentBatchIsRefusedNamingBothRanksAndTheJobFails) {
  const std::vector<std::string> sessions = EnterAll(3);
  ASSERT_TRUE(AddKeys(Batch(sessions[0], 0, {Key("conv", 16), Key("fc1.weight", 8192)})) !=
              nullptr);
  const auto waiting = Barrier(sessions[1], 0);
  const auto call = AddKeys(Batch(sessions[2], 0, {Key("conv", 16), Key("fc1.weight", 4096)}));
  EXPECT_EQ(call->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(call->message(),
              HasSubstr("key 1: rank 0 (node0) has \"fc1.weight\" with 8192 elements, but rank 2 "
                        "(node2) has 4096 elements"));
  for (const std::string& session : sessions) {
    ASSERT_NE(FaultAt(session), nullptr);
    EXPECT_EQ(FaultAt(session)->code(), "keys_mismatch");
    EXPECT_THAT(FaultAt(session)->message(),
                AllOf(HasSubstr("job digits"), HasSubstr("fc1.weight")));
    EXPECT_EQ(FaultAt(session)->rank(), 2u);
  }
  EXPECT_EQ(waiting->code(), absl::StatusCode::kAborted);
  Advance(options.teardown_delay);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(KeysTest, EveryFieldOfAKeyMustAgree) {
  const auto message = [&](const std::function<void(v1::KeySpec&)>& change, const char* job) {
    const std::vector<std::string> sessions = EnterAll(2, job);
    v1::KeySpec key = Key("w", 64);
    AddKeys(Batch(sessions[0], 0, {key}));
    change(key);
    return AddKeys(Batch(sessions[1], 0, {key}))->message();
  };
  EXPECT_THAT(message([](auto& key) { key.set_name("v"); }, "a"),
              AllOf(HasSubstr("\"w\" with 64"), HasSubstr("\"v\" with 64")));
  EXPECT_THAT(message([](auto& key) { key.set_operation(v1::OPERATION_MEAN); }, "b"),
              AllOf(HasSubstr("sum"), HasSubstr("mean")));
  EXPECT_THAT(message(
                  [](auto& key) {
                    key.set_optimizer(v1::OPTIMIZER_NONE);
                    key.set_movement(v1::MOVEMENT_GATHER);
                  },
                  "movement"),
              HasSubstr("rank 0 (node0) has \"w\" with movement all_reduce, but rank 1 (node1) has "
                        "movement gather"));
  EXPECT_THAT(message(
                  [](auto& key) {
                    key.set_optimizer(v1::OPTIMIZER_NONE);
                    key.set_collective(true);
                  },
                  "collective"),
              HasSubstr("with rounds in iterations, but rank 1 (node1) has collective rounds"));
  EXPECT_THAT(
      message([](auto& key) { key.set_priority_class(v1::PRIORITY_CLASS_TENSOR); }, "priority"),
      HasSubstr("with priority class data, but rank 1 (node1) has priority class tensor"));
  EXPECT_THAT(message([](auto& key) { key.set_root(1); }, "root"),
              HasSubstr("with root 0, but rank 1 (node1) has root 1"));
  EXPECT_THAT(message([](auto& key) { key.set_optimizer(v1::OPTIMIZER_SGD); }, "c"),
              AllOf(HasSubstr("momentum"), HasSubstr("sgd")));
  EXPECT_THAT(
      message([](auto& key) { key.mutable_hyper_parameters()->set_learning_rate(0.2f); }, "d"),
      HasSubstr("learning_rate"));
  // Bitwise: -0 is not 0.
  EXPECT_THAT(
      message([](auto& key) { key.mutable_hyper_parameters()->set_weight_decay(-0.0f); }, "e"),
      HasSubstr("weight_decay -0"));
  EXPECT_THAT(message([](auto& key) { key.mutable_hyper_parameters()->set_dampening(1); }, "f"),
              HasSubstr("dampening"));
  EXPECT_THAT(message([](auto& key) { key.set_type(v1::ELEMENT_TYPE_UNSPECIFIED); }, "g"),
              HasSubstr("type"));
}

TEST_F(KeysTest, ABatchOfAnotherLengthIsRefused) {
  const std::vector<std::string> sessions = EnterAll(2);
  AddKeys(Batch(sessions[0], 0, {Key("a", 1), Key("b", 1)}));
  const auto call = AddKeys(Batch(sessions[1], 0, {Key("a", 1)}));
  EXPECT_THAT(call->message(), AllOf(HasSubstr("batch 0"), HasSubstr("rank 0 (node0) added 2 keys"),
                                     HasSubstr("rank 1 (node1) added 1")));
}

TEST_F(KeysTest, BadKeysAreRefusedAndTheJobGoesOn) {
  const std::string session = Enter(0, 1);
  AddKeys(Batch(session, 0, {Key("there", 1)}));
  Settle();
  const std::uint64_t memory = control().memory_bytes();
  const auto refused = [&](const std::vector<v1::KeySpec>& keys) {
    const auto call = AddKeys(Batch(session, 1, keys));
    EXPECT_EQ(call->code(), absl::StatusCode::kInvalidArgument) << call->message();
    return call->message();
  };
  const auto spoiled = [&](const std::function<void(v1::KeySpec&)>& spoil) {
    v1::KeySpec key = Key("w", 64);
    spoil(key);
    return refused({key});
  };
  EXPECT_THAT(refused({}), HasSubstr("no keys"));
  EXPECT_THAT(refused({Key("there", 1)}), HasSubstr("already"));
  EXPECT_THAT(refused({Key("twice", 1), Key("twice", 1)}), HasSubstr("twice"));
  refused({Key("", 1)});
  refused({Key("tab\t", 1)});
  EXPECT_THAT(refused({Key("w", 0)}), HasSubstr("element_count is 0"));
  refused({Key("w", std::numeric_limits<std::uint64_t>::max())});
  EXPECT_THAT(refused({Key("w", std::uint64_t{1} << 40)}), HasSubstr("larger chunk_bytes"));
  spoiled([](auto& key) { key.clear_type(); });
  spoiled([](auto& key) { key.clear_operation(); });
  spoiled([](auto& key) { key.set_optimizer(static_cast<v1::OptimizerKind>(77)); });
  EXPECT_THAT(
      spoiled([](auto& key) {
        key.mutable_hyper_parameters()->set_momentum(std::numeric_limits<float>::infinity());
      }),
      HasSubstr("not finite"));
  const auto skipped = AddKeys(Batch(session, 2, {Key("w", 1)}));
  EXPECT_THAT(skipped->message(), AllOf(HasSubstr("batch 2"), HasSubstr("its next batch is 1")));
  EXPECT_EQ(control().memory_bytes(), memory);
  const auto good = AddKeys(Batch(session, 1, {Key("w", 1)}));
  Settle();
  EXPECT_TRUE(good->ok()) << good->message();
}

TEST_F(KeysTest, MemoryThatIsNotThereIsRefusedAndNothingIsKept) {
  options.memory_bytes_max = 1 << 20;
  const std::string session = Enter(0, 1);
  const std::uint64_t memory = control().memory_bytes();
  const auto call = AddKeys(Batch(session, 0, {Key("w", 1 << 20)}));
  EXPECT_EQ(call->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(call->message(), AllOf(HasSubstr("digits"), HasSubstr("too much")));
  EXPECT_EQ(control().memory_bytes(), memory);
  const auto fits = AddKeys(Batch(session, 0, {Key("w", 1 << 10)}));
  Settle();
  EXPECT_TRUE(fits->ok()) << fits->message();
  EXPECT_GT(control().memory_bytes(), memory);
}

TEST_F(KeysTest, UnknownSessionsAreRefused) {
  Enter(0, 1);
  const auto call = AddKeys(Batch("sixteen bytes id", 0, {Key("w", 1)}));
  EXPECT_EQ(call->code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Counter("phub_sessions_unknown_total"), 1u);
}

}  // namespace
}  // namespace phub::server
