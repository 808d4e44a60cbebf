#include "server/config/sum_settings.h"

#include <fmt/format.h>

#include "common/base/status_text.h"
#include "common/net/host_port.h"

namespace phub::server {

bool IsSocketPath(std::string_view sum_aggregator) { return sum_aggregator.starts_with('/'); }

absl::Status CheckSumAggregator(const Settings& settings) {
  const std::string& value = settings.sum_aggregator;
  if (value.empty() || IsSocketPath(value)) return absl::OkStatus();
  if (const auto endpoint = net::ParseHostAndPort(value); !endpoint.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("sum_aggregator = \"{}\" {}; it must be the path of a control socket, which "
                    "begins with /, or host:port of an aggregator on another host",
                    value, MessageOf(endpoint.status())));
  }
  if (!settings.tls_certificate.empty() && !settings.tls_client_ca.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("sum_aggregator = \"{}\" is on another host, where this daemon needs a "
                  "certificate of server/<name>: set state_dir or control_store, tls_certificate, "
                  "tls_key and tls_client_ca (phubctl pki creates the files)",
                  value));
}

}  // namespace phub::server
