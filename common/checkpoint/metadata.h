// What a state's safetensors file says of itself in its metadata, so that it can be understood
// without its manifest:
//   phub.format_version  "1"
//   phub.job, phub.world_size, phub.iteration, phub.version, phub.saved_at_unix_s
//   phub.daemons         JSON: a list of texts
//   phub.keys            JSON: a list with one object for each key, in the job's order
// Hyper-parameters are the shortest decimals that read back to the same double. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/description.h"
#include "common/checkpoint/safetensors.h"

namespace phub::checkpoint {

// Of files and manifests; a reader refuses others than its own.
inline constexpr std::uint64_t kFormatVersion = 1;

SafetensorsHeader HeaderOf(const CheckpointDescription& description);

// Fails if the file is not phub's, or if its tensors are not exactly those of its keys.
absl::StatusOr<CheckpointDescription> DescriptionOf(const SafetensorsHeader& header);

}  // namespace phub::checkpoint
