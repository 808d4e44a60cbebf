// Copies of a job's training state: their memory and where each chunk's tensors are in it. See
// checkpoints.h for the lifetime of images. Under control's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/control/checkpoint/checkpoints.h"
#include "server/control/context.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// All chunks of the job on this daemon, grouped by core, in each core loop's order.
std::vector<ChunkRef> ChunksOf(const Job& job);

// Allocates images of all of the job's shards and charges them to the job; sets `bytes` to their
// size. Otherwise returns why there is not enough memory. REQUIRES: the core loops have all of the
// job's keys.
absl::StatusOr<std::vector<std::unique_ptr<CheckpointImage>>> MakeImages(Context& context, Job& job,
                                                                         std::uint64_t& bytes);

}  // namespace phub::server
