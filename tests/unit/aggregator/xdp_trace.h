// Random datagrams to an aggregator: good ones, and every kind of bad, late and repeated ones.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "aggregator/engine.h"

namespace phub::aggregator {

struct TracePacket {
  std::vector<std::uint8_t> bytes;
  phub_endpoint source{};
};

// An address of IPv4.
phub_endpoint TraceEndpoint(std::uint8_t host, std::uint16_t port);
LeaseRequest TraceLease(std::uint32_t number, std::uint32_t workers, std::uint32_t count_max);

class Trace {
 public:
  Trace(const phub_lease& lease, std::uint64_t seed) : lease_(lease), random_(seed) {}
  // `engine` has the lease: most packets are of a phase that fits to their slot.
  TracePacket Next(const Engine& engine);

 private:
  std::uint32_t Below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_() % bound); }
  bool Chance(std::uint32_t percent) { return Below(100) < percent; }
  std::uint32_t PhaseNear(std::uint32_t phase);
  phub_packet Header(const Engine& engine);
  void SpoilHeader(phub_packet& packet, phub_endpoint& source);
  void SpoilBytes(std::vector<std::uint8_t>& bytes);

  const phub_lease lease_;
  std::mt19937_64 random_;
  std::deque<TracePacket> sent_;  // to be repeated, soon or late
  std::uint32_t nacks_ = 0;
};

}  // namespace phub::aggregator
