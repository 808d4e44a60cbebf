// A UDP socket of sums in the network. It receives many datagrams with one call and lets the kernel
// join and cut equal datagrams (UDP_GRO, UDP_SEGMENT). Where the kernel refuses either, datagrams
// are received and sent one by one, in the same calls. One thread.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/aggregation/packet.h"
#include "common/base/descriptor.h"

namespace phub::aggregation {

// An address of IPv4 is mapped to IPv6. REQUIRES: the family is AF_INET or AF_INET6.
phub_endpoint EndpointOf(const sockaddr_storage& address);

class DatagramSocket {
 public:
  struct Counts {
    std::uint64_t received = 0;  // datagrams, joined ones counted one by one
    std::uint64_t received_bytes = 0;
    std::uint64_t sent = 0;
    std::uint64_t sent_bytes = 0;
    std::uint64_t sends_failed = 0;  // datagrams that the kernel did not take; as if lost
    std::uint64_t receive_calls = 0;
    std::uint64_t send_calls = 0;
  };
  using Handler =
      std::function<void(std::span<const std::uint8_t> datagram, const phub_endpoint& source)>;

  // Binds to the address; port 0: the kernel chooses. kInvalidArgument: not one address of this
  // host, since answers must come from the address that peers send to.
  static absl::StatusOr<DatagramSocket> Bind(const sockaddr_storage& address, socklen_t bytes);

  int descriptor() const { return socket_.get(); }
  const phub_endpoint& endpoint() const { return endpoint_; }
  bool joins() const { return joins_; }  // UDP_GRO
  bool cuts() const { return cuts_; }    // UDP_SEGMENT
  const Counts& counts() const { return counts_; }

  // One call of the kernel. Returns the number of datagrams, 0 if none waits.
  std::size_t Receive(const Handler& handle);

  // Queues a datagram of two parts for Flush(). Copies both.
  void Queue(const phub_endpoint& to, std::span<const std::uint8_t> header,
             std::span<const std::uint8_t> payload);
  // The bytes that are queued. A caller that queues much must flush in between.
  std::size_t queued_bytes() const { return bytes_.size(); }
  // Sends what is queued, ordered by destination. Never waits: datagrams that do not fit are lost.
  void Flush();

 private:
  struct Queued {
    phub_endpoint to;
    std::size_t begin = 0;
    std::size_t length = 0;
  };
  struct Burst {  // one message: datagrams of one length to one destination, the last may be
                  // shorter
    std::size_t first = 0;
    std::size_t count = 0;
  };

  DatagramSocket() = default;
  void Cut();  // queue_ into bursts_
  void Send();
  bool CanJoin(const Burst& burst, const Queued& next, std::size_t bytes) const;
  socklen_t AddressOf(const phub_endpoint& endpoint, sockaddr_storage& address) const;

  Descriptor socket_;
  phub_endpoint endpoint_{};
  bool is_ipv4_ = true;
  bool joins_ = false;
  bool cuts_ = false;
  Counts counts_;
  std::vector<std::uint8_t> received_;
  std::vector<std::uint8_t> bytes_;
  std::vector<Queued> queue_;
  std::vector<Burst> bursts_;
};

}  // namespace phub::aggregation
