// Who is at the far end of a lane: a worker of this rack, or the daemon of a peer rack.
//
// A lane's hello encodes it in one number, which the reader of the hello converts to a LaneOwner
// (OfHello). Plain values; any thread.
#pragma once

#include <cstdint>

#include "common/base/check.h"
#include "common/base/ids.h"

namespace phub::server {

// 0-based index of a rack in the configuration, and among the members of the topology.
using RackIndex = Id<struct RackIndexTag, std::uint32_t>;

inline constexpr std::uint32_t kRacksMax = 64;  // per job: masks of racks have 64 bits
// The rank that a hello from a peer rack's daemon names: this number plus the rack's index.
inline constexpr std::uint32_t kPeerRankBase = kRanksMax;

class LaneOwner {
 public:
  constexpr LaneOwner() = default;  // nobody
  // Implicit, so that code which knows the owner's kind can name it as a rank or a rack.
  constexpr LaneOwner(Rank rank) : kind_(Kind::kWorker), index_(rank.value) {}
  constexpr LaneOwner(RackIndex rack) : kind_(Kind::kRack), index_(rack.value) {}

  // `said`: the rank in a hello. The rack's index is not checked against the configuration.
  static constexpr LaneOwner OfHello(Rank said) {
    if (said.value < kPeerRankBase) return said;
    return RackIndex{said.value - kPeerRankBase};
  }
  // The rank in this daemon's own hellos.
  static constexpr Rank HelloRank(RackIndex self) { return Rank{kPeerRankBase + self.value}; }

  constexpr bool is_worker() const { return kind_ == Kind::kWorker; }
  constexpr bool is_rack() const { return kind_ == Kind::kRack; }
  // REQUIRES: is_worker().
  Rank rank() const {
    PHUB_DCHECK(is_worker(), "kind={} index={}", static_cast<int>(kind_), index_);
    return Rank{index_};
  }
  // REQUIRES: is_rack().
  RackIndex rack() const {
    PHUB_DCHECK(is_rack(), "kind={} index={}", static_cast<int>(kind_), index_);
    return RackIndex{index_};
  }
  friend constexpr bool operator==(const LaneOwner&, const LaneOwner&) = default;

 private:
  enum class Kind : std::uint8_t { kNobody, kWorker, kRack };
  Kind kind_ = Kind::kNobody;
  std::uint32_t index_ = 0;
};

}  // namespace phub::server
