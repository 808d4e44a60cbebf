// How a key is cut into parts and chunks, and which ranks send and receive them. Workers and
// daemons compute it independently, so it is a pure function of the key's specification. Any
// thread.
//
// The daemon holds a key as KeyParts::count() equal parts. Parts begin at chunk borders: each part
// is cut on its own, and the last chunk of a part has the rest. So a part of any size moves without
// padding. With one part for each rank:
//
//   elements   0         chunk       2 chunk      part              part + chunk
//              +-----------+-----------+-----+-----------+-----------+-----+
//   part       |                  0          |                  1          |
//              +-----------+-----------+-----+-----------+-----------+-----+
//
//   movement        parts            part p is sent by   and received by
//   all_reduce      1                every rank          every rank
//   gather          ranks            rank p              every rank
//   reduce_scatter  ranks            every rank          rank p
//   all_to_all      ranks * ranks    rank p / ranks      rank p % ranks
//   scatter         ranks            the root            rank p
//   gather_to_one   ranks            rank p              the root
//
// A rank has memory only for the parts that it sends (its gradients) and for those that it receives
// (its parameters), each in order of p.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/ids.h"

namespace phub {

enum class KeyMovement : std::uint8_t {
  kAllReduce = 0,
  kGather = 1,
  kReduceScatter = 2,
  kAllToAll = 3,
  kScatter = 4,
  kGatherToOne = 5,
};
inline constexpr std::uint8_t kMovementMax = 5;
// The last one that a daemon has whose JoinResponse sets `movements`, but not `movement_max`.
inline constexpr std::uint8_t kFirstMovementMax = 2;

constexpr const char* ToString(KeyMovement movement) {
  switch (movement) {
    case KeyMovement::kAllReduce: return "all_reduce";
    case KeyMovement::kGather: return "gather";
    case KeyMovement::kReduceScatter: return "reduce_scatter";
    case KeyMovement::kAllToAll: return "all_to_all";
    case KeyMovement::kScatter: return "scatter";
    case KeyMovement::kGatherToOne: return "gather_to_one";
  }
  return "unknown";
}

// Names every movement, for messages.
inline constexpr char kMovementNames[] =
    "all_reduce, gather, reduce_scatter, all_to_all, scatter and gather_to_one";

constexpr bool HasRoot(KeyMovement movement) {
  return movement == KeyMovement::kScatter || movement == KeyMovement::kGatherToOne;
}
// One rank's bytes become each part; nothing is combined.
constexpr bool MovesBytes(KeyMovement movement) {
  return movement != KeyMovement::kAllReduce && movement != KeyMovement::kReduceScatter;
}

// In place of one sender or receiver. Not a rank of any job.
inline constexpr Rank kEveryRank = Rank::Max();

// The parts of a key in a job of `ranks` ranks. REQUIRES: ranks > 0; root < ranks.
struct KeyParts {
  KeyMovement movement = KeyMovement::kAllReduce;
  std::uint32_t ranks = 1;
  Rank root{};  // if HasRoot(movement)

  // Parts in the largest memory that a rank has: its users count a key's elements in these.
  constexpr std::uint32_t largest() const {
    return movement == KeyMovement::kAllReduce ? 1 : ranks;
  }
  // Parts that the daemon holds.
  constexpr std::uint32_t count() const {
    return movement == KeyMovement::kAllToAll ? ranks * ranks : largest();
  }

  constexpr Rank SenderOf(std::uint32_t part) const {
    switch (movement) {
      case KeyMovement::kAllReduce:
      case KeyMovement::kReduceScatter: break;
      case KeyMovement::kGather:
      case KeyMovement::kGatherToOne: return Rank{part};
      case KeyMovement::kAllToAll: return Rank{part / ranks};
      case KeyMovement::kScatter: return root;
    }
    return kEveryRank;
  }
  constexpr Rank ReceiverOf(std::uint32_t part) const {
    switch (movement) {
      case KeyMovement::kAllReduce:
      case KeyMovement::kGather: break;
      case KeyMovement::kReduceScatter:
      case KeyMovement::kScatter: return Rank{part};
      case KeyMovement::kAllToAll: return Rank{part % ranks};
      case KeyMovement::kGatherToOne: return root;
    }
    return kEveryRank;
  }

