#include "server/control/checkpoint/snapshot_contents.h"

#include <algorithm>

#include "server/control/checkpoint/images.h"

namespace phub::server {

// Maps the images, and gathers what the snapshot must know of keys and chunks.
void MapContents(SnapshotContents& contents) {
  contents.images = MapImages(contents.source);
  if (contents.images.empty()) return;
  contents.keys.resize(contents.targets.size());
  for (std::size_t i = 0; i < contents.keys.size(); ++i) {
    contents.keys[i].first_iteration = contents.job_keys.first_iterations()[i];
    contents.keys[i].reductions = contents.targets[i];
    for (const auto& image : contents.images) image->keys[i].target = contents.targets[i];
  }
  contents.chunks = ChunksOf(contents.source);
  std::erase_if(contents.chunks, [](const ChunkRef& place) { return !place.chunk->IsSaved(); });
  for (const ChunkRef& place : contents.chunks) {
    const auto& copy = contents.images[place.core.value]->chunks[place.index];
    for (const TensorView& tensor : TensorsOf(*place.chunk->key, copy)) {
      contents.bytes += std::uint64_t{place.chunk->element_count} * tensor.element_bytes;
    }
  }
}

void DescribeKeys(SnapshotContents& contents) {
  contents.described.Clear();
  for (std::uint32_t key = 0; key < contents.keys.size(); ++key)
    *contents.described.Add() = DescribeAtTarget(contents, key);
}

// Describes each key by what the core loops copied at its target. Keys without a chunk here keep
// their description.
void DescribeCopied(SnapshotContents& contents,
                    const std::vector<std::shared_ptr<CheckpointImage>>& images) {
  std::vector<bool> seen(contents.keys.size(), false);
  for (const ChunkRef& place : contents.chunks) {
    const std::uint32_t index = place.chunk->key->key.value;
    const CheckpointImage& image = *images[place.core.value];
    const CheckpointImage::ChunkImage& copy = image.chunks[place.index];
    KeyAtTarget& key = contents.keys[index];
    key.reductions = copy.reductions;
    key.applied = seen[index] ? std::min(key.applied, copy.applied.value) : copy.applied.value;
    key.is_here = true;
    key.hyper_parameters = image.keys[index].hyper_parameters;
    seen[index] = true;
  }
  for (const KeyAtTarget& key : contents.keys) {
    contents.iteration = std::max(contents.iteration, key.first_iteration + key.reductions);
  }
}

// Describes each key by the versions that core loops reported after they accepted the snapshot.
void DescribeBegun(SnapshotContents& contents, const VersionReports& reports) {
  for (std::size_t i = 0; i < contents.keys.size(); ++i) {
    const VersionReport::Entry* least = nullptr;
    std::uint64_t applied = 0;
    std::uint64_t reductions = 0;
    for (const auto& report : reports) {
      const VersionReport::Entry& entry = report->keys[i];
      if (entry.chunk_count == 0) continue;
      if (least == nullptr || entry.applied_min < least->applied_min) least = &entry;
      applied = std::max(applied, entry.applied_max.value);
      reductions = std::max(reductions, entry.reductions_max);
    }
    if (least == nullptr) continue;
    KeyAtTarget& key = contents.keys[i];
    key.applied = key.reductions + applied - reductions;
    key.is_here = true;
    key.hyper_parameters = least->hyper_parameters;
  }
}

}  // namespace phub::server
