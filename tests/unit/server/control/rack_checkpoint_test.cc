// Checkpoints of jobs that span racks: each rack's daemon saves the chunks at home with it, and
// distributes what it loads.
#include <set>

#include "tests/unit/server/control/rack_checkpoint_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(RackCheckpointTest, VersionsAreOfTheChunksAtHomeAndNameTheRacks) {
  Train(3);
  std::set<std::uint32_t> chunks_of_key;
  std::uint32_t chunks = 0;
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    v1::GetJobVersionsRequest request;
    request.set_job("digits");
    const auto versions = node(rack).GetJobVersions(request);
    Settle();
    ASSERT_TRUE(versions->ok()) << versions->message();
    ASSERT_EQ(versions->response.racks_size(), 3);
    EXPECT_EQ(versions->response.racks(2), "node2:7700");
    std::uint32_t here = 0;
    for (const v1::KeyVersions& key : versions->response.keys()) here += key.chunk_count();
    EXPECT_EQ(here, HomesOf(rack));
    chunks += here;
  }
  EXPECT_EQ(chunks, Shard(0).chunk_count);
}

TEST_F(RackCheckpointTest, CallsThatNameARackArePassedOnOnce) {
  v1::RackChoice choice;
  Control& control = node(1).control();
  choice.set_rack(1);
  EXPECT_EQ(control.rack_messages().RackToAsk(choice).value(), std::nullopt);
  choice.set_rack(2);
  EXPECT_EQ(control.rack_messages().RackToAsk(choice).value(), RackIndex{2});
  choice.set_passed_on(true);
  EXPECT_THAT(std::string(control.rack_messages().RackToAsk(choice).status().message()),
              AllOf(HasSubstr("rack 1 (node1:7700)"), HasSubstr("a request meant for rack 2")));
  choice.set_rack(3);
  EXPECT_EQ(control.rack_messages().RackToAsk(choice).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(control.rack_messages().RackToAsk(choice).status().message(),
            "there is no rack 3; there are 3, numbered from 0");
}

TEST_F(RackCheckpointTest, TheSnapshotsOfAllRacksHaveEveryElementOnceAndNoMore) {
  Train(2);
  std::map<std::tuple<std::uint32_t, int, std::uint64_t>, float> elements;
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    v1::BeginSnapshotRequest request;
    request.set_job("digits");
    for (std::uint32_t key = 0; key < 2; ++key) {
      request.add_targets()->set_key_index(key);
      request.mutable_targets(static_cast<int>(key))->set_reductions(3);
    }
    const auto begun = node(rack).BeginSnapshot(request);
    Settle();
    ASSERT_TRUE(begun->ok()) << begun->message();
    EXPECT_EQ(begun->response.world_size(), kRanks);
    EXPECT_EQ(begun->response.incarnation(), incarnation);
    const std::string id = begun->response.snapshot_id();
    auto sink = std::make_shared<RecordingSnapshotSink>();
    v1::ReadSnapshotRequest read;
    read.set_snapshot_id(id);
    ASSERT_TRUE(node(rack).control().snapshots().ReadSnapshot(read, sink).ok());
    keeping[rack]->Train();  // to the target, and beyond it
    keeping[rack]->Train();
    Settle();
    for (int i = 0; i < 100 && !sink->end; ++i) {
      node(rack).control().snapshots().SnapshotPartSent(id, sink.get());
      Settle();
    }
    ASSERT_TRUE(sink->end && sink->end->ok());
    for (const v1::SnapshotPart& part : sink->parts) {
      for (const v1::StatePiece& piece : part.pieces()) {
        for (std::size_t i = 0; i < piece.elements().size() / sizeof(float); ++i) {
          float value = 0;
          std::memcpy(&value, piece.elements().data() + i * sizeof(float), sizeof(float));
          const std::uint64_t element = piece.element_offset() + i;
          EXPECT_TRUE(
              elements.emplace(std::tuple(piece.key_index(), piece.tensor(), element), value)
                  .second)
              << "sent twice";
          const float expected = KeepingCore::ValueOf(3, element);
          EXPECT_EQ(value, piece.tensor() == v1::STATE_TENSOR_PARAMETERS ? expected : -expected);
        }
      }
    }
    EXPECT_EQ(node(rack).control().memory_bytes(), used_before[rack]);
  }
  EXPECT_EQ(elements.size(), 2 * (kElementsOfKey[0] + kElementsOfKey[1]));
}

