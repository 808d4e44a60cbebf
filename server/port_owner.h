// Which process listens on a TCP port of this host, from /proc. Any thread; reads files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace phub::server {

struct PortOwner {
  pid_t pid = 0;
  std::string program;  // the executable's path; empty if this user may not know
};

// Nothing if nobody listens, or if the process belongs to another user.
std::optional<PortOwner> FindPortOwner(std::uint16_t port);

// The first process of a running phubd: `pid`, or its parent if `pid` is the front of a phubd.
// Nothing if the process is not a phubd, which means that its program has another name than this.
std::optional<pid_t> FindRunningDaemon(const PortOwner& owner);

}  // namespace phub::server
