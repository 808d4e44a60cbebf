// How a key is cut into chunks. Workers and daemons compute it independently, so it is a pure
// function of the key's specification. Any thread.
//
// A key has one part, or one for each rank if its movement has owners; part r belongs to rank r.
// Parts have equal sizes and begin at chunk borders: each part is cut on its own, and the last
// chunk of a part has the rest. So a part of any size moves without padding.
//
//   elements   0         chunk       2 chunk      part              part + chunk
//              +-----------+-----------+-----+-----------+-----------+-----+
//   owner      |                  0          |                  1          |
//              +-----------+-----------+-----+-----------+-----------+-----+
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/ids.h"

namespace phub {

// Which elements of a key travel in a round.
enum class KeyMovement : std::uint8_t {
  kAllReduce = 0,      // every rank pushes all elements and receives all
  kGather = 1,         // rank r pushes part r and receives all parts
  kReduceScatter = 2,  // every rank pushes all elements; rank r receives part r
};
inline constexpr std::uint8_t kMovementMax = 2;

constexpr const char* ToString(KeyMovement movement) {
  switch (movement) {
    case KeyMovement::kAllReduce: return "all_reduce";
    case KeyMovement::kGather: return "gather";
    case KeyMovement::kReduceScatter: return "reduce_scatter";
  }
  return "unknown";
}

constexpr std::uint32_t PartsOf(KeyMovement movement, std::uint32_t ranks) {
  return movement == KeyMovement::kAllReduce ? 1 : ranks;
}

class ChunkMap {
 public:
  struct Chunk {
    std::uint64_t element_offset = 0;  // in the key
    std::uint32_t element_count = 0;
    Rank owner{};  // the chunk's part; 0 if the key has one part
  };

  // REQUIRES: `elements` is a multiple of `parts`; parts and chunk_elements are not 0.
  constexpr ChunkMap(std::uint64_t elements, std::uint32_t parts, std::uint32_t chunk_elements)
      : parts_(parts),
        part_elements_(elements / parts),
        chunk_elements_(chunk_elements),
        chunks_per_part_(part_elements_ / chunk_elements +
                         (part_elements_ % chunk_elements != 0 ? 1 : 0)) {}

  constexpr std::uint64_t count() const { return parts_ * chunks_per_part_; }
  // REQUIRES: index < count()
  constexpr Chunk At(std::uint64_t index) const {
    const std::uint64_t part = index / chunks_per_part_;
    const std::uint64_t offset = index % chunks_per_part_ * chunk_elements_;
    return {part * part_elements_ + offset,
            static_cast<std::uint32_t>(
                std::min<std::uint64_t>(chunk_elements_, part_elements_ - offset)),
            Rank{static_cast<std::uint32_t>(part)}};
  }

 private:
  std::uint64_t parts_;
  std::uint64_t part_elements_;
  std::uint32_t chunk_elements_;
  std::uint64_t chunks_per_part_;
};

}  // namespace phub