TEST_F(RackCheckpointTest, WhatIsBroughtToOneRackIsDealtOutToAll) {
  const absl::Status status = Bring();
  ASSERT_TRUE(status.ok()) << status;
  std::uint32_t at_home = 0;
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    const JobShard& shard = Shard(rack);
    ASSERT_NE(shard.loaded, nullptr);
    for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
      const Chunk& chunk = *shard.chunks()[i];
      const auto& image = shard.loaded->chunks[i];
      // Expect: a round of kLoad finds every chunk, at home or not.
      EXPECT_TRUE(shard.CheckpointIsLoaded(chunk));
      EXPECT_EQ(image.reductions, 40u + chunk.key->key.value);
      EXPECT_EQ(image.parameters != nullptr, chunk.is_home);
      if (!chunk.is_home) continue;
      ++at_home;
      const std::byte* const tensors[] = {image.parameters, image.state[0]};
      for (const int tensor : {0, 1}) {
        for (std::uint32_t e = 0; e < chunk.element_count; ++e) {
          float value = 0;
          std::memcpy(&value, tensors[tensor] + e * sizeof value, sizeof value);
          const int saved =
              tensor == 0 ? v1::STATE_TENSOR_PARAMETERS : v1::STATE_TENSOR_OPTIMIZER_0;
          ASSERT_EQ(value, ValueOf(saved, chunk.element_offset + e));
        }
      }
    }
    const auto loaded = LoadedAt(2 * rack + 1);
    ASSERT_TRUE(loaded->ok()) << loaded->message();
    EXPECT_EQ(loaded->response.iteration(), 40u);
    EXPECT_EQ(loaded->response.keys(1).reductions(), 41u);
    EXPECT_EQ(loaded->response.source().directory(), "/data/digits");
  }
  EXPECT_EQ(at_home, Shard(0).chunk_count);
  Leave({0, 1, 2, 3, 4, 5});
  ExpectNothingLeft();
}

// Every rack's ranks receive the reason before they learn that the rank has reached a barrier.
TEST_F(RackCheckpointTest, WhatCouldNotBeLoadedIsDroppedInEveryRack) {
  reductions[1] = 30;  // it was added at iteration 10
  ASSERT_TRUE(Bring().ok());
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) EXPECT_EQ(FirstIterationAt(rack, 1), 10u);
  Refuse();
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(LoadedAt(rank)->code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(LoadedAt(rank)->message(), "the manifest is gone");
  }
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_EQ(Shard(rack).loaded, nullptr);
    EXPECT_EQ(node(rack).control().memory_bytes(), used_before[rack]);
    EXPECT_EQ(FirstIterationAt(rack, 1), 0u);
  }
  // Expect: the next load is accepted.
  ASSERT_TRUE(Bring().ok());
  EXPECT_TRUE(LoadedAt(5)->ok());
}

