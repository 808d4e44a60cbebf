// What a verbs lane carries in one direction, without any arithmetic: a client on rxe0 writes
// gradients from registered memory into the slots of a daemon on rxe1, which gives each slot back
// at once. Two threads, as two processes would be. For bandwidth_test, beside ib_write_bw.
//
// verbs-bandwidth CHUNK_BYTES CHUNKS, prints MB/s (1e6) as ib_write_bw counts them: payload only.
#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/base/mapped_memory.h"
#include "tests/verbs/verbs_pair.h"

namespace phub::verbs_tests {
namespace {

using transport::Completion;
using transport::CompletionKind;

constexpr std::uint32_t kSlots = 16;  // a MiB of 64 KiB, as a lane has

void WaitFor(transport::Transport& transport) {
  if (!transport.Arm()) return;
  pollfd item{transport.descriptor(), POLLIN, 0};
  poll(&item, 1, /*timeout=*/1);
}

struct Lane {
  std::uint32_t chunk_bytes = 0;
  std::uint32_t chunks = 0;
  MappedMemory gradients;
  MappedMemory staging;
  VerbsHost daemon{"rxe1", 8};
  VerbsHost client{"rxe0", 8};
  std::vector<transport::LandingSlot> slots = std::vector<transport::LandingSlot>(kSlots);
  transport::ConnectionId daemon_id;
  transport::ConnectionId client_id;
};

void Serve(Lane& lane) {
  std::array<Completion, 64> told;
  for (std::uint32_t received = 0; received < lane.chunks;) {
    const std::size_t count = lane.daemon.transport.Poll(told);
    for (std::size_t i = 0; i < count; ++i) {
      if (told[i].kind == CompletionKind::kSent) continue;
      PHUB_CHECK(told[i].kind == CompletionKind::kReceived);
      transport::SendRequest credit;
      credit.header.kind = wire::MessageKind::kCredit;
      credit.header.slot = told[i].message->header.slot;
      credit.connections = {&lane.daemon_id, 1};
      PHUB_CHECK(lane.daemon.transport.Post({&credit, 1}) == 1);
      ++received;
    }
    lane.daemon.transport.Release({told.data(), count});
    if (count == 0) WaitFor(lane.daemon.transport);
  }
  for (int i = 0; i < 100; ++i) {  // the last credits leave
    lane.daemon.transport.Release({told.data(), lane.daemon.transport.Poll(told)});
    WaitFor(lane.daemon.transport);
  }
}

void Push(Lane& lane) {
  std::array<Completion, 64> told;
  std::vector<std::uint32_t> free_slots;
  for (std::uint32_t i = 0; i < kSlots; ++i) free_slots.push_back(i);
  std::uint32_t posted = 0;
  while (posted < lane.chunks || free_slots.size() < kSlots) {
    while (posted < lane.chunks && !free_slots.empty()) {
      const std::uint32_t slot = free_slots.back();
      transport::SendRequest request;
      request.header.kind = wire::MessageKind::kGradient;
      request.header.slot = SlotIndex{slot};
      request.header.payload_bytes = lane.chunk_bytes;
      request.payload = {lane.gradients.data() + std::size_t{slot} * lane.chunk_bytes,
                         lane.chunk_bytes};
      request.connections = {&lane.client_id, 1};
      if (lane.client.transport.Post({&request, 1}) == 0) break;
      free_slots.pop_back();
      ++posted;
    }
    const std::size_t count = lane.client.transport.Poll(told);
    for (std::size_t i = 0; i < count; ++i) {
      PHUB_CHECK(told[i].kind == CompletionKind::kReceived);
      free_slots.push_back(told[i].message->header.slot.value);
    }
    lane.client.transport.Release({told.data(), count});
    if (count == 0) WaitFor(lane.client.transport);
  }
}

double Measure(std::uint32_t chunk_bytes, std::uint32_t chunks) {
  Lane lane;
  lane.chunk_bytes = chunk_bytes;
  lane.chunks = chunks;
  const std::size_t stride = wire::kSlotHeaderBytes + chunk_bytes;
  using Backing = MappedMemory::Backing;
  lane.gradients = MappedMemory::Allocate(std::size_t{kSlots} * chunk_bytes, Backing::kPrefault);
  lane.staging = MappedMemory::Allocate(kSlots * stride, Backing::kPrefault);
  PHUB_CHECK(lane.client.domain
                 ->Add(lane.gradients.data(), lane.gradients.bytes(),
                       transport::RegisteredMemory::Use::kSend, nullptr)
                 .ok());
  auto [ours, theirs] =
      ConnectVerbs(lane.daemon, lane.client, {.ack_timeout = kGuestAckTimeout},
                   {.data = lane.staging.data(), .slot_count = kSlots, .slot_bytes = chunk_bytes});
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    lane.slots[i] = {lane.staging.data() + i * stride + wire::kSlotHeaderBytes, chunk_bytes, false};
  }
  lane.daemon_id = lane.daemon.transport.Adopt(*ours, lane.slots);
  lane.client_id = lane.client.transport.Adopt(*theirs, {});
  const auto begin = std::chrono::steady_clock::now();
  std::thread server([&] { Serve(lane); });
  Push(lane);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  server.join();
  PHUB_CHECK(lane.client.transport.counters().slot_writes.Get() == chunks &&
             lane.client.transport.counters().bytes_copied.Get() == 0);
  return static_cast<double>(chunk_bytes) * chunks / seconds.count() / 1e6;
}

}  // namespace
}  // namespace phub::verbs_tests

int main(int argument_count, char** arguments) {
  PHUB_CHECK(argument_count == 3, "verbs-bandwidth CHUNK_BYTES CHUNKS");
  const auto chunk_bytes = static_cast<std::uint32_t>(std::atoi(arguments[1]));
  const auto chunks = static_cast<std::uint32_t>(std::atoi(arguments[2]));
  PHUB_CHECK(chunk_bytes > 0 && chunk_bytes % 64 == 0 && chunks > 0);
  fmt::print("{:.2f}\n", phub::verbs_tests::Measure(chunk_bytes, chunks));
  return 0;
}
