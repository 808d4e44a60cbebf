#include "server/config/control_store_setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "common/net/host_port.h"
#include "server/config/setting_kind.h"

namespace phub::server {
namespace {

constexpr std::string_view kSqlite = "sqlite:";
constexpr std::string_view kEtcd = "etcd:";
constexpr std::string_view kPlain = "http://";
constexpr std::string_view kEncrypted = "https://";

absl::Status Wrong(const std::string& message) { return absl::InvalidArgumentError(message); }

// The same names as IsDaemonId of server/etcd accepts.
bool IsDaemonId(std::string_view id) {
  constexpr std::size_t kIdBytesMax = 63;
  return id.size() <= kIdBytesMax && std::ranges::all_of(id, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

absl::Status CheckEndpoint(const Settings& settings, const std::string& url) {
  const bool encrypted = url.starts_with(kEncrypted);
  if (!encrypted && !url.starts_with(kPlain)) {
    return Wrong(fmt::format("control_store names \"{}\"; write https://host:port", url));
  }
  const std::string address = url.substr(encrypted ? kEncrypted.size() : kPlain.size());
  if (!net::ParseHostAndPort(address).ok()) {
    return Wrong(fmt::format("control_store names \"{}\"; write https://host:port", url));
  }
  if (!encrypted && !settings.insecure && IsBeyondLoopback(address)) {
    return Wrong(
        fmt::format("control_store names {}: without TLS, anyone on the way to etcd could change "
                    "what it answers. Use https://, or accept the risk with --insecure",
                    url));
  }
  return absl::OkStatus();
}

absl::Status CheckEtcd(const Settings& settings) {
  std::string rest = EtcdEndpointsOf(settings);
  if (rest.empty()) return Wrong("control_store = \"etcd:\" names no endpoint of etcd");
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const absl::Status status = CheckEndpoint(settings, rest.substr(0, comma));
    if (!status.ok()) return status;
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  if (settings.token_key.empty()) {
    return Wrong(
        "control_store = \"etcd:...\" needs token_key, a file that phubd creates on the "
        "first daemon of a cluster and that you copy to the others");
  }
  if (settings.etcd_certificate.empty() != settings.etcd_key.empty()) {
    return Wrong("etcd_certificate and etcd_key must be set together");
  }
  if (!settings.daemon_id.empty() && !IsDaemonId(settings.daemon_id)) {
    return Wrong("daemon_id must have 1 to 63 characters of A-Z, a-z, 0-9, '-', '_' and '.'");
  }
  const std::string& prefix = settings.etcd_prefix;
  if (prefix.size() < 2 || prefix.front() != '/' || prefix.back() == '/') {
    return Wrong(
        fmt::format("etcd_prefix = \"{}\" must begin with '/', and must not end with it", prefix));
  }
  return absl::OkStatus();
}

}  // namespace

std::string EtcdEndpointsOf(const Settings& settings) {
  if (!settings.control_store.starts_with(kEtcd)) return {};
  return settings.control_store.substr(kEtcd.size());
}

bool HasIdentities(const Settings& settings) {
  return !settings.state_dir.empty() || !settings.control_store.empty();
}

absl::Status ResolveControlStore(Settings& settings) {
  const std::string& store = settings.control_store;
  const bool in_etcd = store.starts_with(kEtcd);
  if (!in_etcd) {
    for (const auto& [name, value] :
         {std::pair("token_key", &settings.token_key), std::pair("etcd_ca", &settings.etcd_ca),
          std::pair("etcd_certificate", &settings.etcd_certificate),
          std::pair("etcd_key", &settings.etcd_key), std::pair("daemon_id", &settings.daemon_id)}) {
      if (!value->empty()) {
        return Wrong(fmt::format("{} needs control_store = \"etcd:...\", which is not set", name));
      }
    }
  }
  if (store.empty()) return absl::OkStatus();
  if (!settings.state_dir.empty()) {
    return Wrong(
        fmt::format("control_store = \"{}\" and state_dir = \"{}\" are both set; remove one "
                    "of them. state_dir = \"DIR\" is control_store = \"sqlite:DIR\"",
                    store, settings.state_dir));
  }
  if (in_etcd) return CheckEtcd(settings);
  if (!store.starts_with(kSqlite) || store.size() == kSqlite.size()) {
    return Wrong(
        fmt::format("control_store = \"{}\" is not valid; write sqlite:DIR or "
                    "etcd:https://host:port,...",
                    store));
  }
  settings.state_dir = store.substr(kSqlite.size());
  return absl::OkStatus();
}

}  // namespace phub::server
