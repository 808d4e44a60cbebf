#include "common/aggregation/slot.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/unit/aggregation/in_c.h"

namespace phub::aggregation {
namespace {

// Three workers and one slot.
class SumSlot : public ::testing::Test {
 protected:
  static phub_packet Packet(std::uint8_t kind, std::uint8_t worker, std::uint32_t phase,
                            std::uint32_t value = 0) {
    phub_packet packet{};
    packet.phase = phase;
    packet.payload_sum = value;
    packet.count = 1;
    packet.kind = kind;
    packet.worker = worker;
    packet.exponent = 120;
    return packet;
  }
  phub_verdict Pay(std::uint8_t worker, std::uint32_t phase, std::uint32_t value = 0) {
    const phub_packet packet = Packet(PHUB_PACKET_PAYLOAD, worker, phase, value);
    return phub_slot_receive(&slot_, &packet, 3);
  }
  // What a NACK leads to, as text: "sum", "ask 02" or "".
  std::string Nack(std::uint32_t phase) const {
    const phub_nacked nacked = phub_slot_nacked(&slot_, phase, 3);
    std::string text = nacked.send_sum != 0 ? "sum" : "";
    if (nacked.missing != 0) text += "ask ";
    for (int worker = 0; worker < 64; ++worker) {
      if ((nacked.missing >> worker & 1) != 0) text += std::to_string(worker);
    }
    return text;
  }
  void Fill(std::uint32_t phase) {
    for (std::uint8_t worker = 0; worker < 3; ++worker) Pay(worker, phase, worker);
  }
  phub_slot slot_{};
};

TEST_F(SumSlot, AddsEachContributionOnce) {
  EXPECT_EQ(Pay(1, 0, 10), PHUB_VERDICT_STORE);
  EXPECT_EQ(Pay(1, 0, 10), PHUB_VERDICT_REPEATED);
  EXPECT_EQ(Pay(2, 0, 0xffffffff), PHUB_VERDICT_ADD);
  EXPECT_EQ(Pay(2, 0, 0xffffffff), PHUB_VERDICT_REPEATED);
  EXPECT_EQ(Pay(0, 0, 5), PHUB_VERDICT_ADD_LAST);
  EXPECT_EQ(slot_.payload_sum, 14u);
  EXPECT_EQ(slot_.state, PHUB_SLOT_SUMMED);
  EXPECT_EQ(Pay(0, 0, 5), PHUB_VERDICT_REPEATED);
}

TEST_F(SumSlot, ANackAsksForWhatTheSumWaitsFor) {
  EXPECT_EQ(Nack(0), "ask 012");
  EXPECT_EQ(Nack(4), "ask 012") << "phases are skipped";
  Pay(1, 0);
  EXPECT_EQ(Nack(0), "ask 02");
  EXPECT_EQ(Nack(1), "") << "this phase is not complete";
  Pay(0, 0);
  Pay(2, 0);
  EXPECT_EQ(Nack(0), "sum");
  EXPECT_EQ(Nack(1), "ask 012") << "of the next phase nothing has arrived";
  EXPECT_EQ(slot_.phase, 0u) << "a NACK resets nothing";
  Pay(1, 1);
  EXPECT_EQ(Nack(0), "");
  EXPECT_EQ(Nack(1), "ask 02");
}

TEST_F(SumSlot, TheNextPhaseResetsOnlyACompleteSum) {
  Pay(0, 0);
  Pay(1, 0);
  EXPECT_EQ(Pay(0, 1), PHUB_VERDICT_EARLY);
  EXPECT_EQ(Pay(2, 0), PHUB_VERDICT_ADD_LAST) << "the slot is as before";
  EXPECT_EQ(Pay(0, 1, 7), PHUB_VERDICT_STORE);
  EXPECT_EQ(slot_.phase, 1u);
  EXPECT_EQ(slot_.payload_sum, 7u);
}

TEST_F(SumSlot, OlderPhasesAreDropped) {
  Fill(0);
  Fill(1);
  Pay(0, 2);
  for (const std::uint8_t worker : std::initializer_list<std::uint8_t>{0, 1}) {
    for (const std::uint32_t phase : {1u, 0u, 0x80000002u, 0xffffffffu}) {
      EXPECT_EQ(Pay(worker, phase), PHUB_VERDICT_PHASE) << phase;
      EXPECT_EQ(Nack(phase), "") << phase;
    }
  }
  EXPECT_EQ(slot_.workers, 1u);
}

// A place's positions may have chunks that do not use this slot.
TEST_F(SumSlot, SkipsPhases) {
  EXPECT_EQ(Pay(0, 3, 1), PHUB_VERDICT_STORE) << "an unused slot";
  EXPECT_EQ(Pay(1, 5), PHUB_VERDICT_EARLY);
  EXPECT_EQ(Pay(1, 0), PHUB_VERDICT_PHASE);
  Pay(1, 3, 2);
  EXPECT_EQ(Pay(2, 3, 3), PHUB_VERDICT_ADD_LAST);
  EXPECT_EQ(Pay(0, 7, 9), PHUB_VERDICT_STORE) << "a complete one";
  EXPECT_EQ(slot_.phase, 7u);
  EXPECT_EQ(slot_.payload_sum, 9u);
  EXPECT_EQ(Pay(1, 3), PHUB_VERDICT_PHASE);
}

TEST_F(SumSlot, PhasesWrap) {
  slot_.phase = 0xffffffff;
  Fill(0xffffffff);
  EXPECT_EQ(Pay(2, 0), PHUB_VERDICT_STORE);
  EXPECT_EQ(Pay(1, 0xffffffff), PHUB_VERDICT_PHASE);
  EXPECT_EQ(Pay(1, 0), PHUB_VERDICT_ADD);
}

TEST_F(SumSlot, RefusesAnotherExponentOrCount) {
  Pay(0, 0, 1);
  phub_packet packet = Packet(PHUB_PACKET_PAYLOAD, 1, 0, 1);
  packet.exponent = 121;
  EXPECT_EQ(phub_slot_receive(&slot_, &packet, 3), PHUB_VERDICT_REFUSED);
  phub_packet answer{};
  phub_slot_refusal(&slot_, &packet, &answer);
  EXPECT_EQ(answer.kind, PHUB_PACKET_REFUSED);
  EXPECT_EQ(answer.exponent, 120) << "the one that the slot has";
  EXPECT_EQ(answer.worker, 1);
  packet.exponent = 120;
  packet.count = 2;
  EXPECT_EQ(phub_slot_receive(&slot_, &packet, 3), PHUB_VERDICT_REFUSED);
  EXPECT_EQ(slot_.workers, 1u);
  EXPECT_EQ(slot_.payload_sum, 1u);
}

TEST_F(SumSlot, TheSumHasTheGreatestProposalOfTheNextExponent) {
  phub_packet packet{};
  for (const std::uint8_t worker : std::initializer_list<std::uint8_t>{0, 1, 2}) {
    packet = Packet(PHUB_PACKET_PAYLOAD, worker, 0, 3);
    packet.next_exponent = worker == 1 ? 140 : 130;
    phub_slot_receive(&slot_, &packet, 3);
  }
  phub_packet sum{};
  phub_slot_sum(&slot_, &packet, &sum);
  EXPECT_EQ(sum.kind, PHUB_PACKET_SUM);
  EXPECT_EQ(sum.worker, PHUB_EVERY_WORKER);
  EXPECT_EQ(sum.exponent, 120);
  EXPECT_EQ(sum.next_exponent, 140);
  EXPECT_EQ(sum.payload_sum, 9u);
  EXPECT_EQ(sum.count, 1);
}

TEST(SumSlots, OneAndSixtyFourWorkersHaveCompleteSums) {
  phub_packet packet{};
  packet.kind = PHUB_PACKET_PAYLOAD;
  phub_slot one{};
  EXPECT_EQ(phub_slot_receive(&one, &packet, 1), PHUB_VERDICT_STORE_LAST);
  phub_slot many{};
  for (std::uint8_t worker = 0; worker < 64; ++worker) {
    packet.worker = worker;
    const phub_verdict verdict = phub_slot_receive(&many, &packet, 64);
    EXPECT_EQ(verdict, worker == 0    ? PHUB_VERDICT_STORE
                       : worker == 63 ? PHUB_VERDICT_ADD_LAST
                                      : PHUB_VERDICT_ADD);
  }
}

// From bytes to the sum, in C.
TEST(SumSlots, TheSameHeaderWorksInC) {
  phub_lease lease{};
  lease.number = 1;
  lease.slot_count = 2;
  lease.worker_count = 2;
  lease.count_max = 3;
  for (std::uint16_t worker = 0; worker < 2; ++worker) lease.workers[worker].port = worker;
  std::array<phub_slot, 2> slots{};
  std::array<std::uint32_t, 6> values{};
  phub_verdict verdict = PHUB_VERDICT_COUNT;
  const auto send = [&](std::uint8_t worker, std::uint32_t value) {
    std::vector<std::uint8_t> bytes(PHUB_PACKET_BYTES + 12);
    phub_packet packet{};
    packet.lease = 1;
    packet.slot = 1;
    packet.count = 3;
    packet.kind = PHUB_PACKET_PAYLOAD;
    packet.worker = worker;
    for (std::uint32_t i = 0; i < 3; ++i)
      phub_store32(&bytes[PHUB_PACKET_BYTES + 4 * i], value + i);
    packet.payload_sum = phub_payload_sum(&bytes[PHUB_PACKET_BYTES], 3);
    phub_packet_encode(&packet, &lease.key, bytes.data());
    return in_c_receive(&lease, slots.data(), values.data(), bytes.data(),
                        static_cast<std::uint32_t>(bytes.size()), &lease.workers[worker], &verdict);
  };
  EXPECT_EQ(send(0, 10), PHUB_CHECK_GOOD);
  EXPECT_EQ(verdict, PHUB_VERDICT_STORE);
  EXPECT_EQ(send(0, 10), PHUB_CHECK_GOOD);
  EXPECT_EQ(verdict, PHUB_VERDICT_REPEATED);
  EXPECT_EQ(send(1, 0xfffffff0), PHUB_CHECK_GOOD);
  EXPECT_EQ(verdict, PHUB_VERDICT_ADD_LAST);
  EXPECT_EQ(values, (std::array<std::uint32_t, 6>{0, 0, 0, 0xfffffffa, 0xfffffffc, 0xfffffffe}));
  EXPECT_EQ(slots[1].payload_sum, values[3] + values[4] + values[5]);
}

}  // namespace
}  // namespace phub::aggregation
