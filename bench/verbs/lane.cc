// bench-verbs-lane: measures the throughput of a verbs lane in one direction, without arithmetic. A
// client on rxe0 writes gradients from registered memory into the slots of a daemon on rxe1. Client
// and daemon are two threads. `bench/run verbs` runs it in a guest and compares it with
// ib_write_bw.
//
// bench-verbs-lane stream|credits CHUNK_BYTES CHUNKS
//   stream   Only the transport's own control words come back. The lane has as many slots as chunks
//            may be in flight, so a slot is reused only after its message was received.
//   credits  A credit comes back for each chunk, and only then is its slot reused. There are 16
//            slots (1 MiB with 64 KiB chunks), as in a job's lanes.
//
// Prints MB/s (1e6), counting payload only, as ib_write_bw does.
#include <fmt/format.h>
#include <poll.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/rank/build_info.h"
#include "common/base/check.h"
#include "common/base/mapped_memory.h"
#include "tests/verbs/verbs_pair.h"

namespace phub::verbs_tests {
namespace {

using transport::Completion;
using transport::CompletionKind;

constexpr transport::VerbsLimits kLimits{.ack_timeout = kGuestAckTimeout};
constexpr std::uint32_t kCreditedSlots = 16;
// Untimed chunks, until both ends have exchanged keys and every slot was written once.
constexpr std::uint32_t kUntimedPerSlot = 2;

void WaitFor(transport::Transport& transport) {
  if (!transport.Arm()) return;
  pollfd item{transport.descriptor(), POLLIN, 0};
  poll(&item, 1, /*timeout=*/1);
}

struct Lane {
  bool credits = false;
  std::uint32_t slot_count = 0;
  std::uint32_t chunk_bytes = 0;
  MappedMemory gradients;
  MappedMemory staging;
  VerbsHost daemon{"rxe1", 8};
  VerbsHost client{"rxe0", 8};
  std::vector<transport::LandingSlot> slots;
  transport::ConnectionId daemon_id;
  transport::ConnectionId client_id;
};

void SendCredit(Lane& lane, SlotIndex slot) {
  transport::SendRequest credit;
  credit.header.kind = wire::MessageKind::kCredit;
  credit.header.slot = slot;
  credit.connections = {&lane.daemon_id, 1};
  PHUB_CHECK(lane.daemon.transport.Post({&credit, 1}) == 1);
}

void Serve(Lane& lane, std::uint32_t chunks) {
  std::array<Completion, 64> told;
  for (std::uint32_t received = 0; received < chunks;) {
    const std::size_t count = lane.daemon.transport.Poll(told);
    for (std::size_t i = 0; i < count; ++i) {
      if (told[i].kind == CompletionKind::kSent) continue;
      PHUB_CHECK(told[i].kind == CompletionKind::kReceived);
      PHUB_CHECK(told[i].message->header.payload_bytes == lane.chunk_bytes);
      if (lane.credits) SendCredit(lane, told[i].message->header.slot);
      ++received;
    }
    lane.daemon.transport.Release({told.data(), count});
    if (count == 0) WaitFor(lane.daemon.transport);
  }
  for (int i = 0; i < 100; ++i) {  // lets the last credits leave
    lane.daemon.transport.Release({told.data(), lane.daemon.transport.Poll(told)});
    WaitFor(lane.daemon.transport);
  }
}

// Returns when every chunk is acknowledged, or has its credit.
void Push(Lane& lane, std::uint32_t chunks) {
  std::array<Completion, 64> told;
  std::vector<std::uint32_t> free_slots;
  for (std::uint32_t i = lane.slot_count; i > 0; --i) free_slots.push_back(i - 1);
  std::uint32_t posted = 0;
  std::uint32_t done = 0;
  while (done < chunks) {
    while (posted < chunks && !(lane.credits && free_slots.empty())) {
      const std::uint32_t slot = lane.credits ? free_slots.back() : posted % lane.slot_count;
      transport::SendRequest request;
      request.header.kind = wire::MessageKind::kGradient;
      request.header.slot = SlotIndex{slot};
      request.header.payload_bytes = lane.chunk_bytes;
      const std::size_t from = slot % kCreditedSlots;
      request.payload = {lane.gradients.data() + from * lane.chunk_bytes, lane.chunk_bytes};
      request.connections = {&lane.client_id, 1};
      request.cookie = slot;
      request.notify_sent = !lane.credits;
      if (lane.client.transport.Post({&request, 1}) == 0) break;
      if (lane.credits) free_slots.pop_back();
      ++posted;
    }
    const std::size_t count = lane.client.transport.Poll(told);
    for (std::size_t i = 0; i < count; ++i) {
      PHUB_CHECK(told[i].kind ==
                 (lane.credits ? CompletionKind::kReceived : CompletionKind::kSent));
      if (lane.credits) free_slots.push_back(told[i].message->header.slot.value);
      ++done;
    }
    lane.client.transport.Release({told.data(), count});
    if (count == 0) WaitFor(lane.client.transport);
  }
}

double Measure(bool credits, std::uint32_t chunk_bytes, std::uint32_t chunks) {
  Lane lane;
  lane.credits = credits;
  lane.slot_count = credits ? kCreditedSlots : kLimits.messages_max;
  lane.chunk_bytes = chunk_bytes;
  const std::size_t stride = wire::kSlotHeaderBytes + chunk_bytes;
  using Backing = MappedMemory::Backing;
  lane.gradients =
      MappedMemory::Allocate(std::size_t{kCreditedSlots} * chunk_bytes, Backing::kPrefault);
  lane.staging = MappedMemory::Allocate(lane.slot_count * stride, Backing::kPrefault);
  PHUB_CHECK(lane.client.domain
                 ->Add(lane.gradients.data(), lane.gradients.bytes(),
                       transport::RegisteredMemory::Use::kSend, nullptr)
                 .ok());
  auto [ours, theirs] = ConnectVerbs(
      lane.daemon, lane.client, kLimits,
      {.data = lane.staging.data(), .slot_count = lane.slot_count, .slot_bytes = chunk_bytes});
  for (std::uint32_t i = 0; i < lane.slot_count; ++i) {
    lane.slots.push_back(
        {lane.staging.data() + i * stride + wire::kSlotHeaderBytes, chunk_bytes, false});
  }
  lane.daemon_id = lane.daemon.transport.Adopt(*ours, lane.slots);
  lane.client_id = lane.client.transport.Adopt(*theirs, {});
  const std::uint32_t untimed = kUntimedPerSlot * lane.slot_count;
  std::thread server([&] { Serve(lane, untimed + chunks); });
  Push(lane, untimed);
  const auto begin = std::chrono::steady_clock::now();
  Push(lane, chunks);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  server.join();
  const transport::VerbsCounters& counters = lane.client.transport.counters();
  PHUB_CHECK(counters.slot_writes.Get() == untimed + chunks && counters.bytes_copied.Get() == 0);
  return static_cast<double>(chunk_bytes) * chunks / seconds.count() / 1e6;
}

}  // namespace
}  // namespace phub::verbs_tests

int main(int argument_count, char** arguments) {
  if (argument_count == 2 && std::string_view(arguments[1]) == "--build-info") {
    return phub::bench::PrintBuildInfo();
  }
  PHUB_CHECK(argument_count == 4, "usage: bench-verbs-lane stream|credits CHUNK_BYTES CHUNKS");
  const std::string_view mode = arguments[1];
  PHUB_CHECK(mode == "stream" || mode == "credits", "mode={}", mode);
  const auto chunk_bytes = static_cast<std::uint32_t>(std::atoi(arguments[2]));
  const auto chunks = static_cast<std::uint32_t>(std::atoi(arguments[3]));
  PHUB_CHECK(chunk_bytes > 0 && chunk_bytes % 64 == 0 && chunks > 0);
  fmt::print("{:.2f}\n", phub::verbs_tests::Measure(mode == "credits", chunk_bytes, chunks));
  return 0;
}
