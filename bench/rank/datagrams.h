// Bursts of datagrams that the kernel segments (UDP_SEGMENT) and combines again (UDP_GRO). Filling
// a link of several Gbit/s then takes almost no CPU time. link_drain.h uses this at one end, the
// echo (bench/network/drain_echo.cc) at the other.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace phub::bench {

// The payload of a datagram. With headers it fits any network's MTU.
inline constexpr std::size_t kDatagramBytes = 1400;
inline constexpr std::size_t kBurstBytes = 22 * kDatagramBytes;  // passes quickly at any rate

class Datagrams {
 public:
  Datagrams();
  ~Datagrams();
  Datagrams(const Datagrams&) = delete;
  Datagrams& operator=(const Datagrams&) = delete;

  int descriptor() const { return socket_; }
  void Bind(const sockaddr_in& address);
  void Connect(const sockaddr_in& address);

  // `to`: nullptr if connected. At most kBurstBytes. Calls Fail() if the system refuses to send.
  void Send(std::size_t bytes, const sockaddr_in* to = nullptr);
  // Waits for datagrams. Returns their bytes, or 0 if none arrived; `from` may be nullptr.
  std::size_t Receive(sockaddr_in* from = nullptr);

 private:
  int socket_ = -1;
  std::vector<char> bytes_;
};

// Parses "ADDRESS:PORT", IPv4. `what` is used in the error.
sockaddr_in ParseAddress(const std::string& text, const std::string& what);

}  // namespace phub::bench
