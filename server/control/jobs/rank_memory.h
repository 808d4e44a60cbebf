// What one rank and this daemon share: regions of memory, and the right to fetch them. Data; the
// rules are in lanes/rank_memories.h. Owned by the rank's Member; under control's lock.
//
// Whose memory. The first process that uses a grant of the rank is the rank's process: every later
// lane and region must go to the same. Memory that was handed out is never given to another one: a
// rank that starts anew gets fresh memory.
#pragma once

#include <cstdint>
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

// What a batch of keys has for one rank.
struct RankBatch {
  bool made = false;                           // the rank has added the batch
  std::shared_ptr<const SharedMemory> worker;  // null: the rank asked for none
  // Their places in the rank's regions; kNoRegion: not among them.
  std::uint32_t worker_region = kNoRegion;
  std::uint32_t parameters_region = kNoRegion;
  PagesFlag worker_pages;  // null: taken
  GrantedNonce nonce;      // for fetching both
};
struct RankMemory {
  std::shared_ptr<transport::SharedRegions> regions;  // made when it is first needed
  std::vector<RankBatch> batches;                     // [batch]
  std::optional<PeerProcess> process;
  std::uint64_t worker_bytes = 0;  // of its own regions, as charged to the job
};

}  // namespace phub::server
