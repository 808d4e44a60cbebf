#include "common/transport/verbs/immediate.h"

#include <gtest/gtest.h>

namespace phub::transport {
namespace {

TEST(Immediate, SlotsAreNamedAsTheyAre) {
  for (const std::uint32_t slot : {0u, 1u, kSlotsPerLaneMax - 1}) {
    EXPECT_EQ(KindOf(PackSlot({slot})), ImmediateKind::kSlot);
    EXPECT_EQ(ValueOf(PackSlot({slot})), slot);
  }
}

TEST(Immediate, RepliesNameChunkTypeAndTheEndOfTheIteration) {
  for (const std::uint32_t chunk : {0u, 77u, kChunksPerShardMax - 1}) {
    for (std::uint8_t type = 1; type <= numeric::kElementTypeMax; ++type) {
      for (const std::uint64_t iteration : {0ull, 127ull, 128ull, 0xFFFF'FFFF'FFFFull}) {
        const std::uint32_t packed =
            PackReply({chunk}, static_cast<numeric::ElementType>(type), {iteration});
        EXPECT_EQ(KindOf(packed), ImmediateKind::kReply);
        const ReplyImmediate reply = UnpackReply(packed);
        EXPECT_EQ(reply.chunk.value, chunk);
        EXPECT_EQ(reply.type, type);
        EXPECT_EQ(reply.iteration, iteration & kReplyIterationMask);
      }
    }
  }
}

TEST(Immediate, InboxUnitsAndFlagsDoNotTouchEachOther) {
  constexpr std::uint32_t kUnitMax = (1u << 28) - 1;
  for (const bool placed : {false, true}) {
    for (const bool control : {false, true}) {
      for (const std::uint32_t unit : {0u, 1u, kUnitMax}) {
        const std::uint32_t packed =
            PackInbox({.placed = placed, .control = control, .unit = unit});
        EXPECT_EQ(KindOf(packed), ImmediateKind::kInbox);
        const InboxImmediate inbox = UnpackInbox(packed);
        EXPECT_EQ(inbox.placed, placed);
        EXPECT_EQ(inbox.control, control);
        EXPECT_EQ(inbox.unit, unit);
      }
    }
  }
}

TEST(Immediate, WhatWasTakenIsCountedModuloItsBits) {
  const std::uint32_t packed = PackTaken((1ull << 40) + 5, (3ull << 15) + 7);
  EXPECT_EQ(KindOf(packed), ImmediateKind::kTaken);
  EXPECT_EQ(UnpackTaken(packed).messages, 5u);
  EXPECT_EQ(UnpackTaken(packed).units, 7u);
}

}  // namespace
}  // namespace phub::transport