  // Number of parts in a rank's gradients.
  constexpr std::uint32_t SentBy(Rank rank) const {
    switch (movement) {
      case KeyMovement::kGather:
      case KeyMovement::kGatherToOne: return 1;
      case KeyMovement::kScatter: return rank == root ? ranks : 0;
      case KeyMovement::kAllReduce:
      case KeyMovement::kReduceScatter:
      case KeyMovement::kAllToAll: break;
    }
    return largest();
  }
  // Number of parts in a rank's parameters.
  constexpr std::uint32_t ReceivedBy(Rank rank) const {
    switch (movement) {
      case KeyMovement::kReduceScatter:
      case KeyMovement::kScatter: return 1;
      case KeyMovement::kGatherToOne: return rank == root ? ranks : 0;
      case KeyMovement::kAllReduce:
      case KeyMovement::kGather:
      case KeyMovement::kAllToAll: break;
    }
    return largest();
  }

  // The position of a part among those that its sender sends.
  constexpr std::uint32_t PlaceSent(std::uint32_t part) const {
    switch (movement) {
      case KeyMovement::kGather:
      case KeyMovement::kGatherToOne: return 0;
      case KeyMovement::kAllToAll: return part % ranks;
      case KeyMovement::kAllReduce:
      case KeyMovement::kReduceScatter:
      case KeyMovement::kScatter: break;
    }
    return part;
  }
  // The position of a part among those that its receiver receives.
  constexpr std::uint32_t PlaceReceived(std::uint32_t part) const {
    switch (movement) {
      case KeyMovement::kReduceScatter:
      case KeyMovement::kScatter: return 0;
      case KeyMovement::kAllToAll: return part / ranks;
      case KeyMovement::kAllReduce:
      case KeyMovement::kGather:
      case KeyMovement::kGatherToOne: break;
    }
    return part;
  }

  friend constexpr bool operator==(const KeyParts&, const KeyParts&) = default;
};

class ChunkMap {
 public:
  struct Chunk {
    std::uint64_t element_offset = 0;  // in the key
    std::uint32_t element_count = 0;
    Rank sender = kEveryRank;
    Rank receiver = kEveryRank;
    std::uint64_t sent_offset = 0;      // in the gradients of a rank that sends it
    std::uint64_t received_offset = 0;  // in the parameters of a rank that receives it
  };

  // elements: the sum over all parts. REQUIRES: a multiple of parts.count(); chunks are not empty.
  constexpr ChunkMap(std::uint64_t elements, const KeyParts& parts, std::uint32_t chunk_elements)
      : parts_(parts),
        part_elements_(elements / parts.count()),
        chunk_elements_(chunk_elements),
        chunks_per_part_(part_elements_ / chunk_elements +
                         (part_elements_ % chunk_elements != 0 ? 1 : 0)) {}

  constexpr std::uint64_t count() const { return parts_.count() * chunks_per_part_; }
  // REQUIRES: index < count()
  constexpr Chunk At(std::uint64_t index) const {
    const auto part = static_cast<std::uint32_t>(index / chunks_per_part_);
    const std::uint64_t offset = index % chunks_per_part_ * chunk_elements_;
    return {.element_offset = part * part_elements_ + offset,
            .element_count = static_cast<std::uint32_t>(
                std::min<std::uint64_t>(chunk_elements_, part_elements_ - offset)),
            .sender = parts_.SenderOf(part),
            .receiver = parts_.ReceiverOf(part),
            .sent_offset = parts_.PlaceSent(part) * part_elements_ + offset,
            .received_offset = parts_.PlaceReceived(part) * part_elements_ + offset};
  }

 private:
  KeyParts parts_;
  std::uint64_t part_elements_;
  std::uint32_t chunk_elements_;
  std::uint64_t chunks_per_part_;
};

}  // namespace phub
