// Slots that a program in the kernel adds to, and how the engine uses them. aggregator/xdp
// implements it. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "common/aggregation/packet.h"
#include "common/aggregation/slot.h"

namespace phub::aggregator {

struct Counters;

// What the program leaves to the engine: an answer to a worker, or a sum to be sent.
struct KernelEvent {
  phub_packet packet{};
  phub_verdict verdict{};
  phub_slot slot{};
};

class KernelSlots {
 public:
  virtual ~KernelSlots() = default;

  virtual std::uint64_t slot_bytes() const = 0;
  // The lease's slots are zeros. kResourceExhausted: no room for it.
  virtual absl::Status Grant(const phub_lease& lease) = 0;
  virtual void End(std::uint32_t lease) = 0;

  // A datagram that reached the socket and is not from a core loop. The program checks and counts
  // it.
  virtual void HandIn(std::span<const std::uint8_t> datagram, const phub_endpoint& source) = 0;
  virtual int event_descriptor() const = 0;  // readable: there are events
  virtual void TakeEvents(const std::function<void(const KernelEvent&)>& take) = 0;
  // State and integers of a slot at one moment. REQUIRES: the lease has the slot. `values` may be
  // empty; otherwise it has PHUB_PACKET_COUNT_MAX integers. False: the lease has ended.
  virtual bool Read(std::uint32_t lease, std::uint32_t slot, phub_slot& state,
                    std::span<std::uint32_t> values) const = 0;

  virtual void AddTo(Counters& counters) const = 0;
  // Sums of a lease that were sent for the first time.
  virtual std::uint64_t Sums(std::uint32_t lease) const = 0;
};

}  // namespace phub::aggregator
