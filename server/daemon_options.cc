#include "server/daemon_options.h"

#include <string_view>

#include "common/base/check.h"
#include "common/base/version.h"
#include "common/simd/kernels.h"
#include "server/config/control_store_setting.h"
#include "server/config/data_tls.h"
#include "server/config/rack_settings.h"

namespace phub::server {
namespace {

constexpr const char* kDefaultControlSocket = "/run/phub/control.sock";

bool IsWildcard(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace

net::HostAndPort Address(const std::string& text) {
  const auto address = net::ParseHostAndPort(text);
  PHUB_CHECK(address.ok(), "address={}", text);  // checked when the setting was read
  return *address;
}

net::HostAndPort DataAddress(const Settings& settings) {
  if (!settings.data_listen.empty()) return Address(settings.data_listen);
  return {Address(settings.listen).host, 0};
}

std::string ControlSocketPath(const Settings& settings) {
  if (!settings.control_socket.empty()) return settings.control_socket;
  return HasIdentities(settings) ? kDefaultControlSocket : "";
}

std::string LaneHost(const Settings& settings) {
  const std::string data_host = DataAddress(settings).host;
  if (IsWildcard(data_host) || data_host == Address(settings.listen).host) return "";
  return data_host;
}

ControlOptions MakeControlOptions(const Settings& settings, const RackTopology& topology,
                                  const LaneTransports& transports) {
  ControlOptions options;
  SetRacks(settings, topology, options);
  const auto place = FindRackPlace(settings);
  PHUB_CHECK(place.ok(), "daemons={} self={}", settings.daemons, settings.self);  // CheckTogether
  options.rack_endpoints = place->endpoints;
  options.rack_self = place->self;
  options.place = settings.place;
  options.view = settings.view.number;
  if (options.view != 0) options.view_digest = DigestOf(settings.view);
  options.lane_transports = transports;
  options.tls_lanes = DataTlsOf(settings).on;
  options.version = BuildVersion();
  options.commit = BuildCommit();
  options.simd_target = simd::TargetName();
  options.lane_host = LaneHost(settings);
  options.chunk_bytes = settings.chunk_bytes;
  options.staging_bytes_per_lane = settings.staging_bytes_per_lane;
  options.memory_bytes_max = settings.memory_max;
  options.liveness_timeout = settings.liveness_timeout;
  options.drain_timeout = settings.drain_timeout;
  return options;
}

}  // namespace phub::server
