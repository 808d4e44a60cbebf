// Adds batches of keys at all daemons of the rack, which must agree on the place of each chunk, and
// fetches the memory that is shared for them. One caller at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "client/session/key_memory.h"
#include "client/session/key_owner.h"
#include "client/session/rack_calls.h"
#include "client/session/rack_lanes.h"
#include "common/transport/shm/shm_dial.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

// The rack's response to a batch of keys.
struct AddedBatch {
  v1::AddKeysResponse response;  // all daemons have the same placements
  BatchMemory memory;
};

inline constexpr std::uint32_t kNoGroupRegion = UINT32_MAX;

class RackBatches {
 public:
  // restart: JobOptions::restart. All references must outlive this object.
  RackBatches(const KeyOwner& job, RackCalls& calls, bool restart)
      : job_(job), calls_(calls), restart_(restart) {}

  // Call before the first batch.
  void SetLanes(const RackLanes& lanes) { lanes_ = &lanes; }

  // Adds the next batch. shared_bytes: bytes of memory to share with the daemon on this host.
  // is_split: set on an error if some daemon has the keys but this rank or another daemon does not.
  // The job must then end.
  Result<AddedBatch> Add(v1::AddKeysRequest request, std::uint64_t shared_bytes, bool& is_split);

  // Removes that batch and all later ones. Waits for every rank. is_split: as above. kCancelled:
  // this rank began to leave, and does not know whether the daemons have removed them.
  Status Remove(std::uint32_t first_batch, bool& is_split);

  // The same for keys of a group. REQUIRES: the rack has one daemon. Any number of callers, each
  // with a group of its own. The region of the request's memory, if it shares some, is that of
  // TakeGroupRegion(); its memory is fetched with FetchGroupMemory().
  Result<v1::AddKeysResponse> AddToGroup(v1::AddKeysRequest request);
  Status RemoveGroup(std::uint64_t id, const std::string& group);

  // An index that no region of a group has; kNoGroupRegion: this rank has as many as it can.
  std::uint32_t TakeGroupRegion();
  void ReturnGroupRegion(std::uint32_t region);
  // `memory` stays empty if the daemon shares none.
  Status FetchGroupMemory(const v1::AddKeysResponse& response, std::uint32_t region,
                          std::uint64_t shared_bytes, BatchMemory& memory);
  // The engine does not find the region any more. Drop the result, and return the region, only
  // after the engine has executed a later command.
  std::shared_ptr<const void> RemoveGroupMemory(std::uint32_t region);

  // The daemon that this rank shares memory with: the first one with shared lanes, or null.
  const DaemonLink* SharingDaemon() const;
  // True if this rank reads shared parameters in place instead of holding a copy.
  bool ReadsDaemonsParameters() const;
  const std::vector<v1::KeySpec>& specs() const { return specs_; }  // [key index], as added

 private:
  Result<AddedBatch> Agree(const v1::AddKeysRequest& request, std::uint64_t shared_bytes,
                           std::vector<absl::StatusOr<v1::AddKeysResponse>> answers);
  absl::StatusOr<std::shared_ptr<const transport::FetchedBatch>> Fetch(
      const DaemonLink& link, std::uint32_t batch, const v1::AddKeysResponse& response) const;
  Status FetchShared(const DaemonLink& link, std::uint32_t batch, std::uint64_t shared_bytes,
                     const v1::AddKeysResponse& response, BatchMemory& memory);

  const KeyOwner& job_;
  RackCalls& calls_;
  const bool restart_;
  const RackLanes* lanes_ = nullptr;
  struct Batch {
    std::size_t first_key = 0;
    std::vector<std::uint32_t> regions_before;  // [daemon]: in its table of shared memory
  };
  std::vector<std::uint32_t> CountRegions() const;

  std::vector<Batch> batches_;
  std::uint32_t removals_ = 0;  // calls of RemoveKeys that succeeded
  std::vector<v1::KeySpec> specs_;
  std::mutex regions_mutex_;               // of changes to the tables of regions, and of:
  std::set<std::uint32_t> group_regions_;  // in use
};

}  // namespace phub::client
