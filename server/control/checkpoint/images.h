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

// ControlTurns::RunLong for work on all keys of the job, whose record stays meanwhile. The job may
// have ended when `then` runs.
void RunLongOn(Context& context, Job& job, std::function<void()> work, std::function<void()> then);

// The job's batches at this moment.
ChunkSource SourceOf(const Job& job);
// All chunks, grouped by core, in each core loop's order. Any thread.
std::vector<ChunkRef> ChunksOf(const ChunkSource& source);

// Maps images of all of the job's shards: empty if there is no address space. Any thread. The core
// loops must have all of these keys when they get the images.
std::vector<std::shared_ptr<CheckpointImage>> MapImages(const ChunkSource& source);
// Calls `then` when this daemon's grant covers the images, or with the reason why it does not. The
// job's record stays meanwhile; the job may have ended when `then` runs.
void CoverImages(Context& context, Job& job,
                 const std::vector<std::shared_ptr<CheckpointImage>>& mapped, Grants::Then then);
// Charges mapped images to the job. Otherwise returns why there is not enough memory. The pages
// come later: see Images::pages.
absl::StatusOr<Images> AdmitImages(Context& context, const HostMemory& host_memory, Job& job,
                                   std::vector<std::shared_ptr<CheckpointImage>> mapped);
// Why the pages of images were refused.
absl::Status ImagesRefused(const Job& job, std::uint64_t bytes);
// Frees images that no core loop uses. They stay charged until their memory is free, perhaps until
// a later ReapImages; then `freed` is called, if it is not empty.
void FreeImages(Context& context, const HostMemory& host_memory, Job& job, Images images,
                std::function<void()> freed = {});
// Returns the charge of the images whose memory is free by now.
void ReapImages(Context& context, Job& job);

}  // namespace phub::server
