// The listening sockets of the control port. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace phub::server {

struct ListeningSockets {
  std::vector<Descriptor> sockets;  // non-blocking; one for each address of the host's name
  std::uint16_t port = 0;           // the same for all
};

// `host`: a name or an address, without brackets. Port 0: the kernel chooses.
absl::StatusOr<ListeningSockets> ListenForControl(const std::string& host, std::uint16_t port);

}  // namespace phub::server
