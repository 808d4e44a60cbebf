// The addresses that the ports of a running daemon are bound to. Pure data, valid as long as the
// ports. One thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/net/address.h"
#include "server/config/settings.h"
#include "server/control/admin/admin.h"

namespace phub::server {

struct BoundPorts {
  std::span<const net::SocketAddress> control;
  std::span<const net::SocketAddress> data;
  std::span<const net::SocketAddress> metrics;  // empty: no metrics port
  std::span<const net::SocketAddress> health;   // empty: no health port
  std::span<const net::SocketAddress> page;     // empty: no page
};

// As `phubctl server list` shows them.
BoundAddresses AddressesOf(const BoundPorts& ports);
// "http://127.0.0.1:7780/metrics", one for each address, separated by commas. "off" without a port.
std::string UrlsOf(std::span<const net::SocketAddress> addresses, std::string_view path);
// "127.0.0.1:7700 (data lanes on 127.0.0.1:40112, metrics off)"
std::string Describe(const BoundPorts& ports);
std::string MetricsUrls(const BoundPorts& ports);
// Warns of each port that is bound to loopback addresses only, although its setting is another
// name.
void WarnOfLoopback(const Settings& settings, const BoundPorts& ports);

}  // namespace phub::server
