// Adds the keys of a job: checks them, places them on the core loops of the rack, allocates memory,
// and sends them to the core loops of this daemon. The first rank to add a batch defines it; the
// others must add the same keys. Owned by Control; under control's lock, except the long work
// (ControlTurns::RunLong): checking, placing, building, comparing and describing keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/control/context.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/jobs/sessions.h"
#include "server/control/jobs/tenant_shares.h"
#include "server/control/keys/key_build.h"
#include "server/control/lanes/rank_memories.h"

namespace phub::server {

class GroupKeys;

class Keys {
 public:
  Keys(Context& context, Sessions& sessions, Ending& ending, PendingCalls& pending_calls,
       HostMemory& host_memory, RankMemories& rank_memories, TenantShares& shares,
       PeerRacks& peer_racks, GroupKeys& groups)
      : context_(context),
        sessions_(sessions),
        ending_(ending),
        pending_calls_(pending_calls),
        host_memory_(host_memory),
        rank_memories_(rank_memories),
        shares_(shares),
        peer_racks_(peer_racks),
        groups_(groups) {}

  void AddKeys(const v1::AddKeysRequest& request, Answer<v1::AddKeysResponse> answer);
  // The same without a copy of the request.
  void AddOwnedKeys(std::shared_ptr<const v1::AddKeysRequest> owned,
                    Answer<v1::AddKeysResponse> answer);
  // Calls `then` when the batch that is being built is complete, in the order of these calls and of
  // those of AddKeys that wait. The job may be over then, or already build another batch. REQUIRES:
  // one is being built.
  static void AfterBuild(Job& job, std::function<void()> then);
  // Builds the job's next batch, which `rank` of another rack has defined. REQUIRES: none is being
  // built.
  void BuildPeerBatch(Job& job, std::shared_ptr<const KeySpecs> given, Rank rank,
                      std::function<void(const absl::Status&)> done);
  // Sends batches to the core loops, in order, as soon as their pages are prefaulted.
  void HandOutBatches(Job& job);
  // Builds a batch and gives it to the job or its group. REQUIRES: none is being built.
  using Done = std::function<void(const absl::Status&)>;
  void StartBuild(Job& job, const std::shared_ptr<KeyBuild>& build, const Done& done);

 private:
  struct Adding {  // an AddKeys call
    std::string session_id;
    std::uint32_t batch = 0;
    std::uint64_t shared_bytes = 0;
    std::uint32_t removals = 0;
    std::size_t key_count = 0;
    Answer<v1::AddKeysResponse> answer;
    bool covered = false;  // the daemon has asked for a grant already
  };
  // The request may be large. It is dropped, without the lock, once its keys were copied or
  // compared.
  using Request = std::shared_ptr<const v1::AddKeysRequest>;
  absl::Status Admit(Job& job, KeyBuild& build);
  absl::Status Enter(Job& job, KeyBuild& build);
  void GoOnBuilding(Job& job, const std::shared_ptr<KeyBuild>& build, std::size_t units,
                    const Done& done, absl::Status status);
  void SendBatch(Job& job, BatchRecord& batch);
  void FailWithoutMemory(Job& job);
  void FinishBuild(Job& job, const Done& done, const absl::Status& status);
  void BeginAdding(const Adding& adding, Request request);
  void CompareBatch(Job& job, const Adding& adding, Request request);
  void ShareBatch(const Adding& adding);
  void AnswerBatch(const Adding& adding);
  static absl::Status CheckPlace(const Job& job, Rank rank, const Adding& adding);
  void DisagreeWithRemoval(Job& job, Rank rank, const Adding& adding,
                           const v1::AddKeysRequest& request);

  Context& context_;
  Sessions& sessions_;
  Ending& ending_;
  PendingCalls& pending_calls_;
  HostMemory& host_memory_;
  RankMemories& rank_memories_;
  TenantShares& shares_;
  PeerRacks& peer_racks_;
  GroupKeys& groups_;
};

}  // namespace phub::server
