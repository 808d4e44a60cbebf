// Prepares a folder for saving a checkpoint: opens and locks it, reads its current manifest, and
// removes files that interrupted writers left. Private to the writer. One thread.
//
// A writer's temporary files, until its manifest is in place:
//   <data file>.tmp           the data, until it is complete
//   <data file>.manifest.tmp  the manifest. It is written before the data file is renamed, so that
//                             after a crash at any time the names show which data file is stale.
// The only other file that is ever deleted is the data file that the current manifest replaced.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/checkpoint/file_operations.h"
#include "common/checkpoint/manifest.h"

namespace phub::checkpoint {

struct CheckpointFolder {
  std::string path;
  Descriptor descriptor;  // holds the lock
  std::optional<Manifest> current;
};

inline constexpr const char* kDataTemporaryEnd = ".tmp";
inline constexpr const char* kManifestTemporaryEnd = ".manifest.tmp";

// Creates the folder if only the last part of its path is missing. Fails if another process is
// saving into it. Also fails if its manifest.json is damaged or not phub's, to avoid overwriting
// it.
absl::StatusOr<CheckpointFolder> OpenForSaving(const std::string& path, FileOperations& operations);

}  // namespace phub::checkpoint
