// A bad network between one peer and the aggregator: it drops datagrams, sends them again at once
// or much later, and reorders them. What happens to the n-th datagram of a direction depends only
// on the seed. One thread, which calls Pump().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/aggregation/datagram_socket.h"
#include "common/base/random.h"

namespace phub::process {

struct Trouble {  // of 1000 datagrams
  std::uint32_t lost = 0;
  std::uint32_t repeated = 0;
  std::uint32_t repeated_late = 0;
  std::uint32_t delayed = 0;
};

class LossyRelay {
 public:
  LossyRelay(const Trouble& trouble, std::uint64_t seed);

  // Where the aggregator sees the peer, and where the peer sees the aggregator.
  const phub_endpoint& peer_as_seen() const { return outer_.endpoint(); }
  const phub_endpoint& aggregator_as_seen() const { return inner_.endpoint(); }
  void Connect(const phub_endpoint& peer, const phub_endpoint& aggregator) {
    peer_ = peer;
    aggregator_ = aggregator;
  }

  void Pump();
  // Sends bytes to the aggregator as if the peer had sent them, without trouble.
  void Inject(std::span<const std::uint8_t> datagram);
  // Datagrams that the peer has sent, the first of them.
  const std::vector<std::vector<std::uint8_t>>& recorded() const { return recorded_; }

 private:
  struct Held {
    std::uint64_t due = 0;
    bool outwards = false;
    std::vector<std::uint8_t> bytes;
  };
  void Take(bool outwards, std::span<const std::uint8_t> datagram);
  void Send(bool outwards, std::span<const std::uint8_t> datagram);

  Trouble trouble_;
  SeededRandom random_;
  aggregation::DatagramSocket outer_;  // towards the aggregator
  aggregation::DatagramSocket inner_;
  phub_endpoint peer_{};
  phub_endpoint aggregator_{};
  std::uint64_t step_ = 0;
  std::vector<Held> held_;
  std::vector<std::vector<std::uint8_t>> recorded_;
};

// A socket on 127.0.0.1. Aborts if the system refuses it.
aggregation::DatagramSocket LocalSocket();

}  // namespace phub::process
