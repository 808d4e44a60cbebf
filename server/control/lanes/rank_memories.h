// The memory that each rank shares with this daemon: staging of its lanes, regions for gradients
// and results, and the parameters that it may map. See jobs/rank_memory.h for whose memory it is.
// Owned by Control; under control's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/shm/shm_gate.h"
#include "common/wire/lane_hello.h"
#include "common/wire/shared_memory.h"
#include "server/control/context.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job_table.h"

namespace phub::server {

// The staging slots of one lane: slot i is SlotHeaderBytes() and then slot_bytes.
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

  // Staging for every lane of a rank, at once: opening a lane later takes no memory.
  absl::Status TakeStaging(const Job& job, Member& member) const;
  // A new process has taken the rank over: no memory that the old one maps is used for it.
  absl::Status RenewRankMemory(Job& job, Rank rank);
  void DropRankMemory(Job& job, Member& member);
  // The first process to use a grant of the rank is the rank's process.
  bool IsProcessOf(Job& job, Rank rank, const PeerProcess& process);

  // Of a lane in shared memory that was admitted: what it receives into and shares.
  absl::StatusOr<transport::LaneMemory> SharedLaneMemory(const wire::LaneHello& hello);
  // Of a lane that was admitted.
  absl::StatusOr<LaneStaging> StagingOf(const wire::LaneHello& hello);

  // What a rank shares for a batch, the first time that it adds the batch; asked again, the same.
  absl::Status ShareBatch(Job& job, Rank rank, std::uint32_t batch, std::uint64_t worker_bytes);
  // Grants the right to fetch it.
  void GrantBatch(const Job& job, Member& member, std::uint32_t batch,
                  v1::AddKeysResponse& response);
  // A batch's memory for the rank that asks. Uses up the nonce.
  wire::LaneRefusal AdmitBatch(const wire::SharedBatchRequest& request, const PeerProcess& process,
                               transport::BatchMemory& memory);

 private:
  absl::Status MakeWorkerRegion(Job& job, Member& member, RankBatch& entry, std::uint64_t bytes);
  wire::LaneRefusal CheckBatch(const wire::SharedBatchRequest& request, const PeerProcess& process,
                               transport::BatchMemory& memory);

  Context& context_;
  HostMemory& host_memory_;
  JobTable& jobs_;
};

}  // namespace phub::server
