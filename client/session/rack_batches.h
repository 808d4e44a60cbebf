// Adds batches of keys at all daemons of the rack, which must agree on where each chunk is, and
// fetches the memory that is shared for them. One caller at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "client/session/key_memory.h"
#include "client/session/key_owner.h"
#include "client/session/rack_calls.h"
#include "client/session/rack_lanes.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

// What the rack answered to a batch of keys.
struct AddedBatch {
  v1::AddKeysResponse response;  // placements as all daemons have them
  BatchMemory memory;
};

class RackBatches {
 public:
  // restart: JobOptions::restart. All outlive it.
  RackBatches(const KeyOwner& job, RackCalls& calls, bool restart)
      : job_(job), calls_(calls), restart_(restart) {}

  // Before the first batch.
  void SetLanes(const RackLanes& lanes) { lanes_ = &lanes; }

  // The next batch. shared_bytes: what this rank wants to share with the daemon on its host.
  // is_split: set on an error if a daemon has the keys and this rank or another daemon has not, so
  // that the job cannot go on.
  Result<AddedBatch> Add(v1::AddKeysRequest request, std::uint64_t shared_bytes, bool& is_split);

  // The daemon that this rank shares memory with: the first that it reaches that way, or null.
  const DaemonLink* SharingDaemon() const;
  // Where they are shared: parameters of its keys are then not held once more by this rank.
  bool ReadsDaemonsParameters() const;
  const std::vector<v1::KeySpec>& specs() const { return specs_; }  // [key index], as added

 private:
  Result<AddedBatch> Agree(const v1::AddKeysRequest& request, std::uint64_t shared_bytes,
                           std::vector<absl::StatusOr<v1::AddKeysResponse>> answers);
  Status FetchShared(const DaemonLink& link, std::uint32_t batch, std::uint64_t shared_bytes,
                     const v1::AddKeysResponse& response, BatchMemory& memory);

  const KeyOwner& job_;
  RackCalls& calls_;
  const bool restart_;
  const RackLanes* lanes_ = nullptr;
  std::uint32_t next_batch_ = 0;
  std::vector<v1::KeySpec> specs_;
};

}  // namespace phub::client
