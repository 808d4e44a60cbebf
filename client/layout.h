// Assigns each chunk of a key to a lane and numbers it there: the client's half of the numbering
// that common/base/ids.h defines at ChunkIndex. Pure; shared by libphub and the simulation. A
// lane's number is its bin: core loops are numbered through all daemons of the rack.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/chunk_map.h"
#include "common/base/ids.h"

namespace phub::client {

struct ChunkPlace {
  std::uint32_t lane = 0;
  ChunkIndex chunk{};                // on that lane
  std::uint64_t element_offset = 0;  // in the key
  std::uint32_t element_count = 0;   // chunk_bytes in the key's type; fewer in a part's last chunk
  Rank sender = kEveryRank;
  Rank receiver = kEveryRank;
  std::uint64_t sent_offset = 0;      // see ChunkMap
  std::uint64_t received_offset = 0;  // likewise
};

struct KeyLayout {
  KeyIndex key{};
  std::uint64_t element_count = 0;
  std::vector<ChunkPlace> chunks;  // in order of offset; they tile [0, element_count)
};

// The input for the layout of one key.
struct KeyPlacementView {
  std::string name;  // for messages
  KeyIndex key{};
  std::uint64_t element_count = 0;  // the sum over all parts
  std::uint32_t element_bytes = 4;  // size of the key's type, which determines chunks
  KeyParts parts = {};
  std::span<const std::uint32_t> chunk_bins;  // as sent by the daemon
  // The key's first chunk on each lane of chunk_bins, in the order in which they first appear
  // there. Empty: from a daemon that does not send them.
  std::span<const std::uint32_t> first_chunks = {};
  // Keys of groups: the members' ranks; `parts` counts members. Empty: all ranks.
  std::span<const Rank> members = {};
};

// Lays out batches of keys, one after the other. One thread at a time.
class LaneLayout {
 public:
  // chunk_bytes: a multiple of the size of every element type.
  LaneLayout(std::uint32_t chunk_bytes, std::uint32_t lane_count);

  // Lays out a batch; changes nothing if it fails. Checks the daemon's data: key indices in
  // sequence, a known bin for every chunk, and the right number of chunks.
  absl::StatusOr<std::vector<KeyLayout>> AddKeys(std::span<const KeyPlacementView> keys);

  // The same for keys of a group, whose numbers are the daemon's alone.
  absl::StatusOr<std::vector<KeyLayout>> AddGroupKeys(std::span<const KeyPlacementView> keys) const;

  // Takes the last key back: the next key gets its numbers. REQUIRES: `key` is that key's layout.
  void RemoveLast(const KeyLayout& key);

  std::uint32_t lane_count() const { return static_cast<std::uint32_t>(next_chunk_.size()); }
  std::uint32_t chunk_count(std::uint32_t lane) const { return next_chunk_[lane]; }
  std::uint32_t key_count() const { return key_count_; }

 private:
  const std::uint32_t chunk_bytes_;
  std::vector<std::uint32_t> next_chunk_;  // [lane]
  std::uint32_t key_count_ = 0;
};

}  // namespace phub::client
