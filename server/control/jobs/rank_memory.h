// The memory regions that one rank shares with this daemon, and the nonces to fetch them. Data; the
// rules are in lanes/rank_memories.h. Owned by the rank's Member; under control's lock.
//
// Owner: the first process that uses a grant of the rank becomes the rank's process, and every
// later lane and region must go to the same process. Memory that one process could map is never
// given to another one: a restarted rank gets fresh memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/shared_memory.h"
#include "common/transport/shm/shared_regions.h"
#include "common/wire/lane_hello.h"
#include "server/control/answers.h"
#include "server/control/jobs/granted_nonce.h"
#include "server/control/jobs/prefaulter.h"

namespace phub::server {

inline constexpr std::uint32_t kNoRegion = UINT32_MAX;

// The memory of a batch of keys for one rank.
struct RankBatch {
  bool made = false;                           // the rank has added the batch
  std::shared_ptr<const SharedMemory> worker;  // null: the rank requested none
  // Indices in the rank's regions; kNoRegion: not shared.
  std::uint32_t worker_region = kNoRegion;
  std::uint32_t parameters_region = kNoRegion;
  PagesFlag worker_pages;  // null: prefaulted
  GrantedNonce nonce;      // to fetch both regions
};
// The same for a batch of a group. Ranks share only its gradients and results.
struct RankGroupBatch {
  std::uint64_t group = 0;  // Group::id
  std::uint32_t batch = 0;  // the group's number of it
  RankBatch memory;
};
struct RankMemory {
  std::shared_ptr<transport::SharedRegions> regions;      // created on first use
  std::vector<RankBatch> batches;                         // [batch]
  std::map<std::uint32_t, RankGroupBatch> group_batches;  // by index in the rank's regions
  std::optional<PeerProcess> process;
  std::uint64_t worker_bytes = 0;  // size of its own regions, charged to the job
};

}  // namespace phub::server
