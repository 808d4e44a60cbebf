// Manages the memory that each rank shares with this daemon: the staging memory of its lanes,
// regions for gradients and results, and the parameters that it may map. See jobs/rank_memory.h for
// the rules of ownership. Owned by Control; under control's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/shm/shm_gate.h"
#include "common/wire/lane_hello.h"
#include "common/wire/shared_memory.h"
#include "server/control/context.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job_table.h"

namespace phub::server {

// The staging slots of one lane. Each slot has SlotHeaderBytes(), then slot_bytes.
struct LaneStaging {
  std::byte* data = nullptr;
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = 0;
  std::shared_ptr<const void> owner;
};

class RankMemories {
 public:
  RankMemories(Context& context, HostMemory& host_memory, JobTable& jobs)
      : context_(context), host_memory_(host_memory), jobs_(jobs) {}

  // Allocates the staging memory of all lanes of a rank. Opening a lane later allocates none.
  absl::Status TakeStaging(const Job& job, Member& member) const;
  // A new process has taken over the rank: replaces all memory that the old process could map.
  absl::Status RenewRankMemory(Job& job, Rank rank);
  void DropRankMemory(Job& job, Member& member);
  // Whether the process may use the rank's grants. The first process that does so becomes the only
  // one.
  bool IsProcessOf(Job& job, Rank rank, const PeerProcess& process);

  // The staging memory and the regions of an admitted lane over shared memory.
  absl::StatusOr<transport::LaneMemory> SharedLaneMemory(const wire::LaneHello& hello);
  // The staging slots of an admitted lane.
  absl::StatusOr<LaneStaging> StagingOf(const wire::LaneHello& hello);

  // Creates the regions that a rank shares for a batch. Does nothing if the rank adds the batch
  // again.
  absl::Status ShareBatch(Job& job, Rank rank, std::uint32_t batch, std::uint64_t worker_bytes);
  // Removes the regions of that batch and all later ones from the rank's table, so that core loops
  // do not find them any more, and withdraws their nonces.
  struct Withdrawn {
    std::vector<std::span<const std::byte>> pushable;  // from there; in the order of addresses
    std::vector<std::shared_ptr<const void>> memory;   // what was in the table
    std::uint64_t bytes = 0;                           // charged for the rank's own regions
  };
  static Withdrawn Withdraw(Member& member, std::uint32_t first_batch);
  // Grants a nonce to fetch the regions of the batch.
  void GrantBatch(const Job& job, Member& member, std::uint32_t batch,
                  v1::AddKeysResponse& response);
  // The same three for a group's batches. The rank chooses the region's index, which must not be in
  // use. Forget: the core loops do not use the withdrawn regions any more, and the rank may use
  // their indices again.
  absl::Status ShareGroupBatch(Job& job, Rank rank, const Group& group, std::uint32_t batch,
                               std::uint32_t region, std::uint64_t bytes);
  static Withdrawn WithdrawGroup(Member& member, std::uint64_t group);
  static void ForgetGroup(Member& member, std::uint64_t group);
  void GrantGroupBatch(Member& member, std::uint64_t group, std::uint32_t batch,
                       v1::AddKeysResponse& response);
  // Returns the regions of a batch to the rank that requests them. Uses up the nonce.
  wire::LaneRefusal AdmitBatch(const wire::SharedBatchRequest& request, const PeerProcess& process,
                               transport::BatchMemory& memory);

 private:
  // region: the index that the rank has chosen; kNoRegion: the job's next one.
  absl::Status MakeWorkerRegion(Job& job, Member& member, RankBatch& entry, std::uint64_t bytes,
                                std::uint32_t region = kNoRegion);
  static RankBatch* FindBatch(Member& member, std::uint32_t batch);
  void Grant(RankBatch& entry, v1::AddKeysResponse& response);
  wire::LaneRefusal CheckBatch(const wire::SharedBatchRequest& request, const PeerProcess& process,
                               transport::BatchMemory& memory);

  Context& context_;
  HostMemory& host_memory_;
  JobTable& jobs_;
};

}  // namespace phub::server
