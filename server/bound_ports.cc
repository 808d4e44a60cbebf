#include "server/bound_ports.h"

#include <fmt/format.h>

#include "common/base/log.h"
#include "server/config/setting_kind.h"

namespace phub::server {
namespace {

std::vector<std::string> TextsOf(std::span<const net::SocketAddress> addresses) {
  std::vector<std::string> texts;
  for (const net::SocketAddress& address : addresses) {
    texts.push_back(net::AddressAndPortText(address));
  }
  return texts;
}

// /etc/hosts of Debian gives a host's own name to 127.0.1.1. Then the daemon listens, but no other
// host can reach it.
void WarnOfLoopbackAt(const char* setting, const std::string& value,
                      std::span<const net::SocketAddress> addresses) {
  if (!IsBeyondLoopback(value) || !net::OnlyLoopback(addresses)) return;
  LogWarning(
      "event=only_loopback setting={} value=\"{}\" addresses={} reason=\"the name resolves to "
      "loopback addresses here, so other hosts cannot connect; set an IP address, or change "
      "/etc/hosts\"",
      setting, value, net::ListText(addresses));
}

}  // namespace

BoundAddresses AddressesOf(const BoundPorts& ports) {
  return {TextsOf(ports.control), TextsOf(ports.data), TextsOf(ports.metrics)};
}

std::string UrlsOf(std::span<const net::SocketAddress> addresses, std::string_view path) {
  if (addresses.empty()) return "off";
  std::vector<std::string> urls;
  for (const std::string& address : TextsOf(addresses)) {
    urls.push_back(fmt::format("http://{}{}", address, path));
  }
  return fmt::format("{}", fmt::join(urls, ","));
}

std::string Describe(const BoundPorts& ports) {
  return fmt::format("{} (data lanes on {}, metrics {})", net::ListText(ports.control),
                     net::ListText(ports.data), MetricsUrls(ports));
}

std::string MetricsUrls(const BoundPorts& ports) { return UrlsOf(ports.metrics, "/metrics"); }

void WarnOfLoopback(const Settings& settings, const BoundPorts& ports) {
  WarnOfLoopbackAt("listen", settings.listen, ports.control);
  if (!settings.data_listen.empty()) {
    WarnOfLoopbackAt("data_listen", settings.data_listen, ports.data);
  }
  if (!ports.metrics.empty()) {
    WarnOfLoopbackAt("metrics_listen", settings.metrics_listen, ports.metrics);
  }
  if (!ports.health.empty()) {
    WarnOfLoopbackAt("health_listen", settings.health_listen, ports.health);
  }
}

}  // namespace phub::server
