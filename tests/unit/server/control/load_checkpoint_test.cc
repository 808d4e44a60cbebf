#include "tests/unit/server/control/checkpoint_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

class LoadCheckpointTest : public CheckpointTest {
 protected:
  v1::LoadStateRequest First(std::uint64_t iteration = 40) {
    v1::LoadStateRequest first;
    first.set_session_id(sessions[0]);
    first.set_iteration(iteration);
    for (std::uint32_t key = 0; key < 2; ++key) {
      v1::KeyStateInfo& info = *first.add_keys();
      info.set_key_index(key);
      info.set_reductions(40 + key);
    }
    return first;
  }
  static v1::LoadStateRequest Piece(std::uint32_t key, v1::StateTensor tensor, std::uint64_t offset,
                                    std::size_t elements, float value) {
    v1::LoadStateRequest part;
    v1::StatePiece& piece = *part.add_pieces();
    piece.set_key_index(key);
    piece.set_tensor(tensor);
    piece.set_element_offset(offset);
    for (std::size_t i = 0; i < elements; ++i) {
      piece.mutable_elements()->append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    return part;
  }
  LoadId Begin(const v1::LoadStateRequest& first) {
    const auto load = control().loads().BeginLoad(first);
    EXPECT_TRUE(load.ok()) << load.status();
    return load.ok() ? *load : 0;
  }
  // Sends everything, in pieces that do not end at chunk boundaries.
  void SendAll(LoadId load, float value) {
    for (const auto tensor : {v1::STATE_TENSOR_PARAMETERS, v1::STATE_TENSOR_OPTIMIZER_0}) {
      for (std::uint64_t offset = 0; offset < 600; offset += 200) {
        EXPECT_TRUE(control().loads().LoadPart(load, Piece(0, tensor, offset, 200, value)).ok());
      }
      EXPECT_TRUE(control().loads().LoadPart(load, Piece(1, tensor, 0, 300, value)).ok());
    }
  }
  CallPtr<v1::LoadStateResponse> Finish(LoadId load) {
    auto [call, answer] = Expect<v1::LoadStateResponse>();
    control().loads().FinishLoad(load, answer);
    return call;
  }
  absl::Status Refused(const v1::LoadStateRequest& part) {
    const LoadId load = Begin(First());
    const absl::Status status = control().loads().LoadPart(load, part);
    // Expect: nothing of it remains.
    EXPECT_EQ(control().memory_bytes(), used_before);
    EXPECT_EQ(Finish(load)->message(), status.message());
    return status;
  }
};

TEST_F(LoadCheckpointTest, WhatCameWholeIsBroughtToTheCoreLoops) {
  const LoadId load = Begin(First());
  SendAll(load, 1.5f);
  EXPECT_EQ(Shard(*cores[0]).loaded, nullptr);
  const auto finished = Finish(load);
  EXPECT_FALSE(finished->answered());
  Settle();
  ASSERT_TRUE(finished->ok()) << finished->message();
  for (const auto& core : cores) {
    const JobShard& shard = Shard(*core);
    ASSERT_NE(shard.loaded, nullptr);
    for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
      const auto& image = shard.loaded->chunks[i];
      EXPECT_TRUE(image.ready.load());
      EXPECT_EQ(image.reductions, 40u + shard.chunks()[i]->key->key.value);
      float last = 0;
      std::memcpy(&last, image.state[0] + (shard.chunks()[i]->element_count - 1) * sizeof(float),
                  sizeof(float));
      EXPECT_EQ(last, 1.5f);
    }
  }
  v1::GetLoadedStateRequest request;
  request.set_session_id(sessions[1]);
  const auto loaded = GetLoadedState(request);
  ASSERT_TRUE(loaded->ok());
  EXPECT_EQ(loaded->response.iteration(), 40u);
  EXPECT_EQ(loaded->response.keys(1).reductions(), 41u);
}

