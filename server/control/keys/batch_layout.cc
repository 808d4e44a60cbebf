#include "server/control/keys/batch_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/align.h"
#include "server/control/keys/key_specs.h"

namespace phub::server {
namespace {

constexpr std::uint64_t kAlignment = 64;  // whole cache lines and vectors
constexpr std::uint64_t kPageBytes = 4096;

// The most page bytes that a chunk can touch, wherever it begins.
std::uint64_t PagesOfChunk(std::uint64_t chunk_bytes) {
  return AlignUp(chunk_bytes, kPageBytes) + kPageBytes;
}

// Whether this daemon owns every chunk of the keys in ordinary memory.
bool HasAllOfOrdinary(const ParameterLayout& layout,
                      const std::vector<std::vector<KeyShardSpec>>& parts) {
  for (std::size_t i = 0; i < layout.keys.size(); ++i) {
    const ParameterLayout::KeyPlace& place = layout.keys[i];
    if (place.shared || place.version_bytes == 0) continue;
    std::uint64_t bytes = 0;
    for (const std::vector<KeyShardSpec>& part : parts) {
      for (const KeyShardSpec::ChunkSpec& chunk : part[i].chunks) {
        bytes += std::uint64_t{chunk.element_count} * numeric::ElementBytes(part[i].parameter_type);
      }
    }
    if (AlignUp(bytes, kAlignment) != place.version_bytes) return false;
  }
  return true;
}

}  // namespace

std::vector<std::vector<KeyShardSpec>> CutForCores(
    const KeySpecs& keys, const std::vector<std::vector<BinIndex>>& placement, OwnBins own,
    std::uint32_t ranks, std::uint32_t chunk_bytes, std::uint32_t first_key) {
  std::vector<std::vector<KeyShardSpec>> parts(own.count);
  for (std::size_t i = 0; i < placement.size(); ++i) {
    const v1::KeySpec& key = keys[static_cast<int>(i)];
    const KeyShardSpec spec = ShardSpecOf(key, KeyIndex{first_key + static_cast<std::uint32_t>(i)});
    for (std::vector<KeyShardSpec>& part : parts) part.push_back(spec);
    const ChunkMap map = ChunksOf(key, ranks, chunk_bytes);
    for (std::size_t chunk = 0; chunk < placement[i].size(); ++chunk) {
      const BinIndex bin = placement[i][chunk];
      if (!own.Has(bin)) continue;
      const ChunkMap::Chunk cut = map.At(chunk);
      parts[bin.value - own.first].back().chunks.push_back({.element_count = cut.element_count,
                                                            .element_offset = cut.element_offset,
                                                            .sender = cut.sender,
                                                            .receiver = cut.receiver});
    }
  }
  return parts;
}

ParameterLayout LayOutParameters(const KeySpecs& keys,
                                 const std::vector<std::vector<KeyShardSpec>>& parts,
                                 std::uint32_t versions, bool share) {
  ParameterLayout layout;
  for (std::size_t i = 0; i < static_cast<std::size_t>(keys.size()); ++i) {
    const v1::KeySpec& key = keys[static_cast<int>(i)];
    std::uint64_t own_elements = 0;
    std::uint64_t own_pages_bytes = 0;
    for (const std::vector<KeyShardSpec>& part : parts) {
      for (const KeyShardSpec::ChunkSpec& chunk : part[i].chunks) {
        own_elements += chunk.element_count;
        own_pages_bytes += PagesOfChunk(std::uint64_t{chunk.element_count} *
                                        numeric::ElementBytes(part[i].parameter_type));
      }
    }
    ParameterLayout::KeyPlace place;
    if (own_elements > 0) {
      const bool whole = own_elements == key.element_count();
      place.version_bytes = AlignUp(KeyParameterBytes(key), kAlignment);
      place.shared = share && whole;
      std::uint64_t& end = place.shared ? layout.shared_bytes : layout.ordinary_bytes;
      place.offset = end;
      end += versions * place.version_bytes;
      // Pages that two chunks share are counted twice, but a key is never charged more than its
      // size.
      layout.memory_bytes +=
          versions * (whole ? place.version_bytes : std::min(own_pages_bytes, place.version_bytes));
    }
    layout.keys.push_back(place);
  }
  return layout;
}

absl::StatusOr<BatchParameters> MakeParameters(const ParameterLayout& layout,
                                               std::uint32_t versions,
                                               std::vector<std::vector<KeyShardSpec>>& parts,
                                               const SharedMemory::ReleaseHook& hook) {
  BatchParameters memory;
  if (layout.shared_bytes > 0) {
    absl::StatusOr<LentMemory> made =
        LentMemory::Create(LentMemory::Kind::kShared, "phub-parameters", layout.shared_bytes,
                           SharedMemory::Others::kRead, SharedMemory::Pages::kLater, hook);
    if (!made.ok()) return made.status();
    memory.shared = *std::move(made);
    memory.own.emplace_back(memory.shared.data(), memory.shared.bytes());
  }
  // If this daemon owns all of it, it is prefaulted as a whole, which allows huge pages.
  const bool has_all = HasAllOfOrdinary(layout, parts);
  if (layout.ordinary_bytes > 0) {
    const auto backing = has_all ? MappedMemory::Backing::kLater : MappedMemory::Backing::kOnTouch;
    memory.ordinary = std::make_shared<const MappedMemory>(
        MappedMemory::Allocate(layout.ordinary_bytes, backing));
    if (!*memory.ordinary) {
      return absl::ResourceExhaustedError(
          fmt::format("allocation of {} bytes failed", layout.ordinary_bytes));
    }
    if (has_all) memory.own.emplace_back(memory.ordinary->data(), memory.ordinary->bytes());
  }
  for (std::vector<KeyShardSpec>& part : parts) {
    for (std::size_t i = 0; i < part.size(); ++i) {
      const ParameterLayout::KeyPlace& place = layout.keys[i];
      if (place.version_bytes == 0) continue;
      std::byte* const base = place.shared ? memory.shared.data() : memory.ordinary->data();
      const std::uint64_t element_bytes = numeric::ElementBytes(part[i].parameter_type);
      for (std::uint32_t version = 0; version < versions; ++version) {
        std::byte* const key = base + place.offset + version * place.version_bytes;
        part[i].parameters[version] = key;
        if (place.shared || has_all) continue;
        for (const KeyShardSpec::ChunkSpec& chunk : part[i].chunks) {
          memory.own.emplace_back(key + chunk.element_offset * element_bytes,
                                  chunk.element_count * element_bytes);
        }
      }
    }
  }
  return memory;
}

}  // namespace phub::server
