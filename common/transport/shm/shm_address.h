// Names of Unix sockets in Linux's abstract namespace. A name belongs to one network namespace and
// disappears with its last socket. Pure; any thread.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace phub::transport {

struct ShmAddress {
  // Requires name.size() <= kNameMax.
  explicit ShmAddress(const std::string& name) {
    unix_address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), unix_address.sun_path + 1);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  static constexpr std::size_t kNameMax = sizeof(sockaddr_un{}.sun_path) - 1;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&unix_address); }

  sockaddr_un unix_address{};
  socklen_t bytes = 0;
};

}  // namespace phub::transport
