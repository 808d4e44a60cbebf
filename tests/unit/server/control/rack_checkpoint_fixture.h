// A job that spans racks, with two keys, for tests of its checkpoints.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/server/control/checkpoint_fixture.h"
#include "tests/unit/server/control/held_background.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {

inline constexpr std::uint64_t kElementsOfKey[] = {2000, 300};  // by key

class RackCheckpointTest : public RackJobsTest {
 protected:
  void SetUp() override {
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
      node(rack).control();
      keeping.push_back(std::make_unique<KeepingCore>(*node(rack).cores[0]));
    }
    EnterAll();
    std::vector<CallPtr<v1::AddKeysResponse>> calls;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      calls.push_back(NodeOf(rank).AddKeys(RackNode::Batch(
          sessions[rank], 0,
          {RackNode::Key("a", kElementsOfKey[0]), RackNode::Key("b", kElementsOfKey[1])})));
    }
    Settle();
    for (const auto& call : calls) ASSERT_TRUE(call->ok()) << call->message();
    for (std::uint32_t rack = 0; rack < kRacks; ++rack) {
      used_before.push_back(node(rack).control().memory_bytes());
      ASSERT_GT(HomesOf(rack), 0u) << "nothing is at home there, and nothing is tested";
    }
  }
  JobShard& Shard(std::uint32_t rack) const { return keeping[rack]->shard(); }
  std::uint32_t HomesOf(std::uint32_t rack) const {
    std::uint32_t homes = 0;
    for (std::uint32_t i = 0; i < Shard(rack).chunk_count; ++i) {
      homes += Shard(rack).chunks()[i]->is_home ? 1 : 0;
    }
    return homes;
  }
  void Train(std::uint64_t rounds) {
    for (std::uint64_t i = 0; i < rounds; ++i) {
      for (const auto& core : keeping) core->Train();
    }
    Settle();
  }

  // Loads as LoadStream does, but the test carries the messages from daemon to daemon.
  v1::LoadStateRequest First() {
    v1::LoadStateRequest first;
    first.set_session_id(sessions[0]);
    first.set_iteration(40);
    for (std::uint32_t key = 0; key < 2; ++key) {
      first.add_keys()->set_key_index(key);
      first.mutable_keys(static_cast<int>(key))->set_reductions(reductions[key]);
    }
    first.mutable_source()->set_directory("/data/digits");
    return first;
  }
  static float ValueOf(int tensor, std::uint64_t element) {
    return static_cast<float>(tensor * 10'000) + static_cast<float>(element);
  }
  // The whole tensor of a key, in pieces that do not end at chunk boundaries.
  static std::vector<v1::LoadStateRequest> Pieces(std::uint32_t key, v1::StateTensor tensor) {
    constexpr std::uint64_t kPiece = 700;
    std::vector<v1::LoadStateRequest> parts;
    for (std::uint64_t from = 0; from < kElementsOfKey[key]; from += kPiece) {
      v1::StatePiece& piece = *parts.emplace_back().add_pieces();
      piece.set_key_index(key);
      piece.set_tensor(tensor);
      piece.set_element_offset(from);
      for (std::uint64_t i = from; i < std::min(from + kPiece, kElementsOfKey[key]); ++i) {
        const float value = ValueOf(tensor, i);
        piece.mutable_elements()->append(reinterpret_cast<const char*>(&value), sizeof value);
      }
    }
    return parts;
  }
  absl::Status PassOn() {
    absl::Status status;
    for (const auto& [rack, part] : node(0).control().loads().PartsForRacks(loads[0])) {
      if (!loads.contains(rack)) {
        const auto load = node(rack).control().loads().BeginLoad(part);
        if (!load.ok()) return load.status();
        loads[rack] = *load;
        while (backgrounds[rack].RunOne()) continue;
      }
      status.Update(node(rack).control().loads().LoadPart(loads[rack], part));
    }
    return status;
  }
  absl::Status Bring() {
    const auto begun = node(0).control().loads().BeginLoad(First());
    if (!begun.ok()) return begun.status();
    loads = {{0, *begun}};
    while (backgrounds[0].RunOne()) continue;
    absl::Status status = PassOn();
    for (std::uint32_t key = 0; key < 2; ++key) {
      for (const auto tensor : {v1::STATE_TENSOR_PARAMETERS, v1::STATE_TENSOR_OPTIMIZER_0}) {
        for (const v1::LoadStateRequest& part : Pieces(key, tensor)) {
          status.Update(node(0).control().loads().LoadPart(loads[0], part));
          status.Update(PassOn());
        }
      }
    }
    for (const std::uint32_t rack : {1u, 2u, 0u}) {
      auto [call, answer] = RackNode::Expect<v1::LoadStateResponse>();
      node(rack).control().loads().FinishLoad(loads[rack], answer);
      Settle();
      status.Update(*call->status);
    }
    return status;
  }
  // Rank 0 could not load.
  void Refuse() {
    v1::LoadStateRequest refusal;
    refusal.set_session_id(sessions[0]);
    refusal.set_refusal_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
    refusal.set_refusal("the manifest is gone");
    const auto load = node(0).control().loads().BeginLoad(refusal);
    ASSERT_TRUE(load.ok()) << load.status();
    Settle();
  }
  std::uint64_t FirstIterationAt(std::uint32_t rack, int key) {
    v1::GetJobVersionsRequest request;
    request.set_job("digits");
    const auto versions = node(rack).GetJobVersions(request);
    Settle();
    return versions->ok() ? versions->response.keys(key).first_iteration() : UINT64_MAX;
  }
  CallPtr<v1::LoadedState> LoadedAt(std::uint32_t rank) {
    v1::GetLoadedStateRequest request;
    request.set_session_id(sessions[rank]);
    const auto call = NodeOf(rank).GetLoadedState(request);
    Settle();
    return call;
  }

  // The number of reductions of each key in the loaded checkpoint.
  std::uint64_t reductions[2] = {40, 41};
  std::vector<std::unique_ptr<KeepingCore>> keeping;  // by rack
  std::vector<std::uint64_t> used_before;             // by rack
  std::map<std::uint32_t, LoadId> loads;              // by rack
  std::array<HeldBackground, kRacks> backgrounds;     // only where a test connects them
};

}  // namespace phub::server
