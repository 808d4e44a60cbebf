// Bursts of datagrams that the kernel cuts (UDP_SEGMENT) and puts together again (UDP_GRO), so that
// filling a link of some Gbit/s takes next to no CPU time: link_drain.h at the one end, the echo
// (bench/network/drain_echo.cc) at the other.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace phub::bench {

// What each carries: with its headers it fits any network.
inline constexpr std::size_t kDatagramBytes = 1400;
inline constexpr std::size_t kBurstBytes = 22 * kDatagramBytes;  // soon through, at any rate

class Datagrams {
 public:
  Datagrams();
  ~Datagrams();
  Datagrams(const Datagrams&) = delete;
  Datagrams& operator=(const Datagrams&) = delete;

  int descriptor() const { return socket_; }
  void Bind(const sockaddr_in& address);
  void Connect(const sockaddr_in& address);

  // `to`: nullptr where connected. At most kBurstBytes; Fail()s if the system refuses them.
  void Send(std::size_t bytes, const sockaddr_in* to = nullptr);
  // Waits for some. Returns their bytes, 0 if there were none after all; `from`: may be nullptr.
  std::size_t Receive(sockaddr_in* from = nullptr);

 private:
  int socket_ = -1;
  std::vector<char> bytes_;
};

// "ADDRESS:PORT", IPv4; `what` is for the error.
sockaddr_in ParseAddress(const std::string& text, const std::string& what);

}  // namespace phub::bench
