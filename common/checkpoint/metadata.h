// The metadata in a checkpoint's safetensors file. It describes the checkpoint completely, without
// the manifest:
//   phub.format_version  "1"
//   phub.job, phub.world_size, phub.iteration, phub.version, phub.saved_at_unix_s
//   phub.daemons         JSON: a list of strings
//   phub.keys            JSON: a list with one object for each key, in the job's order
// A hyper-parameter is the shortest decimal that parses back to the same double. Pure; any thread.
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

// Of data files and manifests. A reader rejects any other version.
inline constexpr std::uint64_t kFormatVersion = 1;

SafetensorsHeader HeaderOf(const CheckpointDescription& description);

// Fails if the file is not a phub checkpoint, or if its tensors do not match its keys exactly.
absl::StatusOr<CheckpointDescription> DescriptionOf(const SafetensorsHeader& header);

}  // namespace phub::checkpoint
