// Packets that the box sends later. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "bench/box/layout.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::bench {

// Computes the checksum of UDP or TCP in a frame of Ethernet and IPv4 if it has one. The kernel
// leaves that to the network card, so a copy of a packet may lack it.
void FillChecksum(std::span<std::uint8_t> frame);

class HeldPackets {
 public:
  HeldPackets();  // aborts if this process may not send frames (CAP_NET_RAW)

  void Add(const phub_box_packet& packet, TimeNs now);
  void SendDue(TimeNs now);
  // Nanoseconds until the next one is due; negative if no packet waits.
  DurationNs Wait(TimeNs now) const;
  // Packets that the kernel did not take.
  std::uint64_t unsent() const { return unsent_; }

 private:
  struct Held {
    std::uint32_t interface = 0;
    std::vector<std::uint8_t> frame;
  };

  Descriptor socket_;
  std::multimap<TimeNs, Held> held_;  // by the time at which they are due
  std::uint64_t unsent_ = 0;
};

}  // namespace phub::bench
