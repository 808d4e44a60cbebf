#include "server/config/sum_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "common/base/status_text.h"
#include "common/net/host_port.h"
#include "server/config/list_text.h"

namespace phub::server {
namespace {

// Each has a thread and a connection in phubd.
constexpr std::size_t kAggregatorsMax = 64;

absl::Status CheckAggregator(const std::string& entry) {
  if (IsSocketPath(entry)) return absl::OkStatus();
  const auto endpoint = net::ParseHostAndPort(entry);
  if (!endpoint.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("has the entry \"{}\", which {}; an entry is the path of a control socket, "
                    "which begins with /, or host:port of an aggregator on another host",
                    entry, MessageOf(endpoint.status())));
  }
  if (endpoint->port != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "has the entry \"{}\" with port 0; write the port of the aggregator's --control-listen",
      entry));
}

}  // namespace

bool IsSocketPath(std::string_view aggregator) { return aggregator.starts_with('/'); }

absl::StatusOr<std::vector<std::string>> ParseSumAggregators(std::string_view text) {
  if (text.find('\0') != std::string_view::npos)
    return absl::InvalidArgumentError("contains a zero byte, which a path cannot contain");
  absl::StatusOr<std::vector<std::string>> entries = SplitList(text);
  if (!entries.ok()) return entries;
  for (const std::string& entry : *entries) {
    if (absl::Status status = CheckAggregator(entry); !status.ok()) return status;
  }
  if (entries->size() > kAggregatorsMax) {
    return absl::InvalidArgumentError(fmt::format(
        "has {} entries; phubd uses at most {} aggregators", entries->size(), kAggregatorsMax));
  }
  return entries;
}

absl::Status CheckSumAggregators(const Settings& settings) {
  if (!settings.tls_certificate.empty() && !settings.tls_client_ca.empty()) return absl::OkStatus();
  const auto entries = ParseSumAggregators(settings.sum_aggregator);
  if (!entries.ok()) return entries.status();
  const auto remote = std::ranges::find_if_not(*entries, IsSocketPath);
  if (remote == entries->end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("sum_aggregator names {}, which is on another host, where this daemon needs a "
                  "certificate of server/<name>: set state_dir or control_store, tls_certificate, "
                  "tls_key and tls_client_ca (phubctl pki creates the files)",
                  *remote));
}

}  // namespace phub::server
