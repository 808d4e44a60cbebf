// Warnings about a configuration that works, but probably not as meant. One thread.
#pragma once

#include <span>
#include <string>

#include "common/net/address.h"
#include "server/config/settings.h"

namespace phub::server {

// The port of `setting` is bound to loopback addresses only, although its value is another name.
void WarnOfLoopback(const char* setting, const std::string& value,
                    std::span<const net::SocketAddress> addresses);
// The private key of the authority lies next to the daemon's certificates.
void WarnOfAuthorityKey(const Settings& given);

}  // namespace phub::server
