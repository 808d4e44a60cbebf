// What both ends of a stream of sums share (worker_stream.h, core_stream.h). A stream connects the
// workers of a job, one aggregator and one core loop, for the life of a lease.
//
// The core loop gives chunks positions 0, 1, 2, ... Every worker sends the chunk at a position as
// blocks, one datagram each. With S positions open at most and B blocks in the largest chunk, block
// i of position k is in the aggregator's slot (k mod S) * B + i, in phase k div S.
#pragma once

#include <cstdint>

#include "common/aggregation/fixed_point.h"
#include "common/aggregation/packet.h"
#include "common/base/ids.h"

namespace phub::aggregation {

static_assert(kFixedBlockMax == PHUB_PACKET_COUNT_MAX);

// The number of a lease. 0: no stream; chunks go over tcp.
using LeaseNumber = Id<struct LeaseNumberTag, std::uint32_t>;
inline constexpr LeaseNumber kNoLease{0};

// A place in the order in which the chunks of a stream are summed.
using Position = Id<struct PositionTag, std::uint64_t>;

struct Geometry {
  std::uint32_t positions = 8;  // S: positions that may be open at once
  std::uint32_t blocks = 1;     // B: blocks of the largest chunk

  std::uint32_t PlaceOf(Position position) const {
    return static_cast<std::uint32_t>(position.value % positions);
  }
  std::uint32_t SlotOf(Position position, std::uint32_t block) const {
    return PlaceOf(position) * blocks + block;
  }
  // Wraps after 2^32 uses of a slot, which is harmless: phases are compared for equality only.
  std::uint32_t PhaseOf(Position position) const {
    return static_cast<std::uint32_t>(position.value / positions);
  }
};

}  // namespace phub::aggregation
