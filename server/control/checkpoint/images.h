// Copies of a job's training state: their memory, and where each chunk's tensors lie in them. See
// checkpoints.h for who holds an image until when. Under control's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/control/checkpoint/checkpoints.h"
#include "server/control/context.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// All chunks of the job on this daemon, core after core, each in the core loop's own order.
std::vector<ChunkRef> ChunksOf(const Job& job);

// Memory for images of all of the job's shards, charged to it; `bytes` says how much. Otherwise
// the shortfall. REQUIRES: the core loops have all of the job's keys.
absl::StatusOr<std::vector<std::unique_ptr<CheckpointImage>>> MakeImages(Context& context, Job& job,
                                                                         std::uint64_t& bytes);

}  // namespace phub::server
