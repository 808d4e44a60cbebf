// Builds a batch of keys without control's lock: checks the specs, places and lays them out, then
// maps their memory. Admission is between the two steps, under the lock. Any thread, one at a time
// for a job; nothing here reads the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/control/counters.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job.h"
#include "server/control/jobs/peer_message.h"

namespace phub::server {

struct KeyBuild {
  // What the job gives: constants, and copies of what only AddKeys changes.
  std::string job;
  ShardConfig config;
  std::uint32_t chunk_bytes = 0;
  OwnBins own_bins;
  std::uint32_t first_key = 0;
  bool share = false;                      // keys may be in shared memory
  SharedMemory::ReleaseHook release_hook;  // of shared memory; may be empty
  std::vector<PlacementBin> bins;
  std::vector<NumberSpace> chunk_numbers;        // [bin]
  std::shared_ptr<std::set<std::string>> names;  // the job's or the group's; only builds use it
  // The keys belong to this group; null: to the job. A group enters the job with its first batch.
  std::shared_ptr<Group> group;
  NumberSpace group_key_numbers;
  std::shared_ptr<const KeySpecs> given;  // until they are planned
  Rank rank{};
  // Groups of several racks: [core], the number of the batch's first chunk on lanes between racks.
  std::vector<std::uint32_t> group_numbers;
  bool held = false;       // see BatchRecord
  bool only_here = false;  // no other rack has the keys, or this one counts them for all
  // Only for keys that racks exchange.
  std::vector<std::shared_ptr<exchange::ShardExchange>> exchange_shards;  // [core]
  std::vector<exchange::TreeChooser> choosers;                            // [core]
  // The other racks get a message with the keys, of at most that size; 0: they do not.
  std::size_t message_bytes_max = 0;
  std::uint32_t batch = 0;
  Incarnation incarnation{};

  // What becomes of the batch.
  absl::Status status;
  ControlCounter refusal{};                       // if !status.ok()
  KeySpecs keys;                                  // with defaults filled in
  std::vector<std::vector<BinIndex>> placement;   // [key][chunk]
  std::vector<std::vector<NumberRange>> numbers;  // [key]: its chunks on each core loop
  std::vector<std::vector<KeyShardSpec>> parts;   // [core][key]
  std::vector<std::uint64_t> first_iterations;    // [key]
  std::uint64_t parameter_bytes = 0;
  std::uint64_t bytes = 0;  // what admission charges
  BatchRecord record;
  std::vector<std::shared_ptr<exchange::ExchangeBatch>> exchange_batches;  // [core]
  std::optional<SharedPeerMessage> for_racks;

  // The ranks of this rack that push the keys.
  std::uint32_t ranks() const {
    return group == nullptr ? config.world_size : group->members->count();
  }
  // Whether the keys are those of several racks.
  bool exchanges() const {
    return config.ranks_of_job > 0 && (group == nullptr || group->exchange != nullptr);
  }
  std::size_t keys_before() const {
    return group == nullptr ? first_key : group_key_numbers.used();
  }
};

std::shared_ptr<KeyBuild> StartKeyBuild(const Job& job, Rank rank, const HostMemory& host_memory);
// The keys of the build, which was just started, belong to this group.
void BuildForGroup(const Job& job, KeyBuild& build, const std::shared_ptr<Group>& group);
void PlanKeys(KeyBuild& build);  // the first step
void BuildKeys(
    KeyBuild& build);  // the second step; afterwards record is complete, except its pages

}  // namespace phub::server