// In a plane without barriers, the next load does not wait until the refusal arrives.
TEST_F(RackCheckpointTest, ARefusalThatComesLateDropsNoNewerLoad) {
  SetCut(0, 1, Cut::kAll);
  Refuse();
  ASSERT_TRUE(Bring().ok());
  SetCut(0, 1, Cut::kNone);
  Settle();
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_NE(Shard(rack).loaded, nullptr) << rack;
    EXPECT_TRUE(LoadedAt(2 * rack)->ok()) << rack;
  }
  EXPECT_EQ(node(1).Counter("phub_load_refusals_late_total"), 1u);
  EXPECT_EQ(node(2).Counter("phub_load_refusals_late_total"), 0u);
  // Expect: the next refusal concerns the new load.
  Refuse();
  for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
    EXPECT_EQ(Shard(rack).loaded, nullptr) << rack;
  }
  // Expect: a load that began before the refusal and arrives after it is over.
  v1::LoadStateRequest late = First();
  late.clear_session_id();
  late.set_incarnation(incarnation);
  late.set_number(2);
  EXPECT_EQ(node(1).control().loads().BeginLoad(late).status().code(), absl::StatusCode::kAborted);
  // Expect: an older phubd does not number its loads.
  late.clear_number();
  EXPECT_TRUE(node(1).control().loads().BeginLoad(late).ok());
}

TEST_F(RackCheckpointTest, ARackIsBroughtOnlyWhatIsAtHomeThereAndOfARunThatIsThere) {
  v1::LoadStateRequest first = First();
  first.clear_session_id();
  first.set_incarnation(incarnation + 1);
  EXPECT_EQ(node(1).control().loads().BeginLoad(first).status().code(),
            absl::StatusCode::kNotFound);
  first.set_incarnation(incarnation);
  const auto load = node(1).control().loads().BeginLoad(first);
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_TRUE(node(1).control().loads().PartsForRacks(*load).empty()) << "it would go in circles";
  const auto status =
      node(1).control().loads().LoadPart(*load, Pieces(0, v1::STATE_TENSOR_PARAMETERS)[0]);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("this daemon's chunks"));
  EXPECT_EQ(node(1).control().memory_bytes(), used_before[1]);
}

// Other racks' daemons name a rack, and have no permission for jobs of one rack.
class RackCheckpointOfOneRack : public CheckpointTest {};

TEST_F(RackCheckpointOfOneRack, CallsThatNameARackAreRefused) {
  v1::GetJobVersionsRequest question;
  question.set_job("digits");
  question.mutable_rack()->set_passed_on(true);
  EXPECT_THAT(GetJobVersions(question)->message(), HasSubstr("does not span racks"));
  v1::BeginSnapshotRequest begin = TargetsAt(0);
  *begin.mutable_rack() = question.rack();
  EXPECT_THAT(BeginSnapshot(begin)->message(), HasSubstr("does not span racks"));
  v1::ReadSnapshotRequest read;
  read.set_snapshot_id(BeginAt(0));
  *read.mutable_rack() = question.rack();
  const auto sink = std::make_shared<RecordingSnapshotSink>();
  EXPECT_EQ(control().snapshots().ReadSnapshot(read, sink).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(control().rack_messages().RackToAsk(question.rack()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(RackCheckpointTest, PiecesThatMakeNoSenseAreRefusedByWhoDealsThemOut) {
  const auto refused = [&](const std::function<void(v1::StatePiece&)>& spoil) {
    loads = {{0, *node(0).control().loads().BeginLoad(First())}};
    v1::LoadStateRequest part = Pieces(0, v1::STATE_TENSOR_PARAMETERS)[0];
    spoil(*part.mutable_pieces(0));
    return node(0).control().loads().LoadPart(loads[0], part).code();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(refused([](auto&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(refused([](auto& piece) { piece.set_key_index(2); }), kInvalid);
  EXPECT_EQ(refused([](auto& piece) { piece.set_element_offset(1900); }), kInvalid);
  EXPECT_EQ(refused([](auto& piece) { piece.set_element_offset(UINT64_MAX); }), kInvalid);
  EXPECT_EQ(refused([](auto& piece) { piece.set_tensor(v1::STATE_TENSOR_OPTIMIZER_1); }), kInvalid);
  EXPECT_EQ(refused([](auto& piece) { piece.mutable_elements()->push_back('x'); }), kInvalid);
  EXPECT_EQ(refused([](auto& piece) { piece.clear_elements(); }), kInvalid);
}

}  // namespace
}  // namespace phub::server
