// Shared by the tests of checkpoints: a temporary folder, states with known contents, and functions
// that save and load whole states.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status_text.h"
#include "common/checkpoint/checksum.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/reader.h"
#include "common/checkpoint/writer.h"
#include "tests/support/temporary_folder.h"

namespace phub::checkpoint {

// In memory if the host has such a place: thousands of states are saved here, and syncing each to a
// busy disk would take minutes. crash_test.cc's model checks what is synced when.
class FolderInMemory : public TemporaryFolder {
 public:
  FolderInMemory() : TemporaryFolder(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "") {}
};

inline std::string ReadWhole(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline void WriteWhole(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.flush();
  ASSERT_TRUE(stream) << path;
}

inline std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline std::string TextOf(const absl::Status& status) { return std::string(MessageOf(status)); }

// All bytes of a state's tensors, by name.
using Contents = std::map<std::string, std::vector<std::byte>>;

struct SavedValues {
  CheckpointDescription description;
  Contents contents;
  friend bool operator==(const SavedValues&, const SavedValues&) = default;
};

inline SavedValues WithContents(CheckpointDescription description, std::uint64_t seed) {
  SavedValues state{std::move(description), {}};
  SeededRandom random(seed);
  for (const TensorDescription& tensor : TensorsOf(state.description)) {
    std::vector<std::byte>& bytes = state.contents[tensor.name];
    bytes.resize(tensor.bytes());
    random.Fill(bytes);
  }
  return state;
}

// One key with masters and optimizer state, one that was never initialized: 27 elements in all.
inline SavedValues SmallCheckpoint(std::uint64_t iteration, std::uint64_t seed) {
  CheckpointDescription description;
  description.job = "digits";
  description.world_size = 4;
  description.iteration = iteration;
  description.phub_version = "0.1.0";
  description.daemons = {"rack7:7700", "rack7:7701"};
  description.saved_at_unix_s = 1'790'000'000 + iteration;
  SavedKey key;
  key.name = "fc1.weight";
  key.element_count = 9;
  key.parameter_type = numeric::ElementType::kBf16;
  key.operation = "mean";
  key.optimizer = "momentum";
  key.hyper_parameters = {{"learning_rate", 0.1}, {"momentum", 0.9}};
  key.optimizer_tensors = {{"momentum", numeric::ElementType::kF32}};
  key.optimizer_steps = iteration;
  key.iteration = iteration;
  key.record_version = 3;
  key.initialized = true;
  description.keys.push_back(key);
  key.name = "late";
  key.initialized = false;
  description.keys.push_back(key);
  return WithContents(std::move(description), seed);
}

inline absl::Status WriteAll(CheckpointWriter& writer, const SavedValues& state) {
  for (const auto& [name, bytes] : state.contents) {
    if (absl::Status status = writer.Write(name, 0, bytes); !status.ok()) return status;
  }
  return absl::OkStatus();
}

inline absl::Status Save(const std::string& folder, const SavedValues& state,
                         FileOperations& operations = FileOperations::System()) {
  auto writer = CheckpointWriter::Create(folder, state.description, operations);
  if (!writer.ok()) return writer.status();
  if (absl::Status status = WriteAll(**writer, state); !status.ok()) return status;
  return (*writer)->Commit();
}

inline absl::StatusOr<SavedValues> Load(const std::string& folder) {
  const auto reader = CheckpointReader::Open(folder);
  if (!reader.ok()) return reader.status();
  SavedValues state{(*reader)->description(), {}};
  for (const TensorDescription& tensor : TensorsOf(state.description)) {
    std::vector<std::byte>& bytes = state.contents[tensor.name];
    bytes.resize(tensor.bytes());
    if (absl::Status status = (*reader)->Read(tensor.name, 0, bytes); !status.ok()) return status;
  }
  return state;
}

inline Manifest ManifestOf(const std::string& folder) {
  const auto manifest = ParseManifest(ReadWhole(folder + "/" + kManifestFile));
  PHUB_CHECK(manifest.ok(), "{}", TextOf(manifest.status()));
  return *manifest;
}
inline std::string DataPathOf(const std::string& folder) {
  return folder + "/" + ManifestOf(folder).data_file;
}

}  // namespace phub::checkpoint
