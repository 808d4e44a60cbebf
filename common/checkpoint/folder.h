// The folder into which a state is saved: opened, locked, its current manifest read, and freed of
// what savers left that did not come to their end. Private to the writer. One thread.
//
// A saver's files, until its manifest is in place:
//   <data file>.tmp           the data, until it is whole
//   <data file>.manifest.tmp  the manifest, written before the data gets its name: so whatever the
//                             instant of a crash, names alone tell which data file nobody wants
// Nothing else is ever deleted, but the data file that the current manifest says it replaced.
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

// Makes the folder if only its last part is missing. Fails if somebody else is saving into it, and
// if its manifest.json is not a manifest of phub's or is damaged: it would be lost.
absl::StatusOr<CheckpointFolder> OpenForSaving(const std::string& path, FileOperations& operations);

}  // namespace phub::checkpoint