TEST_F(LoadCheckpointTest, ASecondLoadReplacesTheFirstOnceTheCoreLoopsLetGo) {
  LoadId load = Begin(First());
  SendAll(load, 1.0f);
  Finish(load);
  Settle();
  const std::uint64_t with_one = control().memory_bytes();
  load = Begin(First(50));
  SendAll(load, 2.0f);
  cores[0]->stopped = true;
  const auto finished = Finish(load);
  Settle();
  EXPECT_FALSE(finished->answered());
  EXPECT_GT(control().memory_bytes(), with_one);
  cores[0]->stopped = false;
  Settle();
  EXPECT_TRUE(finished->ok());
  EXPECT_EQ(control().memory_bytes(), with_one);
  // Expect: all memory is freed at the job's end.
  for (const std::string& session : sessions) Leave(session);
  Settle();
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(LoadCheckpointTest, PiecesThatMakeNoSenseAreRefusedAndNothingStays) {
  const auto parameters = v1::STATE_TENSOR_PARAMETERS;
  EXPECT_THAT(std::string(Refused(Piece(7, parameters, 0, 1, 0)).message()),
              HasSubstr("key number 7"));
  EXPECT_THAT(std::string(Refused(Piece(0, v1::STATE_TENSOR_MASTERS, 0, 1, 0)).message()),
              HasSubstr("job digits key a: a piece of the checkpoint (masters"));
  EXPECT_THAT(std::string(Refused(Piece(0, v1::STATE_TENSOR_OPTIMIZER_1, 0, 1, 0)).message()),
              HasSubstr("does not have"));
  EXPECT_THAT(std::string(Refused(Piece(0, parameters, 1, 1, 0)).message()),
              HasSubstr("out of order"));
  EXPECT_THAT(std::string(Refused(Piece(0, parameters, 600, 1, 0)).message()),
              HasSubstr("not within this daemon's chunks"));
  EXPECT_THAT(std::string(Refused(Piece(0, parameters, UINT64_MAX, 1, 0)).message()),
              HasSubstr("not within this daemon's chunks"));
  EXPECT_THAT(std::string(Refused(Piece(0, parameters, 0, 601, 0)).message()), HasSubstr("beyond"));
  EXPECT_THAT(std::string(Refused(Piece(0, parameters, 0, 0, 0)).message()),
              HasSubstr("must have 1 to"));
  v1::LoadStateRequest odd = Piece(0, parameters, 0, 1, 0);
  odd.mutable_pieces(0)->mutable_elements()->push_back('x');
  EXPECT_THAT(std::string(Refused(odd).message()), HasSubstr("not a multiple of the element size"));
  v1::LoadStateRequest twice = Piece(0, parameters, 0, 1, 0);
  twice.MergeFrom(Piece(0, parameters, 0, 1, 0));
  EXPECT_THAT(std::string(Refused(twice).message()), HasSubstr("out of order"));
}

TEST_F(LoadCheckpointTest, KeysThatMakeNoSenseAreRefused) {
  v1::LoadStateRequest first = First();
  first.mutable_keys(1)->set_key_index(0);
  EXPECT_EQ(control().loads().BeginLoad(first).status().code(), absl::StatusCode::kInvalidArgument);
  first.mutable_keys(1)->set_key_index(9);
  EXPECT_EQ(control().loads().BeginLoad(first).status().code(), absl::StatusCode::kInvalidArgument);
  first = First();
  first.mutable_keys(0)->mutable_hyper_parameters()->set_beta1(HUGE_VAL);
  EXPECT_EQ(control().loads().BeginLoad(first).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(control().memory_bytes(), used_before);
}

TEST_F(LoadCheckpointTest, WhatIsNotWholeIsNotBrought) {
  const LoadId load = Begin(First());
  EXPECT_TRUE(
      control().loads().LoadPart(load, Piece(0, v1::STATE_TENSOR_PARAMETERS, 0, 600, 1)).ok());
  const auto finished = Finish(load);
  EXPECT_EQ(finished->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(finished->message(), HasSubstr("1200 elements"));
  Settle();
  EXPECT_EQ(Shard(*cores[0]).loaded, nullptr);
  EXPECT_EQ(control().memory_bytes(), used_before);
  v1::GetLoadedStateRequest request;
  request.set_session_id(sessions[1]);
  EXPECT_EQ(GetLoadedState(request)->code(), absl::StatusCode::kNotFound);
}

TEST_F(LoadCheckpointTest, ANewerLoadEndsAnOlderOne) {
  const LoadId old = Begin(First());
  const LoadId fresh = Begin(First());
  EXPECT_EQ(control().loads().LoadPart(old, {}).code(), absl::StatusCode::kAborted);
  control().loads().CancelLoad(old);
  SendAll(fresh, 1.0f);
  const auto finished = Finish(fresh);
  Settle();
  EXPECT_TRUE(finished->ok());
}

TEST_F(LoadCheckpointTest, ALoadThatStallsOrWhoseJobEndsGivesItsMemoryBack) {
  const LoadId load = Begin(First());
  for (int i = 0; i < 80; ++i) {
    for (const std::string& session : sessions) Heartbeat(session);
    Advance(kSecond / 2);
  }
  EXPECT_EQ(control().memory_bytes(), used_before);
  EXPECT_EQ(control().loads().LoadPart(load, {}).code(), absl::StatusCode::kDeadlineExceeded);
  const LoadId next = Begin(First());
  v1::EvictJobRequest evict;
  evict.set_job("digits");
  EvictJob(evict);
  EXPECT_EQ(control().loads().LoadPart(next, {}).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Finish(next)->code(), absl::StatusCode::kAborted);
  Advance(options.teardown_delay);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

}  // namespace
}  // namespace phub::server
