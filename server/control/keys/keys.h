// The keys of a job: checked, placed on the rack's core loops, given memory, and handed to this
// daemon's core loops. The first rank to send a batch decides; the others must send the same. Owned
// by Control; under control's lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/control/context.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/pending_calls.h"
#include "server/control/jobs/sessions.h"
#include "server/control/jobs/tenant_shares.h"
#include "server/control/lanes/rank_memories.h"

namespace phub::server {

class Keys {
 public:
  Keys(Context& context, Sessions& sessions, Ending& ending, PendingCalls& pending_calls,
       HostMemory& host_memory, RankMemories& rank_memories, TenantShares& shares,
       PeerRacks& peer_racks)
      : context_(context),
        sessions_(sessions),
        ending_(ending),
        pending_calls_(pending_calls),
        host_memory_(host_memory),
        rank_memories_(rank_memories),
        shares_(shares),
        peer_racks_(peer_racks) {}

  void AddKeys(const v1::AddKeysRequest& request, Answer<v1::AddKeysResponse> answer);
  // The first rank of this rack to send a batch, or another rack: checks, places and builds it.
  absl::Status AcceptBatch(Job& job, const KeySpecs& given, Rank rank);
  // To the core loops, in order, as the pages of their memory are there.
  void HandOutBatches(Job& job);

 private:
  using Placement = std::vector<std::vector<BinIndex>>;  // [key][chunk]

  absl::Status CheckChunkCounts(const Job& job, const Placement& placement) const;
  absl::Status BuildParts(Job& job, const KeySpecs& keys, const Placement& placement,
                          BatchRecord& record);
  static absl::Status BuildExchangeParts(Job& job,
                                         const std::vector<std::vector<KeyShardSpec>>& parts,
                                         BatchRecord& record);
  static void DescribePlacement(const Job& job, const Placement& placement, BatchRecord& record);
  void FailOverKeys(Job& job, Rank first, Rank rank, const std::string& difference);
  void AnswerBatch(Job& job, Rank rank, std::uint32_t batch,
                   const Answer<v1::AddKeysResponse>& answer);

  Context& context_;
  Sessions& sessions_;
  Ending& ending_;
  PendingCalls& pending_calls_;
  HostMemory& host_memory_;
  RankMemories& rank_memories_;
  TenantShares& shares_;
  PeerRacks& peer_racks_;
};

}  // namespace phub::server
