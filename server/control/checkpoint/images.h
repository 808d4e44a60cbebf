// Copies of a job's training state: their memory and where each chunk's tensors are in it. See
// checkpoints.h for the lifetime of images. Under control's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/control/checkpoint/checkpoints.h"
#include "server/control/context.h"
#include "server/control/jobs/host_memory.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// All chunks of the job on this daemon, grouped by core, in each core loop's order.
std::vector<ChunkRef> ChunksOf(const Job& job);

// Maps images of all of the job's shards and charges them to the job. Otherwise returns why there
// is not enough memory. The pages come later: see Images::pages. REQUIRES: the core loops have all
// of the job's keys.
absl::StatusOr<Images> MakeImages(Context& context, const HostMemory& host_memory, Job& job);
// Why the pages of images were refused.
absl::Status ImagesRefused(const Job& job, std::uint64_t bytes);
// Frees images that no core loop uses. They stay charged until their memory is free, perhaps until
// a later ReapImages; then `freed` is called, if it is not empty.
void FreeImages(Context& context, const HostMemory& host_memory, Job& job, Images images,
                std::function<void()> freed = {});
// Returns the charge of the images whose memory is free by now.
void ReapImages(Context& context, Job& job);

}  // namespace phub::server
