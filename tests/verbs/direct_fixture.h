// One verbs lane as in a job: the client's gradients and parameters and the daemon's parameters are
// registered, and the daemon has staging slots. What each end reports is copied.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/base/mapped_memory.h"
#include "tests/verbs/verbs_pair.h"

namespace phub::verbs_tests {

using transport::Completion;
using transport::CompletionKind;
using transport::ConnectionId;
using transport::LandingSlot;
using transport::ProtocolError;
using transport::SendRequest;
using transport::TransportError;

inline constexpr std::uint32_t kLaneSlots = 4;
inline constexpr std::uint32_t kLaneChunks = 8;
inline constexpr std::uint32_t kLaneChunkBytes = 32 * 1024;
inline constexpr std::size_t kSlotStride = wire::kSlotHeaderBytes + kLaneChunkBytes;

struct Told {
  Completion completion;
  wire::MessageHeader header;
  const std::byte* payload = nullptr;
};

class DirectTest : public ::testing::Test {
 protected:
  using Use = transport::RegisteredMemory::Use;

  static MappedMemory Pages(std::size_t bytes) {
    MappedMemory memory = MappedMemory::Allocate(bytes, MappedMemory::Backing::kPrefault);
    PHUB_CHECK(memory);
    return memory;
  }
  void Register(VerbsHost& host, const MappedMemory& memory, Use use) {
    const auto index = host.domain->Add(memory.data(), memory.bytes(), use, nullptr);
    PHUB_CHECK(index.ok());
  }

  void SetUp() override {
    Register(client, gradients, Use::kSend);
    Register(client, parameters, Use::kReceive);
    Register(daemon, versions, Use::kSend);
    OpenLane();
  }

  void OpenLane() {
    transport::VerbsStaging slots{
        .data = staging.data(), .slot_count = kLaneSlots, .slot_bytes = kLaneChunkBytes};
    std::tie(ours, theirs) =
        ConnectVerbs(daemon, client, {.ack_timeout = kGuestAckTimeout}, std::move(slots));
    for (std::uint32_t i = 0; i < kLaneSlots; ++i) {
      slot_table[i] = {SlotPayload(i), kLaneChunkBytes, false};
    }
    chunk_table.assign(kLaneChunks, {});
    daemon_id = daemon.transport.Adopt(*ours, slot_table);
    client_id = client.transport.Adopt(*theirs, chunk_table);
  }

  void TearDown() override {
    daemon.transport.Close(daemon_id);
    client.transport.Close(client_id);
    Poll();
    Poll();
  }

  std::byte* SlotPayload(std::uint32_t slot) const {
    return staging.data() + slot * kSlotStride + wire::kSlotHeaderBytes;
  }
  std::byte* ChunkOf(const MappedMemory& memory, std::uint32_t chunk) const {
    return memory.data() + std::size_t{chunk} * kLaneChunkBytes;
  }

  static void PollOne(transport::Transport& transport, std::vector<Told>& told) {
    Completion completions[32];
    const std::size_t count = transport.Poll(completions);
    for (std::size_t i = 0; i < count; ++i) {
      Told item{completions[i], {}, nullptr};
      if (const transport::ReceivedMessage* message = completions[i].message) {
        item.header = message->header;
        item.payload = message->payload;
      }
      told.push_back(item);
    }
    transport.Release({completions, count});
  }
  void Poll() {
    PollOne(daemon.transport, daemon_told);
    PollOne(client.transport, client_told);
  }
  template <typename Condition>
  [[nodiscard]] bool Until(Condition condition) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      Poll();
      WaitForEither(daemon.transport, client.transport);
    }
    return true;
  }
  void Settle() {
    for (int i = 0; i < 50; ++i) {
      Poll();
      WaitForEither(daemon.transport, client.transport);
    }
  }
  static std::size_t Count(const std::vector<Told>& told, CompletionKind kind) {
    std::size_t count = 0;
    for (const Told& item : told) count += item.completion.kind == kind;
    return count;
  }

  static wire::MessageHeader Header(wire::MessageKind kind, std::uint32_t chunk,
                                    std::uint64_t iteration, std::size_t bytes) {
    wire::MessageHeader header;
    header.kind = kind;
    header.chunk = ChunkIndex{chunk};
    header.iteration = Iteration{iteration};
    header.incarnation = Incarnation{0xABCDEF0123456789u};
    header.membership_epoch = MembershipEpoch{3};
    header.key = KeyIndex{7};
    header.payload_bytes = static_cast<std::uint32_t>(bytes);
    return header;
  }

  // The client pushes a chunk from its registered gradients and requests the reply in its
  // parameters.
  std::size_t Push(std::uint32_t chunk, std::uint32_t slot, std::uint64_t iteration,
                   std::size_t bytes = kLaneChunkBytes) {
    chunk_table[chunk] = {ChunkOf(parameters, chunk), kLaneChunkBytes, false};
    SendRequest request;
    request.header = Header(wire::MessageKind::kGradient, chunk, iteration, bytes);
    request.header.slot = SlotIndex{slot};
    request.payload = {ChunkOf(gradients, chunk), bytes};
    request.connections = {&client_id, 1};
    return client.transport.Post({&request, 1});
  }
  // The daemon replies from its registered parameters, to the address in the gradient's header.
  std::size_t Reply(std::uint32_t chunk, std::uint64_t iteration, SharedAddress address,
                    std::size_t bytes = kLaneChunkBytes) {
    SendRequest request;
    request.header = Header(wire::MessageKind::kParameters, chunk, iteration, bytes);
    request.header.slot = SlotIndex{chunk};
    request.header.reply_address = address;
    request.payload = {ChunkOf(versions, chunk), bytes};
    request.connections = {&daemon_id, 1};
    request.cookie = chunk;
    request.notify_sent = true;
    return daemon.transport.Post({&request, 1});
  }

  MappedMemory gradients = Pages(kLaneChunks * kLaneChunkBytes);
  MappedMemory parameters = Pages(kLaneChunks * kLaneChunkBytes);
  MappedMemory versions = Pages(kLaneChunks * kLaneChunkBytes);
  MappedMemory staging = Pages(kLaneSlots * kSlotStride);
  VerbsHost daemon{"rxe1", 8};
  VerbsHost client{"rxe0", 8};
  std::unique_ptr<transport::VerbsConnection> ours;
  std::unique_ptr<transport::VerbsConnection> theirs;
  std::vector<LandingSlot> slot_table = std::vector<LandingSlot>(kLaneSlots);
  std::vector<LandingSlot> chunk_table;
  ConnectionId daemon_id;
  ConnectionId client_id;
  std::vector<Told> daemon_told;
  std::vector<Told> client_told;
};

}  // namespace phub::verbs_tests
