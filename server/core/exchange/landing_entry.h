// The entry of a peer lane's landing table that a message is for. It also identifies the message
// while it waits for room in the lane. There are two entries for each chunk, by its number on lanes
// between racks (ChunkExchange::number). Pure functions.
#pragma once

#include <cstdint>

#include "common/base/ids.h"

namespace phub::server::exchange {

enum class EntryKind : std::uint32_t { kPartial = 0, kParameters = 1 };

constexpr std::uint32_t EntryOf(std::uint32_t number, EntryKind kind) {
  return 2 * number + static_cast<std::uint32_t>(kind);
}
constexpr std::uint32_t NumberOf(std::uint32_t entry) { return entry / 2; }
constexpr EntryKind KindOf(std::uint32_t entry) { return static_cast<EntryKind>(entry % 2); }

}  // namespace phub::server::exchange
