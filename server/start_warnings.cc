#include "server/start_warnings.h"

#include <fmt/format.h>
#include <unistd.h>

#include "common/base/log.h"
#include "server/config/setting_kind.h"

namespace phub::server {

// /etc/hosts of Debian gives a host's own name to 127.0.1.1. Then the daemon listens, but no other
// host can reach it.
void WarnOfLoopback(const char* setting, const std::string& value,
                    std::span<const net::SocketAddress> addresses) {
  if (!IsBeyondLoopback(value) || !net::OnlyLoopback(addresses)) return;
  LogWarning(
      "event=only_loopback setting={} value=\"{}\" addresses={} reason=\"the name resolves to "
      "loopback addresses here, so other hosts cannot connect; set an IP address, or change "
      "/etc/hosts\"",
      setting, value, net::ListText(addresses));
}

// Anyone who takes over this host could issue certificates of any identity.
void WarnOfAuthorityKey(const Settings& given) {
  for (const std::string& path : {given.tls_client_ca, given.tls_certificate}) {
    const std::string key = path.substr(0, path.rfind('/') + 1) + "ca.key";
    if (path.empty() || access(key.c_str(), F_OK) != 0) continue;
    LogWarning(
        "event=authority_key_on_this_host path=\"{}\" reason=\"anyone who has it can impersonate "
        "any identity; keep it on another host\"",
        key);
    return;
  }
}

}  // namespace phub::server
